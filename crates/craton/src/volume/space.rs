//! Space of a volume, from the block servers of its segments.

use std::collections::{BTreeMap, BTreeSet};

use block_proto::managers::ask_peer;
use block_proto::{
    BlockServerReply, BlockServerRequest, Managers, Reply, Request, SegmentPlace, VolumeInfo,
};
use block_volume::figures::SegmentUsage;
use block_volume::ids::SegmentId;
use block_volume::limits::BLOCK;
use runtime::Duration;
use serde_json::{Value, json};

use crate::output::bytes;

/// Wait for one block server's answer.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Space of a volume's segments, as far as their servers have answered.
pub struct Space {
    /// Copies, for servers that do not say what is on media.
    copies: u64,
    segments: BTreeMap<u32, SegmentUsage>,
    /// Segments whose server did not answer.
    silent: usize,
}

impl Space {
    /// Asks all servers of a volume.
    pub async fn of(managers: &Managers, info: &VolumeInfo, map: &[SegmentPlace]) -> Space {
        let servers: BTreeSet<_> = map.iter().filter_map(|place| place.addr).collect();
        let mut segments = BTreeMap::new();
        for addr in servers {
            let mut from = SegmentId { volume: info.volume, index: 0 };
            loop {
                let request = Request::BlockServer(BlockServerRequest::Usage { from });
                let answer = ask_peer(managers.client(), addr, request, ATTEMPT).await;
                let Ok(Reply::BlockServer(BlockServerReply::Usage { segments: found, more })) =
                    answer
                else {
                    break; // Counted as silent.
                };
                let last = found.last().map(|last| last.index);
                segments.extend(found.into_iter().map(|usage| (usage.index, usage)));
                match last.and_then(|last| last.checked_add(1)) {
                    Some(next) if more => from.index = next,
                    _ => break,
                }
            }
        }
        let silent = map.iter().filter(|place| !segments.contains_key(&place.index)).count();
        let copies = u64::from(info.spec.policy.in_copies().copies);
        Space { copies, segments, silent }
    }

    fn sum(&self, part: impl Fn(&SegmentUsage) -> u64) -> u64 {
        self.segments.values().map(part).sum()
    }

    /// Bytes of content: written and neither overwritten nor trimmed since.
    fn logical(&self) -> u64 {
        self.sum(|usage| usage.live) * BLOCK
    }

    /// Bytes in DataFiles, all copies and fragments.
    fn physical(&self) -> u64 {
        self.sum(|usage| self.stored(usage))
    }

    fn stored(&self, usage: &SegmentUsage) -> u64 {
        match usage.stored_bytes {
            0 => usage.file_bytes * self.copies,
            stored => stored,
        }
    }

    /// Share of the blocks in DataFiles that is not content any more.
    fn garbage(&self) -> f64 {
        let (blocks, live) = (self.sum(|usage| usage.blocks), self.sum(|usage| usage.live));
        (blocks - live.min(blocks)) as f64 / blocks.max(1) as f64
    }

    /// Bytes written by requests and by garbage collection over those by requests, of one copy,
    /// since the segments were opened; none before the first write (`protocols.md` 7).
    fn amplification(&self) -> Option<f64> {
        let written = self.sum(|usage| usage.append_bytes);
        let collected = self.sum(|usage| usage.collected_bytes);
        (written > 0).then(|| (written + collected) as f64 / written as f64)
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        json!({
            "logical_bytes": self.logical(),
            "physical_bytes": self.physical(),
            "garbage_ratio": self.garbage(),
            "write_amplification": self.amplification(),
            "written_bytes": self.sum(|usage| usage.append_bytes),
            "collected_bytes": self.sum(|usage| usage.collected_bytes),
            "index_bytes": self.sum(|usage| usage.index_bytes),
            "segments_silent": self.silent,
        })
    }

    /// For `--json`, of one segment.
    pub fn segment(&self, index: u32) -> Value {
        self.segments.get(&index).map_or(Value::Null, |usage| {
            json!({
                "logical_bytes": usage.live * BLOCK,
                "physical_bytes": self.stored(usage),
                "files": usage.files,
            })
        })
    }

    /// As text.
    pub fn text(&self) -> String {
        let amplification =
            self.amplification().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let silent = match self.silent {
            0 => String::new(),
            count => format!("; {count} segments whose server does not answer are not counted"),
        };
        format!(
            "{} of content in {} on disks, {:.0} % of the blocks there are garbage; write \
             amplification {amplification}{silent}",
            bytes(self.logical()),
            bytes(self.physical()),
            100.0 * self.garbage(),
        )
    }
}

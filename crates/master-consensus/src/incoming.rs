//! A snapshot of another member that comes in piece by piece, into runs of our store.

use std::rc::Rc;

use super::checkpoint::{Checkpoints, Run, RunWriter, SnapshotData};
use super::error::LogError;
use super::limits::SNAPSHOT_LEN_MAX;
use super::manifest::RunFacts;
use super::net::SnapshotPart;
use super::types::{SnapshotMeta, Vote};

/// A snapshot of which some pieces have come.
pub(super) struct Incoming {
    vote: Vote,
    meta: SnapshotMeta,
    /// The runs, as their sender names them.
    expected: Vec<RunFacts>,
    /// Those that are whole.
    done: Vec<Rc<Run>>,
    /// The one behind them.
    writer: Option<RunWriter>,
    at: u64,
    checkpoints: Checkpoints,
}

impl Incoming {
    /// The snapshot that `part` is of; none when it is too long.
    pub(super) fn new(checkpoints: &Checkpoints, part: &SnapshotPart) -> Option<Incoming> {
        let SnapshotPart { vote, ref meta, ref runs, .. } = *part;
        if runs.iter().any(|run| run.len == 0 || run.len > SNAPSHOT_LEN_MAX) {
            return None;
        }
        Some(Incoming {
            vote,
            meta: meta.clone(),
            expected: runs.clone(),
            done: Vec::new(),
            writer: None,
            at: 0,
            checkpoints: checkpoints.clone(),
        })
    }

    /// True when `part` is of this snapshot.
    pub(super) fn is(&self, part: &SnapshotPart) -> bool {
        self.vote == part.vote && self.meta == part.meta && self.expected == part.runs
    }

    /// Bytes that have come.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// True when nothing is missing.
    pub(super) fn is_whole(&self) -> bool {
        self.done.len() == self.expected.len()
    }

    /// Adds the next bytes, durably; false when they are not what was announced. Pieces do not
    /// cross runs.
    pub(super) async fn add(&mut self, bytes: &[u8]) -> Result<bool, LogError> {
        let Some(expected) = self.expected.get(self.done.len()) else { return Ok(true) };
        let writer = self.writer.get_or_insert_with(|| self.checkpoints.begin());
        if bytes.is_empty() || writer.len() + bytes.len() as u64 > expected.len {
            return Ok(false);
        }
        writer.push(bytes).await?;
        self.at += bytes.len() as u64;
        if writer.len() == expected.len {
            let written = self.writer.take().expect("used above").finish().await?;
            match written.filter(|run| run.facts.crc == expected.crc) {
                Some(run) => self.done.push(run),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The whole snapshot.
    pub(super) fn finish(self, checkpoints: &Checkpoints) -> (Vote, SnapshotMeta, SnapshotData) {
        (self.vote, self.meta, checkpoints.received(self.done))
    }
}

#[cfg(test)]
mod tests {
    use base::DiskId;
    use runtime::Class;
    use runtime::sim::Sim;
    use testing::chunks::ModelDisk;

    use super::*;
    use crate::group_store::{GroupStore, Kind};
    use crate::rows::Rows;

    #[test]
    fn whole_runs_of_a_snapshot_that_is_not_installed_are_removed_by_the_next_checkpoint() {
        let sim = Sim::new(1);
        let env = sim.boot(sim.add_host("master"));
        let work = env.clone();
        let done = env.spawn(Class::Foreground, "test", async move {
            let store = ModelDisk::new(DiskId::new(1)).open(None);
            let group_store = GroupStore::new(&work, store, 1);
            let checkpoints = Checkpoints::open(group_store.clone()).await.expect("empty");
            let bytes = b"a run".to_vec();
            let run = |id| RunFacts { id, len: 5, crc: codec::crc32c_extend(0, b"a run") };
            let part = SnapshotPart {
                vote: openraft::Vote::new(1, 1),
                meta: SnapshotMeta::default(),
                runs: vec![run(1), run(2)],
                offset: 0,
                bytes: bytes.clone(),
            };
            let mut incoming = Incoming::new(&checkpoints, &part).expect("short");
            assert_eq!(incoming.add(&bytes).await, Ok(true));
            assert_eq!(incoming.add(&bytes[..2]).await, Ok(true));
            let checkpoint = async || {
                let mut rows = Rows::default();
                rows.put(b"key", Some(b"value"));
                let (meta, installed) = (SnapshotMeta::default(), checkpoints.installed());
                checkpoints.add(meta, rows, installed).await.expect("written").expect("added")
            };
            let first = checkpoint().await;
            assert_eq!(incoming.add(&bytes[2..]).await, Ok(true));
            let (_, _, whole) = incoming.finish(&checkpoints);
            assert_eq!(whole.piece(5, 5).await, Ok(bytes), "the runs are kept until then");
            drop(whole);
            let second = checkpoint().await;
            let held = group_store.recover(Kind::Run).await.expect("a sound disk").len();
            assert_eq!((first.runs.len(), second.runs.len(), held), (1, 2, 2));
        });
        sim.run(done).expect("timers are set").expect("no crash");
    }
}

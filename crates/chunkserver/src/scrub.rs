//! Scrub: reads every sealed replica at a capped rate and verifies it (C26).

use std::rc::Rc;
use std::time::Duration;

use base::ChunkId;
use chunkstore::{ChunkStore, StoreError};
use wire::data::ReplicaState;

use crate::limits::READ_LEN_MAX;
use crate::server::{Chunkserver, Disk};

/// Replicas looked up at a time.
const PAGE: usize = 64;

impl<S: ChunkStore> Chunkserver<S> {
    pub(crate) async fn run_scrub(self) {
        if self.0.config.scrub_rate == 0 {
            return;
        }
        loop {
            // The pause comes first: a start is busy enough.
            self.0.env.sleep(self.0.env.jitter(self.0.config.scrub_pause)).await;
            for disk in self.0.disks.values().cloned().collect::<Vec<_>>() {
                self.scrub_disk(&disk).await;
            }
            self.count(|stats| stats.scrub_passes += 1);
        }
    }

    async fn scrub_disk(&self, disk: &Rc<Disk<S>>) {
        let mut after: Option<ChunkId> = None;
        loop {
            let page = disk.store.list(after, PAGE);
            let Some(last) = page.last() else { return };
            after = Some(last.chunk);
            for replica in page.iter().filter(|info| info.stat.state == ReplicaState::Sealed) {
                if disk.failed.get() || disk.store.info().failed {
                    return;
                }
                self.scrub_replica(disk, replica.chunk, replica.stat.len).await;
            }
        }
    }

    async fn scrub_replica(&self, disk: &Rc<Disk<S>>, chunk: ChunkId, len: u32) {
        let mut offset = 0;
        while offset < len {
            let step = READ_LEN_MAX.min(len - offset);
            match disk.store.read(chunk, offset, step).await {
                Ok(read) if read.sectors.is_empty() => return,
                Ok(_) => {}
                Err(StoreError::Corrupt { .. }) => {
                    self.note_damaged(disk.id, chunk);
                    return;
                }
                Err(_) => return, // Deleted meanwhile, or the disk has failed.
            }
            offset += step;
            self.count(|stats| stats.scrubbed_bytes += u64::from(step));
            let rate = (self.0.config.scrub_rate / u64::from(self.0.config.lanes.max(1))).max(1);
            let nanos = u64::from(step) * 1_000_000_000 / rate;
            self.0.env.sleep(Duration::from_nanos(nanos)).await;
        }
    }
}

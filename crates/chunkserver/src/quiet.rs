//! Open replicas whose writers send nothing any more: reported to masters, which seal them.
//!
//! A living writer sends often: appends, or commit messages while it is idle (`protocols.md` 1.6).
//! A refused message counts too, so that a writer whose right has run out is not taken for a dead
//! one.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{ChunkId, DiskId};
use chunkstore::ChunkStore;
use wire::data::ReplicaState;

use crate::limits::QUIET_PAGE_PAUSE;
use crate::server::{Chunkserver, Disk};

/// Replicas listed at a time.
const PAGE: usize = 256;

impl<S: ChunkStore> Chunkserver<S> {
    pub(crate) async fn run_quiet_watch(self) {
        loop {
            let pause = self.0.config.writer_quiet / 3;
            self.0.env.sleep(self.0.env.jitter(pause)).await;
            for disk in self.disks() {
                self.look_for_quiet(&disk).await;
            }
        }
    }

    async fn look_for_quiet(&self, disk: &Rc<Disk<S>>) {
        let (mut open, mut after) = (BTreeSet::new(), None);
        loop {
            let page = disk.store.list(after, PAGE);
            let Some(last) = page.last() else { break };
            after = Some(last.chunk);
            // One without bytes has nothing that could be lost.
            let written =
                page.iter().filter(|it| it.stat.state == ReplicaState::Open && it.stat.len > 0);
            for replica in written {
                open.insert(replica.chunk);
                let now = self.0.env.now();
                let key = (disk.id, replica.chunk);
                let seen = *self.0.writer_seen.borrow_mut().entry(key).or_insert(now);
                if now.since(seen) >= self.0.config.writer_quiet {
                    self.0.directory.add_quiet(disk.id, replica.chunk);
                }
            }
            self.0.env.sleep(QUIET_PAGE_PAUSE).await;
        }
        self.0
            .writer_seen
            .borrow_mut()
            .retain(|&(of, chunk), _| of != disk.id || open.contains(&chunk));
    }

    /// The writer of an open replica has sent something. Only replicas that the watch has seen are
    /// on the list: it is as long as there are open ones.
    pub(crate) fn note_writer_seen(&self, disk: DiskId, chunk: ChunkId) {
        if let Some(seen) = self.0.writer_seen.borrow_mut().get_mut(&(disk, chunk)) {
            *seen = self.0.env.now();
        }
    }
}

//! Checks of disks: one that has failed, and one that answers no operation any more.
//!
//! A disk that hangs says so by no error: its server sends heartbeats and answers pings, and what it
//! has in memory of its replicas. So it is shown to masters as one that is not there, and what it holds
//! is made again elsewhere after the grace of a silent server. It is there again once it answers.

use std::rc::Rc;

use base::DiskId;
use base::limits::SECTOR;
use chunkstore::ChunkStore;
use runtime::Class;
use wire::control::{CallClass, DiskReport};

use crate::limits::DISK_WATCH_PAUSE;
use crate::server::{Chunkserver, Disk};

impl<S: ChunkStore> Chunkserver<S> {
    /// Checks every disk periodically, and reports one that has failed or hangs to the masters. A check
    /// that hangs holds back no other.
    pub(crate) async fn run_disk_watch(self) {
        let env = &self.0.env;
        loop {
            env.sleep(env.jitter(DISK_WATCH_PAUSE)).await;
            for disk in self.disks() {
                if !disk.check.is_under_way() {
                    self.start_check(disk);
                } else if disk.check.look() {
                    env.mark("chunkserver: a disk hangs");
                    tracing::warn!(
                        path = disk.path, disk = %disk.id,
                        "the disk answers no operation: masters take it for missing until it does"
                    );
                    self.heartbeat_soon();
                }
            }
        }
    }

    fn start_check(&self, disk: Rc<Disk<S>>) {
        let (this, env) = (self.clone(), self.0.env.clone());
        let writes = disk.check.begin(env.now());
        self.0.env.spawn(Class::Background, "check a disk", async move {
            let before = disk.store.info().failed;
            let took = |begun| (env.now() - begun, env.now());
            let begun = env.now();
            disk.store.check_medium().await;
            if !disk.store.info().failed {
                // So a disk that is not used, as one that is slow, is known to be slow or not.
                let (latency, now) = took(begun);
                disk.times.note(CallClass::read(SECTOR), latency, now);
            }
            let begun = env.now();
            // Some media answer reads and hang writes. What the store refuses is no hang.
            if writes && disk.store.probe().await.is_ok() {
                let (latency, now) = took(begun);
                disk.times.note(CallClass::append(SECTOR), latency, now);
            }
            let hung = disk.check.end();
            if hung {
                env.mark("chunkserver: a disk that hung answers");
                tracing::warn!(path = disk.path, disk = %disk.id, "the disk answers again");
            }
            if hung || disk.store.info().failed && !before {
                this.heartbeat_soon();
            }
        });
    }

    /// For each disk of this shard, whether it hangs.
    pub fn hanging_disks(&self) -> Vec<(DiskId, bool)> {
        self.disks().iter().map(|disk| (disk.id, disk.check.hangs())).collect()
    }

    /// Report of a disk that hangs.
    pub(crate) fn hanging(&self, disk: &Disk<S>) -> Option<DiskReport> {
        let lasts = disk.check.hangs_for(self.0.env.now())?;
        let reason = format!("it has answered no operation for {} s", lasts.as_secs());
        Some(self.not_served(&disk.path, &reason))
    }
}

//! Faults of disks that answer with errors, are gone for a while, or hide an error until another
//! server is down. One server at a time, as redundancy allows.

use std::path::{Path, PathBuf};
use std::time::Duration;

use runtime::sim::{CrashMode, DiskError, HostId};

use super::{WIPE_TIMEOUT, Work};
use crate::cluster::{Cluster, DISK_ROOT, MASTER_DIR};

/// One-shot errors: one operation in so many, least and most.
const SELDOM: (u64, u64) = (3, 40);
/// Time for which a server without a disk runs in milliseconds, least and most.
const ABSENT_MS: (u64, u64) = (500, 15_000);
/// Time for which a server is down while another one cannot read sectors, in milliseconds.
const DEAD_MS: (u64, u64) = (1_000, 15_000);

/// Time in which a master has found out that it may not take part without its disk, or that its
/// disk is damaged.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(30);

impl Work {
    /// Has operations of a disk fail for a moment: all of one kind, or a few.
    async fn fail_operations(&self, host: HostId, within: Option<PathBuf>) {
        self.cluster.media_fail(host);
        let error = self.sim.with_rng(|rng| {
            *rng.pick(&[DiskError::Io, DiskError::Io, DiskError::Space, DiskError::Memory])
        });
        let one_in = match self.draw(2) {
            0 => 1,
            _ => self.sim.with_rng(|rng| rng.between(SELDOM.0, SELDOM.1)),
        };
        let kind = self.draw(4);
        self.sim.with_disk_faults(host, |disk| {
            disk.error = error;
            disk.within = within;
            match kind {
                0 => disk.write_fails_one_in = one_in,
                1 => disk.sync_fails_one_in = one_in,
                2 => disk.read_fails_one_in = one_in,
                _ => {
                    disk.write_fails_one_in = one_in;
                    disk.sync_fails_one_in = one_in;
                    disk.read_fails_one_in = one_in;
                }
            }
        });
        // Half of them are over before the second attempt of any operation.
        let (low, high) = if self.draw(2) == 0 { (1, 30) } else { (30, 1_500) };
        self.pause(low, high).await;
        self.cluster.media_work(host);
    }

    /// Errors on a disk of a chunkserver. One whose store has failed is started again: it is
    /// another disk then, or the same that has recovered.
    pub(super) async fn io_errors(&self) {
        let index = self.draw(self.cluster.servers().len());
        let disk = self.draw(self.cluster.shape().disks);
        let path = Cluster::disk_path(disk).parent().map(Path::to_owned);
        match self.draw(5) {
            0 => {
                let cluster = self.cluster.clone();
                let host = cluster.servers()[index];
                cluster.crash_server(index, self.mode());
                self.fail_names(host, path, || cluster.boot_server(index)).await;
            }
            1 => {
                // Of one disk, or of all.
                let path = path.filter(|_| self.draw(2) == 0);
                if let Err(what) = self.start_without_room(index, path).await {
                    self.cluster.violation(format!("chunkserver {}: {what}", index + 1));
                }
            }
            _ => self.fail_operations(self.cluster.servers()[index], path).await,
        }
        self.pause(10, 2_000).await;
        if self.cluster.with_failed_stores().contains(&index) {
            self.sim.mark("nemesis: a store has failed");
            self.cluster.crash_server(index, self.mode());
            self.pause(10, 1_000).await;
            self.cluster.boot_server(index);
        }
        // Until it is back no other server fails.
        if let Err(what) = self.served(index).await {
            self.cluster.violation(format!("chunkserver {}: {what}", index + 1));
        }
    }

    /// A server starts while disks have no room, not even for what their stores have there. All are
    /// served, and take writes once there is room.
    async fn start_without_room(
        &self,
        index: usize,
        within: Option<PathBuf>,
    ) -> Result<(), String> {
        let host = self.cluster.servers()[index];
        self.cluster.media_fail(host);
        self.sim.with_disk_faults(host, |disk| {
            disk.write_fails_one_in = 1;
            disk.error = DiskError::Space;
            disk.within = within;
        });
        if self.draw(2) == 0 {
            self.pause(10, 1_500).await; // It meets that before it ends.
        }
        self.cluster.crash_server(index, self.mode());
        self.pause(10, 1_000).await;
        self.cluster.boot_server(index);
        let served = self.served(index).await;
        self.pause(10, 4_000).await;
        self.cluster.media_work(host);
        served?;
        self.sim.mark("nemesis: a server starts on disks without room");
        let writes = async || !self.cluster.with_failed_stores().contains(&index);
        self.within(writes).await.map_err(|()| "a disk that has room takes no writes".to_owned())
    }

    /// Starts a process while files of its disk cannot be opened, made, renamed, or their names
    /// made durable: always, or now and then. It does most of that when it starts.
    async fn fail_names(&self, host: HostId, within: Option<PathBuf>, boot: impl FnOnce()) {
        self.cluster.media_fail(host);
        let one_in = self.sim.with_rng(|rng| *rng.pick(&[1, 2, 4]));
        let error = self.sim.with_rng(|rng| *rng.pick(&[DiskError::Io, DiskError::Space]));
        self.sim.with_disk_faults(host, |disk| {
            disk.names_fail_one_in = one_in;
            disk.error = error;
            disk.within = within;
        });
        self.pause(10, 500).await;
        boot();
        self.pause(50, 3_000).await;
        self.cluster.media_work(host);
    }

    /// Errors on a master's disk, or no room on it. A master that fails is started again.
    pub(super) async fn master_disk(&self) {
        let index = self.draw(self.cluster.masters().len());
        let host = self.cluster.masters()[index];
        if self.draw(3) == 0 {
            self.cluster.media_fail(host);
            let used: u64 = self.sim.files(host).iter().map(|(_, len)| len).sum();
            let room = self.sim.with_rng(|rng| rng.below(256 << 10));
            self.sim.with_disk_faults(host, |disk| disk.capacity = used + room);
            self.pause(300, 3_000).await;
            self.cluster.media_work(host);
        } else if self.draw(4) == 0 {
            let cluster = self.cluster.clone();
            cluster.crash_master(index, self.mode());
            self.fail_names(host, None, || cluster.boot_master(index)).await;
        } else {
            self.fail_operations(host, None).await;
        }
        // Until it runs again no other master fails.
        self.pause(100, 1_000).await;
        self.cluster.tend_masters();
        self.pause(1_000, 3_000).await;
    }

    /// A master comes back with an empty disk. It must refuse to take part under its old number;
    /// then an operator replaces it. Or a healthy one is replaced, without notice.
    pub(super) async fn lose_master(&self) {
        let index = self.draw(self.cluster.masters().len());
        let host = self.cluster.masters()[index];
        if self.draw(3) == 0 {
            return self.replace_master(index, "nemesis: a healthy master is replaced").await;
        }
        self.cluster.damage_media(host);
        self.cluster.crash_master(index, CrashMode::Power);
        self.sim.wipe(host, MASTER_DIR.as_ref());
        self.pause(10, 2_000).await;
        self.cluster.boot_master(index);
        let end = self.sim.elapsed() + REFUSAL_TIMEOUT;
        while self.cluster.master_failure(index).is_none() && self.sim.elapsed() < end {
            self.sim.sleep(Duration::from_millis(20)).await;
        }
        match self.cluster.master_failure(index) {
            Some(_) => self.sim.mark("nemesis: a master without its disk takes no part"),
            None => {
                return self.cluster.violation(self.cluster.not_refused(index));
            }
        }
        self.replace_master(index, "nemesis: a master is replaced").await;
    }

    async fn replace_master(&self, index: usize, mark: &'static str) {
        match self.cluster.replace_master(index).await {
            Ok(()) => self.sim.mark(mark),
            Err(error) => {
                self.cluster.violation(format!("master {index} is not replaced: {error}"))
            }
        }
    }

    /// A master's disk rots: bits turn, sectors cannot be read, writes get lost. It starts again;
    /// one that reports damage twice is replaced. Damage that is not found may be found later:
    /// until it is replaced it is the same master that rots.
    pub(super) async fn rot_master(&self) {
        let masters = self.cluster.masters();
        let index = self.rotten_master.get().unwrap_or_else(|| self.draw(masters.len()));
        let host = masters[index];
        self.rotten_master.set(Some(index));
        self.cluster.damage_media(host);
        let kind = self.draw(3);
        if kind == 2 {
            self.sim.with_disk_faults(host, |disk| disk.lost_one_in = 20);
        } else {
            let files = self.sim.files(host).into_iter();
            let files: Vec<_> = files.filter(|(file, _)| file.starts_with(MASTER_DIR)).collect();
            // One place alone is often where nothing is.
            let places = if self.draw(3) == 0 { 1 } else { 1 + self.draw(64) };
            for _ in 0..places {
                let Some((path, len)) = files.get(self.draw(files.len().max(1))) else { continue };
                let at = self.sim.with_rng(|rng| rng.below((*len).max(1)));
                match kind {
                    0 => drop(self.sim.flip_bit(host, path, at, self.draw(8) as u8)),
                    _ => self.sim.make_unreadable(host, path, at),
                }
            }
        }
        self.pause(100, 2_000).await;
        self.sim.with_disk_faults(host, |disk| disk.lost_one_in = 0);
        // A disk that has lost acknowledged writes may not show it at the next start.
        if kind == 2 || !self.stands_rot(index).await {
            self.rotten_master.set(None);
            self.replace_master(index, "nemesis: a rotten master is replaced").await;
        }
    }

    /// Starts a master on its rotten disk: whether it serves. One that does not must say why.
    async fn stands_rot(&self, index: usize) -> bool {
        self.cluster.crash_master(index, self.mode());
        self.cluster.boot_master(index);
        let end = self.sim.elapsed() + REFUSAL_TIMEOUT;
        while self.sim.elapsed() < end {
            self.sim.sleep(Duration::from_millis(50)).await;
            if self.cluster.master_serves(index) {
                self.sim.mark("nemesis: a rotten master serves");
                return true;
            }
            self.cluster.tend_masters();
            if self.cluster.master_errors(index).len() >= 2 {
                return false;
            }
        }
        self.cluster.violation(format!("master {} neither serves nor says why", index + 1));
        false
    }

    /// A server starts without one of its disks, which is back while it runs, or at its next start.
    pub(super) async fn absent_disk(&self) {
        let index = self.draw(self.cluster.servers().len());
        let disk = self.draw(self.cluster.shape().disks);
        self.cluster.set_absent(index, disk, true);
        self.cluster.crash_server(index, self.mode());
        self.pause(10, 500).await;
        self.cluster.boot_server(index);
        self.pause(ABSENT_MS.0, ABSENT_MS.1).await;
        self.cluster.set_absent(index, disk, false);
        if self.draw(2) == 0 {
            self.sim.mark("nemesis: a disk is back at a start");
            self.cluster.crash_server(index, self.mode());
            self.cluster.boot_server(index);
        } else {
            self.sim.mark("nemesis: a disk is back while its server runs");
        }
        if let Err(what) = self.served(index).await {
            self.cluster.violation(format!("chunkserver {}: {what}", index + 1));
        }
        let _ = self.cluster.until_whole(WIPE_TIMEOUT).await;
    }

    /// Sectors of one server cannot be read, and another server is down: what both hold is on
    /// the third disk only.
    pub(super) async fn latent_error(&self) {
        // Always the same server: errors that were not found yet add up.
        let (count, index) = (self.cluster.servers().len(), self.rotten);
        let host = self.cluster.servers()[index];
        let stores = self.sim.files(host).into_iter();
        let stores: Vec<_> = stores.filter(|(file, _)| file.starts_with(DISK_ROOT)).collect();
        for (path, len) in &stores {
            for _ in 0..1 + self.draw(16) {
                let at = self.sim.with_rng(|rng| rng.below((*len).max(1)));
                self.sim.make_unreadable(host, path, at);
            }
        }
        let other = (index + 1 + self.draw(count - 1)) % count;
        self.cluster.crash_server(other, self.mode());
        self.pause(DEAD_MS.0, DEAD_MS.1).await;
        self.sim.mark("nemesis: latent errors beside a dead server");
        self.cluster.boot_server(other);
        let _ = self.cluster.until_whole(WIPE_TIMEOUT).await;
    }
}

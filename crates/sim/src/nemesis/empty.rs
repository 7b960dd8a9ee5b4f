//! Disks that are replaced by empty ones. More losses at once than copies are beyond the budget, so
//! repair ends before the next.

use std::time::Duration;

use base::DiskId;
use runtime::Class;
use runtime::sim::CrashMode;
use wire::control::{ChunkserverRequest, ControlRequest, DiskReport};

use super::{WIPE_TIMEOUT, Work};
use crate::cluster::DISK_ROOT;

/// Time in which masters show an empty disk, and serve one that was formatted.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);
/// Pause between two checks.
const LOOK: Duration = Duration::from_millis(200);
/// Time for which a server runs without its disk in milliseconds, least and most.
const EMPTY_MS: (u64, u64) = (500, 5_000);

impl Work {
    /// Replaces the disk of a server by an empty one.
    pub(super) async fn wipe(&self) {
        let index = self.draw(self.cluster.servers().len());
        let before = self.incarnations(index);
        let formatted = self.draw(2) == 0;
        self.cluster.crash_server(index, CrashMode::Power);
        self.cluster.empty_disks(index, formatted);
        self.pause(10, 1000).await;
        self.cluster.boot_server(index);
        let done = match formatted {
            true => self.served(index).await,
            false => self.stay_empty(index, &before).await,
        };
        if let Err(what) = done {
            return self.cluster.violation(format!("chunkserver {}: {what}", index + 1));
        }
        let now = self.incarnations(index);
        if now.iter().any(|disk| before.contains(disk)) {
            let what = format!("{now:?} is served after {before:?} was replaced");
            return self.cluster.violation(what);
        }
        self.sim.mark(match formatted {
            true => "nemesis: a disk is formatted before its server starts",
            false => "nemesis: a disk is formatted while its server runs",
        });
        let _ = self.cluster.until_whole(WIPE_TIMEOUT).await; // Checked at the end.
    }

    /// The server runs without its disks, which were `before`. Nothing is written into what is there
    /// until an operator formats it.
    async fn stay_empty(&self, index: usize, before: &[DiskId]) -> Result<(), String> {
        let shown = self.within(async || {
            let disks = self.reported(index).await;
            let is_empty = |disk: &DiskReport| disk.failed && disk.reason.contains("is empty");
            !disks.is_empty() && disks.iter().all(is_empty)
        });
        shown.await.map_err(|()| "its empty disk is not shown as failed".to_owned())?;
        self.sim.mark("nemesis: an empty disk is a failed one");
        self.elsewhere(before).await?;
        self.sim.mark("nemesis: the data of an empty disk is elsewhere");
        self.pause(EMPTY_MS.0, EMPTY_MS.1).await;
        let files = self.sim.files(self.cluster.servers()[index]);
        if let Some((path, _)) = files.iter().find(|(path, _)| path.starts_with(DISK_ROOT)) {
            return Err(format!("{} was written into an empty disk", path.display()));
        }
        if self.cluster.server(index).is_none() {
            return Err("it does not run without its disk".to_owned());
        }
        // By hand, or by an order to the server.
        match index.is_multiple_of(2) {
            true => self.replace_disks(index).await?,
            false => self.cluster.format_disks(index).await?,
        }
        self.served(index).await
    }

    /// Waits until no chunk has a replica on record at some disks that are gone. Others may be short of
    /// copies for reasons of their own at any moment under load.
    async fn elsewhere(&self, gone: &[DiskId]) -> Result<(), String> {
        let end = self.sim.elapsed() + WIPE_TIMEOUT;
        loop {
            let left = match self.cluster.chunk_at(gone) {
                Ok(None) => return Ok(()),
                Ok(Some(chunk)) => chunk,
                Err(why) => why,
            };
            if self.sim.elapsed() > end {
                let text = format!(
                    "its disk is empty, and its data is not elsewhere: not whole after \
                     {WIPE_TIMEOUT:?}: {left}"
                );
                return Err(text);
            }
            self.sim.sleep(LOOK).await;
        }
    }

    /// An operator orders a server to make stores on its empty disks.
    async fn replace_disks(&self, index: usize) -> Result<(), String> {
        // Each master reports them.
        let mut disks = self.reported(index).await;
        disks.sort_by(|one, other| one.path.cmp(&other.path));
        disks.dedup_by(|one, other| one.path == other.path);
        let client = self.cluster.client(None).await;
        let (host, client) = client.map_err(|error| error.to_string())?;
        let env = client.env().clone();
        let orders = env.spawn(Class::Foreground, "replace disks", async move {
            for disk in disks {
                let to = disk.addr.ok_or("its report has no address")?;
                let order = ChunkserverRequest::ReplaceDisk { path: disk.path.clone() };
                let order = ControlRequest::Chunkserver(order);
                let answer = client.ask_peer(to, order, SHOWN_WITHIN).await;
                answer.map_err(|error| format!("{} is not replaced: {error}", disk.path))?;
            }
            Ok(())
        });
        let done = orders.await.unwrap_or_else(|_| Err("the client is gone".to_owned()));
        self.sim.crash(host, CrashMode::Process);
        self.sim.mark("nemesis: an empty disk is replaced by an order");
        self.cluster.note_formatted(index);
        done
    }

    /// Waits until the server serves all its disks.
    pub(super) async fn served(&self, index: usize) -> Result<(), String> {
        let count = self.cluster.shape().disks;
        let served = self.within(async || self.cluster.stores(index).len() == count);
        served.await.map_err(|()| "a disk that is there is not served".to_owned())
    }

    pub(super) async fn within(&self, is_done: impl AsyncFn() -> bool) -> Result<(), ()> {
        let end = self.sim.elapsed() + SHOWN_WITHIN;
        while !is_done().await {
            if self.sim.elapsed() > end {
                return Err(());
            }
            self.sim.sleep(LOOK).await;
        }
        Ok(())
    }

    fn incarnations(&self, index: usize) -> Vec<DiskId> {
        self.cluster.stores(index).into_iter().map(|(disk, _)| disk).collect()
    }

    /// The disks of a server as the masters show them, while it is alive.
    async fn reported(&self, index: usize) -> Vec<DiskReport> {
        let Ok((host, client)) = self.cluster.client(None).await else { return Vec::new() };
        let (env, name) = (client.env().clone(), format!("cs{}", index + 1));
        let asked = env.spawn(Class::Foreground, "status", async move { client.status().await });
        let statuses = asked.await.ok().and_then(Result::ok).unwrap_or_default();
        self.sim.crash(host, CrashMode::Process);
        let servers = statuses.into_iter().flat_map(|(_, status)| status.servers);
        let own = servers.filter(|server| server.name == name && server.alive);
        own.flat_map(|server| server.disks).collect()
    }
}

//! Deleted volumes on the whole stack, while block managers crash and their calendars are set by
//! days. The data is kept for as long as was promised, under every leader; it comes back with its
//! content. When its time is over, it goes with its files. With little room on the disks the volume
//! whose time ends first goes early, and no other.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use base::limits::reserve_bytes;
use base::{Kind, MIB};
use block_client::{Limits, VolumeExports};
use block_manager::limits::{EXPIRY, FREE_PERCENT};
use block_proto::paths::segment_path;
use block_proto::{
    BlockReply, BlockRequest, DeletedVolume, Managers, VolumeGeometry, VolumeInfo, VolumeSpec,
};
use block_volume::contract::Device;
use block_volume::export::Exports;
use block_volume::geometry::Extent;
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::qos::VolumeLimits;
use client::{Appender, Client};
use runtime::sim::{CrashMode, Sim};
use runtime::{Class, Env};
use wire::control::{ClusterReply, ClusterRequest, Policy};

use super::policy;
use super::stack::{Role, Stack};
use super::stored::check_all;
use crate::cluster::{Cluster, Shape};
use crate::tuning::Tuning;

pub(super) const MANAGERS: usize = 2;
/// Time for which the data of deleted volumes is kept.
pub(super) const KEPT: Duration = Duration::from_secs(40);
/// A leader stores the time left at this interval: each takeover may add this.
const STEP: Duration = EXPIRY.saturating_add(EXPIRY);
/// Takeovers, removals and checks take no longer without faults.
const SLACK: Duration = Duration::from_secs(30);
/// Time limit of a request: then it is given up.
const DEADLINE: Duration = Duration::from_secs(60);
/// An answer or an error comes within so long: a request that has neither hangs.
pub(super) const BOUND: Duration = DEADLINE.saturating_add(Duration::from_secs(5));
const DAY_MS: i64 = 24 * 3600 * 1000;
const FILE_BYTES: u64 = 256 << 10;
pub(super) const SECTOR: u64 = 64 << 10;
/// Segments of a volume that is not larger than a group.
pub(super) const SEGMENTS: u64 = 4;
/// Bytes of a store, and of the volume that is to make room.
const DISK: u64 = 96 * MIB;
const LARGE: u64 = 12 * MIB;
pub(super) const PART: u64 = 256 << 10;

/// The byte that fills the part at `offset`.
pub(super) fn byte_at(offset: u64) -> u8 {
    (offset / PART % 251) as u8 + 1
}

/// A cluster with block services on small disks, and a user of its volumes.
pub(super) struct World {
    pub(super) stack: Rc<Stack>,
    pub(super) env: Env,
    client: Client,
    pub(super) managers: Managers,
    pub(super) exports: VolumeExports,
}

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let world = Rc::new(World::start(&sim, Tuning::default()).await?);
    let env = world.env.clone();
    for phase in 0..5 {
        let world = world.clone();
        let work = env.spawn(Class::Foreground, "user", async move {
            match phase {
                0 => world.cut_off_is_gone().await,
                1 => world.kept_and_brought_back().await,
                2 => world.refusals_change_nothing().await,
                3 => world.gone_in_its_time().await,
                _ => world.gone_early().await,
            }
        });
        work.await.map_err(|_| "the user's host has crashed".to_owned())??;
        sim.note(sim.elapsed().as_millis() as u64);
    }
    world.stack.verdict()
}

impl World {
    pub(super) async fn start(sim: &Sim, tuning: Tuning) -> Result<World, String> {
        let shape = Shape { servers: 3, disk_bytes: DISK, ..Shape::default() }.partitioned(sim);
        let cluster = Cluster::start(sim, shape, tuning);
        cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
        let stack = Stack::start_keeping(&cluster, (MANAGERS, 2), FILE_BYTES, KEPT);
        let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
        let (env, endpoint) = (client.env().clone(), cluster.endpoint(client.env()));
        let managers = Managers::with_budget(&client, DEADLINE);
        let limits = Limits { deadline: DEADLINE, ..Limits::default() };
        let exports = VolumeExports::new(&managers, &endpoint, "user", limits);
        Ok(World { stack, env, client, managers, exports })
    }

    pub(super) fn sim(&self) -> &Sim {
        self.stack.cluster().sim()
    }

    pub(super) async fn ask(&self, request: BlockRequest) -> Result<BlockReply, String> {
        let name = request.name();
        let answer = self.bounded(name, self.managers.ask(request)).await?;
        answer.map_err(|error| format!("{name}: {error}"))
    }

    /// Does something that ends with an answer or an error, in time.
    pub(super) async fn bounded<T>(
        &self,
        what: &str,
        work: impl Future<Output = T>,
    ) -> Result<T, String> {
        let done = self.env.timeout(BOUND, work).await;
        done.map_err(|_| format!("{what}: neither an answer nor an error in {BOUND:?}"))
    }

    /// A request that is answered with a volume.
    pub(super) async fn volume(&self, request: BlockRequest) -> Result<VolumeInfo, String> {
        match self.ask(request).await? {
            BlockReply::Volume(info) => Ok(info),
            other => Err(format!("no volume: {other:?}")),
        }
    }

    pub(super) async fn find(&self, name: &str) -> Result<VolumeId, String> {
        let found = self.volume(BlockRequest::Find { name: name.to_owned() }).await?;
        Ok(found.volume)
    }

    pub(super) fn spec(&self, name: &str, bytes: u64) -> VolumeSpec {
        let geometry = VolumeGeometry {
            group_bytes: 16 * MIB,
            segments_per_group: SEGMENTS as u32,
            data_sector: SECTOR,
        };
        VolumeSpec {
            name: name.to_owned(),
            bytes,
            geometry,
            policy: policy::drawn_volume(),
            limits: VolumeLimits::default(),
            shared: false,
        }
    }

    pub(super) async fn create(&self, name: &str, bytes: u64) -> Result<VolumeId, String> {
        let (nonce, spec) = (self.env.random_u64(), self.spec(name, bytes));
        Ok(self.volume(BlockRequest::Create { nonce, spec }).await?.volume)
    }

    pub(super) async fn snapshot(&self, volume: VolumeId, name: &str) -> Result<VolumeId, String> {
        let (nonce, name) = (self.env.random_u64(), name.to_owned());
        Ok(self.volume(BlockRequest::Snapshot { nonce, volume, name }).await?.volume)
    }

    pub(super) async fn open(&self, name: &str) -> Result<Rc<dyn Device>, String> {
        for _ in 0..100 {
            match self.bounded("open", self.exports.open(name)).await? {
                Ok(device) => return Ok(device),
                Err(fault) if matches!(fault.kind, Kind::Retry | Kind::Invalid) => {
                    self.env.sleep(Duration::from_millis(100)).await;
                }
                Err(fault) => return Err(format!("open {name}: {fault}")),
            }
        }
        Err(format!("{name} cannot be opened"))
    }

    /// Writes to a volume from its beginning, other bytes in each part.
    pub(super) async fn write(&self, name: &str, bytes: u64) -> Result<(), String> {
        self.write_to(name, 0..bytes).await
    }

    /// The same from an offset on.
    pub(super) async fn write_to(&self, name: &str, range: Range<u64>) -> Result<(), String> {
        let device = self.open(name).await?;
        for offset in range.step_by(PART as usize) {
            let data = vec![byte_at(offset); PART as usize];
            let data = self.env.pool().copy_of(&data).map_err(|error| error.to_string())?;
            let written = self.bounded("write", device.write(offset, data)).await?;
            written.map_err(|fault| format!("write {name}: {fault}"))?;
        }
        Ok(())
    }

    pub(super) async fn check(&self, name: &str, bytes: u64) -> Result<(), String> {
        let device = self.open(name).await?;
        for offset in (0..bytes).step_by(PART as usize) {
            let read = device.read(Extent { offset, len: PART });
            let read = self.bounded("read", read).await?;
            let read = read.map_err(|fault| format!("read {name}: {fault}"))?;
            if read.iter().any(|&byte| byte != byte_at(offset)) {
                return Err(format!("{name} came back with other content at {offset}"));
            }
        }
        Ok(())
    }

    /// Deletes a volume; answers the time of the request.
    pub(super) async fn delete(&self, volume: VolumeId) -> Result<Duration, String> {
        let asked = self.sim().elapsed();
        let request = BlockRequest::Delete { volume, force: true, snapshots: true };
        self.ask(request).await.map(|_| asked)
    }

    /// Deleted volumes, and their snapshots.
    pub(super) async fn list_deleted(&self) -> Result<Vec<DeletedVolume>, String> {
        match self.ask(BlockRequest::ListDeleted { after: None, limit: 100 }).await? {
            BlockReply::Deleted { volumes, .. } => Ok(volumes),
            other => Err(format!("no list: {other:?}")),
        }
    }

    async fn deleted(&self) -> Result<Vec<VolumeId>, String> {
        let deleted = self.list_deleted().await?;
        Ok(deleted.into_iter().map(|one| one.info.volume).collect())
    }

    /// Crashes managers and sets their calendars by days, one or the other time.
    pub(super) async fn disturb(&self) -> bool {
        let sim = self.sim();
        let draw = |bound: u64| sim.with_rng(|rng| rng.below(bound));
        let index = draw(MANAGERS as u64) as usize;
        let host = self.stack.managers()[index];
        sim.set_wall_skew(host, DAY_MS * (draw(9) as i64 - 4));
        self.env.mark("deleted: a manager's calendar is set");
        let crashes = draw(4) == 0;
        if crashes {
            self.stack.crash(Role::Manager(index), CrashMode::Power);
            self.env.sleep(Duration::from_millis(draw(2000))).await;
            self.stack.boot(Role::Manager(index));
        }
        crashes
    }

    async fn kept_and_brought_back(&self) -> Result<(), String> {
        let volume = self.create("a", 4 * MIB).await?;
        self.write("a", MIB).await?;
        self.snapshot(volume, "s").await?;
        let since = self.delete(volume).await?;
        let ends = since + KEPT - Duration::from_secs(2);
        while self.sim().elapsed() < ends {
            self.disturb().await;
            let gone = !self.deleted().await?.contains(&volume);
            let after = self.sim().elapsed() - since;
            if gone && after < KEPT {
                return Err(format!("a deleted volume was removed {after:?} later, not {KEPT:?}"));
            }
            self.env.sleep(Duration::from_millis(1500)).await;
        }
        self.ask(BlockRequest::Undelete { volume, name: None }).await?;
        self.env.mark("deleted: a volume came back");
        self.check("a", MIB).await?;
        self.check("a@s", MIB).await?;
        check_all(&self.managers, &self.exports, &[]).await
    }

    async fn gone_in_its_time(&self) -> Result<(), String> {
        let volume = self.find("a").await?;
        let since = self.delete(volume).await?;
        let mut takeovers = 0;
        while self.deleted().await?.contains(&volume) {
            let most = KEPT + STEP * (takeovers + 1) + SLACK;
            if self.sim().elapsed() - since > most {
                return Err(format!("a deleted volume is there after {most:?}"));
            }
            takeovers += if takeovers < 2 { u32::from(self.disturb().await) } else { 0 };
            self.env.sleep(Duration::from_millis(1500)).await;
        }
        let after = self.sim().elapsed() - since;
        if after < KEPT {
            return Err(format!("a deleted volume was removed {after:?} later, not {KEPT:?}"));
        }
        self.env.mark("deleted: the time of a volume was over");
        let path = segment_path(SegmentId { volume, index: 0 });
        let deadline = self.sim().elapsed() + SLACK;
        while self.client.lookup(&path).await.is_ok() {
            if self.sim().elapsed() > deadline {
                return Err("the files of a removed volume are left".to_owned());
            }
            self.env.sleep(Duration::from_millis(500)).await;
        }
        // The clone of its snapshot keeps what it shared.
        self.check("k", MIB).await
    }

    /// Percent of the room for users' bytes that are free.
    async fn free(&self) -> Result<u64, String> {
        let reply = self.client.cluster_ask(ClusterRequest::Status).await;
        let Ok(ClusterReply::Status(status)) = reply else {
            return Err(format!("no status: {reply:?}"));
        };
        let disks: Vec<_> = status.servers.iter().flat_map(|server| &server.disks).collect();
        let room = |capacity: u64| capacity - reserve_bytes(capacity);
        let capacity: u64 = disks.iter().map(|disk| room(disk.capacity)).sum();
        let used: u64 = disks.iter().map(|disk| disk.used).sum();
        Ok(capacity.saturating_sub(used) * 100 / capacity.max(1))
    }

    /// Appends until little is free, also where older chunks have gone since the last time.
    async fn fill(&self, appender: &Appender) -> Result<(), String> {
        while self.free().await? >= FREE_PERCENT {
            if let Err(error) = appender.append(&vec![7; MIB as usize]).await {
                return Err(format!("the cluster was to be almost full: {error}"));
            }
            // Usage comes with heartbeats.
            self.env.sleep(Duration::from_millis(300)).await;
        }
        Ok(())
    }

    async fn gone_early(&self) -> Result<(), String> {
        let (first, later) = (self.create("b", 16 * MIB).await?, self.create("c", 16 * MIB).await?);
        self.write("b", LARGE).await?;
        self.write("c", MIB).await?;
        self.delete(first).await?;
        self.env.sleep(Duration::from_secs(3)).await;
        let since = self.delete(later).await?;
        let file = self.client.create("/fill", Policy::strict(3), 0o644, false).await;
        let file = file.map_err(|error| error.to_string())?;
        let appender = file.append_handle().await.map_err(|error| error.to_string())?;
        loop {
            self.fill(&appender).await?;
            let deleted = self.deleted().await?;
            let after = self.sim().elapsed() - since;
            if !deleted.contains(&later) {
                return Err(format!("{after:?}: the later one of two volumes went early"));
            }
            if !deleted.contains(&first) {
                break;
            }
            if after >= KEPT {
                return Err("no volume went early with little room".to_owned());
            }
            self.env.sleep(Duration::from_millis(500)).await;
        }
        // It counts as free at once, so that the other one is kept until its time is over.
        self.env.sleep(EXPIRY + Duration::from_secs(1)).await;
        let is_there = self.deleted().await?.contains(&later);
        let after = self.sim().elapsed() - since;
        if !is_there && after < KEPT {
            return Err(format!("{after:?}: more volumes went early than was needed"));
        }
        if is_there && after + Duration::from_secs(2) < KEPT {
            self.ask(BlockRequest::Undelete { volume: later, name: None }).await?;
            self.check("c", MIB).await?;
            self.env.mark("deleted: a volume came back on a cluster with little room");
        }
        check_all(&self.managers, &self.exports, &[]).await
    }
}

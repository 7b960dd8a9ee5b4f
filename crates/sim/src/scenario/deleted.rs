//! Deleted volumes on the whole stack, while block managers crash and their calendars are set by
//! days. The data is kept for as long as was promised, under every leader; it comes back with its
//! content. When its time is over, it goes with its files. With little room on the disks the volume
//! whose time ends first goes early, and no other.

use std::rc::Rc;
use std::time::Duration;

use base::limits::reserve_bytes;
use base::{Kind, MIB};
use block_client::{Limits, VolumeExports};
use block_manager::limits::{EXPIRY, FREE_PERCENT};
use block_proto::paths::segment_path;
use block_proto::{BlockReply, BlockRequest, Managers, VolumeGeometry, VolumeSpec};
use block_volume::contract::Device;
use block_volume::export::Exports;
use block_volume::geometry::Extent;
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::qos::VolumeLimits;
use client::Client;
use runtime::sim::{CrashMode, Sim};
use runtime::{Class, Env};
use wire::control::{ClusterReply, ClusterRequest, Policy};

use super::stack::{Role, Stack};
use crate::cluster::{Cluster, Shape};
use crate::tuning::Tuning;

pub(super) const MANAGERS: usize = 2;
/// Time for which the data of deleted volumes is kept.
const KEPT: Duration = Duration::from_secs(40);
/// A leader stores the time left at this interval: each takeover may add this.
const STEP: Duration = EXPIRY.saturating_add(EXPIRY);
/// Takeovers, removals and checks take no longer without faults.
const SLACK: Duration = Duration::from_secs(30);
const DAY_MS: i64 = 24 * 3600 * 1000;
const FILE_BYTES: u64 = 256 << 10;
const SECTOR: u64 = 64 << 10;
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
    managers: Managers,
    exports: VolumeExports,
}

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let world = Rc::new(World::start(&sim).await?);
    let env = world.env.clone();
    for phase in 0..3 {
        let world = world.clone();
        let work = env.spawn(Class::Foreground, "user", async move {
            match phase {
                0 => world.kept_and_brought_back().await,
                1 => world.gone_in_its_time().await,
                _ => world.gone_early().await,
            }
        });
        work.await.map_err(|_| "the user's host has crashed".to_owned())??;
        sim.note(sim.elapsed().as_millis() as u64);
    }
    world.stack.verdict()
}

impl World {
    pub(super) async fn start(sim: &Sim) -> Result<World, String> {
        let shape = Shape { servers: 3, disk_bytes: DISK, ..Shape::default() }.partitioned(sim);
        let cluster = Cluster::start(sim, shape, Tuning::default());
        cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
        let stack = Stack::start_keeping(&cluster, (MANAGERS, 2), FILE_BYTES, KEPT);
        let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
        let (env, endpoint) = (client.env().clone(), cluster.endpoint(client.env()));
        let managers = Managers::with_budget(&client, Duration::from_secs(60));
        let limits = Limits { deadline: Duration::from_secs(60), ..Limits::default() };
        let exports = VolumeExports::new(&managers, &endpoint, "user", limits);
        Ok(World { stack, env, client, managers, exports })
    }

    pub(super) fn sim(&self) -> &Sim {
        self.stack.cluster().sim()
    }

    pub(super) async fn ask(&self, request: BlockRequest) -> Result<BlockReply, String> {
        let name = request.name();
        self.managers.ask(request).await.map_err(|error| format!("{name}: {error}"))
    }

    pub(super) async fn create(&self, name: &str, bytes: u64) -> Result<VolumeId, String> {
        let geometry =
            VolumeGeometry { group_bytes: 16 * MIB, segments_per_group: 4, data_sector: SECTOR };
        let spec = VolumeSpec {
            name: name.to_owned(),
            bytes,
            geometry,
            policy: Policy::rep(3),
            limits: VolumeLimits::default(),
            shared: false,
        };
        match self.ask(BlockRequest::Create { nonce: self.env.random_u64(), spec }).await? {
            BlockReply::Volume(info) => Ok(info.volume),
            other => Err(format!("{name} was not made: {other:?}")),
        }
    }

    pub(super) async fn open(&self, name: &str) -> Result<Rc<dyn Device>, String> {
        for _ in 0..100 {
            match self.exports.open(name).await {
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
        let device = self.open(name).await?;
        for offset in (0..bytes).step_by(PART as usize) {
            let data = vec![byte_at(offset); PART as usize];
            let data = self.env.pool().copy_of(&data).map_err(|error| error.to_string())?;
            device.write(offset, data).await.map_err(|fault| format!("write {name}: {fault}"))?;
        }
        Ok(())
    }

    pub(super) async fn check(&self, name: &str, bytes: u64) -> Result<(), String> {
        let device = self.open(name).await?;
        for offset in (0..bytes).step_by(PART as usize) {
            let read = device.read(Extent { offset, len: PART }).await;
            let read = read.map_err(|fault| format!("read {name}: {fault}"))?;
            if read.iter().any(|&byte| byte != byte_at(offset)) {
                return Err(format!("{name} came back with other content at {offset}"));
            }
        }
        Ok(())
    }

    /// Deletes a volume; answers the time of the request.
    async fn delete(&self, volume: VolumeId) -> Result<Duration, String> {
        let asked = self.sim().elapsed();
        let request = BlockRequest::Delete { volume, force: true, snapshots: true };
        self.ask(request).await.map(|_| asked)
    }

    async fn deleted(&self) -> Result<Vec<VolumeId>, String> {
        match self.ask(BlockRequest::ListDeleted { after: None, limit: 100 }).await? {
            BlockReply::Deleted { volumes, .. } => {
                Ok(volumes.into_iter().map(|one| one.info.volume).collect())
            }
            other => Err(format!("no list: {other:?}")),
        }
    }

    /// Crashes managers and sets their calendars by days, one or the other time.
    async fn disturb(&self) -> bool {
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
        let nonce = self.env.random_u64();
        let snapshot = BlockRequest::Snapshot { nonce, volume, name: "s".to_owned() };
        self.ask(snapshot).await?;
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
        self.check("a@s", MIB).await
    }

    async fn gone_in_its_time(&self) -> Result<(), String> {
        let volume = self.ask(BlockRequest::Find { name: "a".to_owned() }).await?;
        let BlockReply::Volume(info) = volume else { return Err("'a' is gone".to_owned()) };
        let volume = info.volume;
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
        Ok(())
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

    async fn gone_early(&self) -> Result<(), String> {
        let (first, later) = (self.create("b", 16 * MIB).await?, self.create("c", 16 * MIB).await?);
        self.write("b", LARGE).await?;
        self.write("c", MIB).await?;
        self.delete(first).await?;
        self.env.sleep(Duration::from_secs(3)).await;
        let since = self.delete(later).await?;
        let file = self.client.create("/fill", Policy::rep(3), 0o644, false).await;
        let file = file.map_err(|error| error.to_string())?;
        let appender = file.append_handle().await.map_err(|error| error.to_string())?;
        while self.free().await? >= FREE_PERCENT {
            if let Err(error) = appender.append(&vec![7; MIB as usize]).await {
                return Err(format!("the cluster was to be almost full: {error}"));
            }
            // Usage comes with heartbeats.
            self.env.sleep(Duration::from_millis(300)).await;
        }
        loop {
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
        let after = self.sim().elapsed() - since;
        match self.deleted().await?.contains(&later) || after >= KEPT {
            true => Ok(()),
            false => Err(format!("{after:?}: more volumes went early than was needed")),
        }
    }
}

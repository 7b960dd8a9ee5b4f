//! The record log alone: what it recovers from whole, torn and damaged devices.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use base::{ChunkId, ClusterId, DiskId, Epoch, FormationId};
use chunkstore::{Append, Appended, ChunkInfo, ChunkStore, Read, StoreError, StoreInfo};
use master_consensus::limits::RUN_PARTS_MAX;
use master_consensus::{
    Checkpoints, DeviceError, EngineDevice, Group, GroupConfig, GroupStore, LocalFuture, LogDevice,
    LogError, LogImage, MemoryDevice, NetError, OpenError, PeerSend, RaftLog,
};
use runtime::sim::Sim;
use runtime::{Class, Duration, Env, Rng};
use testing::chunks::{ModelDisk, ModelStore};
use wire::data::{ReplicaStat, ReplicaState};

use super::checkers::{Observer, Registers, set_command};

const SEGMENT: u64 = 64 << 10;
const BLOCK: usize = 4096;

/// A group of one has no peers.
struct NoPeers;

impl PeerSend for NoPeers {
    fn send(&self, _: u64, _: u32, _: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>, NetError>> {
        Box::pin(std::future::ready(Err(NetError::Unreachable)))
    }
}

fn disk() -> ModelDisk {
    ModelDisk::new(DiskId::new(1))
}

async fn checkpoints(env: &Env, disk: &ModelDisk) -> Result<Checkpoints, LogError> {
    Checkpoints::open(GroupStore::new(env, disk.open(None), 1)).await
}

async fn open(
    env: &Env,
    device: &MemoryDevice,
    snapshots: &ModelDisk,
) -> Result<Group<Registers>, OpenError> {
    let mut config = GroupConfig::new(1, 1);
    config.snapshot_after = 100;
    config.entries_kept = 10;
    let observer: Rc<Observer> = Rc::default();
    let machine = Registers::new(&observer);
    let checkpoints = checkpoints(env, snapshots).await?;
    Group::open(env, config, device.clone(), checkpoints, Rc::new(NoPeers), machine).await
}

/// Runs `work` on a node of a new world.
fn on_node<T: 'static, F: Future<Output = T> + 'static>(work: impl FnOnce(Env) -> F) -> T {
    let sim = Sim::new(1);
    let host = sim.add_host("master");
    let env = sim.boot(host);
    let done = env.spawn(Class::Foreground, "test", work(env.clone()));
    sim.run(done).expect("timers are set").expect("no crash")
}

/// Sets register `n % 8` to `n` for `n` in `1..=count`, a few at a time, and stops the member.
async fn fill(env: &Env, device: &MemoryDevice, snapshots: &ModelDisk, count: u64) {
    let group = open(env, device, snapshots).await.expect("opens");
    if group.voters().is_empty() {
        group.bootstrap(&BTreeSet::from([1])).await.expect("new");
    }
    while !group.leadership().leading {
        env.sleep(Duration::from_millis(10)).await;
    }
    for first in (1..=count).step_by(7) {
        let proposals = (first..=count.min(first + 6)).map(|n| {
            let group = group.clone();
            let command = set_command(n % 8, n, (n as usize * 311) % 3000);
            env.spawn(Class::Foreground, "propose", async move { group.propose(command).await })
        });
        for proposal in proposals.collect::<Vec<_>>() {
            proposal.await.expect("no crash").expect("committed");
        }
    }
    if count > 100 {
        // The checkpoint is written by another thread.
        env.sleep(Duration::from_millis(200)).await;
    }
    group.shutdown().await;
}

async fn register(env: &Env, device: &MemoryDevice, snapshots: &ModelDisk, n: u64) -> u64 {
    let group = open(env, device, snapshots).await.expect("opens");
    while group.read_index().await.is_err() {
        env.sleep(Duration::from_millis(10)).await;
    }
    let value = group.read(|machine| machine.get(n));
    group.shutdown().await;
    value
}

fn len(device: &MemoryDevice) -> usize {
    let mut end = 0;
    device.damage(|image| end = image.bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1);
    end
}

#[test]
fn acknowledged_entries_survive_a_restart() {
    on_node(|env| async move {
        let (device, snapshots) = (MemoryDevice::new(SEGMENT), disk());
        for round in 1..4 {
            fill(&env, &device, &snapshots, 150).await;
            assert_eq!(register(&env, &device, &snapshots, 150 % 8).await, 150, "round {round}");
        }
        let mut first = 0;
        device.damage(|image| first = image.first);
        assert!(first > 0, "old segments are dropped");
    });
}

#[test]
fn a_torn_tail_is_cut() {
    on_node(|env| async move {
        let (device, snapshots) = (MemoryDevice::new(SEGMENT), disk());
        fill(&env, &device, &snapshots, 20).await;
        // Part of a batch that was never acknowledged.
        let end = len(&device).next_multiple_of(BLOCK);
        device.damage(|image| {
            image.bytes.resize(end + 2 * BLOCK, 0);
            image.bytes[end..end + 700].fill(0xee);
        });
        assert_eq!(register(&env, &device, &snapshots, 20 % 8).await, 20);
        fill(&env, &device, &snapshots, 40).await;
        assert_eq!(register(&env, &device, &snapshots, 40 % 8).await, 40);
    });
}

#[test]
fn damage_below_the_durable_bound_is_corruption() {
    let mut found = 0;
    for seed in 0..40 {
        let result = on_node(move |env| async move {
            let (device, snapshots) = (MemoryDevice::new(SEGMENT), disk());
            fill(&env, &device, &snapshots, 60).await;
            let end = len(&device);
            // Not in the last blocks: the last record of all has no later witness.
            let at = Rng::new(seed).below(end as u64 - 4 * BLOCK as u64) as usize;
            let mut padding = false;
            device.damage(|image| {
                padding = image.bytes[at] == 0;
                image.bytes[at] ^= 0x10;
            });
            let opened = open(&env, &device, &snapshots).await;
            (padding, opened.err())
        });
        match result {
            (_, Some(OpenError::Log(LogError::Corrupt { .. }))) => found += 1,
            // A byte of padding may change: it is never read.
            (true, None) => {}
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(found > 10, "{found} of 40");
}

#[test]
fn a_lost_snapshot_is_noticed() {
    on_node(|env| async move {
        let (device, snapshots) = (MemoryDevice::new(SEGMENT), disk());
        fill(&env, &device, &snapshots, 400).await;
        let opened = open(&env, &device, &disk()).await;
        assert_eq!(opened.err(), Some(OpenError::Log(LogError::SnapshotLost)));
    });
}

/// Counts appends, each of which takes a disk's time.
struct Counting {
    inner: MemoryDevice,
    env: Env,
    appends: Rc<Cell<u64>>,
}

impl LogDevice for Counting {
    fn segment_len(&self) -> u64 {
        self.inner.segment_len()
    }

    fn block_len(&self) -> usize {
        self.inner.block_len()
    }

    async fn read_all(&mut self) -> Result<LogImage, DeviceError> {
        self.inner.read_all().await
    }

    async fn append(&mut self, at: u64, batch: &[u8]) -> Result<(), DeviceError> {
        self.appends.set(self.appends.get() + 1);
        self.env.sleep(Duration::from_micros(100)).await;
        self.inner.append(at, batch).await
    }

    async fn drop_prefix(&mut self, below: u64) -> Result<(), DeviceError> {
        self.inner.drop_prefix(below).await
    }
}

#[test]
fn proposals_that_wait_share_log_writes() {
    on_node(|env| async move {
        let appends: Rc<Cell<u64>> = Rc::default();
        let (inner, env_of) = (MemoryDevice::new(1 << 20), env.clone());
        let device = Counting { inner, env: env_of, appends: appends.clone() };
        let observer: Rc<Observer> = Rc::default();
        let machine = Registers::new(&observer);
        let config = GroupConfig::new(1, 1);
        let checkpoints = checkpoints(&env, &disk()).await.expect("empty");
        let group = Group::open(&env, config, device, checkpoints, Rc::new(NoPeers), machine).await;
        let group = group.expect("opens");
        group.bootstrap(&BTreeSet::from([1])).await.expect("new");
        while !group.leadership().leading {
            env.sleep(Duration::from_millis(10)).await;
        }
        let before = appends.get();
        let proposals = (1..=256).map(|n| {
            let group = group.clone();
            let command = set_command(n % 8, n, 0);
            env.spawn(Class::Foreground, "propose", async move { group.propose(command).await })
        });
        for proposal in proposals.collect::<Vec<_>>() {
            proposal.await.expect("no crash").expect("committed");
        }
        let writes = appends.get() - before;
        assert!(writes <= 16, "{writes} log writes for 256 proposals");
    });
}

/// Fails once `left` appends have been made.
struct Failing {
    inner: MemoryDevice,
    left: u32,
}

impl LogDevice for Failing {
    fn segment_len(&self) -> u64 {
        self.inner.segment_len()
    }

    fn block_len(&self) -> usize {
        self.inner.block_len()
    }

    async fn read_all(&mut self) -> Result<LogImage, DeviceError> {
        self.inner.read_all().await
    }

    async fn append(&mut self, at: u64, batch: &[u8]) -> Result<(), DeviceError> {
        self.left = self.left.checked_sub(1).ok_or(DeviceError::NoBuffers)?;
        self.inner.append(at, batch).await
    }

    async fn drop_prefix(&mut self, below: u64) -> Result<(), DeviceError> {
        self.inner.drop_prefix(below).await
    }
}

#[test]
fn a_failed_write_ends_the_member() {
    on_node(|env| async move {
        let device = Failing { inner: MemoryDevice::new(SEGMENT), left: 12 };
        let observer: Rc<Observer> = Rc::default();
        let machine = Registers::new(&observer);
        let config = GroupConfig::new(1, 1);
        let checkpoints = checkpoints(&env, &disk()).await.expect("empty");
        let group = Group::open(&env, config, device, checkpoints, Rc::new(NoPeers), machine).await;
        let group = group.expect("opens");
        group.bootstrap(&BTreeSet::from([1])).await.expect("new");
        while !group.leadership().leading {
            env.sleep(Duration::from_millis(10)).await;
        }
        let mut acknowledged = 0;
        for n in 1..100 {
            match group.propose(set_command(0, n, 0)).await {
                Ok(_) => acknowledged = n,
                Err(error) => {
                    assert_eq!(error.kind(), base::Kind::Unknown);
                    break;
                }
            }
        }
        assert!((1..12).contains(&acknowledged), "{acknowledged}");
        assert_eq!(group.failure(), Some(LogError::Device(DeviceError::NoBuffers)));
        assert!(group.propose(set_command(0, 1, 0)).await.is_err());
    });
}

/// Leaves what a crash between the deletion of a chunk and its forgetting leaves.
async fn leave_tombstone(disk: &ModelDisk, chunk: ChunkId) {
    disk.make_empty(chunk, Epoch::new(1), 0, false);
    disk.open(None).delete(chunk).await.expect("a sound disk");
}

#[test]
fn log_opens_after_a_crash_between_delete_and_forget_of_its_segment() {
    on_node(|env| async move {
        let disk = disk();
        leave_tombstone(&disk, GroupStore::segment_chunk(1, 0)).await;
        let device = EngineDevice::new(GroupStore::new(&env, disk.open(None), 1), SEGMENT);
        assert_eq!(RaftLog::open(&env, device).await.err(), None);
    });
}

#[test]
fn checkpoint_is_taken_after_a_crash_between_delete_and_forget_of_its_chunks() {
    on_node(|env| async move {
        let (device, disk) = (MemoryDevice::new(SEGMENT), disk());
        let first = GroupStore::segment_chunk(1, 0).get();
        let (run, manifest) =
            (ChunkId::new(first | 1 << 38 | RUN_PARTS_MAX), ChunkId::new(first | 2 << 38 | 1));
        leave_tombstone(&disk, run).await;
        leave_tombstone(&disk, manifest).await;
        fill(&env, &device, &disk, 150).await;
        let states = [run, manifest].map(|chunk| disk.open(None).stat(chunk).map(|it| it.state));
        assert_eq!(states, [Ok(ReplicaState::Sealed), Ok(ReplicaState::Sealed)]);
        assert_eq!(register(&env, &device, &disk, 150 % 8).await, 150);
    });
}

/// A store without room for runs of checkpoints.
#[derive(Clone)]
struct NoRoomForRuns(ModelStore);

impl ChunkStore for NoRoomForRuns {
    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        match append.chunk.get() >> 38 & 3 {
            1 => Err(StoreError::Full),
            _ => self.0.append(append).await,
        }
    }

    async fn read_while(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Read, StoreError> {
        self.0.read_while(chunk, offset, len, is_wanted).await
    }

    async fn read_cell_sector(
        &self,
        chunk: ChunkId,
        offset: u32,
        index: u16,
    ) -> Result<Read, StoreError> {
        self.0.read_cell_sector(chunk, offset, index).await
    }

    async fn fence(&self, chunk: ChunkId, epoch: Epoch) -> Result<ReplicaStat, StoreError> {
        self.0.fence(chunk, epoch).await
    }

    async fn seal(&self, chunk: ChunkId, len: u32) -> Result<ReplicaStat, StoreError> {
        self.0.seal(chunk, len).await
    }

    async fn delete(&self, chunk: ChunkId) -> Result<(), StoreError> {
        self.0.delete(chunk).await
    }

    async fn forget(&self, chunk: ChunkId) -> Result<(), StoreError> {
        self.0.forget(chunk).await
    }

    fn stat(&self, chunk: ChunkId) -> Result<ReplicaStat, StoreError> {
        self.0.stat(chunk)
    }

    fn list(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkInfo> {
        self.0.list(after, limit)
    }

    fn info(&self) -> StoreInfo {
        self.0.info()
    }

    async fn adopt(&self, cluster: ClusterId, formation: FormationId) -> Result<(), StoreError> {
        self.0.adopt(cluster, formation).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.0.probe().await
    }

    async fn check_medium(&self) {
        self.0.check_medium().await;
    }

    async fn checkpoint(&self) -> Result<(), StoreError> {
        self.0.checkpoint().await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.0.close().await
    }
}

/// A member alone, which leads.
async fn lead(env: &Env, checkpoints: Checkpoints) -> Group<Registers> {
    let device = MemoryDevice::new(8 << 20);
    let machine = Registers::new(&Rc::default());
    let config = GroupConfig::new(1, 1);
    let group = Group::open(env, config, device, checkpoints, Rc::new(NoPeers), machine).await;
    let group = group.expect("opens");
    group.bootstrap(&BTreeSet::from([1])).await.expect("new");
    while !group.leadership().leading {
        env.sleep(Duration::from_millis(10)).await;
    }
    group
}

#[test]
fn a_failed_checkpoint_ends_the_member() {
    on_node(|env| async move {
        let store = NoRoomForRuns(disk().open(None));
        let checkpoints = Checkpoints::open(GroupStore::new(&env, store, 1)).await;
        let group = lead(&env, checkpoints.expect("empty")).await;
        group.propose(set_command(0, 1, 0)).await.expect("committed");
        group.snapshot_soon().await;
        env.sleep(Duration::from_secs(1)).await;
        assert!(group.propose(set_command(0, 2, 0)).await.is_err());
        let failure = group.failure().map(|error| error.to_string());
        assert!(failure.as_ref().is_some_and(|it| it.contains("the disk is full")), "{failure:?}");
        assert_eq!(group.leader(), None);
        group.shutdown().await;
    });
}

#[test]
fn member_that_was_shut_down_has_no_failure() {
    on_node(|env| async move {
        let group = lead(&env, checkpoints(&env, &disk()).await.expect("empty")).await;
        group.shutdown().await;
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!((group.failure(), group.leader()), (None, None));
    });
}

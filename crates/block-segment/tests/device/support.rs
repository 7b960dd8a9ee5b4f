//! A world with one directory.

use std::rc::Rc;

use base::Fault;
use block_segment::{Options, Segment, Shared};
use block_testing::device::{Oracle, Plan};
use block_volume::ids::Identity;
use runtime::sim::{HostId, Sim};
use runtime::{Class, Duration, Env};
use table::Cache;
use testing::tables::MemDisk;

/// Bytes of the segment: four index pages.
pub const BYTES: u64 = 8 << 20;

pub const IDENTITY: Identity = Identity { volume: 7, segment: 3 };

pub struct World {
    pub sim: Sim,
    pub disk: MemDisk,
    pub oracle: Oracle,
}

/// All limits small, so that rare events happen often.
pub fn small() -> Options {
    Options {
        file_bytes: 256 << 10,
        recent_bytes: 16 << 10,
        txn_updates: 20,
        txn_wait: Duration::from_millis(3),
        checkpoint_updates: 150,
        table: table::Options {
            memtable_bytes: 16 << 10,
            block_bytes: 512,
            file_bytes: 16 << 10,
            manifest_bytes: 1 << 10,
            ..table::Options::default()
        },
        ..Options::default()
    }
}

/// Of one segment alone.
pub fn shared() -> Shared {
    Shared::new(Cache::new(32 << 10), 16 << 10)
}

pub fn plan(steps: u32) -> Plan {
    Plan { steps, depth: 8, pause: Duration::from_micros(400), blocks: 6 }
}

impl World {
    pub fn new(seed: u64) -> World {
        let sim = Sim::new(seed);
        let disk = MemDisk::new(&sim);
        World { sim, disk, oracle: Oracle::new(BYTES) }
    }

    pub fn boot(&self) -> (HostId, Env) {
        let host = self.sim.add_host("owner");
        (host, self.sim.boot(host))
    }

    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let done = self.sim.run(work).expect("it goes on");
        self.sim.close();
        done
    }
}

/// Opens the segment on a node.
pub async fn open(
    env: &Env,
    disk: &MemDisk,
    epoch: u64,
    options: Options,
) -> Result<Segment, Fault> {
    let what = (IDENTITY, BYTES, epoch);
    Segment::open(env, disk.store(env), &shared(), what, options).await
}

/// Runs a future on a host, as a task of its node; nothing when the host crashes first.
pub async fn on<T: 'static>(env: &Env, work: impl Future<Output = T> + 'static) -> Option<T> {
    env.spawn(Class::Foreground, "test", work).await.ok()
}

pub fn device(segment: &Segment) -> Rc<dyn block_volume::contract::Device> {
    Rc::new(segment.clone())
}

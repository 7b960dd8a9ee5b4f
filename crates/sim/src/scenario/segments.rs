//! Segments of volumes on the core: owners that take them over from one another, with as many
//! requests under way as a busy volume has, while chunkservers crash and masters fail over. Every
//! block is linearizable by the device's oracle; then a quiet phase, and the whole content.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{Fault, Kind};
use block_segment::{Options, Segment, Shared};
use block_testing::device::{Oracle, Plan as Requests, load, whole};
use block_volume::ids::Identity;
use client::Client;
use runtime::Rng;
use runtime::sim::Sim;
use table::{Cache, ClientStore};

use super::policy;
use crate::contenders::{self, Resource};
use crate::nemesis::Faults;
use crate::planted::files_of;

/// Options of a scenario of segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) faults: Faults,
    /// Duration of faults and load.
    pub(super) load: Duration,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { faults: Faults::default(), load: Duration::from_secs(4) }
    }
}

const SEGMENTS: u32 = 3;
/// Bytes of a segment: two index pages.
const BYTES: u64 = 4 << 20;
/// Changes to be acknowledged in a run, at least.
const DONE_MIN: u64 = 80;

/// Small parts, so that DataFiles end, and checkpoints and collections come, within seconds.
fn options() -> Options {
    Options {
        file_bytes: 128 << 10,
        recent_bytes: 0,
        txn_updates: 40,
        txn_wait: Duration::from_millis(20),
        checkpoint_updates: 200,
        table: table::Options {
            memtable_bytes: 32 << 10,
            block_bytes: 2 << 10,
            file_bytes: 64 << 10,
            manifest_bytes: 1 << 10,
            ..table::Options::default()
        },
        ..Options::default()
    }
}

const REQUESTS: Requests =
    Requests { steps: 100, depth: 8, pause: Duration::from_millis(15), blocks: 6 };

/// One segment under load.
struct Loaded {
    identity: Identity,
    oracle: Oracle,
    /// Stands in for a manager: no two owners have one epoch.
    epoch: Cell<u64>,
}

impl Loaded {
    async fn open(&self, client: &Client) -> Result<(Segment, Oracle), Fault> {
        let epoch = self.epoch.get() + 1;
        self.epoch.set(epoch);
        let Identity { volume, segment } = self.identity;
        let path = format!("/volumes/{volume:x}/{segment}");
        let policy = policy::drawn_volume();
        let store = ClientStore::new(client, &path, policy.in_copies()).await;
        let store = store.map_err(|error| Fault::new(error.kind(), error.to_string()))?;
        let outputs = files_of(store.in_form(Rc::new(Cell::new(policy))));
        let (env, shared) = (client.env(), Shared::new(Cache::new(64 << 10), 16 << 10));
        let what = (self.identity, BYTES, epoch);
        let log = files_of(store);
        let segment = Segment::open_with(env, log, outputs, &shared, what, options()).await?;
        Ok((segment, self.oracle.owned_by(epoch)))
    }
}

impl Resource for Loaded {
    const PAUSE_MS: u64 = 900;
    const COUNTED: &'static str = "changes";
    type Process = ();

    fn process(&self) {}

    fn name(&self) -> String {
        self.identity.to_string()
    }

    async fn own(&self, client: &Client, (): &(), rng: &mut Rng) -> Result<Option<u64>, String> {
        match self.open(client).await {
            Ok((segment, oracle)) => {
                let loaded = load(client.env(), Rc::new(segment), &oracle, rng, REQUESTS).await?;
                Ok(Some(loaded.done))
            }
            Err(fault) if matches!(fault.kind, Kind::Corrupt | Kind::Invalid) => {
                Err(format!("not opened: {fault}"))
            }
            Err(_) => Ok(None),
        }
    }

    /// From the index pages, too.
    async fn check_whole(&self, client: &Client) -> Result<(), String> {
        let text = |fault: Fault| fault.to_string();
        for _ in 0..2 {
            let (segment, oracle) = self.open(client).await.map_err(text)?;
            oracle.settle(&whole(&segment).await.map_err(text)?)?;
            let device = Rc::new(segment.clone());
            load(client.env(), device, &oracle, &mut Rng::new(1), REQUESTS).await?;
            segment.checkpoint().await.map_err(text)?;
            segment.close().await.map_err(text)?;
        }
        Ok(())
    }
}

pub(super) async fn run(sim: Sim, plan: Plan) -> Result<(), String> {
    let loaded = |segment| {
        let identity = Identity { volume: 0xb10c, segment };
        Rc::new(Loaded { identity, oracle: Oracle::new(BYTES), epoch: Cell::new(0) })
    };
    let plan = contenders::Plan { faults: plan.faults, load: plan.load, acked_min: DONE_MIN };
    contenders::run(sim, plan, (0..SEGMENTS).map(loaded).collect()).await
}

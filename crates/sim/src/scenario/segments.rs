//! Segments of volumes on the core: owners that take them over from one another, with as many
//! requests under way as a busy volume has, while chunkservers crash and masters fail over;
//! every block linearizable by the device's oracle; then quiet, and the whole content.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::Kind;
use block_segment::{Options, Segment, Shared};
use block_testing::device::{Oracle, Plan as Requests, load, whole};
use block_volume::ids::Identity;
use client::Client;
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Rng};
use table::{Cache, ClientStore};
use wire::control::Policy;

use crate::cluster::{Cluster, Shape};
use crate::nemesis::{Faults, Nemesis};
use crate::tuning::Tuning;

/// How a scenario of segments runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) faults: Faults,
    /// How long faults and load last.
    pub(super) load: Duration,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { faults: Faults::default(), load: Duration::from_secs(4) }
    }
}

const SEGMENTS: u32 = 3;
/// Hosts that fight for each segment.
const RIVALS: usize = 2;
/// Bytes of a segment: two index pages.
const BYTES: u64 = 4 << 20;
/// What must be answered well in a run, at least: the load does not stand still.
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
struct Load {
    cluster: Cluster,
    identity: Identity,
    oracle: Oracle,
    /// What a manager would give: no two owners have one epoch.
    epoch: Cell<u64>,
    stop: Rc<Cell<bool>>,
    verdict: Rc<RefCell<Option<String>>>,
    done: Rc<Cell<u64>>,
}

impl Load {
    fn next_epoch(&self) -> u64 {
        self.epoch.set(self.epoch.get() + 1);
        self.epoch.get()
    }

    async fn open(&self, client: &Client, epoch: u64) -> Result<Segment, base::Fault> {
        let Identity { volume, segment } = self.identity;
        let path = format!("/volumes/{volume:x}/{segment}");
        let store = ClientStore::new(client, &path, Policy { copies: 3, acks: 3 }).await;
        let store = store.map_err(|error| base::Fault::new(error.kind(), error.to_string()))?;
        let (env, shared) = (client.env(), Shared::new(Cache::new(64 << 10), 16 << 10));
        let what = (self.identity, BYTES, epoch);
        Segment::open(env, Rc::new(store), &shared, what, options()).await
    }
}

pub(super) async fn run(sim: Sim, plan: Plan) -> Result<(), String> {
    let cluster = Cluster::start(&sim, Shape::default(), Tuning::default());
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let (stop, verdict) = (Rc::new(Cell::new(false)), Rc::<RefCell<Option<String>>>::default());
    let done = Rc::new(Cell::new(0));
    let nemesis = Nemesis::start(&cluster, plan.faults);
    let load = |segment: u32| {
        Rc::new(Load {
            cluster: cluster.clone(),
            identity: Identity { volume: 0xb10c, segment },
            oracle: Oracle::new(BYTES),
            epoch: Cell::new(0),
            stop: stop.clone(),
            verdict: verdict.clone(),
            done: done.clone(),
        })
    };
    let loads: Vec<_> = (0..SEGMENTS).map(load).collect();
    let mut rivals = Vec::new();
    for load in &loads {
        for rival in 0..RIVALS {
            // The first owns at once and for long, the second comes in between.
            rivals.push(sim.spawn("rival", fight(load.clone(), rival)));
        }
    }
    let end = sim.elapsed() + plan.load;
    while sim.elapsed() < end && verdict.borrow().is_none() {
        sim.sleep(Duration::from_millis(100)).await;
    }
    nemesis.stop().await;
    stop.set(true);
    let patience = sim.elapsed() + Duration::from_secs(120);
    while rivals.iter().any(|rival| !rival.is_finished()) {
        if sim.elapsed() > patience {
            return Err("an owner does not end in two minutes without faults".to_owned());
        }
        sim.sleep(Duration::from_millis(100)).await;
    }
    if let Some(violation) = verdict.take() {
        return Err(violation);
    }
    for load in &loads {
        check_whole(load).await.map_err(|what| format!("{}: {what}", load.identity))?;
    }
    cluster.settle(Duration::from_secs(120)).await?;
    if let Some(violation) = cluster.violations().first() {
        return Err(violation.clone());
    }
    if done.get() < DONE_MIN {
        return Err(format!("only {} changes in {:?}", done.get(), plan.load));
    }
    sim.note(done.get());
    Ok(())
}

/// A host that owns the segment again and again, and loses power now and then.
async fn fight(load: Rc<Load>, rival: usize) {
    let sim = load.cluster.sim().clone();
    let mut host: Option<HostId> = None;
    while !load.stop.get() && load.verdict.borrow().is_none() {
        let Ok((at, client)) = load.cluster.client(host).await else {
            sim.sleep(Duration::from_millis(200)).await;
            continue;
        };
        host = Some(at);
        let rng = Rng::new(sim.with_rng(|rng| rng.next_u64()));
        let life = live(load.clone(), client.clone(), rival, rng);
        let task = client.env().spawn(Class::Foreground, "owner", life);
        let end = sim.elapsed() + Duration::from_millis(sim.with_rng(|rng| rng.between(500, 8000)));
        while !task.is_finished() && sim.elapsed() < end && !load.stop.get() {
            sim.sleep(Duration::from_millis(20)).await;
        }
        let mode =
            if sim.with_rng(|rng| rng.one_in(2)) { CrashMode::Power } else { CrashMode::Process };
        sim.crash(at, mode);
    }
}

async fn live(load: Rc<Load>, client: Client, rival: usize, mut rng: Rng) {
    let env = client.env().clone();
    while load.verdict.borrow().is_none() {
        env.sleep(Duration::from_millis(rng.below(50 + 900 * rival as u64))).await;
        let epoch = load.next_epoch();
        let judged = match load.open(&client, epoch).await {
            Ok(segment) => {
                let oracle = load.oracle.owned_by(epoch);
                let device = Rc::new(segment.clone());
                block_testing::device::load(&env, device, &oracle, &mut rng, REQUESTS).await
            }
            Err(fault) if matches!(fault.kind, Kind::Corrupt | Kind::Invalid) => {
                Err(format!("not opened: {fault}"))
            }
            Err(_) => continue,
        };
        match judged {
            Ok(loaded) => load.done.set(load.done.get() + loaded.done),
            Err(what) => {
                let what = format!("{}: {what}", load.identity);
                load.verdict.borrow_mut().get_or_insert(what);
            }
        }
    }
}

/// One more owner finds all that was answered, from the index pages too.
async fn check_whole(this: &Rc<Load>) -> Result<(), String> {
    let (at, client) = this.cluster.client(None).await.map_err(|error| error.to_string())?;
    let (this, env, sim) = (this.clone(), client.env().clone(), this.cluster.sim().clone());
    let work = async move {
        let env = client.env().clone();
        let text = |fault: base::Fault| fault.to_string();
        for _ in 0..2 {
            let epoch = this.next_epoch();
            let segment = this.open(&client, epoch).await.map_err(text)?;
            let oracle = this.oracle.owned_by(epoch);
            oracle.settle(&whole(&segment).await.map_err(text)?)?;
            let device = Rc::new(segment.clone());
            load(&env, device, &oracle, &mut Rng::new(1), REQUESTS).await?;
            segment.checkpoint().await.map_err(text)?;
            segment.close().await.map_err(text)?;
        }
        Ok::<(), String>(())
    };
    let checked = env.spawn(Class::Foreground, "check", work).await;
    sim.crash(at, CrashMode::Process);
    checked.unwrap_or_else(|_| Err("the checking host went down".to_owned()))
}

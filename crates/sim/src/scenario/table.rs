//! Tables on the core: owners that take them over from one another while chunkservers crash and
//! masters fail over, judged by the table's oracle; then quiet, and the whole content.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::Kind;
use client::Client;
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Rng};
use table::{Cache, ClientStore, Options, Table};
use testing::tables::{Oracle, own};
use wire::control::Policy;

use crate::cluster::{Cluster, Shape};
use crate::nemesis::{Faults, Nemesis};
use crate::tuning::Tuning;

/// How a table scenario runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) faults: Faults,
    /// How long faults and load last.
    pub(super) load: Duration,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { faults: Faults::default(), load: Duration::from_secs(10) }
    }
}

const TABLES: usize = 2;
/// Hosts that fight for each table.
const RIVALS: usize = 2;
/// What must be acknowledged in a run, at least: the load does not stand still.
const ACKED_MIN: u64 = 50;

/// An owner's pause between two steps, at most: a step is up to a dozen batches.
const PAUSE: Duration = Duration::from_millis(60);

/// Small parts, so that flushes, merges and rolls happen within seconds.
fn options() -> Options {
    Options {
        memtable_bytes: 32 << 10,
        block_bytes: 2 << 10,
        file_bytes: 64 << 10,
        manifest_bytes: 1 << 10,
        ..Options::default()
    }
}

/// One table under load.
struct Load {
    cluster: Cluster,
    path: String,
    oracle: Oracle,
    stop: Rc<Cell<bool>>,
    verdict: Rc<RefCell<Option<String>>>,
    acked: Rc<Cell<u64>>,
}

pub(super) async fn run(sim: Sim, plan: Plan) -> Result<(), String> {
    let cluster = Cluster::start(&sim, Shape::default(), Tuning::default());
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let (stop, verdict) = (Rc::new(Cell::new(false)), Rc::<RefCell<Option<String>>>::default());
    let acked = Rc::new(Cell::new(0));
    let nemesis = Nemesis::start(&cluster, plan.faults);
    let load = |number: usize| {
        Rc::new(Load {
            cluster: cluster.clone(),
            path: format!("/tables/t{number}"),
            oracle: Oracle::new(),
            stop: stop.clone(),
            verdict: verdict.clone(),
            acked: acked.clone(),
        })
    };
    let loads: Vec<_> = (0..TABLES).map(load).collect();
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
        check_whole(load).await.map_err(|what| format!("{}: {what}", load.path))?;
    }
    cluster.settle(Duration::from_secs(120)).await?;
    if let Some(violation) = cluster.violations().first() {
        return Err(violation.clone());
    }
    if acked.get() < ACKED_MIN {
        return Err(format!("only {} batches in {:?}", acked.get(), plan.load));
    }
    sim.note(acked.get());
    Ok(())
}

/// A host that owns the table again and again, and loses power now and then.
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
    let cache = Cache::new(256 << 10);
    while load.verdict.borrow().is_none() {
        env.sleep(Duration::from_millis(rng.below(50 + 700 * rival as u64))).await;
        let judged = match open(&client, &load.path, &cache).await {
            Ok(table) => own(&env, &table, &load.oracle, &mut rng, (40, PAUSE)).await,
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Invalid) => {
                Err(format!("not opened: {error}"))
            }
            Err(_) => continue,
        };
        match judged {
            Ok(owned) => load.acked.set(load.acked.get() + owned.acked),
            Err(what) => {
                let what = format!("{}: {what}", load.path);
                load.verdict.borrow_mut().get_or_insert(what);
            }
        }
    }
}

async fn open(client: &Client, path: &str, cache: &Cache) -> Result<Table, table::Error> {
    let policy = Policy { copies: 3, acks: 3 };
    let store = ClientStore::new(client, path, policy).await.map_err(|error| {
        table::Error::Unavailable { what: format!("open {path}"), cause: error.to_string() }
    })?;
    Table::open(client.env(), Rc::new(store), cache, options()).await
}

/// One more owner finds all that was acknowledged, through merges too.
async fn check_whole(load: &Rc<Load>) -> Result<(), String> {
    let (at, client) = load.cluster.client(None).await.map_err(|error| error.to_string())?;
    let (this, env) = (load.clone(), client.env().clone());
    let work = async move {
        let env = client.env().clone();
        let table = open(&client, &this.path, &Cache::default()).await;
        let table = table.map_err(|error| error.to_string())?;
        own(&env, &table, &this.oracle, &mut Rng::new(1), (10, PAUSE)).await?;
        let text = |error: table::Error| error.to_string();
        table.flush().await.map_err(text)?;
        table.compact().await.map_err(text)?;
        let entries = table.scan(table::Range::all()).take(usize::MAX).await.map_err(text)?;
        let mark = table.get(Oracle::MARK).await.map_err(text)?;
        let node = Oracle::node_of(mark.as_deref())?;
        this.oracle.compare(node, &entries, false, |_| true)?;
        table.close().await.map_err(text)
    };
    let checked = env.spawn(Class::Foreground, "check", work).await;
    load.cluster.sim().crash(at, CrashMode::Process);
    checked.unwrap_or_else(|_| Err("the checking host went down".to_owned()))
}

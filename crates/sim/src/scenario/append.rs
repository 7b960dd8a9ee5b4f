//! Appends and reads under faults, judged by the oracle; then quiet, and the whole content.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use client::{Client, Error};
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Rng};
use wire::control::Policy;

use super::conversions::Conversions;
use super::drains::Drains;
use super::idlers::{self, Idlers};
use super::readers::{Readers, Shared};
use crate::audit;
use crate::cluster::{Cluster, Shape};
use crate::nemesis::{Faults, Nemesis};
use crate::oracle::Oracle;
use crate::tuning::Tuning;

/// Options of an append scenario.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The cluster.
    pub shape: Shape,
    /// Faults of the run.
    pub faults: Faults,
    /// Writers' hosts crash too.
    pub client_crashes: bool,
    /// Writers leave tails open for another writer to seal.
    pub abandon: bool,
    /// Files are removed while others are written, and the disks are small.
    pub remove: bool,
    /// Policies of files.
    pub policies: &'static [Policy],
    /// Longest pause of a writer between two bursts of appends.
    pub think: Duration,
    /// Duration of faults and load.
    pub load: Duration,
    /// Time in which the cluster is whole again afterwards.
    pub deadline: Duration,
    /// An operator drains and decommissions chunkservers.
    pub drains: bool,
    /// Other writers open files and are idle from then on, or gone.
    pub idlers: bool,
    /// Appends are small for a while, and then not.
    pub small: bool,
    /// An operator has files converted to these.
    pub converts: &'static [Policy],
    /// The vector instructions of all hosts get one row in so many wrong; 0: none.
    pub errs_one_in: u64,
    /// Only while there is load. Masters have all rows, or many, checked.
    pub errs_end: bool,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            shape: Shape::default(),
            faults: Faults::default(),
            client_crashes: false,
            abandon: true,
            remove: false,
            think: Duration::from_millis(100),
            policies: USUAL,
            load: Duration::from_secs(12),
            deadline: Duration::from_secs(180),
            drains: false,
            idlers: false,
            small: false,
            converts: &[],
            errs_one_in: 0,
            errs_end: false,
        }
    }
}

/// Three copies, all or two of which acknowledge.
const USUAL: &[Policy] = &[Policy::strict(3), Policy::strict(3), Policy::rep(3)];
/// As many copies and acknowledgements as there are.
pub(super) const ALL_COPIES: &[Policy] =
    &[Policy::rep(2), Policy::rep(3), Policy::rep(4), Policy::rep(5), Policy::strict(5)];

const WRITERS: usize = 3;
/// Bursts of appends of which all are small, and then as many others.
const SMALL_BURSTS: u64 = 10;
const READERS: usize = 2;
/// One append has up to this many bytes.
const APPEND_MAX: u64 = 30_000;
/// Files grow to this, then another one is made.
const FILE_MAX: u64 = 1 << 20;

type Verdict = Rc<RefCell<Option<String>>>;

struct Load {
    cluster: Cluster,
    oracle: Oracle,
    stop: Rc<Cell<bool>>,
    verdict: Verdict,
    appended: Rc<Cell<u64>>,
    plan: Plan,
    /// Removals of each file: its name is not used again.
    removed: Rc<RefCell<BTreeMap<String, u32>>>,
}

impl Load {
    /// The answer to a writer's operation; none for an error that the faults explain.
    fn judge<T>(
        &self,
        (what, path): (&str, &str),
        answer: Result<T, Error>,
    ) -> Result<Option<T>, String> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if self.plan.faults.explain(error.kind()) => Ok(None),
            Err(error) => Err(format!("{path}: no fault explains the end of {what}: {error}")),
        }
    }
}

pub(super) async fn run(sim: Sim, plan: Plan) -> Result<(), String> {
    codec::planted::plant(plan.errs_one_in);
    let mut tuning = Tuning::draw(&sim);
    if plan.errs_end {
        tuning.master.stream.row_check_one_in = sim.with_rng(|rng| *rng.pick(&[1, 4]));
        // Copies of a row have one cell, and no other to take its bytes from.
        tuning.client.compression = None;
    }
    let cluster = Cluster::start(&sim, plan.shape, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let oracle = Oracle::new();
    let stop = Rc::new(Cell::new(false));
    let verdict = Verdict::default();
    let appended = Rc::new(Cell::new(0));
    let removed = Rc::new(RefCell::default());
    let shared = Shared {
        oracle: oracle.clone(),
        verdict: verdict.clone(),
        writers_live: !plan.client_crashes && !plan.abandon,
        faults: plan.faults,
    };
    let readers = Readers::start(&cluster, shared, READERS).await?;
    let drains = plan.drains.then(|| Drains::start(&cluster));
    let idlers = plan.idlers.then(|| Idlers::start(&cluster, &oracle));
    let converts = plan.converts;
    let conversions = (!converts.is_empty()).then(|| Conversions::start(&cluster, converts));
    let nemesis = Nemesis::start(&cluster, plan.faults);
    let writers = (0..WRITERS).map(|number| {
        let load = Load {
            cluster: cluster.clone(),
            oracle: oracle.clone(),
            stop: stop.clone(),
            verdict: verdict.clone(),
            appended: appended.clone(),
            plan,
            removed: removed.clone(),
        };
        sim.spawn("writer host", keep_writing(load, number, plan.client_crashes))
    });
    let writers: Vec<_> = writers.collect();
    let end = sim.elapsed() + plan.load;
    while sim.elapsed() < end && verdict.borrow().is_none() {
        sim.sleep(Duration::from_millis(100)).await;
    }
    nemesis.stop().await;
    // Writers get time without faults: an operation that hangs now hangs for ever.
    sim.sleep(Duration::from_secs(5)).await;
    stop.set(true);
    for writer in writers {
        let deadline = sim.elapsed() + Duration::from_secs(60);
        while !writer.is_finished() {
            if sim.elapsed() > deadline {
                return Err("a writer does not end in a minute without faults".to_owned());
            }
            sim.sleep(Duration::from_millis(100)).await;
        }
    }
    if let Some(violation) = verdict.take() {
        return Err(violation);
    }
    drains.as_ref().map_or(Ok(()), Drains::verdict)?;
    if plan.errs_end {
        codec::planted::plant(0);
    }
    // Files are sealed first: an open chunk is its writer's to replace. Idle writers do so, and masters do
    // for those that are gone.
    seal_some(&cluster, |path| !idlers::is_theirs(path)).await?;
    match &drains {
        Some(drains) => drains.finish(cluster.settle(plan.deadline)).await?,
        None => cluster.settle(plan.deadline).await?,
    }
    if let Some(idlers) = &idlers {
        idlers.finish().await?;
        seal_all(&cluster).await?;
        cluster.settle(plan.deadline).await?;
    }
    if let Some(conversions) = &conversions {
        conversions.finish().await?;
        // What was written instead is whole too.
        cluster.settle(plan.deadline).await?;
    }
    if let Some(violation) = cluster.violations().first() {
        return Err(violation.clone());
    }
    readers.finish().await?;
    check_content(&cluster, &oracle).await?;
    audit::until_clean(&cluster, &oracle, plan.deadline).await?;
    // Damaged replicas that repair has replaced count too.
    let found_bad = sim.marks().get("bad replica found").copied().unwrap_or(0);
    if found_bad > 0 && plan.faults.spare_replicas() {
        return Err(format!("{found_bad} replicas were not whole, and nothing has harmed any"));
    }
    if appended.get() < 20 {
        return Err(format!(
            "only {} appends in {:?}: the load stands still",
            appended.get(),
            plan.load
        ));
    }
    sim.note(appended.get());
    Ok(())
}

/// The end of a run without load: all faults end, the cluster becomes whole, and every file has what
/// was acknowledged, in as many equal copies as its policy says.
pub(super) async fn check_end(
    cluster: &Cluster,
    oracle: &Oracle,
    deadline: Duration,
) -> Result<(), String> {
    seal_all(cluster).await?;
    cluster.settle(deadline).await?;
    if let Some(violation) = cluster.violations().first() {
        return Err(violation.clone());
    }
    check_content(cluster, oracle).await?;
    audit::until_clean(cluster, oracle, deadline).await
}

/// Opens a file for append whose writer is gone, and appends to it: on the client's host, which is to
/// succeed `within` this time.
pub(super) async fn open_again(
    client: Client,
    oracle: Oracle,
    path: String,
    seed: u64,
    within: Duration,
) -> Result<(), String> {
    let text = |error: Error| format!("{path}: {error}");
    let end = client.env().now() + within;
    let file = client.open(&path).await.map_err(text)?;
    let appender = loop {
        match file.append_handle().await {
            Ok(appender) => break appender,
            Err(error) if client.env().now() >= end => {
                return Err(format!("{path} is not opened again in {within:?}: {error}"));
            }
            Err(_) => client.env().sleep(Duration::from_millis(100)).await,
        }
    };
    oracle.opened(&path, appender.epoch(), appender.acked_len(), seed)?;
    let data = oracle.next(&path, appender.epoch(), 100);
    let offset = appender.append(&data).await.map_err(text)?;
    oracle.acked(&path, appender.epoch(), offset + 100)?;
    appender.close().await.map(drop).map_err(text)
}

/// Seals every file, also those whose writer got no answer to its opening.
pub(super) async fn seal_all(cluster: &Cluster) -> Result<(), String> {
    seal_some(cluster, |_| true).await
}

async fn seal_some(cluster: &Cluster, which: impl Fn(&str) -> bool) -> Result<(), String> {
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    for entry in client.list_all("/").await.map_err(|error| error.to_string())? {
        let path = format!("/{}", entry.name);
        if !which(&path) {
            continue;
        }
        let file = client.open(&path).await.map_err(|error| format!("{path}: {error}"))?;
        match file.seal().await {
            Ok(_) => {}
            Err(error) => return Err(format!("{path}: {error}")),
        }
    }
    Ok(())
}

/// Reads every file whole and compares.
pub(super) async fn check_content(cluster: &Cluster, oracle: &Oracle) -> Result<(), String> {
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    for path in oracle.paths() {
        let file = match client.open(&path).await {
            Ok(file) => file,
            Err(Error::NotFound { .. }) if oracle.acked_len(&path) == 0 => continue,
            Err(error) => return Err(format!("{path}: {error}")),
        };
        let len = file.seal().await.map_err(|error| format!("{path}: {error}"))?;
        let bytes = file.reader().read_at(0, len as usize).await;
        let bytes = bytes.map_err(|error| format!("{path}: {error}"))?;
        if bytes.len() as u64 != len {
            return Err(format!("{path}: {} of {len} bytes could be read", bytes.len()));
        }
        oracle.whole(&path, &bytes)?;
    }
    Ok(())
}

/// A writer's host: boots, writes, and crashes now and then if the plan says so.
async fn keep_writing(load: Load, number: usize, crashes: bool) {
    let sim = load.cluster.sim().clone();
    let load = Rc::new(load);
    let mut host: Option<HostId> = None;
    let mut round = 0u64;
    while !load.stop.get() && load.verdict.borrow().is_none() {
        round += 1;
        let (at, client) = match load.cluster.client(host).await {
            Ok(connected) => connected,
            Err(_) => {
                sim.sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        host = Some(at);
        let seed = sim.with_rng(|rng| rng.next_u64());
        let stay = write_files(load.clone(), client.clone(), number, round, Rng::new(seed));
        let task = client.env().spawn(Class::Foreground, "writer", stay);
        let life = match crashes {
            true => Duration::from_millis(sim.with_rng(|rng| rng.between(200, 5000))),
            false => Duration::from_secs(3600),
        };
        let end = sim.elapsed() + life;
        while !task.is_finished() && sim.elapsed() < end {
            if load.stop.get() && crashes {
                break;
            }
            sim.sleep(Duration::from_millis(20)).await;
        }
        sim.crash(at, CrashMode::Power);
    }
}

/// Writes files one after the other until it is stopped; a broken rule ends up in the verdict.
async fn write_files(load: Rc<Load>, client: Client, number: usize, round: u64, mut rng: Rng) {
    // Files of earlier rounds are opened again: their tails need recovery.
    let mut index = rng.below(3);
    while !load.stop.get() && load.verdict.borrow().is_none() {
        let mut path = format!("/w{number}-{index}");
        let gone = load.removed.borrow().get(&path).copied().unwrap_or(0);
        if gone > 0 {
            path = format!("{path}.{gone}");
        }
        if load.oracle.acked_len(&path) > FILE_MAX {
            if load.plan.remove {
                if !load.plan.converts.is_empty() && rng.one_in(2) {
                    begin_conversion(&client, &path, load.plan.converts, &mut rng).await;
                }
                // The name is not used again, with or without an error, or if this host ends before either.
                *load.removed.borrow_mut().entry(format!("/w{number}-{index}")).or_insert(0) += 1;
                load.oracle.removed(&path);
                if let Err(violation) = load.judge(("a removal", &path), client.unlink(&path).await)
                {
                    load.verdict.borrow_mut().get_or_insert(violation);
                    return;
                }
                continue;
            }
            path = format!("/w{number}-{index}-{round}-{}", rng.next_u64());
        }
        client.env().sleep(Duration::from_millis(rng.below(100))).await;
        match write_file(&load, &client, &path, &mut rng).await {
            Ok(()) => index = rng.below(3 + round),
            Err(violation) => {
                load.verdict.borrow_mut().get_or_insert(violation);
                return;
            }
        }
    }
}

/// Has a file converted that is removed then. An order that faults have lost is not given again.
async fn begin_conversion(client: &Client, path: &str, forms: &[Policy], rng: &mut Rng) {
    let Ok(file) = client.open(path).await else { return };
    let policy = *rng.pick(forms);
    if file.set_policy(policy).await.is_ok() && file.convert(true).await.is_ok() {
        client.env().sleep(Duration::from_millis(rng.below(1000))).await;
    }
}

async fn write_file(load: &Load, client: &Client, path: &str, rng: &mut Rng) -> Result<(), String> {
    let env = client.env();
    let policy = *rng.pick(load.plan.policies);
    let made = load.judge(("a creation", path), client.create(path, policy, 0o644, false).await)?;
    let Some(file) = made else {
        env.sleep(Duration::from_millis(100)).await;
        return Ok(());
    };
    let Some(appender) = load.judge(("an opening", path), file.append_handle().await)? else {
        env.sleep(Duration::from_millis(100)).await;
        return Ok(());
    };
    let epoch = appender.epoch();
    load.oracle.opened(path, epoch, appender.acked_len(), rng.next_u64())?;
    let reader = file.reader();
    for burst in 0..rng.between(1, 120) {
        let is_small = load.plan.small && (burst / SMALL_BURSTS).is_multiple_of(2);
        let sizes = if is_small { &[100, 1000, 5000] } else { &[100, 5000, APPEND_MAX] };
        if load.stop.get() || appender.submitted_len() > 2 * FILE_MAX {
            break;
        }
        let mut pending = Vec::new();
        for _ in 0..rng.between(1, 8) {
            let len = 1 + rng.below(*rng.clone().pick(sizes)) as usize;
            let data = load.oracle.next(path, epoch, len);
            match load.judge(("an append", path), appender.submit(&data).await)? {
                Some(append) => pending.push((append, len as u64)),
                None => break,
            }
        }
        for (append, len) in pending {
            let end = append.offset() + len;
            if load.judge(("an append", path), append.await)?.is_none() {
                // Its outcome is unknown; a new writer learns it.
                return Ok(());
            }
            load.oracle.acked(path, epoch, end)?;
            load.appended.set(load.appended.get() + 1);
        }
        if rng.one_in(4) {
            let reading = load.oracle.begin_read(path);
            let offset = rng.below(load.oracle.acked_len(path).max(1));
            let want = 1 + rng.below(60_000) as usize;
            let read = reader.read_at(offset, want).await;
            if let Some(bytes) = load.judge(("a read", path), read)? {
                load.oracle.read_ended(&reading, offset, want, &bytes)?;
            }
        }
        env.sleep(Duration::from_millis(rng.below(load.plan.think.as_millis() as u64))).await;
    }
    if load.plan.abandon && rng.one_in(3) {
        drop(appender); // Leaves the tail open: the next opening recovers it.
    } else {
        let expected = load.oracle.acked_len(path);
        match load.judge(("a close", path), appender.close().await)? {
            Some(len) if len != expected => {
                return Err(format!("{path}: closed at {len}, {expected} bytes acknowledged"));
            }
            Some(_) => load.oracle.closed(path, epoch, load.cluster.sim().elapsed()),
            None => {}
        }
    }
    Ok(())
}

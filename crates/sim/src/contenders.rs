//! Contenders: hosts that take a resource of the core over from one another, while chunkservers crash
//! and masters fail over; then quiet, and one more owner that checks the whole content.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use client::Client;
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Rng};

use crate::cluster::{Cluster, Shape};
use crate::nemesis::{Faults, Nemesis};
use crate::tuning::Tuning;

/// Hosts that contend for each resource.
const CONTENDERS: u64 = 2;

/// A resource with one owner at a time, and the oracle that judges it.
pub(crate) trait Resource: 'static {
    /// Pause of each contender after the first between two ownerships, milliseconds, at most.
    const PAUSE_MS: u64;
    /// Name of the count of an ownership, for messages.
    const COUNTED: &'static str;
    /// State that a process keeps between its ownerships.
    type Process;

    /// A process that owns nothing yet.
    fn process(&self) -> Self::Process;
    /// Its name, for messages.
    fn name(&self) -> String;
    /// Takes the resource over and loads it until it is lost. Answers what was acknowledged, `None` when
    /// it could not be opened now, or the violation that was seen.
    fn own(
        &self,
        client: &Client,
        process: &Self::Process,
        rng: &mut Rng,
    ) -> impl Future<Output = Result<Option<u64>, String>>;
    /// Takes it over without contenders and faults, and finds all that was acknowledged.
    fn check_whole(&self, client: &Client) -> impl Future<Output = Result<(), String>>;
}

/// Options of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) faults: Faults,
    /// Duration of faults and load.
    pub(crate) load: Duration,
    /// Acknowledgements, at least: the load does not stand still.
    pub(crate) acked_min: u64,
}

/// State that the contenders of a run share.
#[derive(Clone)]
struct Run {
    cluster: Cluster,
    stop: Rc<Cell<bool>>,
    verdict: Rc<RefCell<Option<String>>>,
    acked: Rc<Cell<u64>>,
}

impl Run {
    fn is_over(&self) -> bool {
        self.stop.get() || self.verdict.borrow().is_some()
    }
}

/// Runs `resources` in a cluster of `sim` by the plan.
///
/// # Errors
///
/// The first violation, or the cause that stopped the load or its end.
pub(crate) async fn run<R: Resource>(
    sim: Sim,
    plan: Plan,
    resources: Vec<Rc<R>>,
) -> Result<(), String> {
    let cluster = Cluster::start(&sim, Shape::default(), Tuning::default());
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let (stop, verdict, acked) = (Rc::default(), Rc::default(), Rc::default());
    let run = Run { cluster, stop, verdict, acked };
    let nemesis = Nemesis::start(&run.cluster, plan.faults);
    let mut contenders = Vec::new();
    for resource in &resources {
        for number in 0..CONTENDERS {
            // The first owns at once and for long, the second comes in between.
            let contender = contend(run.clone(), resource.clone(), number);
            contenders.push(sim.spawn("contender", contender));
        }
    }
    let end = sim.elapsed() + plan.load;
    while sim.elapsed() < end && run.verdict.borrow().is_none() {
        sim.sleep(Duration::from_millis(100)).await;
    }
    nemesis.stop().await;
    run.stop.set(true);
    let deadline = sim.elapsed() + Duration::from_secs(120);
    while contenders.iter().any(|contender| !contender.is_finished()) {
        if sim.elapsed() > deadline {
            return Err("an owner does not end in two minutes without faults".to_owned());
        }
        sim.sleep(Duration::from_millis(100)).await;
    }
    if let Some(violation) = run.verdict.take() {
        return Err(violation);
    }
    for resource in &resources {
        let checked = check_whole(&run.cluster, resource).await;
        checked.map_err(|what| format!("{}: {what}", resource.name()))?;
    }
    run.cluster.settle(Duration::from_secs(120)).await?;
    if let Some(violation) = run.cluster.violations().first() {
        return Err(violation.clone());
    }
    if run.acked.get() < plan.acked_min {
        return Err(format!("only {} {} in {:?}", run.acked.get(), R::COUNTED, plan.load));
    }
    sim.note(run.acked.get());
    Ok(())
}

/// A host that owns the resource again and again, and sometimes loses power.
async fn contend<R: Resource>(run: Run, resource: Rc<R>, number: u64) {
    let sim = run.cluster.sim().clone();
    let mut host: Option<HostId> = None;
    while !run.is_over() {
        let Ok((at, client)) = run.cluster.client(host).await else {
            sim.sleep(Duration::from_millis(200)).await;
            continue;
        };
        host = Some(at);
        let rng = Rng::new(sim.with_rng(|rng| rng.next_u64()));
        let life = live(run.clone(), resource.clone(), client.clone(), number, rng);
        let task = client.env().spawn(Class::Foreground, "owner", life);
        let end = sim.elapsed() + Duration::from_millis(sim.with_rng(|rng| rng.between(500, 8000)));
        while !task.is_finished() && sim.elapsed() < end && !run.stop.get() {
            sim.sleep(Duration::from_millis(20)).await;
        }
        let mode =
            if sim.with_rng(|rng| rng.one_in(2)) { CrashMode::Power } else { CrashMode::Process };
        sim.crash(at, mode);
    }
}

/// One process of a contender.
async fn live<R: Resource>(run: Run, resource: Rc<R>, client: Client, number: u64, mut rng: Rng) {
    let env = client.env().clone();
    let process = resource.process();
    while run.verdict.borrow().is_none() {
        env.sleep(Duration::from_millis(rng.below(50 + R::PAUSE_MS * number))).await;
        match resource.own(&client, &process, &mut rng).await {
            Ok(acked) => run.acked.set(run.acked.get() + acked.unwrap_or(0)),
            Err(what) => {
                let what = format!("{}: {what}", resource.name());
                run.verdict.borrow_mut().get_or_insert(what);
            }
        }
    }
}

/// One more owner, on a host of its own.
async fn check_whole<R: Resource>(cluster: &Cluster, resource: &Rc<R>) -> Result<(), String> {
    let (at, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let (resource, env) = (resource.clone(), client.env().clone());
    let work = async move { resource.check_whole(&client).await };
    let checked = env.spawn(Class::Foreground, "check", work).await;
    cluster.sim().crash(at, CrashMode::Process);
    checked.unwrap_or_else(|_| Err("the checking host went down".to_owned()))
}

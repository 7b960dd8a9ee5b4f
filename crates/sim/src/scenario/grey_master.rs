//! A leading master that dies, stands still, becomes grey (it gets nothing of what others send to it or
//! begin, while its own connections stay), or that clients do not reach, though masters do: each
//! operation is answered within a bound, and nothing happens twice. A master that its peers reach goes
//! on leading. In the end one master is left, and a new client finds it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use client::limits::CHUNK_LEN_MIN;
use client::{Appender, Client};
use futures_util::future::join_all;
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Env};

use super::entry::Scenario;
use super::policy;
use crate::cluster::{Cluster, Shape};
use crate::tuning::Tuning;

const CLIENTS: usize = 2;
/// Workers of each client; each has one operation at a time.
const WORKERS: usize = 3;
const APPEND: usize = 40_000;
/// No more: a master hands over so often in ten minutes.
const FAULTS: usize = 3;
const THINK_MS: u64 = 80;
/// The longest operation while a leader is grey, stands still or dies: the sums are in
/// docs/simulation.md.
const STALL_MAX: Duration = Duration::from_millis(400);
/// The longest while peers of the leader reach it.
const RELAYED_MAX: Duration = Duration::from_millis(250);
/// Longer than anything that masters do after a fault.
const QUIET: Duration = Duration::from_millis(1500);

/// What the leading master suffers from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Grey,
    Still,
    Dead,
    /// One client does not reach it.
    CutOff,
    /// No client reaches it.
    CutOffAll,
}

struct World {
    sim: Sim,
    cluster: Cluster,
    hosts: Vec<HostId>,
    stop: Cell<bool>,
    /// The longest that an operation may take now.
    most: Cell<Option<Duration>>,
    /// The longest operation since a fault, and its name.
    longest: Cell<(Duration, &'static str)>,
    violation: RefCell<Option<String>>,
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "grey-master",
    about: "leading masters that die, stand still, hear nothing, or that clients do not reach",
    run: |sim| Box::pin(run(sim)),
    marks: &[
        "grey-master: a grey master leads no more",
        "master: hands over what it leads",
        "master: a request is relayed",
    ],
};

async fn run(sim: Sim) -> Result<(), String> {
    let mut tuning = Tuning::default();
    // Chunks are short, and none is ready before it is needed: appends wait for masters.
    tuning.client.writer.chunk_len_max = CHUNK_LEN_MIN;
    tuning.client.writer.spares = 0;
    let shape = Shape { servers: 4, ..Shape::default() }.partitioned(&sim);
    let cluster = Cluster::start(&sim, shape, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(cluster.client(None).await.map_err(|error| error.to_string())?);
    }
    let world = Rc::new(World {
        sim: sim.clone(),
        cluster,
        hosts: clients.iter().map(|&(host, _)| host).collect(),
        stop: Cell::new(false),
        most: Cell::new(None),
        longest: Cell::default(),
        violation: RefCell::default(),
    });
    let mut workers = Vec::new();
    for (number, (_, client)) in clients.iter().enumerate() {
        for worker in 0..WORKERS {
            let work = world.clone().work(client.clone(), format!("{number}-{worker}"));
            workers.push(client.env().spawn(Class::Foreground, "worker", work));
        }
    }
    world.pause(1000, 3000).await;
    for _ in 0..FAULTS {
        world.strike().await?;
    }
    world.stop.set(true);
    join_all(workers).await;
    world.leave_one().await?;
    world.verdict()
}

impl World {
    async fn pause(&self, low_ms: u64, high_ms: u64) {
        let length = self.sim.with_rng(|rng| rng.between(low_ms, high_ms));
        self.sim.sleep(Duration::from_millis(length)).await;
    }

    fn note_violation(&self, violation: String) {
        self.violation.borrow_mut().get_or_insert(violation);
        self.stop.set(true);
    }

    fn verdict(&self) -> Result<(), String> {
        let own = self.violation.borrow().clone();
        own.or_else(|| self.cluster.violations().first().cloned()).map_or(Ok(()), Err)
    }

    /// Judges an operation: its success, and how long it took.
    async fn judged<T>(
        &self,
        what: &'static str,
        operation: impl Future<Output = Result<T, client::Error>>,
    ) -> Option<T> {
        let began = self.sim.elapsed();
        let outcome = operation.await;
        let took = self.sim.elapsed() - began;
        if took > self.longest.get().0 {
            self.longest.set((took, what));
        }
        if let Some(most) = self.most.get().filter(|&most| took > most) {
            self.note_violation(format!("{what} takes {took:?} from {began:?} on, of {most:?}"));
        }
        outcome.map_err(|error| self.note_violation(format!("{what} fails: {error}"))).ok()
    }

    async fn work(self: Rc<Self>, client: Client, name: String) {
        let mut files = 0;
        let mut open: Option<Appender> = None;
        while !self.stop.get() {
            let env: &Env = client.env();
            env.sleep(Duration::from_millis(env.random_below(THINK_MS))).await;
            let path = format!("/{name}-{files}");
            let appender = match &open {
                Some(appender) => appender,
                None => {
                    let create = client.create(&path, policy::drawn(), 0o644, true);
                    let Some(file) = self.judged("create", create).await else { return };
                    let Some(appender) = self.judged("open", file.append_handle()).await else {
                        return;
                    };
                    open.insert(appender)
                }
            };
            match env.random_below(5) {
                0 => {
                    if self.judged("lookup", client.lookup(&path)).await.is_none() {
                        return;
                    }
                }
                1 if env.random_below(4) == 0 => {
                    let appender = open.take().expect("it is open");
                    if self.judged("close", appender.close()).await.is_none() {
                        return;
                    }
                    if self.judged("unlink", client.unlink(&path)).await.is_none() {
                        return;
                    }
                    files += 1;
                }
                1 | 2 => {
                    // Done twice, each of the two would fail.
                    let path = format!("{path}-empty");
                    let create = client.create(&path, policy::drawn(), 0o644, true);
                    if self.judged("create", create).await.is_none()
                        || self.judged("unlink", client.unlink(&path)).await.is_none()
                    {
                        return;
                    }
                }
                _ => {
                    let data = vec![7; APPEND];
                    if self.judged("append", appender.append(&data)).await.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// The leading master has a fault for a while.
    async fn strike(&self) -> Result<(), String> {
        let leader = self.cluster.leading_master().ok_or("no master leads")?;
        let host = self.cluster.masters()[leader];
        let length = self.sim.with_rng(|rng| match rng.below(3) {
            0 => rng.between(500, 2000),
            _ => rng.between(2000, 12_000),
        });
        let faults = [Fault::Grey, Fault::Still, Fault::Dead, Fault::CutOff, Fault::CutOffAll];
        let fault = self.sim.with_rng(|rng| *rng.pick(&faults));
        tracing::info!(leader, ?fault, length, "grey-master: fault");
        let time = Duration::from_millis(length);
        let relayed = matches!(fault, Fault::CutOff | Fault::CutOffAll);
        self.longest.set(Default::default());
        self.most.set(Some(if relayed { RELAYED_MAX } else { STALL_MAX }));
        let (terms, led) = (self.cluster.terms(), self.cluster.leads(leader));
        match fault {
            Fault::Grey => {
                self.sim.set_grey(host, true);
                self.sim.sleep(time).await;
                let now = self.cluster.terms();
                // It may believe to lead itself: it hears nothing.
                if led.iter().all(|group| now[group] > terms[group]) {
                    self.sim.mark("grey-master: a grey master leads no more");
                } else if length > 2000 {
                    return Err(format!(
                        "master {leader} leads {led:?} for {length} ms, and is grey: {now:?}"
                    ));
                }
                self.sim.set_grey(host, false);
            }
            Fault::Still => {
                self.sim.pause(host, time);
                self.sim.sleep(time).await;
            }
            Fault::Dead => {
                self.cluster.crash_master(leader, CrashMode::Process);
                self.sim.sleep(time).await;
                self.cluster.boot_master(leader);
            }
            Fault::CutOff => self.cut(&self.hosts[..1], host, time).await,
            Fault::CutOffAll => self.cut(&self.hosts, host, time).await,
        }
        self.sim.sleep(QUIET).await;
        let (longest, what) = self.longest.get();
        tracing::info!(?fault, ?longest, what, "grey-master: the longest operation");
        self.sim.note(longest.as_micros() as u64);
        self.most.set(None);
        if relayed && self.cluster.terms() != terms {
            return Err("an election, though masters reached each other".to_owned());
        }
        self.pause(500, 2000).await;
        self.verdict()
    }

    /// All masters but one die or stand still: a new client finds the one, and learns from it how the
    /// cluster is, though none leads.
    async fn leave_one(&self) -> Result<(), String> {
        let masters = self.cluster.masters().len();
        let left = self.sim.with_rng(|rng| rng.below(masters as u64)) as usize;
        let still = self.sim.with_rng(|rng| rng.below(2) == 0);
        let time = Duration::from_secs(3);
        for gone in (0..masters).filter(|&master| master != left) {
            match still {
                true => self.sim.pause(self.cluster.masters()[gone], time),
                false => self.cluster.crash_master(gone, CrashMode::Process),
            }
        }
        self.pause(0, 1500).await;
        let began = self.sim.elapsed();
        let connected = self.cluster.client(None).await;
        let took = self.sim.elapsed() - began;
        tracing::info!(left, still, ?took, "grey-master: one master is left");
        connected.map_err(|error| format!("one master is left, and a client fails: {error}"))?;
        if took > STALL_MAX {
            return Err(format!("one master is left, and a client finds it after {took:?}"));
        }
        Ok(())
    }

    /// What clients and a master send to each other is lost for a while, or only one direction is.
    async fn cut(&self, clients: &[HostId], master: HostId, time: Duration) {
        let way = self.sim.with_rng(|rng| rng.below(3));

        let set = |blocked| {
            for &client in clients {
                if way != 0 {
                    self.sim.set_blocked(client, master, blocked);
                }
                if way != 1 {
                    self.sim.set_blocked(master, client, blocked);
                }
            }
        };
        set(true);
        self.sim.sleep(time).await;
        set(false);
    }
}

//! Writers of 3/2 beside one server at a time that is slow, or stands still (C14): no append waits
//! for it, and the cluster is whole again soon after.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use client::{Appender, Client};
use futures_util::future::join_all;
use runtime::sim::{HostId, Sim};
use runtime::{Class, JoinHandle};
use wire::control::Policy;

use super::append::check_end;
use super::entry::Scenario;
use crate::cluster::{Cluster, Shape};
use crate::oracle::Oracle;
use crate::tuning::Tuning;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "chase-slow",
    about: "one server at a time is slow or stands still beside writers that two copies suffice",
    run: |sim| Box::pin(run(sim)),
    marks: &["writer: replica left", "writer: next chunk"],
};

const WRITERS: u64 = 3;
const APPEND_MAX: u64 = 30_000;
/// Longest wait for an acknowledgement. Simulated disks take 1 ms at most, and links half of it.
const ACK_WITHIN: Duration = Duration::from_millis(100);
/// Chunks have all copies so long after a fault, whether their writers append or not.
const WHOLE_WITHIN: Duration = Duration::from_secs(20);
/// Delay of every operation of a slow disk: fifty times the longest of a healthy one.
const SLOW_BY: Duration = Duration::from_millis(50);
/// A chunk that is written without one of its replicas has ended after this time.
const THIN_FOR: Duration = Duration::from_secs(3);
/// Writers know by then what appends take.
pub(super) const USUAL: Duration = Duration::from_secs(2);
const FAULTS: u64 = 3;
const TIMEOUT: Duration = Duration::from_secs(180);

/// Writers of 3/2, none of whose appends waits for one server.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) sim: Sim,
    pub(super) oracle: Oracle,
    /// Host of the writers.
    pub(super) host: HostId,
    /// Their client.
    pub(super) client: Client,
    /// Policies of their files, in turn.
    policies: Rc<[Policy]>,
    /// Longest wait for an acknowledgement.
    pub(super) ack_within: Rc<Cell<Duration>>,
    stop: Rc<Cell<bool>>,
    violation: Rc<RefCell<Option<String>>>,
    writers: Rc<RefCell<Vec<JoinHandle<()>>>>,
}

async fn run(sim: Sim) -> Result<(), String> {
    let cluster = Cluster::start(&sim, Shape::default(), tuning(&sim));
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let load = Load::begin(&cluster).await?;
    sim.sleep(USUAL).await;
    for _ in 0..FAULTS {
        load.harm(&cluster).await;
        cluster.until_whole(WHOLE_WITHIN).await?;
        sim.sleep(THIN_FOR).await;
    }
    load.end(&cluster).await
}

/// Times and sizes under which the load's bounds hold.
pub(super) fn tuning(sim: &Sim) -> Tuning {
    let mut tuning = Tuning::draw(sim);
    // Copies of what a dead server had take none of the bandwidth that is judged here.
    tuning.scrub_pause = Duration::from_secs(60);
    // As they are: with less a healthy replica is left too, and the slow one is needed.
    let usual = client::Config::default();
    tuning.client.chase_bytes_max = usual.chase_bytes_max;
    // Waits follow from what is known of each disk.
    tuning.client.health_records = usual.health_records;
    tuning.client.writer.chase_bytes = usual.writer.chase_bytes;
    tuning
}

impl Load {
    /// Writers of 3/2 files begin.
    pub(super) async fn begin(cluster: &Cluster) -> Result<Load, String> {
        Load::begin_with(cluster, &[Policy::plain(3, 2)]).await
    }

    /// Writers of files with these policies begin.
    pub(super) async fn begin_with(cluster: &Cluster, policies: &[Policy]) -> Result<Load, String> {
        let (host, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
        let load = Load {
            sim: cluster.sim().clone(),
            oracle: Oracle::new(),
            host,
            client: client.clone(),
            policies: policies.into(),
            ack_within: Rc::new(Cell::new(ACK_WITHIN)),
            stop: Rc::default(),
            violation: Rc::default(),
            writers: Rc::default(),
        };
        let writers = (0..WRITERS).map(|number| {
            let keep = keep_writing(load.clone(), client.clone(), number);
            client.env().spawn(Class::Foreground, "writer", keep)
        });
        load.writers.replace(writers.collect());
        Ok(load)
    }

    /// Writers end: everything that was acknowledged is there, and the cluster is whole.
    pub(super) async fn end(&self, cluster: &Cluster) -> Result<(), String> {
        self.stop.set(true);
        join_all(self.writers.take()).await;
        self.verdict()?;
        check_end(cluster, &self.oracle, TIMEOUT).await
    }

    /// The violation that a writer has seen.
    pub(super) fn verdict(&self) -> Result<(), String> {
        self.violation.borrow().clone().map_or(Ok(()), Err)
    }

    pub(super) fn draw(&self, low: u64, high: u64) -> u64 {
        self.sim.with_rng(|rng| rng.between(low, high))
    }

    /// One server is slow, or stands still, for 50 ms to 6 s.
    async fn harm(&self, cluster: &Cluster) {
        let host = cluster.servers()[self.draw(0, cluster.servers().len() as u64 - 1) as usize];
        let short = self.draw(0, 1) == 0;
        let length =
            Duration::from_millis(if short { self.draw(50, 600) } else { self.draw(600, 6_000) });
        if self.draw(0, 1) == 0 {
            self.sim.pause(host, length);
            self.sim.sleep(length).await;
        } else {
            self.sim.with_disk_faults(host, |disk| {
                (disk.stall_one_in, disk.stall) = (1, SLOW_BY);
            });
            self.sim.sleep(length).await;
            self.sim.with_disk_faults(host, |disk| *disk = Default::default());
        }
    }

    fn note(&self, outcome: Result<(), String>) {
        if let Err(violation) = outcome {
            self.violation.borrow_mut().get_or_insert(violation);
            self.stop.set(true);
        }
    }
}

async fn keep_writing(load: Load, client: Client, number: u64) {
    for round in 0.. {
        if load.stop.get() {
            return;
        }
        let policy = load.policies[(number + round) as usize % load.policies.len()];
        load.note(write_file(&load, &client, &format!("/w{number}-{round}"), policy).await);
    }
}

async fn write_file(
    load: &Load,
    client: &Client,
    path: &str,
    policy: Policy,
) -> Result<(), String> {
    let text = |error: client::Error| format!("{path}: {error}");
    let file = client.create(path, policy, 0o644, false).await.map_err(text)?;
    let appender = file.append_handle().await.map_err(text)?;
    load.oracle.opened(path, appender.epoch(), appender.acked_len(), load.draw(1, u64::MAX))?;
    for _ in 0..load.draw(20, 400) {
        if load.stop.get() {
            break;
        }
        append(load, &appender, path).await?;
        // Some are idle for longer than a thin chunk may be open.
        let pause = if load.draw(0, 99) == 0 { load.draw(0, 4_000) } else { load.draw(0, 20) };
        client.env().sleep(Duration::from_millis(pause)).await;
    }
    let expected = load.oracle.acked_len(path);
    match appender.close().await.map_err(text)? {
        len if len == expected => Ok(()),
        len => Err(format!("{path}: closed at {len}, {expected} bytes acknowledged")),
    }
}

/// One append, or up to four at once, of which each is acknowledged in time.
async fn append(load: &Load, appender: &Appender, path: &str) -> Result<(), String> {
    let text = |error: client::Error| format!("{path}: {error}");
    let began = load.sim.elapsed();
    let mut pending = Vec::new();
    for _ in 0..load.draw(1, 4) {
        let len = load.draw(1, APPEND_MAX) as usize;
        let data = load.oracle.next(path, appender.epoch(), len);
        let append = appender.submit(&data).await.map_err(text)?;
        pending.push((append.offset() + len as u64, append));
    }
    for (end, append) in pending {
        append.await.map_err(text)?;
        load.oracle.acked(path, appender.epoch(), end)?;
    }
    let waited = load.sim.elapsed() - began;
    match waited <= load.ack_within.get() {
        true => Ok(()),
        false => Err(format!("{path}: an append waited {waited:?} for a server of three")),
    }
}

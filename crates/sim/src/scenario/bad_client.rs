//! One client does not reach one server, half of them, or all, or reports servers at random; then two
//! do the latter. Masters and all others reach all servers: no other client waits for it, no master
//! hands over, and what clients report makes no more servers unreached than it may
//! (C28, `protocols-tail.md` 10.8).

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use base::{ChunkId, FileId, ServerId};
use client::{Client, FlatLogFile};
use runtime::Class;
use runtime::sim::{CrashMode, HostId, Sim};
use wire::control::{ControlRequest, ReplicaFault, StreamRequest};

use super::chase::{Load, tuning};
use super::entry::Scenario;
use super::files::Files;
use crate::cluster::{Cluster, Shape};
use crate::nemesis::{Cut, Way};

const SERVERS: usize = 8;
/// Servers that may be unreached by reports at a time: a tenth, and one always.
const REPORTED_MAX: usize = 1;
/// Appends to the file that is read.
const APPENDS: u64 = 40;
/// Clients that read it, and pause between two reads of each.
const READERS: usize = 2;
const READ_PAUSE: Duration = Duration::from_millis(5);
const READ_MAX: u64 = 8_000;
/// The p99.9 of their reads may be so much more while one client is bad: twice, and this.
const MORE: Duration = Duration::from_millis(5);
/// Pause between two files of a bad client.
const ROUND: Duration = Duration::from_millis(50);
/// Reports at random, so often.
const REPORT_PAUSE: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);
const READ: &str = "/read";

pub(super) const SCENARIO: Scenario = Scenario {
    name: "bad-client",
    about: "one client does not reach servers, or reports them at random; others never notice",
    run: |sim| Box::pin(run(sim)),
    marks: &[
        "bad-client: it did not reach one server",
        "bad-client: it did not reach half of the servers",
        "bad-client: it did not reach any server",
        "bad-client: it reported servers at random",
        "bad-client: reports of two made a server unreached",
        "master: a report starts a ping",
    ],
};

/// Reads of the good clients.
#[derive(Default)]
struct Reads {
    took: RefCell<Vec<Duration>>,
    wrong: RefCell<Option<String>>,
    over: Cell<bool>,
}

struct World {
    files: Files,
    load: Load,
    reads: Rc<Reads>,
    /// Asks masters, and reaches all.
    observer: Client,
    /// Replicas of the file that is read: what a report is about.
    replicas: Vec<(FileId, ChunkId, ServerId)>,
    made: Cell<u64>,
}

impl Deref for World {
    type Target = Files;

    fn deref(&self) -> &Files {
        &self.files
    }
}

async fn run(sim: Sim) -> Result<(), String> {
    let shape = Shape { servers: SERVERS, ..Shape::default() };
    let cluster = Cluster::start(&sim, shape, tuning(&sim));
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let load = Load::begin(&cluster).await?;
    let files = Files::new(&cluster, load.oracle.clone());
    let (_, observer) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let content = Rc::new(write(&files, &observer).await?);
    let replicas = replicas(&observer).await?;
    let reads = Rc::new(Reads::default());
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
        let file = client.open(READ).await.map_err(|error| error.to_string())?;
        let task = keep_reading(sim.clone(), file, content.clone(), reads.clone());
        readers.push(client.env().spawn(Class::Foreground, "reader", task));
    }
    let made = Cell::default();
    let world = World { files, load, reads, observer, replicas, made };
    let terms = cluster.terms();
    let healthy = world.observed(8 * SECOND, 0).await?;
    let first = world.draw(0, 3);
    let second = (first + world.draw(1, 3)) % 4;
    for phase in [first, second, 4] {
        // What the last bad client has reported counts no more: this one is on another host.
        world.sim.sleep(3 * SECOND).await;
        let length = Duration::from_secs(world.draw(6, 10));
        tracing::info!(phase, ?length, "bad-client: it begins");
        let slowest = match phase {
            0 => world.cut_from(1, length).await?,
            1 => world.cut_from(SERVERS / 2, length).await?,
            2 => world.cut_from(SERVERS, length).await?,
            3 => world.reported_at_random(1, length).await?,
            _ => world.reported_at_random(2, length).await?,
        };
        tracing::info!(phase, ?slowest, ?healthy, "bad-client: it ends");
        if slowest > 2 * healthy + MORE {
            return Err(format!(
                "the p99.9 of others' reads is {slowest:?} in phase {phase}, {healthy:?} without"
            ));
        }
        // The load's writers wait for no server.
        world.load.verdict()?;
        if cluster.terms() != terms {
            return Err(format!("terms are {:?} in phase {phase}, not {terms:?}", cluster.terms()));
        }
    }
    world.reads.over.set(true);
    for reader in readers {
        reader.await.map_err(|_| "a reader's host went down".to_owned())?;
    }
    if let Some(wrong) = world.reads.wrong.take() {
        return Err(wrong);
    }
    world.load.end(&cluster).await
}

/// Makes the file that is read; answers its bytes.
async fn write(files: &Files, client: &Client) -> Result<Vec<u8>, String> {
    let appender = files.create(client, READ).await?;
    let mut content = Vec::new();
    for _ in 0..APPENDS {
        content.extend(files.append(&appender, READ).await?);
    }
    appender.close().await.map_err(|error| format!("{READ}: {error}"))?;
    Ok(content)
}

async fn replicas(client: &Client) -> Result<Vec<(FileId, ChunkId, ServerId)>, String> {
    let file = client.open(READ).await.map_err(|error| error.to_string())?;
    let view = file.chunks().await.map_err(|error| error.to_string())?;
    let chunks = view.chunks.iter();
    let of = |chunk: &wire::control::ChunkPlace| {
        let id = chunk.chunk;
        let replicas = chunk.replicas.iter();
        replicas.map(|replica| (view.file, id, replica.server)).collect::<Vec<_>>()
    };
    Ok(chunks.flat_map(of).collect())
}

async fn keep_reading(sim: Sim, file: FlatLogFile, content: Rc<Vec<u8>>, reads: Rc<Reads>) {
    while !reads.over.get() {
        let (offset, len) = sim.with_rng(|rng| {
            let len = rng.between(1, READ_MAX);
            (rng.below(content.len() as u64 - len), len)
        });
        let began = sim.elapsed();
        let read = file.reader().read_at(offset, len as usize).await;
        reads.took.borrow_mut().push(sim.elapsed() - began);
        let range = offset as usize..(offset + len) as usize;
        let wrong = match read {
            Ok(bytes) if bytes == content[range] => None,
            Ok(bytes) => Some(format!("{} bytes from {offset} are others", bytes.len())),
            Err(error) => Some(format!("a read failed: {error}")),
        };
        if let Some(wrong) = wrong {
            reads.wrong.borrow_mut().get_or_insert(wrong);
        }
        sim.sleep(READ_PAUSE).await;
    }
}

impl World {
    /// Lets time pass, in which `most` servers may be unreached for masters. Answers the p99.9 of the
    /// good clients' reads.
    async fn observed(&self, length: Duration, most: usize) -> Result<Duration, String> {
        self.reads.took.borrow_mut().clear();
        let end = self.sim.elapsed() + length;
        while self.sim.elapsed() < end {
            let statuses = self.observer.status().await.map_err(|error| error.to_string())?;
            for (master, status) in statuses {
                let unreached = status.servers.iter().filter(|it| it.unreached_ms.is_some());
                let names: Vec<_> = unreached.map(|it| it.name.as_str()).collect();
                if names.len() > most {
                    return Err(format!("for {master} {names:?} are unreached, by words alone"));
                }
                if !names.is_empty() {
                    self.sim.mark("bad-client: reports of two made a server unreached");
                }
            }
            self.sim.sleep(SECOND / 10).await;
        }
        let mut took = self.reads.took.borrow().clone();
        took.sort_unstable();
        if took.len() < 1000 {
            return Err(format!("only {} reads in {length:?}", took.len()));
        }
        Ok(took[(took.len() - 1) * 999 / 1000])
    }

    /// A bad client, and its host.
    async fn bad(&self) -> Result<(HostId, Client), String> {
        self.cluster.client(None).await.map_err(|error| error.to_string())
    }

    /// A client loses its way to `count` servers, there, back or both, while it reads and writes.
    async fn cut_from(&self, count: usize, length: Duration) -> Result<Duration, String> {
        let (host, client) = self.bad().await?;
        let mut servers = self.cluster.servers().to_vec();
        while servers.len() > count {
            servers.swap_remove(self.draw(0, servers.len() as u64 - 1) as usize);
        }
        let way = [Way::Both, Way::There, Way::Back][self.draw(0, 2) as usize];
        let cut = Cut::new("bad-client: cut", way, &[host], &servers);
        // It knows the servers before.
        let path = self.path();
        let appender = self.create(&client, &path).await?;
        self.append(&appender, &path).await?;
        let reading = client.open(READ).await.map_err(|error| error.to_string())?;
        reading.reader().read_at(0, 1).await.map_err(|error| error.to_string())?;
        cut.set(&self.sim, true);
        let keeps = keep_trying(self.sim.clone(), client.clone(), reading, self.path());
        client.env().spawn(Class::Foreground, "bad client", keeps);
        let observed = self.observed(length, 0).await;
        cut.set(&self.sim, false);
        self.sim.mark(match count {
            1 => "bad-client: it did not reach one server",
            SERVERS => "bad-client: it did not reach any server",
            _ => "bad-client: it did not reach half of the servers",
        });
        drop(appender);
        self.sim.crash(host, CrashMode::Process);
        observed
    }

    fn path(&self) -> String {
        format!("/bad{}", self.made.replace(self.made.get() + 1))
    }

    /// So many clients on different hosts report servers at random that they reach.
    async fn reported_at_random(
        &self,
        clients: usize,
        length: Duration,
    ) -> Result<Duration, String> {
        let mut bad = Vec::new();
        for _ in 0..clients {
            bad.push(self.bad().await?);
        }
        for (_, client) in &bad {
            let reports =
                keep_reporting(self.cluster.clone(), client.clone(), self.replicas.clone());
            client.env().spawn(Class::Foreground, "bad client", reports);
        }
        let most = if clients > 1 { REPORTED_MAX } else { 0 };
        let observed = self.observed(length, most).await;
        if clients == 1 {
            self.sim.mark("bad-client: it reported servers at random");
        }
        bad.iter().for_each(|(host, _)| self.sim.crash(*host, CrashMode::Process));
        observed
    }
}

/// Reads and writes, whatever comes of it.
async fn keep_trying(sim: Sim, client: Client, reading: FlatLogFile, path: String) {
    for round in 0u64.. {
        let reads = (0..4).map(|part| {
            let reader = reading.reader();
            async move { reader.read_at(part * 1000, 1000).await.map(drop) }
        });
        let reads = futures_util::future::join_all(reads);
        let writes = async {
            let path = format!("{path}-{round}");
            let file = client.create(&path, super::files::POLICY, 0o644, false).await?;
            let appender = file.append_handle().await?;
            appender.append(&[round as u8; 100]).await?;
            appender.close().await.map(drop)
        };
        // It may wait for minutes: the scenario judges what others see.
        let tried = futures_util::future::join(reads, writes);
        let _ = client.env().timeout(2 * SECOND, tried).await;
        sim.sleep(ROUND).await;
    }
}

/// Reports replicas to all masters, of which one leads their partition.
async fn keep_reporting(
    cluster: Cluster,
    client: Client,
    replicas: Vec<(FileId, ChunkId, ServerId)>,
) {
    loop {
        let sim = cluster.sim();
        let at = sim.with_rng(|rng| rng.below(replicas.len() as u64)) as usize;
        let (file, chunk, server) = replicas[at];
        let fault = ReplicaFault::Unreachable;
        let report = StreamRequest::ReportBad { file, chunk, server, fault };
        let asked = cluster
            .master_addrs()
            .into_iter()
            .map(|master| client.ask_peer(master, ControlRequest::Stream(report.clone()), SECOND));
        futures_util::future::join_all(asked).await;
        client.env().sleep(REPORT_PAUSE).await;
    }
}

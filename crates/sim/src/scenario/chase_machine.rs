//! A machine with the leading master and a chunkserver loses power under hundreds of writers of 3/2
//! (`protocols-tail.md` 8.5): no append waits, though no chunk can end before there is a leader again;
//! the chunks of the dead server end then, not all at once.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use client::{Appender, Client};
use futures_util::future::join_all;
use runtime::sim::{CrashMode, Sim};
use runtime::{Class, Rng};

use super::append::check_end;
use super::chase;
use super::entry::Scenario;
use super::files::POLICY;
use crate::cluster::{Cluster, Shape};
use crate::oracle::Oracle;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "chase-machine",
    about: "the leading master and a chunkserver lose power together under hundreds of writers",
    run: |sim| Box::pin(run(sim)),
    marks: &[
        "chase-machine: the leader and a chunkserver lost power",
        "chase-machine: many chunks have ended",
        "writer: replica left",
    ],
};

const WRITERS: usize = 200;
/// Pause of a writer between two appends, in milliseconds.
const PAUSE_MS: (u64, u64) = (100, 500);
const APPEND_MAX: u64 = 3_000;
/// Longest wait for an acknowledgement.
const ACK_WITHIN: Duration = Duration::from_millis(100);
/// Writers go on for so long after the machine was lost.
const LOAD: Duration = Duration::from_secs(6);
const TIMEOUT: Duration = Duration::from_secs(180);

struct World {
    sim: Sim,
    oracle: Oracle,
    stop: Cell<bool>,
    violation: RefCell<Option<String>>,
}

async fn run(sim: Sim) -> Result<(), String> {
    let mut tuning = chase::tuning(&sim);
    let usual = client::Config::default().writer;
    let writer = &mut tuning.client.writer;
    // A full chunk ends in any case.
    writer.chunk_len_max = usual.chunk_len_max;
    (writer.thin_pause, writer.spares) = (usual.thin_pause, usual.spares);
    let shape = Shape { servers: 4, ..Shape::default() };
    let cluster = Cluster::start(&sim, shape, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let world = Rc::new(World {
        sim: sim.clone(),
        oracle: Oracle::new(),
        stop: Cell::default(),
        violation: RefCell::default(),
    });
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let opened =
        (0..WRITERS).map(|number| {
            let (world, inner) = (world.clone(), client.clone());
            client
                .env()
                .spawn(Class::Foreground, "open", async move { world.open(&inner, number).await })
        });
    let mut writers = Vec::new();
    for opened in join_all(opened).await {
        let (path, appender) = opened.map_err(|_| "the client's host went down".to_owned())??;
        let rng = Rng::new(sim.with_rng(|rng| rng.next_u64()));
        let keep = keep_appending(world.clone(), client.clone(), path, appender, rng);
        writers.push(client.env().spawn(Class::Foreground, "writer", keep));
    }
    sim.sleep(Duration::from_millis(world.draw(500, 1_500))).await;
    world.lose_a_machine(&cluster).await?;
    world.stop.set(true);
    join_all(writers).await;
    if let Some(violation) = world.violation.take() {
        return Err(violation);
    }
    check_end(&cluster, &world.oracle, TIMEOUT).await
}

impl World {
    fn draw(&self, low: u64, high: u64) -> u64 {
        self.sim.with_rng(|rng| rng.between(low, high))
    }

    async fn open(&self, client: &Client, number: usize) -> Result<(String, Appender), String> {
        let path = format!("/{number}");
        let text = |error: client::Error| format!("{path}: {error}");
        let file = client.create(&path, POLICY, 0o644, false).await.map_err(text)?;
        let appender = file.append_handle().await.map_err(text)?;
        self.oracle.opened(&path, appender.epoch(), 0, self.draw(1, u64::MAX))?;
        append(self, &path, &appender, 1).await?;
        Ok((path, appender))
    }

    /// Power goes from the leading master and a chunkserver, and comes back.
    async fn lose_a_machine(&self, cluster: &Cluster) -> Result<(), String> {
        let master = cluster.leading_master().ok_or("no master leads")?;
        let server = self.draw(0, cluster.servers().len() as u64 - 1) as usize;
        cluster.crash_master(master, CrashMode::Power);
        cluster.crash_server(server, CrashMode::Power);
        self.sim.mark("chase-machine: the leader and a chunkserver lost power");
        let lost = self.sim.elapsed();
        let mut ends: Vec<(Duration, u64)> = Vec::new();
        while self.sim.elapsed() < lost + LOAD && self.violation.borrow().is_none() {
            ends.push((self.sim.elapsed(), self.ended()));
            self.sim.sleep(Duration::from_millis(10)).await;
        }
        self.check_ends(&ends)?;
        cluster.boot_master(master);
        cluster.boot_server(server);
        cluster.until_whole(TIMEOUT).await
    }

    /// Chunks that writers have ended until now.
    fn ended(&self) -> u64 {
        self.sim.marks().get("writer: next chunk").copied().unwrap_or(0)
    }

    /// Chunks end, at most so many in the second after the first end.
    fn check_ends(&self, ends: &[(Duration, u64)]) -> Result<(), String> {
        let Some(&(_, before)) = ends.first() else { return Ok(()) };
        let first = ends.iter().find(|(_, count)| *count > before);
        let Some(&(first, _)) = first else { return Err("no chunk has ended".to_owned()) };
        let within = ends.iter().rfind(|(at, _)| *at < first + Duration::from_millis(990));
        let count = within.map_or(before, |(_, count)| *count) - before;
        if count > u64::from(client::limits::THIN_ENDS_PER_S_MAX) {
            return Err(format!("{count} chunks have ended within a second"));
        }
        if ends.last().is_some_and(|(_, count)| count - before > WRITERS as u64 / 4) {
            self.sim.mark("chase-machine: many chunks have ended");
        }
        Ok(())
    }
}

async fn keep_appending(
    world: Rc<World>,
    client: Client,
    path: String,
    appender: Appender,
    mut rng: Rng,
) {
    while !world.stop.get() && world.violation.borrow().is_none() {
        let pause = rng.between(PAUSE_MS.0, PAUSE_MS.1);
        client.env().sleep(Duration::from_millis(pause)).await;
        let began = world.sim.elapsed();
        let appended = append(&world, &path, &appender, rng.between(1, APPEND_MAX)).await;
        let waited = world.sim.elapsed() - began;
        let violation = match appended {
            Ok(()) if waited <= ACK_WITHIN => continue,
            Ok(()) => format!("{path}: an append waited {waited:?} for one machine"),
            Err(what) => what,
        };
        world.violation.borrow_mut().get_or_insert(violation);
    }
    if let Err(error) = appender.close().await {
        world.violation.borrow_mut().get_or_insert(format!("{path}: {error}"));
    }
}

async fn append(world: &World, path: &str, to: &Appender, len: u64) -> Result<(), String> {
    let data = world.oracle.next(path, to.epoch(), len as usize);
    let offset = to.append(&data).await.map_err(|error| format!("{path}: {error}"))?;
    world.oracle.acked(path, to.epoch(), offset + len)
}

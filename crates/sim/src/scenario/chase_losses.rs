//! Writers of 3/2 of which a replica lags, and another one is lost before it has caught up
//! (`protocols-tail.md` 8.6, 8.8, 8.12): one loss at any moment loses nothing that was acknowledged,
//! whether the writer lives or not; two lose nothing while it lives and the late replica comes back.
//! Readers on other hosts see no byte of it go, where disks lose nothing silently.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use base::ChunkId;
use chunkstore::ChunkStore;
use client::{Appender, Client};
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, JoinHandle};
use wire::data::ReplicaStat;

use super::append::{check_end, open_again};
use super::chase;
use super::entry::Scenario;
use super::files::Files;
use super::readers::{Readers, Shared};
use crate::cluster::{Cluster, Shape};
use crate::nemesis::{Faults, NONE};
use crate::oracle::Oracle;

pub(super) const SECOND: Scenario = Scenario {
    name: "chase-second",
    about: "a replica is lost while another one lags, and its writer lives or dies",
    run: |sim| Box::pin(run(sim, Loss::Second)),
    marks: &[
        "chase-second: a disk was lost while another one lagged",
        "chase-second: a process died while another one lagged",
        "chase-second: the writer died too",
        "chase-second: the writer had the only other copy",
        "recovery without all votes",
        "readers: far beyond the end",
    ],
};

pub(super) const ROT_TAIL: Scenario = Scenario {
    name: "chase-rot-tail",
    about: "a disk loses the last write silently, another one never got it, and the writer dies",
    run: |sim| Box::pin(run(sim, Loss::LastWrite)),
    marks: &[
        "chase-rot-tail: a disk has lost its last write",
        "chase-rot-tail: a replica votes without its last write",
    ],
};

const ROUNDS: u64 = 4;
const READERS: usize = 2;
/// What explains that a reader has no answer.
const LOSSES: Faults = Faults { server_crashes: true, ..NONE };
const TIMEOUT: Duration = Duration::from_secs(180);
/// A file is opened again within this time when its writer has died.
const OPENED_WITHIN: Duration = Duration::from_secs(60);
/// Appends go on within this time when two of three replicas are lost.
const GOES_ON_WITHIN: Duration = Duration::from_secs(20);
/// A replica lags for so many milliseconds: less than it is chased for.
const LAG_MS: (u64, u64) = (50, 400);
/// Delay of each operation of a slow disk.
const SLOW_BY: Duration = Duration::from_millis(50);
/// Longest append whose bytes are in one sector.
const SECTOR_APPEND_MAX: u64 = 4_000;

#[derive(Clone, Copy)]
enum Loss {
    Second,
    LastWrite,
}

struct World(Files);

impl Deref for World {
    type Target = Files;

    fn deref(&self) -> &Files {
        &self.0
    }
}

async fn run(sim: Sim, loss: Loss) -> Result<(), String> {
    let mut tuning = chase::tuning(&sim);
    let (usual, writer) = (client::Config::default().writer, &mut tuning.client.writer);
    // A replica that lags is chased for longer than it lags, and few chunks end in that time.
    writer.chase_for = usual.chase_for;
    writer.debt_kept = usual.debt_kept;
    writer.chunk_len_max = usual.chunk_len_max;
    if matches!(loss, Loss::LastWrite) {
        // All that can vote do.
        tuning.master.stream.vote_timeout = master_stream::StreamConfig::default().vote_timeout;
    }
    let shape = Shape { servers: 6, ..Shape::default() };
    let cluster = Cluster::start(&sim, shape, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let world = World(Files::new(&cluster, Oracle::new()));
    let verdict = Rc::new(RefCell::new(None));
    let (oracle, faults) = (world.oracle.clone(), LOSSES);
    let shared = Shared { oracle, verdict: verdict.clone(), writers_live: false, faults };
    // A disk that has lost its last write shows an earlier end until the chunk is sealed: recovery has the
    // vote of the other replica too, a reader may not.
    let readers = match loss {
        Loss::Second => Some(Readers::start(&cluster, shared, READERS).await?),
        Loss::LastWrite => None,
    };
    for round in 0..ROUNDS {
        let path = format!("/{round}");
        let ended = match loss {
            Loss::Second => world.second(&path).await,
            Loss::LastWrite => world.last_write(&path).await,
        };
        ended.map_err(|what| format!("round {round}: {what}"))?;
        // Masters have tried to seal what was ended now: what is short from here on is short to them.
        sim.sleep(Duration::from_secs(2)).await;
        cluster.boot_all();
        cluster.until_whole(TIMEOUT).await?;
        cluster.check_copies().map_err(|what| format!("masters say that all is whole: {what}"))?;
        if let Some(violation) = verdict.borrow().clone() {
            return Err(format!("round {round}: {violation}"));
        }
    }
    check_end(&cluster, &world.oracle, TIMEOUT).await?;
    match readers {
        Some(readers) => readers.finish().await,
        None => Ok(()),
    }
}

/// A writer at work, and the servers of the replicas of its chunk, in random order.
struct Writing {
    host: HostId,
    client: Client,
    appender: Appender,
    chunk: ChunkId,
    servers: [usize; 3],
}

impl World {
    /// A file with some bytes in its first chunk, whose replicas all have them.
    async fn begin(&self, path: &str) -> Result<Writing, String> {
        let (host, client) = self.cluster.client(None).await.map_err(|error| error.to_string())?;
        let appender = self.create(&client, path).await?;
        for _ in 0..self.draw(1, 10) {
            self.append(&appender, path).await?;
        }
        let text = |error: client::Error| format!("{path}: {error}");
        let view = appender.file().chunks().await.map_err(text)?;
        let last = view.chunks.last().ok_or_else(|| format!("{path} has no chunk"))?;
        let hosts = last.replicas.iter().map(|replica| self.host_of(replica.addr));
        let index = |host| self.cluster.servers().iter().position(|it| *it == host);
        let servers: Vec<_> = hosts.filter_map(index).collect();
        let mut servers: [usize; 3] = servers.try_into().map_err(|servers| {
            format!("{path} has replicas on {servers:?}, and six servers are there")
        })?;
        servers.rotate_left(self.draw(0, 2) as usize);
        if self.draw(0, 1) == 0 {
            servers.swap(1, 2);
        }
        self.sim.sleep(Duration::from_millis(self.draw(0, 700))).await;
        Ok(Writing { host, client, appender, chunk: last.chunk, servers })
    }

    /// A replica lags. Another one is lost, or both others while the writer lives.
    async fn second(&self, path: &str) -> Result<(), String> {
        let Writing { host, client, appender, servers: [late, second, third], .. } =
            self.begin(path).await?;
        let (dies, two) = match self.draw(0, 2) {
            0 => (true, false),
            1 => (false, false),
            _ => (false, true),
        };
        // With one loss masters may be the first to complete what the late one lacks.
        let long = !two && self.draw(0, 1) == 0;
        let lag = if long { self.draw(1_000, 4_000) } else { self.draw(LAG_MS.0, LAG_MS.1) };
        // One that is cut off is left after 150 ms, and then its bytes are kept no more.
        let lagging = self.lag(host, late, Duration::from_millis(lag), !two);
        // The end of a file waits for no late replica: the writer lives for longer.
        let until =
            self.sim.elapsed() + Duration::from_millis(lag + if long { 1_500 } else { 300 });
        let mut appending = self.keep_appending(&client, appender, path, until);
        self.sim.sleep(Duration::from_millis(self.draw(0, (lag * 3 / 4).min(300)))).await;
        let is_destroyed = two || self.draw(0, 2) > 0;
        tracing::info!(path, late, second, is_destroyed, two, dies, lag, "chase-second: a loss");
        self.lose(second, is_destroyed);
        self.sim.mark(match is_destroyed {
            true => "chase-second: a disk was lost while another one lagged",
            false => "chase-second: a process died while another one lagged",
        });
        if two {
            self.sim.sleep(Duration::from_millis(self.draw(0, lag / 4))).await;
            self.lose(third, true);
            self.sim.mark("chase-second: the writer had the only other copy");
        }
        if dies {
            self.sim.sleep(Duration::from_millis(self.draw(0, 50))).await;
            self.sim.crash(host, CrashMode::Power);
            self.sim.mark("chase-second: the writer died too");
            let _ = appending.await;
            // Servers that were lost are not back: the votes of the others are enough.
            self.open_again(path).await?;
        } else {
            let end = self.sim.elapsed() + GOES_ON_WITHIN;
            while !appending.is_finished() {
                if self.sim.elapsed() > end {
                    return Err(format!("{path}: no append for {GOES_ON_WITHIN:?}"));
                }
                self.sim.sleep(Duration::from_millis(20)).await;
            }
            let ended = (&mut appending).await;
            ended.unwrap_or_else(|_| Err("the writer is gone".to_owned()))?;
            self.sim.crash(host, CrashMode::Process);
        }
        lagging.await.map_err(|_| "the lag does not end".to_owned())?;
        self.sim.sleep(Duration::from_millis(self.draw(0, 3_000))).await;
        Ok(())
    }

    /// A server takes what this writer sends late, for this long; it may be cut off from the writer if
    /// `may_cut`.
    fn lag(
        &self,
        writer: HostId,
        server: usize,
        length: Duration,
        may_cut: bool,
    ) -> JoinHandle<()> {
        let (sim, late) = (self.sim.clone(), self.cluster.servers()[server]);
        let kind = self.draw(0, if may_cut { 2 } else { 1 });
        tracing::info!(server, kind, ?length, "a server lags");
        match kind {
            0 => self.sim.pause(late, length),
            1 => self.sim.with_disk_faults(late, |disk| {
                (disk.stall_one_in, disk.stall) = (1, SLOW_BY);
            }),
            _ => self.sim.set_blocked(writer, late, true),
        }
        self.sim.spawn("lag", async move {
            sim.sleep(length).await;
            match kind {
                0 => {}
                1 => sim.with_disk_faults(late, |disk| *disk = Default::default()),
                _ => sim.set_blocked(writer, late, false),
            }
        })
    }

    /// A server loses power and its disk, or its process is killed.
    fn lose(&self, server: usize, disk: bool) {
        if disk {
            self.cluster.crash_server(server, CrashMode::Power);
            self.cluster.empty_disks(server, true);
        } else {
            self.cluster.crash_server(server, CrashMode::Process);
        }
    }

    /// A task of the writer's host that appends for a while, and ends the file then, or later.
    fn keep_appending(
        &self,
        client: &Client,
        appender: Appender,
        path: &str,
        until: Duration,
    ) -> JoinHandle<Result<(), String>> {
        let (sim, oracle, path) = (self.sim.clone(), self.oracle.clone(), path.to_owned());
        let env = client.env().clone();
        client.env().spawn(Class::Foreground, "writer", async move {
            let draw = |low, high| sim.with_rng(|rng| rng.between(low, high));
            let mut left = draw(20, 100);
            while left > 0 || sim.elapsed() < until {
                left = left.saturating_sub(1);
                let len = draw(1, 20_000) as usize;
                let data = oracle.next(&path, appender.epoch(), len);
                let appended = appender.append(&data).await;
                let offset = appended.map_err(|error| format!("{path}: {error}"))?;
                oracle.acked(&path, appender.epoch(), offset + len as u64)?;
                env.sleep(Duration::from_millis(draw(0, 10))).await;
            }
            appender.close().await.map(drop).map_err(|error| format!("{path}: {error}"))
        })
    }

    /// Another client opens the file for append, and goes on.
    async fn open_again(&self, path: &str) -> Result<(), String> {
        let (host, client) = self.cluster.client(None).await.map_err(|error| error.to_string())?;
        let (oracle, seed) = (self.oracle.clone(), self.draw(1, u64::MAX));
        let opening = open_again(client.clone(), oracle, path.to_owned(), seed, OPENED_WITHIN);
        let opening = client.env().spawn(Class::Foreground, "opening", opening);
        opening.await.unwrap_or_else(|_| Err("the client's host went down".to_owned()))?;
        self.sim.crash(host, CrashMode::Process);
        Ok(())
    }

    /// Two replicas have the last append, of which one loses it silently; then the writer dies, and
    /// all three vote.
    async fn last_write(&self, path: &str) -> Result<(), String> {
        let Writing { host, appender, chunk, servers: [late, rotten, _], .. } =
            self.begin(path).await?;
        let (unseen, rotten_host) = (self.cluster.servers()[late], self.cluster.servers()[rotten]);
        self.sim.set_blocked(host, unseen, true);
        for _ in 0..self.draw(0, 3) {
            self.append_sector(&appender, path).await?;
        }
        self.sim.with_disk_faults(rotten_host, |disk| disk.lost_one_in = 1);
        self.append_sector(&appender, path).await?;
        self.sim.crash(host, CrashMode::Power);
        let held = self.held(rotten, chunk);
        // What it holds in memory is gone, too.
        let mode = if self.draw(0, 1) == 0 { CrashMode::Process } else { CrashMode::Power };
        self.cluster.crash_server(rotten, mode);
        self.sim.with_disk_faults(rotten_host, |disk| *disk = Default::default());
        self.sim.mark("chase-rot-tail: a disk has lost its last write");
        self.sim.set_blocked(host, unseen, false);
        self.cluster.boot_server(rotten);
        self.sim.sleep(Duration::from_millis(self.draw(500, 1_500))).await;
        let now = self.held(rotten, chunk);
        if let (Some(before), Some(now)) = (held, now)
            && now.len < before.len
            && now.len >= now.durable_bound
        {
            self.sim.mark("chase-rot-tail: a replica votes without its last write");
        }
        self.open_again(path).await
    }

    /// State of a server's replica.
    fn held(&self, server: usize, chunk: ChunkId) -> Option<ReplicaStat> {
        self.cluster.stores(server).iter().find_map(|(_, store)| store.stat(chunk).ok())
    }

    async fn append_sector(&self, to: &Appender, path: &str) -> Result<(), String> {
        let text = |error: client::Error| format!("{path}: {error}");
        let len = self.draw(1, SECTOR_APPEND_MAX);
        let data = self.oracle.next(path, to.epoch(), len as usize);
        let offset = to.append(&data).await.map_err(text)?;
        self.oracle.acked(path, to.epoch(), offset + len)
    }
}

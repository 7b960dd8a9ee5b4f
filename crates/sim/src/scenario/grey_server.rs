//! A chunkserver whose heartbeats come and that others do not reach: all others, or masters alone; or
//! a master reaches no chunkserver. It gets no new chunks, and what it has is made again elsewhere, as
//! if it were silent; a writer that reaches it goes on; it is used again when it is reached
//! (`protocols-tail.md` 10.7).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use base::ChunkId;
use client::{Appender, Client};
use runtime::sim::{CrashMode, HostId, Sim};
use wire::control::Policy;

use super::chase::{Load, tuning};
use crate::cluster::{Cluster, Shape};

const POLICY: Policy = Policy { copies: 3, acks: 2 };
/// Masters know by then that a server is not reached: four pings, and a leader's view of it.
const SEEN: Duration = Duration::from_millis(1500);
/// What it has is elsewhere so long after the grace of a silent server: a few scans, and copies.
const REPAIRED: Duration = Duration::from_secs(10);
/// It gets chunks again by then: its answers have come for a while, and one file in three has a chunk there.
const BACK: Duration = Duration::from_secs(15);
/// The cluster is whole so long after a fault.
const WHOLE: Duration = Duration::from_secs(30);
/// Pause between two new files.
const PAUSE: Duration = Duration::from_millis(300);
const SECOND: Duration = Duration::from_secs(1);

/// Whom a server, or servers, hear no more.
#[derive(Clone, Copy)]
enum Fault {
    Grey,
    MastersMiss,
    MasterCut,
}

struct World {
    sim: Sim,
    cluster: Cluster,
    load: Load,
    /// Host of clients that know no server: a new one begins for each file.
    fresh: Cell<Option<HostId>>,
    files: Cell<u64>,
}

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let tuning = tuning(&sim);
    let (dead_grace, open_grace) =
        (tuning.master.stream.dead_grace, tuning.master.stream.open_grace);
    // A disk takes no copy of a chunk that it had a minute ago: some have not had it.
    let shape = Shape { servers: 8, ..Shape::default() };
    let cluster = Cluster::start(&sim, shape, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let load = Load::begin(&cluster).await?;
    let world =
        World { sim: sim.clone(), cluster, load, fresh: Cell::default(), files: Cell::default() };
    let (_, client) = world.cluster.client(None).await.map_err(|error| error.to_string())?;
    let (quiet, path) = (world.create(&client, "/quiet").await?, "/quiet");
    world.append(&quiet, path).await?;
    // A master that reaches none tries one place after another, and leaves tombstones: it comes last.
    let order = [Fault::Grey, Fault::MastersMiss, Fault::MasterCut];
    let spared = world.load.draw(0, 2) as usize;
    for (_, fault) in order.into_iter().enumerate().filter(|(at, _)| *at != spared) {
        let servers = world.cluster.servers();
        let server = servers[world.load.draw(0, servers.len() as u64 - 1) as usize];
        match fault {
            Fault::Grey => world.is_grey(server, dead_grace).await?,
            Fault::MastersMiss => {
                world.only_masters_miss(server, open_grace).await?;
                // Its writer reaches all of the servers.
                world.append(&quiet, path).await?;
            }
            Fault::MasterCut => world.a_master_is_cut_off(dead_grace).await?,
        }
        world.cluster.until_whole(WHOLE).await?;
        world.load.verdict()?;
    }
    world.append(&quiet, path).await?;
    quiet.close().await.map_err(|error| format!("{path}: {error}"))?;
    world.load.end(&world.cluster).await
}

impl World {
    fn ip(&self, server: HostId) -> IpAddr {
        self.sim.addr(server, 1).ip()
    }

    async fn is_grey(&self, server: HostId, grace: Duration) -> Result<(), String> {
        let long = self.load.draw(0, 3) > 0;
        let length = match long {
            true => grace + REPAIRED + SECOND,
            false => Duration::from_millis(self.load.draw(500, 6_000)),
        };
        tracing::info!(?server, ?length, "grey-server: grey");
        self.sim.set_grey(server, true);
        self.is_not_used(server, length, grace).await?;
        self.sim.set_grey(server, false);
        self.sim.mark("grey-server: a server was grey");
        self.is_used_again(server).await
    }

    async fn only_masters_miss(&self, server: HostId, open_grace: Duration) -> Result<(), String> {
        let length = open_grace + REPAIRED;
        tracing::info!(?server, ?length, "grey-server: masters alone do not reach it");
        self.set_missed(&[server], self.cluster.masters(), true);
        self.is_not_used(server, length, length - REPAIRED).await?;
        self.set_missed(&[server], self.cluster.masters(), false);
        self.sim.mark("grey-server: masters alone did not reach a server");
        self.is_used_again(server).await
    }

    /// A leading master that reaches no server judges none: all are used.
    async fn a_master_is_cut_off(&self, grace: Duration) -> Result<(), String> {
        let leader = self.cluster.leading_master().ok_or("no master leads")?;
        tracing::info!(leader, "grey-server: a master reaches no server");
        let leader = [self.cluster.masters()[leader]];
        self.set_missed(self.cluster.servers(), &leader, true);
        let end = self.sim.elapsed() + grace + REPAIRED;
        while self.sim.elapsed() < end {
            let places = self.new_file().await?.len();
            if places < usize::from(POLICY.copies) {
                return Err(format!("a master that reaches no server places {places} copies"));
            }
            self.sim.sleep(PAUSE).await;
        }
        self.set_missed(self.cluster.servers(), &leader, false);
        self.sim.mark("grey-server: a master reached no server");
        Ok(())
    }

    fn set_missed(&self, servers: &[HostId], masters: &[HostId], grey: bool) {
        for &master in masters {
            servers.iter().for_each(|&server| self.sim.set_grey_to(master, server, grey));
        }
    }

    /// For `length`, new files have no chunks on the server; `grace` and a little later all that was
    /// sealed has its copies on others.
    async fn is_not_used(
        &self,
        server: HostId,
        length: Duration,
        grace: Duration,
    ) -> Result<(), String> {
        let (begun, ip) = (self.sim.elapsed(), self.ip(server));
        let before = self.sealed().await?;
        self.sim.sleep(length.min(SEEN)).await;
        while self.sim.elapsed() < begun + length {
            if self.new_file().await?.contains(&ip) {
                let after = self.sim.elapsed() - begun;
                return Err(format!("a new chunk is placed on {ip}, not reached for {after:?}"));
            }
            self.sim.sleep(PAUSE).await;
        }
        if length < grace + REPAIRED {
            return Ok(());
        }
        let now = self.sealed().await?;
        for id in before.into_keys() {
            let places = now.get(&id).map_or(&[][..], Vec::as_slice);
            let others = places.iter().filter(|place| **place != ip).count();
            if others < usize::from(POLICY.copies) {
                return Err(format!(
                    "{id} is on {places:?}, {ip} of which is not reached for {length:?}"
                ));
            }
        }
        self.sim.mark("grey-server: all is elsewhere");
        Ok(())
    }

    /// Sealed chunks, and where they are.
    async fn sealed(&self) -> Result<BTreeMap<ChunkId, Vec<IpAddr>>, String> {
        let connected = self.cluster.client(self.fresh.get()).await;
        let (host, client) = connected.map_err(|error| error.to_string())?;
        self.fresh.set(Some(host));
        let mut sealed = BTreeMap::new();
        for entry in client.list_all("/").await.map_err(|error| error.to_string())? {
            let file = client.open(&format!("/{}", entry.name)).await;
            let view = file.map_err(|error| error.to_string())?.chunks().await;
            let chunks = view.map_err(|error| error.to_string())?.chunks.into_iter();
            for chunk in chunks.filter(|chunk| chunk.sealed.is_some()) {
                let places = chunk.replicas.iter().map(|replica| replica.addr.ip()).collect();
                sealed.insert(chunk.chunk, places);
            }
        }
        self.sim.crash(host, CrashMode::Process);
        Ok(sealed)
    }

    /// The server gets new chunks again.
    async fn is_used_again(&self, server: HostId) -> Result<(), String> {
        let end = self.sim.elapsed() + BACK;
        while !self.new_file().await?.contains(&self.ip(server)) {
            if self.sim.elapsed() > end {
                return Err(format!("reached for {BACK:?}, and no chunk is placed there"));
            }
            self.sim.sleep(PAUSE).await;
        }
        Ok(())
    }

    /// A client that has asked no server yet makes a file. Answers where it is.
    async fn new_file(&self) -> Result<Vec<IpAddr>, String> {
        let connected = self.cluster.client(self.fresh.get()).await;
        let (host, client) = connected.map_err(|error| error.to_string())?;
        self.fresh.set(Some(host));
        let path = format!("/n{}", self.files.replace(self.files.get() + 1));
        let appender = self.create(&client, &path).await?;
        self.append(&appender, &path).await?;
        let view = client.open(&path).await.map_err(|error| format!("{path}: {error}"))?;
        let view = view.chunks().await.map_err(|error| format!("{path}: {error}"))?;
        appender.close().await.map_err(|error| format!("{path}: {error}"))?;
        self.sim.crash(host, CrashMode::Process);
        let replicas = view.chunks.iter().flat_map(|chunk| &chunk.replicas);
        Ok(replicas.map(|replica| replica.addr.ip()).collect())
    }

    async fn create(&self, client: &Client, path: &str) -> Result<Appender, String> {
        let text = |error: client::Error| format!("{path}: {error}");
        let file = client.create(path, POLICY, 0o644, false).await.map_err(text)?;
        let appender = file.append_handle().await.map_err(text)?;
        self.load.oracle.opened(path, appender.epoch(), 0, self.load.draw(1, u64::MAX))?;
        Ok(appender)
    }

    async fn append(&self, to: &Appender, path: &str) -> Result<(), String> {
        let text = |error: client::Error| format!("{path}: {error}");
        let len = self.load.draw(1, 10_000);
        let data = self.load.oracle.next(path, to.epoch(), len as usize);
        let append = to.submit(&data).await.map_err(text)?;
        let end = append.offset() + len;
        append.await.map_err(text)?;
        self.load.oracle.acked(path, to.epoch(), end)
    }
}

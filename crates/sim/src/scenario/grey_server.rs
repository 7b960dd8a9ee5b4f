//! A chunkserver whose heartbeats come and that others do not reach: all others, or masters alone; or
//! a master reaches no chunkserver. It gets no new chunks, and what it has is made again elsewhere, as
//! if it were silent; a writer that reaches it goes on, in another chunk when its client has heard of it
//! from masters; it is used again when it is reached (`protocols-tail.md` 10.6, 10.7).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::time::Duration;

use base::ChunkId;
use client::Client;
use runtime::sim::{HostId, Sim};

use super::chase::{Load, tuning};
use super::entry::Scenario;
use super::files::{Files, POLICY};
use crate::cluster::{Cluster, Shape};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "grey-server",
    about: "a chunkserver sends heartbeats and is reached by none, or by clients alone",
    run: |sim| Box::pin(run(sim)),
    marks: &[
        "grey-server: a server was grey",
        "grey-server: masters alone did not reach a server",
        "grey-server: a master reached no server",
        "grey-server: all is elsewhere",
        "grey-server: an open chunk has left",
    ],
};

/// Masters know by then that a server is not reached: four pings, and a leader's view of it.
const SEEN: Duration = Duration::from_millis(1500);
/// Clients know it too: an idle one asks masters every two seconds.
const PUSHED: Duration = Duration::from_secs(6);
/// A writer whose open chunk has a replica on such a server has gone on in another chunk by then.
const LEFT: Duration = Duration::from_secs(31);
/// What it has is elsewhere so long after the grace of a silent server: a few scans, and copies.
const REPAIRED: Duration = Duration::from_secs(10);
/// It gets chunks again by then: its answers have come for a while, and one file in three has a chunk there.
const BACK: Duration = Duration::from_secs(15);
/// The cluster is whole so long after a fault.
const WHOLE: Duration = Duration::from_secs(30);
/// Pause between two new files.
const PAUSE: Duration = Duration::from_millis(300);
const SECOND: Duration = Duration::from_secs(1);
/// A file whose writer appends seldom.
const QUIET: &str = "/quiet";

/// Whom a server, or servers, hear no more.
#[derive(Clone, Copy)]
enum Fault {
    Grey,
    MastersMiss,
    MasterCut,
}

struct World {
    load: Load,
    files: Files,
    /// The client of the quiet writer.
    client: Client,
}

impl Deref for World {
    type Target = Files;

    fn deref(&self) -> &Files {
        &self.files
    }
}

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let mut tuning = tuning(&sim);
    // A client knows the servers that it has used lately.
    tuning.client.health_records = client::Config::default().health_records;
    let (dead_grace, open_grace) =
        (tuning.master.stream.dead_grace, tuning.master.stream.open_grace);
    // A disk takes no copy of a chunk that it had a minute ago: some have not had it.
    let shape = Shape { servers: 8, ..Shape::default() };
    let cluster = Cluster::start(&sim, shape, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let load = Load::begin(&cluster).await?;
    let files = Files::new(&cluster, load.oracle.clone());
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let world = World { load, files, client };
    let quiet = world.create(&world.client, QUIET).await?;
    world.append(&quiet, QUIET).await?;
    // A master that reaches none tries one place after another, and leaves tombstones: it comes last.
    let order = [Fault::Grey, Fault::MastersMiss, Fault::MasterCut];
    let spared = world.draw(0, 2) as usize;
    for (_, fault) in order.into_iter().enumerate().filter(|(at, _)| *at != spared) {
        match fault {
            Fault::Grey => {
                let servers = cluster.servers();
                let server = servers[world.draw(0, servers.len() as u64 - 1) as usize];
                world.is_grey(server, dead_grace).await?;
            }
            Fault::MastersMiss => {
                // One with a replica of the chunk that the quiet writer has open, which it reaches.
                world.append(&quiet, QUIET).await?;
                let servers = world.last_chunk(QUIET).await?;
                let server = servers[world.draw(0, servers.len() as u64 - 1) as usize];
                world.only_masters_miss(server, open_grace).await?;
                world.append(&quiet, QUIET).await?;
            }
            Fault::MasterCut => world.a_master_is_cut_off(dead_grace).await?,
        }
        cluster.until_whole(WHOLE).await?;
        world.load.verdict()?;
    }
    world.append(&quiet, QUIET).await?;
    quiet.close().await.map_err(|error| format!("{QUIET}: {error}"))?;
    world.load.end(&cluster).await
}

impl World {
    async fn is_grey(&self, server: HostId, grace: Duration) -> Result<(), String> {
        let long = self.draw(0, 3) > 0;
        let length = match long {
            true => grace + REPAIRED + SECOND,
            false => Duration::from_millis(self.draw(500, 6_000)),
        };
        tracing::info!(?server, ?length, "grey-server: grey");
        self.sim.set_grey(server, true);
        self.is_not_used(server, length, grace, false).await?;
        self.sim.set_grey(server, false);
        self.sim.mark("grey-server: a server was grey");
        self.is_used_again(server).await
    }

    async fn only_masters_miss(&self, server: HostId, open_grace: Duration) -> Result<(), String> {
        let length = open_grace + REPAIRED;
        tracing::info!(?server, ?length, "grey-server: masters alone do not reach it");
        self.set_missed(&[server], self.cluster.masters(), true);
        self.is_not_used(server, length, length - REPAIRED, true).await?;
        self.set_missed(&[server], self.cluster.masters(), false);
        self.is_out(server, false).await?;
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

    /// The quiet writer's client has the server out because masters say so, or not.
    async fn is_out(&self, server: HostId, out: bool) -> Result<(), String> {
        let end = self.sim.elapsed() + PUSHED;
        while self.pushed(&self.client).contains(&server) != out {
            if self.sim.elapsed() > end {
                let listed = self.client.listed_disks();
                return Err(format!("for {PUSHED:?} a client has, of {server:?}: {listed:?}"));
            }
            self.sim.sleep(SECOND / 20).await;
        }
        Ok(())
    }

    /// For `length`, new files have no chunks on the server; `grace` and a little later all that was
    /// sealed has its copies on others.
    async fn is_not_used(
        &self,
        server: HostId,
        length: Duration,
        grace: Duration,
        quiet: bool,
    ) -> Result<(), String> {
        let (begun, ip) = (self.sim.elapsed(), self.ip(server));
        let before = self.sealed().await?;
        self.sim.sleep(length.min(SEEN)).await;
        let mut left = !quiet;
        if quiet {
            self.is_out(server, true).await?;
        }
        while self.sim.elapsed() < begun + length {
            if self.new_file().await?.contains(&ip) {
                let after = self.sim.elapsed() - begun;
                return Err(format!("a new chunk is placed on {ip}, not reached for {after:?}"));
            }
            if !left && self.sim.elapsed() > begun + LEFT {
                left = true;
                if self.last_chunk(QUIET).await?.contains(&server) {
                    return Err(format!("{QUIET} has its open chunk on {ip} after {LEFT:?}"));
                }
                self.sim.mark("grey-server: an open chunk has left");
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
        let (host, client) = self.newcomer().await?;
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
        self.leave(host);
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
}

//! More than a third of the servers are bad at a time: masters alone miss three of eight; then five of
//! eight are grey or slow. Masters name none of them to clients, which go by what they see; new files
//! are written all the time, a writer that reaches its servers goes on, and all are used again
//! (C28, `protocols-tail.md` 10.6).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Deref;
use std::time::Duration;

use client::{Appender, Client};
use runtime::sim::{HostId, Sim};
use wire::control::{ClusterReply, ClusterRequest};

use super::append::{check_content, seal_all};
use super::chase::tuning;
use super::entry::Scenario;
use super::files::{Files, POLICY};
use crate::audit;
use crate::cluster::{Cluster, Shape};
use crate::oracle::Oracle;

const SERVERS: usize = 8;
/// Servers that masters miss: more than a third.
const MISSED: usize = 3;
/// Servers that are grey or slow: two thirds, and a little less.
const BAD: usize = 5;
/// Writers that append before and after, and not while masters miss servers.
const QUIET: u64 = 4;
/// Masters know that servers are not reached, and clients what masters say, so long after it began.
const SEEN: Duration = Duration::from_secs(4);
/// A client that knows no server makes a file, appends and closes it in this time: while masters judge
/// servers, and while they cannot and it finds three good ones of eight by itself.
const PLACED: Duration = Duration::from_secs(12);
/// Latencies of the disk of a slow server.
const SLOW: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(50));
/// Every server has a replica of a new file so long after a fault.
const BACK: Duration = Duration::from_secs(30);
/// No client lists a disk by then: the longest stay in a list, and probes.
const FORGIVEN: Duration = Duration::from_secs(70);
const WHOLE: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(300);
const SECOND: Duration = Duration::from_secs(1);

pub(super) const SCENARIO: Scenario = Scenario {
    name: "many-bad",
    about: "three, then five of eight servers are missed by masters, grey or slow",
    run: |sim| Box::pin(run(sim)),
    marks: &[
        "many-bad: masters name none of many",
        "many-bad: masters that reach too few judge none",
        "many-bad: a server was slow",
        "many-bad: all servers are used again",
    ],
};

struct World {
    files: Files,
    /// A client that has used the servers all the time.
    client: Client,
    quiet: Vec<(String, Appender)>,
}

impl Deref for World {
    type Target = Files;

    fn deref(&self) -> &Files {
        &self.files
    }
}

async fn run(sim: Sim) -> Result<(), String> {
    let mut tuning = tuning(&sim);
    // A client knows the servers that it has used lately, and lists them as the product does.
    let usual = client::Config::default();
    (tuning.client.health_records, tuning.client.slow_min) = (usual.health_records, usual.slow_min);
    let open_grace = tuning.master.stream.open_grace;
    let shape = Shape { servers: SERVERS, ..Shape::default() };
    let cluster = Cluster::start(&sim, shape, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let files = Files::new(&cluster, Oracle::new());
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let mut world = World { files, client, quiet: Vec::new() };
    for number in 0..QUIET {
        let path = format!("/quiet{number}");
        let appender = world.create(&world.client, &path).await?;
        world.append(&appender, &path).await?;
        world.quiet.push((path, appender));
    }
    world.masters_miss_some(open_grace).await?;
    world.all_are_used_again().await?;
    world.most_are_bad().await?;
    world.all_are_used_again().await?;
    world.end().await
}

impl World {
    /// Servers at random; the first has a replica of a chunk that a quiet writer has open.
    async fn drawn(&self, count: usize) -> Result<Vec<HostId>, String> {
        let last = self.last_chunk(&self.quiet[0].0).await?;
        let first = last[self.draw(0, last.len() as u64 - 1) as usize];
        let mut others: Vec<_> = self.cluster.servers().to_vec();
        others.retain(|server| *server != first);
        let mut drawn = vec![first];
        while drawn.len() < count {
            drawn.push(others.swap_remove(self.draw(0, others.len() as u64 - 1) as usize));
        }
        Ok(drawn)
    }

    /// Masters alone miss more than a third of the servers, for longer than the time after which a dead
    /// server's writer would be taken for gone: its chunk would be fenced.
    async fn masters_miss_some(&self, open_grace: Duration) -> Result<(), String> {
        let missed = self.drawn(MISSED).await?;
        let length = open_grace + 10 * SECOND;
        tracing::info!(?missed, ?length, "many-bad: masters do not reach some servers");
        self.set_missed(&missed, self.cluster.masters(), true);
        let end = self.sim.elapsed() + length;
        self.sim.sleep(SEEN).await;
        if !self.masters_name_none().await? {
            return Err("masters name servers though many are unreached".to_owned());
        }
        self.sim.mark("many-bad: masters name none of many");
        let avoided: Vec<_> = missed.iter().map(|server| self.ip(*server)).collect();
        while self.sim.elapsed() < end {
            let places = self.placed_in_time().await?;
            if places.iter().any(|place| avoided.contains(place)) {
                return Err(format!("a new chunk is on {places:?}, masters miss {avoided:?}"));
            }
            self.none_is_pushed("while masters do not reach many servers")?;
            self.sim.sleep(PAUSE).await;
        }
        // Their writers reach all of them.
        self.append_to_quiet().await?;
        self.set_missed(&missed, self.cluster.masters(), false);
        Ok(())
    }

    /// Two thirds are grey or slow. Masters that reach fewer than half judge none.
    async fn most_are_bad(&self) -> Result<(), String> {
        let bad = self.drawn(BAD).await?;
        let grey = self.draw(MISSED as u64, BAD as u64) as usize;
        let length = Duration::from_secs(self.draw(10, 20));
        tracing::info!(?bad, grey, ?length, "many-bad: most servers are grey or slow");
        for (at, &server) in bad.iter().enumerate() {
            match at < grey {
                true => self.sim.set_grey(server, true),
                false => {
                    self.sim.with_disk_faults(server, |disk| disk.latency = SLOW);
                    self.sim.mark("many-bad: a server was slow");
                }
            }
        }
        let end = self.sim.elapsed() + length;
        self.sim.sleep(SEEN).await;
        if !self.masters_name_none().await? {
            return Err(format!("masters name servers though {grey} of {SERVERS} are grey"));
        }
        if 2 * (SERVERS - grey) < SERVERS - 1 {
            self.sim.mark("many-bad: masters that reach too few judge none");
        }
        while self.sim.elapsed() < end {
            self.placed_in_time().await?;
            self.none_is_pushed("while most servers are bad")?;
            self.sim.sleep(PAUSE).await;
        }
        for &server in &bad {
            self.sim.set_grey(server, false);
            self.sim.with_disk_faults(server, |disk| *disk = Default::default());
        }
        Ok(())
    }

    /// Whether the leading master names no server to clients.
    async fn masters_name_none(&self) -> Result<bool, String> {
        let request = ClusterRequest::Abnormal { known: None };
        let answer = self.client.cluster_ask(request).await.map_err(|error| error.to_string())?;
        match answer {
            ClusterReply::Abnormal(abnormal) => Ok(abnormal.servers.is_empty()),
            other => Err(format!("masters answer {other:?}")),
        }
    }

    fn none_is_pushed(&self, when: &str) -> Result<(), String> {
        match self.pushed(&self.client).as_slice() {
            [] => Ok(()),
            pushed => Err(format!("{when} a client has {pushed:?} out, which masters named")),
        }
    }

    /// A new file is made, written and closed in time.
    async fn placed_in_time(&self) -> Result<Vec<IpAddr>, String> {
        let begun = self.sim.elapsed();
        let places = self.new_file().await?;
        let took = self.sim.elapsed() - begun;
        match took <= PLACED {
            true => Ok(places),
            false => Err(format!("a new file on {places:?} takes {took:?}")),
        }
    }

    async fn append_to_quiet(&self) -> Result<(), String> {
        for (path, appender) in &self.quiet {
            self.append(appender, path).await?;
        }
        Ok(())
    }

    /// New chunks are placed on every server, and the client that has seen all has none listed.
    async fn all_are_used_again(&self) -> Result<(), String> {
        let (begun, mut used) = (self.sim.elapsed(), BTreeSet::new());
        while used.len() < SERVERS {
            if self.sim.elapsed() > begun + BACK {
                return Err(format!("{BACK:?} after the faults new chunks are only on {used:?}"));
            }
            used.extend(self.placed_in_time().await?);
            self.sim.sleep(PAUSE).await;
        }
        while !self.client.listed_disks().is_empty() {
            if self.sim.elapsed() > begun + FORGIVEN {
                let listed = self.client.listed_disks();
                return Err(format!("{FORGIVEN:?} after the faults a client lists {listed:?}"));
            }
            self.sim.sleep(SECOND / 2).await;
        }
        self.append_to_quiet().await?;
        self.cluster.until_whole(WHOLE).await?;
        self.sim.mark("many-bad: all servers are used again");
        Ok(())
    }

    async fn end(self) -> Result<(), String> {
        let World { files, quiet, .. } = self;
        for (path, appender) in quiet {
            appender.close().await.map_err(|error| format!("{path}: {error}"))?;
        }
        let cluster = &files.cluster;
        seal_all(cluster).await?;
        cluster.settle(TIMEOUT).await?;
        if let Some(violation) = cluster.violations().first() {
            return Err(violation.clone());
        }
        check_content(cluster, &files.oracle).await?;
        audit::until_clean(cluster, &files.oracle, TIMEOUT).await
    }
}

const _: () = assert!(MISSED * 3 > SERVERS && POLICY.copies as usize <= SERVERS - BAD);

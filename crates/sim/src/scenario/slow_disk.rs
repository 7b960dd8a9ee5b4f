//! One of six disks takes fifty times as long: masters name its server to clients, by the times that
//! chunkservers report, so that one which has not used it since places nothing there; it is named for as
//! long as it is slow, and no other is (C28, `protocols-tail.md` 10.1, 10.6).

use std::time::Duration;

use base::ServerId;
use client::{Client, ListReason, ListState};
use runtime::sim::Sim;
use wire::control::{ClusterReply, ClusterRequest};

use super::chase::{self, Load};
use super::entry::Scenario;
use super::files::Files;
use super::hedge::HEALTHY;
use crate::cluster::{Cluster, Shape};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "slow-disk",
    about: "a disk is slow by its own times: masters name its server until it is not",
    run: |sim| Box::pin(run(sim)),
    marks: &[
        "slow-disk: masters name its server",
        "slow-disk: no new chunk is there",
        "slow-disk: it is used again",
        "pushed: slow disks",
    ],
};

const SERVERS: usize = 6;
const SLOW: u32 = 50;
/// Files by which an idle client gets to know all servers, and those that it makes later.
const KNOWN: u64 = 24;
const NEW: u64 = 8;
/// Half of a disk's last operations are slow by then, masters have heard of it, and clients of them.
const NAMED: Duration = Duration::from_secs(20);
const PUSHED: Duration = Duration::from_secs(4);
/// Latencies that were slow count no more by then, whether or not others have come.
const FORGOTTEN: Duration = Duration::from_secs(75);
const WHOLE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(200);

async fn run(sim: Sim) -> Result<(), String> {
    let mut tuning = chase::tuning(&sim);
    // Clients know it of masters alone.
    tuning.client.slow_min = Duration::from_secs(3600);
    let cluster = Cluster::start(&sim, Shape { servers: SERVERS, ..Shape::default() }, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let load = Load::begin(&cluster).await?;
    let files = Files::new(&cluster, load.oracle.clone());
    let (_, idle) = cluster.client(None).await.map_err(|error| error.to_string())?;
    for number in 0..KNOWN {
        make(&files, &idle, &format!("/k{number}")).await?;
    }
    let slow = files.draw(0, SERVERS as u64 - 1) as usize;
    let host = cluster.servers()[slow];
    tracing::info!(slow, "slow-disk: begins");
    for (index, &host) in cluster.servers().iter().enumerate() {
        let times = if index == slow { SLOW } else { 1 };
        let latency = (HEALTHY.0 * times, HEALTHY.1 * times);
        sim.with_disk_faults(host, |disk| disk.latency = latency);
    }
    let end = sim.elapsed() + NAMED;
    let named = loop {
        match named(&idle).await?.as_slice() {
            [] if sim.elapsed() < end => sim.sleep(STEP).await,
            [server] => break *server,
            servers => return Err(format!("masters name {servers:?} as slow, one is")),
        }
    };
    sim.mark("slow-disk: masters name its server");
    sim.sleep(PUSHED).await;
    is_known(&files, &idle, slow, named)?;
    for number in 0..NEW {
        let path = format!("/s{number}");
        make(&files, &idle, &path).await?;
        if files.last_chunk(&path).await?.contains(&host) {
            return Err(format!("a new chunk of {path} is on a disk that masters name as slow"));
        }
    }
    sim.mark("slow-disk: no new chunk is there");
    load.verdict()?;
    sim.with_disk_faults(host, |disk| disk.latency = HEALTHY);
    let end = sim.elapsed() + FORGOTTEN;
    while !named_is_empty(&idle).await? || !idle.listed_disks().is_empty() {
        if sim.elapsed() > end {
            return Err(format!("{FORGOTTEN:?} after the fault a disk counts as slow"));
        }
        sim.sleep(STEP).await;
    }
    sim.sleep(PUSHED).await;
    for number in 0.. {
        let path = format!("/b{number}");
        make(&files, &idle, &path).await?;
        if files.last_chunk(&path).await?.contains(&host) {
            break;
        }
        if number == KNOWN {
            return Err(format!("none of {KNOWN} new chunks is on a disk that is slow no more"));
        }
        // What a heartbeat says of a server's load counts until the next one.
        sim.sleep(STEP).await;
    }
    sim.mark("slow-disk: it is used again");
    load.verdict()?;
    cluster.until_whole(WHOLE).await?;
    load.end(&cluster).await
}

/// A file of one append.
async fn make(files: &Files, client: &Client, path: &str) -> Result<(), String> {
    let appender = files.create(client, path).await?;
    files.append(&appender, path).await?;
    appender.close().await.map(drop).map_err(|error| format!("{path}: {error}"))
}

/// Servers that the leading master names as slow.
async fn named(client: &Client) -> Result<Vec<ServerId>, String> {
    let request = ClusterRequest::Abnormal { known: None };
    match client.cluster_ask(request).await.map_err(|error| error.to_string())? {
        ClusterReply::Abnormal(abnormal) => {
            let slow = abnormal.servers.iter().filter(|one| one.slow);
            Ok(slow.map(|one| one.server).collect())
        }
        other => Err(format!("masters answer {other:?}")),
    }
}

async fn named_is_empty(client: &Client) -> Result<bool, String> {
    Ok(named(client).await?.is_empty())
}

/// A client that has not used the slow disk since lists it, and it is the slow one.
fn is_known(files: &Files, idle: &Client, slow: usize, named: ServerId) -> Result<(), String> {
    let listed = idle.listed_disks();
    let expected = |it: &client::ListedDisk| {
        let of_masters = (it.state, it.reason) == (ListState::Slow, ListReason::MastersSlow);
        of_masters && it.server == Some(named)
    };
    let right =
        |it: &client::ListedDisk| files.host_of(it.target.addr) == files.cluster.servers()[slow];
    match listed.iter().all(|it| expected(it) && right(it)) && !listed.is_empty() {
        true => Ok(()),
        false => Err(format!("a client that masters have named {named} to lists {listed:?}")),
    }
}

//! Writers whose appends need a server that is late: it stops, is cut off from them, or its disk is slow,
//! beside files that want all copies, and two such servers beside files that want two of three. The
//! chunk ends, and the append goes into the next one, long before the server counts as gone (B15,
//! `protocols-tail.md` 10.3). A writer whose own host stands still ends none.

use std::time::Duration;

use client::limits::HEALTH_HALVING;
use runtime::sim::{HostId, Sim};
use wire::control::Policy;

use super::chase::{self, Load};
use super::entry::Scenario;
use crate::cluster::{Cluster, Shape};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "blocked",
    about: "appends that need a late server go into the next chunk in time",
    run: |sim| Box::pin(run(sim)),
    marks: &[
        "blocked: a server of strict files is late",
        "blocked: two servers are late",
        "blocked: the writers' host stood still",
        "writer: blocked",
    ],
};

/// Files want all of three servers, and the disk of one is slow.
pub(super) const FEW: Scenario = Scenario {
    name: "blocked-few",
    about: "of three servers one is slow: writers wait for it rather than acknowledge fewer copies",
    run: |sim| Box::pin(few(sim)),
    marks: &["blocked-few: a disk is slow"],
};

const SERVERS: usize = 7;
const FAULTS: u64 = 4;
/// A fault lasts so many milliseconds.
const LATE_MS: (u64, u64) = (300, 4_000);
/// Delay of every operation of a slow disk.
const SLOW_BY: Duration = Duration::from_millis(50);
/// The same in milliseconds where it is waited for: an append takes several, and never as long as a server
/// that is gone is waited for.
const FEW_SLOW_MS: (u64, u64) = (15, 30);
/// Three servers have room for what is written in that time.
const FEW_FAULTS: u64 = 2;
const FEW_ACK_WITHIN: Duration = Duration::from_secs(1);
const PAUSES: u64 = 6;
/// The writers' host stands still for so many milliseconds.
const PAUSE_MS: (u64, u64) = (25, 200);
const WHOLE_WITHIN: Duration = Duration::from_secs(20);

async fn run(sim: Sim) -> Result<(), String> {
    let shape = Shape { servers: SERVERS, ..Shape::default() };
    let cluster = Cluster::start(&sim, shape, chase::tuning(&sim));
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let policies = [Policy::plain(3, 3), Policy::plain(3, 2)];
    let load = Load::begin_with(&cluster, &policies).await?;
    sim.sleep(chase::USUAL).await;
    load.verdict()?;
    for _ in 0..FAULTS {
        let both = load.draw(0, 1) == 0;
        sim.mark(match both {
            true => "blocked: two servers are late",
            false => "blocked: a server of strict files is late",
        });
        let servers = cluster.servers();
        let first = load.draw(0, servers.len() as u64 - 1) as usize;
        let late: Vec<_> = (0..1 + usize::from(both))
            .map(|at| (servers[(first + at) % servers.len()], load.draw(0, 2)))
            .collect();
        let length = Duration::from_millis(load.draw(LATE_MS.0, LATE_MS.1));
        late.iter().for_each(|&(host, how)| harm(&load, host, how, Some(length)));
        sim.sleep(length).await;
        late.iter().for_each(|&(host, how)| harm(&load, host, how, None));
        load.verdict()?;
        cluster.until_whole(WHOLE_WITHIN).await?;
        // What its first victims were seen to take is no longer what is usual.
        sim.sleep(2 * HEALTH_HALVING).await;
    }
    stand_still(&load).await?;
    load.end(&cluster).await
}

async fn few(sim: Sim) -> Result<(), String> {
    let shape = Shape { servers: 3, ..Shape::default() };
    let cluster = Cluster::start(&sim, shape, chase::tuning(&sim));
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let load = Load::begin_with(&cluster, &[Policy::plain(3, 3)]).await?;
    load.ack_within.set(FEW_ACK_WITHIN);
    sim.sleep(chase::USUAL).await;
    for _ in 0..FEW_FAULTS {
        sim.mark("blocked-few: a disk is slow");
        let host = cluster.servers()[load.draw(0, 2) as usize];
        let by = Duration::from_millis(load.draw(FEW_SLOW_MS.0, FEW_SLOW_MS.1));
        sim.with_disk_faults(host, |disk| (disk.stall_one_in, disk.stall) = (1, by));
        sim.sleep(Duration::from_millis(load.draw(LATE_MS.0, LATE_MS.1))).await;
        sim.with_disk_faults(host, |disk| *disk = Default::default());
        load.verdict()?;
        sim.sleep(HEALTH_HALVING).await;
    }
    match load.client.totals().chunks_blocked {
        0 => load.end(&cluster).await,
        ended => {
            Err(format!("{ended} chunks ended for a slow disk, though no other one was there"))
        }
    }
}

/// Makes a server late for that long, or ends it.
fn harm(load: &Load, host: HostId, how: u64, length: Option<Duration>) {
    match (how, length) {
        (0, Some(length)) => load.sim.pause(host, length),
        (0, None) => {}
        (1, length) => load.sim.set_blocked(load.host, host, length.is_some()),
        (_, Some(_)) => load.sim.with_disk_faults(host, |disk| {
            (disk.stall_one_in, disk.stall) = (1, SLOW_BY);
        }),
        (_, None) => load.sim.with_disk_faults(host, |disk| *disk = Default::default()),
    }
}

/// The writers' host stands still for moments: that is no server's fault.
async fn stand_still(load: &Load) -> Result<(), String> {
    let bound = load.ack_within.replace(Duration::from_secs(1));
    let before = load.client.totals().chunks_blocked;
    for _ in 0..PAUSES {
        load.sim.pause(load.host, Duration::from_millis(load.draw(PAUSE_MS.0, PAUSE_MS.1)));
        load.sim.sleep(Duration::from_millis(load.draw(300, 600))).await;
    }
    load.sim.mark("blocked: the writers' host stood still");
    load.ack_within.set(bound);
    match load.client.totals().chunks_blocked - before {
        0 => load.verdict(),
        ended => Err(format!("{ended} chunks ended because the writers' own host stood still")),
    }
}

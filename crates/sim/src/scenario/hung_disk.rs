//! A disk answers no operation any more, while its server sends heartbeats and answers pings: no append
//! waits for it, what it has is made again elsewhere after the grace of a silent server, and it is used
//! again when it answers (`protocols.md` 2.4, `protocols-tail.md` 10.6).

use std::time::Duration;

use chunkstore::ChunkStore;
use runtime::sim::Sim;

use super::chase::{self, Load};
use super::entry::Scenario;
use crate::cluster::{Cluster, Shape};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "hung-disk",
    about: "a disk hangs while its server is well: its replicas are made again elsewhere",
    run: |sim| Box::pin(run(sim)),
    marks: &[
        "hung-disk: all is elsewhere",
        "hung-disk: it is used again",
        "chunkserver: a disk hangs",
        "chunkserver: a disk that hung answers",
    ],
};

/// A disk that has answered nothing for this long hangs, and masters hear of it with a heartbeat.
const SEEN: Duration = Duration::from_secs(8);
/// What it has is elsewhere so long after the grace of a silent server: a few scans, and copies.
const REPAIRED: Duration = Duration::from_secs(12);
/// It gets chunks again by then.
const BACK: Duration = Duration::from_secs(20);
const WHOLE: Duration = Duration::from_secs(60);
/// A chunk that has ended gets its last copy by then.
const CHASED: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(100);

async fn run(sim: Sim) -> Result<(), String> {
    let tuning = chase::tuning(&sim);
    let grace = tuning.master.stream.dead_grace;
    let cluster = Cluster::start(&sim, Shape { servers: 6, ..Shape::default() }, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let load = Load::begin(&cluster).await?;
    sim.sleep(Duration::from_millis(load.draw(1_000, 4_000))).await;
    let server = load.draw(0, cluster.servers().len() as u64 - 1) as usize;
    let lasts = SEEN + grace + REPAIRED;
    let hanging = hang(sim.clone(), cluster.clone(), server, lasts + CHASED);
    let hanging = sim.spawn("hang", hanging);
    sim.sleep(lasts).await;
    is_elsewhere(&sim, &cluster, server).await?;
    hanging.await.map_err(|_| "the disk hangs for ever".to_owned())?;
    load.verdict()?;
    sim.mark("hung-disk: all is elsewhere");
    cluster.until_whole(WHOLE).await?;
    is_used_again(&sim, &cluster, server).await?;
    load.verdict()?;
    // Now and then for a moment only: nothing follows.
    let server = load.draw(0, cluster.servers().len() as u64 - 1) as usize;
    let moment = Duration::from_millis(load.draw(200, 3_000));
    hang(sim.clone(), cluster.clone(), server, moment).await;
    cluster.until_whole(WHOLE).await?;
    load.end(&cluster).await
}

/// No operation of a server's disk ends for this long; those that began end then.
async fn hang(sim: Sim, cluster: Cluster, server: usize, lasts: Duration) {
    let host = cluster.servers()[server];
    let end = sim.elapsed() + lasts;
    tracing::info!(server, ?lasts, "hung-disk: hangs");
    while sim.elapsed() < end {
        let left = end - sim.elapsed();
        sim.with_disk_faults(host, |disk| (disk.stall_one_in, disk.stall) = (1, left));
        sim.sleep(STEP.min(left)).await;
    }
    sim.with_disk_faults(host, |disk| *disk = Default::default());
}

/// All copies are on other servers, but of chunks that have ended just now.
async fn is_elsewhere(sim: &Sim, cluster: &Cluster, server: usize) -> Result<(), String> {
    let end = sim.elapsed() + CHASED;
    loop {
        let Err(what) = cluster.check_copies_without(server) else { return Ok(()) };
        if sim.elapsed() + STEP > end {
            return Err(format!("beside a disk that hangs: {what}"));
        }
        sim.sleep(STEP).await;
    }
}

/// The disk gets replicas of new chunks.
async fn is_used_again(sim: &Sim, cluster: &Cluster, server: usize) -> Result<(), String> {
    let newest = || {
        let stores = cluster.stores(server);
        let chunks = stores.iter().flat_map(|(_, store)| store.list(None, usize::MAX));
        chunks.filter(|info| !info.stat.state.is_tombstone()).map(|info| info.chunk).max()
    };
    let (before, end) = (newest(), sim.elapsed() + BACK);
    while newest() <= before {
        if sim.elapsed() > end {
            return Err(format!("the disk has no new chunk {BACK:?} after it answers again"));
        }
        sim.sleep(STEP).await;
    }
    sim.mark("hung-disk: it is used again");
    Ok(())
}

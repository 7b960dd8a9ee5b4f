//! Readers of files whose writers are cut off from one chunkserver, which readers reach: its replicas
//! show less than others. Another one is slow for moments, so that readers ask several replicas at
//! once. No read goes back, and none ends early (`protocols-tail.md` 8.11).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use runtime::sim::Sim;

use super::chase::{self, Load};
use super::entry::Scenario;
use super::readers::{Readers, Shared};
use crate::cluster::{Cluster, Shape};
use crate::nemesis::NONE;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "chase-tail",
    about: "writers leave a replica that readers reach, and readers ask several replicas at once",
    run: |sim| Box::pin(run(sim)),
    marks: &[
        "writer: replica left",
        "reader: a replica shows less than was shown",
        "reader: backup read won",
        "reader: end of an open tail",
        "reader: waits for the writer's word",
    ],
};

const READERS: usize = 3;
const FAULTS: u64 = 4;
/// Writers are cut off from a server for so many milliseconds.
const CUT_MS: (u64, u64) = (300, 4_000);
/// Pause of a disk that is slow for moments, below what holds up an append.
const STALL: Duration = Duration::from_millis(10);
const WHOLE_WITHIN: Duration = Duration::from_secs(20);

async fn run(sim: Sim) -> Result<(), String> {
    let cluster = Cluster::start(&sim, Shape::default(), chase::tuning(&sim));
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let load = Load::begin(&cluster).await?;
    let verdict = Rc::new(RefCell::new(None));
    let shared = Shared {
        oracle: load.oracle.clone(),
        verdict: verdict.clone(),
        writers_live: true,
        faults: NONE,
    };
    let readers = Readers::start(&cluster, shared, READERS).await?;
    sim.sleep(chase::USUAL).await;
    for _ in 0..FAULTS {
        let servers = cluster.servers();
        let cut = load.draw(0, servers.len() as u64 - 1) as usize;
        let slow = servers[(cut + 1) % servers.len()];
        sim.set_blocked(load.host, servers[cut], true);
        sim.with_disk_faults(slow, |disk| (disk.stall_one_in, disk.stall) = (5, STALL));
        sim.sleep(Duration::from_millis(load.draw(CUT_MS.0, CUT_MS.1))).await;
        sim.set_blocked(load.host, servers[cut], false);
        sim.with_disk_faults(slow, |disk| *disk = Default::default());
        cluster.until_whole(WHOLE_WITHIN).await?;
        if let Some(violation) = verdict.borrow().clone() {
            return Err(violation);
        }
        load.verdict()?;
    }
    load.end(&cluster).await?;
    readers.finish().await
}

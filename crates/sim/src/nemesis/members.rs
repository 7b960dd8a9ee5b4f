//! Changes of the number of masters under load: all that can be are added, a minority of them loses
//! power, and as many are removed as were added, founders too.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join;
use runtime::sim::{CrashMode, Sim};

use crate::cluster::Cluster;

/// Between two changes in milliseconds, least and most.
const PAUSE_MS: (u64, u64) = (100, 1_500);
/// For how long a master is down in milliseconds, least and most.
const DOWN_MS: (u64, u64) = (10, 2_000);

struct Work {
    sim: Sim,
    cluster: Cluster,
    stop: Rc<Cell<bool>>,
}

/// Adds masters and removes masters until asked to stop.
pub(super) async fn change_number(cluster: Cluster, stop: Rc<Cell<bool>>) {
    let work = Work { sim: cluster.sim().clone(), cluster, stop };
    while !work.stop.get() {
        if let Err(why) = work.grow_and_shrink().await {
            return work.cluster.violation(why);
        }
    }
}

impl Work {
    async fn grow_and_shrink(&self) -> Result<(), String> {
        let founders = self.cluster.shape().masters;
        while let Some(&index) = self.cluster.member_masters(false).first() {
            if self.pause(PAUSE_MS).await {
                return Ok(());
            }
            let mark = "nemesis: a master crashes while another is added";
            let beside = self.crash_beside(index, mark);
            let added = join(self.cluster.add_master(index), beside);
            added.await.0.map_err(|why| format!("master {index} is not added: {why}"))?;
        }
        self.sim.mark("nemesis: five masters");
        self.crash_minority().await;
        while self.cluster.member_masters(true).len() > founders {
            if self.pause(PAUSE_MS).await {
                return Ok(());
            }
            let index = self.pick(&self.cluster.member_masters(true));
            let mark = "nemesis: a master crashes while another is removed";
            let beside = self.crash_beside(index, mark);
            let removed = join(self.cluster.remove_master(index), beside);
            removed.await.0.map_err(|why| format!("master {index} is not removed: {why}"))?;
            if index < founders {
                self.sim.mark("nemesis: a founding master is removed");
            }
        }
        self.sim.mark("nemesis: three masters again");
        Ok(())
    }

    fn pick(&self, indexes: &[usize]) -> usize {
        self.sim.with_rng(|rng| *rng.pick(indexes))
    }

    /// True when it is time to stop.
    async fn pause(&self, (low_ms, high_ms): (u64, u64)) -> bool {
        let length = self.sim.with_rng(|rng| rng.between(low_ms, high_ms));
        self.sim.sleep(Duration::from_millis(length)).await;
        let added = self.cluster.shape().masters;
        if self.cluster.leading_master().is_some_and(|leader| leader >= added) {
            self.sim.mark("nemesis: an added master leads");
        }
        self.stop.get()
    }

    /// One time in two, with a mark, another master crashes while the one at `index` is added or removed.
    async fn crash_beside(&self, index: usize, mark: &'static str) {
        if self.sim.with_rng(|rng| rng.one_in(2)) {
            return;
        }
        let mut others = self.cluster.member_masters(true);
        others.retain(|&other| other != index);
        let other = self.pick(&others);
        self.pause((1, 300)).await;
        self.cluster.crash_master(other, CrashMode::Power);
        self.sim.mark(mark);
        self.pause(DOWN_MS).await;
        self.cluster.boot_master(other);
    }

    /// All but a majority lose power at once.
    async fn crash_minority(&self) {
        let mut members = self.cluster.member_masters(true);
        let down: Vec<_> = (0..(members.len() - 1) / 2)
            .map(|_| {
                members
                    .swap_remove(self.sim.with_rng(|rng| rng.below(members.len() as u64)) as usize)
            })
            .collect();
        down.iter().for_each(|&index| self.cluster.crash_master(index, CrashMode::Power));
        self.sim.mark("nemesis: two of five masters lose power");
        self.pause(DOWN_MS).await;
        down.iter().for_each(|&index| self.cluster.boot_master(index));
    }
}

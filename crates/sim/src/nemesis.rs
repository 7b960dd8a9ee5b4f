//! Faults within a budget that the system must survive.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use runtime::sim::{CrashMode, Sim};

use crate::cluster::{Cluster, DISK_ROOT};

/// Which faults happen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Chunkservers crash, one at a time, and come back.
    pub server_crashes: bool,
    /// Masters crash, a minority at a time, and come back.
    pub master_crashes: bool,
    /// Frames are lost, late, doubled and overtaken; connections are reset.
    pub bad_network: bool,
    /// One-way partitions between a server and the rest.
    pub partitions: bool,
    /// Disks stall; hosts pause; clocks drift.
    pub slowness: bool,
    /// One chunkserver's disk is replaced by an empty one.
    pub wiped_disks: bool,
    /// All hosts of the cluster lose power at once.
    pub blackouts: bool,
}

/// Injects faults until told to stop, then ends them.
pub struct Nemesis {
    stop: Rc<Cell<bool>>,
    task: runtime::JoinHandle<()>,
}

impl Nemesis {
    /// Starts injecting.
    pub fn start(cluster: &Cluster, faults: Faults) -> Nemesis {
        let stop = Rc::new(Cell::new(false));
        let sim = cluster.sim().clone();
        let work = Work { sim: sim.clone(), cluster: cluster.clone(), faults, stop: stop.clone() };
        Nemesis { stop, task: sim.spawn("nemesis", work.run()) }
    }

    /// Ends the injection and waits until what it took down is up again.
    pub async fn stop(self) {
        self.stop.set(true);
        let _ = self.task.await;
    }
}

struct Work {
    sim: Sim,
    cluster: Cluster,
    faults: Faults,
    stop: Rc<Cell<bool>>,
}

impl Work {
    async fn run(self) {
        if self.faults.bad_network {
            self.sim.with_net_faults(|net| {
                net.drop_one_in = 200;
                net.delay_one_in = 50;
                net.duplicate_one_in = 100;
                net.reset_one_in = 2000;
            });
        }
        while !self.stop.get() {
            self.pause(50, 1500).await;
            let mut choices: Vec<u32> = Vec::new();
            let mut offer = |wanted: bool, number: u32| {
                if wanted {
                    choices.push(number);
                }
            };
            offer(self.faults.server_crashes, 0);
            offer(self.faults.master_crashes, 1);
            offer(self.faults.partitions, 2);
            offer(self.faults.slowness, 3);
            offer(self.faults.wiped_disks, 4);
            offer(self.faults.blackouts, 5);
            if choices.is_empty() {
                continue;
            }
            match self.sim.with_rng(|rng| *rng.pick(&choices)) {
                0 => self.crash_server().await,
                1 => self.crash_master().await,
                2 => self.partition().await,
                3 => self.slow_down().await,
                4 => self.wipe().await,
                _ => self.blackout().await,
            }
        }
        self.sim.heal_network();
        self.cluster.boot_all();
    }

    async fn pause(&self, low_ms: u64, high_ms: u64) {
        let length = self.sim.with_rng(|rng| rng.between(low_ms, high_ms));
        self.sim.sleep(Duration::from_millis(length)).await;
    }

    fn draw(&self, bound: usize) -> usize {
        self.sim.with_rng(|rng| rng.below(bound as u64) as usize)
    }

    fn mode(&self) -> CrashMode {
        if self.sim.with_rng(|rng| rng.one_in(2)) { CrashMode::Power } else { CrashMode::Process }
    }

    async fn crash_server(&self) {
        let index = self.draw(self.cluster.servers().len());
        self.cluster.crash_server(index, self.mode());
        self.pause(10, 4000).await;
        self.cluster.boot_server(index);
    }

    async fn crash_master(&self) {
        let index = self.draw(self.cluster.masters().len());
        self.cluster.crash_master(index, self.mode());
        self.pause(10, 3000).await;
        self.cluster.boot_master(index);
    }

    async fn partition(&self) {
        let hosts: Vec<_> =
            self.cluster.servers().iter().chain(self.cluster.masters()).copied().collect();
        let lonely = hosts[self.draw(hosts.len())];
        let (inward, outward) = (self.draw(3) != 0, self.draw(3) != 0);
        for &other in hosts.iter().filter(|&&other| other != lonely) {
            self.sim.set_blocked(other, lonely, inward);
            self.sim.set_blocked(lonely, other, outward);
        }
        self.pause(50, 3000).await;
        for &other in hosts.iter().filter(|&&other| other != lonely) {
            self.sim.set_blocked(other, lonely, false);
            self.sim.set_blocked(lonely, other, false);
        }
    }

    async fn slow_down(&self) {
        let hosts: Vec<_> =
            self.cluster.servers().iter().chain(self.cluster.masters()).copied().collect();
        let host = hosts[self.draw(hosts.len())];
        match self.draw(3) {
            0 => {
                self.sim.with_disk_faults(host, |disk| disk.stall_one_in = 10);
                self.pause(100, 2000).await;
                self.sim.with_disk_faults(host, |disk| disk.stall_one_in = 0);
            }
            1 => {
                let length = self.sim.with_rng(|rng| rng.between(10, 2000));
                self.sim.pause(host, Duration::from_millis(length));
                self.sim.sleep(Duration::from_millis(length)).await;
            }
            _ => {
                let ppm = self.sim.with_rng(|rng| rng.between(0, 20_000)) as i64 - 10_000;
                self.sim.set_clock_drift(host, ppm);
            }
        }
    }

    /// Replaces a disk by an empty one, and waits for repair: more losses at once than copies
    /// are beyond the budget.
    async fn wipe(&self) {
        let index = self.draw(self.cluster.servers().len());
        self.cluster.crash_server(index, CrashMode::Power);
        self.sim.wipe(self.cluster.servers()[index], DISK_ROOT.as_ref());
        self.pause(10, 1000).await;
        self.cluster.boot_server(index);
        self.pause(20_000, 30_000).await;
    }

    async fn blackout(&self) {
        for index in 0..self.cluster.masters().len() {
            self.cluster.crash_master(index, CrashMode::Power);
        }
        for index in 0..self.cluster.servers().len() {
            self.cluster.crash_server(index, CrashMode::Power);
        }
        self.pause(10, 1000).await;
        self.cluster.boot_all();
    }
}

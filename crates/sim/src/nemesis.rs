//! Faults within a budget that the system must survive.

mod clients;
mod empty;
mod media;
mod members;
mod restarts;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::Kind;
use runtime::sim::{CrashMode, HostId, Sim};

use crate::cluster::Cluster;
pub(crate) use clients::{Cut, Way, keep_cutting};

/// Wait of the next wipe for the repair of the one before.
const WIPE_TIMEOUT: Duration = Duration::from_secs(120);
const HOUR_MS: u64 = 3_600_000;

/// Faults that happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Chunkservers crash or are stopped, one at a time, and come back.
    pub server_crashes: bool,
    /// Masters crash or are stopped, a minority at a time, and come back.
    pub master_crashes: bool,
    /// Frames are lost, late, doubled and overtaken; connections are reset.
    pub bad_network: bool,
    /// One-way partitions between a server and the rest.
    pub partitions: bool,
    /// Disks stall; hosts pause; clocks drift.
    pub slowness: bool,
    /// Clocks drift by up to a hundredth and wall clocks are set, within the skew that tokens
    /// allow; hosts pause.
    pub bad_clocks: bool,
    /// One chunkserver's disk flips bits, cannot read sectors, loses durable writes and puts
    /// them elsewhere.
    pub rotten_disk: bool,
    /// Disks of chunkservers have no room for a while, or are very slow.
    pub bad_disks: bool,
    /// One chunkserver's disk is replaced by an empty one, which an operator formats before the
    /// server starts again, or long after.
    pub wiped_disks: bool,
    /// All hosts of the cluster lose power at once.
    pub blackouts: bool,
    /// Clients are cut from chunkservers and masters, in one direction or both; servers that
    /// their peers reach are cut from all clients. Beside all other faults.
    pub client_cuts: bool,
    /// The same from masters alone, for clients that ask no others.
    pub master_cuts: bool,
    /// Operations of one chunkserver's disk fail, once or for a while; a server whose store has
    /// failed starts again.
    pub io_errors: bool,
    /// The same on one master's disk, which also fills up.
    pub master_disks: bool,
    /// A master's disk is lost: the master takes no part, and an operator replaces it.
    pub lost_masters: bool,
    /// One master's disk rots, has unreadable sectors and loses writes; an operator replaces the
    /// master.
    pub rotten_masters: bool,
    /// The number of masters changes, while one crashes now and then; two of five lose power.
    pub changing_masters: bool,
    /// A disk of a chunkserver is not there at one start and back at the next.
    pub absent_disks: bool,
    /// Sectors of one server cannot be read while another server is down.
    pub latent_errors: bool,
}

/// No faults.
pub(crate) const NONE: Faults = Faults {
    server_crashes: false,
    master_crashes: false,
    bad_network: false,
    partitions: false,
    slowness: false,
    bad_clocks: false,
    rotten_disk: false,
    bad_disks: false,
    wiped_disks: false,
    blackouts: false,
    client_cuts: false,
    master_cuts: false,
    io_errors: false,
    master_disks: false,
    absent_disks: false,
    latent_errors: false,
    lost_masters: false,
    rotten_masters: false,
    changing_masters: false,
};

impl Faults {
    /// Whether a client's operation may end with an error of this kind by these faults. No fault
    /// makes bytes corrupt, requests invalid, or names come and go.
    pub fn explain(self, kind: Kind) -> bool {
        match kind {
            Kind::Retry | Kind::Unknown => self != Faults::default(),
            Kind::Full => self.bad_disks || self.io_errors,
            // A writer that is cut off for as long as two cuts may last counts as gone.
            Kind::Fenced => self.client_cuts,
            Kind::Refresh
            | Kind::Reroute
            | Kind::Corrupt
            | Kind::NotFound
            | Kind::Exists
            | Kind::Invalid => false,
        }
    }

    /// Whether every replica stays what its writer and its masters have made it: chunkservers are
    /// up, reached and never paused, and their disks do what they are asked.
    pub fn spare_replicas(self) -> bool {
        let Faults { master_crashes, .. } = self;
        self == Faults { master_crashes, ..Faults::default() }
    }
}

/// Injects faults until it is stopped, then ends them.
pub struct Nemesis {
    stop: Rc<Cell<bool>>,
    tasks: Vec<runtime::JoinHandle<()>>,
}

impl Nemesis {
    /// Starts injecting.
    pub fn start(cluster: &Cluster, faults: Faults) -> Nemesis {
        let stop = Rc::new(Cell::new(false));
        let sim = cluster.sim().clone();
        let rotten = sim.with_rng(|rng| rng.below(cluster.servers().len() as u64)) as usize;
        let work = Work {
            sim: sim.clone(),
            cluster: cluster.clone(),
            faults,
            rotten,
            rotten_master: Cell::new(None),
            stop: stop.clone(),
        };
        let mut tasks = vec![sim.spawn("nemesis", work.run())];
        if faults.client_cuts || faults.master_cuts {
            let cuts = clients::cut_clients(cluster.clone(), !faults.client_cuts, stop.clone());
            tasks.push(sim.spawn("nemesis of clients", cuts));
        }
        if faults.changing_masters {
            let changes = members::change_number(cluster.clone(), stop.clone());
            tasks.push(sim.spawn("nemesis of members", changes));
        }
        Nemesis { stop, tasks }
    }

    /// Ends the injection and waits until all that it took down is up again.
    pub async fn stop(self) {
        self.stop.set(true);
        for task in self.tasks {
            let _ = task.await;
        }
    }
}

struct Work {
    sim: Sim,
    cluster: Cluster,
    faults: Faults,
    /// The chunkserver whose disk rots: one, as redundancy allows.
    rotten: usize,
    /// The master whose disk rots, until it is replaced.
    rotten_master: Cell<Option<usize>>,
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
            offer(self.faults.bad_clocks, 6);
            offer(self.faults.rotten_disk, 7);
            offer(self.faults.bad_disks, 8);
            offer(self.faults.io_errors, 9);
            offer(self.faults.master_disks, 10);
            offer(self.faults.absent_disks, 11);
            offer(self.faults.latent_errors, 12);
            offer(self.faults.lost_masters, 13);
            offer(self.faults.rotten_masters, 14);
            if choices.is_empty() {
                continue;
            }
            match self.sim.with_rng(|rng| *rng.pick(&choices)) {
                0 => self.restart_server().await,
                1 => self.restart_master().await,
                2 => self.partition().await,
                3 => self.slow_down().await,
                4 => self.wipe().await,
                5 => self.blackout().await,
                6 => self.bad_clock().await,
                7 => self.rot().await,
                8 => self.bad_disk().await,
                9 => self.io_errors().await,
                10 => self.master_disk().await,
                11 => self.absent_disk().await,
                12 => self.latent_error().await,
                13 => self.lose_master().await,
                _ => self.rot_master().await,
            }
            self.cluster.tend_masters();
        }
        self.sim.heal_network();
        self.cluster.boot_all();
    }

    async fn pause(&self, low_ms: u64, high_ms: u64) {
        let length = self.sim.with_rng(|rng| rng.between(low_ms, high_ms));
        self.sim.sleep(Duration::from_millis(length)).await;
    }

    /// Any host of the cluster.
    fn any_host(&self) -> HostId {
        let (servers, masters) = (self.cluster.servers(), self.cluster.masters());
        let index = self.draw(servers.len() + masters.len());
        *servers.iter().chain(masters).nth(index).expect("drawn below the count")
    }

    fn draw(&self, bound: usize) -> usize {
        self.sim.with_rng(|rng| rng.below(bound as u64) as usize)
    }

    fn mode(&self) -> CrashMode {
        if self.sim.with_rng(|rng| rng.one_in(2)) { CrashMode::Power } else { CrashMode::Process }
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
        let host = self.any_host();
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

    async fn bad_clock(&self) {
        let host = self.any_host();
        match self.draw(3) {
            0 => {
                let length = self.sim.with_rng(|rng| rng.between(10, 3000));
                self.sim.pause(host, Duration::from_millis(length));
                self.sim.sleep(Duration::from_millis(length)).await;
            }
            1 => {
                let ppm = self.sim.with_rng(|rng| rng.between(0, 20_000)) as i64 - 10_000;
                self.sim.set_clock_drift(host, ppm);
            }
            // Rights do not rest on wall clocks, however wrong.
            _ => {
                let most = [2_000, 3 * HOUR_MS, 100 * HOUR_MS][self.draw(3)];
                let millis = self.sim.with_rng(|rng| rng.between(0, 2 * most)) as i64 - most as i64;
                self.sim.set_wall_skew(host, millis);
            }
        }
    }

    /// Damages the disk that rots.
    async fn rot(&self) {
        let host = self.cluster.servers()[self.rotten];
        match self.draw(4) {
            kind @ 0..=1 => {
                let path = Cluster::disk_path(self.draw(self.cluster.shape().disks));
                let files = self.sim.files(host);
                let Some(&(_, len)) = files.iter().find(|(file, _)| *file == path) else { return };
                for _ in 0..1 + self.draw(64) {
                    let at = self.sim.with_rng(|rng| rng.below(len));
                    match kind {
                        0 => drop(self.sim.flip_bit(host, &path, at, self.draw(8) as u8)),
                        _ => self.sim.make_unreadable(host, &path, at),
                    }
                }
            }
            2 => self.sim.with_disk_faults(host, |disk| disk.lost_one_in = 20),
            _ => self.sim.with_disk_faults(host, |disk| disk.misdirected_one_in = 20),
        }
        self.pause(100, 1000).await;
        self.sim.with_disk_faults(host, |disk| {
            (disk.lost_one_in, disk.misdirected_one_in) = (0, 0);
        });
    }

    /// Makes the disk of some chunkserver slow, or leaves it little room to grow.
    async fn bad_disk(&self) {
        let host = self.cluster.servers()[self.draw(self.cluster.servers().len())];
        if self.draw(2) == 0 {
            self.sim.with_disk_faults(host, |disk| {
                (disk.stall_one_in, disk.stall) = (5, Duration::from_millis(100));
            });
        } else {
            let used: u64 = self.sim.files(host).iter().map(|(_, len)| len).sum();
            let room = self.sim.with_rng(|rng| rng.below(8 << 20));
            self.sim.with_disk_faults(host, |disk| disk.capacity = used + room);
        }
        self.pause(300, 3000).await;
        self.sim.with_disk_faults(host, |disk| *disk = Default::default());
    }

    /// All lose power, while their disks are slow: many writes are in flight.
    async fn blackout(&self) {
        for &host in self.cluster.servers() {
            self.sim.with_disk_faults(host, |disk| disk.stall_one_in = 4);
        }
        self.pause(20, 80).await;
        for &host in self.cluster.servers() {
            self.sim.with_disk_faults(host, |disk| disk.stall_one_in = 0);
        }
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

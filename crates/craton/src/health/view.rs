//! Health of processes and disks, as observers see it.

use std::net::SocketAddr;
use std::time::Duration;

use base::DiskId;
use serde::Serialize;
use wire::control::ServerStatus;

use super::probes::{self, Probed};
use crate::args::RoleName;

/// Observer of what this command finds out itself.
const OWN: &str = "this command";
/// Class of what masters and block managers go by.
pub(super) const SIGNS: &str = "heartbeats and pings";

/// Health of the processes of a cluster.
#[derive(Serialize, Clone, Debug, Default)]
pub struct Health {
    /// Processes, by role and ID.
    pub servers: Vec<Server>,
    /// Views that could not be had, and why.
    pub errors: Vec<String>,
}

/// Grade of a process or disk, the best first.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It serves.
    Good,
    /// It serves, and an operator has it emptied.
    Draining,
    /// It serves, and takes much longer than others.
    Slow,
    /// It says that it lives, and does not answer.
    Unreached,
    /// It does not serve.
    Out,
}

/// A process.
#[derive(Serialize, Clone, Debug)]
pub struct Server {
    /// Its ID.
    pub id: String,
    /// Its role.
    pub role: RoleName,
    /// Its address.
    pub addr: SocketAddr,
    /// Its state: the worst that an observer reports.
    pub state: State,
    /// Cause, unless it is good.
    pub reason: Option<String>,
    /// Seconds for which that is known to be so.
    pub since_s: Option<u64>,
    /// What the cluster does about it.
    pub action: Option<&'static str>,
    /// Seconds until it is probed again by an observer that found it not good.
    pub next_probe_s: Option<u64>,
    /// Disks of a chunkserver.
    pub disks: Vec<Disk>,
    /// What each observer says.
    pub seen_by: Vec<View>,
}

/// A disk.
#[derive(Serialize, Clone, Debug)]
pub struct Disk {
    /// Its incarnation; empty for one that was never opened.
    pub id: String,
    /// Its directory or device.
    pub path: String,
    /// Its state.
    pub state: State,
    /// Cause, unless it is good.
    pub reason: Option<String>,
}

/// One observer's view of a process, or of one of its disks.
#[derive(Serialize, Clone, Debug)]
pub struct View {
    /// Who sees it: the ID of a process, or `this command`.
    pub observer: String,
    /// How it is reached: an address, and a disk if it is about one.
    pub link: String,
    /// Its state for the observer.
    pub state: State,
    /// Calls that the times are of.
    pub class: String,
    /// Latency that half of them did not exceed, microseconds.
    pub p50_us: Option<u64>,
    /// Latency that 99 of 100 did not exceed.
    pub p99_us: Option<u64>,
    /// Age of the oldest that waits.
    pub oldest_us: Option<u64>,
}

impl View {
    /// Without times.
    pub(super) fn of(observer: &str, link: String, state: State, class: &str) -> View {
        let (observer, class) = (observer.to_owned(), class.to_owned());
        View { observer, link, state, class, p50_us: None, p99_us: None, oldest_us: None }
    }
}

impl Disk {
    pub(super) fn blame(&mut self, state: State, reason: Option<String>) {
        if state > self.state {
            (self.state, self.reason) = (state, reason);
        }
    }
}

impl Server {
    /// What its disks take for operations, by its heartbeats. Those of a dead one are not shown: they say
    /// nothing of now.
    pub(super) fn add_device_times(&mut self, status: &ServerStatus) {
        for disk in status.disks.iter().filter(|_| status.alive) {
            let is_slow = status.slow_disks.contains(&disk.disk);
            let state = if is_slow { State::Slow } else { State::Good };
            for times in &disk.times {
                let class = format!("{}, at the disk", times.class);
                self.seen_by.push(View {
                    p50_us: Some(times.p50_us),
                    p99_us: Some(times.p99_us),
                    ..View::of(&status.name, disk.path.clone(), state, &class)
                });
            }
        }
    }

    /// Takes in a view of it: the worst one counts.
    pub(super) fn blame(&mut self, state: State, reason: Option<String>, since_s: Option<u64>) {
        if state > self.state {
            (self.state, self.reason, self.since_s) = (state, reason, since_s);
        }
    }

    pub(super) fn add_probe(
        &mut self,
        (addr, disk): (SocketAddr, Option<DiskId>),
        probed: &Probed,
        usual: Option<Duration>,
    ) {
        let (state, reason, time) = match probed {
            Probed::NotAsked => return,
            Probed::Served(time) => match usual {
                Some(usual) if disk.is_some() && probes::is_slow(*time, usual) => {
                    let reason = format!(
                        "a write and a read of a disk take {} ms here, of others {} ms",
                        time.as_millis(),
                        usual.as_millis()
                    );
                    (State::Slow, Some(reason), Some(*time))
                }
                _ => (State::Good, None, Some(*time)),
            },
            Probed::DiskOut(why) => (State::Good, Some(why.clone()), None),
            Probed::Unanswered(why) => {
                // What lives, as others say, is not reached.
                let heard = self.seen_by.iter().any(|view| view.state < State::Out);
                let state = if heard { State::Unreached } else { State::Out };
                (state, Some(format!("it does not answer {OWN}: {why}")), None)
            }
        };
        let link = disk.map_or_else(|| addr.to_string(), |disk| format!("{addr} {disk}"));
        let known = disk.and_then(|disk| {
            let id = disk.to_string();
            self.disks.iter_mut().find(|known| known.id == id)
        });
        let mut of_disk = state;
        if let (Some(known), Some(reason)) = (known, &reason) {
            of_disk = if matches!(probed, Probed::DiskOut(_)) { State::Out } else { state };
            known.blame(of_disk, Some(reason.clone()));
        }
        let time = time.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let class = if disk.is_some() { "probe of a disk" } else { "ping" };
        let view = View::of(OWN, link, of_disk, class);
        self.seen_by.push(View { p50_us: time, p99_us: time, oldest_us: time.map(|_| 0), ..view });
        self.blame(state, reason, None);
    }
}

/// What the cluster does about a process that is not good.
pub(super) fn action(server: &Server) -> Option<&'static str> {
    let masters = |state: State| {
        let views = server.seen_by.iter().filter(|view| view.class == SIGNS);
        views.map(|view| view.state).max() == Some(state)
    };
    Some(match (server.role, server.state) {
        (_, State::Good) => return None,
        (RoleName::Chunkserver, State::Draining) => {
            "gets no new chunks; what it has is made elsewhere, then dropped there"
        }
        (RoleName::Chunkserver, State::Slow) => "clients ask it last",
        (RoleName::Chunkserver, State::Unreached) if masters(State::Good) => {
            "clients that do not reach it use others"
        }
        (RoleName::Chunkserver, State::Unreached) => {
            "gets no new chunks; what it has is made again elsewhere after 10 s"
        }
        (RoleName::Chunkserver, _) => {
            "clients use others; what it has is made again elsewhere when it is out for longer"
        }
        (RoleName::BlockServer, _) => "its segments are given to others",
        (RoleName::Master, _) => "others lead",
        (RoleName::BlockManager | RoleName::ObjectManager, _) => "another leads",
        (RoleName::ObjectServer, _) => "its ranges are given to others",
        (RoleName::Gateway, _) => "its clients use others, if they share their address",
        (RoleName::Frontend, _) => "none: its clients wait for it",
    })
}

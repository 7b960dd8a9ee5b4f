//! Faults of a run: one at a time, drawn from the seed.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use crate::failure::{Done, Failure};
use runtime::Rng;

use super::cluster::{Cluster, Process, system};
use super::net;
use crate::print_line;

/// Roles, each hit as often as the others however many processes it has.
const ROLES: [&str; 5] = ["master", "chunkserver", "block-manager", "block-server", "frontend"];
/// Seconds that a stopped process stands still, and that packets are dropped.
const STILL_S: (u64, u64) = (1, 12);

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Kill,
    Stop,
    Drop,
    FullDisk,
}

/// The faults of a run.
pub struct Faults<'a> {
    cluster: &'a Cluster,
    rng: Rng,
    own_network: bool,
    count: u64,
    /// Chunkservers whose disk was full at some time.
    full: RefCell<BTreeSet<String>>,
}

impl<'a> Faults<'a> {
    /// None yet.
    pub fn new(cluster: &'a Cluster, rng: Rng, own_network: bool) -> Faults<'a> {
        Faults { cluster, rng, own_network, count: 0, full: RefCell::default() }
    }

    /// Number of faults so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// ERROR lines that faults explain: those of a server whose disk was full.
    pub fn expected(&self) -> impl Fn(&str, &str) -> bool + '_ {
        |id, line| {
            let full = self.full.borrow().contains(id);
            full && (line.contains("full") || line.contains("space") || line.contains("room"))
        }
    }

    /// Waits a while, then does one fault from its beginning to its end.
    pub fn next(&mut self, began: Instant) -> Done {
        self.pause(500, 4000);
        let kind = match self.rng.below(if self.own_network { 8 } else { 5 }) {
            0..3 => Kind::Kill,
            3..5 => Kind::Stop,
            5..7 => Kind::Drop,
            _ => Kind::FullDisk,
        };
        let still = Duration::from_secs(STILL_S.0 + self.rng.below(STILL_S.1 - STILL_S.0 + 1));
        let role = *self.rng.pick(&ROLES);
        let all: Vec<Process> =
            self.cluster.processes()?.into_iter().filter(|one| one.role == role).collect();
        let process = self.rng.pick(&all).clone();
        self.count += 1;
        let at = began.elapsed().as_secs_f64();
        let note = |what: &str| print_line(&format!("{at:>6.1} s  {what}"));
        let Process { id, pid, addr, .. } = &process;
        match kind {
            Kind::Kill => {
                note(&format!("{id} is killed"))?;
                signal("-9", *pid)?;
                self.pause(0, 6000);
                self.cluster.restart(&process)
            }
            Kind::Stop => {
                note(&format!("{id} stands still for {} s", still.as_secs()))?;
                signal("-STOP", *pid)?;
                std::thread::sleep(still);
                signal("-CONT", *pid)
            }
            Kind::Drop => {
                note(&format!("packets to {id} are dropped for {} s", still.as_secs()))?;
                net::set_dropped(*addr, true)?;
                std::thread::sleep(still);
                net::set_dropped(*addr, false)
            }
            Kind::FullDisk => {
                let Some((path, id)) = self.cluster.small_disk() else { return Ok(()) };
                note(&format!("the disk of {id} is full for {} s", still.as_secs()))?;
                self.full.borrow_mut().insert(id.to_owned());
                let ballast = path.join("ballast");
                fill(&ballast)?;
                std::thread::sleep(still);
                let gone = std::fs::remove_file(&ballast);
                gone.map_err(|error| crate::failure::io("remove", &ballast, &error))
            }
        }
    }

    fn pause(&mut self, least_ms: u64, most_ms: u64) {
        let pause = least_ms + self.rng.below(most_ms - least_ms);
        std::thread::sleep(Duration::from_millis(pause));
    }
}

/// Sends a signal. A process that has ended by itself is reported: nothing may do that.
fn signal(name: &str, pid: u32) -> Done {
    system("kill", &[name, &pid.to_string()])
        .map_err(|failure| Failure::failed(format!("a process has ended by itself: {failure}")))
}

/// Writes until there is no room.
fn fill(path: &std::path::Path) -> Done {
    let failed = |error: &std::io::Error| crate::failure::io("fill", path, error);
    let mut file = File::create(path).map_err(|error| failed(&error))?;
    let part = vec![7; 1 << 20];
    loop {
        match file.write(&part) {
            Ok(count) if count > 0 => {}
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(failed(&error)),
        }
    }
}

//! Processes of a cluster on this machine, for measurements: their use of CPU and disks by `/proc`,
//! and the kill of a block server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use bench::{Error, Processes, THIS_PROCESS};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use runtime::Env;

use crate::args::RoleName;
use crate::cluster::{self, Directory, config_path, is_alive, role_word};
use crate::connect::Target;
use crate::exit::Failure;
use roles::config;

/// Processes of a cluster that has its directory here; none of another.
pub struct Local {
    dir: Option<PathBuf>,
    known: Vec<Known>,
}

/// A process that was alive when the list was made.
struct Known {
    role: &'static str,
    pid: u32,
    metrics: Option<SocketAddr>,
}

impl Local {
    /// The processes of a cluster that live now.
    pub fn of(target: &Target) -> Result<Local, Failure> {
        let mut known: Vec<Known> = Vec::new();
        if let Some(dir) = &target.dir {
            let book = Directory::existing(dir)?.read()?;
            for process in book.processes.iter().filter(|process| is_alive(process)) {
                // With 'craton up' one process has all roles.
                if !known.iter().any(|known| known.pid == process.pid) {
                    let metrics = match process.role {
                        RoleName::Chunkserver => {
                            let path = config_path(&process.dir, process.role);
                            config::read(&path)
                                .ok()
                                .and_then(|found: config::Chunkserver| found.metrics)
                        }
                        _ => None,
                    };
                    known.push(Known { role: role_word(process.role), pid: process.pid, metrics });
                }
            }
        }
        Ok(Local { dir: target.dir.clone(), known })
    }

    fn chunkservers(&self) -> impl Iterator<Item = &Known> {
        let word = role_word(RoleName::Chunkserver);
        self.known.iter().filter(move |process| process.role == word)
    }

    fn dir(&self) -> Result<&PathBuf, Error> {
        self.dir.as_ref().ok_or_else(|| Error::failed("the cluster has no directory here"))
    }
}

impl Processes for Local {
    fn cpu_us(&self) -> BTreeMap<String, f64> {
        let mut by_role = BTreeMap::new();
        for process in &self.known {
            let cpu = cpu_us(&format!("/proc/{}", process.pid));
            *by_role.entry(process.role.to_owned()).or_default() += cpu;
        }
        by_role.insert(THIS_PROCESS.to_owned(), cpu_us("/proc/self"));
        by_role
    }

    fn written_bytes(&self) -> u64 {
        self.chunkservers().map(|process| written_by(process.pid)).sum()
    }

    fn metrics(&self) -> Vec<Option<SocketAddr>> {
        self.chunkservers().map(|process| process.metrics).collect()
    }

    fn objection(&self) -> Result<Option<String>, Error> {
        let Some(dir) = &self.dir else {
            let unknown = "name the cluster by its directory: a block server is killed";
            return Ok(Some(unknown.to_owned()));
        };
        let book = Directory::existing(dir).and_then(|directory| directory.read());
        let book = book.map_err(Error::failed)?;
        let of_role = book.processes.iter().filter(|one| one.role == RoleName::BlockServer);
        let alone = |one: &&cluster::Process| is_alive(one) && !cluster::is_embedded(&one.dir);
        if of_role.filter(alone).count() < 2 {
            let need = "two block servers in processes of their own are needed, as 'craton cluster \
                        up --block-servers 2' starts them: one is killed";
            return Ok(Some(need.to_owned()));
        }
        Ok(None)
    }

    fn kill_block_server(&self, id: &str) -> Result<(), Error> {
        cluster::kill(self.dir()?, RoleName::BlockServer, id).map_err(Error::failed)
    }

    fn start_block_server<'a>(
        &'a self,
        env: &'a Env,
        id: &'a str,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        async move {
            let started = cluster::start_again(env, self.dir()?, RoleName::BlockServer, id).await;
            started.map(drop).map_err(Error::failed)
        }
        .boxed_local()
    }
}

/// Microseconds of a clock tick: `/proc` counts in hundredths of a second on every Linux here.
const TICK_US: f64 = 10_000.0;

/// 0 for a process that is gone.
fn cpu_us(proc_dir: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("{proc_dir}/stat")).unwrap_or_default();
    // The name may hold spaces: fields are counted from the closing parenthesis.
    let fields: Vec<&str> = match stat.rfind(')') {
        Some(end) => stat[end + 1..].split_whitespace().collect(),
        None => return 0.0,
    };
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) * TICK_US
}

fn written_by(pid: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

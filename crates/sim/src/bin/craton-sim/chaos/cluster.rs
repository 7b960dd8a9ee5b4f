//! The cluster of a run, driven through the `craton` binary.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::failure::{Done, Failure, io};
use client::{BlockingClient, Connection};
use roles::config;
use serde_json::Value;
use wire::handshake::ClusterKey;

/// The shape of a cluster: redundancy survives one process of each role.
const SHAPE: &str = "--masters 3 --chunkservers 5 --block-managers 2 --block-servers 3 \
                     --frontends 2 --timeout 120";
/// MiB of the disk that becomes full.
const SMALL_DISK_MIB: u64 = 768;

/// A process of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its role, as commands name it.
    pub role: String,
    /// Its ID.
    pub id: String,
    /// Its process ID.
    pub pid: u32,
    /// Its address.
    pub addr: SocketAddr,
}

/// A cluster, and the binary that drives it.
pub struct Cluster {
    craton: PathBuf,
    dir: PathBuf,
    /// The store that lies on a small disk, when there is one.
    small: Option<PathBuf>,
}

impl Cluster {
    /// Makes a cluster in a directory that is empty or missing.
    pub fn make(craton: &Path, dir: &Path) -> Result<Cluster, Failure> {
        if dir.is_dir() && dir.read_dir().map_err(|error| io("list", dir, &error))?.count() > 0 {
            let dir = dir.display();
            return Err(Failure::setup(format!("{dir} is not empty: name a new directory")));
        }
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(|error| io("find", path, &error));
        let mut cluster = Cluster { craton: absolute(craton)?, dir: absolute(dir)?, small: None };
        cluster.up(&SHAPE.split_whitespace().collect::<Vec<_>>())?;
        if super::net::is_root() {
            cluster.shrink_disk("cs1")?;
        }
        Ok(cluster)
    }

    fn up(&self, more: &[&str]) -> Done {
        let dir = self.dir.to_string_lossy().into_owned();
        self.command(&[&["cluster", "up", "--dir", &dir][..], more].concat()).map(drop)
    }

    /// Moves the store of a chunkserver to a small disk of its own, in memory.
    fn shrink_disk(&mut self, id: &str) -> Done {
        self.down()?;
        let store = self.dir.join(id).join("store");
        let kept = self.dir.join(id).join("store.kept");
        let size = format!("size={SMALL_DISK_MIB}m");
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let (from, to) = (path(&store), path(&kept));
        system("cp", &["-a", "--sparse=always", &from, &to])?;
        system("mount", &["-t", "tmpfs", "-o", &size, "craton-chaos", &from])?;
        system("cp", &["-a", "--sparse=always", &format!("{to}/."), &from])?;
        system("rm", &["-r", &to])?;
        self.small = Some(store);
        self.up(&["--timeout", "120"])
    }

    /// The directory on the small disk, and the chunkserver that has it.
    pub fn small_disk(&self) -> Option<(&Path, &str)> {
        self.small.as_deref().map(|path| (path, "cs1"))
    }

    /// Standard output of a command of `craton` about this cluster; it must succeed.
    pub fn craton(&self, args: &[&str]) -> Result<String, Failure> {
        let dir = self.dir.to_string_lossy().into_owned();
        self.command(&[args, &["--cluster", &dir]].concat())
    }

    fn command(&self, args: &[&str]) -> Result<String, Failure> {
        let mut command = Command::new(&self.craton);
        command.args(args).env_remove("CRATON_CLUSTER").env_remove("CRATON_KEY_FILE");
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| io("run", &self.craton, &error))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(Failure::failed(format!("craton {}: {why}", args.join(" "))))
            }
        }
    }

    /// Content of `cluster.json`.
    fn book(&self) -> Result<Value, Failure> {
        let path = self.dir.join("cluster.json");
        let bytes = std::fs::read(&path).map_err(|error| io("read", &path, &error))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
    }

    /// All processes.
    pub fn processes(&self) -> Result<Vec<Process>, Failure> {
        let book = self.book()?;
        let read = |one: &Value| {
            Some(Process {
                role: one["role"].as_str()?.to_owned(),
                id: one["id"].as_str()?.to_owned(),
                pid: u32::try_from(one["pid"].as_u64()?).ok()?,
                addr: one["addr"].as_str()?.parse().ok()?,
            })
        };
        let found: Option<Vec<_>> =
            book["processes"].as_array().into_iter().flatten().map(read).collect();
        found.ok_or_else(|| Failure::failed("cluster.json lacks a fact of a process"))
    }

    /// The masters' addresses.
    fn masters(&self) -> Result<Vec<SocketAddr>, Failure> {
        let masters = self.processes()?.into_iter().filter(|one| one.role == "master");
        Ok(masters.map(|one| one.addr).collect())
    }

    /// The front ends' addresses.
    pub fn frontends(&self) -> Result<Vec<SocketAddr>, Failure> {
        let frontends = self.processes()?.into_iter().filter(|one| one.role == "frontend");
        Ok(frontends.map(|one| one.addr).collect())
    }

    /// A client of the core.
    pub fn client(&self) -> Result<BlockingClient, Failure> {
        let key: Option<ClusterKey> = {
            let path = self.dir.join("cluster.key");
            let key = path.exists().then(|| config::read_key(&path)).transpose();
            key.map_err(|error| Failure::setup(error.to_string()))?
        };
        let connection = Connection { key, ..Connection::to(self.masters()?) };
        Ok(BlockingClient::start(connection)?)
    }

    /// Starts what has died.
    pub fn start_all(&self) -> Done {
        self.up(&["--timeout", "120"])
    }

    /// Starts one process again.
    pub fn restart(&self, process: &Process) -> Done {
        let dir = self.dir.to_string_lossy().into_owned();
        let args = ["cluster", "restart", "--dir", &dir, &process.role, &process.id];
        self.command(&args).map(drop)
    }

    /// Ends all processes and gives the small disk back.
    pub fn down(&mut self) -> Done {
        let dir = self.dir.to_string_lossy().into_owned();
        self.command(&["cluster", "down", "--dir", &dir]).map(drop)
    }

    /// Waits until every process is up and every chunk has its copies; answers how long it took.
    pub fn wait_until_whole(&self, limit: Duration) -> Result<Duration, Failure> {
        let began = Instant::now();
        loop {
            let status = self.craton(&["status", "--json"]);
            let status: Value =
                status.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            let none = |count: &Value| count.as_u64() == Some(0);
            let all_up = |what: &str| {
                let all = status[what].as_array();
                all.is_some_and(|all| all.iter().all(|one| one["state"] == "up"))
            };
            let whole = none(&status["chunks"]["under_replicated"])
                && none(&status["chunks"]["lost"])
                && none(&status["repair"]["pending"]);
            if whole && all_up("masters") && all_up("chunkservers") {
                return Ok(began.elapsed());
            }
            if began.elapsed() > limit {
                return Err(Failure::failed(format!(
                    "not whole {limit:?} after the last fault: chunks {}, repair {}",
                    status["chunks"], status["repair"]
                )));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The ERROR lines of all logs that no fault explains.
    pub fn errors(&self, expected: &dyn Fn(&str, &str) -> bool) -> Result<Vec<String>, Failure> {
        let mut found = Vec::new();
        for process in self.processes()? {
            let dir = self.dir.join(&process.id).join("log");
            let Ok(entries) = dir.read_dir() else { continue };
            for entry in entries.flatten() {
                let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
                let errors = text.lines().filter(|line| line.contains("\"level\":\"ERROR\""));
                let errors = errors.filter(|line| !expected(&process.id, line));
                found.extend(errors.map(|line| format!("{}: {line}", process.id)));
            }
        }
        Ok(found)
    }
}

/// Runs a tool of the system, which must succeed.
pub fn system(name: &str, args: &[&str]) -> Done {
    let output = Command::new(name).args(args).stdin(Stdio::null()).output();
    let output =
        output.map_err(|error| Failure::setup(format!("{name} cannot be run: {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Failure::setup(format!("{name} {}: {why}", args.join(" "))))
        }
    }
}

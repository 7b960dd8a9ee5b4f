//! Configuration of the core's roles. `docs/operations` has an example of each file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base::{GIB, MIB};
use serde::{Deserialize, Serialize};

use super::common::{Config, Process, absolute, check_name, cluster_id};
use super::logging::Logging;

/// Way in which a store's writes become durable.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Each write by itself: best where the device has no volatile cache.
    #[default]
    PerWrite,
    /// Writes, then one flush for all that have returned.
    Group,
}

/// One disk of a chunkserver.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// A directory, which gets one big file, or a raw block device.
    pub path: PathBuf,
    /// GiB that the store takes at most, when it is formatted.
    #[serde(default = "Store::capacity_default")]
    pub capacity_gib: u64,
    /// KiB of its allocation unit, when it is formatted: a power of two, 16 to 16384.
    #[serde(default = "Store::unit_default")]
    pub unit_kib: u32,
    /// Way in which writes become durable.
    #[serde(default)]
    pub durability: Durability,
}

impl Store {
    /// For many small files, as `craton up` and `craton cluster up` make them.
    pub fn small_files(path: PathBuf) -> Store {
        Store { path, capacity_gib: 64, unit_kib: 16, durability: Durability::default() }
    }

    fn capacity_default() -> u64 {
        1024
    }

    fn unit_default() -> u32 {
        1024
    }

    fn check(&self) -> Result<(), String> {
        if self.path.as_os_str().is_empty() {
            return Err("stores.path is empty: name a directory or a block device".to_owned());
        }
        if !(1..=1 << 20).contains(&self.capacity_gib) {
            return Err(format!(
                "stores.capacity_gib = {} must be 1 to 1048576",
                self.capacity_gib
            ));
        }
        if !self.unit_kib.is_power_of_two() || !(16..=16384).contains(&self.unit_kib) {
            return Err(format!(
                "stores.unit_kib = {} must be a power of two, 16 to 16384",
                self.unit_kib
            ));
        }
        Ok(())
    }

    /// Bytes that the store takes at most.
    pub fn capacity(&self) -> u64 {
        self.capacity_gib * GIB
    }
}

/// A chunkserver's file.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Chunkserver {
    /// Its ID: the same ID is the same server.
    pub id: String,
    /// The cluster's identity, e.g. `clu_7f...`; learned from the first peer when it is absent.
    pub cluster: Option<String>,
    /// Its address.
    pub listen: SocketAddr,
    /// Masters to start from; the rest is learned from them.
    pub masters: Vec<SocketAddr>,
    /// Its failure domain: replicas of a chunk never share one while others are there. Its ID
    /// when absent.
    pub domain: Option<String>,
    /// File with the cluster's key; needed unless it listens on loopback.
    pub key_file: Option<PathBuf>,
    /// Address of its metrics over HTTP.
    pub metrics: Option<SocketAddr>,
    /// Time between heartbeats, ms, 10 to 10,000.
    #[serde(default = "Chunkserver::heartbeat_default")]
    pub heartbeat_ms: u64,
    /// MiB a second that scrub reads at most; 0 turns it off.
    #[serde(default = "Chunkserver::scrub_default")]
    pub scrub_mib_per_second: u64,
    /// MiB of buffers that the process may hold, 64 to 1,048,576.
    #[serde(default = "memory_default")]
    pub memory_mib: u64,
    /// Executors, 1 to 256, each with its share of the disks (C10); executor `k` listens on the
    /// port `k` above `listen`. Never more than disks or cores are used.
    #[serde(default = "Chunkserver::cores_default")]
    pub cores: u32,
    /// Its log.
    #[serde(default)]
    pub log: Logging,
    /// Its disks.
    pub stores: Vec<Store>,
}

pub(super) fn memory_default() -> u64 {
    512
}

pub(super) fn check_memory(memory_mib: u64) -> Result<(), String> {
    if !(64..=1 << 20).contains(&memory_mib) {
        return Err(format!("memory_mib = {memory_mib} must be 64 to 1048576"));
    }
    Ok(())
}

pub(super) fn check_listen(listen: SocketAddr, key_file: Option<&Path>) -> Result<(), String> {
    if !listen.ip().is_loopback() && key_file.is_none() {
        return Err(format!(
            "listen = '{listen}' can be reached from other machines: set key_file to a file with \
             the cluster's key, or listen on 127.0.0.1"
        ));
    }
    Ok(())
}

/// Bytes of `mib` MiB.
pub fn mib(mib: u64) -> usize {
    usize::try_from(mib.saturating_mul(MIB)).unwrap_or(usize::MAX)
}

impl Chunkserver {
    fn heartbeat_default() -> u64 {
        250
    }

    fn scrub_default() -> u64 {
        8
    }

    fn cores_default() -> u32 {
        1
    }
}

impl Config for Chunkserver {
    fn process(&self) -> Process<'_> {
        Process { id: &self.id, log: &self.log, memory_mib: self.memory_mib }
    }

    /// Never more than it has disks, or the machine cores.
    fn executors(&self) -> usize {
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        let lanes = (self.cores as usize).min(self.stores.len()).min(most).max(1);
        if lanes < self.cores as usize {
            let (asked, disks) = (self.cores, self.stores.len());
            tracing::warn!(asked, lanes, disks, cores = most, "fewer executors than asked for");
        }
        lanes
    }

    fn check(&self) -> Result<(), String> {
        check_name("id", &self.id)?;
        if let Some(domain) = &self.domain {
            check_name("domain", domain)?;
        }
        cluster_id(self.cluster.as_deref())?;
        check_listen(self.listen, self.key_file.as_deref())?;
        if self.masters.is_empty() {
            return Err("masters is empty: name the address of at least one master".to_owned());
        }
        if self.stores.is_empty() {
            return Err("stores is empty: add a [[stores]] section with a path".to_owned());
        }
        if self.stores.len() > wire::control::limits::DISKS_MAX {
            let max = wire::control::limits::DISKS_MAX;
            return Err(format!("stores has {} sections, of at most {max}", self.stores.len()));
        }
        for (index, store) in self.stores.iter().enumerate() {
            store.check()?;
            if self.stores[..index].iter().any(|other| other.path == store.path) {
                let path = store.path.display();
                return Err(format!("stores.path = '{path}' stands there twice: remove one"));
            }
        }
        if !(10..=10_000).contains(&self.heartbeat_ms) {
            return Err(format!("heartbeat_ms = {} must be 10 to 10000", self.heartbeat_ms));
        }
        check_memory(self.memory_mib)?;
        if !(1..=256).contains(&self.cores) {
            return Err(format!("cores = {} must be 1 to 256", self.cores));
        }
        self.log.check()
    }

    fn resolve(&mut self, dir: &Path) {
        let paths = [self.key_file.as_mut(), self.log.dir.as_mut()];
        paths.into_iter().flatten().for_each(|path| absolute(dir, path));
        self.stores.iter_mut().for_each(|store| absolute(dir, &mut store.path));
    }
}

/// A master of the first membership.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Its number among the masters, from 1, never used for another.
    pub raft_id: u64,
    /// Its ID.
    pub id: String,
    /// Its address.
    pub addr: SocketAddr,
}

/// A master's file.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Master {
    /// Its ID.
    pub id: String,
    /// Its number among the masters, from 1, never used for another.
    pub raft_id: u64,
    /// The cluster's identity, e.g. `clu_7f...`, the same for all its masters.
    pub cluster: String,
    /// Address where it listens, and where the others reach it.
    pub listen: SocketAddr,
    /// Directory of its log, snapshots and checkpoints.
    pub data_dir: PathBuf,
    /// File with the cluster's key; needed unless it listens on loopback.
    pub key_file: Option<PathBuf>,
    /// Address of its metrics over HTTP.
    pub metrics: Option<SocketAddr>,
    /// Partitions of the namespace service, 1 to 64; fixed when the cluster is formed.
    #[serde(default = "Master::partitions_default")]
    pub namespace_partitions: u16,
    /// Partitions of the stream service, 1 to 64; fixed when the cluster is formed.
    #[serde(default = "Master::partitions_default")]
    pub stream_partitions: u16,
    /// Time between a leader's heartbeats, ms.
    #[serde(default = "Master::heartbeat_default")]
    pub heartbeat_ms: u64,
    /// Silence of a leader after which another is elected, ms: this, and 30 ms for each voter that has
    /// its turn before.
    #[serde(default = "Master::election_default")]
    pub election_ms: u64,
    /// Silence of a chunkserver after which it counts as dead, ms.
    #[serde(default = "Master::server_dead_default")]
    pub server_dead_ms: u64,
    /// MiB a second that each stream partition moves for balance at most, as when a chunkserver
    /// joined; 0 leaves chunks where they are.
    #[serde(default = "Master::balance_default")]
    pub balance_mib_s: u64,
    /// MiB of buffers that the process may hold, 64 to 1,048,576.
    #[serde(default = "memory_default")]
    pub memory_mib: u64,
    /// Its log.
    #[serde(default)]
    pub log: Logging,
    /// All masters that form the cluster, this one among them. Empty: it waits to be added with
    /// `craton masters add`.
    #[serde(default)]
    pub peers: Vec<Peer>,
}

impl Master {
    fn partitions_default() -> u16 {
        1
    }

    fn heartbeat_default() -> u64 {
        50
    }

    fn election_default() -> u64 {
        300
    }

    fn server_dead_default() -> u64 {
        1500
    }

    fn balance_default() -> u64 {
        32
    }
}

impl Config for Master {
    fn process(&self) -> Process<'_> {
        Process { id: &self.id, log: &self.log, memory_mib: self.memory_mib }
    }

    fn check(&self) -> Result<(), String> {
        check_name("id", &self.id)?;
        if cluster_id(Some(&self.cluster))? == base::ClusterId::default() {
            return Err("cluster = 'clu_0' is no identity: draw 16 random bytes".to_owned());
        }
        check_listen(self.listen, self.key_file.as_deref())?;
        if self.raft_id == 0 {
            return Err("raft_id = 0 must be 1 or more".to_owned());
        }
        for (key, count) in [
            ("namespace_partitions", self.namespace_partitions),
            ("stream_partitions", self.stream_partitions),
        ] {
            if !(1..=64).contains(&count) {
                return Err(format!("{key} = {count} must be 1 to 64"));
            }
        }
        if !(10..=5_000).contains(&self.heartbeat_ms) {
            return Err(format!("heartbeat_ms = {} must be 10 to 5000", self.heartbeat_ms));
        }
        if self.election_ms < 6 * self.heartbeat_ms || self.election_ms > 60_000 {
            return Err(format!(
                "election_ms = {} must be 6 times heartbeat_ms to 60000",
                self.election_ms
            ));
        }
        if !(100..=600_000).contains(&self.server_dead_ms) {
            return Err(format!("server_dead_ms = {} must be 100 to 600000", self.server_dead_ms));
        }
        if self.balance_mib_s > 100_000 {
            return Err(format!("balance_mib_s = {} must be 0 to 100000", self.balance_mib_s));
        }
        self.check_peers()?;
        check_memory(self.memory_mib)?;
        self.log.check()
    }

    fn resolve(&mut self, dir: &Path) {
        let paths = [self.key_file.as_mut(), self.log.dir.as_mut(), Some(&mut self.data_dir)];
        paths.into_iter().flatten().for_each(|path| absolute(dir, path));
    }
}

impl Master {
    fn check_peers(&self) -> Result<(), String> {
        if !matches!(self.peers.len(), 0 | 1 | 3 | 5) {
            return Err(format!(
                "peers has {} sections: a cluster is formed by 1, 3 or 5 masters",
                self.peers.len()
            ));
        }
        for (index, peer) in self.peers.iter().enumerate() {
            check_name("peers.id", &peer.id)?;
            if peer.raft_id == 0 {
                return Err("peers.raft_id = 0 must be 1 or more".to_owned());
            }
            let twice = |other: &Peer| {
                other.raft_id == peer.raft_id || other.addr == peer.addr || other.id == peer.id
            };
            if self.peers[..index].iter().any(twice) {
                return Err(format!(
                    "peers: '{}' has the raft_id, the addr or the id of another section",
                    peer.id
                ));
            }
        }
        let own = |peer: &Peer| peer.raft_id == self.raft_id && peer.id == self.id;
        if !self.peers.is_empty() && !self.peers.iter().any(own) {
            return Err(format!(
                "peers: no section has id = '{}' and raft_id = {}: add this master itself",
                self.id, self.raft_id
            ));
        }
        Ok(())
    }
}

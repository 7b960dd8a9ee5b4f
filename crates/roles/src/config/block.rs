//! Configuration of the block service's roles.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::common::{Config, Process, absolute, check_name, cluster_id};
use super::logging::Logging;
use super::types::{check_listen, check_memory, memory_default};

/// A block manager's file.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct BlockManager {
    /// Its ID.
    pub id: String,
    /// The cluster's identity; learned from the first peer when it is absent.
    pub cluster: Option<String>,
    /// Address where it listens and where others reach it.
    pub listen: SocketAddr,
    /// Masters to start from; the rest is learned from them.
    pub masters: Vec<SocketAddr>,
    /// File with the cluster's key; needed unless it listens on loopback.
    pub key_file: Option<PathBuf>,
    /// Address of its metrics over HTTP.
    pub metrics: Option<SocketAddr>,
    /// Copies of its table, 1 to 5.
    #[serde(default = "BlockManager::copies_default")]
    pub copies: u8,
    /// Lease of the managers' lock, ms, 300 to 60,000: when the leader dies, no manager leads for
    /// this long.
    #[serde(default = "BlockManager::lock_default")]
    pub lock_ms: u64,
    /// Silence of a block server after which others take its segments, ms, 300 to 60,000.
    #[serde(default = "BlockManager::server_dead_default")]
    pub server_dead_ms: u64,
    /// Seconds for which the data of deleted volumes is kept, up to 31,536,000; 0: not at all.
    #[serde(default = "BlockManager::undelete_default")]
    pub volume_undelete_s: u64,
    /// MiB of the smallest volume, from 1.
    #[serde(default = "BlockManager::volume_default")]
    pub volume_mib_min: u64,
    /// MiB of buffers that the process may hold, 64 to 1,048,576.
    #[serde(default = "memory_default")]
    pub memory_mib: u64,
    /// Its log.
    #[serde(default)]
    pub log: Logging,
}

impl BlockManager {
    fn copies_default() -> u8 {
        3
    }

    fn lock_default() -> u64 {
        block_proto::lease::LEASE.as_millis() as u64
    }

    fn server_dead_default() -> u64 {
        block_manager::limits::SERVER_DEAD.as_millis() as u64
    }

    fn undelete_default() -> u64 {
        block_manager::limits::UNDELETE.as_secs()
    }

    fn volume_default() -> u64 {
        1024
    }
}

/// A block server's file.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct BlockServer {
    /// Its ID: the same ID is the same server.
    pub id: String,
    /// The cluster's identity; learned from the first peer when it is absent.
    pub cluster: Option<String>,
    /// Address where it listens and where others reach it.
    pub listen: SocketAddr,
    /// Masters to start from; the rest is learned from them.
    pub masters: Vec<SocketAddr>,
    /// File with the cluster's key; needed unless it listens on loopback.
    pub key_file: Option<PathBuf>,
    /// Address of its metrics over HTTP.
    pub metrics: Option<SocketAddr>,
    /// MiB of index that all segments keep in memory, 1 to 65,536.
    #[serde(default = "BlockServer::index_default")]
    pub index_mib: u64,
    /// MiB of table blocks that all segments keep in memory, 1 to 65,536.
    #[serde(default = "BlockServer::cache_default")]
    pub cache_mib: u64,
    /// MiB of changes that all segments keep in memory until their tables' files have them, and of
    /// their last appends, 1 to 65,536.
    #[serde(default = "BlockServer::write_default")]
    pub write_mib: u64,
    /// MiB a second that scrubs of segments read at most, up to 1,024; 0: none (B14).
    #[serde(default = "BlockServer::scrub_default")]
    pub scrub_mib_s: u64,
    /// MiB of buffers that the process may hold, 64 to 1,048,576.
    #[serde(default = "memory_default")]
    pub memory_mib: u64,
    /// Its log.
    #[serde(default)]
    pub log: Logging,
}

impl BlockServer {
    fn index_default() -> u64 {
        (block_segment::limits::INDEX_MEMORY_DEFAULT >> 20) as u64
    }

    fn cache_default() -> u64 {
        64
    }

    fn write_default() -> u64 {
        (block_segment::limits::WRITE_MEMORY_DEFAULT >> 20) as u64
    }

    fn scrub_default() -> u64 {
        block_segment::limits::SCRUB_RATE_DEFAULT >> 20
    }
}

/// Files in PEM for a front end's TLS.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct FrontendTls {
    /// The front end's certificate, and those between it and an authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities that sign clients' certificates.
    pub client_ca: PathBuf,
}

/// A front end's file.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Frontend {
    /// Its ID: the same ID takes its own attachments over after a restart.
    pub id: String,
    /// The cluster's identity; learned from the first peer when it is absent.
    pub cluster: Option<String>,
    /// Address of NBD connections over TCP: a loopback address, unless there is `tls`; none when
    /// absent.
    pub nbd: Option<SocketAddr>,
    /// A Unix socket for NBD connections, for its own user; at most 107 bytes.
    pub nbd_unix: Option<PathBuf>,
    /// The group, by name or number, whose users may connect to `nbd_unix` too.
    pub nbd_group: Option<String>,
    /// Masters to start from; the rest is learned from them.
    pub masters: Vec<SocketAddr>,
    /// File with the cluster's key, when it has one.
    pub key_file: Option<PathBuf>,
    /// Address of its metrics over HTTP.
    pub metrics: Option<SocketAddr>,
    /// MiB of buffers that the process may hold, 64 to 1,048,576. Below 512 it takes fewer NBD
    /// connections than 64: one for 8 MiB.
    #[serde(default = "memory_default")]
    pub memory_mib: u64,
    /// Direct reads: from chunkservers, at locations that block servers send.
    #[serde(default = "yes")]
    pub direct_reads: bool,
    /// TLS of all connections to `nbd`; needed when that is no loopback address.
    pub tls: Option<FrontendTls>,
    /// With `tls`: for each volume, the names of client certificates that may open it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub exports: BTreeMap<String, Vec<String>>,
    /// Its log.
    #[serde(default)]
    pub log: Logging,
}

fn yes() -> bool {
    true
}

pub(super) fn check_peers(masters: &[SocketAddr], cluster: Option<&str>) -> Result<(), String> {
    cluster_id(cluster)?;
    match masters.is_empty() {
        true => Err("masters is empty: name the address of at least one master".to_owned()),
        false => Ok(()),
    }
}

fn check_port(key: &str, addr: SocketAddr) -> Result<(), String> {
    match addr.port() {
        0 => Err(format!("{key} = '{addr}' has no port: others must know where it is reached")),
        _ => Ok(()),
    }
}

pub(super) fn within(key: &str, value: u64, (least, most): (u64, u64)) -> Result<(), String> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(format!("{key} = {value} must be {least} to {most}")),
    }
}

pub(super) fn resolve<const N: usize>(dir: &Path, paths: [&mut Option<PathBuf>; N]) {
    paths.into_iter().flatten().for_each(|path| absolute(dir, path));
}

impl Config for BlockManager {
    fn process(&self) -> Process<'_> {
        Process { id: &self.id, log: &self.log, memory_mib: self.memory_mib }
    }

    fn check(&self) -> Result<(), String> {
        check_name("id", &self.id)?;
        check_peers(&self.masters, self.cluster.as_deref())?;
        check_listen(self.listen, self.key_file.as_deref())?;
        check_port("listen", self.listen)?;
        within("copies", self.copies.into(), (1, 5))?;
        within("lock_ms", self.lock_ms, (300, 60_000))?;
        within("server_dead_ms", self.server_dead_ms, (300, 60_000))?;
        let undelete_most = block_manager::limits::UNDELETE_MAX.as_secs();
        within("volume_undelete_s", self.volume_undelete_s, (0, undelete_most))?;
        within("volume_mib_min", self.volume_mib_min, (1, 64 << 20))?;
        check_memory(self.memory_mib)?;
        self.log.check()
    }

    fn resolve(&mut self, dir: &Path) {
        resolve(dir, [&mut self.key_file, &mut self.log.dir]);
    }
}

impl Config for BlockServer {
    fn process(&self) -> Process<'_> {
        Process { id: &self.id, log: &self.log, memory_mib: self.memory_mib }
    }

    fn check(&self) -> Result<(), String> {
        check_name("id", &self.id)?;
        check_peers(&self.masters, self.cluster.as_deref())?;
        check_listen(self.listen, self.key_file.as_deref())?;
        check_port("listen", self.listen)?;
        within("index_mib", self.index_mib, (1, 65_536))?;
        within("cache_mib", self.cache_mib, (1, 65_536))?;
        within("write_mib", self.write_mib, (1, 65_536))?;
        within("scrub_mib_s", self.scrub_mib_s, (0, 1024))?;
        check_memory(self.memory_mib)?;
        self.log.check()
    }

    fn resolve(&mut self, dir: &Path) {
        resolve(dir, [&mut self.key_file, &mut self.log.dir]);
    }
}

impl Config for Frontend {
    fn process(&self) -> Process<'_> {
        Process { id: &self.id, log: &self.log, memory_mib: self.memory_mib }
    }

    fn check(&self) -> Result<(), String> {
        check_name("id", &self.id)?;
        check_peers(&self.masters, self.cluster.as_deref())?;
        match self.nbd {
            Some(nbd) => check_port("nbd", nbd)?,
            None if self.nbd_unix.is_none() => {
                return Err("neither nbd nor nbd_unix is there: give an address, a socket or both"
                    .to_owned());
            }
            None if self.tls.is_some() => {
                return Err(
                    "[tls] is for connections to nbd, which is absent: give an address".to_owned()
                );
            }
            None => {}
        }
        if let Some(nbd) = self.nbd.filter(|nbd| self.tls.is_none() && !nbd.ip().is_loopback()) {
            return Err(format!(
                "nbd = '{nbd}' can be reached from other machines, which are let in only with \
                 client certificates: give [tls] and [exports], or take a loopback address"
            ));
        }
        if self.tls.is_some() == self.exports.is_empty() {
            return Err("[tls] and [exports] belong together: for each volume, the names of the \
                        certificates that may open it; \"*\" stands for all"
                .to_owned());
        }
        if let Some(path) = self.nbd_unix.as_deref().filter(|path| !fits_socket(path)) {
            return Err(format!("nbd_unix = '{}' is too long for a socket", path.display()));
        }
        check_memory(self.memory_mib)?;
        self.log.check()
    }

    fn resolve(&mut self, dir: &Path) {
        resolve(dir, [&mut self.key_file, &mut self.nbd_unix, &mut self.log.dir]);
        if let Some(tls) = &mut self.tls {
            for path in [&mut tls.certificate, &mut tls.key, &mut tls.client_ca] {
                absolute(dir, path);
            }
        }
    }
}

/// The number of a group, from its name or number.
pub fn group_id(group: &str) -> Result<u32, String> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    let known = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let id = known.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
    });
    id.ok_or_else(|| format!("this machine has no group '{group}': name another, or its number"))
}

/// True when a Unix socket can have this path.
pub fn fits_socket(path: &Path) -> bool {
    path.as_os_str().len() <= runtime::limits::UNIX_PATH_MAX
}

//! Configuration of the object service's roles.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::block::{check_peers, resolve, within};
use super::common::{Config, Process, absolute, check_name};
use super::logging::Logging;
use super::types::{check_listen, check_memory, memory_default};

/// An object manager's file. Of all object managers the one that has the lock leads.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct ObjectManager {
    /// Its ID.
    pub id: String,
    /// The cluster's identity; learned from the first peer when it is absent.
    pub cluster: Option<String>,
    /// Address where it listens and where gateways and object servers reach it.
    pub listen: SocketAddr,
    /// Masters to start from; the rest is learned from them.
    pub masters: Vec<SocketAddr>,
    /// File with the cluster's key; needed unless it listens on loopback.
    pub key_file: Option<PathBuf>,
    /// Copies of its table, 1 to 5.
    #[serde(default = "copies_default")]
    pub copies: u8,
    /// Address of its metrics and health page; none without.
    pub metrics: Option<SocketAddr>,
    /// Lease of the lock, ms, 300 to 60,000: when the leading manager dies, no other one leads for this
    /// long.
    #[serde(default = "ObjectManager::lock_default")]
    pub lock_ms: u64,
    /// MiB of buffers that the process may hold, 64 to 1,048,576.
    #[serde(default = "memory_default")]
    pub memory_mib: u64,
    /// Its log.
    #[serde(default)]
    pub log: Logging,
}

impl ObjectManager {
    fn lock_default() -> u64 {
        object_index::limits::LOCK_TTL.as_millis() as u64
    }
}

fn copies_default() -> u8 {
    3
}

/// Length of a day of lifecycle, ms, at least and at most.
const LIFECYCLE_DAY_MS: (u64, u64) = (100, 24 * 3600 * 1000);

fn lifecycle_day_default() -> u64 {
    LIFECYCLE_DAY_MS.1
}

impl Config for ObjectManager {
    fn process(&self) -> Process<'_> {
        Process { id: &self.id, log: &self.log, memory_mib: self.memory_mib }
    }

    fn check(&self) -> Result<(), String> {
        check_name("id", &self.id)?;
        check_peers(&self.masters, self.cluster.as_deref())?;
        check_listen(self.listen, self.key_file.as_deref())?;
        check_port(self.listen)?;
        within("copies", self.copies.into(), (1, 5))?;
        within("lock_ms", self.lock_ms, (300, 60_000))?;
        check_memory(self.memory_mib)?;
        self.log.check()
    }

    fn resolve(&mut self, dir: &Path) {
        resolve(dir, [&mut self.key_file, &mut self.log.dir]);
    }
}

fn check_port(listen: SocketAddr) -> Result<(), String> {
    match listen.port() {
        0 => Err("listen has port 0: gateways could not find it".to_owned()),
        _ => Ok(()),
    }
}

/// An object server's file.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct ObjectServer {
    /// Its ID.
    pub id: String,
    /// The cluster's identity; learned from the first peer when it is absent.
    pub cluster: Option<String>,
    /// Address where it listens and where gateways reach it.
    pub listen: SocketAddr,
    /// Masters to start from; the rest is learned from them.
    pub masters: Vec<SocketAddr>,
    /// File with the cluster's key; needed unless it listens on loopback.
    pub key_file: Option<PathBuf>,
    /// Copies of its tables, 1 to 5.
    #[serde(default = "copies_default")]
    pub copies: u8,
    /// Address of its metrics and health page; none without.
    pub metrics: Option<SocketAddr>,
    /// Of no use any more: object managers have the lock. Accepted, so that a file of before is.
    #[serde(default, skip_serializing)]
    pub lock_ms: Option<u64>,
    /// Length of a day of lifecycle, ms, 100 to 86,400,000: shorter than 24 h for tests alone. The same for all
    /// object servers and gateways.
    #[serde(default = "lifecycle_day_default")]
    pub lifecycle_day_ms: u64,
    /// MiB of buffers that the process may hold, 64 to 1,048,576.
    #[serde(default = "memory_default")]
    pub memory_mib: u64,
    /// Its log.
    #[serde(default)]
    pub log: Logging,
}

impl Config for ObjectServer {
    fn process(&self) -> Process<'_> {
        Process { id: &self.id, log: &self.log, memory_mib: self.memory_mib }
    }

    fn check(&self) -> Result<(), String> {
        check_name("id", &self.id)?;
        check_peers(&self.masters, self.cluster.as_deref())?;
        check_listen(self.listen, self.key_file.as_deref())?;
        check_port(self.listen)?;
        within("copies", self.copies.into(), (1, 5))?;
        within("lifecycle_day_ms", self.lifecycle_day_ms, LIFECYCLE_DAY_MS)?;
        check_memory(self.memory_mib)?;
        self.log.check()
    }

    fn resolve(&mut self, dir: &Path) {
        resolve(dir, [&mut self.key_file, &mut self.log.dir]);
    }
}

/// Settings of new buckets.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "lowercase")]
pub enum BucketDefaults {
    /// As at AWS today: ACLs are off, and what is public is blocked.
    #[default]
    Aws,
    /// As older servers and suites expect: neither.
    Classic,
}

/// A gateway's file.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Gateway {
    /// Its ID.
    pub id: String,
    /// The cluster's identity; learned from the first peer when it is absent.
    pub cluster: Option<String>,
    /// Address where it serves S3; on loopback, unless there is TLS or it is plain.
    pub listen: SocketAddr,
    /// Address that the gateways of a machine share; likewise. The kernel gives each connection
    /// to one of those that run.
    pub shared: Option<SocketAddr>,
    /// Masters to start from; the rest is learned from them.
    pub masters: Vec<SocketAddr>,
    /// File with the cluster's key.
    pub key_file: Option<PathBuf>,
    /// File with the keys that wrap secrets, the same on each machine.
    pub s3_keys: PathBuf,
    /// Directory with `server-cert.pem` and `server-key.pem`: S3 is served over TLS, and a certificate
    /// that is replaced is shown within a minute.
    pub tls: Option<PathBuf>,
    /// S3 is served to other machines over plain HTTP.
    #[serde(default)]
    pub plain: bool,
    /// Signatures of version 2 are taken.
    #[serde(default)]
    pub allow_v2: bool,
    /// Settings of buckets that are made through it.
    #[serde(default)]
    pub defaults: BucketDefaults,
    /// Domains below which a host's name is a bucket; in URLs, the first one stands for a gateway with TLS.
    #[serde(default = "Gateway::domains_default")]
    pub domains: Vec<String>,
    /// Region, as clients see it.
    #[serde(default = "Gateway::region_default")]
    pub region: String,
    /// Copies of bodies, 1 to 5.
    #[serde(default = "copies_default")]
    pub copies: u8,
    /// Address of its metrics and health page; none without. It asks for no key: only operators should
    /// reach it.
    pub metrics: Option<SocketAddr>,
    /// Requests are written, each as it ends, to `access.jsonl` in the directory of its log.
    #[serde(default)]
    pub access_log: bool,
    /// Of files that were made before there were object servers: it means nothing now.
    #[serde(default, skip_serializing)]
    pub lock_ms: Option<u64>,
    /// MiB of bodies of requests in memory, 8 to 65,536.
    #[serde(default = "Gateway::bodies_default")]
    pub bodies_mib: u64,
    /// Length of a day of lifecycle, ms, 100 to 86,400,000, as object servers have it: answers say with it when
    /// objects expire.
    #[serde(default = "lifecycle_day_default")]
    pub lifecycle_day_ms: u64,
    /// Connections at once, 1 to 100,000.
    #[serde(default = "Gateway::connections_default")]
    pub connections: u64,
    /// MiB of buffers that the process may hold, 64 to 1,048,576.
    #[serde(default = "memory_default")]
    pub memory_mib: u64,
    /// Its log.
    #[serde(default)]
    pub log: Logging,
}

impl Gateway {
    /// What clients call it at an address: with TLS by its domain, as certificates do, else by the address.
    pub fn endpoint(&self, addr: SocketAddr) -> String {
        let here = if addr.is_ipv4() { "127.0.0.1" } else { "[::1]" };
        match (&self.tls, self.domains.first()) {
            (Some(_), Some(domain)) => format!("https://{domain}:{}", addr.port()),
            _ if addr.ip().is_unspecified() => format!("http://{here}:{}", addr.port()),
            _ => format!("http://{addr}"),
        }
    }

    fn domains_default() -> Vec<String> {
        vec!["localhost".to_owned()]
    }

    fn region_default() -> String {
        "us-east-1".to_owned()
    }

    fn bodies_default() -> u64 {
        64
    }

    fn connections_default() -> u64 {
        2000
    }
}

impl Config for Gateway {
    fn process(&self) -> Process<'_> {
        Process { id: &self.id, log: &self.log, memory_mib: self.memory_mib }
    }

    fn check(&self) -> Result<(), String> {
        check_name("id", &self.id)?;
        check_peers(&self.masters, self.cluster.as_deref())?;
        if self.tls.is_some() && self.plain {
            return Err("tls and plain = true contradict each other: leave one out".to_owned());
        }
        let is_open = self.tls.is_none() && !self.plain;
        for (name, addr) in [("listen", Some(self.listen)), ("shared", self.shared)] {
            if let Some(addr) = addr.filter(|addr| is_open && !addr.ip().is_loopback()) {
                return Err(format!(
                    "{name} = {addr} is no loopback address: give tls = \"DIRECTORY\", with \
                     server-cert.pem and server-key.pem in it, or plain = true for HTTP that \
                     anybody on the way can read"
                ));
            }
        }
        if self.access_log && self.log.dir.is_none() {
            return Err("access_log = true needs a directory: give log.dir".to_owned());
        }
        if self.domains.is_empty() {
            return Err("domains is empty: name one, such as localhost".to_owned());
        }
        within("copies", self.copies.into(), (1, 5))?;
        within("bodies_mib", self.bodies_mib, (8, 65_536))?;
        within("connections", self.connections, (1, 100_000))?;
        within("lifecycle_day_ms", self.lifecycle_day_ms, LIFECYCLE_DAY_MS)?;
        check_memory(self.memory_mib)?;
        self.log.check()
    }

    fn resolve(&mut self, dir: &Path) {
        absolute(dir, &mut self.s3_keys);
        resolve(dir, [&mut self.key_file, &mut self.tls, &mut self.log.dir]);
    }
}

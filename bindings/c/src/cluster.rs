//! From what a program names to a cluster's masters and key.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;

use client::Connection;
use wire::handshake::ClusterKey;

use crate::error::{Error, errno};

/// Bytes of `cluster.json` and of a key at most.
const FILE_MAX: u64 = 1 << 20;

fn read(path: &Path) -> Result<String, Error> {
    let failed = |error: std::io::Error| {
        let errno = error.raw_os_error().unwrap_or(errno::EIO);
        Error::new(errno, format!("cannot read {}: {error}", path.display()))
    };
    let len = std::fs::metadata(path).map_err(failed)?.len();
    if len > FILE_MAX {
        return Err(Error::new(errno::EINVAL, format!("{} is too long", path.display())));
    }
    std::fs::read_to_string(path).map_err(failed)
}

fn read_key(path: &Path) -> Result<ClusterKey, Error> {
    ClusterKey::from_str(&read(path)?)
        .map_err(|error| Error::new(errno::EINVAL, format!("{}: {error}", path.display())))
}

/// The masters in a `cluster.json`.
fn masters(text: &str) -> Option<Vec<SocketAddr>> {
    let book: serde_json::Value = serde_json::from_str(text).ok()?;
    let masters = book["endpoints"]["masters"].as_array()?;
    masters.iter().map(|addr| addr.as_str()?.parse().ok()).collect()
}

/// Addresses separated by commas.
fn addresses(text: &str) -> Option<Vec<SocketAddr>> {
    let mut found = Vec::new();
    for part in text.split(',') {
        found.extend(part.trim().to_socket_addrs().ok()?);
    }
    Some(found)
}

/// How to connect to a cluster: the directory of a local one, or addresses.
pub fn find(cluster: &str, key_file: Option<&str>) -> Result<Connection, Error> {
    let dir = Path::new(cluster);
    let mut key = key_file.map(|path| read_key(Path::new(path))).transpose()?;
    let masters = if cluster.contains('/') || dir.is_dir() {
        let path = dir.join("cluster.json");
        let key_path = dir.join("cluster.key");
        if key.is_none() && key_path.exists() {
            key = Some(read_key(&key_path)?);
        }
        let damaged = || {
            let text = format!("{} is damaged: it names no masters", path.display());
            Error::new(errno::EINVAL, text)
        };
        masters(&read(&path)?).ok_or_else(damaged)?
    } else {
        let wrong = || {
            let text = format!("'{cluster}' is no directory of a cluster, and no HOST:PORT,...");
            Error::new(errno::EINVAL, text)
        };
        addresses(cluster).ok_or_else(wrong)?
    };
    Ok(Connection { key, ..Connection::to(masters) })
}

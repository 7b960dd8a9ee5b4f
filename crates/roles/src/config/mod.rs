//! Configuration files of the roles: TOML, unknown keys refused, errors name file, line and key.

mod block;
mod types;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use base::ClusterId;
use serde::de::DeserializeOwned;
use wire::handshake::ClusterKey;

pub use block::{BlockManager, BlockServer, Frontend, FrontendTls, fits_socket, group_id};
pub use types::{Chunkserver, Durability, Logging, Master, Peer, Store, mib};

use crate::error::{Error, io};

/// Bytes of a configuration file at most.
const FILE_MAX: u64 = 1 << 20;
/// Bytes of an ID or a failure domain at most.
const NAME_MAX: usize = 64;

/// Settings of the process that a role runs in.
#[derive(Clone, Copy, Debug)]
pub struct Process<'a> {
    /// The role's ID.
    pub id: &'a str,
    /// Its log.
    pub log: &'a Logging,
    /// MiB of buffers that it may hold.
    pub memory_mib: u64,
}

/// A configuration that a role starts from.
pub trait Config: DeserializeOwned {
    /// Settings of the process.
    fn process(&self) -> Process<'_>;

    /// Executors that the role runs on. Fewer than are asked for get a line in the log.
    fn executors(&self) -> usize {
        1
    }

    /// Checks values; the error names the key and valid values.
    fn check(&self) -> Result<(), String>;

    /// Makes relative paths start at `dir`, the directory of the file.
    fn resolve(&mut self, dir: &Path);
}

/// Reads and checks a file.
pub fn read<T: Config>(path: &Path) -> Result<T, Error> {
    let len = std::fs::metadata(path).map_err(|error| io("read", path, &error))?.len();
    if len > FILE_MAX {
        return Err(Error::Setup(format!("{} is too long for a configuration", path.display())));
    }
    let text = std::fs::read_to_string(path).map_err(|error| io("read", path, &error))?;
    let mut config: T =
        parse(&text).map_err(|what| Error::Setup(format!("{}: {what}", path.display())))?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    config.resolve(dir.unwrap_or(Path::new(".")));
    Ok(config)
}

/// Parses and checks a text.
pub fn parse<T: Config>(text: &str) -> Result<T, String> {
    let config: T = toml::from_str(text).map_err(|error| explain(text, &error))?;
    config.check()?;
    Ok(config)
}

/// One sentence out of the parser's report.
fn explain(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().and_then(|span| text.get(..span.start)).map(|before| {
        let line = before.matches('\n').count() + 1;
        format!("line {line}: ")
    });
    let what = error.message().trim().replace('\n', " ");
    // A missing key has no position: the parser points at the whole file.
    match what.strip_prefix("missing field") {
        Some(key) => format!("the key{key} is missing"),
        None => {
            let what = what.replacen("unknown field", "unknown key", 1);
            format!("{}{what}", line.unwrap_or_default())
        }
    }
}

/// The cluster's key of a file.
pub fn read_key(path: &Path) -> Result<ClusterKey, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| io("read", path, &error))?;
    ClusterKey::from_str(&text)
        .map_err(|error| Error::Setup(format!("{}: {error}", path.display())))
}

/// The cluster's identity in a configuration; zero when it is to be learned.
pub fn cluster_id(text: Option<&str>) -> Result<ClusterId, String> {
    let Some(text) = text else { return Ok(ClusterId::default()) };
    text.parse().map_err(|error| format!("cluster: {error}"))
}

/// An ID that can stand in a path, a table and a log line.
fn check_name(key: &str, name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(good) || name.starts_with('.')
    {
        return Err(format!(
            "{key} = '{name}' is no name: 1 to {NAME_MAX} letters, digits, '-', '_' or '.', not \
             starting with '.'"
        ));
    }
    Ok(())
}

fn absolute(dir: &Path, path: &mut PathBuf) {
    if path.is_relative() {
        *path = dir.join(&*path);
    }
}

/// Fuzz target: any text is a configuration or a sentence, never a panic.
pub fn fuzz_config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let errors = [
        parse::<Master>(&text).err(),
        parse::<Chunkserver>(&text).err(),
        parse::<BlockManager>(&text).err(),
        parse::<BlockServer>(&text).err(),
        parse::<Frontend>(&text).err(),
    ];
    for error in errors {
        assert!(error.is_none_or(|error| !error.is_empty() && !error.contains('\n')));
    }
}

//! What all configurations have.

use std::path::{Path, PathBuf};

use base::ClusterId;
use serde::de::DeserializeOwned;

use super::logging::Logging;

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

/// The cluster's identity in a configuration; zero when it is to be learned.
pub fn cluster_id(text: Option<&str>) -> Result<ClusterId, String> {
    let Some(text) = text else { return Ok(ClusterId::default()) };
    text.parse().map_err(|error| format!("cluster: {error}"))
}

/// An ID that can stand in a path, a table and a log line.
pub(super) fn check_name(key: &str, name: &str) -> Result<(), String> {
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

pub(super) fn absolute(dir: &Path, path: &mut PathBuf) {
    if path.is_relative() {
        *path = dir.join(&*path);
    }
}

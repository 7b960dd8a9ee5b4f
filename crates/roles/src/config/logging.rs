//! Settings of logs.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Settings of a role's log.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Logging {
    /// Directory of the log files; without it lines go to standard error.
    pub dir: Option<PathBuf>,
    /// Level: `error`, `warn`, `info`, `debug`, or filters such as `info,master=debug`.
    pub level: String,
    /// MiB of a file before it is rotated, 1 to 1024.
    pub file_mib: u64,
    /// Files kept beside the present one, 1 to 100.
    pub files: u32,
    /// Milliseconds from which on an operation is slow: it gets a line, and is kept for `craton
    /// trace slow`; 1 to 600,000.
    pub slow_ms: u64,
}

const SLOW_MS: u64 = metrics::limits::SLOW_NS_DEFAULT / 1_000_000;
/// The Raft library logs every vote at `info`, and at `warn` every message that a master that is
/// down does not get: 60 lines a second, which would drive all else out of the files. The library of
/// S3's dialect logs requests that it refuses as errors of the process, which they are not.
const LEVEL: &str = "info,openraft=error,s3s=off";

impl Default for Logging {
    fn default() -> Logging {
        Logging { dir: None, level: LEVEL.to_owned(), file_mib: 16, files: 4, slow_ms: SLOW_MS }
    }
}

impl Logging {
    pub(super) fn check(&self) -> Result<(), String> {
        if !(1..=1024).contains(&self.file_mib) {
            return Err(format!("log.file_mib = {} must be 1 to 1024", self.file_mib));
        }
        if !(1..=100).contains(&self.files) {
            return Err(format!("log.files = {} must be 1 to 100", self.files));
        }
        if !(1..=600_000).contains(&self.slow_ms) {
            return Err(format!("log.slow_ms = {} must be 1 to 600000", self.slow_ms));
        }
        check_level(&self.level).map_err(|what| format!("log.level: {what}"))
    }
}

/// Checks a `level`; the error names the wrong part.
pub(super) fn check_level(level: &str) -> Result<(), String> {
    let is_level =
        |word: &str| !word.trim().is_empty() && LevelFilter::from_str(word.trim()).is_ok();
    // A word alone could be the name of a crate too: then one that is misspelt would log all.
    let bad = level.split(',').find(|part| match part.rsplit_once('=') {
        Some((_, word)) => !is_level(word),
        None => !is_level(part),
    });
    let parsed = EnvFilter::builder().parse(level);
    match (bad, parsed) {
        (None, Ok(_)) => Ok(()),
        (Some(part), _) => Err(format!("'{part}' is no level: write e.g. info,master=debug")),
        (None, Err(error)) => Err(format!("'{level}' is no filter: {error}")),
    }
}

//! Policies from files.

use std::path::Path;

use object_policy::{Policy, PolicyKind};
use object_proto::limits::POLICY_MAX;

use crate::exit::{Failure, io};

fn read(path: &Path, kind: PolicyKind<'_>) -> Result<String, Failure> {
    let len = std::fs::metadata(path).map_err(|error| io("read", path, &error))?.len();
    if len > POLICY_MAX as u64 {
        return Err(Failure::failed(format!(
            "{}: a policy has {POLICY_MAX} bytes at most",
            path.display()
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|error| io("read", path, &error))?;
    match Policy::parse(&text, kind) {
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::failed(format!("{}: {error}", path.display()))),
    }
}

/// A policy of a user or a key.
pub fn read_identity(path: &Path) -> Result<String, Failure> {
    read(path, PolicyKind::Identity)
}

/// A policy of a bucket.
pub fn read_bucket(path: &Path, name: &str) -> Result<String, Failure> {
    read(path, PolicyKind::Bucket { name })
}

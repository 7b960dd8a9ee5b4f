//! Locks on files that commands of one machine share.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::exit::{Failure, io};

/// Locks a lock file for as long as the returned file lives.
pub fn lock(path: &Path, held: &str) -> Result<File, Failure> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(|error| io("open", path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(Failure::setup(format!("{} is locked: {held}", path.display())))
        }
        Err(TryLockError::Error(error)) => Err(io("lock", path, &error)),
    }
}

//! Locks on files that commands of one machine share.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::exit::{Failure, io};

/// A file that is locked until this is dropped.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// The locked file.
    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for FileLock {
    /// To close the file is not enough: a process that another thread is starting shares it until it
    /// runs its program, and would hold the lock for as long.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Locks a lock file for as long as the returned lock lives.
pub fn lock(path: &Path, held: &str) -> Result<FileLock, Failure> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(|error| io("open", path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(FileLock(file)),
        Err(TryLockError::WouldBlock) => {
            Err(Failure::setup(format!("{} is locked: {held}", path.display())))
        }
        Err(TryLockError::Error(error)) => Err(io("lock", path, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_ends_although_another_process_shares_the_file() {
        let dir = crate::output::test_dir("lock");
        let path = dir.join("lock");
        let held = lock(&path, "held").expect("it is free");
        let shared = held.file().try_clone().expect("as a child has it");
        assert!(lock(&path, "held").is_err_and(|error| error.message.contains("locked: held")));
        drop(held);
        lock(&path, "held").expect("it is free again");
        drop(shared);
        std::fs::remove_dir_all(dir).expect("it goes");
    }
}

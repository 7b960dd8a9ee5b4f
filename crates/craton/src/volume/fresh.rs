//! A file that gets its name only when it is complete.
//!
//! An export that is killed leaves no partial image under the final name; one that fails leaves the
//! file that it was to replace.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::exit::{Done, Failure, io as failed};
use crate::file_lock::{FileLock, lock};

/// A file on its way, under another name in the same directory. It is removed when it is dropped.
/// It is locked: another export to the same path is refused.
pub struct Fresh {
    path: PathBuf,
    under: PathBuf,
    /// Ends the lock last, when the other name is gone.
    lock: FileLock,
}

impl Fresh {
    /// For `path`, or behind it when it is a link; nothing when it is no file, but a device or a
    /// pipe: those are written in place. Fails when another export has it under way.
    pub fn instead_of(path: &Path) -> Result<Option<Fresh>, Failure> {
        if path.metadata().is_ok_and(|facts| !facts.is_file()) {
            return Ok(None);
        }
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let Some(name) = path.file_name() else { return Ok(None) };
        let mut under = OsString::from(name);
        under.push(".craton-part");
        let under = path.with_file_name(under);
        let held = format!("another export writes {}: wait for its end", path.display());
        loop {
            let lock = lock(&under, &held)?;
            // Its last owner may have renamed or removed it before the lock was free.
            if is_at(lock.file(), &under).map_err(|error| failed("open", &under, &error))? {
                return Ok(Some(Fresh { path, under, lock }));
            }
        }
    }

    /// Path to write to until it is complete. A killed run may have left content there.
    pub fn under(&self) -> &Path {
        &self.under
    }

    /// It is complete: it is made durable, and takes its name.
    pub fn keep(self) -> Done {
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let keep = || {
            // The program that wrote it may not have: qemu-img does not.
            self.lock.file().sync_all()?;
            if !is_at(self.lock.file(), &self.under)? {
                let what = format!("another file is at {}", self.under.display());
                return Err(io::Error::other(what));
            }
            fs::rename(&self.under, &self.path)?;
            File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
        };
        keep().map_err(|error| failed("write", &self.path, &error))
    }
}

/// Makes durable what another program has written to a block device. Pipes and character devices keep
/// nothing.
pub fn sync_device(path: &Path) -> Done {
    if !path.metadata().is_ok_and(|facts| facts.file_type().is_block_device()) {
        return Ok(());
    }
    let synced = File::open(path).and_then(|device| device.sync_all());
    synced.map_err(|error| failed("write", path, &error))
}

/// True when `path` names the open file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let facts = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (facts.dev(), facts.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // It is not there any more when it was kept, or is the next export's.
        if is_at(self.lock.file(), &self.under).unwrap_or(false) {
            let _ = fs::remove_file(&self.under);
        }
    }
}

#[cfg(test)]
mod tests;

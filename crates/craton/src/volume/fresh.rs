//! A file that gets its name only when it is complete.
//!
//! An export that is killed leaves no partial image under the final name; one that fails leaves the
//! file that it was to replace.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::exit::{Done, io};

/// A file on its way, under another name in the same directory. It is removed when it is dropped.
pub struct Fresh {
    path: PathBuf,
    under: PathBuf,
}

impl Fresh {
    /// For `path`, or behind it when it is a link; nothing when it is no file, but a device or a
    /// pipe: those are written in place.
    pub fn instead_of(path: &Path) -> Option<Fresh> {
        if path.metadata().is_ok_and(|facts| !facts.is_file()) {
            return None;
        }
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut under = OsString::from(path.file_name()?);
        under.push(".craton-part");
        Some(Fresh { under: path.with_file_name(under), path })
    }

    /// Path to write to until it is complete. A killed run may have left a file there.
    pub fn under(&self) -> &Path {
        &self.under
    }

    /// It is complete, and durable: it takes its name.
    pub fn keep(self) -> Done {
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty());
        fs::rename(&self.under, &self.path)
            .and_then(|()| File::open(dir.unwrap_or(Path::new(".")))?.sync_all())
            .map_err(|error| io("write", &self.path, &error))
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.under); // It is not there any more when it was kept.
    }
}

//! Files that `craton fs get` makes: below one local directory, with any links in it, and never in
//! place of a file that it has not made.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, Timespec, Timestamps, fchmod, mkdirat, openat,
    openat2, readlinkat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use wire::control::Attributes;

/// Bits of a mode that are copied: a copy runs with no other user's rights, and belongs to no other
/// group than a file that was made here.
const MODE_BITS: u32 = 0o777;

/// A local directory. All paths are relative to it; the empty one is the directory itself.
#[derive(Debug)]
pub struct Beneath {
    root: OwnedFd,
}

impl Beneath {
    /// The directory at `path`; links on the way to it are followed.
    pub fn open(path: &Path) -> Result<Beneath> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Beneath { root: openat(CWD, path, flags, Mode::empty())? })
    }

    /// A path within, which nothing leads out of: not `..`, and no link.
    fn enter(&self, rel: &Path, flags: OFlags) -> Result<OwnedFd> {
        let path = if rel.as_os_str().is_empty() { Path::new(".") } else { rel };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat2(&self.root, path, flags, Mode::empty(), resolve).map_err(|errno| match errno {
            // For a link in place of a directory the kernel returns either.
            Errno::LOOP | Errno::NOTDIR => Error::new(
                ErrorKind::NotADirectory,
                "a symbolic link lies on the way, or what is no directory",
            ),
            other => other.into(),
        })
    }

    fn dir(&self, rel: &Path) -> Result<OwnedFd> {
        self.enter(rel, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// The directory that holds a path, and the name there.
    fn place<'a>(&self, rel: &'a Path) -> Result<(OwnedFd, &'a OsStr)> {
        match rel.components().next_back() {
            Some(Component::Normal(name)) => {
                Ok((self.dir(rel.parent().unwrap_or(Path::new("")))?, name))
            }
            None => Ok((self.dir(rel)?, OsStr::new("."))),
            Some(_) => Err(Error::new(ErrorKind::InvalidInput, "its name leads elsewhere")),
        }
    }

    /// Makes a directory, or takes one that is there, which is made usable for its owner; true
    /// when it was there.
    pub fn make_dir(&self, rel: &Path) -> Result<bool> {
        if !rel.as_os_str().is_empty() {
            let (parent, name) = self.place(rel)?;
            match mkdirat(&parent, name, Mode::RWXU) {
                Ok(()) => return Ok(false),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // An earlier run may have made it read-only.
        let dir = self.dir(rel)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        let mode = std::fs::metadata(&path)?.mode();
        if mode & 0o700 != 0o700 {
            std::fs::set_permissions(&path, Permissions::from_mode(mode & 0o7777 | 0o700))?;
        }
        Ok(true)
    }

    /// Makes a file that was not there, for its owner alone.
    pub fn make_file(&self, rel: &Path) -> Result<File> {
        let (parent, name) = self.place(rel)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(File::from(openat(&parent, name, flags | OFlags::CLOEXEC, mode)?))
    }

    /// Makes a symbolic link that was not there.
    pub fn make_link(&self, target: impl rustix::path::Arg, rel: &Path) -> Result<()> {
        let (parent, name) = self.place(rel)?;
        Ok(symlinkat(target, &parent, name)?)
    }

    /// Target of a symbolic link; nothing when there is none.
    pub fn link(&self, rel: &Path) -> Option<Vec<u8>> {
        let (parent, name) = self.place(rel).ok()?;
        Some(readlinkat(&parent, name, Vec::new()).ok()?.into_bytes())
    }

    /// Length and time of a regular file; nothing when there is none.
    pub fn file_facts(&self, rel: &Path) -> Option<(u64, i128)> {
        let (parent, name) = self.place(rel).ok()?;
        let facts = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_file = rustix::fs::FileType::from_raw_mode(facts.st_mode).is_file();
        let time = i128::from(facts.st_mtime) * 1_000_000_000 + i128::from(facts.st_mtime_nsec);
        is_file.then_some((facts.st_size as u64, time))
    }

    /// Renames a file that was made here, in place of a file or link that is there.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let ((from, old), (to, new)) = (self.place(from)?, self.place(to)?);
        Ok(renameat(&from, old, &to, new)?)
    }

    /// True when a path names the open file.
    pub fn is_at(&self, rel: &Path, file: &File) -> Result<bool> {
        let (parent, name) = self.place(rel)?;
        let facts = file.metadata()?;
        match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok((there.st_dev, there.st_ino) == (facts.dev(), facts.ino())),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a link, or a regular file that no process has locked. What cannot be opened or locked stays.
    pub fn remove_left(&self, rel: &Path) -> Result<()> {
        if self.link(rel).is_some() {
            return self.remove(rel);
        }
        let (parent, name) = self.place(rel)?;
        // A pipe must not make this wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = openat(&parent, name, flags, Mode::empty()).map(File::from) else {
            return Ok(());
        };
        if file.metadata()?.is_file() && file.try_lock().is_ok() && self.is_at(rel, &file)? {
            unlinkat(&parent, name, AtFlags::empty())?;
        }
        Ok(())
    }

    /// Removes a file or a link.
    pub fn remove(&self, rel: &Path) -> Result<()> {
        let (parent, name) = self.place(rel)?;
        Ok(unlinkat(&parent, name, AtFlags::empty())?)
    }

    /// The names in a directory.
    pub fn names(&self, rel: &Path) -> Result<Vec<String>> {
        let dir = self.enter(rel, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()))? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    /// Sets mode and time of a directory.
    pub fn set_dir(&self, rel: &Path, attributes: Attributes) -> Result<()> {
        let dir = self.enter(rel, OFlags::RDONLY | OFlags::DIRECTORY)?;
        fchmod(&dir, Mode::from_raw_mode(attributes.mode & MODE_BITS))?;
        self.set_time(rel, attributes)
    }

    /// Sets the time of anything.
    pub fn set_time(&self, rel: &Path, attributes: Attributes) -> Result<()> {
        let time = Timespec {
            tv_sec: (attributes.mtime / 1_000_000_000) as i64,
            tv_nsec: (attributes.mtime % 1_000_000_000) as _,
        };
        let times = Timestamps { last_access: time, last_modification: time };
        let (parent, name) = self.place(rel)?;
        Ok(utimensat(&parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// Sets the mode of a file that was made here.
pub fn set_mode(file: &File, attributes: Attributes) -> Result<()> {
    Ok(fchmod(file, Mode::from_raw_mode(attributes.mode & MODE_BITS))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(mode: u32) -> Attributes {
        Attributes { mode, mtime: 1_000_000_000 }
    }

    #[test]
    fn links_and_names_lead_nowhere_else() {
        let dir = crate::output::test_dir("beneath");
        let (inside, outside) = (dir.join("inside"), dir.join("outside"));
        std::fs::create_dir(&inside).expect("it is made");
        std::fs::create_dir(&outside).expect("it is made");
        std::os::unix::fs::symlink(&outside, inside.join("link")).expect("it is made");
        let beneath = Beneath::open(&inside).expect("it opens");
        for path in ["link", "link/deep", "..", "../outside/x", "/etc/x", "link/../x"] {
            let path = Path::new(path);
            assert!(beneath.make_dir(path).is_err(), "{path:?}");
            assert!(beneath.make_file(path).is_err(), "{path:?}");
            assert!(beneath.make_link("x", path).is_err(), "{path:?}");
        }
        assert_eq!(std::fs::read_dir(&outside).expect("it lists").count(), 0);
        // A file is made once, and never through a link.
        drop(beneath.make_file(Path::new("file")).expect("it is made"));
        let again = beneath.make_file(Path::new("file")).expect_err("it is there");
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
        std::fs::remove_dir_all(dir).expect("it goes");
    }

    #[test]
    fn special_bits_are_masked() {
        let dir = crate::output::test_dir("special");
        let beneath = Beneath::open(&dir).expect("it opens");
        let file = beneath.make_file(Path::new("file")).expect("it is made");
        set_mode(&file, attributes(0o6755)).expect("it is set");
        assert!(!beneath.make_dir(Path::new("d")).expect("it is made"));
        assert!(beneath.make_dir(Path::new("d")).expect("it is there"));
        beneath.set_dir(Path::new("d"), attributes(0o3775)).expect("it is set");
        let mode = |name: &str| dir.join(name).metadata().expect("it is there").mode() & 0o7777;
        assert_eq!((mode("file"), mode("d")), (0o755, 0o775));
        std::fs::remove_dir_all(dir).expect("it goes");
    }
}

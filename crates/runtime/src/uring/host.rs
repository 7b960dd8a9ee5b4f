//! A real process, as its [`crate::Env`] sees it.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::driver::clock_nanos;
use super::file::RealFile;
use super::helpers::Helpers;
use super::net::{self, RealListener};
use super::op::{Work, owned_fd};
use super::ring::Ring;
use crate::io::{Entry, OpenOptions, Stream};
use crate::time::UnixTime;

pub(crate) struct RealNode {
    ring: Rc<Ring>,
    helpers: Helpers,
}

impl RealNode {
    pub(crate) fn new(ring: Rc<Ring>, helpers: Helpers) -> RealNode {
        RealNode { ring, helpers }
    }

    /// The process's helper threads.
    pub(crate) fn helpers(&self) -> &Helpers {
        &self.helpers
    }

    pub(crate) fn unix_time(&self) -> UnixTime {
        UnixTime::from_nanos(clock_nanos(libc::CLOCK_REALTIME))
    }

    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        self.helpers.run(name, work).await
    }

    pub(crate) fn fill_secret(&self, bytes: &mut [u8]) {
        fill_random(bytes);
    }

    pub(crate) async fn open_file(
        &self,
        path: &Path,
        options: OpenOptions,
    ) -> io::Result<RealFile> {
        let flag = |on: bool, flag: libc::c_int| if on { flag } else { 0 };
        let flags = libc::O_CLOEXEC
            | if options.write { libc::O_RDWR } else { libc::O_RDONLY }
            | flag(options.create || options.create_new, libc::O_CREAT)
            | flag(options.create_new, libc::O_EXCL)
            | flag(options.direct, libc::O_DIRECT);
        let done = self.ring.start(Work::Open { path: c_path(path)?, flags }).await;
        let fd = owned_fd(done.result?);
        Ok(RealFile::new(self.ring.clone(), self.helpers.clone(), fd, options.direct))
    }

    /// Makes a directory and its parents; the lowest of them that was there.
    pub(crate) async fn create_dir_all(&self, path: &Path) -> io::Result<PathBuf> {
        let path = path.to_owned();
        let make = move || {
            let there = path.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new(""));
            std::fs::create_dir_all(&path)?;
            Ok(there.to_owned())
        };
        self.helpers.run("create_dir_all", make).await
    }

    pub(crate) async fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let path = path.to_owned();
        self.helpers.run("read_dir", move || read_dir(&path)).await
    }

    pub(crate) async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let work = Work::Rename { from: c_path(from)?, to: c_path(to)? };
        self.ring.start(work).await.result.map(drop)
    }

    pub(crate) async fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.ring.start(Work::Unlink { path: c_path(path)? }).await.result.map(drop)
    }

    pub(crate) async fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let flags = libc::O_CLOEXEC | libc::O_RDONLY | libc::O_DIRECTORY;
        let done = self.ring.start(Work::Open { path: c_path(path)?, flags }).await;
        let dir = Rc::new(owned_fd(done.result?));
        self.ring.start(Work::Sync { file: dir, data_only: false }).await.result.map(drop)
    }

    // Binding answers from memory.
    #[allow(clippy::unused_async)]
    pub(crate) async fn listen(&self, addr: SocketAddr) -> io::Result<RealListener> {
        net::listen(self.ring.clone(), addr)
    }

    // Binding answers from memory, or from a file system's.
    #[allow(clippy::unused_async)]
    pub(crate) async fn listen_unix(&self, path: &Path) -> io::Result<RealListener> {
        net::listen_unix(self.ring.clone(), path)
    }

    pub(crate) async fn connect(&self, addr: SocketAddr) -> io::Result<Stream> {
        net::connect(self.ring.clone(), addr).await
    }
}

/// Fills `bytes` from the kernel's generator.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        // SAFETY: the kernel writes at most `rest.len()` bytes to `rest`.
        let count = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(count) {
            Ok(count) => done += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                assert_eq!(error.kind(), io::ErrorKind::Interrupted, "no randomness: {error}");
            }
        }
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn read_dir(path: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let about = match entry.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // Just removed.
            about => about?,
        };
        entries.push(Entry {
            name: entry.file_name().to_string_lossy().into_owned(),
            is_dir: about.is_dir(),
            len: if about.is_dir() { 0 } else { about.len() },
        });
    }
    entries.sort();
    Ok(entries)
}

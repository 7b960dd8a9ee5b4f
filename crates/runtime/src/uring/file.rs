//! Files and block devices through the ring.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use super::helpers::Helpers;
use super::op::{Gather, Work};
use super::ring::{Done, Ring};
use crate::buf::{Buf, BufMut};
use crate::io::WriteMode;

/// An open file or block device.
#[derive(Clone)]
pub struct RealFile {
    ring: Rc<Ring>,
    helpers: Helpers,
    fd: Rc<OwnedFd>,
    direct: bool,
}

impl RealFile {
    pub(crate) fn new(ring: Rc<Ring>, helpers: Helpers, fd: OwnedFd, direct: bool) -> RealFile {
        RealFile { ring, helpers, fd: Rc::new(fd), direct }
    }

    /// See [`crate::File::read_at`].
    pub async fn read_at(&self, offset: u64, buf: BufMut) -> (io::Result<usize>, BufMut) {
        if buf.is_empty() {
            return (Ok(0), buf);
        }
        let (file, direct) = (self.fd.clone(), self.direct);
        let work = Work::Read { file, buf, offset, done: 0, direct };
        let Done { work, result } = self.ring.start(work).await;
        let Work::Read { buf, .. } = work else { unreachable!("a read stays a read") };
        (result.map(|count| count as usize), buf)
    }

    /// See [`crate::File::write_at`].
    pub async fn write_at(&self, offset: u64, buf: Buf, mode: WriteMode) -> io::Result<()> {
        self.write(offset, buf.into(), mode).await
    }

    /// See [`crate::File::write_vectored_at`].
    pub async fn write_vectored_at(
        &self,
        offset: u64,
        bufs: Vec<Buf>,
        mode: WriteMode,
    ) -> io::Result<()> {
        self.write(offset, bufs.into(), mode).await
    }

    async fn write(&self, offset: u64, bufs: Gather, mode: WriteMode) -> io::Result<()> {
        if bufs.left() == 0 {
            return Ok(());
        }
        let rw_flags = match mode {
            WriteMode::Cached => 0,
            WriteMode::Durable => libc::RWF_DSYNC,
        };
        let work = Work::Write { file: self.fd.clone(), bufs, offset, rw_flags };
        self.ring.start(work).await.result.map(drop)
    }

    /// See [`crate::File::sync`].
    pub async fn sync(&self) -> io::Result<()> {
        let work = Work::Sync { file: self.fd.clone(), data_only: true };
        self.ring.start(work).await.result.map(drop)
    }

    /// See [`crate::File::allocate`].
    pub async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let work = Work::Allocate { file: self.fd.clone(), offset, len };
        self.ring.start(work).await.result.map(drop)
    }

    /// See [`crate::File::len`].
    // Async as its simulated counterpart may become; both calls below answer from memory.
    #[allow(clippy::unused_async, clippy::len_without_is_empty)]
    pub async fn len(&self) -> io::Result<u64> {
        let stat = self.stat()?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFBLK {
            return Ok(stat.st_size as u64);
        }
        // The descriptor's own position is not used: all I/O names its offset.
        // SAFETY: a system call without pointers.
        match unsafe { libc::lseek(self.fd.as_raw_fd(), 0, libc::SEEK_END) } {
            end if end >= 0 => Ok(end as u64),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// See [`crate::File::allocated`].
    pub fn allocated(&self) -> io::Result<u64> {
        const BLOCK: u64 = 512; // The unit of `st_blocks`, whatever the file system's.
        Ok(self.stat()?.st_blocks as u64 * BLOCK)
    }

    fn stat(&self) -> io::Result<libc::stat> {
        // SAFETY: all-zero bytes are a valid stat, the call fills it in.
        let (result, stat) = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            (libc::fstat(self.fd.as_raw_fd(), &raw mut stat), stat)
        };
        if result == 0 { Ok(stat) } else { Err(io::Error::last_os_error()) }
    }

    /// See [`crate::File::set_len`].
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        let file = std::fs::File::from(self.fd.try_clone()?);
        // Freeing blocks takes long: tens of ms per GiB.
        self.helpers.run("set_len", move || file.set_len(len)).await
    }

    /// See [`crate::File::try_lock`].
    pub fn try_lock(&self) -> io::Result<()> {
        // SAFETY: a system call without pointers.
        match unsafe { libc::flock(self.fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl fmt::Debug for RealFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealFile({})", self.fd.as_raw_fd())
    }
}

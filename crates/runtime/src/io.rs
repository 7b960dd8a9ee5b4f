//! Files and byte streams, the same over both drivers.

use std::io;
use std::net::SocketAddr;

use crate::buf::{Buf, BufMut};
use crate::sim;
use crate::uring;

/// Options for opening a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions {
    /// Allow writes.
    pub write: bool,
    /// Make the file when it is absent.
    pub create: bool,
    /// Make the file, and fail when it is there.
    pub create_new: bool,
    /// Bypass the page cache: offsets, lengths and buffers in multiples of 4096 bytes.
    pub direct: bool,
}

impl OpenOptions {
    /// Read only.
    pub const READ: OpenOptions =
        OpenOptions { write: false, create: false, create_new: false, direct: false };
    /// Read and write, made when absent.
    pub const CREATE: OpenOptions =
        OpenOptions { write: true, create: true, create_new: false, direct: false };

    /// The same, bypassing the page cache.
    pub const fn direct(mut self) -> OpenOptions {
        self.direct = true;
        self
    }
}

/// Whether a write is durable when it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteMode {
    /// Durable after the next [`File::sync`] that starts later.
    Cached,
    /// Durable on return (`O_DSYNC` of this one write).
    Durable,
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Entry {
    /// Name within the directory.
    pub name: String,
    /// True for a directory.
    pub is_dir: bool,
    /// Bytes, for a file.
    pub len: u64,
}

/// An open file. Clones share it.
#[derive(Clone, Debug)]
pub enum File {
    /// Through `io_uring`.
    #[doc(hidden)]
    Real(uring::RealFile),
    /// Simulated.
    #[doc(hidden)]
    Sim(sim::SimFile),
}

impl File {
    /// Reads into the whole of `buf`. Short only at the end of the file.
    pub async fn read_at(&self, offset: u64, buf: BufMut) -> (io::Result<usize>, BufMut) {
        match self {
            File::Real(file) => file.read_at(offset, buf).await,
            File::Sim(file) => file.read_at(offset, buf).await,
        }
    }

    /// Writes the whole of `buf`. On error any part of it may have been written. The write
    /// goes on when the returned future is dropped.
    pub async fn write_at(&self, offset: u64, buf: Buf, mode: WriteMode) -> io::Result<()> {
        match self {
            File::Real(file) => file.write_at(offset, buf, mode).await,
            File::Sim(file) => file.write_at(offset, buf, mode).await,
        }
    }

    /// Writes `bufs` in order, without gaps, as one operation of the device.
    pub async fn write_vectored_at(
        &self,
        offset: u64,
        bufs: Vec<Buf>,
        mode: WriteMode,
    ) -> io::Result<()> {
        match self {
            File::Real(file) => file.write_vectored_at(offset, bufs, mode).await,
            File::Sim(file) => file.write_vectored_at(offset, bufs, mode).await,
        }
    }

    /// Makes every write that has returned durable. An error is final: what was written since the
    /// last successful sync is in doubt for ever (`protocols.md` 3.6).
    pub async fn sync(&self) -> io::Result<()> {
        match self {
            File::Real(file) => file.sync().await,
            File::Sim(file) => file.sync().await,
        }
    }

    /// Reserves space for `len` bytes at `offset`, growing the file. Unwritten bytes read as zeros.
    pub async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match self {
            File::Real(file) => file.allocate(offset, len).await,
            File::Sim(file) => file.allocate(offset, len).await,
        }
    }

    /// Bytes in the file (of a block device, its capacity).
    pub async fn len(&self) -> io::Result<u64> {
        match self {
            File::Real(file) => file.len().await,
            File::Sim(file) => file.len(),
        }
    }

    /// Bytes of the medium that the file takes: fewer than its length where it has holes. A simulated
    /// file has none. Not for block devices.
    pub fn allocated(&self) -> io::Result<u64> {
        match self {
            File::Real(file) => file.allocated(),
            File::Sim(file) => file.len(),
        }
    }

    /// Cuts or extends the file.
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        match self {
            File::Real(file) => file.set_len(len).await,
            File::Sim(file) => file.set_len(len),
        }
    }

    /// Claims the file for this process; [`io::ErrorKind::WouldBlock`] when another has it.
    /// Held until the last clone is dropped.
    pub fn try_lock(&self) -> io::Result<()> {
        match self {
            File::Real(file) => file.try_lock(),
            File::Sim(file) => file.try_lock(),
        }
    }
}

/// Accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// A TCP or Unix socket.
    #[doc(hidden)]
    Real(uring::RealListener),
    /// Simulated.
    #[doc(hidden)]
    Sim(sim::SimListener),
}

impl Listener {
    /// The next connection. Dropping the future loses none.
    pub async fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Real(listener) => listener.accept().await,
            Listener::Sim(listener) => listener.accept().await,
        }
    }

    /// The address that peers reach it at.
    pub fn local_addr(&self) -> SocketAddr {
        match self {
            Listener::Real(listener) => listener.local_addr(),
            Listener::Sim(listener) => listener.local_addr(),
        }
    }
}

/// A connected byte stream, as its two directions.
#[derive(Debug)]
pub struct Stream {
    /// Bytes that the peer sends.
    pub read: ReadHalf,
    /// Bytes that the peer receives.
    pub write: WriteHalf,
    /// The peer's address; 0.0.0.0:0 when it came through a Unix socket.
    pub peer: SocketAddr,
}

/// The receiving direction of a [`Stream`].
#[derive(Debug)]
pub enum ReadHalf {
    /// A TCP or Unix socket.
    #[doc(hidden)]
    Real(uring::RealReadHalf),
    /// Simulated.
    #[doc(hidden)]
    Sim(sim::SimReadHalf),
}

impl ReadHalf {
    /// Reads what is there, at least a byte, into `buf[start..]`. `Ok(0)` is the end.
    /// Dropping the future loses the buffer, and possibly bytes: then drop the stream too.
    pub async fn read(&mut self, buf: BufMut, start: usize) -> (io::Result<usize>, BufMut) {
        match self {
            ReadHalf::Real(half) => half.read(buf, start).await,
            ReadHalf::Sim(half) => half.read(buf, start).await,
        }
    }
}

/// The sending direction of a [`Stream`]. Dropping it ends the direction.
#[derive(Debug)]
pub enum WriteHalf {
    /// A TCP or Unix socket.
    #[doc(hidden)]
    Real(uring::RealWriteHalf),
    /// Simulated.
    #[doc(hidden)]
    Sim(sim::SimWriteHalf),
}

impl WriteHalf {
    /// Sends all of `bufs` in order, in as few system calls as possible. When the future is
    /// dropped, any part of them may be sent later or never: then drop the stream too.
    pub async fn write_all(&mut self, bufs: Vec<Buf>) -> io::Result<()> {
        match self {
            WriteHalf::Real(half) => half.write_all(bufs).await,
            WriteHalf::Sim(half) => half.write_all(bufs).await,
        }
    }
}

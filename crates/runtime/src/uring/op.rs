//! The ring's work for one caller: an operation, with all memory that the kernel accesses.
//! An operation may take several submissions (short reads and writes). It goes on to its end when
//! its caller has gone.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use io_uring::{opcode, squeue, types};

use super::addr::RawAddr;
use crate::buf::{Buf, BufMut};
use crate::limits::{SEND_IOVECS_MAX, WRITE_IOVECS_MAX};

/// One operation. It owns (or shares) all memory and descriptors that its entries point to.
pub(crate) enum Work {
    /// Reads into all of `buf`.
    Read { file: Rc<OwnedFd>, buf: BufMut, offset: u64, done: usize, direct: bool },
    /// Writes all of `bufs`.
    Write { file: Rc<OwnedFd>, bufs: Gather, offset: u64, rw_flags: i32 },
    /// Makes a file's bytes and length durable, or all of it when not `data_only`.
    Sync { file: Rc<OwnedFd>, data_only: bool },
    /// Reserves space.
    Allocate { file: Rc<OwnedFd>, offset: u64, len: u64 },
    /// Receives at least a byte into `buf[start..]`.
    Recv { socket: Rc<OwnedFd>, buf: BufMut, start: usize },
    /// Sends all of `bufs`.
    Send { socket: Rc<OwnedFd>, bufs: Gather },
    /// The next connection.
    Accept { socket: Rc<OwnedFd>, peer: Box<RawAddr> },
    /// Connects.
    Connect { socket: Rc<OwnedFd>, peer: Box<RawAddr> },
    /// Opens a path.
    Open { path: CString, flags: i32 },
    /// Renames a path.
    Rename { from: CString, to: CString },
    /// Removes a file's name.
    Unlink { path: CString },
    /// Reads the wake counter.
    Wake { event: Rc<OwnedFd>, count: Box<u64> },
}

/// Meaning of a submission's end.
pub(crate) enum Step {
    /// Submit the operation again: more is to be done.
    Again,
    /// The operation has ended with this many bytes, or this descriptor.
    Ended(io::Result<u32>),
}

impl Work {
    /// True when the operation may wait for ever and loses nothing that its caller relies on
    /// when it is cancelled.
    pub(crate) fn cancel_on_drop(&self) -> bool {
        matches!(
            self,
            Work::Recv { .. } | Work::Accept { .. } | Work::Connect { .. } | Work::Wake { .. }
        )
    }

    /// True when a runtime that stops must wait for it: it may change what is on disk.
    pub(crate) fn is_finite(&self) -> bool {
        !self.cancel_on_drop() && !matches!(self, Work::Send { .. })
    }

    /// The entry that starts or continues the operation.
    pub(crate) fn entry(&mut self) -> squeue::Entry {
        match self {
            Work::Read { file, buf, offset, done, .. } => {
                let rest = &mut buf[*done..];
                opcode::Read::new(fd(file), rest.as_mut_ptr(), len32(rest.len()))
                    .offset(*offset + *done as u64)
                    .build()
            }
            Work::Write { file, bufs, offset, rw_flags } => {
                let at = *offset + bufs.done as u64;
                match bufs.next(WRITE_IOVECS_MAX) {
                    Next::One(start, len) => opcode::Write::new(fd(file), start, len)
                        .offset(at)
                        .rw_flags(*rw_flags)
                        .build(),
                    Next::Many(scratch) => {
                        let iov = &scratch.iov;
                        opcode::Writev::new(fd(file), iov.as_ptr(), len32(iov.len()))
                            .offset(at)
                            .rw_flags(*rw_flags)
                            .build()
                    }
                }
            }
            Work::Sync { file, data_only } => {
                let data = types::FsyncFlags::DATASYNC;
                let flags = if *data_only { data } else { types::FsyncFlags::empty() };
                opcode::Fsync::new(fd(file)).flags(flags).build()
            }
            Work::Allocate { file, offset, len } => {
                opcode::Fallocate::new(fd(file), *len).offset(*offset).build()
            }
            Work::Recv { socket, buf, start } => {
                let rest = &mut buf[*start..];
                opcode::Recv::new(fd(socket), rest.as_mut_ptr(), len32(rest.len())).build()
            }
            Work::Send { socket, bufs } => {
                // The kernel goes on after a short send by itself (MSG_WAITALL).
                let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
                match bufs.next(SEND_IOVECS_MAX) {
                    Next::One(start, len) => {
                        opcode::Send::new(fd(socket), start, len).flags(flags).build()
                    }
                    Next::Many(scratch) => {
                        scratch.message.msg_iov = scratch.iov.as_mut_ptr();
                        scratch.message.msg_iovlen = scratch.iov.len();
                        opcode::SendMsg::new(fd(socket), &scratch.message)
                            .flags(flags as u32)
                            .build()
                    }
                }
            }
            Work::Accept { socket, peer } => {
                let (addr, len) = peer.for_kernel();
                opcode::Accept::new(fd(socket), addr, len).flags(libc::SOCK_CLOEXEC).build()
            }
            Work::Connect { socket, peer } => {
                opcode::Connect::new(fd(socket), peer.as_ptr(), peer.len()).build()
            }
            Work::Open { path, flags } => {
                opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr())
                    .flags(*flags)
                    .mode(0o644)
                    .build()
            }
            Work::Rename { from, to } => {
                let here = types::Fd(libc::AT_FDCWD);
                opcode::RenameAt::new(here, from.as_ptr(), here, to.as_ptr()).build()
            }
            Work::Unlink { path } => {
                opcode::UnlinkAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).build()
            }
            Work::Wake { event, count } => {
                let count: *mut u64 = &mut **count;
                opcode::Read::new(fd(event), count.cast(), 8).build()
            }
        }
    }

    /// Takes in the result of a submission. `stopping`: what was cancelled does not start again;
    /// disk operations still go on to their end.
    pub(crate) fn advance(&mut self, result: i32, stopping: bool) -> Step {
        if result < 0 {
            if result == -libc::EINTR && !stopping {
                return Step::Again;
            }
            return Step::Ended(Err(io::Error::from_raw_os_error(-result)));
        }
        let count = result as u32;
        match self {
            Work::Read { buf, done, direct, .. } => {
                *done += count as usize;
                // A direct read that ends within a sector has met the end of the file.
                let at_end = count == 0 || (*direct && !done.is_multiple_of(512));
                if *done == buf.len() || at_end {
                    return Step::Ended(Ok(*done as u32));
                }
                Step::Again
            }
            Work::Write { bufs, .. } | Work::Send { bufs, .. } => {
                bufs.advance(count as usize);
                if bufs.left == 0 {
                    return Step::Ended(Ok(0));
                }
                if count == 0 {
                    return Step::Ended(Err(io::ErrorKind::WriteZero.into()));
                }
                if stopping && matches!(self, Work::Send { .. }) {
                    return Step::Ended(Err(io::Error::from_raw_os_error(libc::ECANCELED)));
                }
                Step::Again
            }
            _ => Step::Ended(Ok(count)),
        }
    }

    /// Releases what a result holds when no task takes it.
    pub(crate) fn discard(&self, result: io::Result<u32>) {
        if let (Work::Accept { .. } | Work::Open { .. }, Ok(raw)) = (self, result) {
            // SAFETY: the kernel has just made this descriptor for us, and it has no other owner.
            drop(unsafe { OwnedFd::from_raw_fd(raw as i32) });
        }
    }
}

/// The descriptor that an accept or open ended with.
///
/// The caller passes the result of such an operation, once.
pub(crate) fn owned_fd(raw: u32) -> OwnedFd {
    // SAFETY: called once with the result of an accept or open, which has no other owner.
    unsafe { OwnedFd::from_raw_fd(raw as i32) }
}

fn fd(file: &Rc<OwnedFd>) -> types::Fd {
    types::Fd(file.as_raw_fd())
}

fn len32(len: usize) -> u32 {
    u32::try_from(len).expect("a buffer is at most BUF_MAX bytes")
}

/// Buffers to be written in order, without gaps, and how far that has come.
pub(crate) struct Gather {
    bufs: List,
    /// First buffer that is not done, and the bytes of it that are.
    index: usize,
    within: usize,
    done: usize,
    left: usize,
    scratch: Option<Box<Scratch>>,
}

enum List {
    One([Buf; 1]),
    Many(Vec<Buf>),
}

/// Arguments of a vectored operation for the kernel. On the heap, because they must not move.
struct Scratch {
    iov: Vec<libc::iovec>,
    message: libc::msghdr,
}

enum Next<'a> {
    One(*const u8, u32),
    Many(&'a mut Scratch),
}

impl From<Buf> for Gather {
    fn from(buf: Buf) -> Gather {
        Gather::new(List::One([buf]))
    }
}

impl From<Vec<Buf>> for Gather {
    fn from(mut bufs: Vec<Buf>) -> Gather {
        match bufs.len() {
            1 => Gather::new(List::One([bufs.pop().expect("one buffer")])),
            _ => Gather::new(List::Many(bufs)),
        }
    }
}

impl Gather {
    fn new(bufs: List) -> Gather {
        let mut gather = Gather { bufs, index: 0, within: 0, done: 0, left: 0, scratch: None };
        gather.left = gather.as_slice().iter().map(|buf| buf.len()).sum();
        gather.skip_done();
        gather
    }

    /// Bytes that are not yet written.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    fn as_slice(&self) -> &[Buf] {
        match &self.bufs {
            List::One(one) => one,
            List::Many(many) => many,
        }
    }

    /// The bytes for the next submission: at most `max` pieces.
    fn next(&mut self, max: usize) -> Next<'_> {
        let bufs = match &self.bufs {
            List::One(one) => &one[..],
            List::Many(many) => &many[..],
        };
        let rest = &bufs[self.index..];
        let first = &rest[0][self.within..];
        if rest.len() == 1 {
            return Next::One(first.as_ptr(), len32(first.len()));
        }
        let scratch = self.scratch.get_or_insert_with(|| {
            // SAFETY: all-zero bytes are a valid msghdr: null pointers and zero lengths.
            let message = unsafe { std::mem::zeroed() };
            Box::new(Scratch { iov: Vec::with_capacity(rest.len().min(max)), message })
        });
        let piece = |bytes: &[u8]| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        scratch.iov.clear();
        scratch.iov.push(piece(first));
        scratch.iov.extend(rest[1..].iter().take(max - 1).map(|buf| piece(buf)));
        Next::Many(scratch)
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.left, "the kernel wrote {count} bytes of {}", self.left);
        self.done += count;
        self.left -= count;
        self.within += count;
        self.skip_done();
    }

    /// Moves past buffers that are done, empty ones among them.
    fn skip_done(&mut self) {
        while let Some(len) = self.as_slice().get(self.index).map(|buf| buf.len()) {
            if self.within < len {
                return;
            }
            self.within -= len;
            self.index += 1;
        }
    }
}

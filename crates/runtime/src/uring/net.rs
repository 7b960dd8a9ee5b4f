//! TCP through the ring.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;

use super::addr::RawAddr;
use super::op::{Work, owned_fd};
use super::ring::{Done, Op, Ring};
use crate::buf::{Buf, BufMut};
use crate::io::{ReadHalf, Stream, WriteHalf};
use crate::limits::LISTEN_BACKLOG;
use crate::sync::Mutex;

pub(crate) fn listen(ring: Rc<Ring>, addr: SocketAddr) -> io::Result<RealListener> {
    let socket = TcpListener::bind(addr)?; // Sets SO_REUSEADDR.
    // SAFETY: a system call without pointers. A second listen only changes the backlog.
    if unsafe { libc::listen(socket.as_raw_fd(), LISTEN_BACKLOG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let local = socket.local_addr()?;
    let socket = Rc::new(OwnedFd::from(socket));
    Ok(RealListener { ring, socket, local, next: RefCell::new(None), turn: Mutex::new(()) })
}

pub(crate) async fn connect(ring: Rc<Ring>, addr: SocketAddr) -> io::Result<Stream> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: a system call without pointers.
    let raw = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and is owned by nobody else.
    let socket = Rc::new(unsafe { OwnedFd::from_raw_fd(raw) });
    let work = Work::Connect { socket: socket.clone(), peer: RawAddr::new(addr) };
    // The operation goes before the socket is used: it holds the other reference.
    let Done { result, work } = ring.start(work).await;
    drop(work);
    result?;
    stream(ring, socket, addr)
}

fn stream(ring: Rc<Ring>, socket: Rc<OwnedFd>, peer: SocketAddr) -> io::Result<Stream> {
    set_nodelay(&socket)?;
    let read = RealReadHalf { ring: ring.clone(), socket: socket.clone() };
    let write = RealWriteHalf { ring, socket, unfinished: None };
    Ok(Stream { read: ReadHalf::Real(read), write: WriteHalf::Real(write), peer })
}

fn set_nodelay(socket: &OwnedFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is an int, and lives across the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn shutdown(socket: &OwnedFd, how: libc::c_int) {
    // SAFETY: a system call without pointers. It fails when the peer has closed: fine.
    unsafe { libc::shutdown(socket.as_raw_fd(), how) };
}

/// Accepts TCP connections.
pub struct RealListener {
    ring: Rc<Ring>,
    socket: Rc<OwnedFd>,
    local: SocketAddr,
    /// The accept in flight. It stays when a caller's future is dropped, so that no connection
    /// is lost between two calls.
    next: RefCell<Option<Op>>,
    /// One caller waits on `next` at a time.
    turn: Mutex<()>,
}

impl RealListener {
    /// See [`crate::Listener::accept`].
    pub async fn accept(&self) -> io::Result<Stream> {
        let _turn = self.turn.lock().await;
        let done = poll_fn(|cx| {
            let next = &mut *self.next.borrow_mut();
            let op = next.get_or_insert_with(|| {
                let socket = self.socket.clone();
                self.ring.start(Work::Accept { socket, peer: RawAddr::empty() })
            });
            Pin::new(op).poll(cx)
        })
        .await;
        self.next.borrow_mut().take();
        let Done { work, result } = done;
        let Work::Accept { peer, .. } = work else { unreachable!("an accept stays one") };
        let socket = Rc::new(owned_fd(result?));
        let peer = peer.get().ok_or(io::ErrorKind::AddrNotAvailable)?;
        stream(self.ring.clone(), socket, peer)
    }

    /// See [`crate::Listener::local_addr`].
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for RealListener {
    fn drop(&mut self) {
        // Refuses new connections at once, whatever is still in flight.
        shutdown(&self.socket, libc::SHUT_RDWR);
    }
}

impl fmt::Debug for RealListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealListener({})", self.local)
    }
}

/// The receiving direction of a TCP connection.
pub struct RealReadHalf {
    ring: Rc<Ring>,
    socket: Rc<OwnedFd>,
}

impl RealReadHalf {
    /// See [`crate::ReadHalf::read`].
    pub async fn read(&mut self, buf: BufMut, start: usize) -> (io::Result<usize>, BufMut) {
        assert!(start < buf.len(), "no room to read into");
        let work = Work::Recv { socket: self.socket.clone(), buf, start };
        let Done { work, result } = self.ring.start(work).await;
        let Work::Recv { buf, .. } = work else { unreachable!("a receive stays one") };
        (result.map(|count| count as usize), buf)
    }
}

impl Drop for RealReadHalf {
    fn drop(&mut self) {
        // Ends a receive that its caller has dropped, before its cancellation is submitted.
        shutdown(&self.socket, libc::SHUT_RD);
    }
}

impl fmt::Debug for RealReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealReadHalf({})", self.socket.as_raw_fd())
    }
}

/// The sending direction of a TCP connection.
pub struct RealWriteHalf {
    ring: Rc<Ring>,
    socket: Rc<OwnedFd>,
    /// A send whose caller's future was dropped. It goes on to its end, so that what follows
    /// starts at a boundary.
    unfinished: Option<Op>,
}

impl RealWriteHalf {
    /// See [`crate::WriteHalf::write_all`].
    pub async fn write_all(&mut self, bufs: Vec<Buf>) -> io::Result<()> {
        self.finish().await?;
        let work = Work::Send { socket: self.socket.clone(), bufs: bufs.into() };
        if matches!(&work, Work::Send { bufs, .. } if bufs.left() == 0) {
            return Ok(());
        }
        self.unfinished = Some(self.ring.start(work));
        self.finish().await
    }

    async fn finish(&mut self) -> io::Result<()> {
        let Some(op) = &mut self.unfinished else { return Ok(()) };
        let Done { result, .. } = op.await;
        self.unfinished = None;
        result.map(drop)
    }
}

impl Drop for RealWriteHalf {
    fn drop(&mut self) {
        // Ends the direction; a send in flight fails rather than wait for its peer for ever.
        shutdown(&self.socket, libc::SHUT_WR);
    }
}

impl fmt::Debug for RealWriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealWriteHalf({})", self.socket.as_raw_fd())
    }
}

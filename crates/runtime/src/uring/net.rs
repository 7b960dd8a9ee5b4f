//! TCP and Unix sockets through the ring.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use super::addr::RawAddr;
use super::op::{Work, owned_fd};
use super::ring::{Done, Op, Ring};
use crate::buf::{Buf, BufMut};
use crate::io::{ReadHalf, Stream, WriteHalf};
use crate::limits::LISTEN_BACKLOG;
use crate::sync::Mutex;

/// A connection without traffic for this long is probed, this often, and given up after this many
/// probes without an answer. A peer that has died is noticed after a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// See [`KEEPALIVE_IDLE`].
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(10);
/// See [`KEEPALIVE_IDLE`].
const KEEPALIVE_PROBES: u32 = 3;

/// The address that stands for a process on this machine.
const NEARBY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

pub(crate) fn listen(ring: Rc<Ring>, addr: SocketAddr) -> io::Result<RealListener> {
    let socket = TcpListener::bind(addr)?; // Sets SO_REUSEADDR.
    // SAFETY: a system call without pointers. A second listen only changes the backlog.
    if unsafe { libc::listen(socket.as_raw_fd(), LISTEN_BACKLOG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let local = socket.local_addr()?;
    let socket = Rc::new(OwnedFd::from(socket));
    Ok(RealListener::new(ring, socket, local, None))
}

pub(crate) fn listen_unix(ring: Rc<Ring>, path: &Path) -> io::Result<RealListener> {
    let name = RawAddr::of_path(path)?;
    remove_dead(path)?;
    let socket = Rc::new(make(libc::AF_UNIX)?);
    let fd = socket.as_raw_fd();
    let check = |result: libc::c_int| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: a system call without pointers. The file that bind makes gets the socket's mode.
    check(unsafe { libc::fchmod(fd, 0o600) })?;
    // SAFETY: the name lives across the call, and has the length that is passed.
    check(unsafe { libc::bind(fd, name.as_ptr(), name.len()) })?;
    let path = path.to_owned();
    let listener = RealListener::new(ring, socket, NEARBY, Some(path));
    // SAFETY: a system call without pointers.
    check(unsafe { libc::listen(fd, LISTEN_BACKLOG) })?;
    Ok(listener)
}

/// Removes the socket of a process that has died.
fn remove_dead(path: &Path) -> io::Result<()> {
    let facts = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        facts => facts?,
    };
    if !facts.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is no socket"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}

fn make(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: a system call without pointers.
    let raw = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

pub(crate) async fn connect(ring: Rc<Ring>, addr: SocketAddr) -> io::Result<Stream> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = Rc::new(make(family)?);
    let work = Work::Connect { socket: socket.clone(), peer: RawAddr::new(addr) };
    // The operation goes before the socket is used: it holds the other reference.
    let Done { result, work } = ring.start(work).await;
    drop(work);
    result?;
    set_options(&socket)?;
    Ok(stream(ring, socket, addr))
}

fn stream(ring: Rc<Ring>, socket: Rc<OwnedFd>, peer: SocketAddr) -> Stream {
    let read = RealReadHalf { ring: ring.clone(), socket: socket.clone() };
    let write = RealWriteHalf { ring, socket, unfinished: None };
    Stream { read: ReadHalf::Real(read), write: WriteHalf::Real(write), peer }
}

/// Sets the options of a TCP stream. Its reads and writes fail a minute after its peer's host has
/// died without a word.
fn set_options(socket: &OwnedFd) -> io::Result<()> {
    let seconds = |span: Duration| span.as_secs() as libc::c_int;
    let user_timeout = (KEEPALIVE_IDLE + KEEPALIVE_PAUSE * KEEPALIVE_PROBES).as_millis();
    for (level, option, value) in [
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds(KEEPALIVE_IDLE)),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds(KEEPALIVE_PAUSE)),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEPALIVE_PROBES as libc::c_int),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, user_timeout as libc::c_int),
    ] {
        set_option(socket, level, option, value)?;
    }
    Ok(())
}

fn set_option(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the option's value is an int, and lives across the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn shutdown(socket: &OwnedFd, how: libc::c_int) {
    // SAFETY: a system call without pointers. It fails when the peer has closed: fine.
    unsafe { libc::shutdown(socket.as_raw_fd(), how) };
}

/// Accepts connections.
pub struct RealListener {
    ring: Rc<Ring>,
    socket: Rc<OwnedFd>,
    local: SocketAddr,
    /// Of a Unix socket: its name, which goes with the listener.
    path: Option<PathBuf>,
    /// The accept in flight. It stays when a caller's future is dropped, so that no connection
    /// is lost between two calls.
    next: RefCell<Option<Op>>,
    /// One caller waits on `next` at a time.
    turn: Mutex<()>,
}

impl RealListener {
    fn new(
        ring: Rc<Ring>,
        socket: Rc<OwnedFd>,
        local: SocketAddr,
        path: Option<PathBuf>,
    ) -> RealListener {
        let (next, turn) = (RefCell::new(None), Mutex::new(()));
        RealListener { ring, socket, local, path, next, turn }
    }

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
        if self.path.is_some() {
            return Ok(stream(self.ring.clone(), socket, NEARBY));
        }
        let peer = peer.get().ok_or(io::ErrorKind::AddrNotAvailable)?;
        set_options(&socket)?;
        Ok(stream(self.ring.clone(), socket, peer))
    }

    /// See [`crate::Listener::local_addr`].
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for RealListener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path); // What is left is found dead by the next one.
        }
        // Refuses new connections at once, whatever is still in flight.
        shutdown(&self.socket, libc::SHUT_RDWR);
    }
}

impl fmt::Debug for RealListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealListener({})", self.local)
    }
}

/// The receiving direction of a connection.
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

/// The sending direction of a connection.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Runtime, RuntimeConfig};

    fn option(stream: &Stream, level: libc::c_int, option: libc::c_int) -> libc::c_int {
        let ReadHalf::Real(RealReadHalf { socket, .. }) = &stream.read else {
            unreachable!("it is no simulated one")
        };
        let (mut value, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: value and length live across the call, and the length is the value's.
        let result = unsafe {
            let value = (&raw mut value).cast();
            libc::getsockopt(socket.as_raw_fd(), level, option, value, &raw mut len)
        };
        assert_eq!(result, 0);
        value
    }

    #[test]
    fn tcp_streams_probe_a_peer_that_is_silent() {
        let runtime = Runtime::new(RuntimeConfig::named("test")).expect("a ring");
        let env = runtime.env().clone();
        runtime.block_on(async {
            let listener = env.listen("127.0.0.1:0".parse().expect("valid")).await;
            let listener = listener.expect("a free port");
            let client = env.connect(listener.local_addr()).await.expect("it listens");
            let server = listener.accept().await.expect("it has come");
            for stream in [&client, &server] {
                let of_tcp = |name| option(stream, libc::IPPROTO_TCP, name);
                assert_ne!(option(stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE), 0);
                assert_eq!(of_tcp(libc::TCP_KEEPIDLE), 30);
                assert_eq!(of_tcp(libc::TCP_KEEPINTVL), 10);
                assert_eq!(of_tcp(libc::TCP_KEEPCNT), 3);
                assert_eq!(of_tcp(libc::TCP_USER_TIMEOUT), 60_000);
            }
        });
    }
}

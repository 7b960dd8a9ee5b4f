//! Simulated connections: latency, partitions, resets, silence after a power cut.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::Notify;

use super::world::{CrashMode, HostId, NetFaults, World, host_of_ip, ip_of};
use crate::buf::{Buf, BufMut};
use crate::env::FrameFate;
use crate::io::{ReadHalf, Stream, WriteHalf};

/// Bytes in flight on one direction before its sender waits: a socket buffer.
const PIPE_BYTES_MAX: usize = 1 << 20;
/// A connection attempt without an answer fails after this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// First port given to those who ask for port 0.
const FIRST_FREE_PORT: u16 = 20_000;

#[derive(Default)]
pub(crate) struct Net {
    pub(crate) faults: RefCell<NetFaults>,
    /// Closed paths, with how much each has held back.
    blocked: RefCell<BTreeMap<(HostId, HostId), u64>>,
    /// Hosts that get nothing of what others began.
    grey: RefCell<BTreeSet<HostId>>,
    /// Those that get nothing of what one other began: that one first.
    grey_to: RefCell<BTreeSet<(HostId, HostId)>>,
    listeners: RefCell<BTreeMap<SocketAddr, Rc<Backlog>>>,
    pipes: RefCell<Vec<Weak<Pipe>>>,
    changed: Notify,
    next_port: Cell<u16>,
}

struct Backlog {
    node: u32,
    waiting: RefCell<VecDeque<Stream>>,
    arrived: Notify,
}

impl Net {
    pub(crate) fn is_blocked(&self, from: HostId, to: HostId) -> bool {
        self.blocked.borrow().contains_key(&(from, to))
    }

    pub(crate) fn held(&self, from: HostId, to: HostId) -> u64 {
        self.blocked.borrow().get(&(from, to)).copied().unwrap_or(0)
    }

    /// Notes something that a closed path holds back.
    fn hold(&self, from: HostId, to: HostId) {
        if let Some(held) = self.blocked.borrow_mut().get_mut(&(from, to)) {
            *held += 1;
        }
    }

    pub(crate) fn set_blocked(&self, from: HostId, to: HostId, blocked: bool) {
        if blocked {
            self.blocked.borrow_mut().entry((from, to)).or_default();
        } else {
            self.blocked.borrow_mut().remove(&(from, to));
            self.wake_all();
        }
    }

    pub(crate) fn set_grey(&self, host: HostId, grey: bool) {
        if grey {
            self.grey.borrow_mut().insert(host);
        } else if self.grey.borrow_mut().remove(&host) {
            self.wake_all();
        }
    }

    pub(crate) fn set_grey_to(&self, from: HostId, to: HostId, grey: bool) {
        if grey {
            self.grey_to.borrow_mut().insert((from, to));
        } else if self.grey_to.borrow_mut().remove(&(from, to)) {
            self.wake_all();
        }
    }

    fn is_grey(&self, from: HostId, to: HostId) -> bool {
        self.grey.borrow().contains(&to) || self.grey_to.borrow().contains(&(from, to))
    }

    pub(crate) fn unblock_all(&self) {
        self.blocked.borrow_mut().clear();
        self.grey.borrow_mut().clear();
        self.grey_to.borrow_mut().clear();
        self.wake_all();
    }

    fn wake_all(&self) {
        self.changed.notify_waiters();
        for pipe in self.live_pipes() {
            pipe.readable.notify_one();
            pipe.writable.notify_one();
        }
    }

    fn live_pipes(&self) -> Vec<Rc<Pipe>> {
        let mut pipes = self.pipes.borrow_mut();
        pipes.retain(|pipe| pipe.strong_count() > 0);
        pipes.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn crash(&self, world: &World, host: HostId, node: u32, mode: CrashMode) {
        self.listeners.borrow_mut().retain(|_, backlog| backlog.node != node);
        for pipe in self.live_pipes() {
            if pipe.from_node.get() != node && pipe.to_node.get() != node {
                continue;
            }
            world.note(host.0 as u64, 0xc105);
            match mode {
                CrashMode::Process => pipe.reset(),
                CrashMode::Power => pipe.state.borrow_mut().silent = true,
            }
        }
    }

    pub(crate) fn frame_fate(&self, world: &World) -> FrameFate {
        let faults = self.faults.borrow();
        if world.one_in(faults.drop_one_in) {
            return FrameFate::Drop;
        }
        let pause = |world: &World| world.between((Duration::ZERO, faults.delay_max));
        if world.one_in(faults.delay_one_in) {
            return FrameFate::Delay(pause(world));
        }
        if world.one_in(faults.duplicate_one_in) {
            return FrameFate::Duplicate(pause(world));
        }
        FrameFate::Deliver
    }
}

#[derive(Default)]
struct PipeState {
    /// Segments with their arrival times, in order.
    queue: VecDeque<(u64, Buf)>,
    bytes: usize,
    /// The sender is done.
    ended: bool,
    reset: bool,
    /// The peer lost power: nothing comes, nothing is refused.
    silent: bool,
    last_arrival: u64,
}

/// One direction of a connection.
struct Pipe {
    from: HostId,
    to: HostId,
    /// The receiver accepted the connection, it did not begin it.
    is_inbound: bool,
    from_node: Cell<u32>,
    to_node: Cell<u32>,
    state: RefCell<PipeState>,
    readable: Notify,
    writable: Notify,
}

impl Pipe {
    fn new(
        world: &World,
        (from, from_node): (HostId, u32),
        (to, to_node): (HostId, u32),
        is_inbound: bool,
    ) -> Rc<Pipe> {
        let pipe = Rc::new(Pipe {
            from,
            to,
            is_inbound,
            from_node: Cell::new(from_node),
            to_node: Cell::new(to_node),
            state: RefCell::default(),
            readable: Notify::new(),
            writable: Notify::new(),
        });
        world.net.pipes.borrow_mut().push(Rc::downgrade(&pipe));
        pipe
    }

    fn reset(&self) {
        let dropped = {
            let state = &mut *self.state.borrow_mut();
            state.reset = true;
            std::mem::take(&mut state.queue)
        };
        drop(dropped);
        self.readable.notify_one();
        self.writable.notify_one();
    }
}

pub(crate) fn listen(
    world: &Rc<World>,
    host: HostId,
    node: u32,
    addr: SocketAddr,
) -> io::Result<SimListener> {
    let port = match addr.port() {
        0 => {
            let next = world.net.next_port.get().max(FIRST_FREE_PORT);
            world.net.next_port.set(next + 1);
            next
        }
        port => port,
    };
    let addr = SocketAddr::new(ip_of(host), port);
    let mut listeners = world.net.listeners.borrow_mut();
    if listeners.contains_key(&addr) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let backlog = Rc::new(Backlog { node, waiting: RefCell::default(), arrived: Notify::new() });
    listeners.insert(addr, backlog.clone());
    Ok(SimListener { world: world.clone(), addr, backlog })
}

pub(crate) async fn connect(
    world: Rc<World>,
    host: HostId,
    node: u32,
    addr: SocketAddr,
) -> io::Result<Stream> {
    let target = host_of_ip(addr.ip()).ok_or(io::ErrorKind::AddrNotAvailable)?;
    let latency = world.net.faults.borrow().latency;
    let give_up = world.core.now() + CONNECT_TIMEOUT.as_nanos() as u64;
    let round_trip = world.between(latency) + world.between(latency);
    world.sleep(round_trip).await;
    world.net.hold(host, target);
    loop {
        let blocked = world.net.is_blocked(host, target)
            || world.net.is_blocked(target, host)
            || world.net.is_grey(host, target);
        let powered =
            world.hosts.borrow().get(target.0).is_some_and(|h| h.running.borrow().is_some());
        if !blocked && powered {
            break;
        }
        if !blocked && world.one_in(2) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        if world.core.now() >= give_up {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let retry = world.sleep(Duration::from_millis(200));
        select(Box::pin(world.net.changed.notified()), retry).await;
    }
    let backlog = world.net.listeners.borrow().get(&addr).cloned();
    let Some(backlog) = backlog else {
        return Err(io::ErrorKind::ConnectionRefused.into());
    };
    let port = FIRST_FREE_PORT + (world.rng.borrow_mut().below(40_000)) as u16;
    let here = SocketAddr::new(ip_of(host), port);
    let (here_node, there_node) = ((host, node), (target, backlog.node));
    let out = Pipe::new(&world, here_node, there_node, true);
    let back = Pipe::new(&world, there_node, here_node, false);
    let ends = |read: Rc<Pipe>, write: Rc<Pipe>, peer| Stream {
        read: ReadHalf::Sim(SimReadHalf { world: world.clone(), pipe: read }),
        write: WriteHalf::Sim(SimWriteHalf { world: world.clone(), pipe: write }),
        peer,
    };
    backlog.waiting.borrow_mut().push_back(ends(out.clone(), back.clone(), here));
    backlog.arrived.notify_one();
    world.note(host.0 as u64, target.0 as u64 ^ 0xc0);
    Ok(ends(back, out, addr))
}

/// Accepts simulated connections.
pub struct SimListener {
    world: Rc<World>,
    addr: SocketAddr,
    backlog: Rc<Backlog>,
}

impl SimListener {
    /// See [`crate::Listener::accept`].
    pub async fn accept(&self) -> io::Result<Stream> {
        loop {
            let next = self.backlog.waiting.borrow_mut().pop_front();
            if let Some(stream) = next {
                return Ok(stream);
            }
            self.backlog.arrived.notified().await;
        }
    }

    /// See [`crate::Listener::local_addr`].
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut listeners = self.world.net.listeners.borrow_mut();
        if listeners.get(&self.addr).is_some_and(|held| Rc::ptr_eq(held, &self.backlog)) {
            listeners.remove(&self.addr);
        }
    }
}

impl fmt::Debug for SimListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimListener({})", self.addr)
    }
}

/// The receiving direction of a simulated connection.
pub struct SimReadHalf {
    world: Rc<World>,
    pipe: Rc<Pipe>,
}

impl SimReadHalf {
    /// See [`crate::ReadHalf::read`].
    pub async fn read(&mut self, mut buf: BufMut, start: usize) -> (io::Result<usize>, BufMut) {
        assert!(start < buf.len(), "no room to read into");
        loop {
            let wait = match self.take(&mut buf[start..]) {
                Ok(Taken::Bytes(count)) => return (Ok(count), buf),
                Ok(Taken::NotBefore(at)) => at,
                Err(error) => return (Err(error), buf),
            };
            let readable = Box::pin(self.pipe.readable.notified());
            match wait {
                Some(at) => match select(readable, self.world.sleep_until(at)).await {
                    Either::Left(_) | Either::Right(_) => {}
                },
                None => readable.await,
            }
        }
    }

    fn take(&self, into: &mut [u8]) -> io::Result<Taken> {
        let net = &self.world.net;
        let blocked = net.is_blocked(self.pipe.from, self.pipe.to)
            || (self.pipe.is_inbound && net.is_grey(self.pipe.from, self.pipe.to));
        let state = &mut *self.pipe.state.borrow_mut();
        if state.reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if state.silent || blocked {
            return Ok(Taken::NotBefore(None));
        }
        let now = self.world.core.now();
        match state.queue.front_mut() {
            None if state.ended => Ok(Taken::Bytes(0)),
            None => Ok(Taken::NotBefore(None)),
            Some((at, _)) if *at > now => Ok(Taken::NotBefore(Some(*at))),
            Some((_, segment)) => {
                let mut count = segment.len().min(into.len());
                // Streams keep no message boundaries: now and then a read ends early.
                if count > 1 && self.world.one_in(16) {
                    count = self.world.rng.borrow_mut().between(1, count as u64) as usize;
                }
                into[..count].copy_from_slice(&segment[..count]);
                self.world.note_bytes(now, &segment[..count]);
                if count == segment.len() {
                    state.queue.pop_front();
                } else {
                    *segment = segment.slice(count..segment.len());
                }
                state.bytes -= count;
                self.pipe.writable.notify_one();
                Ok(Taken::Bytes(count))
            }
        }
    }
}

enum Taken {
    Bytes(usize),
    NotBefore(Option<u64>),
}

impl Drop for SimReadHalf {
    fn drop(&mut self) {
        // The peer's writes fail from here on.
        if !self.pipe.state.borrow().silent {
            self.pipe.reset();
        }
    }
}

impl fmt::Debug for SimReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimReadHalf({:?} to {:?})", self.pipe.from, self.pipe.to)
    }
}

/// The sending direction of a simulated connection.
pub struct SimWriteHalf {
    world: Rc<World>,
    pipe: Rc<Pipe>,
}

impl SimWriteHalf {
    /// See [`crate::WriteHalf::write_all`].
    pub async fn write_all(&mut self, bufs: Vec<Buf>) -> io::Result<()> {
        for buf in bufs.into_iter().filter(|buf| !buf.is_empty()) {
            while self.must_wait()? {
                self.pipe.writable.notified().await;
            }
            let faults = self.world.net.faults.borrow().clone();
            if self.world.one_in(faults.reset_one_in) {
                self.world.mark("net: connection reset");
                self.pipe.reset();
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let latency = self.world.between(faults.latency);
            let state = &mut *self.pipe.state.borrow_mut();
            let at = (self.world.core.now() + latency.as_nanos() as u64).max(state.last_arrival);
            state.last_arrival = at;
            state.bytes += buf.len();
            state.queue.push_back((at, buf));
            self.world.net.hold(self.pipe.from, self.pipe.to);
            self.pipe.readable.notify_one();
        }
        Ok(())
    }

    fn must_wait(&self) -> io::Result<bool> {
        let state = self.pipe.state.borrow();
        if state.reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(state.bytes >= PIPE_BYTES_MAX)
    }
}

impl Drop for SimWriteHalf {
    fn drop(&mut self) {
        self.pipe.state.borrow_mut().ended = true;
        self.pipe.readable.notify_one();
    }
}

impl fmt::Debug for SimWriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimWriteHalf({:?} to {:?})", self.pipe.from, self.pipe.to)
    }
}

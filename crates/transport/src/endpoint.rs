//! [`Endpoint`]: what roles call and listen with.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::time::Duration;

use base::ClusterId;
use runtime::{BufPool, Class, Env, Instant, JoinHandle, Listener, Stream};
use wire::handshake::ClusterKey;

use crate::connect::{Peer, boxed};
use crate::error::{CallError, TransportError};
use crate::handshake::{self, Failure, Own};
use crate::limits::{
    CONNECT_RESERVE_BYTES, EXTRA_SHARE, HELD_SHARE, LISTEN_RETRY, LISTEN_TIMEOUT, Limits,
    REFUSAL_LOG_PAUSE, RESERVE_BYTES,
};
use crate::link::{Common, Link, OpenedConnection, Owner};
use crate::local::{self, Caller, Local};
use crate::message::{Handler, PeerInfo, Request, Response, check_size};
use crate::stats::{COUNTED, ServiceStats, Stats};

/// Pause after a failed accept (no descriptors left, most often).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Identity of this process for its peers.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster; zero when not known yet: then it is learned from the first peer.
    pub cluster: ClusterId,
    /// The secret that all roles of the cluster share. Without it only loopback is served.
    pub key: Option<ClusterKey>,
    /// Role and ID, for operators: "chunkserver cs1".
    pub name: String,
}

/// Calls peers and serves calls. One per node and executor; clones share it. It lives until
/// [`Endpoint::close`], or with its executor.
#[derive(Clone)]
pub struct Endpoint(Rc<EndpointInner>);

pub(crate) struct EndpointInner {
    pub(crate) env: Env,
    pub(crate) limits: Rc<Limits>,
    reserve: BufPool,
    /// See [`CONNECT_RESERVE_BYTES`](crate::limits::CONNECT_RESERVE_BYTES).
    connect_reserve: BufPool,
    key: Option<ClusterKey>,
    name: String,
    /// As local handlers see this endpoint.
    own_info: Rc<PeerInfo>,
    cluster: Rc<Cell<ClusterId>>,
    peers: RefCell<BTreeMap<SocketAddr, Rc<Peer>>>,
    listening: RefCell<Vec<Listening>>,
    /// Links that are up, by number.
    links: RefCell<BTreeMap<u64, Rc<Link>>>,
    next_link: Cell<u64>,
    /// Accepted links that are up.
    accepted: Cell<usize>,
    /// Bytes that wait on them, as each has noted them.
    held: Rc<Cell<usize>>,
    /// Bytes of bodies of their requests that are being served, links that are gone included.
    bodies: Rc<Cell<usize>>,
    /// Accepted connections in their handshake, the oldest first.
    handshakes: RefCell<VecDeque<Handshake>>,
    next_handshake: Cell<u64>,
    /// When a refusal was logged last, and how many were not since.
    refusals: Cell<(Option<Instant>, u64)>,
    closed: Cell<bool>,
    /// Counts of links that are gone, and of events.
    stats: RefCell<Stats>,
    this: Weak<EndpointInner>,
}

/// A connection whose peer has not proven itself.
struct Handshake {
    id: u64,
    from: IpAddr,
    task: JoinHandle<()>,
}

struct Listening {
    task: JoinHandle<()>,
    /// Owned by the task: a handler often has the endpoint, which must not have the handler.
    local: Weak<Local>,
}

impl Endpoint {
    /// An endpoint of `env`'s node.
    pub fn new(env: &Env, identity: Identity, limits: Limits) -> Endpoint {
        limits.check();
        let unspecified = SocketAddr::from(([127, 0, 0, 1], 0));
        Endpoint(Rc::new_cyclic(|this| EndpointInner {
            env: env.clone(),
            limits: Rc::new(limits),
            reserve: BufPool::new(RESERVE_BYTES),
            connect_reserve: BufPool::new(CONNECT_RESERVE_BYTES),
            key: identity.key,
            own_info: Rc::new(PeerInfo { name: identity.name.clone(), addr: unspecified }),
            name: identity.name,
            cluster: Rc::new(Cell::new(identity.cluster)),
            peers: RefCell::default(),
            listening: RefCell::default(),
            links: RefCell::default(),
            next_link: Cell::new(1),
            accepted: Cell::new(0),
            held: Rc::default(),
            bodies: Rc::default(),
            handshakes: RefCell::default(),
            next_handshake: Cell::new(1),
            refusals: Cell::default(),
            closed: Cell::new(false),
            stats: RefCell::default(),
            this: this.clone(),
        }))
    }

    /// Serves calls at `addr`; port 0 picks a free one. An address that other machines reach
    /// needs a cluster key.
    pub async fn listen(
        &self,
        addr: SocketAddr,
        handler: Rc<dyn Handler>,
    ) -> Result<SocketAddr, TransportError> {
        let inner = &self.0;
        if !addr.ip().is_loopback() && inner.key.is_none() {
            return Err(TransportError::NoKey(addr));
        }
        let listener = bind(&inner.env, addr).await?;
        if inner.closed.get() {
            return Err(TransportError::Closed);
        }
        let addr = listener.local_addr();
        let local = Rc::new(Local {
            env: inner.env.clone(),
            name: inner.name.clone(),
            key: inner.key.clone(),
            cluster: inner.cluster.clone(),
            handler,
            inflight: Rc::default(),
            limits: inner.limits.clone(),
            open: Cell::new(true),
        });
        local::register(addr, &local);
        let weak = Rc::downgrade(&local);
        let serve = serve(inner.clone(), listener, local);
        let task = inner.env.spawn(Class::Control, "transport: listen", serve);
        inner.listening.borrow_mut().push(Listening { task, local: weak });
        Ok(addr)
    }

    /// Sends `request` to `peer` and waits for the answer, `timeout` at most. Dropping the
    /// future cancels the call; what was sent may still take effect.
    pub async fn call(
        &self,
        peer: SocketAddr,
        request: Request,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        check_size(&request.body, request.payload.as_ref()).map_err(CallError::Refused)?;
        let inner = &*self.0;
        if inner.closed.get() {
            return Err(CallError::Closed);
        }
        if let Some(local) = local::find(&inner.env, peer) {
            return self.call_local((peer, local), request, timeout).await;
        }
        let deadline = inner.env.now() + timeout;
        let live = inner.peers.borrow().get(&peer).and_then(|peer| peer.live());
        let link = match live {
            Some(link) => link,
            None => boxed(self.connect(peer, timeout)).await?,
        };
        let call = link.call(request, deadline)?;
        drop(link);
        let left = deadline.since(inner.env.now());
        match inner.env.timeout(left, call.answer()).await {
            Ok(result) => result,
            Err(_) if call.was_sent() => Err(CallError::Timeout),
            Err(_) => Err(CallError::Unreachable(format!(
                "{peer}: the link is congested: the request did not leave within {timeout:?}"
            ))),
        }
    }

    async fn call_local(
        &self,
        local: (SocketAddr, Rc<Local>),
        request: Request,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        let inner = &*self.0;
        inner.stats.borrow_mut().local_calls[usize::from(request.service.number())] += 1;
        let caller = Caller {
            env: &inner.env,
            name: &inner.own_info,
            key: inner.key.as_ref(),
            cluster: &inner.cluster,
        };
        local::call(caller, local, request, timeout).await
    }

    async fn connect(&self, addr: SocketAddr, timeout: Duration) -> Result<Rc<Link>, CallError> {
        let inner = &self.0;
        let peer = {
            let peers = &mut *inner.peers.borrow_mut();
            if peers.len() >= inner.limits.peers_max && !peers.contains_key(&addr) {
                peers.retain(|_, peer| !peer.is_idle());
                if peers.len() >= inner.limits.peers_max {
                    return Err(CallError::Busy);
                }
            }
            peers.entry(addr).or_insert_with(|| Peer::new(addr)).clone()
        };
        match inner.env.timeout(timeout, peer.link(inner)).await {
            Ok(result) => result,
            Err(_) => Err(CallError::Unreachable(format!("{addr}: no connection in {timeout:?}"))),
        }
    }

    /// The cluster this endpoint belongs to, once it is known.
    pub fn cluster(&self) -> Option<ClusterId> {
        Some(self.0.cluster.get()).filter(|cluster| *cluster != ClusterId::default())
    }

    /// Fixes the cluster: for a process that has formed one, or reads it from its directory.
    pub fn set_cluster(&self, cluster: ClusterId) {
        self.0.cluster.set(cluster);
    }

    /// Counters of this endpoint and of its links.
    pub fn stats(&self) -> Stats {
        let mut stats = self.0.stats.borrow().clone();
        for link in self.0.links.borrow().values() {
            let of_link = link.stats();
            stats.add(&of_link.services);
            stats.links.push(of_link);
        }
        stats.links.sort_by_key(|link| link.addr);
        stats
    }

    /// Stops listening and ends all links. Calls fail with [`CallError::Closed`].
    pub fn close(&self) {
        let inner = &self.0;
        if inner.closed.replace(true) {
            return;
        }
        for listening in inner.listening.take() {
            if let Some(local) = listening.local.upgrade() {
                local.open.set(false);
            }
            listening.task.abort();
        }
        inner.handshakes.take().iter().for_each(|handshake| handshake.task.abort());
        let links: Vec<_> = inner.links.borrow().values().cloned().collect();
        links.iter().for_each(|link| link.fail("the endpoint was closed"));
        let peers = inner.peers.take();
        peers.values().for_each(|peer| peer.close());
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.0.name)
    }
}

impl EndpointInner {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    fn own(&self) -> Own<'_> {
        Own {
            env: &self.env,
            limits: &self.limits,
            name: &self.name,
            key: self.key.as_ref(),
            cluster: self.cluster.get(),
            reserve: None,
        }
    }

    /// Takes over what a handshake has agreed on.
    fn learn(&self, cluster: ClusterId) -> Result<(), Failure> {
        let (zero, own) = (ClusterId::default(), self.cluster.get());
        if own == zero {
            self.cluster.set(cluster);
        } else if cluster != own && cluster != zero {
            // Another handshake gave this endpoint another cluster by now.
            return Err(Failure::Refused(format!(
                "'{}' belongs to cluster {own}, the peer to {cluster}: correct the address",
                self.name
            )));
        }
        Ok(())
    }

    fn open_link(
        &self,
        opened: OpenedConnection,
        handler: Option<Rc<dyn Handler>>,
    ) -> Result<Rc<Link>, Failure> {
        self.learn(opened.cluster)?;
        if self.closed.get() {
            return Err(Failure::Io("the endpoint was closed".to_owned()));
        }
        let id = self.next_link.get();
        self.next_link.set(id + 1);
        let common = Common {
            env: self.env.clone(),
            limits: self.limits.clone(),
            reserve: self.reserve.clone(),
            owner: self.this.clone(),
            held: self.held.clone(),
            bodies: self.bodies.clone(),
        };
        let link = Link::start(common, id, opened, handler);
        self.links.borrow_mut().insert(id, link.clone());
        self.stats.borrow_mut().links_opened += 1;
        Ok(link)
    }

    /// Starts the handshake of an accepted connection. When there are too many, the oldest one of
    /// the address that has most of them is closed.
    fn start_handshake(self: &Rc<EndpointInner>, stream: Stream, handler: Rc<dyn Handler>) {
        let (id, from) = (self.next_handshake.get(), stream.peer.ip());
        self.next_handshake.set(id + 1);
        let mut handshakes = self.handshakes.borrow_mut();
        if handshakes.len() >= self.limits.handshakes_max {
            self.env.mark("transport: a handshake gives way");
            let mut counts = BTreeMap::from([(from, 1)]);
            for handshake in handshakes.iter() {
                *counts.entry(handshake.from).or_insert(0) += 1;
            }
            let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(from, _)| from);
            let at = handshakes.iter().position(|handshake| Some(handshake.from) == most);
            if let Some(oldest) = handshakes.remove(at.unwrap_or(0)) {
                oldest.task.abort();
                self.stats.borrow_mut().connects_failed += 1;
            }
        }
        let task = admit(self.clone(), id, stream, handler);
        let task = self.env.spawn(Class::Control, "transport: accept", task);
        handshakes.push_back(Handshake { id, from, task });
    }

    /// Whether a refusal may be logged now, and how many were not since the last one.
    fn refusals_to_log(&self) -> Option<u64> {
        let (last, silent) = self.refusals.get();
        let now = self.env.now();
        if last.is_some_and(|last| now.since(last) < REFUSAL_LOG_PAUSE) {
            self.refusals.set((last, silent + 1));
            return None;
        }
        self.refusals.set((Some(now), 0));
        Some(silent)
    }

    /// Bytes that may wait on all accepted links together.
    fn held_max(&self) -> usize {
        self.env.pool().budget() / HELD_SHARE
    }

    /// Bytes that may on each of them, whatever waits on the others.
    fn share(&self) -> usize {
        self.held_max() / EXTRA_SHARE / self.limits.links_max
    }

    /// As many bytes as half of the buffers have wait at most. When they do, of the links that hold
    /// more than their share the one whose peer is due longest is closed, if it has been for as long
    /// as a peer may be silent; if none has, there is no room.
    fn make_room(&self, len: usize) -> bool {
        let most = self.held_max();
        while self.held.get() + len > most {
            let oldest = {
                let links = self.links.borrow();
                let large = |link: &&Rc<Link>| !link.connected && link.held_bytes() > self.share();
                let waiting = links.values().filter(large);
                let waiting = waiting.filter_map(|link| Some((link.waits_since()?, link)));
                let oldest = waiting.min_by_key(|((since, _), link)| (*since, link.id));
                oldest.map(|(since, link)| (since, link.clone()))
            };
            let Some(((since, what), link)) = oldest else { return false };
            if self.env.now().since(since) < self.limits.silence_max {
                return false;
            }
            self.env.mark("transport: a link gives way");
            if let Some(others) = self.refusals_to_log() {
                let (peer, addr, held) = (&link.peer.name, link.peer.addr, link.held_bytes());
                tracing::warn!(%peer, %addr, held, others, "connection closed: its peer {what}");
            }
            link.fail(&format!("the peer {what}, and others need the room"));
        }
        true
    }

    fn count_failure(&self, failure: &Failure) {
        let stats = &mut *self.stats.borrow_mut();
        match failure {
            Failure::Io(_) => stats.connects_failed += 1,
            Failure::Refused(_) => stats.refused += 1,
        }
    }

    /// One connection attempt.
    pub(crate) async fn connect(&self, addr: SocketAddr) -> Result<Rc<Link>, Failure> {
        let limit = self.limits.connect_timeout;
        let attempt = async {
            let stream = self.env.connect(addr).await?;
            let own = Own { reserve: Some(&self.connect_reserve), ..self.own() };
            handshake::connect(own, stream).await
        };
        let opened = match self.env.timeout(limit, attempt).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::Io(format!("no connection in {limit:?}"))),
        };
        let link = opened.and_then(|opened| self.open_link(opened, None));
        if let Err(failure) = &link {
            self.count_failure(failure);
        }
        link
    }
}

impl Owner for EndpointInner {
    fn link_broke(&self, link: &Link, services: &[ServiceStats; COUNTED]) {
        let removed = self.links.borrow_mut().remove(&link.id);
        if removed.is_none() {
            return;
        }
        if !link.connected {
            self.accepted.set(self.accepted.get() - 1);
        }
        let stats = &mut *self.stats.borrow_mut();
        stats.links_broken += 1;
        stats.add(services);
    }

    fn answered_busy(&self) {
        self.stats.borrow_mut().busy += 1;
    }

    fn may_hold(&self, held: usize, len: usize) -> bool {
        let most = self.held_max();
        held + len <= self.share()
            || (held == 0 && self.held.get() + len <= most + most / EXTRA_SHARE)
            || self.make_room(len)
    }
}

/// Listens at an address. A process that was killed holds its port until the kernel has taken its
/// ring down: its successor waits for that.
async fn bind(env: &Env, addr: SocketAddr) -> Result<Listener, TransportError> {
    let end = env.now() + LISTEN_TIMEOUT;
    loop {
        match env.listen(addr).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() != std::io::ErrorKind::AddrInUse || env.now() >= end => {
                return Err(TransportError::Listen(addr, error));
            }
            Err(_) => env.sleep(LISTEN_RETRY).await,
        }
    }
}

/// The accepting task of one address.
async fn serve(inner: Rc<EndpointInner>, listener: Listener, local: Rc<Local>) {
    loop {
        match listener.accept().await {
            Ok(stream) => {
                if inner.accepted.get() >= inner.limits.links_max {
                    inner.env.mark("transport: too many links");
                    if let Some(others) = inner.refusals_to_log() {
                        let addr = stream.peer;
                        tracing::warn!(%addr, others, "connection dropped: too many links");
                    }
                    continue;
                }
                inner.start_handshake(stream, local.handler.clone());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection: raise the limit of open files");
                inner.env.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn admit(inner: Rc<EndpointInner>, id: u64, stream: Stream, handler: Rc<dyn Handler>) {
    let addr = stream.peer;
    let limit = inner.limits.connect_timeout;
    let opened = match inner.env.timeout(limit, handshake::accept(inner.own(), stream)).await {
        Ok(opened) => opened,
        Err(_) => Err(Failure::Io(format!("no handshake in {limit:?}"))),
    };
    inner.handshakes.borrow_mut().retain(|handshake| handshake.id != id);
    let link = opened.and_then(|opened| {
        if inner.accepted.get() >= inner.limits.links_max {
            inner.env.mark("transport: too many links");
            return Err(Failure::Io("too many links".to_owned()));
        }
        let link = inner.open_link(opened, Some(handler))?;
        inner.accepted.set(inner.accepted.get() + 1);
        Ok(link)
    });
    if let Err(failure) = link {
        inner.count_failure(&failure);
        match failure {
            Failure::Io(why) => tracing::debug!(%addr, why, "connection without a link"),
            Failure::Refused(why) => {
                if let Some(others) = inner.refusals_to_log() {
                    tracing::warn!(%addr, others, "connection refused: {why}");
                }
            }
        }
    }
}

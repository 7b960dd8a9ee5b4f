//! One live connection: calls of this side, requests of the other, and whether it is alive.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::{Rc, Weak};

use base::Map;
use metrics::{Fact, Span, Step};
use runtime::sync::Notify;
use runtime::{BufPool, Class, Env, FrameFate, Instant, JoinHandle, WriteHalf};
use wire::frame::{
    FrameKind, HEADER, Header, Priority, STATUS_BUSY, STATUS_DROPPED, STATUS_EXPIRED,
    STATUS_TRANSPORT, Service,
};

use crate::bodies::ServedBodies;
use crate::deferred::{DeferredRequest, DeferredRequests};
use crate::error::CallError;
use crate::limits::Limits;
use crate::message::{Handler, Incoming, PeerInfo, Reply, Request, Response, Target};
use crate::queue::{FramePart, Outgoing, SendQueue};
use crate::receive::{Inbound, Receiver, Room, Unfinished};
use crate::slot::Slot;
use crate::stats::{COUNTED, Counters, LinkStats, ServiceStats};
use crate::writer;

/// Checks for a sign of life per `silence_max`: a peer is found dead at most one check late.
const LOOKS: u32 = 5;

/// A call that waits for its answer.
pub(crate) struct CallState {
    pub(crate) slot: Slot<Result<Response, CallError>>,
    /// The request has left, or begun to: its outcome may be unknown.
    pub(crate) sent: Cell<bool>,
    /// No caller waits any more.
    pub(crate) cancelled: Cell<bool>,
    /// The operation that it is made for.
    span: Option<Span>,
}

/// A request of the peer, from its arrival until its answer has left.
pub(crate) struct Serving {
    link: Weak<Link>,
    request: u64,
    /// The caller no longer waits.
    pub(crate) cancelled: Cell<bool>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let Some(link) = self.link.upgrade() else { return };
        link.inflight.set(link.inflight.get() - 1);
        let mut serving = link.serving.borrow_mut();
        // A repeated frame has an entry of its own, which may have replaced this one's.
        if serving.get(&self.request).is_some_and(|held| held.strong_count() == 0) {
            serving.remove(&self.request);
        }
    }
}

/// Calls of a link to its endpoint, when it breaks.
pub(crate) trait Owner {
    fn link_broke(&self, link: &Link, services: &[ServiceStats; COUNTED]);
    fn answered_busy(&self);
    /// Whether an accepted link that holds `held` bytes may hold `len` more.
    fn may_hold(&self, held: usize, len: usize) -> bool;
}

pub(crate) struct Link {
    pub(crate) env: Env,
    pub(crate) limits: Rc<Limits>,
    /// See [`RESERVE_BYTES`](crate::limits::RESERVE_BYTES).
    pub(crate) reserve: BufPool,
    pub(crate) peer: Rc<PeerInfo>,
    /// Number within the endpoint.
    pub(crate) id: u64,
    pub(crate) connected: bool,
    version: u8,
    owner: Weak<dyn Owner>,
    queue: RefCell<SendQueue>,
    pub(crate) writable: Notify,
    /// Notified when the queue has become shorter.
    room: Notify,
    /// Less is to be sent than before, and requests wait for that.
    deferred_due: Notify,
    next_request: Cell<u64>,
    calls: RefCell<Map<u64, Rc<CallState>>>,
    serving: RefCell<Map<u64, Weak<Serving>>>,
    inflight: Cell<usize>,
    bodies: ServedBodies,
    /// Requests that wait until less is to be sent.
    deferred: RefCell<DeferredRequests>,
    /// Something came since the last check.
    heard: Cell<bool>,
    watched: Cell<bool>,
    watch: Notify,
    /// When a frame left the queue last, or the first of those that wait came into it.
    moved: Cell<Instant>,
    /// Since when parts wait for credit, if they do: small frames may pass them all the time.
    uncredited: Cell<Option<Instant>>,
    /// The writer waits for the kernel to take what left the queue.
    pub(crate) writing: Cell<bool>,
    pub(crate) unfinished: Rc<Unfinished>,
    /// Its part of `all_held`.
    held: Cell<usize>,
    /// See [`Common::held`].
    all_held: Rc<Cell<usize>>,
    broken: Cell<bool>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
    pub(crate) counters: Counters,
}

impl Room for Link {
    fn make_room(&self, len: usize) -> bool {
        self.connected || self.may_hold(len)
    }

    fn note_held(&self) {
        Link::note_held(self);
    }
}

/// The halves of a connection after its handshake, and what was agreed.
pub(crate) struct OpenedConnection {
    pub(crate) write: WriteHalf,
    pub(crate) receiver: Receiver,
    pub(crate) peer: PeerInfo,
    pub(crate) version: u8,
    pub(crate) cluster: base::ClusterId,
}

/// State that the links of an endpoint share.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) env: Env,
    pub(crate) limits: Rc<Limits>,
    pub(crate) reserve: BufPool,
    pub(crate) owner: Weak<dyn Owner>,
    /// Bytes that wait on the accepted links, as each has noted them.
    pub(crate) held: Rc<Cell<usize>>,
    /// Bytes of bodies of the accepted links' requests that are being served.
    pub(crate) bodies: Rc<Cell<usize>>,
}

impl Link {
    /// Starts the tasks of a connection whose handshake is done.
    pub(crate) fn start(
        common: Common,
        id: u64,
        opened: OpenedConnection,
        handler: Option<Rc<dyn Handler>>,
    ) -> Rc<Link> {
        let now = common.env.now();
        let mut receiver = opened.receiver;
        let unfinished = receiver.open();
        let link = Rc::new(Link {
            env: common.env,
            limits: common.limits,
            reserve: common.reserve,
            owner: common.owner,
            peer: Rc::new(opened.peer),
            id,
            connected: handler.is_none(),
            version: opened.version,
            queue: RefCell::default(),
            writable: Notify::new(),
            room: Notify::new(),
            deferred_due: Notify::new(),
            next_request: Cell::new(1),
            calls: RefCell::default(),
            serving: RefCell::default(),
            inflight: Cell::new(0),
            bodies: ServedBodies::new(common.bodies),
            deferred: RefCell::default(),
            heard: Cell::new(false),
            watched: Cell::new(false),
            watch: Notify::new(),
            moved: Cell::new(now),
            uncredited: Cell::new(None),
            writing: Cell::new(false),
            unfinished,
            held: Cell::new(0),
            all_held: common.held,
            broken: Cell::new(false),
            tasks: RefCell::default(),
            counters: Counters::default(),
        });
        if let Some(handler) = handler.clone() {
            let work = serve_deferred(link.clone(), handler);
            link.spawn(Class::Foreground, "transport: deferred requests", work);
        }
        link.spawn(
            Class::Foreground,
            "transport: receive",
            receive(link.clone(), receiver, handler),
        );
        link.spawn(Class::Foreground, "transport: send", writer::run(link.clone(), opened.write));
        link.spawn(Class::Control, "transport: watch", watch(link.clone()));
        link
    }

    fn spawn(&self, class: Class, name: &'static str, task: impl Future<Output = ()> + 'static) {
        let task = self.env.spawn(class, name, task);
        self.tasks.borrow_mut().push(task);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats {
            peer: self.peer.name.clone(),
            addr: self.peer.addr,
            connected: self.connected,
            services: self.counters.snapshot(),
            queued_bytes: self.queue.borrow().bytes(),
            deferred_bytes: self.deferred.borrow().bytes(),
            calls: self.calls.borrow().len(),
            serving: self.inflight.get(),
        }
    }

    /// Ends the link: calls fail, tasks end, handlers' answers are lost from here on.
    pub(crate) fn fail(&self, reason: &str) {
        if self.broken.replace(true) {
            return;
        }
        let peer = &self.peer;
        tracing::debug!(peer = %peer.name, addr = %peer.addr, reason, "link broken");
        // In the order of the calls, so that runs of one seed are alike.
        let mut calls: Vec<_> = self.calls.borrow_mut().drain().collect();
        calls.sort_unstable_by_key(|(request, _)| *request);
        for (_, call) in calls {
            let error = if call.sent.get() {
                CallError::Closed
            } else {
                CallError::Unreachable(format!("'{}' ({}): {reason}", peer.name, peer.addr))
            };
            call.slot.fill(Err(error));
        }
        let queued = std::mem::take(&mut *self.queue.borrow_mut());
        let deferred = std::mem::take(&mut *self.deferred.borrow_mut());
        drop((queued, deferred));
        self.all_held.set(self.all_held.get() - self.held.take());
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        tasks.iter().for_each(JoinHandle::abort);
        if let Some(owner) = self.owner.upgrade() {
            owner.link_broke(self, &self.counters.snapshot());
        }
    }

    /// The next frame for the writer.
    pub(crate) fn next_piece(&self) -> Option<FramePart> {
        let piece = self.queue.borrow_mut().pop(&self.limits);
        if piece.is_some() {
            self.moved.set(self.env.now());
            self.note_credit();
        }
        // Also when only cancelled messages went.
        self.notify_room();
        piece
    }

    /// Bytes that wait on this link: to be sent, to be handled, or for the rest of their messages.
    pub(crate) fn held_bytes(&self) -> usize {
        self.queue.borrow().bytes() + self.deferred.borrow().bytes() + self.unfinished.bytes()
    }

    /// Brings the sum over all accepted links up to date.
    fn note_held(&self) {
        if !self.connected && !self.broken.get() {
            let now = self.held_bytes();
            self.all_held.set(self.all_held.get() + now - self.held.replace(now));
        }
    }

    /// Whether this accepted link may hold `len` bytes more.
    fn may_hold(&self, len: usize) -> bool {
        self.owner.upgrade().is_some_and(|owner| owner.may_hold(self.held_bytes(), len))
    }

    /// Drops what waits to be sent of a message whose caller has gone.
    fn drop_cancelled(&self, priority: Priority, request: u64) {
        let dropped = self.queue.borrow_mut().take_cancelled(priority, request);
        if dropped.is_none() {
            return;
        }
        self.env.mark("transport: cancelled message dropped from the queue");
        // It may have been the only one that waited for credit.
        if !self.queue.borrow().waits_for_credit(&self.limits) {
            self.uncredited.set(None);
        }
        self.notify_room();
    }

    /// Wakes what waits until less is to be sent.
    fn notify_room(&self) {
        self.note_held();
        self.room.notify_waiters();
        if self.deferred.borrow().len() > 0 {
            self.deferred_due.notify_one();
        }
    }

    /// Notes since when parts wait for credit.
    fn note_credit(&self) {
        if self.uncredited.get().is_none() && self.queue.borrow().waits_for_credit(&self.limits) {
            self.uncredited.set(Some(self.env.now()));
        }
    }

    /// Since when the peer has not done what is due: taking a part of what waits for it, or sending a
    /// part of the rest of a message.
    pub(crate) fn waits_since(&self) -> Option<(Instant, &'static str)> {
        let waits = self.writing.get() || self.queue.borrow().frames() > 0;
        let taken = [waits.then_some(self.moved.get()), self.uncredited.get()];
        let taken =
            taken.into_iter().flatten().map(|at| (at, "takes nothing of what waits for it"));
        let sent = self.unfinished.since().map(|at| (at, "sends nothing of the rest of a message"));
        taken.chain(sent).min_by_key(|(since, _)| *since)
    }

    /// The act that the peer has not done for too long.
    fn stalled(&self) -> Option<&'static str> {
        let (since, what) = self.waits_since()?;
        (self.env.now().since(since) >= self.limits.stalled_max).then_some(what)
    }

    /// True when as many frames wait to be sent as one link may hold.
    fn is_full(&self) -> bool {
        self.queue.borrow().frames() >= self.limits.queue_frames_max
    }

    /// True when requests wait until less is to be sent.
    fn defers_requests(&self) -> bool {
        self.queue.borrow().bytes() >= self.limits.queue_bytes_max
    }

    /// Queues a message, as the simulator's network lets it.
    fn send(self: &Rc<Link>, out: Outgoing) {
        if self.broken.get() || self.env.is_closed() {
            return;
        }
        match self.env.frame_fate(self.peer.addr) {
            FrameFate::Deliver => self.send_now(out),
            FrameFate::Drop => {
                self.env.mark("transport: frame dropped");
                if let Some(call) = &out.call {
                    call.sent.set(true);
                }
            }
            FrameFate::Delay(pause) => {
                if let Some(call) = &out.call {
                    call.sent.set(true);
                }
                self.send_later(pause, out);
            }
            FrameFate::Duplicate(pause) => {
                let copy = Outgoing { serving: None, ..out.clone() };
                self.send_now(out);
                self.send_later(pause, copy);
            }
        }
    }

    fn send_now(&self, out: Outgoing) {
        if self.queue.borrow().frames() == 0 && !self.writing.get() {
            self.moved.set(self.env.now());
        }
        self.queue.borrow_mut().push(&self.limits, out);
        self.note_held();
        self.note_credit();
        self.writable.notify_one();
    }

    fn send_later(self: &Rc<Link>, pause: std::time::Duration, out: Outgoing) {
        let link = self.clone();
        self.env.spawn(Class::Foreground, "transport: delayed frame", async move {
            link.env.sleep(pause).await;
            if !link.broken.get() {
                link.send_now(out);
            }
        });
    }

    /// Sends a request. The call lasts until the guard is dropped.
    pub(crate) fn call(
        self: &Rc<Link>,
        request: Request,
        deadline: Instant,
    ) -> Result<Call, CallError> {
        if self.broken.get() {
            return Err(CallError::Unreachable(format!("{}: the link is broken", self.peer.addr)));
        }
        let id = self.next_request.get();
        let header = Header {
            version: self.version,
            service: Some(request.service),
            priority: request.priority,
            op: request.op,
            request: id,
            trace: request.trace,
            token: request.token,
            sectors: is_sectors(request.service, request.payload.as_deref()),
            ..Header::empty(FrameKind::Request)
        };
        let state = Rc::new(CallState {
            slot: Slot::new(),
            sent: Cell::new(false),
            cancelled: Cell::new(false),
            span: metrics::current(),
        });
        let mut out = Outgoing::new(header, request.body, request.payload);
        out.span = state.span.clone();
        out.call = Some(state.clone());
        out.deadline = Some(deadline);
        out.flow = request.flow;
        if !self.queue.borrow().admits(&self.limits, &out) {
            self.env.mark("transport: queue full");
            return Err(CallError::Busy);
        }
        self.note(&state.span, Step::Queued);
        self.next_request.set(id + 1);
        self.calls.borrow_mut().insert(id, state.clone());
        self.start_watch();
        self.send(out);
        Ok(Call { link: self.clone(), id, priority: request.priority, state })
    }

    /// A stage of an operation that waits for this peer.
    fn note(&self, span: &Option<Span>, step: Step) {
        if let Some(span) = span {
            span.note(step, self.env.now().as_nanos(), Fact::Peer(self.peer.addr));
        }
    }

    fn start_watch(&self) {
        if !self.watched.replace(true) {
            self.watch.notify_one();
        }
    }

    fn take_response(&self, message: Inbound) {
        let Some(call) = self.calls.borrow_mut().remove(&message.header.request) else {
            self.env.mark("transport: answer without a caller");
            return;
        };
        self.note(&call.span, Step::Replied);
        let result = match message.header.op {
            _ if message.lost => Err(CallError::Busy),
            STATUS_BUSY | STATUS_EXPIRED => Err(CallError::Busy),
            // Of the transport's own statuses that this build does not know, too.
            STATUS_TRANSPORT.. => Err(CallError::Closed),
            status => Ok(Response { status, body: message.body, payload: message.payload }),
        };
        call.slot.fill(result);
    }

    fn take_request(self: &Rc<Link>, message: Inbound, handler: &Rc<dyn Handler>) {
        let header = message.header;
        let Some(service) = header.service else { return };
        if header.deadline_us == 0 {
            self.respond(&header, STATUS_EXPIRED, Vec::new(), None, None);
            return;
        }
        let held = self.inflight.get() + self.deferred.borrow().len();
        if message.lost || held >= self.limits.requests_max(header.priority) {
            self.refuse_busy(&header);
            return;
        }
        let micros = u64::from(header.deadline_us);
        let deadline = self.env.now() + std::time::Duration::from_micros(micros);
        let request = DeferredRequest { message, deadline };
        if !self.may_hold(request.bytes()) {
            self.env.mark("transport: request refused, links hold too much");
            self.refuse_busy(&header);
            return;
        }
        if !self.defers_requests() && self.deferred.borrow().len() == 0 {
            self.serve(service, request, handler);
            return;
        }
        self.env.mark("transport: request deferred");
        let kept = self.deferred.borrow_mut().push(request, self.limits.queue_bytes_max);
        self.note_held();
        if !kept {
            self.refuse_busy(&header);
        }
    }

    fn refuse_busy(self: &Rc<Link>, header: &Header) {
        self.env.mark("transport: request answered busy");
        if let Some(owner) = self.owner.upgrade() {
            owner.answered_busy();
        }
        self.respond(header, STATUS_BUSY, Vec::new(), None, None);
    }

    fn serve(
        self: &Rc<Link>,
        service: Service,
        request: DeferredRequest,
        handler: &Rc<dyn Handler>,
    ) {
        let DeferredRequest { message, deadline } = request;
        let header = message.header;
        let (body_len, budget) = (message.body.len(), self.env.pool().budget());
        if !self.bodies.has_room(body_len, header.priority, &self.limits, budget) {
            self.env.mark("transport: request refused, bodies being served have too many bytes");
            self.refuse_busy(&header);
            return;
        }
        self.bodies.add(body_len);
        let serving = Rc::new(Serving {
            link: Rc::downgrade(self),
            request: header.request,
            cancelled: Cell::new(false),
        });
        self.inflight.set(self.inflight.get() + 1);
        self.serving.borrow_mut().insert(header.request, Rc::downgrade(&serving));
        let served = Served {
            link: self.clone(),
            header: Header { version: self.version, ..header },
            body_len,
            serving,
        };
        handler.handle(Incoming {
            request: Request {
                service,
                op: header.op,
                priority: header.priority,
                flow: 0,
                trace: header.trace,
                token: header.token,
                body: message.body,
                payload: message.payload,
            },
            peer: self.peer.clone(),
            deadline,
            reply: Reply::new(Target::Link(served)),
        });
    }

    fn respond(
        self: &Rc<Link>,
        request: &Header,
        status: u16,
        body: Vec<u8>,
        payload: Option<runtime::Buf>,
        serving: Option<Rc<Serving>>,
    ) {
        let header = Header {
            version: self.version,
            service: request.service,
            priority: request.priority,
            op: status,
            request: request.request,
            trace: request.trace,
            sectors: request.service.is_some_and(|service| is_sectors(service, payload.as_deref())),
            ..Header::empty(FrameKind::Response)
        };
        let mut out = Outgoing::new(header, body, payload);
        out.serving = serving;
        out.span = metrics::current();
        self.send(out);
    }

    /// Not subject to the simulated network's losses, as the parts are not: a stream that loses
    /// bytes is broken.
    fn send_credit(&self, parts: u16) {
        if !self.broken.get() && !self.env.is_closed() {
            let mut out = Outgoing::signal(FrameKind::Credit, self.version, 0);
            out.header.op = parts;
            self.send_now(out);
        }
    }

    fn signal(self: &Rc<Link>, kind: FrameKind, priority: Priority, request: u64) {
        let mut out = Outgoing::signal(kind, self.version, request);
        out.header.priority = priority;
        self.send(out);
    }
}

/// Payloads of the data path are sectors, which carry their own CRCs.
fn is_sectors(service: Service, payload: Option<&[u8]>) -> bool {
    service == Service::DATA
        && payload.is_some_and(|payload| {
            !payload.is_empty() && payload.len().is_multiple_of(base::limits::SECTOR)
        })
}

/// A call under way. Dropping it cancels what is not answered.
pub(crate) struct Call {
    link: Rc<Link>,
    id: u64,
    priority: Priority,
    state: Rc<CallState>,
}

impl Call {
    pub(crate) async fn answer(&self) -> Result<Response, CallError> {
        self.state.slot.wait().await
    }

    pub(crate) fn was_sent(&self) -> bool {
        self.state.sent.get()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let waiting = self.link.calls.borrow_mut().remove(&self.id);
        if waiting.is_none() {
            return;
        }
        self.state.cancelled.set(true);
        if self.state.sent.get() {
            self.link.signal(FrameKind::Cancel, self.priority, self.id);
        } else {
            self.link.drop_cancelled(self.priority, self.id);
        }
    }
}

/// A request of the peer, to be answered.
pub(crate) struct Served {
    link: Rc<Link>,
    header: Header,
    /// As it counts among the link's, until there is an answer.
    body_len: usize,
    serving: Rc<Serving>,
}

impl Served {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.serving.cancelled.get() || self.link.broken.get()
    }

    /// Called once for each, at the latest when its [`Reply`] is dropped.
    pub(crate) fn answer(self, result: Result<Response, CallError>) {
        self.link.bodies.remove(self.body_len);
        if self.serving.cancelled.get() {
            return;
        }
        let (status, body, payload) = match result {
            Ok(response) => (response.status, response.body, response.payload),
            Err(CallError::Busy) => (STATUS_BUSY, Vec::new(), None),
            Err(_) => (STATUS_DROPPED, Vec::new(), None),
        };
        let len = HEADER + body.len() + payload.as_ref().map_or(0, |payload| payload.len());
        let (status, body, payload) = if len == HEADER || self.link.may_hold(len) {
            (status, body, payload)
        } else {
            // The request may have taken effect: "busy" would be wrong.
            self.link.env.mark("transport: answer dropped, links hold too much");
            (STATUS_DROPPED, Vec::new(), None)
        };
        debug_assert!(status < STATUS_TRANSPORT || body.is_empty());
        self.link.respond(&self.header, status, body, payload, Some(self.serving));
    }
}

/// The receiving task of a link.
async fn receive(link: Rc<Link>, mut receiver: Receiver, handler: Option<Rc<dyn Handler>>) {
    loop {
        let message = match receiver.next(&*link).await {
            Ok(message) => message,
            Err(error) => {
                link.fail(&error.to_string());
                return;
            }
        };
        link.heard.set(true);
        link.note_held();
        match receiver.take_credits() {
            0 => {}
            parts => link.send_credit(parts),
        }
        let Some(message) = message else { continue };
        link.counters.received(message.header.service, message.frames, message.wire_len);
        let header = message.header;
        match (header.kind, &handler) {
            (FrameKind::Request, Some(handler)) => link.take_request(message, handler),
            (FrameKind::Response, None) => link.take_response(message),
            (FrameKind::Cancel, None) => receiver.cancel(header.request),
            (FrameKind::Cancel, Some(_)) => {
                receiver.cancel(header.request);
                link.deferred.borrow_mut().cancel(header.request);
                link.note_held();
                let serving = link.serving.borrow().get(&header.request).and_then(Weak::upgrade);
                if let Some(serving) = serving {
                    link.env.mark("transport: request cancelled");
                    serving.cancelled.set(true);
                    // Its answer may be waiting for others.
                    link.drop_cancelled(header.priority, header.request);
                }
            }
            (FrameKind::Ping, _) => link.signal(FrameKind::Pong, Priority::Control, 0),
            (FrameKind::Pong, _) => {}
            (FrameKind::Credit, _) => {
                link.queue.borrow_mut().credit(header.op);
                link.uncredited.set(None);
                link.writable.notify_one();
            }
            _ => {
                link.fail("the peer sent a frame that has no place on this link");
                return;
            }
        }
        // Answers must not pile up for a peer that reads nothing. Large ones do not get here: they
        // wait for credit, which has to be read.
        if link.is_full() {
            receiver.pause();
            while link.is_full() {
                link.env.mark("transport: reading paused");
                link.room.notified().await;
            }
            receiver.resume();
        }
    }
}

/// Handles the requests that waited, as soon as less is to be sent.
async fn serve_deferred(link: Rc<Link>, handler: Rc<dyn Handler>) {
    loop {
        while !link.defers_requests() {
            let next = link.deferred.borrow_mut().pop();
            let Some(request) = next else { break };
            link.note_held();
            let header = request.message.header;
            let Some(service) = header.service else { continue };
            if request.deadline <= link.env.now() {
                link.respond(&header, STATUS_EXPIRED, Vec::new(), None, None);
            } else {
                link.serve(service, request, &handler);
            }
        }
        link.deferred_due.notified().await;
    }
}

/// Finds silent peers: while an answer is due, or now and then on an idle link.
async fn watch(link: Rc<Link>) {
    let env = link.env.clone();
    let look = link.limits.silence_max / LOOKS;
    loop {
        let mut probing = false;
        if link.calls.borrow().is_empty() {
            link.watched.set(false);
            let idle = env.timeout(link.limits.idle_probe, link.watch.notified()).await.is_err();
            link.watched.set(true);
            probing = idle;
        }
        if let Some(what) = link.stalled() {
            env.mark("transport: stalled peer");
            let timeout = link.limits.stalled_max;
            link.fail(&format!("for {timeout:?} the peer {what}"));
            return;
        }
        link.heard.set(false);
        let mut silent_looks = 0;
        if probing {
            link.signal(FrameKind::Ping, Priority::Control, 0);
        }
        while probing || !link.calls.borrow().is_empty() {
            env.sleep(look).await;
            if link.heard.replace(false) {
                silent_looks = 0;
                probing = false;
                continue;
            }
            silent_looks += 1;
            // The answer that was due may be given up before the peer is found dead.
            probing = true;
            if silent_looks >= LOOKS {
                env.mark("transport: silent peer");
                link.fail(&format!("the peer is silent for {:?}", link.limits.silence_max));
                return;
            }
            link.signal(FrameKind::Ping, Priority::Control, 0);
        }
    }
}

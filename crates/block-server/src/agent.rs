//! [`BlockServerAgent`]: the part of a block server that talks to the managers. It renews the
//! lease, opens segments that it is given and closes those that are taken from it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use base::{Fault, Kind};
use block_proto::Managers;
use block_proto::lease::{HEARTBEAT_ATTEMPT, IDLE, PAUSE, RENEW};
use block_proto::limits::{LOADS_MAX, SEGMENTS_PAGE, UNOPENED_MAX};
use block_proto::managers::Error;
use block_proto::{
    BlockHeartbeat, BlockReply, BlockRequest, BlockServerId, BlockServerReply, BlockServerRequest,
    Reply, Request, SegmentLoad,
};
use block_volume::contract::{Answer, Owned};
use block_volume::figures::{SegmentScrub, SegmentUsage};
use block_volume::geometry::Extent;
use block_volume::ids::SegmentId;
use client::leader::AskError;
use futures_util::future::LocalBoxFuture;
use runtime::sync::{Notify, Semaphore};
use runtime::{Class, Duration, Env, Instant, JoinHandle};
use transport::{Handler, Incoming, Response, Service};
use wire::control::{ControlError, ControlReply, ControlRequest, TraceReply};

use super::limits::{LEAVE_MAX, LOADS, OPEN_PAUSE, OPENS_MAX};
use super::location_leases::Admissions;
use super::ownership::{
    Action, LeaseState, OwnedSegment, OwnershipLease, Predecessors, SegmentSetup, grant_of,
};
use super::served::Counted;
pub use super::served::ServedSegment;

/// Bytes of a segment that are checked in one step: heartbeats go on in between.
const STEP: u64 = 16 << 20;
/// Pieces of a segment that are checked in one step.
const PIECES: usize = 1024;

/// Opens the devices of segments.
pub trait Devices {
    /// The device of a segment, which this process owns from now on: owners with smaller epochs
    /// change nothing any more.
    fn open(&self, segment: SegmentId, held: OwnedSegment) -> Answer<'_, Rc<dyn ServedSegment>>;
}

/// Called when a segment is taken away: stops serving it before it returns. The future ends when nothing
/// is under way on the device.
pub type Release = Rc<dyn Fn(SegmentId) -> LocalBoxFuture<'static, ()>>;

/// A segment that this server was given.
struct HostedSegment {
    epoch: u64,
    admissions: Rc<Admissions>,
    device: Option<Rc<Counted>>,
    /// Number of its devices that have stopped.
    stops: u64,
    /// The reason why it is not open yet.
    cause: String,
    task: JoinHandle<()>,
}

struct BlockServerAgentInner {
    env: Env,
    managers: Managers,
    devices: Rc<dyn Devices>,
    name: String,
    addr: SocketAddr,
    /// This process, as the managers have numbered it.
    boot: Cell<u64>,
    /// The operator was informed that another process has its name.
    refused: Cell<bool>,
    ownership: RefCell<OwnershipLease>,
    places: RefCell<BTreeMap<SegmentId, HostedSegment>>,
    /// Segments that are being closed.
    closing: RefCell<BTreeMap<SegmentId, JoinHandle<()>>>,
    release: RefCell<Option<Release>>,
    opens: Semaphore,
    heartbeat: Notify,
    changed: Notify,
    /// It is about to end, and a heartbeat without segments has been answered since.
    leaving: Cell<bool>,
    left: Cell<bool>,
    stopped: Cell<bool>,
}

/// The connection of a block server to its managers. Clones share it.
#[derive(Clone)]
pub struct BlockServerAgent(Rc<BlockServerAgentInner>);

impl BlockServerAgent {
    /// Begins to renew the lease, for the server `name` at `addr`.
    pub fn start(
        managers: Managers,
        devices: Rc<dyn Devices>,
        name: &str,
        addr: SocketAddr,
    ) -> BlockServerAgent {
        let env = managers.client().env().clone();
        let agent = BlockServerAgent(Rc::new(BlockServerAgentInner {
            boot: Cell::new(0),
            refused: Cell::new(false),
            env: env.clone(),
            managers,
            devices,
            name: name.to_owned(),
            addr,
            ownership: RefCell::new(OwnershipLease::new()),
            places: RefCell::default(),
            closing: RefCell::default(),
            release: RefCell::default(),
            opens: Semaphore::new(OPENS_MAX),
            heartbeat: Notify::new(),
            changed: Notify::new(),
            leaving: Cell::new(false),
            left: Cell::new(false),
            stopped: Cell::new(false),
        }));
        env.spawn(Class::Control, "block server: beats", agent.clone().heartbeats());
        agent
    }

    /// Has `release` called for each segment that is taken away.
    pub fn on_release(&self, release: Release) {
        self.0.release.replace(Some(release));
    }

    /// Has the managers give its segments to others, which then wait for no lease of this one. Ends
    /// when it has none left, or after [`LEAVE_MAX`] without an answer.
    pub async fn leave(&self) {
        let (env, end) = (&self.0.env, self.0.env.now() + LEAVE_MAX);
        self.0.leaving.set(true);
        self.0.heartbeat.notify_one();
        loop {
            let changed = self.0.changed.notified();
            let closing = !self.0.closing.borrow().is_empty();
            if self.0.left.get() && !closing || self.0.stopped.get() {
                return env.mark("block server: left");
            }
            if env.timeout(end - env.now(), changed).await.is_err() {
                return tracing::warn!(name = self.0.name, "leaves without a manager's answer");
            }
        }
    }

    /// Ends the heartbeats. Its segments go to others when the lease has expired.
    pub fn stop(&self) {
        self.0.stopped.set(true);
        self.0.heartbeat.notify_one();
    }

    /// Closes all segments, so that the next owners open them quickly.
    pub async fn close_all(&self) {
        let places = std::mem::take(&mut *self.0.places.borrow_mut());
        // A request that waits for a device would hold up the release, which waits for its end.
        self.0.changed.notify_waiters();
        let closes = places.into_iter().map(|(id, place)| async move {
            place.task.abort();
            self.release(id).await;
            if let Some(device) = place.device {
                device.device.close().await;
            }
        });
        futures_util::future::join_all(closes).await;
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its managers.
    pub fn managers(&self) -> &Managers {
        &self.0.managers
    }

    /// Lease state of a segment that was opened under `epoch`, for answers that wait for the leases
    /// of `predecessors`.
    pub fn lease_state(
        &self,
        segment: SegmentId,
        epoch: u64,
        predecessors: Predecessors,
    ) -> LeaseState {
        self.0.ownership.borrow().lease_state(segment, epoch, predecessors, self.0.env.now())
    }

    /// Returns after a change of what this server owns, or of how long it holds answers back.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// No write to a segment that was opened under `epoch` is acknowledged before; `None` when
    /// another server owns it.
    pub fn acknowledge_from(&self, segment: SegmentId, epoch: u64) -> Option<Instant> {
        let held = self.0.ownership.borrow().owned(segment)?;
        (held.epoch == epoch).then_some(held.ack_from)
    }

    /// The device of a segment, the epoch under which it was opened, and whom this server has admitted
    /// under it, as soon as it is open.
    /// `Reroute` when the segment is another's. `Retry` when, while the caller waited, a device of it
    /// stopped, or this server lost it and was given it again: the next opening waits for the end of
    /// all that was begun before, and this call is part of that.
    pub async fn device(
        &self,
        segment: SegmentId,
    ) -> Result<(Rc<dyn Owned>, u64, Rc<Admissions>), Fault> {
        let mut first = None;
        loop {
            let changed = self.0.changed.notified();
            let (device, epoch, stops, admissions) = match self.0.places.borrow().get(&segment) {
                None => {
                    let text = format!("{segment} is not served by block server {}", self.0.name);
                    return Err(Fault::new(Kind::Reroute, text));
                }
                Some(place) => {
                    let admissions = place.admissions.clone();
                    (place.device.clone(), place.epoch, place.stops, admissions)
                }
            };
            if *first.get_or_insert((epoch, stops)) != (epoch, stops) {
                self.0.env.mark("block server: segment taken again while a request waited");
                let text = format!("{segment} is being opened again; ask again");
                return Err(Fault::new(Kind::Retry, text));
            }
            if let Some(device) = device {
                device.device.ready().await?;
                return Ok((device, epoch, admissions));
            }
            changed.await;
        }
    }

    /// A segment that is open now.
    fn hosted(&self, segment: SegmentId) -> Result<Rc<dyn ServedSegment>, Fault> {
        let places = self.0.places.borrow();
        let open = places.get(&segment).and_then(|place| place.device.as_ref());
        open.map(|counted| counted.device.clone()).ok_or_else(|| {
            let text = format!("{segment} is not open at block server {}", self.0.name);
            Fault::new(Kind::Retry, text)
        })
    }

    /// The scrubs of all open segments together.
    pub fn scrubs(&self) -> SegmentScrub {
        let mut sum = SegmentScrub::default();
        for place in self.0.places.borrow().values() {
            let Some(device) = &place.device else { continue };
            let one = device.device.scrub();
            sum.passes += one.passes;
            sum.done_bytes += one.done_bytes;
            sum.total_bytes += one.total_bytes;
            sum.read_bytes += one.read_bytes;
            sum.damaged += one.damaged;
        }
        sum
    }

    /// Segments that are open.
    pub fn open_count(&self) -> usize {
        self.0.places.borrow().values().filter(|place| place.device.is_some()).count()
    }

    /// All segments that this server assumes to own, with epoch and lease state.
    pub fn lease_states(&self) -> Vec<(SegmentId, u64, LeaseState)> {
        let (ownership, now) = (self.0.ownership.borrow(), self.0.env.now());
        let standing = |(id, held): (SegmentId, OwnedSegment)| {
            (id, held.epoch, ownership.lease_state(id, held.epoch, Predecessors::All, now))
        };
        ownership.units().map(standing).collect()
    }

    async fn heartbeats(self) {
        let env = self.0.env.clone();
        let (mut server, mut seq, mut reported) = (None, 0, env.now());
        while !self.0.stopped.get() {
            let sent = env.now();
            let Some(known) = server else {
                server = self.register().await;
                if server.is_none() {
                    env.sleep(env.jitter(RENEW)).await;
                }
                continue;
            };
            seq += 1;
            let loads = if sent - reported >= LOADS {
                let loads = self.loads(sent - reported);
                reported = sent;
                loads
            } else {
                Vec::new()
            };
            let leaving = self.0.leaving.get();
            let leaves_none = leaving && self.0.ownership.borrow().units().next().is_none();
            let request = BlockRequest::Heartbeat(self.heartbeat_of(known, seq, loads));
            let asked = self.0.managers.ask_once(&request, HEARTBEAT_ATTEMPT);
            match env.timeout(HEARTBEAT_ATTEMPT, asked).await {
                Ok(Ok(BlockReply::Grant(grant))) => {
                    if !grant.known {
                        server = None;
                    }
                    let (now, known) = (env.now(), grant.known);
                    let grant = grant_of(grant);
                    let actions = self.0.ownership.borrow_mut().granted(sent, now, &grant);
                    let again = grant.more || !actions.is_empty();
                    actions.into_iter().for_each(|action| self.act(action));
                    if leaves_none && known {
                        self.0.left.set(true);
                    }
                    if leaves_none || !grant.changes.is_empty() {
                        self.0.changed.notify_waiters();
                    }
                    if again {
                        continue; // The next heartbeat reports the changes at once.
                    }
                }
                Ok(Ok(other)) => tracing::warn!(?other, "not an answer to a beat"),
                Ok(Err(AskError::Permanent(error))) if error.kind() == Kind::Fenced => {
                    return self.replaced(&error);
                }
                Ok(Err(AskError::Permanent(error))) => {
                    tracing::warn!(%error, "the block manager refuses a beat");
                }
                Ok(Err(AskError::Transient(cause))) => {
                    tracing::debug!(cause, "beat not answered");
                    env.sleep(env.jitter(PAUSE)).await;
                    continue;
                }
                Err(_) => continue, // It was long enough.
            }
            let idle = self.0.places.borrow().is_empty();
            let next = (sent + RENEW * if idle { IDLE } else { 1 }) - env.now();
            let _ = env.timeout(next, self.0.heartbeat.notified()).await; // Either is a reason.
        }
    }

    async fn register(&self) -> Option<BlockServerId> {
        let (name, addr) = (self.0.name.clone(), self.0.addr);
        let request = BlockRequest::Register { name, addr };
        match self.0.managers.ask_once(&request, HEARTBEAT_ATTEMPT * 5).await {
            Ok(BlockReply::Registered { server, boot }) => {
                // It keeps the number that it began with: it is no later process.
                if self.0.boot.get() == 0 {
                    self.0.boot.set(boot);
                }
                tracing::info!(name = self.0.name, %server, "joined the block managers");
                Some(server)
            }
            Ok(other) => {
                tracing::warn!(?other, "not an answer to a registration");
                None
            }
            Err(AskError::Transient(cause)) => {
                tracing::debug!(cause, "registration not taken");
                None
            }
            Err(AskError::Permanent(error)) => {
                if error.kind() != Kind::Exists {
                    tracing::warn!(%error, "registration refused");
                } else if !self.0.refused.replace(true) {
                    self.0.env.mark("block server: refused as a second process");
                    tracing::error!("cannot join the block managers: {error}");
                }
                None
            }
        }
    }

    /// Another process is this server: its segments are fenced off, and its heartbeats end.
    fn replaced(&self, error: &Error) {
        self.0.env.mark("block server: replaced by a later process");
        tracing::error!("serves no more: {error}");
        self.0.stopped.set(true);
        let actions = self.0.ownership.borrow_mut().end();
        actions.into_iter().for_each(|action| self.act(action));
    }

    fn heartbeat_of(
        &self,
        server: BlockServerId,
        seq: u64,
        loads: Vec<SegmentLoad>,
    ) -> BlockHeartbeat {
        let places = self.0.places.borrow();
        let unopened = || places.iter().filter(|(_, place)| place.device.is_none());
        let first = unopened().take(UNOPENED_MAX);
        BlockHeartbeat {
            server,
            addr: self.0.addr,
            boot: self.0.boot.get(),
            seq,
            seen: self.0.ownership.borrow().seen(),
            unopened: first.map(|(&id, place)| (id, place.cause.clone())).collect(),
            unopened_count: unopened().count() as u32,
            loads,
            leaving: self.0.leaving.get(),
            asks_admission: true,
        }
    }

    /// Load of all segments since the last call.
    fn loads(&self, time: runtime::Duration) -> Vec<SegmentLoad> {
        let millis = time.as_millis().max(1) as u64;
        let places = self.0.places.borrow();
        let load = |(&segment, place): (&SegmentId, &HostedSegment)| {
            let (requests, bytes) = place.device.as_ref()?.take();
            let iops = u32::try_from(requests * 1000 / millis).unwrap_or(u32::MAX);
            Some(SegmentLoad { segment, iops, bytes: bytes.saturating_mul(1000) / millis })
        };
        let mut loads: Vec<SegmentLoad> = places.iter().filter_map(load).collect();
        loads.sort_by_key(|load| std::cmp::Reverse((load.iops, load.bytes)));
        loads.truncate(LOADS_MAX);
        loads
    }

    fn act(&self, action: Action) {
        match action {
            Action::Open(id, held) => {
                tracing::info!(segment = %id, epoch = held.epoch, "takes a segment");
                let task = self.clone().open(id, held);
                let task = self.0.env.spawn(Class::Foreground, "block server: open", task);
                let (epoch, cause) = (held.epoch, "it is being opened".to_owned());
                let admissions = Rc::default();
                let place =
                    HostedSegment { epoch, admissions, device: None, stops: 0, cause, task };
                self.0.places.borrow_mut().insert(id, place);
            }
            Action::Change(id, epoch, SegmentSetup { policy, .. }) => {
                let places = self.0.places.borrow();
                let place = places.get(&id).filter(|place| place.epoch == epoch);
                if let Some(device) = place.and_then(|place| place.device.as_ref()) {
                    tracing::info!(segment = %id, epoch, %policy, "makes files with another policy");
                    device.device.set_policy(policy);
                }
            }
            Action::Close(id, epoch) => {
                let place = self.0.places.borrow_mut().remove(&id);
                let Some(place) = place.filter(|place| place.epoch == epoch) else { return };
                tracing::info!(segment = %id, epoch, "gives a segment up");
                place.task.abort();
                let before = self.0.closing.borrow_mut().remove(&id);
                // Before the segment is given to this server again: requests under the new epoch must not
                // be part of what is waited for here.
                let release = self.release(id);
                let (device, this) = (place.device, self.clone());
                let task = self.0.env.spawn(Class::Foreground, "block server: close", async move {
                    if let Some(before) = before {
                        let _ = before.await; // Ended, or its task has.
                    }
                    release.await;
                    if let Some(device) = device {
                        device.device.close().await;
                    }
                    this.0.closing.borrow_mut().remove(&id);
                    this.0.changed.notify_waiters();
                });
                if !task.is_finished() {
                    self.0.closing.borrow_mut().insert(id, task);
                }
            }
        }
        self.0.changed.notify_waiters();
    }

    /// Opens a segment, with retries until it is taken away; reopens one that has stopped.
    async fn open(self, id: SegmentId, held: OwnedSegment) {
        let (env, mut pause) = (self.0.env.clone(), OPEN_PAUSE.0);
        let before = self.0.closing.borrow_mut().remove(&id);
        if let Some(before) = before {
            let _ = before.await; // Ended, or its task has.
        }
        loop {
            let opened = {
                let _permit = self.0.opens.acquire().await.expect("never closed");
                // Its policy may have been set since it was granted.
                let now = self.0.ownership.borrow().owned(id);
                let held = now.filter(|now| now.epoch == held.epoch).unwrap_or(held);
                self.0.devices.open(id, held).await
            };
            let (fault, stopped) = match opened {
                Ok(device) => {
                    let stopped = device.stopped();
                    if !self.place(id, held, Ok(device)) {
                        return;
                    }
                    env.mark("block server: segment open");
                    self.0.heartbeat.notify_one();
                    let fault = stopped.await;
                    env.mark("block server: segment stopped");
                    pause = OPEN_PAUSE.0;
                    (fault, true)
                }
                Err(fault) => (fault, false),
            };
            tracing::warn!(segment = %id, epoch = held.epoch, %fault, "not open");
            // Before the release: a request that opens the segment again waits for the next device.
            if !self.place(id, held, Err(fault)) {
                return;
            }
            if stopped {
                self.release(id).await;
            }
            env.sleep(env.jitter(pause)).await;
            pause = (pause * 2).min(OPEN_PAUSE.1);
        }
    }

    /// Notes the state of a segment; false when it is not here any more.
    fn place(
        &self,
        id: SegmentId,
        held: OwnedSegment,
        opened: Result<Rc<dyn ServedSegment>, Fault>,
    ) -> bool {
        let mut places = self.0.places.borrow_mut();
        let Some(place) = places.get_mut(&id).filter(|place| place.epoch == held.epoch) else {
            return false;
        };
        match opened {
            Ok(device) => {
                // It may have been set since the opening began.
                if let Some(now) = self.0.ownership.borrow().owned(id) {
                    device.set_policy(now.setup.policy);
                }
                place.device = Some(Rc::new(Counted::new(device, held.setup.read_only)));
            }
            Err(fault) => {
                place.stops += u64::from(place.device.take().is_some());
                place.cause = fault.message;
            }
        }
        self.0.changed.notify_waiters();
        true
    }

    /// Stops serving a segment, before it returns; the future ends when nothing is under way on it.
    fn release(&self, id: SegmentId) -> impl Future<Output = ()> + 'static {
        let released = self.0.release.borrow().clone().map(|release| release(id));
        async move {
            if let Some(released) = released {
                released.await;
            }
        }
    }

    /// Answers requests of the manager.
    pub async fn serve(&self, asked: BlockServerRequest) -> Result<BlockServerReply, ControlError> {
        match asked {
            BlockServerRequest::HeartbeatNow => {
                self.0.heartbeat.notify_one();
                Ok(BlockServerReply::Done)
            }
            BlockServerRequest::Ping => Ok(BlockServerReply::Done),
            BlockServerRequest::HasData { segment, from, to } => {
                let found = self.has_data(segment, from, to).await;
                found.map(BlockServerReply::HasData).map_err(refused)
            }
            BlockServerRequest::Check { segment, from } => {
                let device = self.hosted(segment).map_err(refused)?;
                let checked = device.check(from).await;
                checked.map(BlockServerReply::Checked).map_err(refused)
            }
            BlockServerRequest::Scrub { segment } => {
                let device = self.hosted(segment).map_err(refused)?;
                Ok(BlockServerReply::Scrub(device.scrub()))
            }
            BlockServerRequest::Cut { segment, cut, hold_ms } => {
                let most = Duration::from_millis(u64::from(hold_ms));
                self.hosted(segment).map_err(refused)?.cut(cut, most).await.map_err(refused)?;
                Ok(BlockServerReply::Done)
            }
            BlockServerRequest::Release { segment, cut, keep } => {
                let held = self.hosted(segment).and_then(|hosted| hosted.release_cut(cut, keep));
                Ok(BlockServerReply::Count(held.map_err(refused)?.as_micros() as u64))
            }
            BlockServerRequest::Link { segment, cut, to, policy } => {
                let hosted = self.hosted(segment).map_err(refused)?;
                hosted.link(cut, to, policy).await.map_err(refused)?;
                Ok(BlockServerReply::Done)
            }
            BlockServerRequest::Flatten { segment } => {
                let hosted = self.hosted(segment).map_err(refused)?;
                Ok(BlockServerReply::Count(hosted.flatten().await.map_err(refused)?))
            }
            BlockServerRequest::Usage { from } => {
                let mut found = self.usage(from);
                let mut segments: Vec<SegmentUsage> =
                    found.by_ref().take(SEGMENTS_PAGE as usize).collect();
                segments.shrink_to_fit();
                let more = found.next().is_some();
                Ok(BlockServerReply::Usage { segments, more })
            }
        }
    }

    /// Space of the open segments of a volume, from one on.
    fn usage(&self, from: SegmentId) -> impl Iterator<Item = SegmentUsage> {
        let last = SegmentId { index: u32::MAX, ..from };
        let places = self.0.places.borrow();
        let open = places.range(from..=last).filter_map(|(id, place)| {
            let usage = place.device.as_ref()?.device.usage();
            Some(SegmentUsage { index: id.index, ..usage })
        });
        open.collect::<Vec<_>>().into_iter()
    }

    /// Space of all open segments together.
    pub fn usage_total(&self) -> SegmentUsage {
        let places = self.0.places.borrow();
        let mut total = SegmentUsage::default();
        for usage in places.values().filter_map(|place| Some(place.device.as_ref()?.device.usage()))
        {
            total.files += usage.files;
            total.file_bytes += usage.file_bytes;
            total.stored_bytes += usage.stored_bytes;
            total.blocks += usage.blocks;
            total.live += usage.live;
            total.append_bytes += usage.append_bytes;
            total.collected_bytes += usage.collected_bytes;
            total.collect_read_bytes += usage.collect_read_bytes;
            total.index_bytes += usage.index_bytes;
        }
        total
    }

    async fn has_data(&self, segment: SegmentId, from: u64, to: u64) -> Result<bool, Fault> {
        let (device, ..) = self.device(segment).await?;
        let (mut offset, end) = (from, to.min(device.bytes()));
        while offset < end {
            self.0.env.yield_now().await;
            let extent = Extent { offset, len: (end - offset).min(STEP) };
            let pieces = device.pieces(extent, PIECES).await?;
            if pieces.iter().any(|piece| !piece.zero) {
                return Ok(true);
            }
            let seen: u64 = pieces.iter().map(|piece| piece.len).sum();
            if seen == 0 {
                let text = format!("{segment} does not say what it has from {offset} on");
                return Err(Fault::new(Kind::Retry, text));
            }
            offset += seen;
        }
        Ok(false)
    }
}

impl fmt::Debug for BlockServerAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({}, {} segments open)", self.0.name, self.open_count())
    }
}

fn refused(fault: Fault) -> ControlError {
    ControlError::new(fault.kind, fault.message)
}

impl Handler for BlockServerAgent {
    /// Control requests only: those to segments go to the server.
    fn handle(&self, incoming: Incoming) {
        let agent = self.clone();
        self.0.env.spawn(Class::Foreground, "block server control", async move {
            let answer = match incoming.request.service {
                Service::CONTROL => agent.answer(&incoming.request.body).await,
                _ => Err(ControlError::new(Kind::Invalid, "this serves control requests only")),
            };
            incoming.reply.send(match answer {
                Ok(reply) => Response::ok(reply.encode()),
                Err(error) => Response::error(&error),
            });
        });
    }
}

impl BlockServerAgent {
    async fn answer(&self, body: &[u8]) -> Result<Reply, ControlError> {
        match Request::decode(body) {
            Ok(Request::BlockServer(asked)) => Ok(Reply::BlockServer(self.serve(asked).await?)),
            Ok(Request::Core(ControlRequest::Trace(asked))) => {
                let (env, process) = (&self.0.env, format!("block server {}", self.0.name));
                let (ring, now) = (env.tracer().ring(), env.now().as_nanos());
                Ok(Reply::Core(ControlReply::Trace(TraceReply::answer(
                    &asked, &process, ring, now,
                ))))
            }
            Ok(_) => Err(ControlError::new(
                Kind::Invalid,
                "this is a block server: ask the block manager for volumes",
            )),
            Err(error) => Err(ControlError::new(Kind::Invalid, error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests;

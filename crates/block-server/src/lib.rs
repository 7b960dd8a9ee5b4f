//! The block server's side of the data path: segments that this process owns, behind the
//! transport (`protocols.md` 6.2, 6.5).
//!
//! A client works in a session for each segment and attachment. Each change has a number that it
//! keeps over sessions and servers, and happens once, however often its message comes. While it is
//! under way the session knows it; once it is durable the device does, with any next owner. Before
//! a session's successor is admitted, the session is closed: changes that have not begun are never
//! done, the others end. So a late message never undoes what was acknowledged later.
//!
//! Invariant: knows no NBD and no layout of data; its [`SegmentOpener`] knows which segments are
//! here, and whether an attachment lives.

mod admission;
pub mod agent;
pub mod host;
mod lazy;
pub mod limits;
mod location_leases;
mod openings;
pub mod ownership;
mod requests;
mod served;
mod session;

pub use agent::{BlockServerAgent, Devices, ServedSegment};
pub use host::{CoreDevices, Host};
pub use lazy::written_policy;
pub use ownership::{LeaseState, OwnershipLease, Predecessors};

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use admission::{Admission, SegmentPlaces, UnderWay};
use base::{Fault, Kind};
use block_proto::{BlockAnswer, BlockError, BlockIo, SERVICE, SessionRef, Standing, encode_answer};
use block_volume::contract::{Answer, Owned};
use block_volume::ids::{SegmentId, VolumeId};
use futures_util::future::LocalBoxFuture;
pub use location_leases::Admissions;
use location_leases::{LocationLease, LocationLeases};
use runtime::sync::{Budget, Mutex};
use runtime::{Class, Env, Instant};
use session::Session;
use transport::{Handler, Incoming, Response};

use crate::limits::{
    SEGMENT_READ_BYTES_MAX, SEGMENT_SESSIONS_MAX, SEGMENT_WRITE_BYTES_MAX, SERVER_READ_BYTES_MAX,
    SERVER_WRITE_BYTES_MAX, STANDINGS_MAX,
};

/// The right to answer for a segment, as it was opened. Asked as a request is answered
/// (`protocols.md` 6.5).
pub trait Lease {
    /// The present lease state, for answers that wait for the leases of `predecessors`.
    fn lease_state(&self, predecessors: Predecessors) -> LeaseState;

    /// Returns when the state may be another, before the time that it names.
    fn changed(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// A segment that is served here.
pub struct OpenedSegment {
    /// Its content.
    pub device: Rc<dyn Owned>,
    /// Its lease.
    pub lease: Rc<dyn Lease>,
    /// Epoch of its owner.
    pub epoch: u64,
    /// Location leases of previous owners have expired then.
    pub location_leases_end: Instant,
    /// Attachments that this owner has admitted under this epoch.
    pub admissions: Rc<Admissions>,
}

/// Requests of a block server to its manager and its store.
pub trait SegmentOpener {
    /// A segment that this server owns: `Reroute` when it does not, `Retry` when it cannot be
    /// opened now. Called once at a time for a segment, and again only after
    /// [`BlockServer::release`] or an answer of its device that it is fenced.
    fn open(&self, segment: SegmentId) -> Answer<'_, OpenedSegment>;

    /// The manager's word on an attachment, as the segment's owner of `epoch` may admit it: asked after
    /// the attachment has asked for a session. A word is for one segment and one opening of it: a
    /// later attachment may have reported to the segment's previous owner only, and the owner may
    /// have lost this segment, and not others of the volume.
    fn standing(&self, segment: SegmentId, epoch: u64, attachment: u64) -> Answer<'_, Standing>;

    /// True when an attachment is not over.
    fn is_attached(&self, volume: VolumeId, epoch: u64) -> Answer<'_, bool>;
}

/// Counters since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Sessions admitted.
    pub sessions: u64,
    /// Reads answered with bytes.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Reads answered with locations; the client reads the bytes.
    pub located: u64,
    /// Of these, reads with a location lease.
    pub leased: u64,
    /// Writes made durable.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Trims and zeroes made durable.
    pub clears: u64,
    /// Requests answered busy.
    pub busy: u64,
    /// Changes that came again.
    pub repeats: u64,
    /// Requests of sessions or attachments that are over.
    pub late: u64,
    /// Reads answered without a lease, after a confirmation by the core.
    pub confirmed: u64,
}

/// Bounds on the bytes of requests under way, of a server or of one of its segments.
struct BytesUnderWay {
    reads: Budget,
    writes: Budget,
}

/// A segment's part of the requests under way. Hostings of a segment share it while requests to an
/// earlier one have not ended.
struct SegmentPart {
    places: SegmentPlaces,
    /// Bytes of its reads and writes.
    bytes: BytesUnderWay,
}

impl SegmentPart {
    fn new() -> SegmentPart {
        let bytes = BytesUnderWay {
            reads: Budget::new(SEGMENT_READ_BYTES_MAX),
            writes: Budget::new(SEGMENT_WRITE_BYTES_MAX),
        };
        SegmentPart { places: SegmentPlaces::new(), bytes }
    }
}

/// A segment and its sessions.
pub(crate) struct OpenSegment {
    device: Rc<dyn Owned>,
    lease: Rc<dyn Lease>,
    /// By attachment.
    sessions: RefCell<BTreeMap<u64, Rc<Session>>>,
    /// One session is admitted at a time.
    admission: Mutex<()>,
    /// The manager's word on attachments that it was asked about, of those that live.
    standings: RefCell<BTreeMap<u64, Standing>>,
    location_leases: LocationLeases,
    /// Its part of the requests under way.
    part: Rc<SegmentPart>,
    /// Its service has ended.
    released: Cell<bool>,
}

/// Slot of a segment that is open or being opened.
#[derive(Default)]
struct Slot {
    opening: Arc<Mutex<()>>,
    hosted: RefCell<Option<Rc<OpenSegment>>>,
}

/// A use of a slot. The last one takes a slot away in which nothing is open.
struct SlotUse {
    server: BlockServer,
    segment: SegmentId,
    slot: Rc<Slot>,
}

impl SlotUse {
    /// Opens the segment of the slot.
    async fn open(self) -> Result<Rc<OpenSegment>, BlockError> {
        let (server, segment) = (&self.server.0, self.segment);
        let opened = server.opener.open(segment).await.map_err(|fault| {
            tracing::debug!(%segment, %fault, "segment not opened");
            error_of(&fault)
        });
        let OpenedSegment { device, lease, epoch, location_leases_end, admissions } = opened?;
        if !self.server.has_slot(segment, &self.slot) {
            // It was released since. Its location lease stays noted for the next opening.
            return Err(BlockError::NotOwner);
        }
        let leased = server.location_leases.borrow_mut().remove(&segment);
        let (sessions, admission, standings, released) = Default::default();
        let part = server.part_of(segment);
        let location_leases =
            LocationLeases::new(epoch, location_leases_end, leased.unwrap_or_default(), admissions);
        let hosted = Rc::new(OpenSegment {
            device,
            lease,
            sessions,
            admission,
            standings,
            location_leases,
            part,
            released,
        });
        self.slot.hosted.replace(Some(hosted.clone()));
        Ok(hosted)
    }
}

impl Drop for SlotUse {
    fn drop(&mut self) {
        let SlotUse { server, segment, slot } = self;
        let in_use = slot.hosted.borrow().is_some() || Rc::strong_count(slot) > 2;
        if !in_use && server.has_slot(*segment, slot) {
            server.0.slots.borrow_mut().remove(segment);
            server.forget_fence(segment.volume);
        }
    }
}

pub(crate) struct BlockServerInner {
    env: Env,
    opener: Rc<dyn SegmentOpener>,
    slots: RefCell<BTreeMap<SegmentId, Rc<Slot>>>,
    /// Parts of segments that are open, or have requests under way.
    parts: RefCell<BTreeMap<SegmentId, Weak<SegmentPart>>>,
    /// Attachments below are over, as later ones have reported.
    fences: RefCell<BTreeMap<VolumeId, u64>>,
    /// Location leases of segments that were open here.
    location_leases: RefCell<BTreeMap<SegmentId, LocationLease>>,
    bytes: BytesUnderWay,
    admission: Admission,
    stats: Cell<Stats>,
}

impl BlockServerInner {
    /// The part of a segment: that of a hosting whose requests have not ended, or a new one.
    fn part_of(&self, segment: SegmentId) -> Rc<SegmentPart> {
        let parts = &mut *self.parts.borrow_mut();
        if let Some(part) = parts.get(&segment).and_then(Weak::upgrade) {
            return part;
        }
        parts.retain(|_, part| part.strong_count() > 0);
        let part = Rc::new(SegmentPart::new());
        parts.insert(segment, Rc::downgrade(&part));
        part
    }
}

/// Serves segments. Clones share it.
#[derive(Clone)]
pub struct BlockServer(pub(crate) Rc<BlockServerInner>);

impl BlockServer {
    /// A server that opens segments as clients ask for them.
    pub fn new(env: &Env, opener: Rc<dyn SegmentOpener>) -> BlockServer {
        BlockServer(Rc::new(BlockServerInner {
            env: env.clone(),
            opener,
            slots: RefCell::default(),
            parts: RefCell::default(),
            fences: RefCell::default(),
            location_leases: RefCell::default(),
            bytes: BytesUnderWay {
                reads: Budget::new(SERVER_READ_BYTES_MAX),
                writes: Budget::new(SERVER_WRITE_BYTES_MAX),
            },
            admission: Admission::new(env),
            stats: Cell::default(),
        }))
    }

    /// Stops serving a segment, before it returns: a request that comes later opens the segment again.
    /// When the future ends, nothing is under way on the device.
    pub fn release(&self, segment: SegmentId) -> impl Future<Output = ()> + 'static {
        let slot = self.0.slots.borrow_mut().remove(&segment);
        let hosted = slot.as_ref().and_then(|slot| slot.hosted.borrow_mut().take());
        if slot.is_some() {
            self.forget_fence(segment.volume);
        }
        let mut sessions = Vec::new();
        if let Some(hosted) = hosted {
            hosted.released.set(true);
            self.note_location_lease(segment, &hosted);
            sessions.extend(hosted.sessions.borrow().values().cloned());
            sessions.iter().for_each(|session| session.close());
        }
        async move {
            let Some(slot) = slot else { return };
            // An opening that is under way finds that the segment was released.
            let _opening = slot.opening.lock().await;
            for session in sessions {
                session.drained().await;
            }
        }
    }

    /// Segments that are open.
    pub fn segments(&self) -> Vec<SegmentId> {
        let slots = self.0.slots.borrow();
        let open = slots.iter().filter(|(_, slot)| slot.hosted.borrow().is_some());
        open.map(|(segment, _)| *segment).collect()
    }

    /// Counters since the start.
    pub fn stats(&self) -> Stats {
        self.0.stats.get()
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Stats)) {
        let mut stats = self.0.stats.get();
        change(&mut stats);
        self.0.stats.set(stats);
    }

    /// The segment, opened if needed. An opening goes on when the request that began it ends.
    async fn host(&self, segment: SegmentId) -> Result<Rc<OpenSegment>, BlockError> {
        loop {
            let slot = self.0.slots.borrow_mut().entry(segment).or_default().clone();
            let used = SlotUse { server: self.clone(), segment, slot };
            if let Some(hosted) = used.slot.hosted.borrow().clone() {
                return Ok(hosted);
            }
            let opening = used.slot.opening.clone().lock_owned().await;
            if let Some(hosted) = used.slot.hosted.borrow().clone() {
                return Ok(hosted);
            }
            if !self.has_slot(segment, &used.slot) {
                continue; // It was released while we waited.
            }
            let opened = async move {
                let _opening = opening;
                used.open().await
            };
            let opened = self.0.env.spawn(Class::Foreground, "block: open segment", opened).await;
            return opened.unwrap_or(Err(BlockError::Busy));
        }
    }

    fn has_slot(&self, segment: SegmentId, slot: &Rc<Slot>) -> bool {
        self.0.slots.borrow().get(&segment).is_some_and(|held| Rc::ptr_eq(held, slot))
    }

    /// A segment that is open.
    fn hosted(&self, segment: SegmentId) -> Option<Rc<OpenSegment>> {
        self.0.slots.borrow().get(&segment)?.hosted.borrow().clone()
    }

    /// It may be opened here again, and its clients may use their locations for a while.
    fn note_location_lease(&self, segment: SegmentId, hosted: &OpenSegment) {
        let (now, leases) = (self.0.env.now(), &mut *self.0.location_leases.borrow_mut());
        leases.retain(|_, lease| lease.until > now);
        leases.insert(segment, hosted.location_leases.lease());
    }

    /// Another owner has the segment.
    fn lose(&self, segment: SegmentId, hosted: &Rc<OpenSegment>) {
        if hosted.released.replace(true) {
            return; // Its lease was noted then. A later hosting may have granted another one.
        }
        self.note_location_lease(segment, hosted);
        hosted.sessions.borrow().values().for_each(|session| session.close());
        let slots = &mut *self.0.slots.borrow_mut();
        let same = |slot: &Rc<Slot>| {
            slot.hosted.borrow().as_ref().is_some_and(|held| Rc::ptr_eq(held, hosted))
        };
        if slots.get(&segment).is_some_and(same) {
            slots.remove(&segment);
            self.forget_fence_of(slots, segment.volume);
        }
    }

    /// Drops the fence of a volume whose last segment here has gone: when one is open again,
    /// attachments are looked up at the manager ([`BlockServer::standing`]).
    fn forget_fence(&self, volume: VolumeId) {
        self.forget_fence_of(&self.0.slots.borrow(), volume);
    }

    fn forget_fence_of(&self, slots: &BTreeMap<SegmentId, Rc<Slot>>, volume: VolumeId) {
        let all = SegmentId { volume, index: 0 }..=SegmentId { volume, index: u32::MAX };
        if slots.range(all).next().is_none() {
            self.0.fences.borrow_mut().remove(&volume);
        }
    }

    /// Volumes with a known fence: no more than have segments here.
    pub fn fenced_volumes(&self) -> usize {
        self.0.fences.borrow().len()
    }

    /// Refuses attachments that are over.
    fn check_fence(&self, at: SessionRef) -> Result<(), BlockError> {
        match self.0.fences.borrow().get(&at.segment.volume) {
            Some(&fence) if at.attachment < fence => {
                self.0.env.mark("block: attachment fenced");
                self.count(|stats| stats.late += 1);
                Err(BlockError::Fenced { fence })
            }
            _ => Ok(()),
        }
    }

    /// The manager's word on an attachment that asks for a session. Asked once for each opening of the
    /// segment.
    async fn standing(&self, hosted: &OpenSegment, at: SessionRef) -> Result<Standing, BlockError> {
        if let Some(standing) = hosted.standings.borrow().get(&at.attachment) {
            return Ok(*standing);
        }
        let epoch = hosted.location_leases.epoch();
        let standing = self.0.opener.standing(at.segment, epoch, at.attachment).await;
        let standing = standing.map_err(|fault| error_of(&fault))?;
        if !standing.lives {
            self.0.env.mark("block: attachment is over");
            self.count(|stats| stats.late += 1);
            return Err(BlockError::Fenced { fence: at.attachment.saturating_add(1) });
        }
        if !standing.owns {
            self.0.env.mark("block: segment was lost before an attachment came");
            return Err(BlockError::NotOwner);
        }
        let standings = &mut *hosted.standings.borrow_mut();
        if standings.len() >= STANDINGS_MAX {
            standings.clear();
        }
        standings.insert(at.attachment, standing);
        Ok(standing)
    }

    /// Previous owners whose leases the answers of a session wait for. `after` is the epoch of the owner
    /// who has admitted the attachment's session before. Only one that acts `alone` may skip any: later
    /// attachments have fenced off earlier ones wherever they were admitted (`protocols-tail.md` 10.10).
    fn predecessors(
        &self,
        hosted: &OpenSegment,
        at: SessionRef,
        standing: Standing,
        (alone, after): (bool, u64),
    ) -> Predecessors {
        let epoch = hosted.location_leases.epoch();
        if !(alone && standing.latest && after > 0) {
            return Predecessors::All;
        }
        if after.saturating_add(1) == epoch {
            self.0.env.mark("block: attachment alone does not wait for its last owner");
            return Predecessors::AllButLast;
        }
        match hosted.sessions.borrow().get(&at.attachment) {
            // In its session before at this owner.
            Some(before) if after == epoch => before.predecessors,
            _ => Predecessors::All,
        }
    }

    async fn open(
        &self,
        at: SessionRef,
        fence: u64,
        after: u64,
    ) -> Result<BlockAnswer, BlockError> {
        let alone = fence == at.attachment;
        let attachment = attachment(at)?;
        self.check_fence(at)?;
        let hosted = self.host(at.segment).await?;
        let standing = self.standing(&hosted, at).await?;
        if !self.hosted(at.segment).is_some_and(|known| Rc::ptr_eq(&known, &hosted)) {
            return Err(BlockError::NotOwner);
        }
        {
            let fences = &mut *self.0.fences.borrow_mut();
            let kept = fences.entry(at.segment.volume).or_default();
            *kept = fence.max(*kept);
        }
        // Before its turn, so that openings that need not wait for this do not wait behind it.
        let _coming = hosted.location_leases.hold_back();
        hosted.location_leases.await_previous(&self.0.env, after).await;
        let _admission = hosted.admission.lock().await;
        self.check_fence(at)?;
        let fence = self.0.fences.borrow().get(&at.segment.volume).copied().unwrap_or_default();
        let over: Vec<_> = {
            let sessions = hosted.sessions.borrow();
            let is_over = |&(&attachment, session): &(&u64, &Rc<Session>)| {
                attachment < fence || attachment == at.attachment && session.number < at.session
            };
            let over = sessions.iter().filter(is_over);
            over.map(|(&attachment, session)| (attachment, session.clone())).collect()
        };
        for (attachment, session) in &over {
            match *attachment < fence {
                true => session.close(),
                false => session.supersede(),
            }
        }
        for (_, session) in over {
            session.drained().await;
        }
        hosted.location_leases.join(at.attachment);
        hosted.location_leases.await_expiry(&self.0.env, at.attachment).await;
        self.check_fence(at)?;
        if hosted.released.get() {
            return Err(BlockError::NotOwner);
        }
        hosted.device.forget(0..u32::try_from(fence).unwrap_or(u32::MAX));
        self.forget_those_that_are_over(&hosted, at).await?;
        let predecessors = self.predecessors(&hosted, at, standing, (alone, after));
        let grant = {
            let sessions = &mut *hosted.sessions.borrow_mut();
            sessions.retain(|&attachment, _| attachment >= fence);
            match sessions.get(&at.attachment) {
                Some(kept) if kept.number == at.session && !kept.is_closed() => kept.grant,
                Some(kept) if kept.number >= at.session => {
                    self.0.env.mark("block: session superseded");
                    self.count(|stats| stats.late += 1);
                    return Err(BlockError::Superseded { session: kept.number });
                }
                _ => {
                    if sessions.len() >= SEGMENT_SESSIONS_MAX {
                        sessions.retain(|_, session| !session.has_ended());
                    }
                    if sessions.len() >= SEGMENT_SESSIONS_MAX {
                        return Err(BlockError::Busy);
                    }
                    let grant = self.0.env.random_u64();
                    let visit = alone.then(|| hosted.location_leases.visit());
                    let session = Session::new(at.session, grant, visit, predecessors);
                    sessions.insert(at.attachment, session);
                    self.count(|stats| stats.sessions += 1);
                    grant
                }
            }
        };
        let last = hosted.device.last(attachment);
        let (bytes, epoch) = (hosted.device.bytes(), hosted.location_leases.epoch());
        Ok(BlockAnswer::Opened { grant, bytes, last, epoch })
    }

    /// Bounds the device's memory of attachments: those of shared volumes end without a report.
    async fn forget_those_that_are_over(
        &self,
        hosted: &OpenSegment,
        at: SessionRef,
    ) -> Result<(), BlockError> {
        let known = hosted.device.attachments();
        let open: Vec<u64> = hosted.sessions.borrow().keys().copied().collect();
        if known.len() <= SEGMENT_SESSIONS_MAX && open.len() < SEGMENT_SESSIONS_MAX {
            return Ok(());
        }
        let known: BTreeSet<u64> = known.into_iter().map(u64::from).chain(open).collect();
        for one in known {
            let attached = self.0.opener.is_attached(at.segment.volume, one).await;
            if attached.map_err(|fault| error_of(&fault))? {
                continue;
            }
            self.0.env.mark("block: attachment forgotten");
            let session = hosted.sessions.borrow().get(&one).cloned();
            if let Some(session) = session {
                session.close();
                session.drained().await;
                hosted.sessions.borrow_mut().remove(&one);
            }
            let one = u32::try_from(one).expect("looked at when it was opened");
            hosted.device.forget(one..one.saturating_add(1));
        }
        Ok(())
    }
}

impl Handler for BlockServer {
    fn handle(&self, incoming: Incoming) {
        let Incoming { request, peer, deadline, reply } = incoming;
        let asked = match request.service {
            SERVICE => BlockIo::decode(request.op, &request.body),
            _ => Err(wire::data_codec::DecodeError::Code(request.op)),
        };
        let asked = match asked {
            Ok(asked) => asked,
            Err(error) => {
                tracing::warn!(peer = peer.name, %error, "block request not of its form");
                let (status, body) = encode_answer(&Err(BlockError::Invalid));
                return reply.send(Response { status, body, payload: None });
            }
        };
        let server = self.clone();
        self.0.env.spawn(Class::Foreground, "block request", async move {
            let env = &server.0.env;
            let span = env.begin(request.trace, asked.name(), Some(peer.addr));
            let under_way = UnderWay::default();
            // Boxed: each `async` layer around it would hold and move it again.
            let serve =
                Box::pin(server.serve(asked, request.payload, request.priority, &under_way));
            let mut serve = pin!(span.clone().follow(serve));
            let Ok(served) = env.timeout(deadline - env.now(), serve.as_mut()).await else {
                // The client waits no more. What has begun goes on, without a place.
                env.end(&span, metrics::Outcome::Failed(Kind::Retry));
                drop(reply);
                under_way.give_back();
                if under_way.has_begun() {
                    let _ = serve.await; // Repeats of a change have its outcome.
                }
                return;
            };
            let (answer, payload, outcome) = match served {
                Ok((answer, payload)) => (Ok(answer), payload, metrics::Outcome::Done),
                Err(error) => (Err(error), None, metrics::Outcome::Failed(error.kind())),
            };
            let (status, body) = encode_answer(&answer);
            span.note(metrics::Step::Answered, env.now().as_nanos(), metrics::Fact::None);
            env.end(&span, outcome);
            let _entered = span.enter();
            reply.send(Response { status, body, payload });
        });
    }
}

impl fmt::Debug for BlockServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockServer({:?})", self.stats())
    }
}

/// The attachment as records name it: epochs count from 1 for each volume.
fn attachment(at: SessionRef) -> Result<u32, BlockError> {
    let attachment = u32::try_from(at.attachment).ok().filter(|attachment| *attachment > 0);
    attachment.ok_or(BlockError::Invalid)
}

/// The client's error for a fault.
fn error_of(fault: &Fault) -> BlockError {
    match fault.kind {
        Kind::Fenced | Kind::Reroute | Kind::NotFound => BlockError::NotOwner,
        Kind::Retry | Kind::Refresh => BlockError::Busy,
        Kind::Unknown => BlockError::Unknown,
        Kind::Full => BlockError::Full,
        Kind::Corrupt => BlockError::Corrupt,
        Kind::Invalid | Kind::Exists => BlockError::Invalid,
    }
}

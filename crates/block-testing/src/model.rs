//! A block manager and its segments in memory, for tests and simulation of the block client and the
//! block server. Owners have epochs and leases. A previous owner's device changes nothing any more
//! and shows what it last had, as one over files of the core does.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::{Fault, Kind};
use block_client::{Attachment, DataFiles, Route, SegmentOwner};
use block_proto::Standing;
use block_proto::lease::{FIRST_EPOCH, drifted};
use block_server::{Admissions, Lease, LeaseState, OpenedSegment, Predecessors, SegmentOpener};
use block_volume::contract::Answer;
use block_volume::ids::{SegmentId, VolumeId};
use futures_util::FutureExt;
use runtime::{Env, Instant};

use crate::archive::Archive;
use crate::memory::{Memory, MemoryDevice};

struct Segment {
    place: SegmentOwner,
    memory: Memory,
    /// Epochs of previous owners whose leases run, and their ends.
    former: BTreeMap<u64, Duration>,
    /// Attachments that the owner has admitted.
    admissions: Rc<Admissions>,
}

struct ManagerInner {
    /// The common time.
    clock: Box<dyn Fn() -> Duration>,
    lease: Duration,
    segments: RefCell<BTreeMap<SegmentId, Segment>>,
    /// Attachments that are not over, and the latest one.
    volumes: RefCell<BTreeMap<VolumeId, (BTreeSet<u64>, u64)>>,
    epochs: Cell<u64>,
    /// No lease is renewed.
    down: Cell<bool>,
    pause: Duration,
    bytes: u64,
    archive: Archive,
}

/// A manager that never fails. Clones share it.
#[derive(Clone)]
pub struct Manager(Rc<ManagerInner>);

impl Manager {
    /// A manager of segments of `bytes` bytes, whose devices answer within about twice `pause`.
    pub fn new(
        clock: impl Fn() -> Duration + 'static,
        lease: Duration,
        bytes: u64,
        pause: Duration,
    ) -> Manager {
        Manager(Rc::new(ManagerInner {
            clock: Box::new(clock),
            lease,
            segments: RefCell::default(),
            volumes: RefCell::default(),
            epochs: Cell::new(1),
            down: Cell::new(false),
            pause,
            bytes,
            archive: Archive::default(),
        }))
    }

    fn epoch(&self) -> u64 {
        let epoch = self.0.epochs.get() + 1;
        self.0.epochs.set(epoch);
        epoch
    }

    /// Gives a segment to a server. Its previous owner may answer reads for a lease more.
    pub fn assign(&self, segment: SegmentId, addr: SocketAddr) {
        let now = (self.0.clock)();
        let segments = &mut *self.0.segments.borrow_mut();
        if let Some(kept) = segments.get_mut(&segment) {
            kept.former.retain(|_, until| *until > now);
            kept.former.insert(kept.place.epoch, now + self.0.lease);
            kept.place = SegmentOwner { addr, epoch: kept.place.epoch + 1 };
            kept.admissions = Rc::default();
            return;
        }
        let (place, memory) = (SegmentOwner { addr, epoch: FIRST_EPOCH }, Memory::new());
        let (former, admissions) = Default::default();
        segments.insert(segment, Segment { place, memory, former, admissions });
    }

    /// Renews no lease while `down`: servers do not know any more what they own.
    pub fn set_down(&self, down: bool) {
        self.0.down.set(down);
    }

    /// Segments of a server.
    pub fn owned(&self, addr: SocketAddr) -> Vec<SegmentId> {
        let segments = self.0.segments.borrow();
        let own = segments.iter().filter(|(_, segment)| segment.place.addr == addr);
        own.map(|(id, _)| *id).collect()
    }

    /// Opens a volume. Exclusively: all attachments before it are over.
    pub fn attach(&self, volume: VolumeId, exclusive: bool) -> Attachment {
        let epoch = self.epoch();
        let volumes = &mut *self.0.volumes.borrow_mut();
        let (live, latest) = volumes.entry(volume).or_default();
        *latest = epoch;
        if exclusive {
            live.clear();
        }
        live.insert(epoch);
        let fence = live.first().copied().unwrap_or(epoch);
        Attachment { epoch, fence }
    }

    /// An attachment is over.
    pub fn detach(&self, volume: VolumeId, epoch: u64) {
        if let Some((live, _)) = self.0.volumes.borrow_mut().get_mut(&volume) {
            live.remove(&epoch);
        }
    }

    /// The segment map of an attachment. Its first question brings all owners, and they count until
    /// they are doubted: as from the real manager, an owner may be an old one.
    pub fn route(&self) -> Rc<dyn Route> {
        Rc::new(Map { manager: self.clone(), known: RefCell::default() })
    }

    /// DataFiles for direct reads of clients of `env`.
    pub fn files(&self, env: &Env) -> Rc<dyn DataFiles> {
        self.0.archive.open(env, self.0.pause)
    }

    /// Opens segments for the server at `addr`.
    pub fn opener(&self, env: &Env, addr: SocketAddr) -> Rc<dyn SegmentOpener> {
        Rc::new(Opener { manager: self.clone(), env: env.clone(), addr })
    }

    /// A segment's content now.
    pub fn memory(&self, segment: SegmentId) -> Option<Memory> {
        self.0.segments.borrow().get(&segment).map(|segment| segment.memory.clone())
    }

    fn place_of(&self, segment: SegmentId) -> Option<SegmentOwner> {
        self.0.segments.borrow().get(&segment).map(|segment| segment.place)
    }
}

struct Map {
    manager: Manager,
    known: RefCell<BTreeMap<SegmentId, SegmentOwner>>,
}

impl Route for Map {
    fn place(&self, segment: SegmentId, doubt: Option<SegmentOwner>) -> Answer<'_, SegmentOwner> {
        let known = &mut *self.known.borrow_mut();
        match known.get(&segment).copied() {
            None => {
                let segments = self.manager.0.segments.borrow();
                let all =
                    SegmentId { index: 0, ..segment }..=SegmentId { index: u32::MAX, ..segment };
                known.extend(segments.range(all).map(|(id, segment)| (*id, segment.place)));
            }
            known_now if known_now == doubt => {
                known.extend(self.manager.place_of(segment).map(|place| (segment, place)));
            }
            Some(_) => {}
        }
        let place = known.get(&segment).copied();
        let none = move || Fault::new(Kind::NotFound, format!("there is no segment {segment}"));
        async move { place.ok_or_else(none) }.boxed_local()
    }
}

struct Opener {
    manager: Manager,
    env: Env,
    addr: SocketAddr,
}

impl SegmentOpener for Opener {
    fn open(&self, segment: SegmentId) -> Answer<'_, OpenedSegment> {
        async move {
            self.env.sleep(self.env.jitter(4 * self.manager.0.pause)).await;
            let inner = &self.manager.0;
            let segments = &mut *inner.segments.borrow_mut();
            let own = segments.get_mut(&segment).filter(|kept| kept.place.addr == self.addr);
            let Some(own) = own else {
                let why = format!("{segment} belongs to another block server");
                return Err(Fault::new(Kind::Reroute, why));
            };
            // The previous owner goes on showing the old content.
            own.memory = own.memory.copy();
            let (epoch, content) = (own.place.epoch, own.memory.clone());
            let admissions = own.admissions.clone();
            let guard = {
                let (manager, content) = (self.manager.clone(), content.clone());
                Box::new(move || match manager.memory(segment) {
                    Some(now) if now.is_same(&content) => Ok(()),
                    _ => {
                        let why = format!("{segment} was opened by another owner");
                        Err(Fault::new(Kind::Fenced, why))
                    }
                })
            };
            let device =
                MemoryDevice::guarded(&self.env, &content, inner.bytes, inner.pause, guard)
                    .with_archive(&inner.archive, segment);
            let (manager, env) = (self.manager.clone(), self.env.clone());
            let (device, lease) = (Rc::new(device), ServedLease { manager, env, segment, epoch });
            // Previous owners leased locations within their own leases.
            let location_leases_end = match epoch {
                FIRST_EPOCH => Instant::default(),
                _ => self.env.now() + drifted(inner.lease),
            };
            let lease = Rc::new(lease);
            Ok(OpenedSegment { device, lease, epoch, location_leases_end, admissions })
        }
        .boxed_local()
    }

    fn standing(&self, segment: SegmentId, epoch: u64, attachment: u64) -> Answer<'_, Standing> {
        async move {
            let lives = self.is_attached(segment.volume, attachment).await?;
            let owner = self.manager.place_of(segment);
            let owns = owner.is_some_and(|owner| owner.epoch == epoch);
            let volumes = self.manager.0.volumes.borrow();
            let latest = volumes.get(&segment.volume).is_some_and(|(_, last)| *last == attachment);
            Ok(Standing { lives, owns, latest })
        }
        .boxed_local()
    }

    fn is_attached(&self, volume: VolumeId, epoch: u64) -> Answer<'_, bool> {
        async move {
            self.env.sleep(self.env.jitter(self.manager.0.pause)).await;
            let volumes = self.manager.0.volumes.borrow();
            Ok(volumes.get(&volume).is_some_and(|(live, _)| live.contains(&epoch)))
        }
        .boxed_local()
    }
}

/// The lease of one ownership.
struct ServedLease {
    manager: Manager,
    env: Env,
    segment: SegmentId,
    epoch: u64,
}

impl Lease for ServedLease {
    fn lease_state(&self, predecessors: Predecessors) -> LeaseState {
        let inner = &self.manager.0;
        let (segments, now) = (inner.segments.borrow(), (inner.clock)());
        let Some(segment) = segments.get(&self.segment) else { return LeaseState::Revoked };
        let before = match predecessors {
            Predecessors::All => self.epoch,
            Predecessors::AllButLast => self.epoch.saturating_sub(1),
        };
        let former = segment.former.range(..before).map(|(_, until)| *until).max();
        let former = former.filter(|until| *until > now);
        let free = self.env.now() + former.map_or(Duration::ZERO, |until| until - now);
        if inner.down.get() {
            return LeaseState::Expired(free);
        }
        let own = segment.former.get(&self.epoch);
        if segment.place.epoch != self.epoch && own.is_none_or(|until| *until <= now) {
            return LeaseState::Revoked;
        }
        match former {
            Some(_) => LeaseState::HoldingAcks(free),
            None => LeaseState::Active(self.env.now() + own.map_or(inner.lease, |end| *end - now)),
        }
    }
}

//! Requests and segments of a block server in the simulator, perhaps with a bug.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use base::Fault;
use block_proto::{BlockIo, Sequence, Standing};
use block_server::{BlockServer, Lease, LeaseState, OpenedSegment, Predecessors, SegmentOpener};
use block_volume::contract::{AllocationExtent, Answer, BlockLocations, Clear, Device, Owned};
use block_volume::dedup::RequestId;
use block_volume::geometry::Extent;
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::limits::IO_MAX;
use futures_util::FutureExt;
use runtime::{Buf, Instant};
use transport::{Handler, Incoming};

use super::sight::{change_begins, is_old, newest, note_newest, show};
use super::{
    Planted, acts, acts_where, change_comes, is_opened_since, is_rare, planted, renumber,
    segment_opens,
};

/// The server, with the bug that is planted on this thread.
pub(crate) fn handler_of(server: BlockServer) -> Rc<dyn Handler> {
    match planted() {
        None => Rc::new(server),
        Some(_) => Rc::new(Buggy { server, seq: Cell::new(0) }),
    }
}

/// The opener, with the bug that is planted on this thread.
pub(crate) fn opener_of(opener: Rc<dyn SegmentOpener>) -> Rc<dyn SegmentOpener> {
    match planted() {
        None => opener,
        Some(_) => Rc::new(BuggyOpener { opener, cached: RefCell::default() }),
    }
}

struct Buggy {
    server: BlockServer,
    seq: Cell<u64>,
}

impl Handler for Buggy {
    fn handle(&self, mut incoming: Incoming) {
        let request = &mut incoming.request;
        if request.service == block_proto::SERVICE
            && let Ok(mut io) = BlockIo::decode(request.op, &request.body)
        {
            let payload = request.payload.as_ref().map_or(0, |payload| payload.len() as u64);
            let undoes = planted() == Some(Planted::NoSequence) && comes_late(&io, payload);
            match &mut io {
                BlockIo::Write { at, sequence, .. } | BlockIo::Clear { at, sequence, .. }
                    if is_rare() && planted() == Some(Planted::NoSequence) =>
                {
                    let as_new = undoes && acts(Planted::NoSequence);
                    *sequence = renumber(at.segment, at.attachment, *sequence, as_new);
                }
                // Each is taken for one that has not come before.
                BlockIo::Write { sequence, .. } | BlockIo::Clear { sequence, .. }
                    if acts(Planted::NoSequence) =>
                {
                    let seq = self.seq.get() + 1;
                    self.seq.set(seq);
                    *sequence = Sequence { seq, floor: seq };
                }
                BlockIo::Open { fence, after, .. } if acts(Planted::OldAttachment) => {
                    (*fence, *after) = (0, 0);
                }
                _ => {}
            }
            request.body = io.encode();
        }
        self.server.handle(incoming);
    }
}

/// Takes note of a change that comes; true when it has come before and doing it now undoes another.
fn comes_late(io: &BlockIo, payload: u64) -> bool {
    let (at, seq, bytes) = match *io {
        BlockIo::Write { at, sequence, offset } => {
            (at, sequence.seq, offset..offset.saturating_add(payload))
        }
        BlockIo::Clear { at, sequence, offset, len, .. } => {
            (at, sequence.seq, offset..offset.saturating_add(len))
        }
        _ => return false,
    };
    change_comes(at.segment, (at.attachment, seq), bytes)
}

struct BuggyOpener {
    opener: Rc<dyn SegmentOpener>,
    /// Attachments that were admitted to a segment.
    cached: RefCell<BTreeSet<(VolumeId, u64)>>,
}

/// A lease that never ends.
struct Endless {
    lease: Rc<dyn Lease>,
    opening: Rc<OwnerOpening>,
}

/// Later than any run.
const NEVER: Instant = Instant::from_nanos(u64::MAX / 2);

impl Lease for Endless {
    fn lease_state(&self, predecessors: Predecessors) -> LeaseState {
        let standing = self.lease.lease_state(predecessors);
        // It is asked right behind a read, for whether what was read may be shown.
        let shows_old = self.opening.shows_old.take();
        let matters = !matches!(standing, LeaseState::Active(_)) && shows_old;
        match acts_where(Planted::EndlessLease, matters) {
            true => LeaseState::Active(NEVER),
            false => standing,
        }
    }
}

/// An opening of a segment by an owner.
struct OwnerOpening {
    segment: SegmentId,
    number: u64,
    /// The content read just now is not what a later owner has shown, or written, before.
    shows_old: Cell<bool>,
}

impl OwnerOpening {
    fn is_last(&self) -> bool {
        !is_opened_since(self.segment, self.number)
    }
}

struct BuggyDevice {
    opening: Rc<OwnerOpening>,
    device: Rc<dyn Owned>,
    /// Its answers about locations, by the first byte and the length.
    places: RefCell<BTreeMap<(Extent, bool), BlockLocations>>,
}

impl BuggyDevice {
    /// Whether a change that begins is taken for one that has not happened. In the rare form, only
    /// where clients see that it happens again.
    fn forgets(&self, request: RequestId, offset: u64, data: &[u8]) -> bool {
        if planted() != Some(Planted::ForgetChanges) {
            return false;
        }
        let change = (u64::from(request.attachment), request.seq);
        let matters = change_begins(self.opening.segment, change, offset, data);
        acts_where(Planted::ForgetChanges, matters)
    }

    /// Bytes of the segment, and whether they are older than what a later owner has shown, or
    /// written, before.
    async fn look(&self, extent: Extent) -> Result<(Buf, bool), Fault> {
        let segment = self.opening.segment;
        let before = newest(segment, extent.offset, extent.len);
        let data = self.device.read(extent).await?;
        if self.opening.is_last() {
            note_newest(segment, extent.offset, &data);
            return Ok((data, false));
        }
        let is_old = is_old(&before, extent.offset, &data);
        Ok((data, is_old))
    }

    fn note_written(&self, offset: u64, data: &[u8]) {
        if self.opening.is_last() {
            note_newest(self.opening.segment, offset, data);
        }
    }
}

impl Device for BuggyDevice {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        async move {
            let (data, is_old) = self.look(extent).await?;
            self.opening.shows_old.set(is_old);
            show(self.opening.segment, extent.offset, &data);
            Ok(data)
        }
        .boxed_local()
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        self.device.write(offset, data)
    }

    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.device.clear(extent, how)
    }

    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<AllocationExtent>> {
        self.device.pieces(extent, most)
    }
}

impl Owned for BuggyDevice {
    fn write_dedup(&self, request: RequestId, offset: u64, data: Buf) -> Answer<'_, ()> {
        // When it is polled: a change that the session knows as done never is.
        async move {
            match self.forgets(request, offset, &data) {
                true => self.device.write(offset, data.clone()).await?,
                false => self.device.write_dedup(request, offset, data.clone()).await?,
            }
            self.note_written(offset, &data);
            Ok(())
        }
        .boxed_local()
    }

    fn clear_dedup(&self, request: RequestId, extent: Extent, how: Clear) -> Answer<'_, ()> {
        async move {
            let zeroes = vec![0; extent.len.min(IO_MAX as u64) as usize];
            match self.forgets(request, extent.offset, &zeroes) {
                true => self.device.clear(extent, how).await?,
                false => self.device.clear_dedup(request, extent, how).await?,
            }
            self.note_written(extent.offset, &zeroes);
            Ok(())
        }
        .boxed_local()
    }

    fn last(&self, attachment: u32) -> u64 {
        self.device.last(attachment)
    }

    fn attachments(&self) -> Vec<u32> {
        self.device.attachments()
    }

    fn forget(&self, attachments: Range<u32>) {
        self.device.forget(attachments);
    }

    fn locate(&self, extent: Extent, around: bool) -> Answer<'_, Option<BlockLocations>> {
        async move {
            let asked = (extent, around);
            let old = self.places.borrow().get(&asked).cloned();
            if let Some(old) = old.filter(|_| acts(Planted::OldPlaces)) {
                return Ok(Some(old));
            }
            // Clients read there what a check finds here.
            let looked = match planted() {
                Some(Planted::EndlessLease | Planted::ForgetChanges) => {
                    Some(self.look(extent).await?)
                }
                _ => None,
            };
            let located = self.device.locate(extent, around).await?;
            if let Some((data, is_old)) = looked.filter(|_| located.is_some()) {
                self.opening.shows_old.set(is_old);
                show(self.opening.segment, extent.offset, &data);
            }
            if let Some(places) = &located {
                self.places.borrow_mut().entry(asked).or_insert_with(|| places.clone());
            }
            Ok(located)
        }
        .boxed_local()
    }

    fn confirm(&self) -> Answer<'_, ()> {
        if !is_rare() && acts(Planted::NoConfirm) {
            return std::future::ready(Ok(())).boxed_local();
        }
        async move {
            // In the rare form, where the segment is another's.
            let confirmed = self.device.confirm().await;
            if confirmed.is_err() && acts(Planted::NoConfirm) { Ok(()) } else { confirmed }
        }
        .boxed_local()
    }
}

impl SegmentOpener for BuggyOpener {
    fn open(&self, segment: SegmentId) -> Answer<'_, OpenedSegment> {
        async move {
            let opened = self.opener.open(segment).await?;
            let wraps = matches!(
                planted(),
                Some(
                    Planted::EndlessLease
                        | Planted::ForgetChanges
                        | Planted::NoConfirm
                        | Planted::OldPlaces
                )
            );
            if !wraps {
                return Ok(opened);
            }
            let (number, shows_old) = (segment_opens(segment), Cell::new(false));
            let opening = Rc::new(OwnerOpening { segment, number, shows_old });
            let lease = match planted() {
                Some(Planted::EndlessLease) => {
                    Rc::new(Endless { lease: opened.lease, opening: opening.clone() }) as Rc<_>
                }
                _ => opened.lease,
            };
            let places = RefCell::default();
            let device = Rc::new(BuggyDevice { opening, device: opened.device, places });
            Ok(OpenedSegment { device, lease, ..opened })
        }
        .boxed_local()
    }

    fn standing(&self, segment: SegmentId, epoch: u64, attachment: u64) -> Answer<'_, Standing> {
        async move {
            let key = (segment.volume, attachment);
            if planted() == Some(Planted::StandingCached)
                && self.cached.borrow().contains(&key)
                && acts(Planted::StandingCached)
            {
                return Ok(Standing { lives: true, owns: true, latest: false });
            }
            let mut standing = self.opener.standing(segment, epoch, attachment).await?;
            if standing.lives {
                self.cached.borrow_mut().insert(key);
            } else if acts(Planted::OldAttachment) {
                standing.lives = true;
            }
            standing.latest |= planted() == Some(Planted::HoldSkippedShared)
                && !standing.latest
                && acts(Planted::HoldSkippedShared);
            Ok(standing)
        }
        .boxed_local()
    }

    fn is_attached(&self, volume: VolumeId, epoch: u64) -> Answer<'_, bool> {
        match acts(Planted::OldAttachment) {
            true => std::future::ready(Ok(true)).boxed_local(),
            false => self.opener.is_attached(volume, epoch),
        }
    }
}

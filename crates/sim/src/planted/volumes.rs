//! What a block server gets in the simulator: its requests, and its segments, perhaps with a bug.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use base::VolumeId;
use block::contract::{Answer, Clear, Device, Owned, Piece, Places};
use block::geometry::Extent;
use block::once::Origin;
use block::server::Standing;
use block::server::{BlockServer, Lease, Opened, SegmentOpener};
use futures_util::FutureExt;
use runtime::{Buf, Instant};
use transport::{Handler, Incoming, Service};
use wire::block::{BlockIo, Sequence};
use wire::control::SegmentId;

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
        Some(_) => Rc::new(BuggyOpener { opener }),
    }
}

struct Buggy {
    server: BlockServer,
    seq: Cell<u64>,
}

impl Handler for Buggy {
    fn handle(&self, mut incoming: Incoming) {
        let request = &mut incoming.request;
        if request.service == Service::Block
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
}

/// A lease that never ends.
struct Endless {
    lease: Rc<dyn Lease>,
    segment: SegmentId,
    /// Which opening of the segment it is of.
    opening: u64,
}

/// Later than any run.
const NEVER: Instant = Instant::from_nanos(u64::MAX / 2);

impl Lease for Endless {
    fn standing(&self) -> Standing {
        let standing = self.lease.standing();
        // Where the segment is another's by now.
        let matters =
            !matches!(standing, Standing::Serves(_)) && is_opened_since(self.segment, self.opening);
        match acts_where(Planted::EndlessLease, matters) {
            true => Standing::Serves(NEVER),
            false => standing,
        }
    }
}

struct BuggyDevice {
    segment: SegmentId,
    device: Rc<dyn Owned>,
    /// What it has said of places, by the first byte and the length.
    places: RefCell<BTreeMap<(Extent, bool), Places>>,
}

impl BuggyDevice {
    /// Whether a change is taken for one that has not happened.
    fn forgets(&self, origin: Origin, extent: Extent) -> bool {
        let change = (u64::from(origin.attachment), origin.seq);
        let bytes = extent.offset..extent.offset.saturating_add(extent.len);
        let matters =
            planted() == Some(Planted::ForgetChanges) && change_comes(self.segment, change, bytes);
        acts_where(Planted::ForgetChanges, matters)
    }
}

impl Device for BuggyDevice {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        self.device.read(extent)
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        self.device.write(offset, data)
    }

    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.device.clear(extent, how)
    }

    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<Piece>> {
        self.device.pieces(extent, most)
    }
}

impl Owned for BuggyDevice {
    fn write_once(&self, origin: Origin, offset: u64, data: Buf) -> Answer<'_, ()> {
        match self.forgets(origin, Extent { offset, len: data.len() as u64 }) {
            true => self.device.write(offset, data),
            false => self.device.write_once(origin, offset, data),
        }
    }

    fn clear_once(&self, origin: Origin, extent: Extent, how: Clear) -> Answer<'_, ()> {
        match self.forgets(origin, extent) {
            true => self.device.clear(extent, how),
            false => self.device.clear_once(origin, extent, how),
        }
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

    fn locate(&self, extent: Extent, around: bool) -> Answer<'_, Option<Places>> {
        async move {
            let asked = (extent, around);
            let old = self.places.borrow().get(&asked).cloned();
            if let Some(old) = old.filter(|_| acts(Planted::OldPlaces)) {
                return Ok(Some(old));
            }
            let located = self.device.locate(extent, around).await?;
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
    fn open(&self, segment: SegmentId) -> Answer<'_, Opened> {
        async move {
            let opened = self.opener.open(segment).await?;
            Ok(match planted() {
                Some(Planted::EndlessLease) => {
                    let (lease, opening) = (opened.lease, segment_opens(segment));
                    Opened { lease: Rc::new(Endless { lease, segment, opening }), ..opened }
                }
                Some(Planted::ForgetChanges | Planted::NoConfirm | Planted::OldPlaces) => {
                    let (device, places) = (opened.device, RefCell::default());
                    Opened { device: Rc::new(BuggyDevice { segment, device, places }), ..opened }
                }
                _ => opened,
            })
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

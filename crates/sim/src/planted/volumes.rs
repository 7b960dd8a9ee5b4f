//! What a block server gets in the simulator: its requests, and its segments, perhaps with a bug.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use base::VolumeId;
use block::contract::{Answer, Clear, Device, Owned, Piece, Places};
use block::geometry::Extent;
use block::manager::Standing;
use block::once::Origin;
use block::server::{BlockServer, Lease, Opened, SegmentOpener};
use futures_util::FutureExt;
use runtime::{Buf, Instant};
use transport::{Handler, Incoming, Service};
use wire::block::{BlockIo, Sequence};
use wire::control::SegmentId;

use super::{Planted, acts, is_rare, planted};

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
            match &mut io {
                // Each is taken for one that has not come before.
                BlockIo::Write { sequence, .. } | BlockIo::Clear { sequence, .. }
                    if acts(Planted::NoSequence) =>
                {
                    if is_rare() {
                        // Beyond all that its session has sent.
                        sequence.seq += 1 << 40;
                        request.body = io.encode();
                        return self.server.handle(incoming);
                    }
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

struct BuggyOpener {
    opener: Rc<dyn SegmentOpener>,
}

/// A lease that never ends.
struct Endless(Rc<dyn Lease>);

/// Later than any run.
const NEVER: Instant = Instant::from_nanos(u64::MAX / 2);

impl Lease for Endless {
    fn standing(&self) -> Standing {
        if acts(Planted::EndlessLease) { Standing::Serves(NEVER) } else { self.0.standing() }
    }
}

struct BuggyDevice {
    device: Rc<dyn Owned>,
    /// What it has said of places, by the first byte and the length.
    places: RefCell<BTreeMap<(Extent, bool), Places>>,
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
        match acts(Planted::ForgetChanges) {
            true => self.device.write(offset, data),
            false => self.device.write_once(origin, offset, data),
        }
    }

    fn clear_once(&self, origin: Origin, extent: Extent, how: Clear) -> Answer<'_, ()> {
        match acts(Planted::ForgetChanges) {
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
        match acts(Planted::NoConfirm) {
            true => std::future::ready(Ok(())).boxed_local(),
            false => self.device.confirm(),
        }
    }
}

impl SegmentOpener for BuggyOpener {
    fn open(&self, segment: SegmentId) -> Answer<'_, Opened> {
        async move {
            let opened = self.opener.open(segment).await?;
            Ok(match planted() {
                Some(Planted::EndlessLease) => {
                    Opened { lease: Rc::new(Endless(opened.lease)), ..opened }
                }
                Some(Planted::ForgetChanges | Planted::NoConfirm | Planted::OldPlaces) => {
                    let (device, places) = (opened.device, RefCell::default());
                    Opened { device: Rc::new(BuggyDevice { device, places }), ..opened }
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

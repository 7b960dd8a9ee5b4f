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

use super::{Planted, planted};

/// The server, with the bug that is planted on this thread.
pub(crate) fn handler_of(server: BlockServer) -> Rc<dyn Handler> {
    match planted() {
        None => Rc::new(server),
        Some(bug) => Rc::new(Buggy { server, bug, seq: Cell::new(0) }),
    }
}

/// The opener, with the bug that is planted on this thread.
pub(crate) fn opener_of(opener: Rc<dyn SegmentOpener>) -> Rc<dyn SegmentOpener> {
    match planted() {
        None => opener,
        Some(bug) => Rc::new(BuggyOpener { opener, bug }),
    }
}

struct Buggy {
    server: BlockServer,
    bug: Planted,
    seq: Cell<u64>,
}

impl Handler for Buggy {
    fn handle(&self, mut incoming: Incoming) {
        let request = &mut incoming.request;
        if request.service == Service::Block
            && let Ok(mut io) = BlockIo::decode(request.op, &request.body)
        {
            match (&mut io, self.bug) {
                // Each is taken for one that has not come before.
                (
                    BlockIo::Write { sequence, .. } | BlockIo::Clear { sequence, .. },
                    Planted::NoSequence,
                ) => {
                    let seq = self.seq.get() + 1;
                    self.seq.set(seq);
                    *sequence = Sequence { seq, floor: seq };
                }
                (BlockIo::Open { fence, after, .. }, Planted::OldAttachment) => {
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
    bug: Planted,
}

/// A lease that never ends.
struct Endless;

/// Later than any run.
const NEVER: Instant = Instant::from_nanos(u64::MAX / 2);

impl Lease for Endless {
    fn standing(&self) -> Standing {
        Standing::Serves(NEVER)
    }
}

struct BuggyDevice {
    device: Rc<dyn Owned>,
    bug: Planted,
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
        match self.bug {
            Planted::ForgetChanges => self.device.write(offset, data),
            _ => self.device.write_once(origin, offset, data),
        }
    }

    fn clear_once(&self, origin: Origin, extent: Extent, how: Clear) -> Answer<'_, ()> {
        match self.bug {
            Planted::ForgetChanges => self.device.clear(extent, how),
            _ => self.device.clear_once(origin, extent, how),
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
            if let Some(old) = old.filter(|_| self.bug == Planted::OldPlaces) {
                return Ok(Some(old));
            }
            let located = self.device.locate(extent, around).await?;
            if let Some(places) = &located {
                self.places.borrow_mut().insert(asked, places.clone());
            }
            Ok(located)
        }
        .boxed_local()
    }

    fn confirm(&self) -> Answer<'_, ()> {
        match self.bug {
            Planted::NoConfirm => std::future::ready(Ok(())).boxed_local(),
            _ => self.device.confirm(),
        }
    }
}

impl SegmentOpener for BuggyOpener {
    fn open(&self, segment: SegmentId) -> Answer<'_, Opened> {
        async move {
            let opened = self.opener.open(segment).await?;
            Ok(match self.bug {
                Planted::EndlessLease => Opened { lease: Rc::new(Endless), ..opened },
                Planted::ForgetChanges | Planted::NoConfirm | Planted::OldPlaces => {
                    let (device, bug, places) = (opened.device, self.bug, RefCell::default());
                    Opened { device: Rc::new(BuggyDevice { device, bug, places }), ..opened }
                }
                _ => opened,
            })
        }
        .boxed_local()
    }

    fn is_attached(&self, volume: VolumeId, epoch: u64) -> Answer<'_, bool> {
        match self.bug {
            Planted::OldAttachment => std::future::ready(Ok(true)).boxed_local(),
            _ => self.opener.is_attached(volume, epoch),
        }
    }
}

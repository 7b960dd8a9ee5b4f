//! Segments whose openings or devices stand still for as long as a test wants.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use base::Fault;
use block_proto::Standing;
use block_server::{OpenedSegment, SegmentOpener};
use block_volume::contract::{AllocationExtent, Answer, BlockLocations, Clear, Device, Owned};
use block_volume::dedup::RequestId;
use block_volume::geometry::Extent;
use block_volume::ids::{SegmentId, VolumeId};
use futures_util::FutureExt;
use runtime::Buf;
use runtime::sync::Notify;

/// The gate of one hosting's device: reads and writes wait while it is shut.
#[derive(Default)]
pub struct Gate {
    shut: Cell<bool>,
    fault: RefCell<Option<Fault>>,
    changed: Notify,
}

impl Gate {
    pub fn shut(&self) {
        self.shut.set(true);
    }

    /// Requests that wait, and later ones, pass.
    pub fn open(&self) {
        self.shut.set(false);
        self.changed.notify_waiters();
    }

    /// Requests that wait, and later ones, end with this.
    pub fn fail(&self, fault: Fault) {
        self.fault.replace(Some(fault));
        self.changed.notify_waiters();
    }

    async fn pass(&self) -> Result<(), Fault> {
        loop {
            let changed = self.changed.notified();
            match &*self.fault.borrow() {
                Some(fault) => return Err(fault.clone()),
                None if !self.shut.get() => return Ok(()),
                None => {}
            }
            changed.await;
        }
    }
}

/// The gates of a server's segments.
#[derive(Clone, Default)]
pub struct Gates(Rc<GatesInner>);

#[derive(Default)]
struct GatesInner {
    /// Segments whose openings wait.
    openings: RefCell<BTreeSet<SegmentId>>,
    /// Openings that have begun.
    begun: Cell<u32>,
    changed: Notify,
    /// Of the last device of each segment.
    devices: RefCell<BTreeMap<SegmentId, Rc<Gate>>>,
}

impl Gates {
    /// From now on, no opening of the segment ends.
    pub fn shut_opening(&self, segment: SegmentId) {
        self.0.openings.borrow_mut().insert(segment);
    }

    /// Openings of the segment end again, those that wait too.
    pub fn end_opening(&self, segment: SegmentId) {
        self.0.openings.borrow_mut().remove(&segment);
        self.0.changed.notify_waiters();
    }

    /// Openings that have begun so far.
    pub fn openings_begun(&self) -> u32 {
        self.0.begun.get()
    }

    /// The gate of the device that was opened last.
    pub fn device(&self, segment: SegmentId) -> Rc<Gate> {
        self.0.devices.borrow()[&segment].clone()
    }

    /// The same opener, with these gates.
    pub fn guard(&self, opener: Rc<dyn SegmentOpener>) -> Rc<dyn SegmentOpener> {
        Rc::new(GatedOpener { opener, gates: self.clone() })
    }
}

struct GatedOpener {
    opener: Rc<dyn SegmentOpener>,
    gates: Gates,
}

impl SegmentOpener for GatedOpener {
    fn open(&self, segment: SegmentId) -> Answer<'_, OpenedSegment> {
        async move {
            let gates = &self.gates.0;
            gates.begun.set(gates.begun.get() + 1);
            loop {
                let changed = gates.changed.notified();
                if !gates.openings.borrow().contains(&segment) {
                    break;
                }
                changed.await;
            }
            let opened = self.opener.open(segment).await?;
            let gate = Rc::new(Gate::default());
            self.gates.0.devices.borrow_mut().insert(segment, gate.clone());
            Ok(OpenedSegment { device: Rc::new(Gated { device: opened.device, gate }), ..opened })
        }
        .boxed_local()
    }

    fn standing(&self, segment: SegmentId, epoch: u64, attachment: u64) -> Answer<'_, Standing> {
        self.opener.standing(segment, epoch, attachment)
    }

    fn is_attached(&self, volume: VolumeId, epoch: u64) -> Answer<'_, bool> {
        self.opener.is_attached(volume, epoch)
    }
}

/// A device behind a gate.
struct Gated {
    device: Rc<dyn Owned>,
    gate: Rc<Gate>,
}

impl Gated {
    /// Passes the gate, and then waits for the answer.
    fn pass<'a, T: 'a>(&'a self, answer: Answer<'a, T>) -> Answer<'a, T> {
        async move {
            self.gate.pass().await?;
            answer.await
        }
        .boxed_local()
    }
}

impl Device for Gated {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        self.pass(self.device.read(extent))
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        self.pass(self.device.write(offset, data))
    }

    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.pass(self.device.clear(extent, how))
    }

    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<AllocationExtent>> {
        self.device.pieces(extent, most)
    }
}

impl Owned for Gated {
    fn write_dedup(&self, request: RequestId, offset: u64, data: Buf) -> Answer<'_, ()> {
        self.pass(self.device.write_dedup(request, offset, data))
    }

    fn clear_dedup(&self, request: RequestId, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.pass(self.device.clear_dedup(request, extent, how))
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
        self.device.locate(extent, around)
    }

    fn confirm(&self) -> Answer<'_, ()> {
        self.device.confirm()
    }
}

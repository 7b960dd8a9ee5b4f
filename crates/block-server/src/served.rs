//! [`ServedSegment`]: the device of a segment that is open here, and its counted requests.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::contract::{AllocationExtent, Answer, BlockLocations, Clear, Device, Owned};
use block_volume::dedup::RequestId;
use block_volume::figures::{SegmentCheck, SegmentScrub, SegmentUsage};
use block_volume::geometry::Extent;
use block_volume::ids::SegmentId;
use futures_util::future::LocalBoxFuture;
use runtime::{Buf, Duration};
use wire::control::Policy;

/// A segment that this process has open.
pub trait ServedSegment: Owned {
    /// Returns `Ok` when it can be asked: it may be opened only now. Called before each use of it
    /// by a new user.
    fn ready(&self) -> Answer<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Ends when it takes no changes any more; it can be opened again, under the same epoch too.
    fn stopped(&self) -> LocalBoxFuture<'static, Fault>;

    /// Ends it, so that the next opening is quick.
    fn close(&self) -> LocalBoxFuture<'static, ()>;

    /// A piece of the check of stored data ([`block_segment::Segment::check`]).
    fn check(&self, _: u64) -> Answer<'_, SegmentCheck> {
        let fault = Fault::new(Kind::Invalid, "nothing is stored of it that could be checked");
        Box::pin(std::future::ready(Err(fault)))
    }

    /// Progress of its scrub (B14).
    fn scrub(&self) -> SegmentScrub {
        SegmentScrub::default()
    }

    /// Its space, as far as it is known; the caller fills in its number.
    fn usage(&self) -> SegmentUsage {
        SegmentUsage::default()
    }

    /// Fixes a cut and holds answers back, `most` at most (B10).
    fn cut(&self, cut: u64, most: Duration) -> Answer<'_, ()> {
        let _ = (cut, most);
        Box::pin(std::future::ready(Err(uncut())))
    }

    /// Ends the hold of a cut; returns its duration.
    fn release_cut(&self, cut: u64, keep: bool) -> Result<Duration, Fault> {
        let _ = (cut, keep);
        Err(uncut())
    }

    /// Makes another segment with the content of a cut that was released (B11).
    fn link(&self, cut: u64, to: SegmentId, policy: Policy) -> Answer<'_, ()> {
        let _ = (cut, to, policy);
        Box::pin(std::future::ready(Err(uncut())))
    }

    /// Sets the policy of the files that it makes from now on.
    fn set_policy(&self, policy: Policy);

    /// Begins to copy what is shared with other volumes; returns the number of such blocks.
    fn flatten(&self) -> Answer<'_, u64> {
        Box::pin(std::future::ready(Ok(0)))
    }
}

fn uncut() -> Fault {
    Fault::new(Kind::Invalid, "segments that are not in the core cannot be cut")
}

fn unchanging() -> Fault {
    Fault::new(Kind::Invalid, "a snapshot takes no changes; clone it and change the clone")
}

/// A device whose requests are counted, for the balance of load.
pub(super) struct Counted {
    pub(super) device: Rc<dyn ServedSegment>,
    /// Requests and bytes.
    load: Cell<(u64, u64)>,
    /// It takes no changes.
    read_only: bool,
}

impl Counted {
    pub(super) fn new(device: Rc<dyn ServedSegment>, read_only: bool) -> Counted {
        Counted { device, load: Cell::default(), read_only }
    }

    fn count(&self, bytes: u64) {
        let (requests, sum) = self.load.get();
        self.load.set((requests + 1, sum + bytes));
    }

    /// Requests and bytes since the last call.
    pub(super) fn take(&self) -> (u64, u64) {
        self.load.take()
    }
}

impl Device for Counted {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        self.count(extent.len);
        self.device.read(extent)
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        self.count(data.len() as u64);
        if self.read_only {
            return Box::pin(std::future::ready(Err(unchanging())));
        }
        self.device.write(offset, data)
    }

    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.count(0);
        if self.read_only {
            return Box::pin(std::future::ready(Err(unchanging())));
        }
        self.device.clear(extent, how)
    }

    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<AllocationExtent>> {
        self.device.pieces(extent, most)
    }
}

impl Owned for Counted {
    fn write_dedup(&self, request: RequestId, offset: u64, data: Buf) -> Answer<'_, ()> {
        self.count(data.len() as u64);
        if self.read_only {
            return Box::pin(std::future::ready(Err(unchanging())));
        }
        self.device.write_dedup(request, offset, data)
    }

    fn clear_dedup(&self, request: RequestId, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.count(0);
        if self.read_only {
            return Box::pin(std::future::ready(Err(unchanging())));
        }
        self.device.clear_dedup(request, extent, how)
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
        Box::pin(async move {
            let located = self.device.locate(extent, around).await?;
            if located.is_some() {
                self.count(extent.len);
            }
            Ok(located)
        })
    }

    fn confirm(&self) -> Answer<'_, ()> {
        self.device.confirm()
    }
}

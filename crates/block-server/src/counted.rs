//! [`Counted`]: a device whose requests are counted.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::contract::{AllocationExtent, Answer, BlockLocations, Clear, Device, Owned};
use block_volume::dedup::RequestId;
use block_volume::geometry::Extent;
use runtime::Buf;

use super::agent::ServedSegment;

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

//! [`Volume`]: the block client (B16). It cuts requests at segments, sends their parts to the
//! block servers at the same time, and sends them again until they are answered. When a server
//! dies, its caller sees a pause.
//!
//! Requests that overlap on a block go in order. A change keeps its number when it is sent again,
//! and happens once. So blocks are linearizable, with one attachment or with several (a shared
//! volume), through the death of any block server.
//!
//! Invariant: knows no NBD; reaches the block manager through [`Route`] and the core through
//! [`DataFiles`] only.

mod direct;
pub mod exports;
mod files;
pub mod limits;
mod location_cache;
mod owner;
mod planted;
mod ranges;
mod segment;
mod session;
mod shared;
mod throttle;

pub use exports::VolumeExports;
pub use files::DataFiles;
#[cfg(feature = "planted")]
pub use planted::{Planted, plant};
pub use shared::{Attachment, Limits, Reads, Route, SegmentOwner};

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use base::{Fault, Kind};
use block_proto::BlockAnswer;
use block_volume::contract::{AllocationExtent, Answer, Clear, Device, PIECES_MAX};
use block_volume::geometry::{Extent, Geometry, SegmentIndex, SegmentRequest};
use block_volume::ids::VolumeId;
use block_volume::limits::IO_MAX;
use block_volume::qos::VolumeLimits;
use files::DirectReadBackoff;
use futures_util::FutureExt;
use futures_util::future::join_all;
use location_cache::LocationCache;
use runtime::{Buf, BufMut, Env};
use segment::{Answered, Ask, Segment};
use shared::Shared;
use throttle::Throttle;
use transport::{Endpoint, Priority};

use crate::limits::PIECES_BYTES_MAX;

struct VolumeInner {
    shared: Rc<Shared>,
    geometry: Geometry,
    bytes: Cell<u64>,
    segments: RefCell<BTreeMap<u32, Rc<Segment>>>,
    throttle: Throttle,
}

/// An attached volume, as a [`Device`]. Clones share it.
#[derive(Clone)]
pub struct Volume(Rc<VolumeInner>);

/// Identity and sizes of a volume.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The volume.
    pub volume: VolumeId,
    /// Its sizes.
    pub geometry: Geometry,
    /// Its bytes.
    pub bytes: u64,
}

impl Volume {
    /// The client of an attachment, which has no other at a time. Nothing is sent before the first
    /// request.
    pub fn new(
        env: &Env,
        endpoint: Endpoint,
        route: Rc<dyn Route>,
        shape: Shape,
        attachment: Attachment,
        limits: Limits,
    ) -> Volume {
        assert!(attachment.fence <= attachment.epoch, "an attachment is not over by itself");
        let shared = Shared {
            env: env.clone(),
            endpoint,
            route,
            limits,
            volume: shape.volume,
            attachment,
            over: Cell::new(false),
            files: OnceCell::new(),
            direct_backoff: DirectReadBackoff::default(),
            locations: LocationCache::default(),
            reads: Cell::default(),
            answer_times: RefCell::default(),
        };
        Volume(Rc::new(VolumeInner {
            shared: Rc::new(shared),
            geometry: shape.geometry,
            bytes: Cell::new(shape.bytes),
            segments: RefCell::default(),
            throttle: Throttle::new(env),
        }))
    }

    /// From now on reads may go to DataFiles of `files`, once a block server has sent the locations
    /// of the blocks.
    pub fn read_directly(&self, files: Rc<dyn DataFiles>) {
        // The second caller sets the same.
        let _ = self.0.shared.files.set(files);
    }

    /// Reads so far.
    pub fn reads(&self) -> Reads {
        self.0.shared.reads.get()
    }

    /// Its new length, after a resize.
    pub fn set_bytes(&self, bytes: u64) {
        self.0.bytes.set(bytes);
    }

    /// Sets its limits (B12), for waiting requests too. `attachments` are all that the volume has:
    /// each takes its share. Before the first call it has no limits.
    pub fn set_limits(&self, limits: VolumeLimits, attachments: usize) {
        self.0.throttle.set(limits, attachments);
    }

    /// Ends its sessions, for a detachment: none may follow. Requests that are under way fail, and those of them
    /// that change something may have happened.
    pub async fn close(&self) {
        self.0.shared.over.set(true);
        let segments: Vec<_> = self.0.segments.take().into_values().collect();
        join_all(segments.iter().map(|segment| segment.close())).await;
    }

    /// True when another attachment has taken its place.
    pub fn is_over(&self) -> bool {
        self.0.shared.over.get()
    }

    fn segment(&self, index: SegmentIndex) -> Rc<Segment> {
        let segments = &mut *self.0.segments.borrow_mut();
        let make = || Segment::new(&self.0.shared, index.get());
        segments.entry(index.get()).or_insert_with(make).clone()
    }

    fn check(&self, extent: Extent, most: u64) -> Result<(), Fault> {
        let Extent { offset, len } = extent;
        let bytes = self.0.bytes.get();
        if len == 0 || len > most || extent.end().is_none_or(|end| end > bytes) {
            let why = format!("{len} bytes at {offset} of a volume of {bytes}, {most} at a time");
            return Err(Fault::new(Kind::Invalid, why));
        }
        Ok(())
    }

    /// Has each segment do its part. It waits for all parts, so that none is under way when an
    /// error is returned.
    async fn spread(
        &self,
        parts: &[SegmentRequest],
        mut asks: Vec<Ask>,
        priority: Priority,
    ) -> Result<Vec<Answered>, Fault> {
        if let ([part], Some(ask)) = (parts, asks.pop_if(|_| parts.len() == 1)) {
            let segment = self.segment(part.segment);
            return Ok(vec![segment.perform(part.extent, ask, priority).await?]);
        }
        let perform = |(part, ask): (&SegmentRequest, Ask)| {
            let (segment, extent) = (self.segment(part.segment), part.extent);
            async move { segment.perform(extent, ask, priority).await }
        };
        join_all(parts.iter().zip(asks).map(perform)).await.into_iter().collect()
    }

    async fn alloc(&self, len: usize) -> Result<BufMut, Fault> {
        self.0.shared.alloc(len).await
    }
}

fn foreign() -> Fault {
    Fault::new(Kind::Invalid, "the block server's answer does not fit the question")
}

impl Device for Volume {
    fn bytes(&self) -> u64 {
        self.0.bytes.get()
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        async move {
            self.check(extent, IO_MAX as u64)?;
            let priority = self.0.throttle.admit(extent.len).await;
            let parts = self.0.geometry.split(extent);
            let mut answers = self.spread(&parts, vec![Ask::Read; parts.len()], priority).await?;
            for (part, (_, data)) in parts.iter().zip(&answers) {
                let len = data.as_ref().map_or(0, |data| data.len() as u64);
                if len != part.extent.len {
                    return Err(foreign());
                }
            }
            if parts.len() == 1
                && let Some((_, Some(data))) = answers.pop()
            {
                return Ok(data);
            }
            let mut whole = self.alloc(extent.len as usize).await?;
            for (part, (_, data)) in parts.iter().zip(&answers) {
                part.scatter(data.as_ref().expect("looked at"), &mut whole);
            }
            Ok(whole.freeze())
        }
        .boxed_local()
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        async move {
            let extent = Extent { offset, len: data.len() as u64 };
            self.check(extent, IO_MAX as u64)?;
            let priority = self.0.throttle.admit(extent.len).await;
            let parts = self.0.geometry.split(extent);
            let mut asks = Vec::with_capacity(parts.len());
            for part in &parts {
                asks.push(Ask::Write(match part.parts[..] {
                    [one] => data.slice(one.offset as usize..(one.offset + one.len) as usize),
                    _ => {
                        let mut buf = self.alloc(part.extent.len as usize).await?;
                        part.gather_into(&data, &mut buf);
                        buf.freeze()
                    }
                }));
            }
            self.spread(&parts, asks, priority).await.map(drop)
        }
        .boxed_local()
    }

    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()> {
        async move {
            self.check(extent, u64::MAX)?;
            let priority = self.0.throttle.admit(0).await; // It moves no data.
            let parts = self.0.geometry.split(extent);
            self.spread(&parts, vec![Ask::Clear(how); parts.len()], priority).await.map(drop)
        }
        .boxed_local()
    }

    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<AllocationExtent>> {
        async move {
            self.check(extent, u64::MAX)?;
            // The client asks for the rest when it gets there.
            let extent = Extent { len: extent.len.min(PIECES_BYTES_MAX), ..extent };
            let parts = self.0.geometry.split(extent);
            let most = most.clamp(1, PIECES_MAX);
            let asks = vec![Ask::Pieces(most); parts.len()];
            let answers = self.spread(&parts, asks, Priority::Foreground).await?;
            let lists = answers.into_iter().map(|(answer, _)| match answer {
                BlockAnswer::Pieces(pieces) => Ok(pieces),
                _ => Err(foreign()),
            });
            let lists = lists.collect::<Result<Vec<_>, _>>()?;
            let merged = merge(&parts, &lists, most);
            if merged.is_empty() { Err(foreign()) } else { Ok(merged) }
        }
        .boxed_local()
    }
}

/// Pieces of segments, in the order of the volume, up to the first segment whose answer ends early.
fn merge(
    parts: &[SegmentRequest],
    lists: &[Vec<AllocationExtent>],
    most: usize,
) -> Vec<AllocationExtent> {
    // All parts in the order of the request; of one segment they are in its order, too.
    let mut order: Vec<(Extent, usize)> = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        order.extend(part.parts.iter().map(|extent| (*extent, index)));
    }
    order.sort_unstable();
    let mut at: Vec<(usize, u64)> = vec![(0, 0); parts.len()];
    let mut found: Vec<AllocationExtent> = Vec::new();
    for (extent, index) in order {
        let mut left = extent.len;
        while left > 0 {
            let (piece, used) = &mut at[index];
            let Some(now) = lists[index].get(*piece) else { return found };
            let len = (now.len - *used).min(left);
            *used += len;
            left -= len;
            if *used == now.len {
                (*piece, *used) = (*piece + 1, 0);
            }
            let full = found.len() == most;
            match found.last_mut() {
                Some(last) if (last.hole, last.zero) == (now.hole, now.zero) => last.len += len,
                _ if full => return found,
                _ => found.push(AllocationExtent { len, hole: now.hole, zero: now.zero }),
            }
        }
    }
    found
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attachment { epoch, .. } = self.0.shared.attachment;
        write!(f, "Volume({}, attachment {epoch})", self.0.shared.volume)
    }
}

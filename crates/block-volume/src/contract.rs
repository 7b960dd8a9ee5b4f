//! [`Device`]: the interface through which a block server serves one segment (B2), and against
//! which front ends are tested without one.

use std::ops::Range;

use crate::dedup::RequestId;
use crate::geometry::Extent;
use crate::location::LocationRun;
use base::Fault;
use futures_util::future::LocalBoxFuture;
use runtime::Buf;

/// Pieces in one answer at most: 64 KiB of body.
pub const PIECES_MAX: usize = 4096;

/// An answer of a device. The kinds of [`Fault`] mean: `Fenced` another owner has the segment and
/// nothing will be changed here again; `Retry` nothing was changed; `Unknown` it may have been;
/// `Full` no room; `Invalid` the request is outside the segment.
pub type Answer<'a, T> = LocalBoxFuture<'a, Result<T, Fault>>;

/// The ways in which a range loses its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clear {
    /// It reads as zeroes, and its space is given back.
    Trim,
    /// It reads as zeroes, and counts as data: block status shows no hole.
    Zero,
}

/// A piece of a segment, for block status (NBD `base:allocation`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocationExtent {
    /// Bytes.
    pub len: u64,
    /// True for a hole: never written, or trimmed.
    pub hole: bool,
    /// True when it reads as zeroes for certain.
    pub zero: bool,
}

/// Locations of the records of blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockLocations {
    /// Number of the first block.
    pub first: u64,
    /// In block order, without gaps.
    pub spans: Vec<LocationRun>,
}

/// One segment of a volume, byte by byte. The block client serves a whole volume through it, too.
///
/// - A read or write has 1 to [`IO_MAX`](crate::limits::IO_MAX) bytes; a clear or a request for
///   pieces, any number.
/// - Ranges may begin and end anywhere within the segment. The atomic unit is the 4 KiB block: of
///   two changes of a block one comes whole before the other, and a part of a block is changed
///   with the rest of it as it was (`protocols.md` 6.2).
/// - Requests that overlap take effect in the order of their first poll; others in any order.
/// - A change that is answered is durable. There is no volatile cache (`protocols.md` 6.3).
/// - A read shows the last change answered before it began, or one that was under way.
pub trait Device {
    /// Bytes of the segment.
    fn bytes(&self) -> u64;

    /// The bytes of a range.
    fn read(&self, extent: Extent) -> Answer<'_, Buf>;

    /// Writes `data` at `offset`.
    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()>;

    /// Makes a range read as zeroes.
    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()>;

    /// The pieces of a range, from its start on: `most` at most; they may end early.
    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<AllocationExtent>>;
}

/// A segment as its owner serves it: a change happens once, at any owner and with any number of
/// retries (`protocols.md` 6.2, 6.3), and the core can be asked which owner it has.
pub trait Owned: Device {
    /// Writes `data` at `offset`, unless that has happened under this request ID: then it succeeds
    /// at once. When a previous owner has done a part of a change, the rest is done. No two changes
    /// of one request ID are under way at a time. `Invalid` when the request ID is older than all
    /// that may be sent again.
    fn write_dedup(&self, request: RequestId, offset: u64, data: Buf) -> Answer<'_, ()>;

    /// Makes a range read as zeroes, once as [`Owned::write_dedup`].
    fn clear_dedup(&self, request: RequestId, extent: Extent, how: Clear) -> Answer<'_, ()>;

    /// The highest number of an attachment's changes of which something has happened; 0 for none.
    fn last(&self, attachment: u32) -> u64;

    /// Attachments whose changes are remembered.
    fn attachments(&self) -> Vec<u32>;

    /// These attachments are over: their changes need not be remembered.
    fn forget(&self, attachments: Range<u32>);

    /// Locations of a range's blocks, for direct reads. The records there are those that a read
    /// that began with this call may return, as long as the files exist. With `around`, locations
    /// of the blocks' groups too, as far as they are known. None when the range is to be read
    /// through the device: replicas may not return all of it yet.
    fn locate(&self, extent: Extent, around: bool) -> Answer<'_, Option<BlockLocations>>;

    /// Succeeds when no other owner had opened the segment at some moment after the call: data read
    /// before is no older than that. `Fenced` when another has. Costs an append.
    fn confirm(&self) -> Answer<'_, ()>;
}

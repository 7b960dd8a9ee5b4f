//! Blocks of ranges, and runs of their records.

use std::ops::Range;

use crate::geometry::Extent;
use crate::limits::{BLOCK, PLACES_AROUND};
use crate::record::RECORD_UNITS;

/// Spans in one answer at most: 6 KiB of body. A read of 512 KiB has 129 blocks, and 62 around
/// them.
pub const SPANS_MAX: usize = 256;

/// Blocks of a segment that stand together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// How many, at least 1.
    pub blocks: u32,
    /// Where their records are, in block order without gaps; nothing for zeroes.
    pub at: Option<RecordPlace>,
}

/// Where the record of a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordPlace {
    /// What distinguishes the DataFile from others in the segment's directory: who made it, and its
    /// number, which is not 0.
    pub file: (u32, u32),
    /// The volume that its records are of; 0 for the segment's own.
    pub origin: u64,
    /// The record's place in the file, in units of 64 bytes.
    pub unit: u32,
}

/// Blocks that a range covers, and the whole ones among them.
pub fn blocks(extent: Extent) -> (Range<u64>, Range<u64>) {
    let end = extent.offset + extent.len;
    let covers = extent.offset / BLOCK..end.div_ceil(BLOCK);
    let (first, last) = (extent.offset.div_ceil(BLOCK), end / BLOCK);
    (covers, first..last.max(first))
}

/// The part of a range that lies in a block: from the range's start, and from the block's.
pub fn part(extent: Extent, lba: u64) -> (Range<usize>, usize) {
    let start = (lba * BLOCK).max(extent.offset);
    let end = ((lba + 1) * BLOCK).min(extent.offset + extent.len);
    let of_range = (start - extent.offset) as usize..(end - extent.offset) as usize;
    (of_range, (start - lba * BLOCK) as usize)
}

/// Blocks whose places one answer has together.
pub fn neighbourhood(covers: &Range<u64>) -> Range<u64> {
    let start = covers.start / PLACES_AROUND * PLACES_AROUND;
    start..covers.end.next_multiple_of(PLACES_AROUND)
}

/// Adds a block to spans. Its record may stand behind that of the one before.
pub fn push_span(spans: &mut Vec<Span>, at: Option<RecordPlace>) {
    if let Some(last) = spans.last_mut() {
        let behind = |place: RecordPlace| RecordPlace {
            unit: place.unit.wrapping_add(last.blocks * RECORD_UNITS),
            ..place
        };
        if last.at.map(behind) == at {
            last.blocks += 1;
            return;
        }
    }
    spans.push(Span { blocks: 1, at });
}

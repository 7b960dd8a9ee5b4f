//! Blocks of ranges, and locations of their records.

use std::ops::Range;

use crate::geometry::Extent;
use crate::limits::{BLOCK, LOCATION_GROUP_BLOCKS};
use crate::record::RECORD_UNITS;

/// Runs in one answer at most: 6 KiB of body. A read of 512 KiB has 129 blocks, and 62 around
/// them.
pub const LOCATION_RUNS_MAX: usize = 256;

/// Blocks of a segment whose records follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocationRun {
    /// Blocks, at least 1.
    pub blocks: u32,
    /// Location of the first record; the others follow in block order, without gaps. None for zeroes.
    pub at: Option<RecordLocation>,
}

/// Location of a block's record in a DataFile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordLocation {
    /// The DataFile: number of the segment's owner that made it, and its own number, which is not 0.
    pub file: (u32, u32),
    /// The volume of its records; 0 for the segment's own.
    pub clone_source: u64,
    /// Offset of the record in the file, in units of 64 bytes.
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

/// Blocks whose locations are sent together with those that a range covers: whole groups.
pub fn location_group(covers: &Range<u64>) -> Range<u64> {
    let start = covers.start / LOCATION_GROUP_BLOCKS * LOCATION_GROUP_BLOCKS;
    start..covers.end.next_multiple_of(LOCATION_GROUP_BLOCKS)
}

/// Adds the next block to runs: to the last run when its record follows there.
pub fn push_location(spans: &mut Vec<LocationRun>, at: Option<RecordLocation>) {
    if let Some(last) = spans.last_mut() {
        let next = |at: RecordLocation| RecordLocation {
            unit: at.unit.wrapping_add(last.blocks * RECORD_UNITS),
            ..at
        };
        if last.at.map(next) == at {
            last.blocks += 1;
            return;
        }
    }
    spans.push(LocationRun { blocks: 1, at });
}

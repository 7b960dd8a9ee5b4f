//! The front of a cell: it says where each block is, so that a read takes what it needs.

use std::ops::Range;

use super::{CELL_HEAD, CellHead, RowDecoder, RowError};
use crate::block::{BLOCK_HEAD, BlockHead};
use crate::limits::SHARE_MAX;

/// Bytes that have the heads of a cell, and of all its blocks, whatever the cell is.
pub const FRONT_MAX: usize = CELL_HEAD + BLOCK_HEAD * (SHARE_MAX >> crate::limits::BLOCK_LOG2_MIN);

/// The heads of a data cell and of its blocks.
#[derive(Clone, Copy, Debug)]
pub struct CellFront<'a> {
    head: CellHead,
    fragment: u8,
    heads: &'a [[u8; BLOCK_HEAD]],
}

impl<'a> CellFront<'a> {
    /// From the first bytes of the cell of `fragment`: [`FRONT_MAX`] of them, or the whole cell, are
    /// enough. An error for a parity cell, which has no blocks.
    pub fn of(fragment: u8, front: &'a [u8]) -> Result<CellFront<'a>, RowError> {
        let head = front.first_chunk().ok_or(RowError::CellLength { fragment })?;
        let head = CellHead::decode(head)?;
        let scheme = head.scheme;
        if usize::from(fragment) >= scheme.k() {
            return Err(RowError::Head);
        }
        let share = scheme.share(head.row_len as usize, usize::from(fragment)).len();
        let heads = front[CELL_HEAD..].get(..scheme.heads(share));
        let heads = heads.ok_or(RowError::CellLength { fragment })?.as_chunks().0;
        Ok(CellFront { head, fragment, heads })
    }

    /// The head of the cell.
    pub fn head(&self) -> CellHead {
        self.head
    }

    /// Offsets in the row of the logical bytes of its share.
    pub fn share(&self) -> Range<usize> {
        self.head.scheme.share(self.head.row_len as usize, usize::from(self.fragment))
    }

    /// Numbers of the blocks that hold these bytes of the row, as far as the share has them: none, where it
    /// has none of the bytes.
    pub fn blocks(&self, bytes: Range<usize>) -> Range<usize> {
        let share = self.share();
        let block = self.head.scheme.block();
        let start = bytes.start.clamp(share.start, share.end) - share.start;
        let end = bytes.end.clamp(share.start, share.end) - share.start;
        if start >= end {
            return 0..0;
        }
        start / block.bytes()..block.count(end)
    }

    /// Offsets in the row of the logical bytes of some blocks.
    pub fn logical(&self, blocks: Range<usize>) -> Range<usize> {
        let share = self.share();
        let block = self.head.scheme.block().bytes();
        let at = |number: usize| share.end.min(share.start + number * block);
        at(blocks.start)..at(blocks.end)
    }

    /// Place in the cell of the contents of some blocks. An error when heads do not fit the cell.
    pub fn contents(&self, blocks: Range<usize>) -> Result<Range<usize>, RowError> {
        let share = self.fragment;
        let mut at = CELL_HEAD + self.heads.as_flattened().len();
        let mut start = at;
        for (number, head) in self.heads.iter().enumerate().take(blocks.end) {
            let logical = self.logical(number..number + 1).len();
            let head = BlockHead::decode(head, logical);
            let head = head.map_err(|error| RowError::Block { share, error })?;
            if number == blocks.start {
                start = at;
            }
            at += head.stored_len as usize;
        }
        if at > self.head.cell_len() {
            return Err(RowError::CellLength { fragment: self.fragment });
        }
        Ok(start..at)
    }
}

impl RowDecoder {
    /// Fills `out`, which has the length of [`CellFront::logical`], with some blocks of a cell, whose
    /// contents begin with `contents`. `Ok` says that each has its checksum.
    pub fn read_blocks(
        &mut self,
        front: &CellFront<'_>,
        blocks: Range<usize>,
        contents: &[u8],
        out: &mut [u8],
    ) -> Result<(), RowError> {
        let share = front.fragment;
        let mut at = 0;
        let heads = front.heads.get(blocks).unwrap_or_default();
        for (block, head) in out.chunks_mut(front.head.scheme.block().bytes()).zip(heads) {
            let rest = contents.get(at..).unwrap_or_default();
            let used = self.unpacker.unpack_apart(head, rest, block);
            at += used.map_err(|error| RowError::Block { share, error })?;
        }
        Ok(())
    }
}

//! A whole row, judged by all cells of it that there are (C26, `protocols-tail.md` 9.10).
//!
//! The sectors of a cell have checksums of their own. What they cannot show is that the cells of a row
//! belong together: that is for its row check, over all of them, and for the checksums of its blocks.

use super::{Cell, CellHead, RowDecoder, RowError};
use crate::limits::{CELL_HEAD, FRAGMENTS_MAX};

/// What all cells of a row say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowJudgement {
    /// They are those that the row check was computed over, and what the code makes of each other.
    Sound,
    /// Some k of them give the row check. The fragments in the mask, a bit for each number, have other
    /// cells than these give.
    Wrong(u32),
    /// No k of them give the row check, but some have the bytes of the row with the checksums of its
    /// blocks: it was coded wrong.
    Miscoded,
    /// Nothing that verifies: the first error.
    Unreadable(RowError),
}

impl RowDecoder {
    /// Judges a row by `cells`, of k data fragments and more, each fragment at most once. `row` is scratch
    /// space.
    pub fn judge(&mut self, cells: &[Cell<'_>], k: usize, row: &mut Vec<u8>) -> RowJudgement {
        let judged = self.judge_so(cells, k);
        let error = match judged.or_else(|_| self.portably(|this| this.judge_so(cells, k))) {
            Ok(judgement) => return judgement,
            Err(error) => error,
        };
        match (self.read_any(cells, k, row), error) {
            (Ok(_), _) => RowJudgement::Miscoded,
            (Err(_), Some(error)) | (Err(error), None) => RowJudgement::Unreadable(error),
        }
    }

    /// The judgement of the first k that give the row check, which vouches for all that it is given of. The
    /// error is that of the first k.
    fn judge_so(&mut self, cells: &[Cell<'_>], k: usize) -> Result<RowJudgement, Option<RowError>> {
        let mut first = None;
        for set in sets(cells.len(), k) {
            match self.others(cells, set) {
                Ok(0) => return Ok(RowJudgement::Sound),
                Ok(wrong) => return Ok(RowJudgement::Wrong(wrong)),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first)
    }

    /// Reads a row into `row`, which gets its length, from whichever k of `cells` have all its blocks with
    /// their checksums. The error is that of the first k.
    pub fn read_any(
        &mut self,
        cells: &[Cell<'_>],
        k: usize,
        row: &mut Vec<u8>,
    ) -> Result<CellHead, RowError> {
        let read = self.read_so(cells, k, row);
        read.or_else(|error| self.portably(|this| this.read_so(cells, k, row)).map_err(|_| error))
    }

    fn read_so(
        &mut self,
        cells: &[Cell<'_>],
        k: usize,
        row: &mut Vec<u8>,
    ) -> Result<CellHead, RowError> {
        let mut first = None;
        for set in sets(cells.len(), k) {
            let chosen: Vec<Cell<'_>> = of(cells, set).collect();
            let read = head_of(&chosen[0]).and_then(|head| {
                row.resize(head.row_len as usize, 0);
                self.read(&chosen, row)
            });
            match read {
                Ok(head) => return Ok(head),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or(RowError::Head))
    }

    /// Those of the fragments outside of a set of k whose cells differ from what the set gives; an error
    /// when that does not give the row check.
    fn others(&mut self, cells: &[Cell<'_>], set: u32) -> Result<u32, RowError> {
        let chosen: Vec<Cell<'_>> = of(cells, set).collect();
        let rest: Vec<Cell<'_>> = of(cells, !set).collect();
        let numbers: Vec<u8> = rest.iter().map(|cell| cell.fragment).collect();
        let len = head_of(&chosen[0])?.cell_len();
        let mut made = vec![vec![0; len]; rest.len()];
        let mut views: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
        self.rebuild(&chosen, &numbers, &mut views)?;
        let differs = rest.iter().zip(&made).filter(|(cell, made)| cell.bytes != &made[..]);
        Ok(differs.fold(0, |wrong, (cell, _)| wrong | 1 << cell.fragment))
    }
}

/// The sets of k of so many cells, a bit for each, those with the first ones first: of data fragments nothing
/// is decoded. None for a `k` of 0.
pub fn sets(count: usize, k: usize) -> impl Iterator<Item = u32> {
    debug_assert!(count <= FRAGMENTS_MAX);
    (0..1u32 << count).filter(move |set| k > 0 && set.count_ones() as usize == k)
}

fn of<'a, 'b>(cells: &'b [Cell<'a>], set: u32) -> impl Iterator<Item = Cell<'a>> + 'b {
    cells.iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1).map(|(_, cell)| *cell)
}

fn head_of(cell: &Cell<'_>) -> Result<CellHead, RowError> {
    let Some(stored) = cell.bytes.first_chunk::<CELL_HEAD>() else {
        return Err(RowError::CellLength { fragment: cell.fragment });
    };
    CellHead::decode(stored)
}

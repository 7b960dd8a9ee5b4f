//! Appends on their way into sectors (D6, N4): the data is copied once, to where it is sent from. A
//! row is compressed there, once, for all places in chunks of its kind that it may be laid out at
//! (`protocols-tail.md` 9.5). For a chunk of another kind it is laid out again, from the bytes in its
//! sectors.

use std::iter::once;

use base::limits::{SECTOR, SECTOR_DATA_MAX};
use codec::block::Codec;
use runtime::{Buf, BufMut, BufPool, OutOfMemory};
use wire::control::{Compression, Verify};
use wire::row::{CellPart, place_cell, stamp_cell};
use wire::sector::{
    AppendAt, FLAG_FIRST, FLAG_LAST, Footer, SectorKind, format_sector, sectors_for,
};

use crate::limits::CONNECTIONS_SHARE;
use crate::rows::{BadCell, CellSectors, LayError, Rows, rows_of};
use crate::writer::{Laid, Layout};

/// The sectors of one append. Footers are there once it is placed.
#[derive(Debug)]
pub(crate) struct Staged {
    /// The caller's bytes.
    len: usize,
    /// Bytes in the sectors of each replica: the caller's, or those of a cell.
    stored: usize,
    laid: Laid,
    /// Codec of the row that they hold.
    codec: Codec,
    /// Those for all copies, or for the first fragment.
    first: Sectors,
    /// Those for the other fragments, in order.
    others: Vec<Sectors>,
}

#[derive(Debug)]
enum Sectors {
    Own(BufMut),
    Shared(Buf),
    /// Only while the one becomes the other.
    Moving,
    /// No replica needs them any more.
    Gone,
}

impl Sectors {
    fn bytes(&self) -> &[u8] {
        match self {
            Sectors::Own(sectors) => sectors,
            Sectors::Shared(sectors) => sectors,
            Sectors::Moving | Sectors::Gone => {
                unreachable!("put back, and kept until acknowledged")
            }
        }
    }

    /// Lets `stamp` write to them, in a copy where they were sent before: a sending may still be under
    /// way. On an error they stay as they were.
    fn stamp(&mut self, pool: &BufPool, stamp: impl FnOnce(&mut [u8])) -> Result<(), OutOfMemory> {
        let mut sectors = match std::mem::replace(self, Sectors::Moving) {
            Sectors::Own(sectors) => sectors,
            Sectors::Shared(sectors) => match writable(pool, sectors) {
                Ok(sectors) => sectors,
                Err((sectors, error)) => {
                    *self = Sectors::Shared(sectors);
                    return Err(error);
                }
            },
            Sectors::Moving | Sectors::Gone => {
                unreachable!("put back, and kept until acknowledged")
            }
        };
        stamp(&mut sectors);
        *self = Sectors::Shared(sectors.freeze());
        Ok(())
    }
}

impl Staged {
    /// Lays `parts`, in order and without gaps, out.
    pub(crate) fn lay_out(
        pool: &BufPool,
        rows: &mut Rows,
        (layout, verify): (Layout, Verify),
        parts: &[&[u8]],
    ) -> Result<Staged, LayError> {
        match layout.laid() {
            Laid::Plain => Ok(Staged::copy_of(pool, parts)?),
            Laid::Row | Laid::Coded(_) => Staged::row_of(pool, rows, (layout, verify), parts),
        }
    }

    /// Copies `parts` to their places in the sectors.
    fn copy_of(pool: &BufPool, parts: &[&[u8]]) -> Result<Staged, OutOfMemory> {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut sectors = alloc(pool, sectors_for(len) * SECTOR)?;
        let mut at = 0;
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                let (sector, within) = (at / SECTOR_DATA_MAX, at % SECTOR_DATA_MAX);
                let count = rest.len().min(SECTOR_DATA_MAX - within);
                let start = sector * SECTOR + within;
                sectors[start..start + count].copy_from_slice(&rest[..count]);
                rest = &rest[count..];
                at += count;
            }
        }
        let (laid, codec) = (Laid::Plain, Codec::Plain);
        let (first, others) = (Sectors::Own(sectors), Vec::new());
        Ok(Staged { len, stored: len, laid, codec, first, others })
    }

    /// Lays `parts` out as one row.
    fn row_of(
        pool: &BufPool,
        rows: &mut Rows,
        (layout, verify): (Layout, Verify),
        parts: &[&[u8]],
    ) -> Result<Staged, LayError> {
        let (_, codec) = rows_of(layout);
        let (mut first, mut others) = (None, Vec::new());
        let stored = rows.encode((layout, verify), parts, |cell| {
            let mut sectors = alloc(pool, sectors_for(cell.len()) * SECTOR)?;
            place_cell(cell, &mut sectors);
            match first {
                None => first = Some(Sectors::Own(sectors)),
                Some(_) => others.push(Sectors::Own(sectors)),
            }
            Ok(())
        })?;
        let len = parts.iter().map(|part| part.len()).sum();
        let (laid, first) = (layout.laid(), first.expect("a row has a cell"));
        Ok(Staged { len, stored, laid, codec, first, others })
    }

    /// What the sectors are.
    pub(crate) fn laid(&self) -> Laid {
        self.laid
    }

    /// Bytes of its sectors, those of all fragments together.
    pub(crate) fn bytes(&self) -> u32 {
        ((1 + self.others.len()) * sectors_for(self.stored) * SECTOR) as u32
    }

    /// Writes footers and checksums for a place, whose sectors are `laid`: laid out again if these are
    /// not. On an error it stays as it was, and is placed later.
    pub(crate) fn place(
        &mut self,
        pool: &BufPool,
        rows: &mut Rows,
        (at, laid, compression, verify): (AppendAt, Laid, Option<Compression>, Verify),
    ) -> Result<(), LayError> {
        if self.laid != laid {
            let code = match laid {
                Laid::Coded(code) => Some(code),
                Laid::Plain | Laid::Row => None,
            };
            let compression = compression.filter(|_| laid != Laid::Plain);
            *self = self.laid_out_as(pool, rows, (Layout { code, compression }, verify))?;
        }
        let (len, stored, codec, is_plain) =
            (self.len, self.stored, self.codec, laid == Laid::Plain);
        for (number, sectors) in once(&mut self.first).chain(&mut self.others).enumerate() {
            sectors.stamp(pool, |sectors| {
                if is_plain {
                    return stamp(at, len, sectors);
                }
                let part = CellPart { fragment: number as u8, codec, index: 0 };
                stamp_cell(at, part, stored, sectors);
            })?;
        }
        Ok(())
    }

    /// The same bytes in another layout.
    fn laid_out_as(
        &self,
        pool: &BufPool,
        rows: &mut Rows,
        layout: (Layout, Verify),
    ) -> Result<Staged, LayError> {
        let mut bytes;
        if self.laid == Laid::Plain {
            bytes = rows.take_row();
            for sector in self.first.bytes().chunks(SECTOR) {
                let count = (self.len - bytes.len()).min(SECTOR_DATA_MAX);
                bytes.extend_from_slice(&sector[..count]);
            }
        } else {
            let k = match self.laid {
                Laid::Coded(code) => usize::from(code.k),
                Laid::Plain | Laid::Row => 1,
            };
            let all = once(&self.first).chain(&self.others).enumerate();
            let cells: Vec<CellSectors<'_>> =
                all.map(|(number, it)| (number as u8, it.bytes())).collect();
            let lens = (self.len as u32, self.stored as u32);
            // It was laid out here, and may have been wrong.
            rows.decode_any_cells(lens, k, &cells).map_err(|BadCell| LayError::Wrong)?;
            bytes = std::mem::take(rows.row_mut());
        }
        let staged = Staged::lay_out(pool, rows, layout, &[&bytes]);
        rows.give_row(bytes);
        staged
    }

    /// Frees the sectors of all fragments but those with a bit in `keep`.
    pub(crate) fn keep(&mut self, keep: u32) {
        for (number, sectors) in once(&mut self.first).chain(&mut self.others).enumerate() {
            if keep >> number & 1 == 0 {
                *sectors = Sectors::Gone;
            }
        }
    }

    /// The formatted sectors for a fragment's replica, once placed; of copies the number is 0.
    pub(crate) fn sectors(&self, fragment: u8) -> Option<Buf> {
        let sectors = match usize::from(fragment).checked_sub(1) {
            None => &self.first,
            Some(other) => self.others.get(other)?,
        };
        match sectors {
            Sectors::Shared(sectors) => Some(sectors.clone()),
            Sectors::Own(_) | Sectors::Moving | Sectors::Gone => None,
        }
    }
}

/// A buffer for sectors, of what is not left to connections.
fn alloc(pool: &BufPool, len: usize) -> Result<BufMut, OutOfMemory> {
    check_left(pool, len, CONNECTIONS_SHARE)?;
    pool.alloc(len)
}

/// An error when a buffer of `len` bytes would not leave one in `share` bytes of the pool.
pub(crate) fn check_left(pool: &BufPool, len: usize, share: usize) -> Result<(), OutOfMemory> {
    let budget = pool.budget() - pool.budget() / share;
    let fits = pool.used().saturating_add(BufPool::taken(len)) <= budget;
    if fits { Ok(()) } else { Err(OutOfMemory { want: len, budget }) }
}

fn writable(pool: &BufPool, sectors: Buf) -> Result<BufMut, (Buf, OutOfMemory)> {
    let sectors = match sectors.try_into_mut() {
        Ok(own) => return Ok(own),
        Err(sectors) => sectors,
    };
    match alloc(pool, sectors.len()) {
        Ok(mut copy) => {
            copy.copy_from_slice(&sectors);
            Ok(copy)
        }
        Err(error) => Err((sectors, error)),
    }
}

/// As [`wire::sector::format_append`], of data that is in its sectors already.
fn stamp(at: AppendAt, len: usize, sectors: &mut [u8]) {
    let count = sectors_for(len);
    for (index, sector) in sectors.chunks_mut(SECTOR).enumerate() {
        let first = if index == 0 { FLAG_FIRST } else { 0 };
        let last = if index + 1 == count { FLAG_LAST } else { 0 };
        let start = index * SECTOR_DATA_MAX;
        let footer = Footer {
            chunk: at.chunk,
            epoch: at.epoch,
            base: at.base,
            offset: at.offset + start as u32,
            len: (len - start).min(SECTOR_DATA_MAX) as u16,
            kind: SectorKind::Data,
            flags: first | last,
        };
        format_sector(sector, &footer);
    }
}

#[cfg(test)]
#[path = "stage_tests.rs"]
mod tests;

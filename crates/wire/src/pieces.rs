//! Sectors of a cell that are enough for some blocks of its row: the first one, which says where blocks
//! are, and those that hold them (C19).

use std::ops::Range;

use base::limits::{SECTOR, SECTOR_DATA_MAX};
use codec::row::CellFront;

use crate::row::{Row, row_at};
use crate::sector::{AppendAt, SectorError, SectorKind, parse_footer, verify_sector};

/// The first sector of a cell, and others of it that follow one another; perhaps all.
#[derive(Clone, Copy, Debug)]
pub struct CellPieces<'a> {
    /// The row.
    pub row: Row,
    /// Index in the cell of the second sector.
    second: u32,
    sectors: &'a [u8],
}

impl<'a> CellPieces<'a> {
    /// Verifies that `sectors` are such ones, of the row that holds the byte at this place. The error
    /// names the sector.
    pub fn verify(at: AppendAt, sectors: &'a [u8]) -> Result<CellPieces<'a>, (usize, SectorError)> {
        let first = sectors.get(..SECTOR).ok_or((0, SectorError::Size(sectors.len())))?;
        if !sectors.len().is_multiple_of(SECTOR) {
            return Err((0, SectorError::Size(sectors.len())));
        }
        let footer = verify_sector(first).map_err(|error| (0, error))?;
        let row = row_at(first).map_err(|error| (0, error))?;
        let holds = row.offset <= at.offset && at.offset - row.offset < row.len;
        AppendAt { offset: row.offset, ..at }.check(&footer).map_err(|error| (0, error))?;
        if !holds {
            return Err((0, SectorError::Field("offset")));
        }
        let second = match sectors.get(SECTOR..2 * SECTOR).map(parse_footer) {
            None => 1,
            Some(footer) => match footer.map_err(|error| (1, error))?.kind {
                SectorKind::Row(part) if part.index > 0 => u32::from(part.index),
                _ => return Err((1, SectorError::Field("kind or index"))),
            },
        };
        for (at, sector) in sectors.chunks(SECTOR).enumerate().skip(1) {
            let other = verify_sector(sector).map_err(|error| (at, error))?;
            if !row.has(&footer, second + at as u32 - 1, &other) {
                return Err((at, SectorError::Field("cell")));
            }
        }
        Ok(CellPieces { row, second, sectors })
    }

    /// Indexes of the sectors, besides the first, that blocks with these bytes of the row need. None when
    /// heads do not say that: all sectors are needed then.
    pub fn needed(&self, bytes: Range<usize>) -> Option<Range<u32>> {
        let front =
            CellFront::of(self.row.fragment.number, &self.sectors[..SECTOR_DATA_MAX]).ok()?;
        let contents = front.contents(front.blocks(bytes)).ok()?;
        let start = (contents.start / SECTOR_DATA_MAX) as u32;
        let end = contents.end.div_ceil(SECTOR_DATA_MAX) as u32;
        Some(start.max(1)..end.max(1))
    }

    /// Writes the bytes of the cell that are at hand to their places in `cell`, which has its length.
    pub fn place(&self, cell: &mut [u8]) {
        for (at, sector) in self.sectors.chunks(SECTOR).enumerate() {
            let index = if at == 0 { 0 } else { self.second as usize + at - 1 };
            let start = index * SECTOR_DATA_MAX;
            let end = cell.len().min(start + SECTOR_DATA_MAX);
            cell[start..end].copy_from_slice(&sector[..end - start]);
        }
    }

    /// Whether these bytes of the cell are at hand.
    pub fn has(&self, bytes: &Range<usize>) -> bool {
        let count = self.sectors.len() / SECTOR - 1;
        let second = self.second as usize;
        let at_hand = |byte: usize| {
            let index = byte / SECTOR_DATA_MAX;
            index == 0 || (second..second + count).contains(&index)
        };
        // Sectors between two that are at hand are too, but for those behind the first one.
        let joined = second == 1 || bytes.start >= SECTOR_DATA_MAX || bytes.end <= SECTOR_DATA_MAX;
        bytes.is_empty() || joined && at_hand(bytes.start) && at_hand(bytes.end - 1)
    }
}

#[cfg(test)]
mod tests {
    use base::{ChunkId, Epoch};
    use codec::block::{BlockSize, Codec};
    use codec::row::{RowDecoder, RowEncoder, Scheme};

    use super::*;
    use crate::row::{CellPart, place_cell, stamp_cell};
    use crate::sector::sectors_for;

    /// What is needed gives the bytes wanted; a changed sector, another order or a gap is an error.
    #[test]
    fn pieces_that_are_needed_give_the_bytes_wanted() {
        let scheme = Scheme::new(1, 0, BlockSize::PAPERS).unwrap();
        let row: Vec<u8> =
            (0..200_000u32).map(|at| (u64::from(at).pow(2) >> 7) as u8 & 0x3f).collect();
        for codec in Codec::ALL {
            let mut cell = vec![0; scheme.cell_max(row.len())];
            let head = RowEncoder::new(scheme, codec).encode(&row, &mut [&mut cell]);
            cell.truncate(head.cell_len());
            let mut sectors = vec![0; sectors_for(cell.len()) * SECTOR];
            place_cell(&cell, &mut sectors);
            let at = AppendAt {
                chunk: ChunkId::new(3),
                epoch: Epoch::new(2),
                base: 77,
                offset: 1 << 20,
            };
            let part = CellPart { fragment: 0, codec, index: 0 };
            stamp_cell(at, part, cell.len(), &mut sectors);
            for wanted in [0..1, 100_000..104_096, 16_384..16_385, 199_999..200_000, 0..200_000] {
                let byte = AppendAt { offset: at.offset + wanted.start as u32, ..at };
                let front = CellPieces::verify(byte, &sectors[..SECTOR]).unwrap();
                let needed = front.needed(wanted.clone()).unwrap();
                let bytes = needed.start as usize * SECTOR..needed.end as usize * SECTOR;
                let mut given = sectors[..SECTOR].to_vec();
                given.extend_from_slice(&sectors[bytes]);
                let pieces = CellPieces::verify(byte, &given).unwrap();
                let mut placed = vec![0xee; cell.len()];
                pieces.place(&mut placed);
                let front = CellFront::of(0, &placed).unwrap();
                let blocks = front.blocks(wanted.clone());
                let contents = front.contents(blocks.clone()).unwrap();
                assert!(pieces.has(&contents));
                let logical = front.logical(blocks.clone());
                let mut out = vec![0; logical.len()];
                let mut decoder = RowDecoder::new();
                decoder.read_blocks(&front, blocks, &placed[contents], &mut out).unwrap();
                assert!(out == row[logical]);
                for sector in 0..given.len() / SECTOR {
                    given[sector * SECTOR + 99] ^= 1;
                    assert_eq!(CellPieces::verify(byte, &given).unwrap_err().0, sector);
                    given[sector * SECTOR + 99] ^= 1;
                }
            }
            let gap = [&sectors[..SECTOR], &sectors[3 * SECTOR..4 * SECTOR]].concat();
            let pieces = CellPieces::verify(at, &gap).unwrap();
            let third = 3 * SECTOR_DATA_MAX;
            assert!(pieces.has(&(0..SECTOR_DATA_MAX)) && pieces.has(&(third..third + 1)));
            assert!(!pieces.has(&(0..SECTOR_DATA_MAX + 1)) && !pieces.has(&(0..third + 1)));
            let wrong = [&sectors[..SECTOR], &sectors[3 * SECTOR..4 * SECTOR], &sectors[..SECTOR]];
            assert!(CellPieces::verify(at, &wrong.concat()).is_err());
            let other = AppendAt { offset: at.offset + 200_000, ..at };
            assert!(CellPieces::verify(other, &sectors).is_err());
        }
    }
}

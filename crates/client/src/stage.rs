//! Appends on their way into sectors (D6, N4): the data is copied once, to where it is sent from. A
//! row is compressed there, once, for all places that it may be laid out at (`protocols-tail.md` 9.5).

use base::limits::{SECTOR, SECTOR_DATA_MAX};
use codec::block::Codec;
use runtime::{Buf, BufMut, BufPool, OutOfMemory};
use wire::control::Compression;
use wire::row::{CellPart, Fragment, place_cell, stamp_cell};
use wire::sector::{
    AppendAt, FLAG_FIRST, FLAG_LAST, Footer, SectorKind, format_sector, sectors_for,
};

use crate::rows::Rows;

/// The sectors of one append. Footers are there once it is placed.
#[derive(Debug)]
pub(crate) struct Staged {
    /// Bytes in them: the caller's, or those of a cell.
    len: usize,
    /// Codec of the row that they hold; none when they are plain.
    codec: Option<Codec>,
    sectors: Sectors,
}

#[derive(Debug)]
enum Sectors {
    Own(BufMut),
    Shared(Buf),
    /// Only while the one becomes the other.
    Moving,
}

impl Staged {
    /// Copies `parts`, in order and without gaps, to their places in the sectors.
    pub(crate) fn copy_of(pool: &BufPool, parts: &[&[u8]]) -> Result<Staged, OutOfMemory> {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut sectors = pool.alloc(sectors_for(len) * SECTOR)?;
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
        Ok(Staged { len, codec: None, sectors: Sectors::Own(sectors) })
    }

    /// Lays `parts`, in order and without gaps, out as one row.
    pub(crate) fn row_of(
        pool: &BufPool,
        rows: &mut Rows,
        compression: Compression,
        parts: &[&[u8]],
    ) -> Result<Staged, OutOfMemory> {
        let codec = compression.codec;
        let cell = rows.encode(compression, parts);
        let mut sectors = pool.alloc(sectors_for(cell.len()) * SECTOR)?;
        place_cell(cell, &mut sectors);
        Ok(Staged { len: cell.len(), codec: Some(codec), sectors: Sectors::Own(sectors) })
    }

    /// True when they hold a row.
    pub(crate) fn is_row(&self) -> bool {
        self.codec.is_some()
    }

    /// Bytes of its sectors.
    pub(crate) fn bytes(&self) -> u32 {
        (sectors_for(self.len) * SECTOR) as u32
    }

    /// Writes footers and checksums for a place. Sectors that were sent before are copied, for
    /// a sending may still be under way. On an error it stays as it was.
    pub(crate) fn place(&mut self, pool: &BufPool, at: AppendAt) -> Result<(), OutOfMemory> {
        let mut sectors = match std::mem::replace(&mut self.sectors, Sectors::Moving) {
            Sectors::Own(sectors) => sectors,
            Sectors::Shared(sectors) => match writable(pool, sectors) {
                Ok(sectors) => sectors,
                Err((sectors, error)) => {
                    self.sectors = Sectors::Shared(sectors);
                    return Err(error);
                }
            },
            Sectors::Moving => unreachable!("put back before every return"),
        };
        match self.codec {
            None => stamp(at, self.len, &mut sectors),
            Some(codec) => {
                let part = CellPart { fragment: Fragment::COPY.number, codec, index: 0 };
                stamp_cell(at, part, self.len, &mut sectors);
            }
        }
        self.sectors = Sectors::Shared(sectors.freeze());
        Ok(())
    }

    /// The formatted sectors, once placed.
    pub(crate) fn sectors(&self) -> Option<Buf> {
        match &self.sectors {
            Sectors::Shared(sectors) => Some(sectors.clone()),
            Sectors::Own(_) | Sectors::Moving => None,
        }
    }
}

fn writable(pool: &BufPool, sectors: Buf) -> Result<BufMut, (Buf, OutOfMemory)> {
    let sectors = match sectors.try_into_mut() {
        Ok(own) => return Ok(own),
        Err(sectors) => sectors,
    };
    match pool.alloc(sectors.len()) {
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
mod tests {
    use base::{ChunkId, Epoch};
    use wire::row::{cell_to, verify_cell};
    use wire::sector::format_append;

    use super::*;

    /// The sectors of a row at one place and then at another have the same cell.
    #[test]
    fn a_row_keeps_its_bytes_wherever_it_is_placed() {
        let (pool, mut rows) = (BufPool::new(8 << 20), Rows::default());
        let data: Vec<u8> = (0..200_000u32).map(|i| (i % 7) as u8).collect();
        for codec in Codec::ALL {
            let parts = [&data[..100], &data[100..]];
            let mut staged =
                Staged::row_of(&pool, &mut rows, Compression::of(codec), &parts).unwrap();
            let mut cells = Vec::new();
            for offset in [0, 1 << 30] {
                let (chunk, epoch) = (ChunkId::new(3), Epoch::new(2));
                let at = AppendAt { chunk, epoch, base: 77, offset };
                staged.place(&pool, at).unwrap();
                let sectors = staged.sectors().unwrap();
                assert_eq!(sectors.len() as u32, staged.bytes());
                let row = verify_cell(at, &sectors).unwrap();
                assert_eq!((row.len, row.codec, row.fragment), (200_000, codec, Fragment::COPY));
                assert!(rows.decode(&row, &sectors).unwrap() == data);
                let mut cell = vec![0; row.cell_len as usize];
                cell_to(&sectors, &mut cell);
                cells.push(cell);
            }
            assert!(cells[0] == cells[1]);
        }
    }

    #[test]
    fn sectors_are_those_of_the_format() {
        let pool = BufPool::new(8 << 20);
        let data: Vec<u8> = (0..20_000u32).map(|i| (i * 7) as u8).collect();
        for len in [1, 4047, 4048, 4049, 8096, 20_000] {
            for cut in [0, 1, len / 2, len] {
                let parts = [&data[..cut], &data[cut..len]];
                let mut staged = Staged::copy_of(&pool, &parts).unwrap();
                assert!(staged.sectors().is_none());
                for chunk in [3, 4] {
                    let at = AppendAt {
                        chunk: ChunkId::new(chunk),
                        epoch: Epoch::new(2),
                        base: 77,
                        offset: 5,
                    };
                    let held = staged.sectors();
                    staged.place(&pool, at).unwrap();
                    let mut expected = vec![0; sectors_for(len) * SECTOR];
                    format_append(at, &data[..len], &mut expected);
                    assert_eq!(&*staged.sectors().unwrap(), &expected[..]);
                    drop(held); // A sending under way keeps the old bytes.
                }
            }
        }
    }
}

//! Appends on their way into sectors (D6, N4): the data is copied once, to where it is sent from.

use base::limits::{SECTOR, SECTOR_DATA_MAX};
use runtime::{Buf, BufMut, BufPool, OutOfMemory};
use wire::sector::{
    AppendAt, FLAG_FIRST, FLAG_LAST, Footer, SectorKind, format_sector, sectors_for,
};

/// The sectors of one append. Footers are there once it is placed.
#[derive(Debug)]
pub(crate) struct Staged {
    len: usize,
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
        Ok(Staged { len, sectors: Sectors::Own(sectors) })
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
        stamp(at, self.len, &mut sectors);
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
    use wire::sector::format_append;

    use super::*;

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

//! Sectors as they come from a replica, verified (invariant 4, C26).

use base::limits::SECTOR;
use runtime::Buf;
use wire::control::ChunkPlace;
use wire::sector::{SectorKind, verify_sector};

/// Verified bytes of a chunk: a run of sectors from one answer.
#[derive(Debug)]
pub(crate) struct Extent {
    sectors: Buf,
    /// Bytes of the first sector that were not asked for.
    skip: usize,
    /// Bytes from there on.
    len: usize,
}

/// The sectors do not hold what was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Damaged;

impl Extent {
    /// Verifies every sector's checksum and identity, and that they hold the chunk's bytes from
    /// `offset` on without a gap; `want` bytes at most are taken.
    pub(crate) fn verify(
        chunk: &ChunkPlace,
        offset: u32,
        want: u32,
        sectors: Buf,
    ) -> Result<Extent, Damaged> {
        if !sectors.len().is_multiple_of(SECTOR) {
            return Err(Damaged);
        }
        let mut skip = 0;
        let mut end = None;
        for sector in sectors.chunks(SECTOR) {
            let footer = verify_sector(sector).map_err(|_| Damaged)?;
            let same = footer.chunk == chunk.chunk
                && footer.epoch == chunk.epoch
                && footer.base == chunk.base
                && footer.kind == SectorKind::Data;
            let sector_end = footer.offset.checked_add(u32::from(footer.len)).ok_or(Damaged)?;
            let follows = match end {
                None => footer.offset <= offset && offset < sector_end,
                Some(end) => footer.offset == end,
            };
            if !(same && follows) {
                return Err(Damaged);
            }
            if end.is_none() {
                skip = (offset - footer.offset) as usize;
            }
            end = Some(sector_end);
        }
        let len = end.map_or(0, |end| (end - offset).min(want) as usize);
        Ok(Extent { sectors, skip, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds the bytes to `out`.
    pub(crate) fn copy_to(&self, out: &mut Vec<u8>) {
        let mut skip = self.skip;
        let mut left = self.len;
        for sector in self.sectors.chunks(SECTOR) {
            let footer = wire::sector::parse_footer(sector).expect("verified");
            let count = (usize::from(footer.len) - skip).min(left);
            out.extend_from_slice(&sector[skip..skip + count]);
            left -= count;
            skip = 0;
        }
    }

    /// Forgets all but the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

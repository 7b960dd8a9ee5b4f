//! Sectors as they come from a replica, verified (invariant 4, C26).

use base::limits::SECTOR;
use runtime::Buf;
use wire::control::ChunkPlace;
use wire::pieces::CellPieces;
use wire::row::{Layout, Row, row_at, verify_cell};
use wire::sector::{AppendAt, SectorKind, parse_footer, verify_sector};

use crate::rows::Rows;

/// Verified bytes of a chunk: a run of sectors from one answer.
#[derive(Debug)]
pub(crate) struct Extent {
    content: Content,
    /// Bytes in front that were not asked for.
    skip: usize,
    /// Bytes from there on.
    len: usize,
}

#[derive(Debug)]
enum Content {
    /// Sectors with the file's bytes.
    Plain(Buf),
    /// The logical bytes of rows.
    Rows(Vec<u8>),
}

/// The sectors do not hold what was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Damaged;

impl Extent {
    /// Verifies every sector's checksum and identity, and that they hold the chunk's bytes from
    /// `offset` on without a gap; `want` bytes at most are taken. Blocks of rows are verified by their
    /// own checksums too, those of a row behind the bytes wanted are not looked at.
    pub(crate) fn verify(
        chunk: &ChunkPlace,
        offset: u32,
        want: u32,
        sectors: Buf,
        rows: &mut Rows,
    ) -> Result<Extent, Damaged> {
        if !sectors.len().is_multiple_of(SECTOR) {
            return Err(Damaged);
        }
        match Layout::of(&sectors) {
            Layout::Plain => Extent::verify_plain(chunk, offset, want, sectors),
            Layout::Rows(_) => Extent::verify_rows(chunk, offset, want, &sectors, rows),
        }
    }

    fn verify_plain(
        chunk: &ChunkPlace,
        offset: u32,
        want: u32,
        sectors: Buf,
    ) -> Result<Extent, Damaged> {
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
        Ok(Extent { content: Content::Plain(sectors), skip, len })
    }

    fn verify_rows(
        chunk: &ChunkPlace,
        offset: u32,
        want: u32,
        sectors: &[u8],
        rows: &mut Rows,
    ) -> Result<Extent, Damaged> {
        let is_part = |row: Row| row.sectors() as usize * SECTOR > sectors.len();
        if row_at(sectors).is_ok_and(is_part) {
            return Extent::verify_pieces(chunk, offset, want, sectors, rows);
        }
        let first = parse_footer(&sectors[..SECTOR]).map_err(|_| Damaged)?.offset;
        let skip = offset.checked_sub(first).ok_or(Damaged)? as usize;
        let stop = skip + want as usize;
        let (epoch, base) = (chunk.epoch, chunk.base);
        let mut at = AppendAt { chunk: chunk.chunk, epoch, base, offset: first };
        let (mut rest, mut bytes) = (sectors, Vec::new());
        // A row has 1 MiB at most, so that no answer makes much more than was asked for.
        while !rest.is_empty() && bytes.len() < stop {
            let row = verify_cell(at, rest).map_err(|_| Damaged)?;
            let (cell, behind) = rest.split_at(row.sectors() as usize * SECTOR);
            bytes.extend_from_slice(rows.decode(&row, cell).map_err(|_| Damaged)?);
            at.offset = at.offset.checked_add(row.len).ok_or(Damaged)?;
            // The first row holds the first byte.
            if bytes.len() <= skip {
                return Err(Damaged);
            }
            rest = behind;
        }
        let len = (bytes.len() - skip).min(want as usize);
        Ok(Extent { content: Content::Rows(bytes), skip, len })
    }

    /// Some blocks of one row.
    fn verify_pieces(
        chunk: &ChunkPlace,
        offset: u32,
        want: u32,
        sectors: &[u8],
        rows: &mut Rows,
    ) -> Result<Extent, Damaged> {
        let (epoch, base) = (chunk.epoch, chunk.base);
        let at = AppendAt { chunk: chunk.chunk, epoch, base, offset };
        let pieces = CellPieces::verify(at, sectors).map_err(|_| Damaged)?;
        let start = (offset - pieces.row.offset) as usize;
        let bytes = start..start + want as usize;
        let (first, bytes) = rows.decode_blocks(&pieces, bytes).map_err(|_| Damaged)?;
        let skip = start - first;
        let len = (bytes.len() - skip).min(want as usize);
        Ok(Extent { content: Content::Rows(bytes.to_vec()), skip, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds the bytes to `out`.
    pub(crate) fn copy_to(&self, out: &mut Vec<u8>) {
        let sectors = match &self.content {
            Content::Plain(sectors) => sectors,
            Content::Rows(bytes) => {
                return out.extend_from_slice(&bytes[self.skip..self.skip + self.len]);
            }
        };
        let mut skip = self.skip;
        let mut left = self.len;
        for sector in sectors.chunks(SECTOR) {
            let footer = parse_footer(sector).expect("verified");
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

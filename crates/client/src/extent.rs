//! Sectors as they come from a replica, verified (invariant 4, C26).

use base::limits::SECTOR;
use runtime::Buf;
use wire::control::ChunkPlace;
use wire::pieces::CellPieces;
use wire::row::{Fragment, Layout, Row, row_at, verify_cell};
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
        Ok(Extent::of_rows(bytes, skip, want))
    }

    /// These logical bytes of rows, from the one at `skip` on; `want` at most.
    pub(crate) fn of_rows(bytes: Vec<u8>, skip: usize, want: u32) -> Extent {
        let len = (bytes.len() - skip).min(want as usize);
        Extent { content: Content::Rows(bytes), skip, len }
    }

    /// Verifies the first cell in an answer of a data fragment of a coded chunk, whole or some blocks of
    /// it, and takes the bytes from `offset` on that its share has: `want` at most. The row comes with
    /// them; none of its bytes when another fragment holds the first one.
    pub(crate) fn verify_share(
        chunk: &ChunkPlace,
        fragment: u8,
        (offset, want): (u32, u32),
        sectors: &[u8],
        rows: &mut Rows,
    ) -> Result<(Row, Option<Extent>), Damaged> {
        let row = row_at(sectors).map_err(|_| Damaged)?;
        let cell = &sectors[..sectors.len().min(row.sectors() as usize * SECTOR)];
        let (epoch, base) = (chunk.epoch, chunk.base);
        let at = AppendAt { chunk: chunk.chunk, epoch, base, offset };
        let pieces = CellPieces::verify(at, cell).map_err(|_| Damaged)?;
        let kind = (row.fragment.k, row.fragment.p, row.fragment.number);
        if kind != (chunk.data, chunk.copies - chunk.data, fragment) {
            return Err(Damaged);
        }
        let start = (offset - row.offset) as usize;
        let width = (row.len as usize).div_ceil(chunk.data.into());
        let share = usize::from(fragment) * width..(usize::from(fragment) + 1) * width;
        if !share.contains(&start) {
            return Ok((row, None));
        }
        let stop = share.end.min(start.saturating_add(want as usize));
        let (first, bytes) = rows.decode_blocks(&pieces, start..stop).map_err(|_| Damaged)?;
        let skip = start - first;
        let want = (stop - start) as u32;
        Ok((row, Some(Extent::of_rows(bytes.to_vec(), skip, want))))
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
        if pieces.row.fragment != Fragment::COPY {
            return Err(Damaged);
        }
        let start = (offset - pieces.row.offset) as usize;
        let bytes = start..start + want as usize;
        let (first, bytes) = rows.decode_blocks(&pieces, bytes).map_err(|_| Damaged)?;
        Ok(Extent::of_rows(bytes.to_vec(), start - first, want))
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

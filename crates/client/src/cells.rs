//! Cells of coded rows, as replicas send them, and the bytes that they give together (C18;
//! `protocols-tail.md` 9.9).

use base::limits::SECTOR;
use codec::block::BlockSize;
use codec::row::CELL_HEAD;
use runtime::Buf;
use wire::control::ChunkPlace;
use wire::row::{Row, verify_cell};
use wire::sector::{AppendAt, parse_footer};

use crate::extent::{Damaged, Extent};
use crate::rows::{CellSectors, Rows};
use crate::writer::Fragments;

/// Whole cells of one fragment, of rows without a gap, verified sector by sector.
#[derive(Debug)]
pub(crate) struct Cells {
    fragment: u8,
    sectors: Buf,
    /// The rows, and where each cell begins in the sectors.
    rows: Vec<(Row, usize)>,
}

impl Cells {
    /// Verifies the answer of the replica with this fragment: rows from the one that holds the byte at
    /// `offset` on, as far as `want` bytes are in them.
    pub(crate) fn verify(
        chunk: &ChunkPlace,
        fragment: u8,
        (offset, want): (u32, u32),
        sectors: Buf,
    ) -> Result<Cells, Damaged> {
        if !sectors.len().is_multiple_of(SECTOR) || sectors.is_empty() {
            return Err(Damaged);
        }
        let first = parse_footer(&sectors[..SECTOR]).map_err(|_| Damaged)?.offset;
        if first > offset {
            return Err(Damaged);
        }
        let stop = u64::from(offset) + u64::from(want);
        let (epoch, base) = (chunk.epoch, chunk.base);
        let mut at = AppendAt { chunk: chunk.chunk, epoch, base, offset: first };
        let (mut rows, mut begin) = (Vec::new(), 0);
        while begin < sectors.len() && u64::from(at.offset) < stop {
            let row = verify_cell(at, &sectors[begin..]).map_err(|_| Damaged)?;
            let kind = (row.fragment.k, row.fragment.p, row.fragment.number);
            let end = at.offset.checked_add(row.len).ok_or(Damaged)?;
            // The first row holds the first byte.
            let holds = begin > 0 || offset < end;
            if kind != (chunk.data, chunk.copies - chunk.data, fragment) || !holds {
                return Err(Damaged);
            }
            rows.push((row, begin));
            begin += row.sectors() as usize * SECTOR;
            at.offset = end;
        }
        Ok(Cells { fragment, sectors, rows })
    }

    /// The row that holds a byte, and the sectors of its cell.
    fn row(&self, offset: u32) -> Option<(&Row, &[u8])> {
        let holds = |row: &Row| row.offset <= offset && offset - row.offset < row.len;
        let (row, begin) = self.rows.iter().find(|(row, _)| holds(row))?;
        Some((row, &self.sectors[*begin..][..row.sectors() as usize * SECTOR]))
    }
}

/// What several replicas have sent of a range.
#[derive(Debug)]
pub(crate) struct Gathered {
    /// Cells that give a row.
    k: usize,
    /// By fragment, so that shares come before parity.
    cells: Vec<Cells>,
}

/// What [`Gathered::extent`] comes to.
#[derive(Debug)]
pub(crate) enum Joined {
    /// Bytes from the first one wanted on, and a fragment whose cell was not the encoder's, if one was
    /// not.
    Bytes(Extent, Option<u8>),
    /// There are too few cells of the first row.
    Few,
    /// There are enough, and they give no row.
    Bad,
}

impl Gathered {
    pub(crate) fn new(chunk: &ChunkPlace) -> Gathered {
        Gathered { k: chunk.data.into(), cells: Vec::new() }
    }

    /// Adds an answer, in place of a former one of the same replica.
    pub(crate) fn add(&mut self, cells: Cells) {
        self.cells.retain(|it| it.fragment != cells.fragment);
        let at = self.cells.partition_point(|it| it.fragment < cells.fragment);
        self.cells.insert(at, cells);
    }

    /// Fragments that are here.
    pub(crate) fn count(&self) -> usize {
        self.cells.len()
    }

    /// The bytes from `offset` on, `want` at most: as far as there are cells of their rows.
    pub(crate) fn extent(&self, (offset, want): (u32, u32), rows: &mut Rows) -> Joined {
        let (mut next, mut skip, mut odd) = (offset, 0, None);
        let mut bytes = Vec::new();
        while bytes.len() < skip + want as usize {
            let Some(group) = self.row_group(next) else { break };
            let (row, cells) =
                (group[0].0, group.iter().map(|(_, cell)| *cell).collect::<Vec<_>>());
            if cells.len() < self.k {
                break;
            }
            let lens = (row.len, row.cell_len);
            let Some(wrong) = self.decode(lens, &cells, rows) else {
                if bytes.is_empty() {
                    return Joined::Bad;
                }
                break;
            };
            odd = odd.or(wrong);
            if bytes.is_empty() {
                skip = (offset - row.offset) as usize;
            }
            bytes.extend_from_slice(rows.row());
            next = row.offset + row.len;
        }
        if bytes.is_empty() {
            return Joined::Few;
        }
        Joined::Bytes(Extent::of_rows(bytes, skip, want), odd)
    }

    /// Whether cells of parity are among the first that give a row.
    pub(crate) fn has_parity(&self) -> bool {
        self.cells.iter().take(self.k).any(|cells| usize::from(cells.fragment) >= self.k)
    }

    /// The row that holds a byte, as the first of the answers has it.
    pub(crate) fn row(&self, offset: u32) -> Option<RowSeen> {
        self.cells.iter().find_map(|cells| cells.row(offset)).map(|(row, _)| RowSeen::of(row))
    }

    /// Cells with equal heads of the row that holds a byte: the most that there are of one row.
    fn row_group(&self, offset: u32) -> Option<Vec<(&Row, CellSectors<'_>)>> {
        let cells: Vec<_> =
            self.cells.iter().filter_map(|it| Some((it.fragment, it.row(offset)?))).collect();
        let kind = |row: &Row, cell: &[u8]| {
            (row.offset, row.len, row.cell_len, cell.first_chunk::<CELL_HEAD>().copied())
        };
        let kinds: Vec<_> = cells.iter().map(|(_, (row, cell))| kind(row, cell)).collect();
        let most =
            kinds.iter().max_by_key(|it| kinds.iter().filter(|other| other == it).count())?;
        let group = cells.iter().zip(&kinds).filter(|(_, it)| *it == most);
        Some(group.map(|((number, (row, cell)), _)| (*row, (*number, *cell))).collect())
    }

    /// Decodes a row to the memory of `rows`, from any k of its cells. Answers the fragment without
    /// which that was possible, when it was not with it; `None` when it is not.
    fn decode(
        &self,
        lens: (u32, u32),
        cells: &[CellSectors<'_>],
        rows: &mut Rows,
    ) -> Option<Option<u8>> {
        if rows.decode_cells(lens, &cells[..self.k]).is_ok() {
            return Some(None);
        }
        (0..cells.len()).find_map(|without| {
            let others = cells.iter().enumerate().filter(|(at, _)| *at != without);
            let others: Vec<_> = others.map(|(_, cell)| *cell).take(self.k).collect();
            let decoded = others.len() == self.k && rows.decode_cells(lens, &others).is_ok();
            decoded.then_some(Some(cells[without].0))
        })
    }
}

/// A row of a chunk that a reader has seen: a guess where the others are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RowSeen {
    /// Offset in the chunk of its first byte.
    pub(crate) offset: u32,
    /// Its bytes.
    pub(crate) len: u32,
}

/// A part of a range that one data fragment holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SharePart {
    pub(crate) fragment: u8,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

impl RowSeen {
    pub(crate) fn of(row: &Row) -> RowSeen {
        RowSeen { offset: row.offset, len: row.len }
    }

    /// The row that holds a byte of a chunk, if all rows have this length but for the last.
    pub(crate) fn regular(self, chunk: &ChunkPlace, offset: u32) -> Option<RowSeen> {
        if self.offset <= offset && offset - self.offset < self.len {
            return Some(self);
        }
        let (at, len) = (i64::from(offset) - i64::from(self.offset), i64::from(self.len));
        let start = i64::from(self.offset) + at.div_euclid(len) * len;
        let end = chunk.sealed.map_or(start + len, |sealed| (start + len).min(sealed.into()));
        let offset = u32::try_from(start).ok()?;
        let len = u32::try_from(end - start).ok().filter(|len| *len > 0)?;
        Some(RowSeen { offset, len })
    }

    /// The parts of a range whose first byte is in this row, in this row and those behind it if they are
    /// regular, by the fragments that hold them. `None` when they are more than a row has shares: whole
    /// cells are fewer requests.
    pub(crate) fn parts(
        self,
        chunk: &ChunkPlace,
        (offset, len): (u32, u32),
    ) -> Option<Vec<SharePart>> {
        // The width of shares is the same whatever the blocks are.
        let scheme = Fragments::of(chunk)?.scheme(BlockSize::PAPERS)?;
        let stop = chunk.sealed.map_or(u64::MAX, u64::from).min(u64::from(offset) + u64::from(len));
        let (mut row, mut at, mut parts) = (self, offset, Vec::new());
        while u64::from(at) < stop {
            if parts.len() == scheme.k() {
                return None;
            }
            if at - row.offset >= row.len {
                row = row.regular(chunk, at)?;
            }
            let width = scheme.share_width(row.len as usize) as u32;
            let share = (at - row.offset) / width;
            let row_end = u64::from(row.offset) + u64::from(row.len);
            let share_end = u64::from(row.offset) + (u64::from(share) + 1) * u64::from(width);
            let len = (stop.min(row_end).min(share_end) - u64::from(at)) as u32;
            parts.push(SharePart { fragment: share as u8, offset: at, len });
            at += len;
        }
        Some(parts)
    }
}

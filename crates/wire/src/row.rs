//! Rows in sectors: layout 2 of replicas (C18, C19; `docs/formats/row.md`).
//!
//! A row is one append. A replica stores one cell of it, cut into sectors that count together or not
//! at all. Offsets and lengths are those of the row's logical bytes, so that replicas which hold
//! different cells of one row compare.

use base::limits::{SECTOR, SECTOR_DATA_MAX};
use codec::block::Codec;
use codec::row::{CELL_HEAD, CellHead};

pub use crate::cell::{CELL_SECTORS_MAX, CellPart, LAYOUT};
use crate::sector::{
    AppendAt, FLAG_FIRST, FLAG_LAST, Footer, SectorError, SectorKind, correct_crc, format_sector,
    parse_footer, sectors_for, verify_plain, verify_sector,
};
pub use codec::limits::FRAGMENTS_MAX;

/// Logical bytes of a row of copies, at most: what a replica that is damaged has to be read again for.
pub const COPY_ROW_MAX: usize = 256 << 10;
const _: () = assert!(COPY_ROW_MAX <= codec::limits::SHARE_MAX);
/// Logical bytes of a row of a coded chunk, at most: an append of the largest size, whatever the code.
pub const CODED_ROW_MAX: usize = base::limits::APPEND_DATA_MAX;
const _: () = assert!(CODED_ROW_MAX <= codec::limits::ROW_MAX);
const _: () = assert!(CODED_ROW_MAX <= 2 * codec::limits::SHARE_MAX);

/// What a heartbeat says of a server that takes rows and rebuilds fragments, in place of the layout
/// that others say.
pub const LAYOUT_CODED: u8 = LAYOUT + 1;

/// The fragment of a coded chunk that a replica holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Data fragments; 1 where replicas are copies.
    pub k: u8,
    /// Parity fragments.
    pub p: u8,
    /// Its number, below k + p.
    pub number: u8,
}

impl Fragment {
    /// The only fragment of chunks whose replicas are copies.
    pub const COPY: Fragment = Fragment { k: 1, p: 0, number: 0 };

    /// The stored form.
    pub fn encode(self) -> [u8; 4] {
        [self.k, self.p, self.number, 0]
    }

    /// From the stored form; none when no chunk has such a fragment.
    pub fn decode([k, p, number, reserved]: [u8; 4]) -> Option<Fragment> {
        let block = codec::block::BlockSize::new(codec::limits::BLOCK_LOG2_MIN)?;
        let scheme = codec::row::Scheme::new(usize::from(k), usize::from(p), block).ok()?;
        let sound = usize::from(number) < scheme.n() && reserved == 0;
        sound.then_some(Fragment { k, p, number })
    }
}

/// Layout of a replica. A chunk has one for all its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Layout 1: sectors hold the bytes of the file.
    Plain,
    /// Layout 2: sectors hold cells of this fragment.
    Rows(Fragment),
}

impl Layout {
    /// The layout of verified sectors, by the first of them.
    pub fn of(sectors: &[u8]) -> Layout {
        match row_at(sectors) {
            Ok(row) => Layout::Rows(row.fragment),
            Err(_) => Layout::Plain,
        }
    }
}

/// Facts of a row, from the first sector of any of its cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The fragment that the cell belongs to.
    pub fragment: Fragment,
    /// Codec of its blocks.
    pub codec: Codec,
    /// Offset in the chunk of its first logical byte.
    pub offset: u32,
    /// Logical bytes.
    pub len: u32,
    /// Bytes of the cell.
    pub cell_len: u32,
}

impl Row {
    /// Sectors of the cell.
    pub fn sectors(&self) -> u32 {
        sectors_for(self.cell_len as usize) as u32
    }

    /// Whether `footer` is that of the sector at `index` of this cell, whose first one is `first`.
    pub fn has(&self, first: &Footer, index: u32, footer: &Footer) -> bool {
        let (fragment, codec) = (self.fragment.number, self.codec);
        let part = CellPart { fragment, codec, index: index as u16 };
        let at = AppendAt::of(first);
        index < self.sectors() && *footer == part_footer(at, part, self.cell_len as usize)
    }
}

/// The row whose cell begins with `sector`, the checksum of which was verified.
///
/// # Errors
///
/// [`SectorError::Field`] when no cell begins there.
pub fn row_at(sector: &[u8]) -> Result<Row, SectorError> {
    let sector = sector.get(..SECTOR).ok_or(SectorError::Size(sector.len()))?;
    let footer = parse_footer(sector)?;
    let SectorKind::Row(part) = footer.kind else { return Err(SectorError::Field("kind")) };
    if part.index != 0 {
        return Err(SectorError::Field("index"));
    }
    let head = sector.first_chunk::<CELL_HEAD>().expect("a sector is longer");
    let head = CellHead::decode(head).map_err(|_| SectorError::Field("cell head"))?;
    let (k, p) = (head.scheme.k() as u8, head.scheme.p() as u8);
    if usize::from(part.fragment) >= head.scheme.n() {
        return Err(SectorError::Field("fragment"));
    }
    let row = Row {
        fragment: Fragment { k, p, number: part.fragment },
        codec: part.codec,
        offset: footer.offset,
        len: head.row_len,
        cell_len: head.cell_len() as u32,
    };
    if !row.has(&footer, 0, &footer) {
        return Err(SectorError::Field("len or flags"));
    }
    Ok(row)
}

/// Verifies the cell at the front of `sectors`, of which there may be more, and returns its row. The
/// error names the sector's index.
pub fn verify_cell(at: AppendAt, sectors: &[u8]) -> Result<Row, (usize, SectorError)> {
    let Some(first) = sectors.get(..SECTOR) else {
        return Err((0, SectorError::Size(sectors.len())));
    };
    let footer = verify_sector(first).map_err(|error| (0, error))?;
    at.check(&footer).map_err(|error| (0, error))?;
    let row = row_at(first).map_err(|error| (0, error))?;
    for index in 1..row.sectors() {
        let place = index as usize;
        let sector = sectors.get(place * SECTOR..(place + 1) * SECTOR);
        let sector = sector.ok_or((place, SectorError::Field("cell is cut")))?;
        let other = verify_sector(sector).map_err(|error| (place, error))?;
        if !row.has(&footer, index, &other) {
            return Err((place, SectorError::Field("cell")));
        }
    }
    Ok(row)
}

/// Verifies that `sectors` are those of an append at a place: data sectors without gap, or whole cells
/// of rows that follow one another and are of one fragment. Returns its data bytes; of rows their
/// logical bytes. The error names the sector's index.
pub fn verify_append(at: AppendAt, sectors: &[u8]) -> Result<u32, (usize, SectorError)> {
    if sectors.is_empty() || !sectors.len().is_multiple_of(SECTOR) {
        return Err((0, SectorError::Size(sectors.len())));
    }
    let first = parse_footer(&sectors[..SECTOR]).map_err(|error| (0, error))?;
    match first.kind {
        SectorKind::Row(_) => verify_rows(at, sectors),
        SectorKind::Data | SectorKind::Index => verify_plain(at, sectors),
    }
}

fn verify_rows(at: AppendAt, sectors: &[u8]) -> Result<u32, (usize, SectorError)> {
    let mut done = 0;
    let mut next = at;
    let mut fragment = None;
    while done < sectors.len() {
        let index = done / SECTOR;
        let shift = |(at, error)| (index + at, error);
        let row = verify_cell(next, &sectors[done..]).map_err(shift)?;
        if *fragment.get_or_insert(row.fragment) != row.fragment {
            return Err((index, SectorError::Field("fragment")));
        }
        next.offset =
            next.offset.checked_add(row.len).ok_or((index, SectorError::Field("offset")))?;
        done += row.sectors() as usize * SECTOR;
    }
    Ok(next.offset - at.offset)
}

/// The rows of verified sectors that hold whole cells.
pub fn rows(sectors: &[u8]) -> impl Iterator<Item = (Row, &[u8])> {
    let mut rest = sectors;
    std::iter::from_fn(move || {
        let row = row_at(rest).ok()?;
        let (cell, behind) = rest.split_at_checked(row.sectors() as usize * SECTOR)?;
        rest = behind;
        Some((row, cell))
    })
}

/// Offset in the chunk behind the last logical byte of verified sectors: of plain ones, or of whole
/// cells. None when there are no sectors.
pub fn logical_end(sectors: &[u8]) -> Option<u32> {
    let last = sectors.len().checked_sub(SECTOR)?;
    let footer = parse_footer(&sectors[last..]).ok()?;
    match footer.kind {
        SectorKind::Row(part) => {
            let first = last.checked_sub(usize::from(part.index) * SECTOR)?;
            let row = row_at(&sectors[first..]).ok()?;
            row.offset.checked_add(row.len)
        }
        _ => footer.offset.checked_add(u32::from(footer.len)),
    }
}

/// Bytes of the sectors at the front that may be used without the others: plain sectors, or whole
/// cells; `bytes` at most.
pub fn usable_len(sectors: &[u8], bytes: usize) -> usize {
    let bytes = bytes.min(sectors.len());
    match Layout::of(sectors) {
        Layout::Plain => bytes / SECTOR * SECTOR,
        Layout::Rows(_) => rows(&sectors[..bytes]).map(|(_, cell)| cell.len()).sum(),
    }
}

/// A cell that is collected sector by sector, from replicas each of which lacks some.
#[derive(Debug)]
pub struct CellParts {
    /// The chunk, and a byte of the row: until its first sector is there, then the row's first one.
    at: AppendAt,
    row: Option<(Row, Footer)>,
    sectors: Vec<u8>,
}

impl CellParts {
    /// No sector yet, of the row that holds the byte at this place.
    pub fn new(at: AppendAt) -> CellParts {
        CellParts { at, row: None, sectors: Vec::new() }
    }

    /// Index of the sector that is next.
    pub fn next_index(&self) -> u16 {
        (self.sectors.len() / SECTOR) as u16
    }

    /// Adds the next sector, which is verified.
    pub fn push(&mut self, sector: &[u8]) -> Result<(), SectorError> {
        let footer = verify_sector(sector)?;
        let (row, first) = match self.row {
            Some(begun) => begun,
            None => {
                let row = row_at(sector)?;
                let holds = row.offset <= self.at.offset && self.at.offset - row.offset < row.len;
                AppendAt { offset: row.offset, ..self.at }.check(&footer)?;
                if !holds {
                    return Err(SectorError::Field("offset"));
                }
                (row, footer)
            }
        };
        if !row.has(&first, u32::from(self.next_index()), &footer) {
            return Err(SectorError::Field("cell"));
        }
        self.row = Some((row, first));
        self.sectors.extend_from_slice(sector);
        Ok(())
    }

    /// The whole cell, once all its sectors are there.
    pub fn whole(&self) -> Option<&[u8]> {
        let (row, _) = self.row?;
        (u32::from(self.next_index()) == row.sectors()).then_some(&self.sectors[..])
    }
}

/// Writes the footers of a cell of `cell_len` bytes that is in its sectors already, each filled but
/// the last one. `part` is that of the first sector.
pub fn stamp_cell(at: AppendAt, part: CellPart, cell_len: usize, sectors: &mut [u8]) {
    assert_eq!(sectors.len(), sectors_for(cell_len) * SECTOR, "sectors of {cell_len} bytes");
    for (index, sector) in sectors.chunks_mut(SECTOR).enumerate() {
        let part = CellPart { index: index as u16, ..part };
        format_sector(sector, &part_footer(at, part, cell_len));
    }
}

/// The footer of a part of a cell of `cell_len` bytes, of a row at a place.
fn part_footer(at: AppendAt, part: CellPart, cell_len: usize) -> Footer {
    let index = usize::from(part.index);
    let is_last = index + 1 == sectors_for(cell_len);
    let AppendAt { chunk, epoch, base, offset } = at;
    Footer {
        chunk,
        epoch,
        base,
        offset,
        len: (cell_len - index * SECTOR_DATA_MAX).min(SECTOR_DATA_MAX) as u16,
        kind: SectorKind::Row(part),
        flags: if index == 0 { FLAG_FIRST } else { 0 } | if is_last { FLAG_LAST } else { 0 },
    }
}

/// Copies `cell` to the data of `sectors`, which have footers afterwards only by [`stamp_cell`].
pub fn place_cell(cell: &[u8], sectors: &mut [u8]) {
    for (part, sector) in cell.chunks(SECTOR_DATA_MAX).zip(sectors.chunks_mut(SECTOR)) {
        sector[..part.len()].copy_from_slice(part);
    }
}

/// Copies the cell in verified `sectors` to `out`, which has its length.
pub fn cell_to(sectors: &[u8], out: &mut [u8]) {
    for (sector, part) in sectors.chunks(SECTOR).zip(out.chunks_mut(SECTOR_DATA_MAX)) {
        part.copy_from_slice(&sector[..part.len()]);
    }
}

/// Fuzz target: any bytes of whole sectors are sectors or errors; what verifies as an append
/// starts where it was expected.
pub fn fuzz_sector(bytes: &[u8]) {
    let whole = &bytes[..bytes.len() - bytes.len() % SECTOR];
    for sector in whole.chunks(SECTOR) {
        let parsed = parse_footer(sector);
        if let Ok(footer) = verify_sector(sector) {
            assert_eq!(parsed, Ok(footer), "what verifies also parses");
            assert!(usize::from(footer.len) <= SECTOR_DATA_MAX);
        }
        if let Ok(footer) = parsed {
            // With a valid checksum the fields alone decide.
            let mut good = sector.to_vec();
            correct_crc(&mut good);
            assert_eq!(verify_sector(&good), Ok(footer));
            let at = AppendAt {
                chunk: footer.chunk,
                epoch: footer.epoch,
                base: footer.base,
                offset: footer.offset,
            };
            if let Ok(len) = verify_append(at, whole) {
                // A compressed row has more logical bytes.
                let sector_max = match footer.kind {
                    SectorKind::Row(_) => codec::limits::ROW_MAX,
                    _ => SECTOR_DATA_MAX,
                };
                assert!(len as usize <= whole.len() / SECTOR * sector_max);
                assert_eq!(logical_end(whole), Some(at.offset + len));
            }
        }
    }
}

#[cfg(test)]
#[path = "row_tests.rs"]
mod tests;

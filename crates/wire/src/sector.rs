//! Sectors: the unit on wire and media (C3, C26, N4; `protocols.md` 3).
//!
//! A sector is 4096 bytes: up to 4048 bytes of data, zero padding, a 48-byte footer. The client
//! formats sectors once; replicas store them as received but for the footer's server part.
//!
//! The byte table of the footer is in `docs/formats/wire.md`.

use std::fmt;

use base::limits::{SECTOR, SECTOR_DATA_MAX};
use base::{ChunkId, Epoch};
use codec::{crc32c, crc32c_extend};

use crate::cell::CellPart;

/// Offset of the footer.
const FOOTER_AT: usize = SECTOR_DATA_MAX;
/// Offset of the client CRC: all before it is covered.
const CRC_AT: usize = FOOTER_AT + 36;
const TAG_AT: usize = FOOTER_AT + 40;
const CHAIN_AT: usize = FOOTER_AT + 44;
const _: () = assert!(CHAIN_AT + 4 == SECTOR);

/// First sector of its append.
pub const FLAG_FIRST: u8 = 1;
/// Last sector of its append.
pub const FLAG_LAST: u8 = 2;

/// Content of a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SectorKind {
    /// Bytes of the file.
    Data,
    /// The offset index of a sealed chunk (`protocols.md` 3.3).
    Index,
    /// Bytes of a cell: one replica's part of a row ([`crate::row`]).
    Row(CellPart),
}

/// The client part of a footer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footer {
    /// The chunk the sector belongs to.
    pub chunk: ChunkId,
    /// The epoch the chunk is written under.
    pub epoch: Epoch,
    /// Offset in the file of the chunk's first byte.
    pub base: u64,
    /// Offset in the chunk of the sector's first data byte; of a cell's sectors that of their row.
    pub offset: u32,
    /// Bytes in the sector, of the file or of a cell.
    pub len: u16,
    /// Content of the sector.
    pub kind: SectorKind,
    /// [`FLAG_FIRST`], [`FLAG_LAST`].
    pub flags: u8,
}

/// The server part of a footer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerPart {
    /// Tag of the replica's incarnation: differs between two stays of a chunk on one disk.
    pub tag: u32,
    /// Chained check.
    pub chain: u32,
}

/// Cause for which a sector is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SectorError {
    /// The CRC over data and client part does not match.
    Crc,
    /// A field has a value that no writer produces.
    Field(&'static str),
    /// Not 4096 bytes.
    Size(usize),
}

impl fmt::Display for SectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SectorError::Crc => f.write_str("the sector's checksum does not match its bytes"),
            SectorError::Field(name) => write!(f, "the sector's field '{name}' is out of range"),
            SectorError::Size(len) => write!(f, "{len} bytes are no sector of {SECTOR}"),
        }
    }
}

impl std::error::Error for SectorError {}

/// Writes footer and padding into `sector`, whose first `footer.len` bytes are the data.
pub fn format_sector(sector: &mut [u8], footer: &Footer) {
    assert_eq!(sector.len(), SECTOR);
    let len = usize::from(footer.len);
    assert!((1..=SECTOR_DATA_MAX).contains(&len), "sector with {len} data bytes");
    sector[len..FOOTER_AT].fill(0);
    let part = &mut sector[FOOTER_AT..];
    part[0..8].copy_from_slice(&footer.chunk.get().to_le_bytes());
    part[8..16].copy_from_slice(&footer.epoch.get().to_le_bytes());
    part[16..24].copy_from_slice(&footer.base.to_le_bytes());
    part[24..28].copy_from_slice(&footer.offset.to_le_bytes());
    part[28..30].copy_from_slice(&footer.len.to_le_bytes());
    let (kind, cell) = match footer.kind {
        SectorKind::Data => (1, [0; 4]),
        SectorKind::Index => (2, [0; 4]),
        SectorKind::Row(cell) => (3, cell.encode()),
    };
    part[30] = kind;
    part[31] = footer.flags;
    part[32..36].copy_from_slice(&cell);
    correct_crc(sector);
    sector[TAG_AT..].fill(0);
}

/// Verifies a sector's CRC and fields, and returns the client part of its footer.
pub fn verify_sector(sector: &[u8]) -> Result<Footer, SectorError> {
    if sector.len() != SECTOR {
        return Err(SectorError::Size(sector.len()));
    }
    if crc32c(&sector[..CRC_AT]) != client_crc(sector) {
        return Err(SectorError::Crc);
    }
    parse_footer(sector)
}

/// The client part without a check of the CRC: for sectors verified before.
pub fn parse_footer(sector: &[u8]) -> Result<Footer, SectorError> {
    if sector.len() != SECTOR {
        return Err(SectorError::Size(sector.len()));
    }
    let part = &sector[FOOTER_AT..];
    let u64_at = |at: usize| u64::from_le_bytes(part[at..at + 8].try_into().expect("8 bytes"));
    let len = u16::from_le_bytes([part[28], part[29]]);
    if !(1..=SECTOR_DATA_MAX).contains(&usize::from(len)) {
        return Err(SectorError::Field("len"));
    }
    let cell = [part[32], part[33], part[34], part[35]];
    let kind = match part[30] {
        1 => SectorKind::Data,
        2 => SectorKind::Index,
        3 => SectorKind::Row(CellPart::decode(cell).map_err(SectorError::Field)?),
        _ => return Err(SectorError::Field("kind")),
    };
    if part[31] & !(FLAG_FIRST | FLAG_LAST) != 0 {
        return Err(SectorError::Field("flags"));
    }
    if part[30] != 3 && cell != [0; 4] {
        return Err(SectorError::Field("reserved"));
    }
    Ok(Footer {
        chunk: ChunkId::new(u64_at(0)),
        epoch: Epoch::new(u64_at(8)),
        base: u64_at(16),
        offset: u32::from_le_bytes(part[24..28].try_into().expect("4 bytes")),
        len,
        kind,
        flags: part[31],
    })
}

/// Has the client CRC match a sector's bytes.
pub(crate) fn correct_crc(sector: &mut [u8]) {
    let crc = crc32c(&sector[..CRC_AT]);
    sector[CRC_AT..TAG_AT].copy_from_slice(&crc.to_le_bytes());
}

/// The client CRC in a sector of 4096 bytes.
pub fn client_crc(sector: &[u8]) -> u32 {
    u32::from_le_bytes(sector[CRC_AT..TAG_AT].try_into().expect("4 bytes"))
}

/// The server part in a sector of 4096 bytes.
pub fn server_part(sector: &[u8]) -> ServerPart {
    let u32_at = |at: usize| u32::from_le_bytes(sector[at..at + 4].try_into().expect("4 bytes"));
    ServerPart { tag: u32_at(TAG_AT), chain: u32_at(CHAIN_AT) }
}

/// Fills in the server part.
pub fn set_server_part(sector: &mut [u8], part: ServerPart) {
    sector[TAG_AT..CHAIN_AT].copy_from_slice(&part.tag.to_le_bytes());
    sector[CHAIN_AT..].copy_from_slice(&part.chain.to_le_bytes());
}

/// The chained check of a sector behind one whose chained check is `previous` (0 for the first).
/// A lost or misplaced sector breaks the chain at its successor.
pub fn chain(previous: u32, client_crc: u32, tag: u32) -> u32 {
    let crc = crc32c(&previous.to_le_bytes());
    crc32c_extend(crc32c_extend(crc, &client_crc.to_le_bytes()), &tag.to_le_bytes())
}

/// Sectors that an append of `len` data bytes takes.
pub const fn sectors_for(len: usize) -> usize {
    len.div_ceil(SECTOR_DATA_MAX)
}

/// Place of an append; [`format_append`] needs it beside the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppendAt {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Offset in the file of the chunk's first byte.
    pub base: u64,
    /// Offset in the chunk of the append's first byte.
    pub offset: u32,
}

impl AppendAt {
    /// The place that a footer names.
    pub fn of(footer: &Footer) -> AppendAt {
        let &Footer { chunk, epoch, base, offset, .. } = footer;
        AppendAt { chunk, epoch, base, offset }
    }

    /// Whether a sector with this footer is at the place. The error names the first field that has
    /// another value.
    pub(crate) fn check(&self, footer: &Footer) -> Result<(), SectorError> {
        let field = if footer.chunk != self.chunk {
            "chunk"
        } else if footer.epoch != self.epoch {
            "epoch"
        } else if footer.base != self.base {
            "base"
        } else if footer.offset != self.offset {
            "offset"
        } else {
            return Ok(());
        };
        Err(SectorError::Field(field))
    }
}

/// Lays `data` out in sectors. `out` has [`sectors_for`]`(data.len())` sectors.
pub fn format_append(at: AppendAt, data: &[u8], out: &mut [u8]) {
    let count = sectors_for(data.len());
    assert_eq!(out.len(), count * SECTOR, "{count} sectors for {} bytes", data.len());
    let parts = data.chunks(SECTOR_DATA_MAX).zip(out.chunks_mut(SECTOR)).enumerate();
    for (index, (part, sector)) in parts {
        sector[..part.len()].copy_from_slice(part);
        let first = if index == 0 { FLAG_FIRST } else { 0 };
        let last = if index + 1 == count { FLAG_LAST } else { 0 };
        let footer = Footer {
            chunk: at.chunk,
            epoch: at.epoch,
            base: at.base,
            offset: at.offset + (index * SECTOR_DATA_MAX) as u32,
            len: part.len() as u16,
            kind: SectorKind::Data,
            flags: first | last,
        };
        format_sector(sector, &footer);
    }
}

/// Verifies that `sectors` is one run of data sectors of `at.chunk` and `at.epoch` that starts
/// at `at.offset` without gap, and returns its data bytes. The error names the sector's index.
pub(crate) fn verify_plain(at: AppendAt, sectors: &[u8]) -> Result<u32, (usize, SectorError)> {
    let mut next = at;
    for (index, sector) in sectors.chunks(SECTOR).enumerate() {
        let footer = verify_sector(sector).map_err(|error| (index, error))?;
        next.check(&footer).map_err(|error| (index, error))?;
        if footer.kind != SectorKind::Data {
            return Err((index, SectorError::Field("kind")));
        }
        let end = next.offset.checked_add(u32::from(footer.len));
        next.offset = end.ok_or((index, SectorError::Field("offset")))?;
    }
    Ok(next.offset - at.offset)
}

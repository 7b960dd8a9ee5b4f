//! What a sector's footer says of the cell that it holds a part of (C18, C19; layout 2).

use base::limits::SECTOR_DATA_MAX;
use codec::block::Codec;

/// Sectors of a cell, at most.
pub const CELL_SECTORS_MAX: usize = codec::limits::CELL_MAX.div_ceil(SECTOR_DATA_MAX);
const _: () = assert!(CELL_SECTORS_MAX == 130);
const _: () = assert!(CELL_SECTORS_MAX <= base::limits::APPEND_SECTORS_MAX);

/// The part of a row that a sector holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CellPart {
    /// Number of the cell's fragment; 0 where replicas are copies.
    pub fragment: u8,
    /// Codec that the row's blocks were given to; some may be stored plain.
    pub codec: Codec,
    /// Index of the sector in its cell.
    pub index: u16,
}

impl CellPart {
    /// Bytes 32 to 36 of the footer.
    pub(crate) fn encode(self) -> [u8; 4] {
        let [low, high] = self.index.to_le_bytes();
        [self.fragment, LAYOUT << 4 | self.codec as u8, low, high]
    }

    /// From bytes 32 to 36 of a footer. The error names the field that no writer produces.
    pub(crate) fn decode(bytes: [u8; 4]) -> Result<CellPart, &'static str> {
        let [fragment, layout, low, high] = bytes;
        if usize::from(fragment) >= codec::limits::FRAGMENTS_MAX {
            return Err("fragment");
        }
        if layout >> 4 != LAYOUT {
            return Err("layout");
        }
        let codec = Codec::from_number(layout & 15).ok_or("codec")?;
        let index = u16::from_le_bytes([low, high]);
        if usize::from(index) >= CELL_SECTORS_MAX {
            return Err("index");
        }
        Ok(CellPart { fragment, codec, index })
    }
}

/// The layout of replicas that hold rows, as footers of rows name it.
pub const LAYOUT: u8 = codec::row::CELL_VERSION;

//! Rows: one append, cut into shares, compressed in blocks, coded, and laid out as one cell for each
//! fragment (C18, C19, C26).
//!
//! The layout is that of `docs/formats/row.md`. Everything here works on buffers; what allocates does
//! so when it is made. A row's cells never change: its check makes cells of two rows that were mixed
//! an error.

mod decode;
mod encode;
mod front;
mod judge;

use std::fmt;
use std::ops::Range;

use base::Kind;
pub use decode::{Cell, RowDecoder};
pub use encode::RowEncoder;
pub use front::{CellFront, FRONT_MAX};
pub use judge::{RowJudgement, sets};

use crate::block::{BLOCK_HEAD, BlockError, BlockSize};
use crate::ec::{Code, CodeError, DecodeError, Kernel};
pub use crate::limits::CELL_HEAD;
use crate::limits::{DATA_MAX, FRAGMENTS_MAX, PARITY_MAX, ROW_MAX, SHARE_MAX};

/// Version of cells: that of the layout of replicas which have them.
pub const CELL_VERSION: u8 = 2;

/// Fragments and blocks of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    k: u8,
    p: u8,
    block: BlockSize,
}

/// A scheme that is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemeError {
    /// No code has so many fragments.
    Code(CodeError),
    /// With one data fragment every replica holds the same cell; there is no parity.
    Copies {
        /// Parity that was asked for.
        p: usize,
    },
}

impl fmt::Display for SchemeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SchemeError::Code(error) => error.fmt(f),
            SchemeError::Copies { p } => {
                write!(f, "copies have no parity, and {p} parity fragments are asked for")
            }
        }
    }
}

impl std::error::Error for SchemeError {}

impl Scheme {
    /// `k` data and `p` parity fragments, or copies (`k` is 1 and `p` is 0), with blocks of `block`.
    pub fn new(k: usize, p: usize, block: BlockSize) -> Result<Scheme, SchemeError> {
        if k == 1 && p != 0 {
            return Err(SchemeError::Copies { p });
        }
        Code::check(k, p).map_err(SchemeError::Code)?;
        Ok(Scheme { k: k as u8, p: p as u8, block })
    }

    /// Data fragments.
    pub fn k(self) -> usize {
        usize::from(self.k)
    }

    /// Parity fragments.
    pub fn p(self) -> usize {
        usize::from(self.p)
    }

    /// Cells of a row. Replicas of copies all hold the only one.
    pub fn n(self) -> usize {
        self.k() + self.p()
    }

    /// Size of blocks.
    pub fn block(self) -> BlockSize {
        self.block
    }

    /// Its code.
    pub fn code(self) -> Code {
        self.code_with(Kernel::fastest())
    }

    /// The same for a kernel.
    pub fn code_with(self, kernel: Kernel) -> Code {
        Code::with_kernel(self.k(), self.p(), kernel).expect("checked when the scheme was made")
    }

    /// Logical bytes of a row, at most.
    pub fn row_max(self) -> usize {
        ROW_MAX.min(self.k() * SHARE_MAX)
    }

    /// Logical bytes of the longest share of a row of `len` bytes.
    pub fn share_width(self, len: usize) -> usize {
        len.div_ceil(self.k())
    }

    /// Place of share `index` in a row of `len` logical bytes; the last ones may be shorter or empty.
    pub fn share(self, len: usize, index: usize) -> Range<usize> {
        let width = self.share_width(len);
        len.min(index * width)..len.min((index + 1) * width)
    }

    /// Bytes of the heads of the blocks of a share of `len` logical bytes.
    pub fn heads(self, len: usize) -> usize {
        BLOCK_HEAD * self.block.count(len)
    }

    /// Bytes of a cell of a row of `len` logical bytes, at most: all its blocks are stored plain.
    pub fn cell_max(self, len: usize) -> usize {
        let width = self.share_width(len);
        CELL_HEAD + width + self.heads(width)
    }
}

/// The head of a cell, which all cells of a row have alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellHead {
    /// Fragments and blocks of the row.
    pub scheme: Scheme,
    /// Logical bytes of the row.
    pub row_len: u32,
    /// Bytes behind the head: those of the row's longest share.
    pub stored_len: u32,
    /// The row check: CRC32C over the CRC32Cs of all cells.
    pub check: u32,
}

impl CellHead {
    /// Bytes of the cell.
    pub fn cell_len(&self) -> usize {
        CELL_HEAD + self.stored_len as usize
    }

    /// The stored form.
    pub fn encode(&self) -> [u8; CELL_HEAD] {
        let Scheme { k, p, block } = self.scheme;
        let mut bytes = [0; CELL_HEAD];
        bytes[..4].copy_from_slice(&[CELL_VERSION, k, p, block.log2()]);
        bytes[4..8].copy_from_slice(&self.row_len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.stored_len.to_le_bytes());
        bytes[12..].copy_from_slice(&self.check.to_le_bytes());
        bytes
    }

    /// A head from its stored form; whether the lengths are possible ones is checked too.
    pub fn decode(bytes: &[u8; CELL_HEAD]) -> Result<CellHead, RowError> {
        let [version, k, p, log2, numbers @ ..] = *bytes;
        if version != CELL_VERSION {
            return Err(RowError::Version(version));
        }
        let block = BlockSize::new(log2).ok_or(RowError::Head)?;
        let scheme = Scheme::new(usize::from(k), usize::from(p), block);
        let scheme = scheme.map_err(|_| RowError::Head)?;
        let number = |at: usize| {
            let bytes = [numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]];
            u32::from_le_bytes(bytes)
        };
        let head = CellHead { scheme, row_len: number(0), stored_len: number(4), check: number(8) };
        let row_len = head.row_len as usize;
        // The longest share has blocks of one byte at least.
        let count = block.count(scheme.share_width(row_len));
        let cell_min = CELL_HEAD + (BLOCK_HEAD + 1) * count;
        let fits = (1..=scheme.row_max()).contains(&row_len)
            && (cell_min..=scheme.cell_max(row_len)).contains(&head.cell_len());
        if fits { Ok(head) } else { Err(RowError::Head) }
    }

    /// The CRC32C of a cell whose bytes behind the head are `stored`: of the head but for its check,
    /// and of these.
    fn cell_crc(&self, stored: &[u8]) -> u32 {
        let head = crate::crc32c(&self.encode()[..CELL_HEAD - 4]);
        crate::crc32c_extend(head, stored)
    }
}

/// The row check over the CRC32Cs of all cells, in the order of their fragments.
fn row_check(cell_crcs: &[u32]) -> u32 {
    let mut bytes = [0; 4 * FRAGMENTS_MAX];
    for (place, crc) in bytes.chunks_mut(4).zip(cell_crcs) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
    crate::crc32c(&bytes[..4 * cell_crcs.len()])
}

/// Cells that do not give back a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowError {
    /// A cell of a version that this program does not read.
    Version(u8),
    /// A head that no encoder writes.
    Head,
    /// A cell has other bytes than its head says, or too few for a head.
    CellLength {
        /// Of the cell.
        fragment: u8,
    },
    /// The cell's head differs from that of the first one: they are not of one row.
    Mixed {
        /// Of the cell.
        fragment: u8,
    },
    /// The row has another length than the caller knows.
    RowLength {
        /// Known.
        want: usize,
        /// In the heads.
        seen: usize,
    },
    /// There are not k different fragments of the row.
    Fragments(DecodeError),
    /// A block of a share does not verify, after decoding where its fragment was not at hand.
    Block {
        /// Number of the share, and of its fragment.
        share: u8,
        /// What is wrong with it.
        error: BlockError,
    },
    /// Bytes behind the blocks of a share are not zero.
    Padding {
        /// Number of the share, and of its fragment.
        share: u8,
    },
    /// The cells, with those decoded from them, are not what the row check was computed over.
    Check,
}

impl RowError {
    /// The next step of the receiver: other fragments, but for a mistake of its own.
    pub fn kind(&self) -> Kind {
        match self {
            RowError::Version(_) | RowError::Fragments(_) => Kind::Invalid,
            _ => Kind::Corrupt,
        }
    }
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowError::Version(version) => write!(f, "row: version {version} is not read here"),
            RowError::Head => write!(f, "row: a cell's head is none that is written"),
            RowError::CellLength { fragment } => {
                write!(f, "row: cell {fragment} has another length than its head says")
            }
            RowError::Mixed { fragment } => {
                write!(f, "row: cell {fragment} has another head than the first one")
            }
            RowError::RowLength { want, seen } => {
                write!(f, "row: heads say {seen} bytes, and {want} are known")
            }
            RowError::Fragments(error) => write!(f, "row: {error}"),
            RowError::Block { share, error } => write!(f, "row: share {share}: {error}"),
            RowError::Padding { share } => write!(f, "row: padding of share {share} is not zero"),
            RowError::Check => write!(f, "row: cells do not have the row check of their heads"),
        }
    }
}

impl std::error::Error for RowError {}

/// Views of data and of parity fragments, without memory of their own.
type Sources<'a> = [&'a [u8]; DATA_MAX];
type Targets<'a> = [&'a mut [u8]; PARITY_MAX];

#[cfg(test)]
mod tests;

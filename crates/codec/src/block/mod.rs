//! Blocks: parts of a share of 4 to 64 KiB, each compressed by itself and with its own checksum, so
//! that a read takes one of them only (C19, C26).
//!
//! A block is stored as a head of [`BLOCK_HEAD`] bytes and its content (`docs/formats/row.md`). The
//! checksum is that of the bytes before compression: it also shows what a compressor or a decoder
//! did wrong (C24).

mod pack;

use std::fmt;

use base::Kind;
pub use pack::{Packer, Unpacker};

pub use crate::limits::BLOCK_HEAD;
use crate::limits::{BLOCK_LOG2_MAX, BLOCK_LOG2_MIN, BLOCK_MAX};

/// A compressed block saves one part of so many at least; otherwise it is stored plain.
pub const SAVED_PART_MIN: usize = 16;

/// Logical bytes of the blocks of a row, but for the last one of each share, which may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize(u8);

impl BlockSize {
    /// 16 KiB: the papers' (C19).
    pub const PAPERS: BlockSize = BlockSize(14);

    /// Blocks of 2^`log2` bytes; `None` outside of [`BLOCK_LOG2_MIN`] to [`BLOCK_LOG2_MAX`].
    pub const fn new(log2: u8) -> Option<BlockSize> {
        match log2 {
            BLOCK_LOG2_MIN..=BLOCK_LOG2_MAX => Some(BlockSize(log2)),
            _ => None,
        }
    }

    /// The logarithm of the size to the base 2.
    pub const fn log2(self) -> u8 {
        self.0
    }

    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        1 << self.0
    }

    /// Blocks of `len` bytes.
    pub const fn count(self, len: usize) -> usize {
        len.div_ceil(self.bytes())
    }
}

/// What a block's content is. The numbers are stored, and are never used for anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// The logical bytes.
    Plain = 0,
    /// An LZ4 block.
    Lz4 = 1,
    /// A Zstandard frame.
    Zstd = 2,
}

impl Codec {
    /// All codecs.
    pub const ALL: [Codec; 3] = [Codec::Plain, Codec::Lz4, Codec::Zstd];

    /// The codec of a stored number.
    pub fn from_number(number: u8) -> Option<Codec> {
        Codec::ALL.into_iter().find(|codec| *codec as u8 == number)
    }

    /// Its name in policies and measurements.
    pub const fn name(self) -> &'static str {
        match self {
            Codec::Plain => "plain",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }
}

/// The head of a stored block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHead {
    /// Bytes of content behind the head; [`BLOCK_MAX`] at most.
    pub stored_len: u32,
    /// What the content is.
    pub codec: Codec,
    /// CRC32C of the logical bytes.
    pub crc: u32,
}

/// Stored bytes that are not the block they should be. All of them mean: take another replica, or
/// decode from other fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockError {
    /// The head's codec has no meaning in this version.
    Codec(u8),
    /// A length that no block of so many logical bytes has, or that goes beyond the bytes at hand.
    Length {
        /// In the head.
        stored: u32,
        /// Logical bytes of the block.
        logical: usize,
    },
    /// The content is not what its codec makes of so many logical bytes.
    Damaged,
    /// The logical bytes have another checksum.
    Checksum {
        /// In the head.
        want: u32,
        /// Of the bytes.
        seen: u32,
    },
}

impl BlockError {
    /// The next step of the receiver: another replica, or other fragments.
    pub fn kind(&self) -> Kind {
        Kind::Corrupt
    }
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockError::Codec(number) => write!(f, "block: codec {number} is not known here"),
            BlockError::Length { stored, logical } => {
                write!(f, "block: {stored} stored bytes cannot be {logical} logical ones")
            }
            BlockError::Damaged => write!(f, "block: its content cannot be decompressed"),
            BlockError::Checksum { want, seen } => {
                write!(f, "block: checksum {seen:08x} instead of {want:08x}")
            }
        }
    }
}

impl std::error::Error for BlockError {}

impl BlockHead {
    /// The stored form.
    pub fn encode(&self) -> [u8; BLOCK_HEAD] {
        assert!(self.stored_len as usize <= BLOCK_MAX, "a block of {} bytes", self.stored_len);
        let word = self.stored_len | (self.codec as u32) << 24;
        let mut bytes = [0; BLOCK_HEAD];
        bytes[..4].copy_from_slice(&word.to_le_bytes());
        bytes[4..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    /// The head of a block of `logical` bytes, from its stored form. Plain content has as many bytes,
    /// compressed content fewer by the part that it must save; anything else is an error.
    pub fn decode(bytes: &[u8; BLOCK_HEAD], logical: usize) -> Result<BlockHead, BlockError> {
        let [a, b, c, codec, crc @ ..] = *bytes;
        let stored_len = u32::from_le_bytes([a, b, c, 0]);
        let codec = Codec::from_number(codec).ok_or(BlockError::Codec(codec))?;
        let stored = stored_len as usize;
        let fits = match codec {
            Codec::Plain => stored == logical,
            _ => stored > 0 && is_saving(stored, logical),
        };
        if !fits || logical > BLOCK_MAX {
            return Err(BlockError::Length { stored: stored_len, logical });
        }
        Ok(BlockHead { stored_len, codec, crc: u32::from_le_bytes(crc) })
    }
}

/// Whether so many stored bytes are worth a decompression.
const fn is_saving(stored: usize, logical: usize) -> bool {
    stored < logical && (logical - stored) * SAVED_PART_MIN >= logical
}

#[cfg(test)]
mod tests;

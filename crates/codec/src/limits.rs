//! Limits of erasure codes, blocks and rows.

use base::{KIB, MIB};

/// Data fragments of a code, at most: a row of 1 MiB has shares of 85 KiB then.
pub const DATA_MAX: usize = 12;
/// Parity fragments, at most: a kernel keeps the sums of all of them in registers.
pub const PARITY_MAX: usize = 4;
/// Fragments of a code, at most: their numbers have four bits.
pub const FRAGMENTS_MAX: usize = 16;
const _: () = assert!(DATA_MAX + PARITY_MAX == FRAGMENTS_MAX);

/// Bytes that a kernel takes of all fragments before it goes on: with [`FRAGMENTS_MAX`] of them
/// 64 KiB, so that a strip stays in a core's second-level cache for what is computed next to it.
pub const STRIP: usize = 4 << 10;

/// Logical bytes of a block of a share: 2^12 to 2^16.
pub const BLOCK_LOG2_MIN: u8 = 12;
/// The same, at most.
pub const BLOCK_LOG2_MAX: u8 = 16;
/// Logical bytes of a block, at most.
pub const BLOCK_MAX: usize = 1 << BLOCK_LOG2_MAX;

/// Bytes of the head of a stored block.
pub const BLOCK_HEAD: usize = 8;
/// Bytes of a cell's head.
pub const CELL_HEAD: usize = 16;

/// Logical bytes of a share of a row, at most: half of the longest row, so that a code with two data
/// fragments takes it.
pub const SHARE_MAX: usize = 512 * KIB as usize;
/// Logical bytes of a row, at most.
pub const ROW_MAX: usize = MIB as usize;

/// Bytes of a share with its blocks' heads, at most: 128 blocks of 4 KiB.
pub const SHARE_STORED_MAX: usize = SHARE_MAX + BLOCK_HEAD * (SHARE_MAX >> BLOCK_LOG2_MIN);
/// Bytes of a cell, at most: 130 sectors.
pub const CELL_MAX: usize = CELL_HEAD + SHARE_STORED_MAX;
const _: () = assert!(CELL_MAX.div_ceil(4048) == 130);

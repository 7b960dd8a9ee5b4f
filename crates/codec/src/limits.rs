//! Limits of erasure codes.

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

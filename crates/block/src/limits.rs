//! Bounds of volumes, with reason and arithmetic.

use base::{GIB, KIB, MIB, TIB};

/// Bytes of a block: what is written, versioned and atomic as one (`protocols.md` 6.2).
pub const BLOCK: u64 = 4 * KIB;

/// Smallest and largest volume (B11).
pub const VOLUME_BYTES: (u64, u64) = (GIB, 64 * TIB);

/// Bytes of a segment group, unless configured (B1).
pub const GROUP_BYTES_DEFAULT: u64 = 128 * GIB;
/// Bytes of a segment at least, for tests: 2^30 of them are 64 TiB, so 32 bits number them.
pub const SEGMENT_BYTES_MIN: u64 = 64 * KIB;
/// Segments of a group, unless configured: 32 GiB each (B1).
pub const SEGMENTS_PER_GROUP_DEFAULT: u32 = 4;
/// Segments of a group at most.
pub const SEGMENTS_PER_GROUP_MAX: u32 = 64;
/// Bytes of a data sector, unless configured: the paper's later figure, which spreads one
/// client's burst over all segments of a group (B1).
pub const DATA_SECTOR_DEFAULT: u64 = 128 * KIB;
/// Smallest data sector: one block, for tests. Largest: the paper's first figure.
pub const DATA_SECTOR: (u64, u64) = (BLOCK, 2 * MIB);

/// Bytes of one NBD request's data at most: what clients may assume without asking, and twice
/// what Linux sends.
pub const NBD_DATA_MAX: u32 = 32 << 20;
/// Bytes of an NBD option's data at most: a name, a description and as many queries as fit.
pub const NBD_OPTION_MAX: u32 = 16 << 10;
/// Bytes of a string of the NBD protocol at most, by its specification.
pub const NBD_STRING_MAX: usize = 4096;
/// Bytes of an export's name at most: a volume's name, as a file's.
pub const NBD_NAME_MAX: usize = 255;
/// Metadata contexts of one connection at most: base:allocation is the only one so far.
pub const NBD_CONTEXTS_MAX: usize = 16;
/// Extents of one answer to a block status request at most.
pub const NBD_EXTENTS_MAX: usize = 4096;

const _: () = assert!(VOLUME_BYTES.1 / SEGMENT_BYTES_MIN < u32::MAX as u64);
const _: () = assert!(DATA_SECTOR_DEFAULT.is_multiple_of(BLOCK));
const _: () = assert!(
    GROUP_BYTES_DEFAULT.is_multiple_of(SEGMENTS_PER_GROUP_DEFAULT as u64 * DATA_SECTOR_DEFAULT)
);
const _: () = assert!(NBD_NAME_MAX <= NBD_STRING_MAX && NBD_STRING_MAX < NBD_OPTION_MAX as usize);

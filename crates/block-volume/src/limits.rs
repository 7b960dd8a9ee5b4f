//! Bounds of volumes, with reason and arithmetic.

use base::{GIB, KIB, MIB, TIB};

/// Bytes of a block: the unit of writes, versions and atomicity (`protocols.md` 6.2).
pub const BLOCK: u64 = 4 * KIB;

/// Smallest and largest volume (B11).
pub const VOLUME_BYTES: (u64, u64) = (GIB, 64 * TIB);

/// Bytes of a segment group, unless configured (B1).
pub const GROUP_BYTES_DEFAULT: u64 = 128 * GIB;
/// Bytes of a segment at least, for tests: 2^30 of them are 64 TiB, so 32 bits number them.
pub const SEGMENT_BYTES_MIN: u64 = 64 * KIB;
/// Bytes of a segment at most: 2^32 blocks, which 32 bits number (16 TiB).
pub const SEGMENT_BYTES_MAX: u64 = BLOCK << 32;
/// Segments of a group, unless configured: 32 GiB each (B1).
pub const SEGMENTS_PER_GROUP_DEFAULT: u32 = 4;
/// Segments of a group at most.
pub const SEGMENTS_PER_GROUP_MAX: u32 = 64;
/// Bytes of a data sector, unless configured: the paper's later figure, which spreads one
/// client's burst over all segments of a group (B1).
pub const DATA_SECTOR_DEFAULT: u64 = 128 * KIB;
/// Smallest data sector: one block, for tests. Largest: the paper's first figure.
pub const DATA_SECTOR: (u64, u64) = (BLOCK, 2 * MIB);

const _: () = assert!(VOLUME_BYTES.1 / SEGMENT_BYTES_MIN < u32::MAX as u64);
const _: () = assert!(DATA_SECTOR_DEFAULT.is_multiple_of(BLOCK));
const _: () = assert!(
    GROUP_BYTES_DEFAULT.is_multiple_of(SEGMENTS_PER_GROUP_DEFAULT as u64 * DATA_SECTOR_DEFAULT)
);

/// Bytes of one read or write of a device at most: 128 blocks, which with their metadata fit in
/// one append of the core. Longer requests of clients are cut.
pub const IO_MAX: usize = 512 * KIB as usize;

/// Changes of one attachment on one segment that are not answered: the deepest queue of an NBD
/// connection, all of it on one segment. A segment remembers as many of each attachment.
pub const SESSION_CHANGES_MAX: usize = 256;

const _: () = assert!(IO_MAX.is_multiple_of(BLOCK as usize));
const _: () =
    assert!((IO_MAX / BLOCK as usize) * (BLOCK as usize + 64) <= base::limits::APPEND_DATA_MAX);
const _: () = assert!(SESSION_CHANGES_MAX.is_multiple_of(8));

const _: () = assert!(
    IO_MAX as u64 / BLOCK < crate::location::LOCATION_RUNS_MAX as u64,
    "one more when it is not aligned"
);

/// Blocks whose locations are in one answer: a data sector, so that neighbours in a table or file
/// cost one request. 32 spans at most, 768 bytes of an answer; all in one index page.
pub const LOCATION_GROUP_BLOCKS: u64 = 32;

const _: () = assert!(
    IO_MAX as u64 / BLOCK + 1 + 2 * (LOCATION_GROUP_BLOCKS - 1)
        <= crate::location::LOCATION_RUNS_MAX as u64,
    "a read that is not aligned, and those around it"
);

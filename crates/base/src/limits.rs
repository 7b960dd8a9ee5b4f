//! Cluster-wide limits, with reason and arithmetic. Crates have their own in their `limits` module.

/// Bytes of a sector on media: what every medium here writes without reading (C3).
pub const SECTOR: usize = 4096;
/// Bytes of a sector's footer (C3).
pub const SECTOR_FOOTER: usize = 48;
/// Data bytes a sector carries at most (C3).
pub const SECTOR_DATA_MAX: usize = 4048;
const _: () = assert!(SECTOR_DATA_MAX + SECTOR_FOOTER == SECTOR);

/// Replicas of a chunk at most (`rep5`).
pub const REPLICAS_MAX: usize = 5;

/// Data bytes of one append at most: 256 sectors, 1 MiB on the wire and on disk. Longer writes
/// are split by the client, so that a small request never waits behind more than this.
pub const APPEND_SECTORS_MAX: usize = 256;
/// Data bytes of one append at most.
pub const APPEND_DATA_MAX: usize = APPEND_SECTORS_MAX * SECTOR_DATA_MAX;

/// Logical bytes of a chunk at most (C5: 1 MiB to 2 GiB).
pub const CHUNK_LEN_MAX: u64 = 2 << 30;
const _: () = assert!(CHUNK_LEN_MAX <= u32::MAX as u64);
const _: () = assert!((APPEND_DATA_MAX as u64) < CHUNK_LEN_MAX);

/// Bytes of a name in a directory at most, as POSIX file systems have it.
pub const NAME_MAX: usize = 255;
/// Bytes of a path at most.
pub const PATH_MAX: usize = 4096;

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

/// The part of a disk's capacity that is kept for the metadata of services, one in this many: with
/// all else full they can still note what is to be deleted.
pub const RESERVE_SHARE: u64 = 64;
/// Bytes of that part at least, on disks of which it is no more than an eighth. A segment whose
/// append failed is opened again every 5 s while its client writes; that takes some six units of
/// 16 KiB, which are given back after 65 s: 1.3 MiB for each block server, on each disk.
pub const RESERVE_BYTES_MIN: u64 = 16 << 20;
/// Bytes of that part at most.
pub const RESERVE_BYTES_MAX: u64 = 1 << 30;

/// Bytes of a disk of `capacity` bytes that users' bytes do not get. Chunk stores keep them, and
/// masters go by the same number.
pub fn reserve_bytes(capacity: u64) -> u64 {
    let least = RESERVE_BYTES_MIN.min(capacity / 8);
    (capacity / RESERVE_SHARE).clamp(least, RESERVE_BYTES_MAX)
}

/// Bytes of a name in a directory at most, as POSIX file systems have it.
pub const NAME_MAX: usize = 255;
/// Bytes of a path at most.
pub const PATH_MAX: usize = 4096;

//! Bounds of a chunkserver.

use std::time::Duration;

/// Bytes of appends under way at most; beyond it the answer is busy. A quarter of the default
/// buffer budget, so that reads and control always find buffers.
pub const APPEND_BYTES_INFLIGHT_MAX: usize = 128 << 20;
/// Bytes of reads under way at most.
pub const READ_BYTES_INFLIGHT_MAX: usize = 128 << 20;
const _: () = assert!(
    APPEND_BYTES_INFLIGHT_MAX + READ_BYTES_INFLIGHT_MAX <= runtime::limits::POOL_BYTES_DEFAULT / 2
);

/// Requests handed over between lanes and not yet taken at most; beyond it the answer is busy.
pub const FORWARDED_MAX: usize = 1024;

/// Bytes that one read answers at most: 256 sectors of data.
pub const READ_LEN_MAX: u32 = base::limits::APPEND_DATA_MAX as u32;

/// Replica copies under way at most; more wait at the master.
pub const REPLICATIONS_MAX: usize = 8;
/// Damaged replicas told in one heartbeat at most; the rest follows in the next.
pub const DAMAGED_PER_BEAT_MAX: usize = 256;
/// Damaged replicas remembered between heartbeats at most; scrub finds the rest again.
pub const DAMAGED_MAX: usize = 4096;
/// Masters that a chunkserver talks to at most.
pub const MASTERS_MAX: usize = 15;

/// Pause between two looks at a disk's superblock: how long a medium may be gone unseen. One
/// read of 4 KiB each time.
pub const DISK_WATCH_PAUSE: Duration = Duration::from_secs(1);

/// Answer of a master to a heartbeat or registration is awaited this long.
pub const BEAT_TIMEOUT: Duration = Duration::from_millis(500);
/// A read from another chunkserver for a copy is awaited this long.
pub const COPY_READ_TIMEOUT: Duration = Duration::from_secs(5);

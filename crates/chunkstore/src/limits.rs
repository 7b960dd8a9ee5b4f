//! Bounds of the chunk stores, with unit and arithmetic.

use base::limits::{APPEND_SECTORS_MAX, CHUNK_LEN_MAX, SECTOR};
use base::{KIB, MIB};
use runtime::Duration;

/// Allocation unit unless chosen at format time, bytes (C13).
pub const UNIT_DEFAULT: u32 = MIB as u32;
/// Allocation unit for many small files, bytes: a file of 10,000 bytes is three sectors and takes
/// one unit, 1.6 times its size.
pub const UNIT_SMALL: u32 = 16 * KIB as u32;
/// Smallest unit, bytes.
pub const UNIT_MIN: u32 = UNIT_SMALL;
/// Largest unit, bytes.
pub const UNIT_MAX: u32 = 16 * MIB as u32;

/// Appends in flight in one store at most; beyond it [`crate::StoreError::Busy`].
pub const APPENDS_INFLIGHT_MAX: usize = 4096;
/// Bytes of appends in flight in one store at most: a quarter of the default buffer budget.
pub const APPEND_BYTES_INFLIGHT_MAX: usize = 128 * MIB as usize;
/// Sectors in flight in one chunk at most, 8 MiB. Recovery relies on it: a sector that is this far
/// behind another proves that the other was acknowledged.
pub const CHUNK_SECTORS_INFLIGHT_MAX: u32 = 2048;
/// Device writes in flight for one chunk, at most; appends that come during them are grouped.
pub const CHUNK_WRITES_MAX: u32 = 16;
/// Sectors of one grouped device write at most: 1 MiB, so that a small one waits no longer.
pub const BATCH_SECTORS_MAX: u32 = APPEND_SECTORS_MAX as u32;
/// Fences, seals, deletions and forgettings in flight at most.
pub const ADMIN_INFLIGHT_MAX: usize = 1024;
/// Replicas open at once at most. 500 bytes each.
pub const OPEN_CHUNKS_MAX: usize = 1 << 17;

/// Bytes of sectors one read answers at most.
pub const READ_BYTES_MAX: usize = 4 * MIB as usize;
/// Reads of one store that its device is asked for at once, unless configured. More wait in the
/// store, where one whose caller has gone costs the device nothing: what a device has in its own
/// queue cannot be taken back. 32 is the queue of a SATA disk; at 80 us a read it is 400,000 reads
/// a second, more than one executor serves.
pub const READS_AT_DEVICE_MAX: usize = 32;
/// Device operations of one read under way at most: a read has one for each extent that it covers,
/// and extents double from one unit on, so that few reads have more. One that is given up stops
/// behind them.
pub const READ_PARTS_MAX: usize = 4;

/// Bytes that a chunk's next extent has at most, unless one append needs more.
pub const EXTENT_BYTES_MAX: u32 = 16 * MIB as u32;
/// Units are allocated ahead of a chunk only once it has this many sectors, so that small files
/// take one unit.
pub const AHEAD_MIN_SECTORS: u32 = 16;

/// Bytes of one copy of the log unless chosen at format time: 4096 group commits.
pub const LOG_BYTES_DEFAULT: u64 = 16 * MIB;
/// Bytes of one copy of the log at least: room for the reserve below.
pub const LOG_BYTES_MIN: u64 = 256 * KIB;
/// Blocks of one log write at most, 1 MiB.
pub const LOG_BATCH_BLOCKS_MAX: u64 = 256;
/// A checkpoint starts when one part in this many of the log is used since the last one.
pub const LOG_CHECKPOINT_SHARE: u64 = 4;
/// New allocations wait for a checkpoint when less than one part in this many of the log is
/// free; fences, seals and deletions go on: the reserve that lets deleting always work.
pub const LOG_RESERVE_SHARE: u64 = 8;

/// Tombstones kept at most unless chosen at format time.
pub const TOMBSTONES_MAX_DEFAULT: u32 = 1 << 17;
/// Bytes of offset maps of open chunks unless chosen at format time.
/// Appends of ever-changing sizes take a run each: 4 million of them.
pub const OPEN_MAP_BYTES_DEFAULT: u32 = 64 * MIB as u32;
/// Bytes of cached offset maps of sealed chunks unless configured.
pub const MAP_CACHE_BYTES_DEFAULT: usize = 32 * MIB as usize;
/// Runs that a sealed chunk keeps in its resident entry instead of in index sectors.
pub const INLINE_RUNS_MAX: usize = 2;
/// Runs of one chunk that writers make, at most: with this many its map fills an eighth of the
/// default budget. Appends in flight then come on top, and copies are bound by the budget only.
pub const RUNS_PER_CHUNK_MAX: usize = 1 << 19;

/// Bytes of the budget of `budget` bytes for offset maps of open chunks that are for repair alone:
/// the largest map that writers make, but no more than half.
pub const fn copy_map_bytes(budget: usize) -> usize {
    let largest =
        (RUNS_PER_CHUNK_MAX + CHUNK_SECTORS_INFLIGHT_MAX as usize) * crate::map::RUN_BYTES;
    if largest < budget / 2 { largest } else { budget / 2 }
}
const _: () = assert!(copy_map_bytes(OPEN_MAP_BYTES_DEFAULT as usize / 4) < 9 * MIB as usize);

/// Bytes by which the store file grows unless chosen at format time.
pub const GROW_STEP_DEFAULT: u64 = 64 * MIB;
/// Units are made ready ahead when less than one part in this many of a step is free and ready.
pub const READY_LOW_SHARE: u64 = 2;
/// Under steady appends the units kept ready grow up to this many times that.
pub const READY_GOAL_MAX: u32 = 16;
/// But never more than one part in this many of what is in use.
pub const READY_GOAL_SHARE: u32 = 4;
/// After this long without a new step, half as many are kept ready.
pub const READY_GOAL_KEPT: Duration = Duration::from_secs(10);
/// Bytes zeroed in one write.
pub const ZERO_WRITE_BYTES: usize = MIB as usize;
/// Pause between two zeroing writes while no append waits: at most 1 GiB/s per store.
pub const ZERO_PAUSE: Duration = Duration::from_millis(1);
/// After a refusal for want of space, growing is tried again no earlier than this.
pub const GROW_RETRY: Duration = Duration::from_secs(1);

/// Wait for a store that another process holds, and pause between two attempts.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// See [`LOCK_TIMEOUT`].
pub const LOCK_RETRY: Duration = Duration::from_millis(20);

/// Time for which a chunk's acknowledged length stays unlogged, at most (its known-durable bound).
pub const BOUND_INTERVAL: Duration = Duration::from_millis(500);

/// Entries that a checkpoint encodes before other tasks run, about 50 us.
pub const CHECKPOINT_SLICE: usize = 256;
/// Checkpoints in a row that do not read back before the medium counts as failed.
pub const CHECKPOINT_TRIES: u32 = 4;
/// Pause between two attempts that follow a failed one: a medium that does not answer for a
/// moment gets three of them.
pub const CHECKPOINT_PAUSE: Duration = Duration::from_millis(100);
/// Pauses before a write, or a read, is tried again that the system refused for want of room or memory: 361
/// ms in all, in which other tasks give memory back. A write that is refused after the last fails the store.
pub const WRITE_RETRIES: [Duration; 5] = [
    Duration::from_millis(1),
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
];
/// Open chunks whose tails are scanned at the same time during recovery.
pub const RECOVERY_DEPTH: usize = 32;
/// Sectors read at a time by that scan at first; later [`RECOVERY_READ_SECTORS`].
pub const RECOVERY_FIRST_SECTORS: u32 = 4;
/// Sectors read at a time by that scan.
pub const RECOVERY_READ_SECTORS: u32 = 64;

/// Wait before asking again for a buffer when the pool is spent.
pub const BUF_RETRY: Duration = Duration::from_millis(1);

const _: () = assert!(CHUNK_SECTORS_INFLIGHT_MAX as usize >= 2 * APPEND_SECTORS_MAX);
const _: () = assert!(APPEND_BYTES_INFLIGHT_MAX >= CHUNK_SECTORS_INFLIGHT_MAX as usize * SECTOR);
const _: () = assert!(CHUNK_LEN_MAX < u32::MAX as u64);
const _: () = assert!(READ_BYTES_MAX <= runtime::limits::BUF_MAX);
const _: () =
    assert!((UNIT_MIN as usize).is_multiple_of(SECTOR) && UNIT_MAX.is_multiple_of(UNIT_MIN));

/// Sectors of a cell up to which it is read whole: one operation of the device in place of two, for
/// 24 KiB at most.
pub const PIECES_ABOVE: u32 = 6;

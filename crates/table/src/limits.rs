//! Bounds of a table, with reason and arithmetic.

use base::limits::APPEND_DATA_MAX;
use base::{KIB, MIB};
use runtime::Duration;

/// Bytes of a key at most: an object's key of 1,024 bytes with each byte escaped to two, and 256 for
/// a service's parts around it.
pub const KEY_MAX: usize = 2304;
/// Bytes of a value at most. Larger things are files of their own, named in a value.
pub const VALUE_MAX: usize = 256 << 10;
/// Operations of one batch at most: `link_many` of a large volume's files fits.
pub const BATCH_OPS_MAX: usize = 65_536;
/// Bytes of one batch's record at most: four of the core's appends.
pub const BATCH_BYTES_MAX: usize = 4 << 20;

/// Bytes of a batch's data at most.
pub const BATCH_DATA_MAX: usize = MIB as usize;

/// Batches that wait for the log at most: 32 callers with 128 batches each.
pub const QUEUE_BATCHES_MAX: usize = 4096;
/// Bytes of batches that wait for the log at most: two of the largest.
pub const QUEUE_BYTES_MAX: usize = 8 << 20;
/// Bytes that one append of the log takes together at most: one append of the core. Also a
/// quarter of a memtable at most, or one batch, so that the two groups in flight add half.
pub const GROUP_BYTES_MAX: usize = APPEND_DATA_MAX;
/// Appends of the log in flight at most. One waits for the disks while the next travels; with
/// more, groups get smaller and cost more sectors each (`protocols.md` 3.4).
pub const GROUPS_INFLIGHT_MAX: usize = 2;

/// Requests under way from which on a second append starts beside a full one only, and group commit
/// waits: with fewer at a time, each is answered soon.
pub const GROUP_COMMIT_MIN: usize = 4;
/// Requests for which group commit waits at most: eight of 4 KiB cost nine sectors, and more would
/// hardly cost less.
pub const GROUP_COMMIT_FULL: usize = 8;
/// The longest wait of a group commit, for any time of an append: less than a slow disk's seek or two.
pub const GROUP_COMMIT_WAIT_MAX: Duration = Duration::from_millis(8);
/// Appends without such a wait, at most, after waits that brought too little.
pub const GROUP_COMMIT_SKIPS_MAX: u32 = 64;
/// Bytes of an append whose time is that of small ones, at most: twice what eight requests of 4 KiB
/// have, with their heads.
pub const GROUP_COMMIT_BYTES_MAX: usize = 2 * GROUP_COMMIT_FULL * (4 << 10) + (2 << 10);
/// Bytes that wait for which no append is held back: a group of small requests is full.
pub const GROUP_COMMIT_BYTES_FULL: usize = 64 << 10;

/// Memory of the table that takes writes, unless configured.
pub const MEMTABLE_BYTES_DEFAULT: usize = 8 << 20;
/// Smallest and largest configured memory of it; tests use small ones.
pub const MEMTABLE_BYTES: (usize, usize) = (4 << 10, 256 << 20);
/// Memory of changes of all tables of a process at least, where it is bounded at all: a few
/// batches of the usual size. Half of it may be held by tables that cannot flush.
pub const WRITE_MEMORY_MIN: usize = 64 << 10;
/// Full memtables that wait for their flush at most: one is written, one waits. The memory of a
/// table is (1 + 2) memtables, half of one beyond each, and its share of the cache.
pub const FROZEN_MAX: usize = 2;
/// A log is ended when it is this many times as long as the memtable may be, so that writing
/// one key again and again, which takes no memory, does not make recovery long.
pub const LOG_PER_MEMTABLE: u64 = 2;
/// Bytes at which a log that may hold data ends: smallest and largest configured. Recovery replays
/// this much at most, and skips data.
pub const DATA_LOG_BYTES: (u64, u64) = (16 * KIB, 1024 * MIB);
/// Bytes that such a log has at least, unless configured: as much as the smallest reserve of a disk.
pub const DATA_LOG_LEAST: u64 = 16 * MIB;
/// Beyond that, such a log has this part of the data that there is, one in so many. The reserve of a disk
/// is 1/64 of it, and half of that is for what collection moves: half of a log.
pub const DATA_LOG_SHARE: u64 = 256;
const _: () = assert!(DATA_LOG_LEAST <= base::limits::RESERVE_BYTES_MIN);
const _: () = assert!(DATA_LOG_SHARE >= base::limits::RESERVE_SHARE);
/// Memory of an entry beside its key and value: two boxes, a vector of versions, tree nodes.
pub const ENTRY_OVERHEAD: usize = 96;

/// Bytes of a data block, unless configured. One read of 4 to 16 KiB costs 60 to 100 us, most
/// of it the round trip; half of a 16 KiB block is wasted cache for point gets.
pub const BLOCK_BYTES_DEFAULT: usize = 8 << 10;
/// Smallest and largest configured data block.
pub const BLOCK_BYTES: (usize, usize) = (256, 64 << 10);
/// Bytes of an index block, at which a partition of a file ends: about 200 data blocks.
pub const INDEX_BYTES: usize = 8 << 10;
/// Bytes of a block before compression at most: all versions of the largest key and value
/// stay together, so a block may be larger than configured.
pub const BLOCK_RAW_MAX: usize = 64 << 20;
/// Bits of filter for each key: one check in 1,000 passes an absent key, so that over several runs
/// one look-up in 100 does.
pub const FILTER_BITS_PER_KEY: usize = 16;
/// Bits that a key sets in the filter.
pub const FILTER_PROBES: u32 = 6;

/// Bytes of a sorted file, unless configured: half a chunk of the core.
pub const FILE_BYTES_DEFAULT: u64 = 32 * MIB;
/// Smallest and largest configured sorted file.
pub const FILE_BYTES: (u64, u64) = (16 * KIB, 1024 * MIB);
/// Sorted files of a table at most: 512 GiB of the default size. Each has 2 to 3 KiB of memory
/// once it is read: about 40 partitions of 60 bytes, a name, the place of its chunks.
pub const FILES_MAX: usize = 16_384;
/// Sorted files of a table that is opened at most: the bound when keys had
/// [`KEY_MAX_BEFORE`] bytes at most. A table with more than [`FILES_MAX`] gets no further ones.
pub const FILES_READ_MAX: usize = 65_536;
/// Bytes of a key at most when a table had [`FILES_READ_MAX`] files at most.
pub const KEY_MAX_BEFORE: usize = 1024;
/// Bytes of a manifest's record at most. A file takes two keys and 64 bytes: 16,384 files of keys
/// of 2,304 bytes are 73 MiB, and 65,536 of keys of 1,024 bytes, as tables had before, 132 MiB.
pub const EDIT_BYTES_MAX: usize = 160 << 20;
/// Bytes of a manifest's edits at which it is rolled over, unless configured, and than four times
/// what it began with: about 5,000 flushes. Reading as much takes an opening milliseconds.
pub const MANIFEST_BYTES_DEFAULT: u64 = MIB;
/// Smallest and largest configured such length; tests use small ones.
pub const MANIFEST_BYTES: (u64, u64) = (KIB, 64 * MIB);

/// Runs of similar size that are merged together.
pub const RUNS_MERGE_MIN: usize = 4;
/// Runs merged in one step at most; each holds a block and its read-ahead.
pub const RUNS_MERGE_MAX: usize = 16;
/// Runs from which on writes are slowed down.
pub const RUNS_SLOW: usize = 12;
/// Runs from which on writes are refused until compaction has caught up.
pub const RUNS_STOP: usize = 24;
/// Bytes that a merge reads ahead of itself from each run.
pub const MERGE_READ_BYTES: usize = 256 << 10;
/// Bytes that are collected for one append of a sorted file.
pub const BUILD_APPEND_BYTES: usize = APPEND_DATA_MAX;

/// Bytes of the block cache, unless configured.
pub const CACHE_BYTES_DEFAULT: usize = 64 << 20;

/// Attempts to open a view of a table whose owner changes it at the same time, and the pause
/// between: one second, in which an owner's appends are shown by all replicas.
pub const VIEW_ATTEMPTS_MAX: u32 = 20;
/// See [`VIEW_ATTEMPTS_MAX`].
pub const VIEW_PAUSE: Duration = Duration::from_millis(50);

/// Names of one page of a listing.
pub const LIST_PAGE: usize = 1000;

const _: () = assert!(BATCH_BYTES_MAX >= KEY_MAX + VALUE_MAX + 64);
const _: () = assert!(QUEUE_BYTES_MAX >= 2 * BATCH_BYTES_MAX);
const _: () = assert!(QUEUE_BYTES_MAX > BATCH_BYTES_MAX + BATCH_DATA_MAX);
const _: () = assert!(RUNS_MERGE_MIN < RUNS_SLOW && RUNS_SLOW < RUNS_STOP);
const _: () = assert!(BLOCK_RAW_MAX > BLOCK_BYTES.1 + KEY_MAX + VALUE_MAX);
const _: () = assert!(EDIT_BYTES_MAX > FILES_MAX * (2 * KEY_MAX + 64));
const _: () = assert!(EDIT_BYTES_MAX > FILES_READ_MAX * (2 * KEY_MAX_BEFORE + 64));
const _: () = assert!(FILES_READ_MAX >= FILES_MAX && KEY_MAX >= KEY_MAX_BEFORE);

/// Bytes of an end of a key range at most: the successor of the longest key.
pub const BOUND_BYTES_MAX: usize = KEY_MAX + 1;
/// Ranges of keys in all bounds of a table's references at most. A fork adds one set of the ranges that
/// a child shows, and for each older set what both have: a table of objects has 8 sections, so some 100
/// forks fit in which no file was rewritten. They take 19 MiB of a manifest's record.
pub const BOUNDS_RANGES_MAX: usize = 4096;
const _: () = assert!(
    EDIT_BYTES_MAX
        > FILES_READ_MAX * (2 * KEY_MAX_BEFORE + 64)
            + BOUNDS_RANGES_MAX * 2 * (BOUND_BYTES_MAX + 3)
);
/// Attempts of a round of links beside merges and flushes, which remove files.
pub const FORK_ATTEMPTS_MAX: u32 = 8;

/// Files that one batch link gives another name: as many look-ups of masters go at once.
pub const LINK_BATCH: usize = 128;

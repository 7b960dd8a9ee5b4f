//! Bounds of a segment's device, with reason and arithmetic.

use base::MIB;
use base::limits::APPEND_DATA_MAX;
pub use block_volume::limits::SEGMENT_BYTES_MAX;
use block_volume::record::RECORD;
use runtime::Duration;

/// Bytes of one read or write at most: what one buffer of the pool takes.
pub const REQUEST_BYTES_MAX: u64 = runtime::limits::BUF_MAX as u64;

/// Bytes of a DataFile, unless configured (B2).
pub const FILE_BYTES_DEFAULT: u64 = 512 * MIB;

/// Bytes of records that one append takes together at most: one append of the core.
pub const APPEND_BYTES_MAX: usize = APPEND_DATA_MAX;
/// Appends in flight while little waits: one waits for the disks while the next travels. With
/// more, appends get smaller and cost more sectors each (`protocols.md` 3.4).
pub const APPENDS_INFLIGHT_SMALL: usize = 2;
/// Bytes in flight beside which the second such append starts: two records, so that two or three
/// requests at a time do not wait for each other. When more come at a time, they are packed while
/// earlier ones are written: as many get done, in fewer appends of fewer sectors.
pub const APPEND_BYTES_SHARED: usize = 2 * RECORD;
/// Waiting bytes at which the second starts in any case: eight records cost nine sectors, and more
/// would hardly cost less.
pub const APPEND_BYTES_PACKED: usize = 8 * RECORD;
/// Appends in flight at most: eight of the largest are the window of the core's writer.
pub const APPENDS_INFLIGHT_MAX: usize = 8;
/// Bytes of requests that wait at which more appends than [`APPENDS_INFLIGHT_SMALL`] start.
pub const APPEND_BYTES_LARGE: usize = 128 << 10;
/// Bytes of changes that wait for their append at most; further ones wait before they take
/// memory: sixteen requests of the largest size.
pub const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Bytes that a change without data counts in the queue.
pub const QUEUE_BYTES_MIN: usize = 64;

/// Bytes of acknowledged records kept in memory beside the index, unless configured. A replica
/// serves an open chunk only up to the committed length that it was sent (`protocols.md` 1.6). So
/// the last appends are read from here: the window of the writer, 8 appends of the largest size.
pub const RECENT_BYTES_DEFAULT: usize = APPENDS_INFLIGHT_MAX * APPEND_BYTES_MAX;

/// Bytes of changes until sorted files of the tables have them, and of the last appends, for all
/// segments of a process, unless configured. At a third of three quarters of it, 64 MiB, tables
/// begin to be flushed before they are full: eight busy segments reach that. The appends of the
/// last quarter are 16,000 of 4 KiB.
pub const WRITE_MEMORY_DEFAULT: usize = 256 << 20;
/// Such memory at least.
pub const WRITE_MEMORY_MIN: usize = 256 << 10;

/// Time for which writes are refused after one found no room; then one tries again.
pub const FULL_PAUSE: Duration = Duration::from_secs(5);

/// Blocks of an index page: 2 MiB of a segment. A whole page has 4 KiB in memory and up to 4 KiB
/// in the table: one data block.
pub const PAGE_BLOCKS: u32 = 512;
const _: () =
    assert!((PAGE_BLOCKS as u64).is_multiple_of(block_volume::limits::LOCATION_GROUP_BLOCKS));
/// Pages that one record clears at most: 2 GiB. A longer trim is several records, as a write is: it takes no
/// longer than other changes in one step.
pub const CLEAR_PAGES_MAX: u32 = 1024;
/// A page that is cleared as a whole counts as so many blocks that are set: it is found, and its blocks' files
/// are counted.
pub const CLEAR_PAGE_VISITS: u64 = 16;
/// Blocks that the index sets in one step: the longest record of a trim. Other tasks run between two steps.
pub const STEP_VISITS: u64 = CLEAR_PAGES_MAX as u64 * CLEAR_PAGE_VISITS;
/// Memory of a page beside its entries: the struct, a tree node's share, an allocation.
pub const PAGE_OVERHEAD: usize = 144;
/// Bytes of the indexes in memory, unless configured: 32 million blocks (128 GiB) of whole pages.
pub const INDEX_MEMORY_DEFAULT: usize = 256 << 20;
/// Smallest and largest configured such memory.
pub const INDEX_MEMORY: (usize, usize) = (16 << 10, 64 << 30);

/// Updates of one TxnFile batch at most: 25 bytes each at most, within a table's value.
pub const TXN_UPDATES_MAX: usize = 8192;
/// Watermarks of one TxnFile batch at most: 15 bytes each at most. An instance that ended leaves a
/// few files open; one that fails soon after each opening leaves one more each time.
pub const TXN_MARKS_MAX: usize = 1024;
/// Updates at which a batch is written, unless configured: about two sectors.
pub const TXN_UPDATES_DEFAULT: usize = 512;
/// Wait of an update for its batch. Recovery scans the tail that is written in this time and the
/// time of a batch's append.
pub const TXN_WAIT_DEFAULT: Duration = Duration::from_millis(100);
/// Updates that wait for the TxnFile at which writes wait for it: four batches of the largest.
pub const TXN_BACKLOG_MAX: usize = 4 * TXN_UPDATES_MAX;
/// Updates in the TxnFile at which dirty pages are written, unless configured: 1 GiB of random 4
/// KiB writes, 3 to 6 MB to replay.
pub const CHECKPOINT_UPDATES_DEFAULT: u64 = 256 << 10;
/// Pages that one batch of a checkpoint writes: 128 KiB, eight sectors of amplification at most
/// beside what the pages need.
pub const CHECKPOINT_PAGES: usize = 32;

/// Pages that one call for block status reads, at most: 2 GiB.
pub const PIECES_PAGES_MAX: u32 = 1024;
/// Reads of one request in flight at most.
pub const READS_INFLIGHT: usize = 16;
/// Bytes of one read of a tail in recovery.
pub const SCAN_BYTES: usize = 4 << 20;

/// A cut that was released and that no clone links is given up this long after it was released
/// last, or linked last. A caller with many segments to link releases them again in that time.
pub const CUT_KEEP: Duration = Duration::from_secs(60);
/// Between two checks of a cut that is linked for longer.
pub const CUT_LOOK: Duration = Duration::from_secs(1);
/// Bytes of rows that one batch of a linked directory's table gets.
pub const LINK_ROWS_BYTES: usize = 256 << 10;
/// Files that are sealed at a time before they are linked.
pub const SEALS_INFLIGHT: usize = 32;

/// Pages of the index in one piece of a check: 16 MiB to read at most.
pub const CHECK_PAGES: u64 = 8;
/// Blocks that a check or scrub reads at once: 256 KiB.
pub const SCRUB_BLOCKS: usize = 64;
/// Time in which a DataFile may exist without a row in the table, or the other way round, while it
/// is made or removed: many times what it takes.
pub const SWEEP_TIME: Duration = Duration::from_secs(2);
/// From an opening to the begin of its first scrub: the work after a takeover has room first.
pub const SCRUB_DELAY: Duration = Duration::from_secs(30);
/// Interval at which the progress of a scrub is stored: a takeover repeats that much.
pub const SCRUB_SAVE: Duration = Duration::from_secs(60);
/// Bytes that the scrubs of a process's segments read in a second, unless configured: the paper's
/// cap (B14), 12 TiB in 15 days.
pub const SCRUB_RATE_DEFAULT: u64 = 10 * MIB;
/// Between the begins of two scrubs of a segment, unless configured (B14).
pub const SCRUB_PERIOD_DEFAULT: Duration = Duration::from_secs(15 * 24 * 3600);

/// Classes of lifetime that collection keeps apart: each has a DataFile open.
pub const COLLECT_CLASSES: usize = 3;
/// Bytes that collection reads, and appends, at once: a quarter of the largest append.
pub const COLLECT_APPEND_BYTES: usize = 63 * RECORD;
/// Bytes that collection appends at once to a file in an erasure code: the largest append, whose rows
/// have whole sectors in each fragment. A quarter of it would leave a sector of nine half empty with
/// eight data fragments.
pub const COLLECT_ROW_BYTES: usize = APPEND_BYTES_MAX;
/// Pause after a collection has failed, at first and at most: doubled each time.
pub const COLLECT_RETRY: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(60));
/// A DataFile with a damaged record is set aside for this long: the core's scrub and repair restore
/// a replica within it, or nothing does.
pub const COLLECT_ASIDE_DAMAGED: Duration = Duration::from_secs(3600);
/// Records that collection processes before others have a turn: 10 us each when packed.
pub const COLLECT_SLICE: u32 = 8;
/// Garbage at which collection begins, in percent of all blocks, unless configured: 80 %
/// utilisation.
pub const GARBAGE_PERCENT_DEFAULT: u32 = 20;
/// Bytes of DataFiles that collection reads in a second, unless configured or room is short.
pub const COLLECT_RATE_DEFAULT: u64 = 64 * MIB;

const _: () =
    assert!(COLLECT_APPEND_BYTES >= 2 * RECORD && COLLECT_APPEND_BYTES <= APPEND_BYTES_MAX);
const _: () = assert!(REQUEST_BYTES_MAX as usize * 2 <= QUEUE_BYTES_MAX);
const _: () = assert!(TXN_UPDATES_MAX * 26 + TXN_MARKS_MAX * 15 + 32 <= table::limits::VALUE_MAX);
const _: () = assert!(APPEND_BYTES_MAX >= RECORD);
const _: () = assert!(QUEUE_BYTES_MAX < u32::MAX as usize);
const _: () = assert!(WRITE_MEMORY_MIN / 4 * 3 >= table::limits::WRITE_MEMORY_MIN);
const _: () = assert!(2 * APPEND_BYTES_PACKED <= table::limits::GROUP_COMMIT_BYTES_MAX);
const _: () = assert!(APPEND_BYTES_PACKED == table::limits::GROUP_COMMIT_FULL * RECORD);

//! Bounds of the consensus module.

use std::time::Duration;

/// Bytes of one command at most. A metadata operation is a few hundred bytes; a batch of them
/// (`link_many`) stays below this.
pub const COMMAND_LEN_MAX: usize = 1 << 20;
/// Proposals of one group that wait for their commit at most.
pub const PROPOSALS_INFLIGHT_MAX: usize = 4096;
/// Bytes of the proposals of one group that wait for their commit at most: 16 of the largest.
pub const PROPOSAL_BYTES_MAX: usize = 16 << 20;
/// Read-index requests of one group that wait at most.
pub const READS_INFLIGHT_MAX: usize = 4096;

/// A voter stands for election so long after the one before it: several times what an election takes,
/// which is two rounds of messages and a durable write.
pub const ELECTION_TURN: Duration = Duration::from_millis(30);

/// Looks whether a successor has all entries, before leadership is handed over whether or not it has:
/// 50 ms together.
pub const HAND_OVER_LOOKS: u32 = 25;
/// Pause between two of them.
pub const HAND_OVER_LOOK: Duration = Duration::from_millis(2);

/// Unit of writes to a log device, in bytes.
pub const LOG_BLOCK: usize = 4096;
/// Bytes of records in one group-committed write, reached before the last record is added:
/// a larger write gains no throughput and delays its first record.
pub const LOG_BATCH_BYTES: usize = 512 << 10;
/// Bytes of records that wait for the log device at most; beyond it appends wait.
pub const LOG_QUEUE_BYTES_MAX: usize = 32 << 20;
/// Bytes of one segment file of a log.
pub const LOG_SEGMENT_LEN: u64 = 8 << 20;
/// Idle time after which the known-durable bound is written. It separates the last acknowledged
/// record from a torn tail.
pub const LOG_MARK_AFTER: Duration = Duration::from_millis(20);

/// Pause before a busy store is asked again.
pub const STORE_WAIT: Duration = Duration::from_millis(1);
/// Attempts at a busy store, or for a buffer, before the member gives up: 5 s.
pub const STORE_WAITS_MAX: u32 = 5_000;
/// Chunks listed at a time.
pub const STORE_CHUNKS_LISTED: usize = 256;

/// Bytes of entries in one AppendEntries message, reached before the last entry is added.
pub const APPEND_BYTES: usize = 512 << 10;
/// Entries in one AppendEntries message at most.
pub const APPEND_ENTRIES_MAX: u64 = 1024;
/// AppendEntries messages with entries that a member handles at once; more wait. A leader has
/// one under way, the others are late ones. (openraft 0.10.0-alpha.37 could have several under
/// way, and panics when one that was overtaken is answered behind the other: its
/// `progress::entry::update` takes that for a log that went back.)
pub const APPENDS_TOGETHER: u32 = 64;
/// Bytes of a snapshot in one message, and of one access to a run.
pub const PIECE_BYTES: usize = 512 << 10;
/// Bytes of one run of a checkpoint at most.
pub const SNAPSHOT_LEN_MAX: u64 = RUN_CHUNK_LEN * RUN_PARTS_MAX;

/// Rows of a state that are encoded before other tasks run: some 500 us.
pub const SLICE_ROWS_MAX: usize = 512;
/// Bytes of rows after which others run.
pub const SLICE_BYTES_MAX: usize = 256 << 10;
/// Rows of a checkpoint that are loaded before other tasks run: some 500 us.
pub const LOAD_ROWS: usize = 512;
/// Rows of an old state that are dropped before other tasks run.
pub const SHED_ROWS: usize = 2048;
/// Bytes of a row's value at most: the stream of a file of a million chunks.
pub const ROW_VALUE_LEN_MAX: usize = 256 << 20;
/// Bytes that merging runs gives out at a time.
pub const MERGE_OUT_BYTES: usize = 512 << 10;
/// Runs of a size that are merged at least: fewer, and rows are rewritten more often.
pub const MERGE_MIN_RUNS: usize = 4;
/// Bytes of one chunk of a run.
pub const RUN_CHUNK_LEN: u64 = 1 << 30;
/// Chunks of a run at most: 64 GiB.
pub const RUN_PARTS_MAX: u64 = 64;

const _: () = assert!(PROPOSAL_BYTES_MAX >= 16 * COMMAND_LEN_MAX);
const _: () = assert!(LOG_QUEUE_BYTES_MAX >= PROPOSAL_BYTES_MAX);
/// A batch of one entry on top of a nearly full one, with framing, fits a segment and a buffer.
const _: () = assert!(LOG_BATCH_BYTES + 2 * COMMAND_LEN_MAX <= LOG_SEGMENT_LEN as usize);
const _: () = assert!(LOG_BATCH_BYTES + 2 * COMMAND_LEN_MAX <= runtime::limits::BUF_MAX);
const _: () = assert!(LOG_SEGMENT_LEN.is_multiple_of(LOG_BLOCK as u64));
const _: () = assert!(RUN_CHUNK_LEN <= base::limits::CHUNK_LEN_MAX);
const _: () = assert!(RUN_CHUNK_LEN.is_multiple_of(4096));

/// Client sessions in one reply table at most.
pub const SESSIONS_MAX: usize = 65_536;
/// Mutations of one session that are not acknowledged at most.
pub const SESSION_REPLIES_MAX: u64 = 1024;
/// Bytes of all answers in one reply table at most.
pub const REPLY_BYTES_MAX: usize = 64 << 20;

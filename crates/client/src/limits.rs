//! Bounds of the client, with reason and arithmetic.

use base::limits::{APPEND_DATA_MAX, APPEND_SECTORS_MAX, CHUNK_LEN_MAX, SECTOR};
use base::{KIB, MIB};
use runtime::Duration;
use wire::control::limits::SESSION_IDLE;

/// Appends of one writer that wait for their acknowledgement at most, unless configured: depth
/// 32 of eight callers.
pub const APPENDS_INFLIGHT_DEFAULT: u32 = 256;
/// Appends of one writer in flight, whatever is configured.
pub const APPENDS_INFLIGHT_MAX: u32 = 4096;

/// Bytes of sectors of one writer in flight at most, unless configured: 8 appends of the
/// largest size. A disk at 1 GB/s takes 8 ms for them, several times a durable write; one link
/// takes 14 MiB before it is busy.
pub const WINDOW_BYTES_DEFAULT: u32 = 8 << 20;
/// Smallest window: one append of the largest size.
pub const WINDOW_BYTES_MIN: u32 = (APPEND_SECTORS_MAX * SECTOR) as u32;

/// Longest budget of an operation on the masters: half of the time for which masters remember an
/// answer. The last attempt begins within it, and its request is dropped by its deadline.
pub const CONTROL_BUDGET_MAX: Duration = Duration::from_secs(150);
const _: () = assert!(2 * CONTROL_BUDGET_MAX.as_secs() <= SESSION_IDLE.as_secs());

/// Questions in a row of one opening or seal that follow an epoch which the file has no more, at most:
/// for each of them another client took the next one.
pub const EPOCH_TRIES_MAX: u32 = 64;

/// Bytes of sectors that one writer may owe to late replicas (C14, k), unless configured: as much as
/// its window, so that a replica which is one window late is chased.
pub const CHASE_BYTES_DEFAULT: u32 = WINDOW_BYTES_DEFAULT;
/// Bytes of sectors that the writers of a client may owe together, unless configured: an eighth of
/// the buffer pool of 512 MiB.
pub const CHASE_BYTES_ALL_DEFAULT: u64 = 64 << 20;
/// Ended chunks that one writer owes bytes of. More, and the oldest is left to the masters.
pub const DEBTS_MAX: usize = 4;
/// Thin chunks that the writers of a client end in a second: each end is a command of the masters,
/// and a server that fails makes the chunks of all of them thin at once.
pub const THIN_ENDS_PER_S_MAX: u32 = 200;

/// Least wait of an append for copies that its acknowledgement lacks, before the chunk ends (B15).
pub const BLOCKED_MIN: Duration = Duration::from_millis(10);
/// And then for this, in which answers are taken that came while this process stood still.
pub const BLOCKED_LOOK: Duration = Duration::from_millis(2);
/// The wait is so many times what one in a thousand appends to healthy disks exceed.
pub const BLOCKED_TIMES: u32 = 4;
/// Chunks that the writers of a client end so in a second. Beyond that it is no server's fault.
pub const BLOCKED_ENDS_PER_S_MAX: u32 = 10;

/// Length at which a writer ends a chunk, unless configured. The p95 of the paper's block
/// store (C5); one chunk is repaired in a second at 64 MB/s, the switch between chunks drains
/// the window once per 64 MiB (about 1 % of the time at 1 GB/s), and 10 TB are 160,000 chunks.
pub const CHUNK_LEN_DEFAULT: u32 = 64 << 20;
/// Smallest such length (C5).
pub const CHUNK_LEN_MIN: u32 = 1 << 20;

/// Spare chunks that a writer holds, unless configured: one to switch to at once, one more for
/// the time until the master's answer to that switch.
pub const SPARES_DEFAULT: u8 = 2;
/// Spare chunks at most (the stream service's bound).
pub const SPARES_MAX: u8 = 4;

/// Servers that a writer remembers as failed.
pub const AVOID_MAX: usize = 16;

/// Chunks in the chunk-information cache (C6), unless configured: about 200 bytes each, 13 MB.
pub const CACHE_CHUNKS_DEFAULT: usize = 65_536;
/// Chunks that one look-up brings (C8), unless configured: the next GiB of a large file.
pub const PREFETCH_DEFAULT: u32 = 16;
/// Chunks that one look-up brings at most (the stream service's bound).
pub const PREFETCH_MAX: u32 = 256;
/// Files of one batched look-up (C7, the stream service's bound).
pub const LOCATE_BATCH_MAX: usize = 64;

/// Bytes of one read request at most.
pub const READ_PIECE: u32 = APPEND_DATA_MAX as u32;
/// Read requests of one `read_at` in flight at most: 8 MiB of buffers.
pub const READ_DEPTH: usize = 8;
/// Bytes of a read of a coded chunk up to which the fragments that hold them are asked, for their blocks
/// alone; a longer one brings whole cells of as many fragments as give a row.
pub const READ_SHARES_MAX: u32 = 256 << 10;
/// Coded chunks of which a reader remembers a row: 24 bytes each.
pub const ROWS_SEEN_MAX: usize = 8;
/// Bytes of one `read_at` at most.
pub const READ_MAX: usize = 256 << 20;

/// Names looked up in parallel by one path resolution (C4).
pub const RESOLVE_PARALLEL_MAX: usize = 16;
/// Symbolic links that one path resolution follows, as Linux has it.
pub const SYMLINKS_MAX: u32 = 40;
/// Changes of one client session in flight in one group of masters: bounds the group's reply table.
pub const CHANGES_INFLIGHT_MAX: usize = 256;
/// Changes of one session that a group takes, counted from the oldest one without an answer: the bound of
/// its reply table. Further ones wait here without a number: with it a change says which answers are there.
pub const CHANGES_WINDOW: u64 = 1024;
const _: () = assert!(CHANGES_INFLIGHT_MAX < CHANGES_WINDOW as usize);
/// Names of one page of a listing (the namespace service's bound).
pub const LIST_MAX: u32 = 1000;
/// Files and directories that a tree removal works on at once.
pub const REMOVE_PARALLEL: usize = 32;
/// Bytes of a symbolic link's target.
pub const TARGET_MAX: usize = 4095;

/// Of the buffer pool one in so many bytes is left to connections by the sectors of appends. A connection
/// that broke is made again with memory of the pool, 64 KiB, and appends that wait for it give none back.
/// Of 512 MiB that is room for 512 connections.
pub const CONNECTIONS_SHARE: usize = 16;
/// As much again is left to appends that are laid out in another chunk while they are sent, but not by one
/// whose writer has no other to be acknowledged.
pub const APPENDS_SHARE: usize = CONNECTIONS_SHARE / 2;

/// Records of latencies of one client at most: 4,096 x (450 bytes of counts, 48 of key, 40 of state)
/// = 2.2 MB. 680 disks of which every class of reads and appends is used.
pub const HEALTH_RECORDS_MAX: usize = 4096;
/// Calls under way whose beginnings a record has, at most: 16 bytes each. The oldest of them is the
/// oldest of all, unless so many end in another order.
pub const HEALTH_CALLS_MAX: usize = 64;
/// A master that leaves requests without an answer for so long is pinged: several times a commit.
pub const PING_AFTER: Duration = Duration::from_millis(50);
/// One that does not answer a ping in this time does not answer requests either, and another master is
/// asked to relay them: that costs a hop, so that little is lost by an error.
pub const PING_TIMEOUT: Duration = Duration::from_millis(100);
/// A doubt about the holder of a lock is said in this time or not at all: two requests to a master.
pub const DOUBT_MAX: Duration = Duration::from_millis(500);
/// A timer that is so late shows that this process stood still.
pub const OWN_PAUSE: Duration = Duration::from_millis(20);
/// One attempt at an operator's order: masters look at all chunks for it.
pub const ORDER_ATTEMPT: Duration = Duration::from_secs(20);
/// Pause between two looks at a leader whose requests another master relays.
pub const LEADER_LOOK: Duration = Duration::from_secs(1);

/// Time after which a latency counts half: a disk that has recovered is like the others after a few.
pub const HEALTH_HALVING: Duration = Duration::from_secs(5);

/// The same of the latencies that a disk is listed for (C17): it is judged by about the last second.
pub const HEALTH_HALVING_RECENT: Duration = Duration::from_millis(500);

/// Interval at which disks are judged (C17, `protocols-tail.md` 10.5), while there are calls.
pub const LIST_INTERVAL: Duration = Duration::from_millis(20);
/// A client without a call for so long judges none: what it has seen has been judged by then, and a
/// process with one call a second is to sleep between.
pub const LIST_IDLE: Duration = Duration::from_millis(100);
/// Latency below which no disk is slow, whatever others have.
pub const SLOW_MIN: Duration = Duration::from_millis(5);
/// Latency in thousandths of its peers' from which on a disk may count as slow ...
pub const SLOW_FROM_PER_MILLE: u64 = 3000;
/// ... and from which on it does.
pub const SLOW_SURELY_PER_MILLE: u64 = 8000;
/// Shortest stay in a list. A disk that has come back is not slow again for as long.
pub const LIST_STAY_MIN: Duration = Duration::from_secs(2);
/// A disk that comes back within this time of the last time stays twice as long, up to
/// [`LIST_STAY_MAX`]. One that serves no probe for as long is forgotten.
pub const LIST_MEMORY: Duration = Duration::from_secs(600);
/// See [`LIST_MEMORY`].
pub const LIST_STAY_MAX: Duration = Duration::from_secs(60);
/// Disks whose return is remembered.
pub const LIST_RETURNS_MAX: usize = 1024;
/// When half of the servers seem slow at once, it is this process or its network: nothing is listed
/// for so long.
pub const LIST_DOUBT: Duration = Duration::from_secs(1);
/// Servers from which on half of them are too many at once.
pub const LIST_DOUBT_SERVERS: usize = 4;
/// One server of so many may be listed, and one always.
pub const LIST_SERVERS_SHARE: usize = 3;
/// A suspect that has not answered its probe for so long is slow: many times a durable write.
pub const SUSPECT_AGE: Duration = Duration::from_millis(100);
/// Calls of a disk that were given up, with none answered between, from which on it is probed. One in
/// fifty calls is given up by the rule that makes backup reads ([`BACKUP_DELAY_MIN`]), so that one says
/// nothing of a healthy disk, and two in a row are one in 2,500.
pub const SILENT_CALLS: u32 = 2;
/// And time without an answer since the first of them: more than twice the longest wait before another
/// is asked. A healthy disk with many calls has answered one by then, and is not probed.
pub const SILENT_AGE: Duration = Duration::from_millis(50);
const _: () = assert!(2 * BACKUP_DELAY_MAX.as_micros() <= SILENT_AGE.as_micros());
const _: () = assert!(SILENT_AGE.as_micros() < LIST_IDLE.as_micros());
/// Addresses of which the server is remembered: 40 bytes each.
pub const LIST_ADDRESSES_MAX: usize = 16_384;
/// Disks that are looked at because a call failed, at most.
pub const SUSPECTS_MAX: usize = 64;
/// Pause between two probes of a listed disk.
pub const LIST_PROBE_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a probe that was refused at once; then it is sent again.
pub const LIST_PROBE_AGAIN: Duration = Duration::from_millis(50);
/// A probe without an answer in this time has failed: longer than a chunkserver waits for its disk.
pub const LIST_PROBE_TIMEOUT: Duration = Duration::from_millis(700);
/// Good probes in a row after which a slow disk is good.
pub const LIST_PROBES_GOOD: u8 = 3;
/// Pause between two questions to masters who is abnormal (C28), a fifth less to a fifth more.
pub const PUSHED_POLL: Duration = Duration::from_secs(1);
/// The same of a client that has called no chunkserver for [`PUSHED_IDLE`]: its questions are most of what
/// an idle process does, and two fit into [`PUSHED_LIFE`].
pub const PUSHED_POLL_IDLE: Duration = Duration::from_secs(2);
/// See [`PUSHED_POLL_IDLE`].
pub const PUSHED_IDLE: Duration = Duration::from_secs(5);
/// The same while masters of an earlier version answer.
pub const PUSHED_UNKNOWN: Duration = Duration::from_secs(30);
/// Such a question is given up after this time: two attempts, and a relay.
pub const PUSHED_ATTEMPT: Duration = Duration::from_millis(1500);
/// What masters have pushed ends when they do not renew it for so long: more than an election, and two
/// questions that were lost.
pub const PUSHED_LIFE: Duration = Duration::from_secs(5);
/// Damaged or missing replicas that reads remember, to ask them last.
pub const BAD_REPLICAS_MAX: usize = 1024;

/// Least wait for a replica before another is asked too (C16): several times a read from flash.
pub const BACKUP_DELAY_MIN: Duration = Duration::from_micros(500);
/// Longest such wait, where 2 % of all reads take longer: twice a seek and a turn of a disk.
pub const BACKUP_DELAY_MAX: Duration = Duration::from_millis(20);
/// Such a wait while too little is known of the class.
pub const BACKUP_DELAY_UNKNOWN: Duration = Duration::from_millis(5);
/// Ended reads of a class from which on its latencies are known: the p98 has one above it.
pub const BACKUP_SAMPLES_MIN: u64 = 64;
/// Shortest wait after which a replica counts as failed for this read, and another is asked whatever
/// the budget of backup reads has.
pub const READ_FAILED_MIN: Duration = Duration::from_millis(10);
/// Longest such wait: with the next replica's answer, below what a read may stall.
pub const READ_FAILED_MAX: Duration = Duration::from_millis(100);
/// One read in so many, and one byte in so many, may be a backup read: 5 %. More would add load to
/// disks that are slow because of load.
pub const BACKUP_ONE_IN: u64 = 20;
/// Backup reads that may be sent at once after a time without any.
pub const BACKUP_BURST: u64 = 64;
/// Bytes of such: eight of the longest reads.
pub const BACKUP_BURST_BYTES: u64 = 8 * MIB;
const _: () = assert!(BACKUP_BURST_BYTES >= READ_PIECE as u64);
const _: () = assert!(BACKUP_DELAY_MIN.as_micros() <= BACKUP_DELAY_UNKNOWN.as_micros());
const _: () = assert!(BACKUP_DELAY_UNKNOWN.as_micros() <= BACKUP_DELAY_MAX.as_micros());
const _: () = assert!(READ_FAILED_MIN.as_micros() <= READ_FAILED_MAX.as_micros());
const _: () = assert!(BACKUP_DELAY_MAX.as_micros() <= READ_FAILED_MAX.as_micros());

/// Longest pause between two questions for a chunk in the other form (copies or a code), while there is
/// none: the cluster may have too few failure domains for the code.
pub const FORM_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Reported failures remembered, so that each is reported once a second at most.
pub const REPORTS_MAX: usize = 1024;
/// Reports in a second that a server is not reached, at most: masters need two to believe it of a
/// server, and believe it of three.
pub const UNREACHED_REPORTS_MAX: usize = 8;

const _: () = assert!(CHUNK_LEN_MIN as usize >= APPEND_DATA_MAX);
const _: () = assert!(CHUNK_LEN_DEFAULT as u64 <= CHUNK_LEN_MAX);
const _: () = assert!(CHUNK_LEN_MIN as u64 == MIB && MIB == KIB * KIB);
const _: () = assert!(WINDOW_BYTES_MIN <= WINDOW_BYTES_DEFAULT);
const _: () = assert!(APPENDS_INFLIGHT_DEFAULT <= APPENDS_INFLIGHT_MAX);
const _: () = assert!(SPARES_DEFAULT <= SPARES_MAX && PREFETCH_DEFAULT <= PREFETCH_MAX);

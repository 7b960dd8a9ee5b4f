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

/// Requests handed over between shards and not yet taken at most; beyond it the answer is busy.
pub const FORWARDED_MAX: usize = 1024;

/// Bytes that one read answers at most: 256 sectors of data.
pub const READ_LEN_MAX: u32 = base::limits::APPEND_DATA_MAX as u32;

/// Replica copies under way at most; more wait at the master. Those for which recovery waits, and so an
/// opening, may be so many.
pub const REPLICATIONS_MAX: usize = 16;
/// Copies under way at most, with which one of a chunk that survives no further loss begins.
pub const REPLICATIONS_URGENT_MAX: usize = 12;
/// Copies under way at most, with which any other begins: at the least share of a disk each may take
/// minutes.
pub const REPLICATIONS_SHARED_MAX: usize = 8;
const _: () = assert!(REPLICATIONS_SHARED_MAX < REPLICATIONS_URGENT_MAX);
const _: () = assert!(REPLICATIONS_URGENT_MAX < REPLICATIONS_MAX);
/// Conversions under way at most: each has up to 8 MiB of rows in memory.
pub const CONVERSIONS_MAX: usize = 4;
/// Checks of whole rows under way at most: each has a row with its parity, and as much decoded, in memory.
pub const ROW_CHECKS_MAX: usize = 2;
/// Replicas that were verified for masters that had given up, remembered at most, and for how long:
/// many times the longest pause of a master between two orders (5 s).
pub const UNHEARD_MAX: usize = 1024;
/// See [`UNHEARD_MAX`].
pub const UNHEARD_LIFE: Duration = Duration::from_secs(300);
/// Damaged replicas in one heartbeat, at most; the rest follows in the next.
pub const DAMAGED_PER_HEARTBEAT_MAX: usize = 256;
/// Damaged replicas remembered at most, until they are gone or whole. Beyond it those that masters
/// have taken are forgotten first; scrub finds them again.
pub const DAMAGED_MAX: usize = 4096;
/// A damaged replica is reported to all masters again this long after the first one has taken the
/// report: masters keep a bounded number of reports, and a leader may end before it has acted.
/// Several elections, and longer than a copy takes.
pub const DAMAGED_REPEAT: Duration = Duration::from_secs(60);
/// Quiet replicas reported in one heartbeat at most, and remembered until then; the watch finds the
/// rest again.
pub const QUIET_PER_HEARTBEAT_MAX: usize = 256;
/// See [`QUIET_PER_HEARTBEAT_MAX`].
pub const QUIET_MAX: usize = 1024;
/// Pause between two pages of the list that the watch for quiet writers goes through: a million
/// replicas take 4 s and less than 1 % of a core.
pub const QUIET_PAGE_PAUSE: Duration = Duration::from_millis(1);
/// Masters that a chunkserver sends heartbeats to, at most.
pub const MASTERS_MAX: usize = 15;
/// A master that is not configured, and that no answer has named for this long, gets no more
/// heartbeats. Masters' lists differ for a moment while one joins or leaves.
pub const MASTER_KEPT: Duration = Duration::from_secs(10);

/// Pause between two checks of a disk's superblock: a failed medium is noticed after it. One read
/// of 4 KiB each time.
pub const DISK_WATCH_PAUSE: Duration = Duration::from_secs(1);

/// One check of so many writes too: 4 KiB, durably.
pub const DISK_WRITE_CHECKS: u32 = 4;

/// A disk whose check so many looks have found under way hangs, which is 5 s: masters hear of it as of
/// one that is not there, until it answers. Longer than devices take to reset themselves, and than
/// moments of others' load.
pub const DISK_HANGS_LOOKS: u32 = 5;
/// The same as a time: an operation that took as long was part of a hang.
pub const DISK_HANG: Duration = DISK_WATCH_PAUSE.saturating_mul(DISK_HANGS_LOOKS);

/// A probe that takes longer is answered as one that has not ended. It goes on, and no other begins
/// before its end.
pub const PROBE_WAIT_MAX: Duration = Duration::from_millis(500);

/// Pause between two questions to masters about a disk that they do not know.
pub const IDENTIFY_PAUSE: Duration = Duration::from_secs(2);
/// Pause between two checks whether another shard has judged its disks.
pub const JUDGE_PAUSE: Duration = Duration::from_millis(10);

/// Wait for a master's answer to a heartbeat or registration.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_millis(500);
/// The first heartbeat after a registration waits for disks to be judged no longer than this: a
/// question to masters, and as long for the write. A disk that is not judged by then is missing in
/// it. Masters take a silent server for dead after 1.5 s (`server_dead_ms`).
pub const JUDGE_WAIT_MAX: Duration = Duration::from_secs(1);
const _: () = assert!(JUDGE_WAIT_MAX.as_millis() == 2 * HEARTBEAT_TIMEOUT.as_millis());
/// Masters whose clocks are known, at most: those that live, and earlier starts of them. A right of one
/// that was heard of longest ago is refused.
pub const ISSUERS_MAX: usize = 64;
/// Wait of a request for the clock of a master that is not known yet: a heartbeat and its answer.
pub const ISSUER_WAIT: Duration = Duration::from_millis(300);
/// Pause between two looks.
pub const ISSUER_PAUSE: Duration = Duration::from_millis(5);
/// Requests that wait so, at most; more are refused at once. A forged token waits too.
pub const ISSUER_WAITS_MAX: usize = 256;
/// Wait for a read from another chunkserver for a copy.
pub const COPY_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait of a copy or scrub for a store or a source that is busy. Then the copy is given up and its
/// slot free: the master asks again, and the copy goes on where it stopped.
pub const BUSY_WAIT_MAX: Duration = Duration::from_secs(5);
/// Pause between two attempts at a busy source.
pub const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Time after which an operation counts half in the latencies of heartbeats.
pub const DISK_TIMES_HALVING: Duration = Duration::from_secs(5);
/// Operations of a class, by that count, from which on its latencies are reported. The checks of an idle
/// disk, one a second, are as many.
pub const DISK_TIMES_SAMPLES_MIN: u64 = 4;

/// Background operations that wait for one disk, at most; more are answered busy. Each takes half a second
/// at the least rate, so that the last one is served before its caller gives it up.
pub const SHARE_WAITING_MAX: usize = 8;
const _: () = assert!(SHARE_WAITING_MAX as u64 * 500 < COPY_READ_TIMEOUT.as_millis() as u64);
/// A foreground operation in this time makes the disk a busy one; a background operation in this time
/// may have made a foreground one slower.
pub const SHARE_RECENT: Duration = Duration::from_millis(100);
/// Pause between two judgements whether the foreground suffers from background work.
pub const SHARE_JUDGED: Duration = Duration::from_secs(1);
/// It does when the 99th percentile beside background work is above so many thousandths of that without.
pub const SHARE_SUFFERS_PER_MILLE: u64 = 1200;
/// Latencies from which on they say something: the 99th percentile has two above it.
pub const SHARE_SAMPLES_MIN: u64 = 200;
/// Time after which latencies without background work are old: they are kept for as long again, and
/// for longer where none have come since.
pub const SHARE_WINDOW: Duration = Duration::from_secs(10);

//! Bounds and times of the block manager, with reason and arithmetic.

use block_proto::lease::{KEEPALIVE_INTERVAL, PAUSE};
use block_proto::limits::{ATTEMPT, BUDGET};
use runtime::Duration;
pub use tenancy::limits::{
    BALANCE, PAUSED, PEER_DEAD, PEER_FORGOTTEN, PING, REBALANCE_COOLDOWN, SERVER_DEAD, TICK,
    UNREACHED,
};

/// Wait for the answer of a server that a client doubts, at least and at most; in between, so many times
/// what answers of servers took at most in the last seconds.
pub const DOUBT_PING: (Duration, Duration) = (Duration::from_millis(20), UNREACHED);
/// See [`DOUBT_PING`].
pub const DOUBT_PING_FACTOR: u32 = 6;
/// Servers that are pinged beside a doubted one: when none of them answers in the same time, it is this
/// manager, or this machine, that is late.
pub const DOUBT_WITNESSES: usize = 2;
/// A server that has answered a ping which was sent at most so long ago is not pinged for a doubt.
pub const DOUBT_FRESH: Duration = Duration::from_millis(10);
/// A clock check that is later than this says that the manager itself stood still.
pub const DOUBT_LATE: Duration = Duration::from_millis(10);
/// An attachment without a renewal for this long may be taken over.
pub const ATTACH_DEAD: Duration = Duration::from_secs(5);
/// A process of a front end takes over what another process of it had open, when that has renewed nothing for this
/// long: three renewals. One renewal may be lost: the next one is there after an interval, its jitter and an attempt.
/// Callers ask for longer, so that a restart shows them no error.
pub const SECOND_SILENT: Duration = Duration::from_secs(3);
/// Records of changes have 32 bits for the epoch of the attachment that asked for them: 136 years of
/// one a second.
pub const ATTACHMENT_EPOCH_MAX: u64 = u32::MAX as u64;
/// From a removal to the removal of the files: every server has released them by then.
pub const PURGE_AFTER: Duration = Duration::from_secs(3);
/// Interval of a leader's search for directories of removed volumes, beside once at takeover: a
/// server that was stopped for longer than [`PURGE_AFTER`] may have made one again.
pub const SWEEP: Duration = Duration::from_secs(3600);
/// Time for which the data of deleted volumes is kept, unless configured: until the next working day.
pub const UNDELETE: Duration = Duration::from_secs(24 * 3600);
/// The longest that can be configured.
pub const UNDELETE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// Steps in which the time of a deleted volume is stored: a leader that takes over keeps it for one
/// step longer at most.
pub const LEFT_STEPS: u32 = 24;
/// The longest step: a row for each deleted volume.
pub const LEFT_STEP_MAX: Duration = Duration::from_secs(3600);
/// Between two checks for deleted volumes whose time is over, or whose room is needed.
pub const EXPIRY: Duration = Duration::from_secs(10);
/// When less than this percentage of the room for users' bytes is free, deleted volumes go early.
pub const FREE_PERCENT: u64 = 10;
/// Checks in a row that remove no volume early behind one whose room is not known: 30 s, as masters that
/// do not answer take. Then such volumes are passed over.
pub const UNKNOWN_CHECKS_MAX: u32 = 3;
/// Room of a removed volume counts as free for this long from its removal on: its chunks go when
/// all rights to them have run out, two minutes later.
pub const FREED_SOON: Duration = Duration::from_secs(300);
/// Changes of a volume of which is remembered that they have happened: a message that comes later than as
/// many changes after it does harm. Attachments are among them. 128 B of a volume that was ever changed.
pub const DONE_MAX: usize = 16;
/// Of these, changes that were refused, at most: one caller's, and two that came at the same time. With a zero
/// behind them they take a quarter of the numbers.
pub const REFUSED_MAX: usize = 3;
/// Removed volumes of which a leader knows the numbers of their creations, those that were made last: 50 B each. A
/// creation comes late by seconds, in which fewer are made.
pub const GONE_MAX: usize = 1024;
/// Files, by the volumes that name them, that one check of deleted volumes remembers: 24 B each. Those of further
/// families are read for each deleted volume.
pub const LOOKED_AT_MAX: usize = 1 << 18;
/// Refusals of all volumes that a leader has in memory: 300 B each, and seconds of callers that ask in a loop.
pub const REFUSALS_KEPT: usize = 1024;
/// Load of an idle segment, in requests a second: the cost of having it.
pub const SEGMENT_COST: u64 = 10;
/// Bytes that count as one request: a large request costs as much as several small ones. Object servers, whose
/// requests cost otherwise, have a number of their own.
pub const BYTES_PER_REQUEST: u64 = 64 << 10;

/// Segments of a volume at most: rows of one batch (64 B each, 1 MiB). 8 times what 64 TiB have
/// with segments of 32 GiB.
pub const VOLUME_SEGMENTS_MAX: u64 = 16_384;
/// Segments at most: about 200 B of memory each.
pub const SEGMENTS_MAX: usize = 1 << 20;
/// Bytes of the entries of one page of volumes or segments, about: names, holders and causes are
/// texts of up to a few hundred bytes, and an answer has 1 MiB.
pub const PAGE_BYTES: usize = wire::control::limits::MESSAGE_LEN_MAX / 2;
/// Bytes of an entry beside its texts, rounded up.
pub const PAGE_ENTRY: usize = 160;
/// Volumes at most: about 1 KiB of memory each.
pub const VOLUMES_MAX: usize = 1 << 18;

const _: () = assert!(REFUSED_MAX + 1 < DONE_MAX);
const _: () = assert!(3 * KEEPALIVE_INTERVAL.as_millis() <= SECOND_SILENT.as_millis());
const _: () = assert!(
    (KEEPALIVE_INTERVAL.as_millis() + PAUSE.as_millis()) * 5 / 4 + ATTEMPT.as_millis()
        < SECOND_SILENT.as_millis()
);
const _: () = assert!(
    SECOND_SILENT.as_millis() < ATTACH_DEAD.as_millis()
        && 2 * ATTACH_DEAD.as_millis() <= BUDGET.as_millis()
);
/// Rows of changes in one batch of the table, unless one change has more: what waits longer than an
/// append takes.
pub const ROWS_TOGETHER: usize = 4096;
/// Bytes of such rows: a quarter of the largest batch.
pub const ROWS_TOGETHER_BYTES: usize = 1 << 20;
/// Bytes that a row takes in a batch beside its value, at most: key, lengths, operation.
pub const ROW_OVERHEAD: usize = 32;
/// Bytes of the rows of one volume's snapshots at most when all change at once, as in a rollback:
/// half of a batch; 6,000 snapshots with names of 255 bytes. The other half is for the segments
/// of two volumes: those that go and those that come.
pub const FAMILY_ROWS_BYTES_MAX: usize = 2 << 20;

const _: () = assert!(
    FAMILY_ROWS_BYTES_MAX + 2 * VOLUME_SEGMENTS_MAX as usize * 56 + 65_536
        <= table::limits::BATCH_BYTES_MAX
);
const _: () = assert!(ROWS_TOGETHER_BYTES <= table::limits::BATCH_BYTES_MAX);
const _: () =
    assert!(ROWS_TOGETHER + 2 * VOLUME_SEGMENTS_MAX as usize <= table::limits::BATCH_OPS_MAX);

/// Segments hold answers back for a cut for this long at most, then it is given up: shorter than
/// the timeout after which clients of volumes ask again.
pub const HOLD_MAX: Duration = Duration::from_millis(1000);
/// Wait for the answer to one step of a cut.
pub const CUT_ATTEMPT: Duration = HOLD_MAX;
/// Wait for a block server to link a segment's files: 1024 files in batches of 128, and a table's
/// rows of 64 MiB.
pub const LINK_ATTEMPT: Duration = Duration::from_secs(30);
/// Segments that are linked at a time, or checked before they are cut off.
pub const LINKS_INFLIGHT: usize = 16;
/// While segments are linked, the cuts of all are renewed at this interval, so that none is given
/// up before its turn: three times in the time that a cut is kept.
pub const KEEP_CUTS: Duration = Duration::from_secs(20);
/// Wait for a block server to count shared blocks.
pub const FLATTEN_ATTEMPT: Duration = Duration::from_secs(1);
/// Wait for the segments of a snapshot to be opened, before it can be cloned.
pub const SERVE_MAX: Duration = Duration::from_secs(10);
/// Between two checks for that.
pub const SERVE_PAUSE: Duration = Duration::from_millis(5);
/// An unused snapshot keeps its owners for this long: the next clone need not wait for them.
pub const SNAPSHOT_REST: Duration = Duration::from_secs(10);
/// Snapshots or clones that a refusal names at most.
pub const NAMES_SHOWN: usize = 5;

/// Interval at which a manager that does not lead tries the lock. Segments are away for less than a
/// second after a leader's death, also when a block server's link to the next one is dead:
/// docs/simulation.md has the sum.
pub const LEADER_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Pause of a manager that has the lock and cannot lead, at first and at most. Each try makes files:
/// on a full cluster they hold the reserve for metadata until rights to them have run out.
pub const LEAD_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// Wait of the manager for one answer of a block server about a segment's content.
pub const CONTENT_ATTEMPT: Duration = Duration::from_secs(5);

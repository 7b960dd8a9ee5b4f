//! Bounds of the object index, with reason and arithmetic.

use object_proto::limits::{KEY_MAX, PIECE_BYTES, SETTINGS_MAX, SMALL_MAX};
use runtime::Duration;
use tenancy::limits::{ANNOUNCE_INTERVAL, ANNOUNCE_INTERVAL_FIRST};
pub use tenancy::limits::{
    BALANCE, DRIFT, HEARTBEAT_ATTEMPT, LEASE, PEER_DEAD, PEER_FORGOTTEN, REBALANCE_COOLDOWN,
    SERVER_DEAD, TICK, UNREACHED,
};
use wire::control::limits::MESSAGE_LEN_MAX;

use crate::fields::TEXT_MAX;

/// Bytes of the key of an object's row at most: a section, a bucket's ID of 8 bytes, the object's key
/// with two bytes for each NUL, an end of 2 bytes (`object-protocols.md` 2.2).
pub const OBJECT_ROW_KEY_MAX: usize = 1 + 8 + 2 * KEY_MAX + 2;

/// Bytes at which a log of the range ends, at most: a takeover replays one, past its data.
pub const LOG_BYTES: u64 = 256 << 20;
/// The same while there is little data.
pub const LOG_LEAST: u64 = table::limits::DATA_LOG_LEAST;
/// Bytes of small objects that an owner keeps in memory: what was put in the last second or so, which a
/// reader would have to wait for until the core's replicas show it.
pub const RECENT_BYTES: usize = 8 << 20;
/// Opened logs and files of bodies that a gateway keeps: about what 64 GiB of small objects have.
pub const OPENED_MAX: usize = 256;
/// A file of bodies that has so many bytes is sealed: collection reads one in some seconds, and a range of
/// 100 TiB has 100,000 of them.
pub const PACK_BYTES: u64 = 1 << 30;
/// A file of bodies to which nothing was written for so long is sealed (`object-protocols.md` 5.3).
pub const PACK_IDLE: Duration = Duration::from_secs(60);
/// A body of so many bytes has a file for itself: to delete it nothing is copied.
pub const OWN_BYTES: u64 = 64 << 20;
/// Bytes of rows that a page of a listing has, and one more row: its message has room for them with what
/// is said of each beside.
pub const PAGE_BYTES: usize = 512 << 10;
/// Between two looks for files in a range's directory that no row has: they are rare.
pub const ORPHANS_INTERVAL: Duration = Duration::from_secs(600);
/// Bytes a second that the ranges of a server move out of files of bodies: a GiB in 16 s.
pub const MOVED_BYTES_PER_S: u64 = 64 << 20;
/// Between two looks for files of bodies to which nothing was written.
pub const PACK_LOOK: Duration = Duration::from_secs(5);
/// Bytes of pieces that a pass moves before it waits until they are durable.
pub const MOVED_BYTES: usize = 1 << 20;

/// Appends of a body that are in flight at most: 4 MB of a body in memory.
pub const APPENDS_INFLIGHT_MAX: usize = 4;
/// Bytes of a body that are copied at once: what a processor's first caches hold beside others.
pub const COPY_BYTES: usize = 32 << 10;

/// Bytes of a body that one read takes at most.
pub const READ_MAX: usize = 8 * PIECE_BYTES;

/// A gateway's session that is silent for this long is closed (`object-protocols.md` 5.5).
pub const SESSION_SILENT: Duration = Duration::from_secs(60);
/// Between two signs of life of a session.
pub const BEAT_INTERVAL: Duration = Duration::from_secs(5);
/// A change is made within this time, or never.
pub const CHANGE_BUDGET: Duration = Duration::from_secs(10);
/// The manager asks a range's owner again, or the next one, for this long; gateways wait for
/// [`CHANGE_BUDGET`].
pub const ORDER_TIME: Duration = Duration::from_secs(5);
/// A bucket that is being removed is asked for again after this time: it may not have been empty.
pub const CLOSING_ASKED: Duration = Duration::from_millis(100);
/// What a gateway keeps of buckets, users and keys is good for so long from the sending of a question for
/// changes: three questions.
pub const KEPT_VALID: Duration = Duration::from_millis(600);
/// The answer to such a question waits for a change for so long.
pub const WATCH_HOLD: Duration = Duration::from_millis(200);
/// Wait for the answer to such a question.
pub const WATCH_ATTEMPT: Duration = Duration::from_millis(350);
/// A gateway whose kept names were not used for so long asks for changes no more.
pub const WATCH_IDLE: Duration = Duration::from_secs(5);
/// The manager looks so often what buckets under quotas hold; what is put between two looks may be above
/// a quota (`object-protocols.md` 11.1: 2 s at most, with the way to gateways).
pub const USAGE_INTERVAL: Duration = Duration::from_secs(1);
/// Buckets whose usage is asked for at once.
pub const USAGE_BUCKETS_MAX: usize = 1024;
/// Names of changes that a manager keeps, and has in one answer: a gateway that has seen fewer asks for all again.
pub const KEPT_CHANGES: usize = 1000;
/// Gateways that keep names, for one manager, at most.
pub const WATCHERS_MAX: usize = 1024;
/// Bytes of what a gateway keeps at most: with more it forgets all.
pub const KEPT_BYTES: usize = 16 << 20;
/// A gateway that knows a bucket or key waits for so long for a manager's answer before it goes by what it
/// knows.
pub const SILENT_AFTER: Duration = Duration::from_millis(300);
/// Between two such waits, while managers are silent.
pub const SILENT_PAUSE: Duration = Duration::from_secs(1);
/// A gateway that no manager has answered for so long refuses all (`object-protocols.md` 11.3).
pub const GATEWAY_CUT_OFF: Duration = Duration::from_secs(600);
/// Ranges of a new cluster: several servers work from the first buckets on.
pub const RANGES: u32 = 4;
/// Bytes of a range's sorted files at which it is split (`object-protocols.md` 3.4).
pub const RANGE_BYTES: u64 = 8 << 30;
/// Requests a second for keys of a range with which it is split, once it has had more for [`RANGE_HOT`]: half a
/// core of its owner at 50 us for one (`object-protocols.md` 4.1).
pub const RANGE_REQUESTS: u64 = 10_000;
/// See [`RANGE_REQUESTS`].
pub const RANGE_HOT: Duration = Duration::from_secs(10);
/// Ranges at most: what 16 servers own.
pub const RANGES_MAX: usize = 4096;
/// Bytes of the items of one answer at most: those of a control message without what is around the items. Lists of
/// the manager's that may have more come in pages then.
pub const ANSWER_BYTES: usize = MESSAGE_LEN_MAX - 4096;
/// A map that changes while its pages are asked for is asked for again, so often at most: each change is a split.
pub const MAP_READS: usize = 8;
/// A split links what is new in its range again, until that are fewer names.
pub const LINKED_LEAST: usize = 64;
/// Rounds of that at most: what is written while it lasts is less each time.
pub const LINK_ROUNDS: usize = 16;
/// The manager has answered within this time when a range is shut out for its split.
pub const MANAGER_HEARD: Duration = Duration::from_millis(100);
/// A range is shut out for its split for so long at most before the manager is asked to commit: else the split is
/// given up (`object-protocols.md` 4.2).
pub const CUT_TIME: Duration = Duration::from_millis(200);
/// Places of a range from which a split's bound is chosen, of each section.
pub const SAMPLES: usize = 1024;
/// Who has a range split hears of what fails within this time: that it is too small, or the bound not within it.
pub const SPLIT_ANSWER: Duration = Duration::from_millis(300);
/// A range whose split has failed is split again after this time, at the earliest; twice as long after each
/// further failure, up to the second.
pub const SPLIT_PAUSE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(3600));
/// One attempt of a request.
pub const ATTEMPT: Duration = Duration::from_secs(3);
/// Round trip of the sample of a session's clock at most: a deadline is late by that at most.
pub const SAMPLE_MAX: Duration = Duration::from_millis(500);
/// A sample of a session's clock is good for this long: clocks drift, and one of them may stand still.
pub const SAMPLE_AGE: Duration = Duration::from_secs(10);
/// Samples of a session's clock that an owner keeps: the ones that came last, of which some were too slow.
pub const SAMPLES_MAX: usize = 16;
/// Wait for the manager's answer which ranges there are and where they are served, which it knows: with a longer one,
/// requests wait for a manager that stands still when another has long led.
pub const WHERE_ATTEMPT: Duration = Duration::from_millis(250);
/// Between two attempts, at first and at most.
pub const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// No lock of an object ends while the clocks of its owner and of the manager differ by so much
/// (`object-protocols.md` 7.2): far more than clocks that are kept right do.
pub const CLOCKS_APART: Duration = Duration::from_secs(60);
/// How far an owner's clock counts ahead of a manager's that it has not agreed with yet.
pub const CLOCK_AHEAD: Duration = Duration::from_secs(24 * 3600);
/// The year 2026, microseconds since 1970: a clock that is behind is known to be wrong.
pub const CLOCK_LEAST_US: u64 = 1_767_225_600_000_000;

/// Bodies that are of no use any more keep their files for this long: long reads end
/// (`object-protocols.md` 10.4).
pub const TRASH_AGE: Duration = Duration::from_secs(3600);
/// The same on a full core.
pub const TRASH_AGE_FULL: Duration = Duration::from_secs(600);
/// The same for logs: a body in a log is read in one go, and each deletion takes some of the reserve, of
/// which nothing comes back before logs go.
pub const LOG_AGE_FULL: Duration = Duration::from_secs(5);
/// What lives in a file is counted again once in this time, as scrub reads all (`object-protocols.md` 10.3).
pub const RECOUNT: Duration = Duration::from_secs(15 * 24 * 3600);
/// Between two looks which files are to be counted again, at most.
pub const RECOUNT_LOOK: Duration = Duration::from_secs(600);
/// An upload that is under way for so long is aborted.
pub const UPLOAD_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
/// It is remembered for so long how an upload was completed: its client may ask again.
pub const UPLOAD_END_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Rows of parts after which their reader lets others run.
pub const PARTS_SLICE: usize = 256;
/// Parts whose bodies a reader asks for at once.
pub const PART_BODIES_MAX: u32 = 64;
/// Opened parts of one object that a reader keeps: what a read of 8 MiB has, of parts of S3's least size,
/// and some ahead.
pub const OPENED_PARTS_MAX: usize = 16;
/// Between two passes over what may be removed.
pub const COLLECT_INTERVAL: Duration = Duration::from_secs(30);
/// The same on a full core.
pub const COLLECT_INTERVAL_FULL: Duration = Duration::from_secs(2);
/// For what is removed, a core that was full counts as full for so long after that.
pub const TIGHT: Duration = Duration::from_secs(600);
/// Between two looks for room in a core that had none, at first and at most: longer when what was found
/// was used up at once. Each time that ends the table's instance.
pub const ROOM_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(16));
/// So long is at once.
pub const ROOM_PAUSE_KEPT: Duration = Duration::from_secs(30);
/// On a full core a log ends after so many appends, at the end of a pass: each has a sector of 4 KiB at least,
/// which a log that goes on holds.
pub const LOG_APPENDS_FULL: u64 = 128;
/// Bytes a second that the ranges of a server read for lifecycle: 10^9 keys take hours
/// (`object-protocols.md` 11.1).
pub const LIFECYCLE_BYTES_PER_S: u64 = 10_000_000;
/// Between two looks whether a day has begun, and at least when days are short.
pub const LIFECYCLE_LOOK: Duration = Duration::from_secs(60);
/// See [`LIFECYCLE_LOOK`].
pub const LIFECYCLE_LOOK_LEAST: Duration = Duration::from_millis(50);
/// Rows after which such a pass waits for its rate, and lets others run.
pub const LIFECYCLE_SLICE: usize = 16;
/// A pass of lifecycle takes note so often how far it is: a new owner repeats as much.
pub const LIFECYCLE_NOTE: Duration = Duration::from_secs(1);
/// Versions of a key that lifecycle removes while it holds the key, at most.
pub const EXPIRED_AT_ONCE: usize = 256;
/// Rows of a log after which a pass lets others run.
pub const COLLECT_SLICE: usize = 32;
/// Rows of one batch of a pass.
pub const COLLECT_ROWS: usize = 256;

/// Lease of the manager's lock: a dead manager's successor waits as long.
pub const LOCK_TTL: Duration = Duration::from_millis(800);
/// A manager beside its server without requests for this long renews its lock for [`IDLE_LONGER`] times its
/// lease: each renewal is a commit of the masters.
pub const IDLE_AFTER: Duration = Duration::from_secs(3);
/// See [`IDLE_AFTER`].
pub const IDLE_LONGER: u32 = 5;
/// Between two looks for a lock that another holds, and the longest after failures.
pub const LEAD_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Between two rounds of pings while no server is in another process.
pub const PING_LOCAL: Duration = Duration::from_secs(1);
/// Factor of the time between heartbeats of a server beside its manager, which ends with it: half of a lease.
pub const BEAT_LOCAL: u32 = 2;
/// Between two attempts of a heartbeat.
pub const BEAT_PAUSE: Duration = Duration::from_millis(20);
/// Wait for the answer to one question between the manager and an owner. Nothing is linked by it, as for volumes.
pub const LINK_ATTEMPT: Duration = Duration::from_secs(1);
/// A request for a range that is being opened waits for so long, then its gateway asks again.
pub const OPENING_WAIT: Duration = Duration::from_secs(1);
/// A gateway refuses bodies for this long after something found no room.
pub const FULL_KNOWN: Duration = Duration::from_secs(1);
/// Between two questions how far a check of files of bodies is.
pub const CHECK_LOOK: Duration = Duration::from_millis(100);
/// Wait for the answer to a question for the status, which is asked twice.
pub const STATUS_ATTEMPT: Duration = Duration::from_millis(500);
/// Between two reports of loads.
pub const LOADS: Duration = Duration::from_secs(1);
/// Between two reports of a manager or gateway that it is there, and until the first one has come through.
pub const HERE: (Duration, Duration) = (ANNOUNCE_INTERVAL, ANNOUNCE_INTERVAL_FIRST);
/// A gateway that has reached a manager within this time says that it is ready: several takeovers.
pub const READY_KEPT: Duration = Duration::from_secs(5);
/// Managers and gateways that are shown at most.
pub const PEERS_MAX: usize = 256;
/// Object servers at most: each has a row, and about 1 KiB of the manager's memory.
pub const SERVERS_MAX: usize = 1024;
/// Changes of owners in the answer to one heartbeat: a server has 256 ranges.
pub const CHANGES_PAGE: usize = 256;
/// Load of an idle range, in requests a second: the cost of having it.
pub const RANGE_COST: u64 = 10;
/// Bytes that count as one request. Block servers, whose requests cost otherwise, have a number of their own.
pub const BYTES_PER_REQUEST: u64 = 64 << 10;
/// A server that ends closes its tables within this time: its successor's opening is quicker then.
pub const CLOSE_TIME: Duration = Duration::from_secs(3);

/// A manager answers that owners have not heard of a change, which is on record, when gateways do not count on
/// that attempt any more: they say that the outcome is unknown.
const _: () = assert!(ATTEMPT.as_millis() < ORDER_TIME.as_millis());
const _: () = assert!(WATCH_HOLD.as_millis() < WATCH_ATTEMPT.as_millis());
const _: () = assert!(WATCH_ATTEMPT.as_millis() < KEPT_VALID.as_millis());
/// Where ranges are served is one answer: of each its number, and an address of up to 58 characters with their length.
const _: () = assert!(RANGES_MAX * (8 + 1 + 1 + 58) <= ANSWER_BYTES);
/// So are names of changes: of each a number, and a text with its length.
const _: () = assert!(KEPT_CHANGES * (1 + 2 + TEXT_MAX) <= ANSWER_BYTES);
const _: () = assert!(SETTINGS_MAX + 4096 <= table::limits::VALUE_MAX);
const _: () = assert!(OBJECT_ROW_KEY_MAX <= table::limits::KEY_MAX);

const _: () = assert!(SMALL_MAX < PIECE_BYTES && SMALL_MAX + 4096 <= table::limits::BATCH_DATA_MAX);

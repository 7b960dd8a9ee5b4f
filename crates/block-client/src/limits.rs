//! Bounds of the block client, with reason and arithmetic.

use std::time::Duration;

use base::MIB;
use block_proto::limits::BLOCK_CALL_TIMEOUT;

/// Time whose rate passes at once after a pause (B12): long against the pauses of a scheduler,
/// short for an observer of the rate.
pub const LIMIT_BURST: Duration = Duration::from_millis(100);
/// The same for the begin of a session: the server may have to recover the segment.
pub const BLOCK_OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// A request fails when it is not done after this long: an operator has had the time to bring
/// servers back, and guests' own timeouts (30 s on Linux) begin again with each of their tries.
pub const BLOCK_REQUEST_DEADLINE: Duration = Duration::from_secs(120);
/// First and longest pause between two tries of a request. A takeover is to be noticed within a
/// small part of the second that it may take.
pub const BLOCK_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// An owner that leaves requests without an answer for this long is pinged: longer than most requests
/// take, and a tenth of what a takeover may take.
pub const PING_AFTER: Duration = Duration::from_millis(10);
/// Wait for the answer to such a ping, at least and at most; in between, so many times what answers took
/// at most in the last seconds (`protocols-tail.md` 10.2).
pub const PING_TIMEOUT: (Duration, Duration) =
    (Duration::from_millis(25), Duration::from_millis(500));
/// See [`PING_TIMEOUT`].
pub const PING_FACTOR: u32 = 10;
/// A timer that is later than this says that this process stood still.
pub const OWN_PAUSE: Duration = Duration::from_millis(10);
/// An owner that answers pings, and requests for this long not, is doubted too.
pub const MOVED_AFTER: Duration = Duration::from_millis(150);
/// Between two doubts of a segment's owner, in the first second of a request, and later: an opening that
/// recovers much takes seconds.
pub const DOUBT_PAUSE: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_millis(1000));
/// Bytes of a volume for which one request lists pieces: 2,048 sectors of 128 KiB.
pub const PIECES_BYTES_MAX: u64 = 256 * MIB;
/// DataFiles of one segment that a client keeps open: one of 32 GiB has 64, and some more during
/// collection.
pub const DIRECT_FILES_MAX: usize = 128;
/// Reads of the core for one direct read, at most; with more pieces the block server reads them,
/// which is nearer to its peers.
pub const DIRECT_RUNS_MAX: usize = 16;
/// A direct read that takes longer goes to the block server. The core's client needs 500 ms to
/// leave a silent replica for the next, which it remembers.
pub const DIRECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause of direct reads after a failure, at first and at most: all reads go through the block
/// servers; then one tries again.
pub const DIRECT_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));
/// Groups of locations that an attachment keeps: 350 bytes each, 11 MiB; 4 GiB of blocks.
pub const LOCATION_GROUPS_MAX: usize = 32 << 10;
/// DataFiles that these may name: more are not open at a time in 64 segments.
pub const LOCATION_FILES_MAX: usize = 8 << 10;
/// Volumes of a process that ends are detached by then, or are left to their silence: the next process waits as long
/// for that (`block_manager::limits::SECOND_SILENT`).
pub const CLOSE_MAX: Duration = Duration::from_secs(3);

const _: () = assert!(BLOCK_CALL_TIMEOUT.as_millis() < CLOSE_MAX.as_millis());

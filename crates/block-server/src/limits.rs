//! Bounds of a block server, with reason and arithmetic.

use std::time::Duration;

use base::MIB;
use block_proto::limits::BLOCK_CALL_TIMEOUT;
use block_volume::limits::IO_MAX;

/// Sessions on one segment: attachments of a shared volume. Attachments whose changes a segment
/// remembers before it asks which of them are over: 64 x 100 bytes.
pub const SEGMENT_SESSIONS_MAX: usize = 64;
/// Attachments on which an open segment remembers the manager's word; when there are more, it asks again.
pub const STANDINGS_MAX: usize = SEGMENT_SESSIONS_MAX;
/// Bytes of writes under way on one block server at most; beyond it the answer is busy.
pub const SERVER_WRITE_BYTES_MAX: usize = 64 * MIB as usize;
/// Of these, bytes of one segment: one that stands still leaves the other half to others. A write
/// that has begun holds its bytes until it ends, also when its client waits no more.
pub const SEGMENT_WRITE_BYTES_MAX: usize = SERVER_WRITE_BYTES_MAX / 2;
/// Bytes of reads under way on one block server at most.
pub const SERVER_READ_BYTES_MAX: usize = 64 * MIB as usize;
/// Of these, bytes of one segment: as for writes.
pub const SEGMENT_READ_BYTES_MAX: usize = SERVER_READ_BYTES_MAX / 2;
/// Requests under way on a block server up to which one begins that was not promised (B12): twice
/// what one client has, so that its appends are packed as well as without.
pub const FREE_REQUESTS_MAX: usize = 64;
/// Of these, requests to one segment: as many as one client has. A segment that stands still leaves
/// the other half to others.
pub const SEGMENT_FREE_MAX: usize = FREE_REQUESTS_MAX / 2;
/// The same while some come that were promised: they find a quarter of the queue before them.
pub const FREE_REQUESTS_YIELDING: usize = 16;
/// Promised requests of one segment that count as under way, at most: others give way to so many as
/// to all. More begin as well. With [`SEGMENT_FREE_MAX`], one that stands still leaves a quarter to
/// others.
pub const SEGMENT_PROMISED_MAX: usize = FREE_REQUESTS_YIELDING;
/// Promised requests after which one that was not promised begins, however many are under way: a
/// ninth of all requests. Nothing bounds the promises on one server, and volumes without a promise
/// would stand still beside them until their requests fail.
pub const PROMISED_PER_FREE: u32 = 8;
/// After a promised request others give way for this long: the pause between two requests of a
/// volume that is promised 20 a second.
pub const PROMISE_MEMORY: Duration = Duration::from_millis(50);
/// A request that was not promised waits for this long; then its client sends it again.
pub const FREE_WAIT_MAX: Duration = Duration::from_secs(1);

/// A block server that ends gives others this long to take its segments, and then ends anyway:
/// three heartbeats, and an append to a manager's table while a chunkserver is silent.
pub const LEAVE_MAX: Duration = Duration::from_secs(2);
/// Segments that a block server opens at a time: an opening mostly waits for other processes.
pub const OPENS_MAX: usize = 32;
/// Between two attempts to open a segment, at first and at most.
pub const OPEN_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Pause of all openings after one that found no room, at first (writes are refused for as long) and
/// at most. What a failed one has taken of the reserve for metadata, some six units of 16 KiB, is
/// held for 65 s: of four of them, 0.4 MiB on each disk of at least 16 MiB.
pub const OPEN_FULL_PAUSE: (Duration, Duration) =
    (block_segment::limits::FULL_PAUSE, Duration::from_secs(20));
/// For this long after one that found no room, openings are one at a time: longer than the pause.
pub const OPEN_FULL_MEMORY: Duration = Duration::from_secs(60);
/// Between two reports of the load of a block server's segments.
pub const LOADS: Duration = Duration::from_secs(1);

const _: () = assert!(SEGMENT_WRITE_BYTES_MAX >= IO_MAX && SEGMENT_READ_BYTES_MAX >= IO_MAX);
const _: () = assert!(FREE_WAIT_MAX.as_millis() < BLOCK_CALL_TIMEOUT.as_millis());
const _: () = assert!(SEGMENT_FREE_MAX + SEGMENT_PROMISED_MAX < FREE_REQUESTS_MAX);
const _: () = assert!(OPEN_FULL_MEMORY.as_millis() >= 2 * OPEN_FULL_PAUSE.1.as_millis());
const _: () = assert!(FREE_REQUESTS_YIELDING < FREE_REQUESTS_MAX);
const _: () = assert!(SEGMENT_SESSIONS_MAX >= 2 * block_proto::limits::ATTACHMENTS_MAX);

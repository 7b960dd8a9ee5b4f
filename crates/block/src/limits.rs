//! Bounds of volumes, with reason and arithmetic.

use std::time::Duration;

use base::{GIB, KIB, MIB, TIB};

/// Bytes of a block: what is written, versioned and atomic as one (`protocols.md` 6.2).
pub const BLOCK: u64 = 4 * KIB;

/// Smallest and largest volume (B11).
pub const VOLUME_BYTES: (u64, u64) = (GIB, 64 * TIB);

/// Bytes of a segment group, unless configured (B1).
pub const GROUP_BYTES_DEFAULT: u64 = 128 * GIB;
/// Bytes of a segment at least, for tests: 2^30 of them are 64 TiB, so 32 bits number them.
pub const SEGMENT_BYTES_MIN: u64 = 64 * KIB;
/// Segments of a group, unless configured: 32 GiB each (B1).
pub const SEGMENTS_PER_GROUP_DEFAULT: u32 = 4;
/// Segments of a group at most.
pub const SEGMENTS_PER_GROUP_MAX: u32 = 64;
/// Bytes of a data sector, unless configured: the paper's later figure, which spreads one
/// client's burst over all segments of a group (B1).
pub const DATA_SECTOR_DEFAULT: u64 = 128 * KIB;
/// Smallest data sector: one block, for tests. Largest: the paper's first figure.
pub const DATA_SECTOR: (u64, u64) = (BLOCK, 2 * MIB);

/// Bytes of one NBD request's data at most: what clients may assume without asking, and twice
/// what Linux sends.
pub const NBD_DATA_MAX: u32 = 32 << 20;
/// Bytes of an NBD option's data at most: a name, a description and as many queries as fit.
pub const NBD_OPTION_MAX: u32 = 16 << 10;
/// Bytes of a string of the NBD protocol at most, by its specification.
pub const NBD_STRING_MAX: usize = 4096;
/// Bytes of an export's name at most: a volume's name, as a file's.
pub const NBD_NAME_MAX: usize = 255;
/// Metadata contexts of one connection at most: base:allocation is the only one so far.
pub const NBD_CONTEXTS_MAX: usize = 16;
/// Extents of one answer to a block status request at most.
pub const NBD_EXTENTS_MAX: usize = 4096;

const _: () = assert!(VOLUME_BYTES.1 / SEGMENT_BYTES_MIN < u32::MAX as u64);
const _: () = assert!(DATA_SECTOR_DEFAULT.is_multiple_of(BLOCK));
const _: () = assert!(
    GROUP_BYTES_DEFAULT.is_multiple_of(SEGMENTS_PER_GROUP_DEFAULT as u64 * DATA_SECTOR_DEFAULT)
);
const _: () = assert!(NBD_NAME_MAX <= NBD_STRING_MAX && NBD_STRING_MAX < NBD_OPTION_MAX as usize);

/// Bytes of one read or write of a device at most: 128 blocks, which with their metadata fit in
/// one append of the core. Longer requests of clients are cut.
pub const IO_MAX: usize = 512 * KIB as usize;
/// Open NBD connections of one front end: see [`NBD_CONNECTION_BYTES_MAX`].
pub const NBD_CONNECTIONS_MAX: usize = 64;
/// Bytes of requests and answers that one NBD connection holds: 20 of 128 KiB, 640 of 4 KiB.
/// With the pieces of one large request it is 4 MiB, for all connections 256 MiB: half of a
/// process's buffers, if no client took its answers.
pub const NBD_CONNECTION_BYTES_MAX: usize = 2560 * KIB as usize;
/// Pieces of a connection's one large request that are in memory: one is sent, one waits, one is
/// read.
pub const NBD_PIECES_MAX: usize = 3;
/// Requests of one NBD connection that are not answered: twice what Linux and QEMU send.
pub const NBD_REQUESTS_MAX: usize = 256;
/// Bytes of the buffer that requests are received through: an option of the longest, or seven
/// writes of 4 KiB in one system call.
pub const NBD_STAGING_BYTES: usize = 32 * KIB as usize;
/// Answers in one system call, and their bytes, at most.
pub const NBD_BATCH_MAX: usize = 32;
/// See [`NBD_BATCH_MAX`].
pub const NBD_BATCH_BYTES: usize = 512 * KIB as usize;
/// Bytes of a TLS record with what is around it: 16 KiB and 261.
pub const TLS_RECORD_MAX: usize = 17 * KIB as usize;
/// NBD connections that have no export yet, at a time. They have no seat among
/// [`NBD_CONNECTIONS_MAX`], and at most a staging buffer, a TLS session and an answer each. One more
/// ends the oldest of those that have shown no certificate: who is quick gets through a flood.
pub const NBD_HANDSHAKES_MAX: usize = 64;
/// Lines of the log about clients that are refused, in such a time: a flood does not fill the disk.
pub const NBD_REFUSALS_LOGGED: (u64, Duration) = (8, Duration::from_secs(1));
/// A client has chosen its export after this long: programs do it in milliseconds, people who
/// look at a list in seconds.
pub const NBD_NEGOTIATION_MAX: Duration = Duration::from_secs(30);

/// Changes of one attachment on one segment that are not answered: the deepest queue of an NBD
/// connection, all of it on one segment. A segment remembers as many of each attachment.
pub const SESSION_CHANGES_MAX: usize = 256;
/// Sessions on one segment: attachments of a shared volume. Attachments whose changes a segment
/// remembers before it asks which of them are over: 64 x 100 bytes.
pub const SEGMENT_SESSIONS_MAX: usize = 64;
/// Attachments that a block server remembers to be alive; when there are more, it asks again.
pub const VERIFIED_MAX: usize = 4096;
/// Bytes of writes under way on one block server at most; beyond it the answer is busy.
pub const SERVER_WRITE_BYTES_MAX: usize = 64 * MIB as usize;
/// Bytes of reads under way on one block server at most.
pub const SERVER_READ_BYTES_MAX: usize = 64 * MIB as usize;

/// What a volume's bounds let through at once after a pause, in time: long against the pauses of
/// a scheduler, short for whoever looks at the rate (B12).
pub const LIMIT_BURST: Duration = Duration::from_millis(100);
/// Requests under way on a block server up to which one begins that was not promised (B12): twice
/// what one client has, so that its appends are packed as well as without.
pub const FREE_REQUESTS_MAX: usize = 64;
/// The same while some come that were promised: they find a quarter of the queue before them.
pub const FREE_REQUESTS_YIELDING: usize = 16;
/// Promised requests after which one that was not promised begins, however many are under way: a
/// ninth of all requests. Nothing bounds the promises on one server, and volumes without a promise
/// would stand still beside them until their requests fail.
pub const PROMISED_PER_FREE: u32 = 8;
/// For so long after one that was promised others give way: the pause between two requests of a
/// volume that is promised 20 a second.
pub const PROMISE_MEMORY: Duration = Duration::from_millis(50);
/// A request that was not promised waits for so long; then its client sends it again.
pub const FREE_WAIT_MAX: Duration = Duration::from_secs(1);

/// A client sends a request again when it has no answer after this long. A server that has died
/// is noticed at once, one that is silent by the transport after 0.6 s.
pub const BLOCK_CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// The same for the begin of a session: the server may have to recover the segment.
pub const BLOCK_OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// A request fails when it is not done after this long: an operator has had the time to bring
/// servers back, and guests' own timeouts (30 s on Linux) begin anew with each of their tries.
pub const BLOCK_PATIENCE: Duration = Duration::from_secs(120);
/// First and longest pause between two tries of a request. A takeover is to be noticed within a
/// small part of the second that it may take.
pub const BLOCK_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// Bytes of a volume that one question for pieces looks at: 2,048 sectors of 128 KiB.
pub const PIECES_BYTES_MAX: u64 = 256 * MIB;

const _: () = assert!(FREE_WAIT_MAX.as_millis() < BLOCK_CALL_TIMEOUT.as_millis());
const _: () = assert!(FREE_REQUESTS_YIELDING < FREE_REQUESTS_MAX);
const _: () = assert!(IO_MAX.is_multiple_of(BLOCK as usize));
const _: () =
    assert!((IO_MAX / BLOCK as usize) * (BLOCK as usize + 64) <= base::limits::APPEND_DATA_MAX);
const _: () = assert!(
    NBD_CONNECTIONS_MAX * (NBD_CONNECTION_BYTES_MAX + NBD_PIECES_MAX * IO_MAX)
        <= runtime::limits::POOL_BYTES_DEFAULT / 2
);
const _: () = assert!(NBD_CONNECTION_BYTES_MAX >= IO_MAX && IO_MAX <= runtime::limits::BUF_MAX);
const _: () = assert!(NBD_STAGING_BYTES >= NBD_OPTION_MAX as usize + 64);
const _: () = assert!(2 * NBD_BATCH_MAX <= runtime::limits::SEND_IOVECS_MAX);
const _: () = assert!(SESSION_CHANGES_MAX >= NBD_REQUESTS_MAX);
const _: () = assert!(SESSION_CHANGES_MAX.is_multiple_of(8));
const _: () = assert!(SEGMENT_SESSIONS_MAX >= 2 * wire::control::limits::ATTACHMENTS_MAX);
const _: () =
    assert!(IO_MAX <= wire::frame::PAYLOAD_MAX && NBD_EXTENTS_MAX <= wire::block::PIECES_MAX);

/// DataFiles of one segment that a client keeps open: one of 32 GiB has 64, and some more while they
/// are collected.
pub const DIRECT_FILES_MAX: usize = 128;
/// Reads of the core that one read beside the block server is made of at most; the block server,
/// which is nearer to its peers, reads more pieces better.
pub const DIRECT_RUNS_MAX: usize = 16;
/// How long a read beside the block server may take before the block server is asked for it: longer
/// than the core's client needs to leave a silent replica for the next (500 ms), which it remembers.
pub const DIRECT_TIMEOUT: Duration = Duration::from_secs(2);
/// For how long all reads go through the block servers after the core gave trouble, at first and at
/// most; then one tries again.
pub const DIRECT_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

const _: () = assert!(
    IO_MAX as u64 / BLOCK < wire::block::SPANS_MAX as u64,
    "one more when it is not aligned"
);

/// Blocks of which the places are told together: a data sector, so that a table's or file's
/// neighbours cost one question. 32 spans at most, 768 bytes of an answer; all in one index page.
pub const PLACES_AROUND: u64 = 32;
/// For how long a client may use places that it was told, from the sending of its question: half of
/// the block server's own lease, which has twice as much left after a renewal that came in time
/// (`protocols.md` 6.5). Whoever opens a segment after a client that has died waits as long.
pub const PLACES_LENT: Duration = Duration::from_millis(300);
/// Neighbourhoods of places that an attachment keeps: 350 bytes each, 11 MiB; 4 GiB of blocks.
pub const PLACES_KEPT_MAX: usize = 32 << 10;
/// DataFiles that they may name: more are not open at a time in 64 segments.
pub const PLACES_FILES_MAX: usize = 8 << 10;

const _: () = assert!(
    IO_MAX as u64 / BLOCK + 1 + 2 * (PLACES_AROUND - 1) <= wire::block::SPANS_MAX as u64,
    "a read that is not aligned, and those around it"
);
const _: () = assert!(2 * PLACES_LENT.as_millis() <= crate::manager::limits::LEASE.as_millis());
const _: () = assert!((crate::device::limits::PAGE_BLOCKS as u64).is_multiple_of(PLACES_AROUND));

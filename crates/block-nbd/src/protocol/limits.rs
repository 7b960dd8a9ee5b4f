//! Bounds of the NBD protocol and its server, with reason and arithmetic.

use std::time::Duration;

use base::KIB;
use block_volume::limits::{IO_MAX, SESSION_CHANGES_MAX};

/// Bytes of one NBD request's data at most: the size that clients may assume, and twice what Linux
/// sends.
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
/// Open NBD connections of one front end: see [`NBD_CONNECTION_BYTES_MAX`].
pub const NBD_CONNECTIONS_MAX: usize = 64;
/// Bytes of requests and answers that one NBD connection holds: 20 of 128 KiB, 640 of 4 KiB.
/// With the pieces of one large request it is 4 MiB, for all connections 256 MiB: half of a
/// process's buffers, if no client took its answers. One with fewer buffers takes fewer connections.
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
/// NBD connections that have no export yet, at a time. They hold no connection permit of
/// [`NBD_CONNECTIONS_MAX`], and at most a staging buffer, a TLS session and an answer each. One
/// more ends the oldest without a certificate, or else the oldest of the certificate that has
/// most: a quick client gets through a flood.
pub const NBD_HANDSHAKES_MAX: usize = 64;
/// Bytes of buffers that one of them holds at most: two staging buffers, an answer, and the same in TLS
/// records. For all of them 128 MiB: a quarter of a process's buffers.
pub const NBD_HANDSHAKE_BYTES: usize = 2048 * KIB as usize;
/// Lines of the log about refused clients, in such a time: a flood does not fill the disk.
pub const NBD_REFUSALS_LOGGED: (u64, Duration) = (8, Duration::from_secs(1));
/// A client has chosen its export after this long: programs do it in milliseconds, users who look
/// at a list in seconds.
pub const NBD_NEGOTIATION_MAX: Duration = Duration::from_secs(30);
/// Answers that are still sent when a front end stops: a request takes milliseconds. One that waits for a takeover
/// is left without an answer; its client asks the next process.
pub const NBD_STOP_MAX: Duration = Duration::from_secs(1);

const _: () = assert!(NBD_NAME_MAX <= NBD_STRING_MAX && NBD_STRING_MAX < NBD_OPTION_MAX as usize);
const _: () = assert!(
    NBD_CONNECTIONS_MAX * (NBD_CONNECTION_BYTES_MAX + NBD_PIECES_MAX * IO_MAX)
        <= runtime::limits::POOL_BYTES_DEFAULT / 2
);
const _: () = assert!(
    NBD_HANDSHAKES_MAX * NBD_HANDSHAKE_BYTES <= runtime::limits::POOL_BYTES_DEFAULT / 4
        && 2 * NBD_STAGING_BYTES
            + NBD_BATCH_BYTES
            + (NBD_BATCH_BYTES + TLS_RECORD_MAX).next_power_of_two()
            <= NBD_HANDSHAKE_BYTES
);
const _: () = assert!(NBD_CONNECTION_BYTES_MAX >= IO_MAX && IO_MAX <= runtime::limits::BUF_MAX);
const _: () = assert!(NBD_STAGING_BYTES >= NBD_OPTION_MAX as usize + 64);
const _: () = assert!(2 * NBD_BATCH_MAX <= runtime::limits::SEND_IOVECS_MAX);
const _: () = assert!(SESSION_CHANGES_MAX >= NBD_REQUESTS_MAX);
const _: () = assert!(NBD_EXTENTS_MAX <= block_volume::contract::PIECES_MAX);

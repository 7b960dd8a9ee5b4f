//! Bounds of the runtime.

use std::time::Duration;

/// A poll longer than this is named in a metric and a log line (C11).
pub const SLICE_MAX: Duration = Duration::from_millis(2);

/// Tasks polled between two calls of the driver: bounds how long a completion waits behind ready
/// tasks. 64 polls of about 1 us each.
pub const POLLS_PER_TURN: u32 = 64;

/// Bytes of buffers that one process holds at most unless configured: the hard memory budget.
pub const POOL_BYTES_DEFAULT: usize = 512 << 20;
/// Smallest buffer class.
pub const BUF_MIN: usize = 256;
/// Largest buffer class: one append of the largest size and its header.
pub const BUF_MAX: usize = 4 << 20;
/// Alignment of buffers of at least this size: what direct I/O asks for.
pub const BUF_ALIGN: usize = 4096;
/// Bytes kept in the free list of one buffer class at most; beyond it memory goes back.
pub const FREE_LIST_BYTES_MAX: usize = 64 << 20;

/// Entries of a ring's submission queue: what one system call submits at most.
pub const RING_ENTRIES: u32 = 256;
/// Completions that wait in the ring before the kernel keeps them aside: each operation in
/// flight has one, and a core has far fewer than 4096.
pub const RING_COMPLETIONS: u32 = 4096;
/// Buffers per send.
pub const SEND_IOVECS_MAX: usize = 64;
/// Buffers per vectored write: the kernel's own limit (`UIO_MAXIOV`).
pub const WRITE_IOVECS_MAX: usize = 1024;
/// Connections that wait to be accepted: all clients of a cluster that come back at once.
pub const LISTEN_BACKLOG: i32 = 4096;
/// Bytes of a Unix socket's path: what `sockaddr_un` has, less the zero behind it.
pub const UNIX_PATH_MAX: usize = 107;
/// Tasks from other threads that wait to be taken in by one executor.
pub const INBOX_MAX: usize = 4096;
/// Helper threads of one process unless configured.
pub const HELPERS_DEFAULT: usize = 4;
/// Work that waits for a helper thread.
pub const HELPER_QUEUE_MAX: usize = 1024;
/// Wait of a runtime that stops for disk operations in flight. A disk that does not answer for so
/// long has failed; then memory is left to the kernel for ever.
pub const SHUTDOWN_WAIT_MAX: Duration = Duration::from_secs(10);

const _: () = assert!(RING_COMPLETIONS >= 2 * RING_ENTRIES);
const _: () = assert!(BUF_MAX.is_power_of_two() && BUF_MIN.is_power_of_two());
const _: () = assert!(BUF_MAX >= base::limits::APPEND_SECTORS_MAX * base::limits::SECTOR);
const _: () = assert!(FREE_LIST_BYTES_MAX >= BUF_MAX);

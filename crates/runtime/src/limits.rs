//! Bounds of the runtime.

use std::time::Duration;

/// A poll longer than this is named in a metric and a log line (C11).
pub const SLICE_MAX: Duration = Duration::from_millis(2);

/// Tasks polled between two looks at the driver: bounds how long a completion waits behind
/// ready tasks. 64 polls of about 1 us each.
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

const _: () = assert!(BUF_MAX.is_power_of_two() && BUF_MIN.is_power_of_two());
const _: () = assert!(BUF_MAX >= base::limits::APPEND_SECTORS_MAX * base::limits::SECTOR);
const _: () = assert!(FREE_LIST_BYTES_MAX >= BUF_MAX);

//! Bounds of what is counted and kept.

/// Series of one registry: 10,000 x 100 bytes = 1 MB, histograms apart. Beyond it a handle works
/// but is not shown, and `craton_metrics_series_refused_total` says how many.
pub const SERIES_MAX: usize = 10_000;

/// Operations a ring remembers: 2048 x 480 bytes = 1 MB on each core.
pub const OPERATIONS_MAX: usize = 2048;

/// Slow operations kept after the ring has moved on: 256 x 480 bytes = 120 KB.
pub const SLOW_MAX: usize = 256;

/// Time for which a slow operation keeps its place against faster ones, in ns: 10 minutes.
pub const SLOW_KEEP_NS: u64 = 600 * 1_000_000_000;

/// An operation that takes this long or longer is slow, in ns, unless the configuration says
/// otherwise: a quarter of the time that a writer may stall.
pub const SLOW_NS_DEFAULT: u64 = 250 * 1_000_000;

/// Operations kept because a client asked for their trace: 1024 x 480 bytes = 480 KB.
pub const ASKED_MAX: usize = 1024;

/// Stages of one operation. Further ones are counted, not kept.
/// An append to five replicas has 2 + 3 x 5 = 17 at most; to three 11.
pub const STAGES_MAX: usize = 17;

/// Disks and IPv6 peers that a ring knows by number; the facts of further ones are left out.
pub const NAMES_MAX: usize = 256;

/// Log lines about slow operations in one second, at most.
pub const SLOW_LINES_MAX: u32 = 5;

/// Kinds of operations that have a histogram of their own: 64 x 15 KB.
pub const KINDS_MAX: usize = 64;

//! Bounds of what is counted and kept.

/// Series of one registry: 10,000 x 100 bytes = 1 MB, histograms apart. Beyond it a handle works
/// but is not shown, and `craton_metrics_series_refused_total` says how many.
pub const SERIES_MAX: usize = 10_000;

/// Operations a ring remembers: 4096 x 640 bytes = 2.6 MB on each core.
pub const OPERATIONS_MAX: usize = 4096;

/// Slow operations kept after the ring has moved on.
pub const SLOW_MAX: usize = 128;

/// How long a slow operation keeps its place against faster ones, in ns: 10 minutes.
pub const SLOW_KEEP_NS: u64 = 600 * 1_000_000_000;

/// Stages of one operation. Further ones are counted, not kept.
pub const STAGES_MAX: usize = 12;

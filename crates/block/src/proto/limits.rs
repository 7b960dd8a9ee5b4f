//! Bounds of requests between block processes, with reason and arithmetic.

use runtime::Duration;

/// Wait for one answer of a manager: longer than an append to its table takes while a chunkserver is
/// silent.
pub const ATTEMPT: Duration = Duration::from_millis(1500);
/// Wait for one answer about the block service in figures: people look at the rest meanwhile.
pub const STATUS_ATTEMPT: Duration = Duration::from_millis(500);
/// When a request to managers is given up, unless chosen: several takeovers.
pub const BUDGET: Duration = Duration::from_secs(10);
/// A client sends a request again when it has no answer after this long. A server that has died
/// is noticed at once, one that is silent by the transport after 0.6 s.
pub const BLOCK_CALL_TIMEOUT: Duration = Duration::from_secs(2);

//! Limits of a volume (B12).

/// Limits of a volume (B12), a second. 0 in a base: nothing is promised; in a burst: no bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeLimits {
    /// Requests that are promised.
    pub iops_base: u64,
    /// Requests at most.
    pub iops_burst: u64,
    /// Bytes that are promised.
    pub bytes_base: u64,
    /// Bytes at most.
    pub bytes_burst: u64,
}

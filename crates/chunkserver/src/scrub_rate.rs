//! The rate that the scrubs of a shard's disks share (C26).

use std::cell::Cell;
use std::time::Duration;

use runtime::{Env, Instant};

/// The rate that the scrubs of a shard's disks share.
pub(crate) struct ScrubRate {
    bytes_per_second: u64,
    /// When what was read until now has had its time.
    next: Cell<Instant>,
}

impl ScrubRate {
    /// `bytes_per_second` for a whole server of `shards`; 0 is no scrub.
    pub(crate) fn new(env: &Env, bytes_per_second: u64, shards: u32) -> ScrubRate {
        let share = (bytes_per_second / u64::from(shards.max(1))).max(1);
        let bytes_per_second = if bytes_per_second == 0 { 0 } else { share };
        ScrubRate { bytes_per_second, next: Cell::new(env.now()) }
    }

    /// False when nothing is scrubbed.
    pub(crate) fn is_any(&self) -> bool {
        self.bytes_per_second > 0
    }

    /// Waits until `bytes` bytes more have had their time.
    pub(crate) async fn pace(&self, env: &Env, bytes: u64) {
        let time = Duration::from_nanos(bytes * 1_000_000_000 / self.bytes_per_second);
        self.next.set(self.next.get().max(env.now()) + time);
        env.sleep_until(self.next.get()).await;
    }
}

//! [`Budget`]: the memory that bodies may take, claimed before they are read.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes for bodies, shared by all requests of a gateway.
#[derive(Clone, Debug)]
pub struct Budget {
    bytes: Arc<Semaphore>,
    total: u32,
}

/// Bytes that are claimed; released when this is dropped.
#[derive(Debug)]
pub struct Claim(#[allow(dead_code, reason = "released when dropped")] OwnedSemaphorePermit);

impl Budget {
    /// A budget of `total` bytes, 4 GiB at most.
    pub fn new(total: usize) -> Budget {
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        Budget { bytes: Arc::new(Semaphore::new(total as usize)), total }
    }

    /// Claims `len` bytes, or all that there are if they are fewer: then one request is served at a
    /// time. `None` when they were not free within `time`.
    pub async fn claim(&self, len: usize, time: Duration) -> Option<Claim> {
        let permits = self.permits(len);
        let claim = self.bytes.clone().acquire_many_owned(permits);
        // The semaphore is never closed: an error cannot be.
        tokio::time::timeout(time, claim).await.ok()?.ok().map(Claim)
    }

    /// Claims `len` bytes if they are free now.
    pub fn try_claim(&self, len: usize) -> Option<Claim> {
        self.bytes.clone().try_acquire_many_owned(self.permits(len)).ok().map(Claim)
    }

    /// Bytes that there are.
    pub fn total(&self) -> usize {
        self.total as usize
    }

    /// Bytes that are claimed at present, and all that there are.
    pub fn state(&self) -> (u64, u64) {
        let free = self.bytes.available_permits() as u64;
        (u64::from(self.total).saturating_sub(free), u64::from(self.total))
    }

    fn permits(&self, len: usize) -> u32 {
        u32::try_from(len).unwrap_or(u32::MAX).min(self.total)
    }
}

//! What the writers of a client share when they chase late replicas (C14), or leave them (B15).

use std::cell::Cell;

use runtime::{Duration, Instant};

use crate::limits::{BLOCKED_ENDS_PER_S_MAX, THIN_ENDS_PER_S_MAX};

/// Bound of what the writers of a process owe together, and of how often they end chunks that are thin or blocked.
#[derive(Default, Debug)]
pub struct ChaseBudget {
    bytes_max: u64,
    bytes: Cell<u64>,
    thin_ends: EachSecond,
    blocked_ends: EachSecond,
}

impl ChaseBudget {
    /// A budget of `bytes_max` bytes of sectors, of which none are taken.
    pub fn new(bytes_max: u64) -> ChaseBudget {
        ChaseBudget { bytes_max, ..Default::default() }
    }

    /// Bytes of sectors that are owed now.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Changes what one writer has taken from `from` to `to`. False, without a change, when there is
    /// no room for it.
    pub(super) fn change(&self, from: u64, to: u64) -> bool {
        let bytes = self.bytes.get() - from + to;
        let fits = to <= from || bytes <= self.bytes_max;
        if fits {
            self.bytes.set(bytes);
        }
        fits
    }

    /// False when thin chunks have ended as often in this second as they may.
    pub(super) fn take_end(&self, now: Instant) -> bool {
        self.thin_ends.take(now, THIN_ENDS_PER_S_MAX)
    }

    /// False when blocked chunks have ended as often in this second as they may.
    pub(super) fn take_blocked(&self, now: Instant) -> bool {
        self.blocked_ends.take(now, BLOCKED_ENDS_PER_S_MAX)
    }
}

/// When the present second began, and what was done in it.
#[derive(Default, Debug)]
struct EachSecond(Cell<(Option<Instant>, u32)>);

impl EachSecond {
    /// False when it was done `most` times in this second.
    fn take(&self, now: Instant, most: u32) -> bool {
        let (began, done) = self.0.get();
        let began = began.filter(|&at| now.since(at) < Duration::from_secs(1));
        let done = if began.is_some() { done } else { 0 };
        if done >= most {
            return false;
        }
        self.0.set((began.or(Some(now)), done + 1));
        true
    }
}

//! What the writers of a client share when they chase late replicas (C14).

use std::cell::Cell;

use runtime::{Duration, Instant};

use crate::limits::THIN_ENDS_PER_S_MAX;

/// Bound of what the writers of a process owe together, and of how often they end thin chunks.
#[derive(Debug)]
pub struct ChaseBudget {
    bytes_max: u64,
    bytes: Cell<u64>,
    /// When the present second of thin ends began, and the ends in it.
    ends: Cell<(Option<Instant>, u32)>,
}

impl ChaseBudget {
    /// A budget of `bytes_max` bytes of sectors, of which none are taken.
    pub fn new(bytes_max: u64) -> ChaseBudget {
        ChaseBudget { bytes_max, bytes: Cell::new(0), ends: Cell::default() }
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
        let (began, ends) = self.ends.get();
        let began = began.filter(|&at| now.since(at) < Duration::from_secs(1));
        let ends = if began.is_some() { ends } else { 0 };
        if ends >= THIN_ENDS_PER_S_MAX {
            return false;
        }
        self.ends.set((began.or(Some(now)), ends + 1));
        true
    }
}

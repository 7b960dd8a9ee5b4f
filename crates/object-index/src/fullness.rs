//! [`Fullness`]: what a gateway knows of a full cluster (`object-protocols.md` 5.6): what finds no room is refused before
//! its body is read.

use std::sync::atomic::{AtomicU64, Ordering};

use runtime::Instant;

use crate::limits::FULL_KNOWN;

/// Whether something found no room lately. Any thread may ask.
#[derive(Debug, Default)]
pub(crate) struct Fullness {
    /// Until then it is taken for full, as nanoseconds of the host's clock.
    until: AtomicU64,
}

impl Fullness {
    /// Something found no room.
    pub(crate) fn note_full(&self, now: Instant) {
        self.until.store((now + FULL_KNOWN).as_nanos(), Ordering::Relaxed);
    }

    /// Something has found room.
    pub(crate) fn note_room(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    /// True for a while after something found no room; then some requests find out.
    pub(crate) fn is_known(&self, now: Instant) -> bool {
        now.as_nanos() < self.until.load(Ordering::Relaxed)
    }
}

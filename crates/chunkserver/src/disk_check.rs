//! The check of a disk that is under way, and what it shows.

use std::cell::Cell;

use runtime::{Duration, Instant};

use crate::limits::{DISK_HANGS_LOOKS, DISK_WRITE_CHECKS};

/// The check of a disk that is under way.
#[derive(Default)]
pub(crate) struct DiskCheck {
    began: Cell<Option<Instant>>,
    /// Looks, a pause apart, that have found it under way. A process that stood still has not looked.
    looks: Cell<u32>,
    hangs: Cell<bool>,
    /// Checks that have begun.
    count: Cell<u32>,
}

impl DiskCheck {
    /// A check begins. True when it is to write too.
    pub(crate) fn begin(&self, now: Instant) -> bool {
        self.began.set(Some(now));
        self.looks.set(0);
        self.count.set(self.count.get().wrapping_add(1));
        self.count.get().is_multiple_of(DISK_WRITE_CHECKS)
    }

    /// It has ended. True when the disk was found to hang.
    pub(crate) fn end(&self) -> bool {
        self.began.set(None);
        self.hangs.replace(false)
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.began.get().is_some()
    }

    /// A check has been under way for [`DISK_HANGS_LOOKS`], and is.
    pub(crate) fn hangs(&self) -> bool {
        self.hangs.get()
    }

    /// Time for which a disk that hangs has answered nothing.
    pub(crate) fn hangs_for(&self, now: Instant) -> Option<Duration> {
        self.began.get().filter(|_| self.hangs()).map(|began| now - began)
    }

    /// Looks at a check that is under way. True for the first look that finds that the disk hangs.
    pub(crate) fn look(&self) -> bool {
        self.looks.set(self.looks.get() + 1);
        self.looks.get() >= DISK_HANGS_LOOKS && !self.hangs.replace(true)
    }
}

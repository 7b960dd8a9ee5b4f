//! Object lock as the owner of a range keeps it (`object-protocols.md` 7.2).
//!
//! Invariant: a version's row goes in [`Range::submit`] and [`Range::submit_own`] alone, which ask
//! [`Range::check_removal`].

use object_proto::{BucketId, Error, ObjectLock};

use crate::decisions::{are_apart, unix_us};
use crate::planted::Planted;
use crate::range::Range;
use crate::versions::{Decided, DefaultRetention};

impl Range {
    /// Retentions that end by this time have ended, microseconds since 1970: the lower one of this owner's clock
    /// and the manager's. None has while they are far apart, or the manager's is not known.
    pub(crate) fn over_us(&self) -> u64 {
        if self.has_bug(Planted::LockByClock) {
            return unix_us(&self.env);
        }
        let over_us = self.clock_us();
        if over_us.is_none() && self.lease.manager_us().is_some() {
            self.env.mark("object: no lock ends, as clocks are apart");
        }
        over_us.unwrap_or(0)
    }

    /// The lower one of this owner's clock and the manager's; none while they are far apart, or the manager's is
    /// not known.
    pub(crate) fn clock_us(&self) -> Option<u64> {
        let (own_us, manager_us) = (unix_us(&self.env), self.lease.manager_us()?);
        (!are_apart(own_us, manager_us)).then_some(own_us.min(manager_us))
    }

    /// The later one of this owner's clock and the manager's, as far as that is known: no retention is shorter for
    /// the one that is behind.
    pub(crate) fn latest_us(&self) -> u64 {
        unix_us(&self.env).max(self.lease.manager_us().unwrap_or(0))
    }

    /// An error when a change removes a version that is locked.
    pub(crate) fn check_removal(&self, decided: &Decided) -> Result<(), Error> {
        let Some(gone) = &decided.replaced.gone else { return Ok(()) };
        let lock = gone.row.info.object.facts.lock;
        if lock.is_none() || decided.new.is_some() && self.has_bug(Planted::LockOverwritten) {
            return Ok(());
        }
        let checked = lock.check_removal(self.over_us(), decided.bypass);
        self.env.mark(match checked {
            Ok(()) => "object: a version that was locked is removed",
            Err(_) => "object: a locked version stays",
        });
        checked
    }

    /// How a new object of a bucket is retained, which has that lock of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a lock in a bucket without object lock.
    pub(crate) fn default_retention(
        &self,
        bucket: BucketId,
        lock: ObjectLock,
    ) -> Result<Option<DefaultRetention>, Error> {
        match self.buckets.rules(bucket).lock {
            Some(rule) if lock.retention.is_none() => Ok(rule.default),
            None if !lock.is_none() => Err(without_lock()),
            _ => Ok(None),
        }
    }
}

/// A lock has no meaning in a bucket whose versions can be replaced.
pub(crate) fn without_lock() -> Error {
    let message = "object lock is not enabled for the bucket: enable it first".to_owned();
    Error::Invalid { message }
}

//! Places that clients keep for a while (decision 24).
//!
//! Who alone acts on a segment may read by places that it was told before, until a time from the
//! sending of its question on: it knows of every change, for they are all its own. So before
//! anybody else is admitted, that time has passed. Each answer renews the time for all places of
//! the session, so nothing is lent any more to a session during which somebody else was admitted,
//! though he be gone: what it was told before may be of no use. A former owner of the segment may
//! have told places, too; its time counts from the moment that the segment was taken from it.

use std::cell::Cell;

use block_proto::lease::{DRIFT, PLACES_LENT, drifted};
use runtime::{Env, Instant};

/// To which attachment places of a segment are lent, and until when.
#[derive(Clone, Copy, Default)]
pub(super) struct Lent {
    to: u64,
    pub(super) until: Instant,
}

/// What an owner of a segment has lent.
pub(super) struct Lending {
    /// The owner's epoch.
    epoch: u64,
    lent: Cell<Lent>,
    /// Former owners may have lent until then.
    before: Instant,
    /// Sessions that are being admitted: nothing is lent meanwhile.
    joining: Cell<usize>,
    /// The attachment that joined last, and how often it was another than the one before.
    last: Cell<u64>,
    visits: Cell<u64>,
}

/// A session that is being admitted.
pub(super) struct Joining<'a>(&'a Lending);

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        self.0.joining.set(self.0.joining.get() - 1);
    }
}

impl Lending {
    /// Of the owner with this epoch, who had the segment open before, perhaps, and lent then.
    pub(super) fn new(epoch: u64, before: Instant, lent: Lent) -> Lending {
        let (joining, last, visits) = Default::default();
        Lending { epoch, lent: Cell::new(lent), before, joining, last, visits }
    }

    /// The owner's epoch.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What is lent.
    pub(super) fn lent(&self) -> Lent {
        self.lent.get()
    }

    /// An attachment is about to act on the segment; nothing is lent before the end of it.
    pub(super) fn join(&self, attachment: u64) -> Joining<'_> {
        self.joining.set(self.joining.get() + 1);
        if self.last.replace(attachment) != attachment {
            self.visits.set(self.visits.get() + 1);
        }
        Joining(self)
    }

    /// Tells a time at which one attachment came to act from those at which others did.
    pub(super) fn visit(&self) -> u64 {
        self.visits.get()
    }

    /// Waits until nobody but `attachment` reads by places. Whoever was admitted by this owner, or
    /// the one before it, as the owner with epoch `after`, waited then for what was lent before.
    pub(super) async fn settle(&self, env: &Env, attachment: u64, after: u64) {
        let Lent { to, until } = self.lent.get();
        let mut until = if to == attachment { Instant::default() } else { until };
        if after == 0 || after.saturating_add(1) < self.epoch {
            until = until.max(self.before);
        }
        if env.now() < until {
            env.mark("block: waits for places that are lent");
            env.sleep_until(until).await;
        }
    }

    /// True when nobody is being admitted, and no other attachment was since this visit began.
    pub(super) fn is_quiet(&self, visit: u64) -> bool {
        self.joining.get() == 0 && self.visits.get() == visit
    }

    /// Lends to the only one who acts, within this owner's lease, which lasts until `lease`;
    /// answers for how many milliseconds, 0 for not at all.
    pub(super) fn lend(&self, env: &Env, attachment: u64, lease: Instant) -> u32 {
        let (now, lent) = (env.now(), self.lent.get());
        if now >= lease || lent.to != attachment && now < lent.until {
            return 0;
        }
        // As long by the client's clock is not longer than the lease by this one.
        let span = PLACES_LENT.min((lease - now) * 1000 / (1000 + DRIFT));
        let until = now + drifted(span);
        let until = if lent.to == attachment { until.max(lent.until) } else { until };
        self.lent.set(Lent { to: attachment, until });
        span.as_millis() as u32
    }
}

//! Location leases: for how long a client may keep the locations of blocks (decision 24).
//!
//! When one client alone has a segment open, it may read at its locations until a time that counts
//! from the sending of its request: all changes are its own. Before another attachment is admitted,
//! the lease has expired. Each answer renews the lease of all locations of the session. A session
//! gets no more leases once another attachment was admitted, even if that one has detached: its
//! locations may be stale. A previous owner of the segment may have leased locations, too; that
//! lease counts from the moment at which the segment was taken from it. An attachment that the last
//! owner has admitted does not wait for it, since that owner has leased to no other one from then on,
//! also when it had to open the segment again.

use std::cell::Cell;
use std::rc::Rc;

use block_proto::lease::{DRIFT, LOCATION_LEASE, drifted};
use runtime::{Env, Instant};

/// Holder and expiry of a segment's location lease.
#[derive(Clone, Copy, Default)]
pub(super) struct LocationLease {
    holder: u64,
    pub(super) until: Instant,
}

/// The attachments that have come to an owner of a segment, as long as it has the segment.
#[derive(Default)]
pub struct Admissions {
    /// The one that came last.
    last: Cell<u64>,
    /// The one that was made last.
    newest: Cell<u64>,
    /// Number of those that came after another one.
    visits: Cell<u64>,
}

/// The location lease of a segment that is open here.
pub(super) struct LocationLeases {
    /// The owner's epoch.
    epoch: u64,
    lease: Cell<LocationLease>,
    /// Leases of previous owners have expired then.
    before: Instant,
    /// Sessions that wait or are being admitted: while there are any, nothing is leased.
    joining: Cell<usize>,
    admitted: Rc<Admissions>,
    /// The newest attachment that had come when this owner opened the segment again; 0 for none.
    earlier: u64,
}

/// A session that waits or is being admitted.
pub(super) struct Joining<'a>(&'a LocationLeases);

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        self.0.joining.set(self.0.joining.get() - 1);
    }
}

impl LocationLeases {
    /// Of the owner with this epoch, which has `admitted` attachments before. `lease` is what this
    /// process granted when it had the segment open before, `before` when leases of previous owners have
    /// expired.
    pub(super) fn new(
        epoch: u64,
        before: Instant,
        lease: LocationLease,
        admitted: Rc<Admissions>,
    ) -> LocationLeases {
        let earlier = admitted.newest.get();
        let (lease, joining) = (Cell::new(lease), Cell::default());
        LocationLeases { epoch, lease, before, joining, admitted, earlier }
    }

    /// The owner's epoch.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The lease.
    pub(super) fn lease(&self) -> LocationLease {
        self.lease.get()
    }

    /// An attachment is about to be admitted to the segment; nothing is leased before the returned value
    /// is dropped.
    pub(super) fn hold_back(&self) -> Joining<'_> {
        self.joining.set(self.joining.get() + 1);
        Joining(self)
    }

    /// An attachment is being admitted. Nothing is leased in that time: it was
    /// [held back](LocationLeases::hold_back) before.
    pub(super) fn join(&self, attachment: u64) {
        let Admissions { last, newest, visits } = &*self.admitted;
        newest.set(attachment.max(newest.get()));
        if last.replace(attachment) != attachment {
            visits.set(visits.get() + 1);
        }
    }

    /// Number of the present visit, the time in which one attachment alone has the segment.
    pub(super) fn visit(&self) -> u64 {
        self.admitted.visits.get()
    }

    /// Waits until no location lease of a previous owner is left. An attachment that was admitted by
    /// this owner, or by the previous one, with epoch `after`, has waited for those before, and need not
    /// wait again.
    pub(super) async fn await_previous(&self, env: &Env, after: u64) {
        let admitted =
            after > 0 && (after == self.epoch || after.checked_add(1) == Some(self.epoch));
        if !admitted {
            await_end(env, self.before).await;
        }
    }

    /// Waits until no client but `attachment` holds a location lease of this owner.
    pub(super) async fn await_expiry(&self, env: &Env, attachment: u64) {
        let LocationLease { holder, until } = self.lease.get();
        if holder != attachment {
            await_end(env, until).await;
        }
    }

    /// True when no session is being admitted, and no other attachment was since this visit began.
    pub(super) fn is_quiet(&self, visit: u64) -> bool {
        self.joining.get() == 0 && self.visit() == visit
    }

    /// Renews the lease of the only attachment, within this owner's lease of the segment, which
    /// lasts until `owned`. Returns its milliseconds; 0: the attachment gets none.
    pub(super) fn renew(&self, env: &Env, attachment: u64, owned: Instant) -> u32 {
        let (now, lease) = (env.now(), self.lease.get());
        if now >= owned || lease.holder != attachment && now < lease.until {
            return 0;
        }
        // One that this owner admitted earlier may come to the next owner, and wait for nothing. Those
        // before an attachment that acts alone are over.
        if self.earlier > attachment {
            env.mark("block: no location is leased after another opening");
            return 0;
        }
        // By the client's clock this time is no longer than the lease by this clock.
        let span = LOCATION_LEASE.min((owned - now) * 1000 / (1000 + DRIFT));
        let until = now + drifted(span);
        let until = if lease.holder == attachment { until.max(lease.until) } else { until };
        self.lease.set(LocationLease { holder: attachment, until });
        span.as_millis() as u32
    }
}

async fn await_end(env: &Env, until: Instant) {
    if env.now() < until {
        env.mark("block: waits for a location lease");
        env.sleep_until(until).await;
    }
}

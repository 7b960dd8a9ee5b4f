//! Bodies of requests that are being served: on the heap, which no bound on buffers counts.

use std::cell::Cell;
use std::rc::Rc;

use wire::frame::{BODY_MAX, Priority};

use crate::limits::{
    EXTRA_SHARE, Limits, SERVED_LINK_SHARE, SERVED_SHARE, SERVED_SMALL, with_extra,
};

/// Those of one accepted link. Each counts from its handing over to the handler until the handler
/// has answered or dropped the request.
pub(crate) struct ServedBodies {
    /// Bytes of this link's.
    own: Cell<usize>,
    /// Bytes of all accepted links', broken ones included: their handlers still have the bodies.
    all: Rc<Cell<usize>>,
}

impl ServedBodies {
    pub(crate) fn new(all: Rc<Cell<usize>>) -> ServedBodies {
        ServedBodies { own: Cell::new(0), all }
    }

    /// Whether a body of `len` bytes may be served beside the others, with `budget` bytes of buffers:
    /// within the link's bound and that of all links, or as the only one of its link, or within the
    /// link's share of the extra room. Small ones always may.
    pub(crate) fn has_room(
        &self,
        len: usize,
        priority: Priority,
        limits: &Limits,
        budget: usize,
    ) -> bool {
        if len <= SERVED_SMALL {
            return true;
        }
        let most = (budget / SERVED_SHARE).max(SERVED_LINK_SHARE * BODY_MAX);
        let share = most / EXTRA_SHARE / limits.links_max;
        let most = with_extra(most, priority);
        let extra = most / EXTRA_SHARE;
        let (own, all) = (self.own.get() + len, self.all.get() + len);
        (own <= most / SERVED_LINK_SHARE && all <= most)
            || (own == len && all <= most + extra)
            || (own <= share && all <= most + 2 * extra) // Links that are gone have theirs, too.
    }

    /// Counts a body of `len` bytes, until it is removed.
    pub(crate) fn add(&self, len: usize) {
        if len > SERVED_SMALL {
            self.own.set(self.own.get() + len);
            self.all.set(self.all.get() + len);
        }
    }

    /// Its request was answered or dropped.
    pub(crate) fn remove(&self, len: usize) {
        if len > SERVED_SMALL {
            self.own.set(self.own.get() - len);
            self.all.set(self.all.get() - len);
        }
    }
}

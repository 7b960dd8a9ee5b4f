//! Leases that delay acknowledgements of new owners.

use runtime::Instant;

/// Leases of previous owners, until whose end the owner of a unit must not acknowledge changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Hold<S>(pub(super) Vec<Wait<S>>);

/// A previous owner that may believe to have its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wait<S> {
    pub(super) server: S,
    pub(super) boot: Option<u64>,
    /// The epoch under which it had the unit.
    pub(super) epoch: u64,
    /// It asks the manager about each client that it admits to a unit.
    pub(super) asks_admission: bool,
    /// The change that took the unit from it: when it has made that, it serves no more.
    pub(super) change: u64,
    /// Its lease is over by then.
    pub(super) until: Instant,
}

impl<S> Default for Hold<S> {
    fn default() -> Hold<S> {
        Hold(Vec::new())
    }
}

impl<S> Hold<S> {
    /// End of the last of these leases.
    pub(super) fn until(&self) -> Instant {
        self.0.iter().map(|wait| wait.until).max().unwrap_or_default()
    }

    /// The same for a client that is alone at the owner of `epoch`, which need not wait for the owner
    /// before (`protocols-tail.md` 10.10): that one admits no one else to the unit any more.
    pub(super) fn until_alone(&self, epoch: u64) -> Instant {
        let spared =
            |wait: &&Wait<S>| !(wait.asks_admission && wait.epoch.checked_add(1) == Some(epoch));
        self.0.iter().filter(spared).map(|wait| wait.until).max().unwrap_or_default()
    }
}

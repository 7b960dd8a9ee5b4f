//! [`OwnershipLease`]: a server's side of its lease. It does no I/O.
//!
//! One lease is for all units of the server, and counts from the *sending* of the heartbeat that was
//! granted. A server asks for a unit's [`LeaseState`] before it serves a request, and again before it
//! replies (`protocols.md` 6.5).

use std::collections::{BTreeMap, BTreeSet};

use runtime::{Duration, Instant};

/// Changes of a manager that a server has seen. Changes of different terms do not compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Seen {
    /// The manager's term: its fencing token. 0: nothing seen yet.
    pub term: u64,
    /// Number of the last change seen.
    pub change: u64,
}

/// Rights of a server to a unit, by its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseState {
    /// The lease is valid until then at least: reads and writes are answered.
    Active(Instant),
    /// Answers to reads and writes are held until then: the previous owner's lease may last, and its reads
    /// return what was there before.
    HoldingAcks(Instant),
    /// The lease has expired; another server may own the unit. Fencing protects writes, which may be
    /// acknowledged from this time on. A read may be answered when the core confirms that no other owner
    /// has opened the unit.
    Expired(Instant),
    /// Another server owns the unit: the client needs a new map.
    Revoked,
}

/// Previous owners whose leases an answer waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Predecessors {
    /// All of them.
    All,
    /// All but the last one: for a client that is alone, and that the last one had admitted
    /// (`protocols-tail.md` 10.10).
    AllButLast,
}

/// How a unit is to be served, beside its epoch.
pub trait Setup: Copy {
    /// Takes over what may change under one epoch; true when something has changed.
    fn update(&mut self, to: Self) -> bool;
}

/// A unit that a server owns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owned<T> {
    /// The ownership's epoch.
    pub epoch: u64,
    /// Leases of all previous owners are over then: no write is acknowledged before.
    pub ack_from: Instant,
    /// Leases of all previous owners but the last one are over then ([`Predecessors::AllButLast`]).
    pub alone_from: Instant,
    /// How it is to be served.
    pub setup: T,
}

/// Ownership of a unit as it is granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ownership<T> {
    /// The ownership's epoch.
    pub epoch: u64,
    /// Time from now on for which answers are held: leases of previous owners may last.
    pub hold_ms: u32,
    /// What of that is for the last previous owner only.
    pub predecessor_ms: u32,
    /// How the unit is to be served.
    pub setup: T,
}

/// The answer to a heartbeat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant<U, T> {
    /// Time of the lease from the sending of the heartbeat on; 0: it is not renewed.
    pub lease_ms: u32,
    /// The changes name all that the server owns: what they do not name is not its own.
    pub reset: bool,
    /// Units whose ownership has changed: the server's own from now on, or not.
    pub changes: Vec<(U, Option<Ownership<T>>)>,
    /// The last change that is in this answer or before.
    pub seen: Seen,
    /// Others follow in the next answer.
    pub more: bool,
}

/// Actions that follow from a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action<U, T> {
    /// Open the unit under this epoch.
    Open(U, Owned<T>),
    /// Close the unit that was opened under this epoch.
    Close(U, u64),
    /// Serve the unit that is open under this epoch differently from now on.
    Change(U, u64, T),
}

/// The units of one server, and its lease.
#[derive(Debug)]
pub struct OwnershipLease<U, T> {
    seen: Seen,
    lease_end: Instant,
    units: BTreeMap<U, Owned<T>>,
    /// Units of a previous leader that the present one has not named yet.
    stale: BTreeSet<U>,
}

impl<U: Copy + Ord, T: Setup> Default for OwnershipLease<U, T> {
    fn default() -> OwnershipLease<U, T> {
        OwnershipLease::new()
    }
}

impl<U: Copy + Ord, T: Setup> OwnershipLease<U, T> {
    /// Nothing yet.
    pub fn new() -> OwnershipLease<U, T> {
        OwnershipLease {
            seen: Seen::default(),
            lease_end: Instant::default(),
            units: BTreeMap::new(),
            stale: BTreeSet::new(),
        }
    }

    /// Changes that have been made.
    pub fn seen(&self) -> Seen {
        self.seen
    }

    /// Processes the answer to a heartbeat that was sent at `sent`. Heartbeats are sent one after
    /// the other: an answer to one that was given up is ignored.
    pub fn granted(
        &mut self,
        sent: Instant,
        now: Instant,
        grant: &Grant<U, T>,
    ) -> Vec<Action<U, T>> {
        let mut actions = Vec::new();
        if grant.reset {
            self.stale = self.units.keys().copied().collect();
        }
        for &(unit, ownership) in &grant.changes {
            self.stale.remove(&unit);
            let Some(ownership) = ownership else {
                self.lose(unit, &mut actions);
                continue;
            };
            let Ownership { epoch, hold_ms, predecessor_ms, setup } = ownership;
            let hold = |ms: u32| Duration::from_millis(u64::from(ms));
            let ack_from = now + hold(hold_ms);
            let alone_from = now + hold(hold_ms.saturating_sub(predecessor_ms));
            match self.units.get_mut(&unit) {
                // Both times were safe.
                Some(known) if known.epoch == epoch => {
                    known.ack_from = known.ack_from.min(ack_from);
                    known.alone_from = known.alone_from.min(alone_from);
                    if known.setup.update(setup) {
                        actions.push(Action::Change(unit, epoch, known.setup));
                    }
                }
                Some(known) if known.epoch > epoch => {}
                _ => {
                    self.lose(unit, &mut actions);
                    let owned = Owned { epoch, ack_from, alone_from, setup };
                    self.units.insert(unit, owned);
                    actions.push(Action::Open(unit, owned));
                }
            }
        }
        self.seen = grant.seen;
        if !grant.more {
            for unit in std::mem::take(&mut self.stale) {
                self.lose(unit, &mut actions);
            }
            if grant.lease_ms > 0 {
                let end = sent + Duration::from_millis(u64::from(grant.lease_ms));
                self.lease_end = self.lease_end.max(end);
            }
        }
        actions
    }

    /// A later process is this server: this one owns nothing any more.
    pub fn end(&mut self) -> Vec<Action<U, T>> {
        let mut actions = Vec::new();
        let all: Vec<U> = self.units.keys().copied().collect();
        all.into_iter().for_each(|unit| self.lose(unit, &mut actions));
        actions
    }

    fn lose(&mut self, unit: U, actions: &mut Vec<Action<U, T>>) {
        if let Some(owned) = self.units.remove(&unit) {
            actions.push(Action::Close(unit, owned.epoch));
        }
    }

    /// Lease state of a unit that was opened under `epoch`, for answers that wait for the leases of
    /// `predecessors`.
    pub fn lease_state(
        &self,
        unit: U,
        epoch: u64,
        predecessors: Predecessors,
        now: Instant,
    ) -> LeaseState {
        match self.units.get(&unit) {
            Some(owned) if owned.epoch == epoch => {
                let from = match predecessors {
                    Predecessors::All => owned.ack_from,
                    Predecessors::AllButLast => owned.alone_from,
                };
                if now >= self.lease_end {
                    LeaseState::Expired(from)
                } else if now < from {
                    LeaseState::HoldingAcks(from)
                } else {
                    LeaseState::Active(self.lease_end)
                }
            }
            _ => LeaseState::Revoked,
        }
    }

    /// A unit that this server owns.
    pub fn owned(&self, unit: U) -> Option<Owned<T>> {
        self.units.get(&unit).copied()
    }

    /// All units that this server owns.
    pub fn units(&self) -> impl Iterator<Item = (U, Owned<T>)> {
        self.units.iter().map(|(&unit, &owned)| (unit, owned))
    }

    /// The end of the lease.
    pub fn lease_end(&self) -> Instant {
        self.lease_end
    }
}

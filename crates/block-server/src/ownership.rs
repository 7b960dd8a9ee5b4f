//! [`OwnershipLease`]: the block server's lease. It does no I/O.
//!
//! One lease is for all segments of the server, and counts from the *sending* of the heartbeat that
//! was granted. A server asks for a segment's [`LeaseState`] before it serves a request, and again
//! before it replies (`protocols.md` 6.5).

use std::collections::{BTreeMap, BTreeSet};

use block_proto::{BlockGrant, Seen};
use block_volume::ids::{SegmentId, VolumeId};
use runtime::{Duration, Instant};
use wire::control::Policy;

/// Rights of a server to a segment, by its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseState {
    /// The lease is valid until then at least: reads and writes are answered.
    Active(Instant),
    /// Answers to reads and writes are held until then: the previous owner's lease may last, and its reads
    /// return what was there before.
    HoldingAcks(Instant),
    /// The lease has expired; another server may own the segment. Fencing protects writes, which may be
    /// acknowledged from this time on. A read may be answered when the core confirms that no other owner
    /// has opened the segment ([`block_volume::contract::Owned::confirm`]).
    Expired(Instant),
    /// Another server owns the segment: the client needs a new map.
    Revoked,
}

/// Previous owners whose leases an answer waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Predecessors {
    /// All of them.
    All,
    /// All but the last one: for an attachment that is alone, and that the last one had admitted
    /// (`protocols-tail.md` 10.10).
    AllButLast,
}

/// A segment that a server owns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnedSegment {
    /// The ownership's epoch.
    pub epoch: u64,
    /// Bytes of the segment.
    pub bytes: u64,
    /// Policy of the files that are made from now on; it may change under one epoch.
    pub policy: Policy,
    /// Leases of all previous owners are over then: no write is acknowledged before.
    pub ack_from: Instant,
    /// Leases of all previous owners but the last one are over then ([`Predecessors::AllButLast`]).
    pub alone_from: Instant,
    /// It takes no changes: it is of a snapshot.
    pub read_only: bool,
    /// Clone source: the snapshot from which the first opener links it (B11).
    pub clone_source: Option<VolumeId>,
}

/// Actions that follow from a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Open the segment under this epoch.
    Open(SegmentId, OwnedSegment),
    /// Close the segment that was opened under this epoch.
    Close(SegmentId, u64),
    /// Files of the segment that is open under this epoch are made with this policy from now on.
    SetPolicy(SegmentId, u64, Policy),
}

/// The segments of one server, and its lease.
#[derive(Debug, Default)]
pub struct OwnershipLease {
    seen: Seen,
    lease_end: Instant,
    segments: BTreeMap<SegmentId, OwnedSegment>,
    /// Segments of a previous leader that the present one has not named yet.
    stale: BTreeSet<SegmentId>,
}

impl OwnershipLease {
    /// Nothing yet.
    pub fn new() -> OwnershipLease {
        OwnershipLease::default()
    }

    /// Changes that have been made.
    pub fn seen(&self) -> Seen {
        self.seen
    }

    /// Processes the answer to a heartbeat that was sent at `sent`. Heartbeats are sent one after
    /// the other: an answer to one that was given up is ignored.
    pub fn granted(&mut self, sent: Instant, now: Instant, grant: &BlockGrant) -> Vec<Action> {
        let mut actions = Vec::new();
        if grant.reset {
            self.stale = self.segments.keys().copied().collect();
        }
        for change in &grant.changes {
            let id = change.segment;
            self.stale.remove(&id);
            let Some(ownership) = change.ownership else {
                self.lose(id, &mut actions);
                continue;
            };
            let hold_ms = |but: u32| Duration::from_millis(u64::from(ownership.hold_ms - but));
            let ack_from = now + hold_ms(0);
            let alone_from = now + hold_ms(ownership.predecessor_ms.min(ownership.hold_ms));
            let (epoch, bytes, policy) = (ownership.epoch, ownership.bytes, ownership.policy);
            let (read_only, clone_source) = (ownership.read_only, ownership.clone_source);
            let held = OwnedSegment {
                epoch,
                bytes,
                policy,
                ack_from,
                alone_from,
                read_only,
                clone_source,
            };
            match self.segments.get_mut(&id) {
                // Both times were safe.
                Some(known) if known.epoch == epoch => {
                    known.ack_from = known.ack_from.min(ack_from);
                    known.alone_from = known.alone_from.min(alone_from);
                    if std::mem::replace(&mut known.policy, policy) != policy {
                        actions.push(Action::SetPolicy(id, epoch, policy));
                    }
                }
                Some(known) if known.epoch > epoch => {}
                _ => {
                    self.lose(id, &mut actions);
                    self.segments.insert(id, held);
                    actions.push(Action::Open(id, held));
                }
            }
        }
        self.seen = grant.seen;
        if !grant.more {
            for id in std::mem::take(&mut self.stale) {
                self.lose(id, &mut actions);
            }
            if grant.lease_ms > 0 {
                let end = sent + Duration::from_millis(u64::from(grant.lease_ms));
                self.lease_end = self.lease_end.max(end);
            }
        }
        actions
    }

    /// A later process is this server: this one owns nothing any more.
    pub fn end(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        let all: Vec<SegmentId> = self.segments.keys().copied().collect();
        all.into_iter().for_each(|id| self.lose(id, &mut actions));
        actions
    }

    fn lose(&mut self, id: SegmentId, actions: &mut Vec<Action>) {
        if let Some(held) = self.segments.remove(&id) {
            actions.push(Action::Close(id, held.epoch));
        }
    }

    /// Lease state of a segment that was opened under `epoch`, for answers that wait for the leases
    /// of `predecessors`.
    pub fn lease_state(
        &self,
        id: SegmentId,
        epoch: u64,
        predecessors: Predecessors,
        now: Instant,
    ) -> LeaseState {
        match self.segments.get(&id) {
            Some(held) if held.epoch == epoch => {
                let from = match predecessors {
                    Predecessors::All => held.ack_from,
                    Predecessors::AllButLast => held.alone_from,
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

    /// A segment that this server owns.
    pub fn held(&self, id: SegmentId) -> Option<OwnedSegment> {
        self.segments.get(&id).copied()
    }

    /// All segments that this server owns.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentId, OwnedSegment)> {
        self.segments.iter().map(|(&id, &held)| (id, held))
    }

    /// The end of the lease.
    pub fn lease_end(&self) -> Instant {
        self.lease_end
    }
}

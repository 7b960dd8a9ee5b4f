//! What a block server owns: segments, under one lease ([`tenancy::lease`]).

use block_proto::{BlockGrant, OwnershipGrant};
use block_volume::ids::{SegmentId, VolumeId};
use tenancy::lease::{Grant, Owned, Ownership, Setup};
pub use tenancy::lease::{LeaseState, Predecessors};
use wire::control::Policy;

/// How a segment is to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentSetup {
    /// Bytes of the segment.
    pub bytes: u64,
    /// Policy of the files that are made from now on; it may change under one epoch.
    pub policy: Policy,
    /// It takes no changes: it is of a snapshot.
    pub read_only: bool,
    /// Clone source: the snapshot from which the first opener links it (B11).
    pub clone_source: Option<VolumeId>,
}

impl Setup for SegmentSetup {
    fn update(&mut self, to: SegmentSetup) -> bool {
        std::mem::replace(&mut self.policy, to.policy) != to.policy
    }
}

/// A segment that a server owns.
pub type OwnedSegment = Owned<SegmentSetup>;

/// Actions that follow from a grant.
pub type Action = tenancy::lease::Action<SegmentId, SegmentSetup>;

/// The segments of one server, and its lease.
pub type OwnershipLease = tenancy::lease::OwnershipLease<SegmentId, SegmentSetup>;

/// A manager's answer to a heartbeat.
pub fn grant_of(grant: BlockGrant) -> Grant<SegmentId, SegmentSetup> {
    let ownership = |granted: OwnershipGrant| {
        let OwnershipGrant { epoch, bytes, policy, hold_ms, predecessor_ms, .. } = granted;
        let OwnershipGrant { read_only, clone_source, .. } = granted;
        let setup = SegmentSetup { bytes, policy, read_only, clone_source };
        Ownership { epoch, hold_ms, predecessor_ms, setup }
    };
    let changes = grant.changes.into_iter();
    Grant {
        lease_ms: grant.lease_ms,
        reset: grant.reset,
        changes: changes.map(|change| (change.segment, change.ownership.map(ownership))).collect(),
        seen: grant.seen,
        more: grant.more,
    }
}

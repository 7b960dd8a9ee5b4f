//! Snapshots that are made, used or removed under a leader.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use block_proto::BlockReply;
use block_volume::ids::{SegmentId, VolumeId};
use runtime::Instant;

/// Work on snapshots that is under way under one leader.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// Volumes whose segments are being cut: one cut at a time.
    pub(super) cutting: BTreeSet<VolumeId>,
    /// Snapshots that have segments, and when they were used last.
    pub(super) served: BTreeMap<VolumeId, Instant>,
    /// Snapshots that are about to be removed: no clone is made of them any more.
    pub(super) parting: BTreeMap<VolumeId, Parting>,
}

/// Forced removals of one snapshot that are under way.
#[derive(Debug, Default)]
pub(super) struct Parting {
    /// Their number: a request that comes twice is two. The last one to end lifts the guard.
    pub(super) removals: usize,
    /// Clones of which every segment is linked.
    pub(super) linked: BTreeSet<VolumeId>,
}

/// A segment that takes part in a cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutSegment {
    /// The segment.
    pub segment: SegmentId,
    /// Its owner's epoch.
    pub epoch: u64,
    /// Its owner's address.
    pub addr: SocketAddr,
}

/// Begin of an order.
#[derive(Clone, PartialEq, Debug)]
pub enum Begun<T> {
    /// It was carried out before; with the answer of then.
    Done(BlockReply),
    /// The order is to be carried out.
    Go(T),
}

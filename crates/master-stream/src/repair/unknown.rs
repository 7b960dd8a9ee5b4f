//! Replicas that no stream refers to and no record explains. A few are left by crashes and are
//! deleted. Many show that disk and masters do not belong together: a disk of another cluster or of
//! one that was formed again, or masters that have lost state. Then nothing is deleted before an
//! operator has permitted it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use base::{ChunkId, DiskId};
use wire::control::StoppedCollection;

use crate::limits::{UNKNOWN_HELD_MAX, UNKNOWN_PART, UNKNOWN_REPLICAS_MAX};
use crate::placement::ReplicaLocation;

/// The knowledge of one partition's leader of them. Soft state: the next leader compares, and asks,
/// again.
#[derive(Default)]
pub(crate) struct Unknown {
    stopped: RefCell<BTreeMap<ReplicaLocation, Counted>>,
    permitted: RefCell<BTreeSet<DiskId>>,
}

#[derive(Clone, Copy)]
struct Counted {
    unknown: u64,
    reported: u64,
}

/// One comparison with a disk.
pub(super) struct Comparison {
    place: ReplicaLocation,
    counted: Counted,
    /// Those that are condemned if they are few.
    held: Vec<ChunkId>,
    /// There are more than are held.
    more: bool,
    /// Bytes of replicas that no stream refers to, those with a record of their end too.
    pub(super) unreferenced_bytes: u64,
}

impl Comparison {
    pub(super) fn new(place: ReplicaLocation) -> Comparison {
        let counted = Counted { unknown: 0, reported: 0 };
        Comparison { place, counted, held: Vec::new(), more: false, unreferenced_bytes: 0 }
    }

    /// The disk has reported a replica that holds something, or a tombstone. Tombstones are not
    /// counted: to drop them loses nothing.
    pub(super) fn add(&mut self, chunk: ChunkId, holds: bool, unknown: bool) {
        self.counted.reported += u64::from(holds);
        self.counted.unknown += u64::from(holds && unknown);
        if unknown {
            match self.held.len() < UNKNOWN_HELD_MAX {
                true => self.held.push(chunk),
                false => self.more = true,
            }
        }
    }
}

impl Unknown {
    /// An operator's permission for a disk.
    pub(crate) fn permit(&self, disk: DiskId) {
        if self.stopped.borrow().keys().any(|place| place.disk == disk) {
            self.permitted.borrow_mut().insert(disk);
        }
    }

    /// Replicas to condemn at the end of a comparison: all, or none. Those beyond
    /// [`UNKNOWN_HELD_MAX`] wait for the next one, as does an operator's permission.
    pub(super) fn judge(&self, comparison: Comparison) -> Vec<ChunkId> {
        let Comparison { place, counted, held, more, .. } = comparison;
        let Counted { unknown, reported } = counted;
        let few = unknown <= UNKNOWN_REPLICAS_MAX.max(reported / UNKNOWN_PART);
        let permitted = self.permitted.borrow().contains(&place.disk);
        if few || permitted {
            self.stopped.borrow_mut().remove(&place);
            if !more {
                self.permitted.borrow_mut().remove(&place.disk);
            } else if permitted {
                self.stopped.borrow_mut().insert(place, counted);
            }
            return held;
        }
        if self.stopped.borrow_mut().insert(place, counted).is_none() {
            let disk = place.disk;
            tracing::warn!(
                server = %place.server, %disk, unknown, reported,
                "a disk holds many replicas that no file refers to: nothing of it is collected. \
                 Check that the disk belongs to this cluster; then 'craton masters condemn {disk}' \
                 lets them be deleted"
            );
        }
        Vec::new()
    }

    /// A new leader knows nothing of its predecessors' disks.
    pub(super) fn reset(&self) {
        self.stopped.borrow_mut().clear();
        self.permitted.borrow_mut().clear();
    }

    /// Disks that wait for an operator.
    pub(crate) fn stopped(&self, partition: u16) -> Vec<StoppedCollection> {
        let stopped = self.stopped.borrow();
        let report = |(&ReplicaLocation { server, disk }, &Counted { unknown, reported })| {
            StoppedCollection { partition, server, disk, unknown, reported }
        };
        stopped.iter().map(report).collect()
    }
}

#[cfg(test)]
#[path = "unknown_tests.rs"]
mod tests;

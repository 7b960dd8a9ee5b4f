//! Replicas of a chunk in the eyes of repair, and what they are together.

use super::Defect;
use crate::placement::ReplicaLocation;
use crate::planted::{Planted, planted};
use crate::{Chunk, Slot};

/// State of a place for repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Worth {
    /// Serves.
    Good,
    /// Silent or absent, but not for long: it may come back.
    Hoped,
    /// Its server is silent, or without the disk, for too long, or the disk has failed: its
    /// replicas are repaired around, and taken back should it return first.
    Dead,
}

/// A replica in the eyes of repair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub slot: Slot,
    pub place: ReplicaLocation,
    pub worth: Worth,
    /// Its fault, when it was checked and is not whole.
    pub bad: Option<Defect>,
    /// Attempts to seal it have failed for as long as a silent server is hoped for: its server may
    /// send heartbeats and answer no call.
    pub late: bool,
    /// It is not sealed though its chunk was a while ago: it may lack bytes that others have.
    pub short: bool,
    /// Its server drains: it serves, and is no redundancy (`protocols-tail.md` 10.15). Or it is to be
    /// made, and its server makes no fragments.
    pub leaves: bool,
}

impl Judged {
    /// Redundancy that is there now, or is about to be: sealed or being sealed.
    pub fn counts(&self) -> bool {
        let there = matches!(self.worth, Worth::Good | Worth::Hoped);
        !self.slot.target && self.bad.is_none() && !self.late && there && !self.leaves
    }

    pub fn serves(&self) -> bool {
        !self.slot.target && self.bad.is_none() && self.worth == Worth::Good
    }

    /// It serves, and a reader finds all bytes there as far as is known: redundancy as operators see it.
    pub fn is_redundancy(&self) -> bool {
        self.serves() && !self.short
    }

    /// It is whole as far as is known: copies are made from it.
    pub fn is_source(&self) -> bool {
        self.serves() && self.slot.sealed
    }

    /// It is a source, and is to stay: what a drop must leave as many of as the chunk has copies.
    pub fn stays(&self) -> bool {
        self.is_source() && !self.leaves
    }

    /// It may have bytes that no whole replica has: those of a chunk are the same wherever they
    /// verify.
    pub fn is_last_resort(&self) -> bool {
        let has = !self.slot.target && self.bad != Some(Defect::Missing);
        has && self.worth == Worth::Good && !self.is_source()
    }
}

/// True when all copies, or each fragment once, are there or about to be, and nothing else is on
/// record.
pub(super) fn is_complete(chunk: &Chunk, replicas: &[Judged]) -> bool {
    let copies = usize::from(chunk.copies);
    distinct(chunk, replicas, Judged::counts) == copies && replicas.len() == copies
}

/// Of the replicas that are `such`, the different ones: copies, or fragments once each.
pub(super) fn distinct(
    chunk: &Chunk,
    replicas: &[Judged],
    such: impl Fn(&Judged) -> bool,
) -> usize {
    chunk.distinct(replicas.iter().filter(|replica| such(replica)).map(|replica| replica.slot))
}

/// Settled good replicas that must stay when one is dropped that is of no more use, those on draining
/// servers not counted: all copies, or all fragments (`protocols-tail.md` 10.15).
pub(super) fn must_stay(chunk: &Chunk) -> usize {
    let lacking = usize::from(planted(Planted::DrainDropsFirst));
    usize::from(chunk.copies).saturating_sub(lacking).max(1)
}

/// The order of repair: losses that a chunk survives, and one; 0 when it cannot be read. So copies
/// and fragments are in one queue (`protocols-tail.md` 9.11).
pub(super) fn margin(chunk: &Chunk, serving: usize) -> usize {
    (serving + 1).saturating_sub(chunk.data())
}

#[cfg(test)]
mod tests {
    use base::{ChunkId, Epoch};
    use wire::control::Policy;

    use super::*;
    use crate::PlaceIndex;

    /// One of three copies is in as much danger as four fragments of 4 + 2, or two of 2 + 1.
    #[test]
    fn chunks_are_in_order_of_the_losses_that_they_survive() {
        let chunk = |policy: Policy| {
            let places: Vec<_> = (0..u32::from(policy.copies)).map(PlaceIndex).collect();
            Chunk::new(ChunkId::new(1), Epoch::new(1), policy, &places)
        };
        let margins = |policy, serving: std::ops::Range<usize>| {
            serving.map(|serving| margin(&chunk(policy), serving)).collect::<Vec<_>>()
        };
        assert_eq!(margins(Policy::rep(3), 0..4), [0, 1, 2, 3]);
        assert_eq!(margins(Policy::ec(4, 2), 2..7), [0, 0, 1, 2, 3]);
        assert_eq!(margins(Policy::ec(2, 1), 1..4), [0, 1, 2]);
    }
}

//! Replicas of a chunk by what they are of: copies, or fragments of its code (`protocols-tail.md` 9.11).

use base::ChunkId;
use wire::control::ReplicaPlace;
use wire::row::Fragment;

use crate::placement::{ClusterView, ReplicaLocation};
use crate::{Chunk, Log, Service, Slot};

/// No fragment can be ordered: the replica of a coded chunk has been taken off the record, or its server
/// makes none.
pub(crate) struct NoFragment;

impl<L: Log> Service<L> {
    /// What replicas of a chunk hold together: how many different ones they are, and the fragments that
    /// none of them has ([`Chunk::missing`]). Fragments that are not on record hold nothing.
    pub(crate) fn holders(&self, chunk: &Chunk, places: &[ReplicaLocation]) -> (usize, Vec<u8>) {
        if !chunk.is_coded() {
            return (places.len(), Vec::new());
        }
        let found = self.log.with_state(|state| {
            let (_, _, found) = state.chunk(chunk.id)?;
            let held = |slot: &Slot| places.contains(&state.place(slot.place));
            let slots = || found.slots().filter(held);
            Some((found.distinct(slots()), found.missing(slots())))
        });
        found.unwrap_or_default()
    }

    /// The fragment to order for the replica of a chunk at `place`; none where replicas are copies.
    pub(crate) fn fragment_at(
        &self,
        chunk: &Chunk,
        place: ReplicaLocation,
    ) -> Result<Option<Fragment>, NoFragment> {
        if !chunk.is_coded() {
            return Ok(None);
        }
        if !self.cluster.view().makes_fragments(place.server) {
            self.env.mark("no order to a server that makes no fragments");
            return Err(NoFragment);
        }
        let slot = self.log.with_state(|state| {
            let (_, _, found) = state.chunk(chunk.id)?;
            found.slots().find(|slot| state.place(slot.place) == place)
        });
        slot.map(|slot| chunk.fragment(slot)).ok_or(NoFragment)
    }

    /// Places at which no replica of a chunk is made, whatever room they have.
    pub(crate) fn barred(&self, view: &ClusterView, chunk: &Chunk) -> Vec<ReplicaLocation> {
        let coded = chunk.is_coded().then(|| view.without_fragments());
        coded.into_iter().flatten().collect()
    }

    /// Replicas of a chunk on the wire. Those of a coded chunk with their fragments, without what has
    /// been taken off the record.
    pub(crate) fn addresses(
        &self,
        chunk: ChunkId,
        places: &[ReplicaLocation],
    ) -> Vec<ReplicaPlace> {
        self.log.with_state(|state| {
            let found = state.chunk(chunk).map(|(_, _, found)| found);
            let address = |&place: &ReplicaLocation| {
                let Some(found) = found.filter(|found| found.is_coded()) else {
                    return Some(self.address(place));
                };
                let slot = found.slots().find(|slot| state.place(slot.place) == place)?;
                Some(ReplicaPlace { fragment: slot.fragment, ..self.address(place) })
            };
            places.iter().filter_map(address).collect()
        })
    }

    /// Replicas on record at some places.
    pub(crate) fn slots_at(&self, id: ChunkId, places: &[ReplicaLocation]) -> Vec<Slot> {
        self.log.with_state(|state| {
            let Some((_, _, chunk)) = state.chunk(id) else { return Vec::new() };
            chunk.slots().filter(|slot| places.contains(&state.place(slot.place))).collect()
        })
    }

    /// True when replicas at these places, if they are whole, give a chunk's bytes back.
    pub(crate) fn gives_back(&self, chunk: &Chunk, places: &[ReplicaLocation]) -> bool {
        let distinct = match chunk.is_coded() {
            true => chunk.distinct(self.slots_at(chunk.id, places).into_iter()),
            false => places.len(),
        };
        distinct >= chunk.data()
    }
}

//! Replicas of a chunk by what they are of: copies, or fragments of its code (`protocols-tail.md` 9.11).

use base::ChunkId;
use wire::control::ReplicaPlace;
use wire::row::Fragment;

use crate::placement::ReplicaLocation;
use crate::{Chunk, Log, Service, Slot};

/// A replica of a coded chunk that has been taken off the record: no order says its fragment.
pub(crate) struct NotOnRecord;

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

    /// The fragment that the replica of a chunk at `place` is of; none where replicas are copies.
    pub(crate) fn fragment_at(
        &self,
        chunk: &Chunk,
        place: ReplicaLocation,
    ) -> Result<Option<Fragment>, NotOnRecord> {
        if !chunk.is_coded() {
            return Ok(None);
        }
        let slot = self.log.with_state(|state| {
            let (_, _, found) = state.chunk(chunk.id)?;
            found.slots().find(|slot| state.place(slot.place) == place)
        });
        slot.map(|slot| chunk.fragment(slot)).ok_or(NotOnRecord)
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

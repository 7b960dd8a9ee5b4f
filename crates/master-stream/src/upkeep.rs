//! Commands of repair and collection, and the removal of streams (`protocols.md` 2.4).

use base::{ChunkId, Epoch, FileId};

use super::chunk::{Chunk, Slot};
use super::command::{Outcome, Refusal};
use super::planted::{Planted, planted};
use super::state::{Stream, StreamMachine, refused};
use crate::placement::ReplicaLocation;

const DONE: Outcome = Outcome::Done { len: 0 };

impl StreamMachine {
    pub(super) fn add_replicas(
        &mut self,
        chunk: ChunkId,
        epoch: Epoch,
        places: &[(ReplicaLocation, u8)],
        coded: bool,
    ) -> Outcome {
        let Some((_, stream, found)) = self.chunk(chunk) else {
            return refused(Refusal::NotFound);
        };
        if found.sealed().is_none() {
            let in_recovery = !stream.writing && stream.epoch == epoch;
            if !in_recovery || stream.tail().map(|tail| tail.id) != Some(chunk) {
                return refused(Refusal::Stale);
            }
        }
        let known = |place: ReplicaLocation| {
            self.refers_to(chunk, place) || self.dead(chunk, place).is_some()
        };
        let at = |at: usize| places[at].0;
        let twice = (1..places.len()).any(|one| (0..one).any(|other| at(other) == at(one)));
        let full = found.len_slots() + places.len() > found.slots_max();
        if twice || full || places.iter().any(|&(place, _)| known(place)) {
            return refused(Refusal::Stale);
        }
        let none_such = |&(_, fragment): &(_, u8)| coded && fragment >= found.copies;
        if found.is_coded() != coded || places.iter().any(none_such) {
            return refused(Refusal::Invalid);
        }
        let indexes: Vec<_> =
            places.iter().map(|&(place, fragment)| (self.places.intern(place), fragment)).collect();
        let found = self.chunk_mut(chunk).expect("no spare");
        indexes.into_iter().for_each(|(place, fragment)| found.add_target(place, fragment));
        if found.sealed().is_some() {
            self.partly_sealed.insert(chunk);
        }
        DONE
    }

    pub(super) fn record_seals(&mut self, replicas: &[(ChunkId, ReplicaLocation, u32)]) -> Outcome {
        for &(chunk, place, len) in replicas {
            let Some(place) = self.places.find(place) else { continue };
            let Some(found) = self.sealed_chunk_mut(chunk) else { continue };
            if found.sealed() == Some(len) && found.slot(place).is_some() {
                found.seal_slot(place);
                if found.is_sealed_everywhere() {
                    self.partly_sealed.remove(&chunk);
                }
            }
        }
        DONE
    }

    pub(super) fn drop_replica(
        &mut self,
        chunk: ChunkId,
        place: ReplicaLocation,
        remaining: &[ReplicaLocation],
        delete_at_ms: u64,
    ) -> Outcome {
        let Some(index) = self.places.find(place) else { return refused(Refusal::NotFound) };
        let slot_at = |machine: &StreamMachine, place: ReplicaLocation| -> Option<Slot> {
            let index = machine.places.find(place)?;
            machine.chunk(chunk)?.2.slot(index)
        };
        let Some(slot) = slot_at(self, place) else { return refused(Refusal::NotFound) };
        let stay = |&other: &ReplicaLocation| {
            slot_at(self, other).filter(|slot| other != place && slot.sealed)
        };
        let Some(stay) = remaining.iter().map(stay).collect::<Option<Vec<_>>>() else {
            return refused(Refusal::Stale);
        };
        // A replica being made is no redundancy yet; anything else leaves enough sealed ones behind.
        let may_go = |(_, _, found): (FileId, &Stream, &Chunk)| found.may_lose(slot, &stay);
        if !slot.target && !self.chunk(chunk).is_some_and(may_go) {
            return refused(Refusal::Stale);
        }
        let Some(found) = self.sealed_chunk_mut(chunk) else { return refused(Refusal::Stale) };
        found.remove(index);
        if found.is_sealed_everywhere() {
            self.partly_sealed.remove(&chunk);
        }
        self.condemn_replica(chunk, index, delete_at_ms);
        DONE
    }

    pub(super) fn delete(
        &mut self,
        file: FileId,
        delete_at_ms: u64,
        file_memory_ms: u64,
    ) -> Outcome {
        if let Some(stream) = self.streams.remove(&file) {
            self.spares -= stream.spares.len() as u64;
            for chunk in stream.chunks.iter().chain(&stream.spares) {
                self.condemn_chunk(chunk, delete_at_ms);
            }
            self.recovering.remove(&file);
            self.converting.remove(&file);
            self.note_aging(file);
        }
        if !planted(Planted::ForgetDeletedFile) {
            let until = self.clock_ms.saturating_add(file_memory_ms);
            if let Some(before) = self.dead_files.insert(file, until) {
                self.dead_files_by_time.remove(&(before, file));
            }
            self.dead_files_by_time.insert((until, file));
        }
        DONE
    }

    /// Forgets deleted files whose grants have all run out: a few with each command.
    pub(super) fn forget_files(&mut self) {
        for _ in 0..8 {
            let Some(&(until, file)) = self.dead_files_by_time.first() else { return };
            if until > self.clock_ms {
                return;
            }
            self.dead_files_by_time.pop_first();
            self.dead_files.remove(&file);
        }
    }

    pub(super) fn condemn(
        &mut self,
        replicas: &[(ChunkId, ReplicaLocation)],
        delete_at_ms: u64,
    ) -> Outcome {
        for &(chunk, place) in replicas {
            let kept = self.refers_to(chunk, place) && !planted(Planted::CondemnReferenced);
            if kept || !self.may_have_made(chunk) || self.dead(chunk, place).is_some() {
                continue;
            }
            let index = self.places.intern(place);
            self.condemn_replica(chunk, index, delete_at_ms);
        }
        DONE
    }

    pub(super) fn deleted(
        &mut self,
        replicas: &[(ChunkId, ReplicaLocation)],
        forget_at_ms: u64,
    ) -> Outcome {
        for &(chunk, place) in replicas {
            let Some(index) = self.places.find(place) else { continue };
            if let Some(dead) = self.dead.get_mut(&(index, chunk)) {
                dead.forget_at_ms.get_or_insert(forget_at_ms);
            }
        }
        DONE
    }

    pub(super) fn forget(
        &mut self,
        replicas: &[(ChunkId, ReplicaLocation)],
        gone: bool,
    ) -> Outcome {
        for &(chunk, place) in replicas {
            let Some(index) = self.places.find(place) else { continue };
            let record = self.dead.get(&(index, chunk));
            if record.is_some_and(|dead| gone || dead.forget_at_ms.is_some()) {
                self.dead.remove(&(index, chunk));
            }
        }
        DONE
    }
}

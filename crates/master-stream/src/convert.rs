//! Commands of conversion: a sealed chunk gets another form, in another chunk that takes its place
//! (`protocols-tail.md` 9.12).
//!
//! Invariant 9: until the end is committed all readers use the chunk as it was, which nothing touches; the
//! end is one command, with each replica of the other as evidence.

use base::limits::SECTOR_DATA_MAX;
use base::{ChunkId, FileId};
use wire::control::{Later, Policy};

use super::chunk::{Chunk, PlaceIndex};
use super::command::{Outcome, Refusal};
use super::encoding::Encode;
use super::planted::{Planted, planted};
use super::state::{Owner, Stream, StreamMachine, refused, well_placed};
use crate::placement::ReplicaLocation;
use master_consensus::bytes::{DecodeError, Reader, Writer};

/// Bytes in front of a cell (`protocols-tail.md` 9.2).
const CELL_HEAD: usize = 16;

impl Chunk {
    /// True when it is as chunks of a policy are.
    pub fn has_form(&self, policy: Policy) -> bool {
        let form = |policy: Policy| (policy.data, policy.copies, policy.compression);
        form(self.policy()) == form(policy)
    }

    /// True when it has another form than chunks of a policy, and would be better off with that one. Few
    /// bytes take less room in copies that survive as much as the policy's code does.
    pub fn is_to_convert(&self, policy: Policy) -> bool {
        if self.has_form(policy) {
            return false;
        }
        let parity = policy.copies.saturating_sub(policy.data);
        let in_few_copies = policy.is_coded() && !self.is_coded() && self.copies > parity;
        let len = self.sealed().unwrap_or(0) as usize;
        let coded = (CELL_HEAD + len.div_ceil(policy.data.into())).div_ceil(SECTOR_DATA_MAX);
        let coded = coded * usize::from(policy.copies);
        !in_few_copies || coded < len.div_ceil(SECTOR_DATA_MAX) * usize::from(self.copies)
    }

    /// The chunk that is to have the bytes of a sealed one.
    fn of_another(of: &Chunk, id: ChunkId, policy: Policy, places: &[PlaceIndex]) -> Chunk {
        let mut chunk = Chunk::new(id, of.epoch, policy, places);
        chunk.base = of.base;
        chunk.seal(of.sealed().expect("open chunks are not converted"));
        chunk
    }
}

impl StreamMachine {
    /// Notes that the sealed chunks of a file are to have the form of its policy, or that they stay as they
    /// are.
    pub(super) fn convert(&mut self, file: FileId, wanted: bool) -> Outcome {
        if self.dead_files.contains_key(&file) {
            return refused(Refusal::Dead);
        }
        // It was never written to.
        let Some(stream) = self.streams.get_mut(&file) else { return Outcome::Done { len: 0 } };
        stream.converting = wanted;
        let len = stream.sealed_len();
        self.note_converting(file);
        Outcome::Done { len }
    }

    /// Brings the note up to date after a change of `file`: nothing may be left to convert.
    pub(super) fn note_converting(&mut self, file: FileId) {
        let wanted = self.streams.get(&file).is_some_and(|stream| stream.converting);
        if wanted && self.streams[&file].has_other_form() {
            self.converting.insert(file);
            return;
        }
        self.converting.remove(&file);
        if wanted {
            self.streams.get_mut(&file).expect("found above").converting = false;
        }
    }

    /// True for a sealed chunk that is old enough, by the group's clock, for the form of old chunks.
    fn is_aged(&self, stream: &Stream, chunk: &Chunk) -> bool {
        let clock_s = self.clock_ms / 1000;
        planted(Planted::YoungIsOld)
            || stream.aging().any(|(due_s, it)| it.id == chunk.id && due_s <= clock_s)
    }

    /// Brings the note of when a stream's first chunk is old up to date, after a change of which chunks it has
    /// that are to get another form then.
    pub(super) fn note_aging(&mut self, file: FileId) {
        let due_s = self.streams.get(&file).and_then(Stream::due_s);
        let before = match due_s {
            Some(due_s) => self.aging.insert(file, due_s),
            None => self.aging.remove(&file),
        };
        if before != due_s {
            if let Some(at) = before {
                self.aging_by_time.remove(&(at, file));
            }
            self.aging_by_time.extend(due_s.map(|at| (at, file)));
        }
    }

    /// Records the chunk that is to take the place of another, before anything of it is written.
    pub(super) fn begin_conversion(
        &mut self,
        chunk: ChunkId,
        policy: Policy,
        places: &[ReplicaLocation],
    ) -> Outcome {
        let Some((_, stream, found)) = self.chunk(chunk) else {
            return refused(Refusal::NotFound);
        };
        let settled = found.sealed().is_some() && found.is_sealed_everywhere();
        let wanted =
            stream.converting && stream.policy.form() == policy && stream.has_form_to_get(found);
        let is_old = |later: Later| later.policy() == policy && self.is_aged(stream, found);
        let wanted = wanted || stream.policy.later.is_some_and(is_old);
        if !settled || !wanted || !found.is_to_convert(policy) || self.conversion(chunk).is_some() {
            return refused(Refusal::Stale);
        }
        self.record_shadow(chunk, policy, places)
    }

    /// Records the chunk that is to take the place of a coded one, some of whose rows were coded wrong.
    pub(super) fn lay_out_again(&mut self, chunk: ChunkId, places: &[ReplicaLocation]) -> Outcome {
        let Some((_, _, found)) = self.chunk(chunk) else { return refused(Refusal::NotFound) };
        let settled = found.sealed().is_some() && found.is_sealed_everywhere();
        if !settled || !found.is_coded() || self.conversion(chunk).is_some() {
            return refused(Refusal::Stale);
        }
        self.record_shadow(chunk, found.policy(), places)
    }

    fn record_shadow(
        &mut self,
        chunk: ChunkId,
        policy: Policy,
        places: &[ReplicaLocation],
    ) -> Outcome {
        let all = places.len() == usize::from(policy.copies);
        if !policy.is_valid() || !all || !well_placed(&[places.to_vec()]) {
            return refused(Refusal::Invalid);
        }
        if self.numbers_left() == 0 {
            return refused(Refusal::Full);
        }
        let found = self.chunk(chunk).expect("of a stream").2.clone();
        let indexes: Vec<_> = places.iter().map(|&place| self.places.intern(place)).collect();
        let shadow = Chunk::of_another(&found, self.next_id(), policy, &indexes);
        self.shadows.insert(shadow.id, chunk);
        self.conversions.insert(chunk, shadow);
        Outcome::Done { len: found.end() }
    }

    /// Puts the other chunk, each replica of which is sealed and verified, in the place of the first, whose
    /// replicas nothing refers to from then on.
    pub(super) fn end_conversion(
        &mut self,
        chunk: ChunkId,
        shadow: ChunkId,
        settled: &[ReplicaLocation],
        delete_at_ms: u64,
    ) -> Outcome {
        let Some(found) = self.conversion(chunk).filter(|found| found.id == shadow) else {
            return refused(Refusal::Stale);
        };
        let is_settled = |place: PlaceIndex| settled.contains(&self.places.get(place));
        if !found.slots().all(|slot| is_settled(slot.place)) {
            return refused(Refusal::Invalid);
        }
        let mut made = self.conversions.remove(&chunk).expect("found above");
        self.shadows.remove(&shadow);
        let places: Vec<_> = made.slots().map(|slot| slot.place).collect();
        places.into_iter().for_each(|place| made.seal_slot(place));
        let owner @ Owner { file, .. } = self.owners[&chunk];
        let end = made.end();
        let place = self.sealed_chunk_mut(chunk).expect("conversions are of sealed chunks");
        let before = std::mem::replace(place, made);
        self.owners.remove(&chunk);
        self.owners.insert(shadow, owner);
        self.partly_sealed.remove(&chunk);
        before.slots().for_each(|slot| self.condemn_replica(chunk, slot.place, delete_at_ms));
        self.note_converting(file);
        self.note_aging(file);
        Outcome::Done { len: end }
    }

    /// Gives a conversion up: what was written of the other chunk is deleted, and never completed.
    pub(super) fn abort_conversion(&mut self, shadow: ChunkId, delete_at_ms: u64) -> Outcome {
        let Some(&chunk) = self.shadows.get(&shadow) else { return refused(Refusal::Stale) };
        self.drop_conversion(chunk, delete_at_ms);
        Outcome::Done { len: 0 }
    }

    /// The same, of a chunk that leaves its stream, if it is converted.
    pub(super) fn drop_conversion(&mut self, chunk: ChunkId, delete_at_ms: u64) {
        let Some(shadow) = self.conversions.remove(&chunk) else { return };
        self.shadows.remove(&shadow.id);
        if planted(Planted::ShadowForgotten) {
            return;
        }
        shadow.slots().for_each(|slot| self.condemn_replica(shadow.id, slot.place, delete_at_ms));
    }

    /// A conversion from its row.
    pub(super) fn load_conversion(
        &mut self,
        of: ChunkId,
        from: &mut Reader<'_>,
    ) -> Result<(), DecodeError> {
        let mut shadow = Chunk::take(from)?;
        let policy = Policy::take(from)?;
        shadow.set_form(policy.copies, policy.compression);
        let same = shadow.policy() == policy && self.check_conversion(of, &shadow).is_ok();
        if !same || self.shadows.insert(shadow.id, of).is_some() {
            return Err(DecodeError);
        }
        self.conversions.load(of, shadow);
        Ok(())
    }

    /// What holds of each conversion.
    pub(super) fn check_conversion(&self, of: ChunkId, shadow: &Chunk) -> Result<(), &'static str> {
        let found = self.chunk(of).filter(|(_, _, found)| found.sealed().is_some());
        let Some((_, stream, found)) = found else {
            return Err("9: a chunk that is converted is sealed, and of a stream");
        };
        if (shadow.base, shadow.sealed(), shadow.epoch) != (found.base, found.sealed(), found.epoch)
        {
            return Err("9: a conversion has the place and the length of what it converts");
        }
        if self.owners.contains_key(&shadow.id) || shadow.slots().any(|slot| slot.sealed) {
            return Err("9: no stream has what a conversion makes");
        }
        self.check_chunk(stream, shadow)
    }
}

/// The row of a conversion: the chunk, and the policy that it is made by.
pub(super) struct ConversionRow<'a>(pub &'a Chunk);

impl ConversionRow<'_> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::new();
        self.0.put(&mut to);
        self.0.policy().put(&mut to);
        to.finish()
    }
}

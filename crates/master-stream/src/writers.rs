//! Commands of writers and of recovery: epochs, seals, spares (`protocols.md` 1 and 2).

use std::collections::BTreeSet;

use base::limits::CHUNK_LEN_MAX;
use base::{ChunkId, Epoch, FileId};
use wire::control::{OpId, Policy};

use super::chunk::{Chunk, Slot};
use super::command::{Outcome, Refusal};
use super::limits::SPARES_MAX;
use super::planted::{Planted, planted};
use super::state::{Stream, StreamMachine, refused, well_placed};
use crate::placement::ReplicaLocation;

/// Why a tail's length is what it is.
pub(super) enum SealedBy {
    /// The order statistic of the votes.
    Statistic,
    /// A longer vote.
    LongerVote,
    /// The longest vote there is, by an operator's word, without replicas that are gone.
    Operator { lost: Vec<ReplicaLocation> },
}

/// The parts of [`super::Action::SealTail`] and the actions like it.
pub(super) struct TailSeal {
    pub epoch: Epoch,
    pub chunk: ChunkId,
    pub len: u32,
    pub by: SealedBy,
    pub votes: Vec<(ReplicaLocation, u32)>,
    pub holders: Vec<ReplicaLocation>,
    pub delete_at_ms: u64,
}

/// A writer's wish for its spares.
pub(super) struct SpareChange<'a> {
    pub drop: &'a [ChunkId],
    pub fresh: &'a [Vec<ReplicaLocation>],
    pub delete_at_ms: u64,
}

impl StreamMachine {
    pub(super) fn open(
        &mut self,
        op: &OpId,
        file: FileId,
        policy: Policy,
        fresh: &[Vec<ReplicaLocation>],
        follows: Option<Epoch>,
    ) -> Outcome {
        if self.dead_files.contains_key(&file) {
            return refused(Refusal::Dead);
        }
        let policy = self.streams.get(&file).map_or(policy, |stream| stream.policy);
        if !policy.is_valid() || !well_placed(fresh) || fresh.len() > 1 + SPARES_MAX {
            return refused(Refusal::Invalid);
        }
        let left = self.numbers_left();
        if left == 0 || self.streams.get(&file).is_some_and(|it| it.has_no_epoch_for(op)) {
            return refused(Refusal::Full);
        }
        let finished = self.streams.get(&file).is_some_and(|stream| stream.finished);
        if let Some(epoch) = follows.and_then(|follows| self.passed(op, file, follows))
            && !finished
        {
            return refused(Refusal::Fenced { epoch });
        }
        let fresh = &fresh[..fresh.len().min(left)];
        let epoch = self.first_epoch;
        let first = || Stream { epoch, ..Stream::new(policy) };
        let stream = self.streams.get_or_insert_with(file, first);
        if stream.finished {
            return refused(Refusal::Finished);
        }
        let epoch = stream.take_epoch(op);
        let outcome = if stream.needs_recovery() || fresh.is_empty() {
            Outcome::Recover { epoch }
        } else {
            self.grant(file, fresh)
        };
        self.note_recovery(file);
        outcome
    }

    /// Sets the policy of chunks to come. Of a file that was never opened the stream is made, so that
    /// a client that looked the file up before does not open it with its former policy.
    pub(super) fn set_policy(&mut self, file: FileId, policy: Policy) -> Outcome {
        if self.dead_files.contains_key(&file) {
            return refused(Refusal::Dead);
        }
        if !policy.is_valid() {
            return refused(Refusal::Invalid);
        }
        let (epoch, clock_s) = (self.first_epoch, self.clock_s());
        let first = || Stream { epoch, ..Stream::new(policy) };
        let stream = self.streams.get_or_insert_with(file, first);
        stream.policy = policy;
        let sealed = stream.chunks.iter().filter(|chunk| chunk.sealed().is_some()).count();
        match policy.later {
            // Those of which that is not known are young.
            Some(_) => stream.sealed_s.resize(sealed, clock_s),
            None => stream.sealed_s = Vec::new(),
        }
        let len = stream.sealed_len();
        self.note_converting(file);
        self.note_aging(file);
        Outcome::Done { len }
    }

    /// Gives the stream's epoch to a writer, with a chunk to write and spares.
    fn grant(&mut self, file: FileId, fresh: &[Vec<ReplicaLocation>]) -> Outcome {
        let mut chunks: Vec<_> = fresh.iter().map(|places| self.make_chunk(file, places)).collect();
        self.spares += chunks.len() as u64 - 1;
        let stream = self.streams.get_mut(&file).expect("the caller has it");
        assert!(!stream.writing && stream.tail().is_none() && stream.spares.is_empty());
        let first = chunks.remove(0);
        stream.spares = chunks;
        stream.writing = true;
        stream.opening = None;
        let epoch = stream.epoch;
        self.push_chunk(file, first);
        Outcome::Writer { file, epoch }
    }

    pub(super) fn seal(&mut self, op: &OpId, file: FileId, follows: Option<Epoch>) -> Outcome {
        let Some(stream) = self.streams.get(&file) else {
            return refused(Refusal::NotFound);
        };
        if !stream.writing && !stream.needs_recovery() {
            return Outcome::Done { len: stream.sealed_len() };
        }
        if let Some(epoch) = follows.and_then(|follows| self.passed(op, file, follows)) {
            return refused(Refusal::Fenced { epoch });
        }
        let stream = self.streams.get_mut(&file).expect("found above");
        let epoch = stream.take_epoch(op);
        self.note_recovery(file);
        Outcome::Recover { epoch }
    }

    pub(super) fn seal_tail(&mut self, file: FileId, seal: &TailSeal) -> Outcome {
        let Some(stream) = self.streams.get(&file) else { return refused(Refusal::NotFound) };
        if stream.epoch != seal.epoch {
            return refused(Refusal::Fenced { epoch: stream.epoch });
        }
        let Some(tail) = stream.tail().filter(|tail| tail.id == seal.chunk && !stream.writing)
        else {
            return refused(Refusal::Stale);
        };
        if let Err(why) = self.check_evidence(tail, seal) {
            return refused(why);
        }
        let holders: BTreeSet<_> =
            seal.holders.iter().filter_map(|&place| self.places.find(place)).collect();
        let targets: Vec<_> = tail.slots().filter(|slot| slot.target).collect();
        let stream = self.streams.get_mut(&file).expect("found above");
        stream.loss_accepted |= matches!(seal.by, SealedBy::Operator { .. });
        if seal.len > 0 {
            let tail = stream.tail_mut().expect("found above");
            for target in &targets {
                if holders.contains(&target.place) {
                    tail.promote(target.place);
                } else {
                    tail.remove(target.place);
                }
            }
            for target in targets.iter().filter(|target| !holders.contains(&target.place)) {
                self.condemn_replica(seal.chunk, target.place, seal.delete_at_ms);
            }
        }
        self.end_tail(file, seal.len, seal.delete_at_ms);
        self.note_recovery(file);
        Outcome::Done { len: self.streams[&file].sealed_len() }
    }

    /// The votes are of replicas that take part, enough, and permit this length; each holder is on
    /// record, and they give the bytes back.
    fn check_evidence(&self, tail: &Chunk, seal: &TailSeal) -> Result<(), Refusal> {
        let slot = |place| self.places.find(place).and_then(|index| tail.slot(index));
        let voters: BTreeSet<_> = seal.votes.iter().map(|&(place, _)| place).collect();
        let vote = |place: &ReplicaLocation| slot(*place).is_some_and(|slot| !slot.target);
        let lens: Vec<_> = seal.votes.iter().map(|&(_, len)| len).collect();
        if voters.len() != lens.len() || !voters.iter().all(vote) {
            return Err(Refusal::Stale);
        }
        let quorum = tail.quorum();
        let by_votes = |is_longer| {
            quorum.sealed_lens(&lens).is_some_and(|range| {
                range.contains(&seal.len) && is_longer == (seal.len > *range.start())
            })
        };
        let permitted = match &seal.by {
            SealedBy::Statistic => by_votes(false),
            SealedBy::LongerVote => by_votes(true),
            SealedBy::Operator { lost } => {
                let all: BTreeSet<_> = lost.iter().chain(&voters).collect();
                if !lost.iter().all(vote) || all.len() != tail.voters() {
                    return Err(Refusal::Stale);
                }
                seal.len == quorum.longest_left(&lens)
            }
        };
        let good = permitted || planted(Planted::ShortestVote) || planted(Planted::OneVote);
        let holders: Option<Vec<_>> = seal.holders.iter().map(|&place| slot(place)).collect();
        let held = |slots: Vec<Slot>| quorum.is_held(seal.len, tail.distinct(slots.into_iter()));
        if !good || !holders.is_some_and(held) {
            return Err(Refusal::Invalid);
        }
        Ok(())
    }

    /// Seals the open chunk at `len`; an empty one leaves the stream.
    fn end_tail(&mut self, file: FileId, len: u32, delete_at_ms: u64) {
        let clock_s = self.clock_s();
        let stream = self.streams.get_mut(&file).expect("the caller has it");
        let tail = stream.tail_mut().expect("the caller has checked");
        if len > 0 {
            tail.seal(len);
            let id = tail.id;
            if stream.policy.later.is_some() {
                stream.sealed_s.push(clock_s);
            }
            self.logical_bytes += u64::from(len);
            self.partly_sealed.insert(id);
            // One that is noted already has an older chunk.
            if !self.aging.contains_key(&file) {
                self.note_aging(file);
            }
        } else {
            let empty = stream.chunks.pop().expect("the tail");
            self.condemn_chunk(&empty, delete_at_ms);
        }
    }

    pub(super) fn finish(
        &mut self,
        file: FileId,
        epoch: Epoch,
        fenced: &[ChunkId],
        fresh: &[Vec<ReplicaLocation>],
        delete_at_ms: u64,
    ) -> Outcome {
        let left = self.numbers_left();
        let Some(stream) = self.streams.get_mut(&file) else {
            return refused(Refusal::NotFound);
        };
        if stream.epoch != epoch {
            return refused(Refusal::Fenced { epoch: stream.epoch });
        }
        let all_fenced = stream.spares.iter().all(|spare| fenced.contains(&spare.id));
        if stream.writing || stream.tail().is_some() || !all_fenced {
            return refused(Refusal::Stale);
        }
        if !fresh.is_empty() && stream.finished {
            return refused(Refusal::Finished);
        }
        if !well_placed(fresh) || fresh.len() > 1 + SPARES_MAX {
            return refused(Refusal::Invalid);
        }
        let full = left == 0 || epoch > Epoch::LAST_WRITER;
        if full && !fresh.is_empty() {
            return refused(Refusal::Full);
        }
        let spares = std::mem::take(&mut stream.spares);
        let len = stream.sealed_len();
        self.condemn_spares(&spares, delete_at_ms);
        self.note_recovery(file);
        if fresh.is_empty() {
            return Outcome::Done { len };
        }
        self.grant(file, &fresh[..fresh.len().min(left)])
    }

    fn condemn_spares(&mut self, spares: &[Chunk], delete_at_ms: u64) {
        self.spares -= spares.len() as u64;
        spares.iter().for_each(|spare| self.condemn_chunk(spare, delete_at_ms));
    }

    /// The stream that a writer under `epoch` still owns.
    fn written(&mut self, file: FileId, epoch: Epoch) -> Result<&mut Stream, Refusal> {
        let Some(stream) = self.streams.get_mut(&file) else {
            let dead = self.dead_files.contains_key(&file);
            return Err(if dead { Refusal::Dead } else { Refusal::NotFound });
        };
        if planted(Planted::OldEpochAdvances) && stream.tail().is_some() {
            return Ok(stream);
        }
        if stream.epoch != epoch || !stream.writing {
            return Err(Refusal::Fenced { epoch: stream.epoch });
        }
        Ok(stream)
    }

    pub(super) fn advance(
        &mut self,
        file: FileId,
        epoch: Epoch,
        sealed: (ChunkId, u32),
        next: ChunkId,
        change: &SpareChange<'_>,
    ) -> Outcome {
        let stream = match self.written(file, epoch) {
            Ok(stream) => stream,
            Err(why) => return refused(why),
        };
        let at = stream.spares.iter().position(|spare| spare.id == next);
        let is_tail = stream.tail().is_some_and(|tail| tail.id == sealed.0);
        let Some(at) = at.filter(|_| is_tail && !change.drop.contains(&next)) else {
            return refused(Refusal::Stale);
        };
        if u64::from(sealed.1) > CHUNK_LEN_MAX || !well_placed(change.fresh) {
            return refused(Refusal::Invalid);
        }
        // Spares in front of the one that the writer goes on in are passed over for ever.
        let mut passed: Vec<_> = stream.spares.drain(..=at).collect();
        let successor = passed.pop().expect("the spare found");
        self.spares -= 1;
        self.condemn_spares(&passed, change.delete_at_ms);
        self.end_tail(file, sealed.1, change.delete_at_ms);
        self.ended_bytes.add(u64::from(sealed.1));
        self.push_chunk(file, successor);
        self.change_spares(file, change);
        Outcome::Writer { file, epoch }
    }

    pub(super) fn extend(
        &mut self,
        file: FileId,
        epoch: Epoch,
        change: &SpareChange<'_>,
    ) -> Outcome {
        if let Err(why) = self.written(file, epoch) {
            return refused(why);
        }
        if !well_placed(change.fresh) {
            return refused(Refusal::Invalid);
        }
        if !change.fresh.is_empty() && self.numbers_left() == 0 {
            return refused(Refusal::Full);
        }
        self.change_spares(file, change);
        Outcome::Writer { file, epoch }
    }

    /// Drops the spares that are no use and adds new ones behind the others, as far as there is
    /// room and numbers are left. The writer sends nothing to a spare before it goes on in it by name.
    fn change_spares(&mut self, file: FileId, change: &SpareChange<'_>) {
        let left = self.numbers_left();
        let stream = self.streams.get_mut(&file).expect("the caller has it");
        let dropped: Vec<_> =
            stream.spares.extract_if(.., |spare| change.drop.contains(&spare.id)).collect();
        let room = SPARES_MAX.saturating_sub(stream.spares.len()).min(left);
        self.condemn_spares(&dropped, change.delete_at_ms);
        let fresh: Vec<_> =
            change.fresh.iter().take(room).map(|places| self.make_chunk(file, places)).collect();
        self.spares += fresh.len() as u64;
        self.streams.get_mut(&file).expect("found above").spares.extend(fresh);
    }

    /// Ends the writer of a chunk, as long as that is the open one.
    pub(super) fn seal_abandoned(
        &mut self,
        op: &OpId,
        file: FileId,
        epoch: Epoch,
        chunk: ChunkId,
    ) -> Outcome {
        let goes_on = |stream: &Stream| {
            let owned = stream.epoch == epoch && stream.writing;
            owned && stream.tail().map(|tail| tail.id) != Some(chunk)
        };
        if self.streams.get(&file).is_some_and(goes_on) {
            return refused(Refusal::Stale);
        }
        self.close(op, file, epoch, None, false, 0)
    }

    pub(super) fn close(
        &mut self,
        op: &OpId,
        file: FileId,
        epoch: Epoch,
        sealed: Option<(ChunkId, u32)>,
        finish: bool,
        delete_at_ms: u64,
    ) -> Outcome {
        let key = (op.client, op.seq);
        // A repeat of a close without a length, whose recovery is under way.
        if let Some(stream) = self.streams.get(&file)
            && stream.opening == Some(key)
        {
            return Outcome::Recover { epoch: stream.epoch };
        }
        let stream = match self.written(file, epoch) {
            Ok(stream) => stream,
            Err(why) => return refused(why),
        };
        let tail = stream.tail().expect("a writer has an open chunk").id;
        let Some((chunk, len)) = sealed else {
            // The writer does not say how long its chunk is: its replicas do.
            stream.finished |= finish;
            let epoch = stream.take_epoch(op);
            self.note_recovery(file);
            return Outcome::Recover { epoch };
        };
        if chunk != tail {
            return refused(Refusal::Stale);
        }
        if u64::from(len) > CHUNK_LEN_MAX {
            return refused(Refusal::Invalid);
        }
        stream.finished |= finish;
        stream.writing = false;
        let spares = std::mem::take(&mut stream.spares);
        self.condemn_spares(&spares, delete_at_ms);
        self.end_tail(file, len, delete_at_ms);
        self.ended_bytes.add(u64::from(len));
        let stream = self.streams.get_mut(&file).expect("found above");
        stream.chunks.shrink_to_fit();
        Outcome::Done { len: stream.sealed_len() }
    }
}

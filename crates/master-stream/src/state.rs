//! The state of a stream partition.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use base::{ChunkId, ClientId, DiskId, Epoch, FileId, ID_COUNTER_END};
use wire::control::{Later, OpId, Policy};
use wire::row::FRAGMENTS_MAX;

use super::chunk::{Chunk, PlaceIndex, Places};
use super::command::{Outcome, Refusal};
use super::encoding::encode_struct;
use super::planted::{Planted, planted};
use crate::placement::ReplicaLocation;
use master_consensus::replies::{ReplyTable, Seen};
use master_consensus::tracked::Tracked;

/// A file's chunks and its writer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Replication policy of the chunks that it gets from now on: each records its own.
    pub policy: Policy,
    /// Epoch of the latest writer, or recovery.
    pub epoch: Epoch,
    /// A writer holds `epoch`: the last chunk is its, and the spares. Otherwise what is open
    /// belongs to older writers and waits for recovery.
    pub writing: bool,
    /// It takes no appends ever again.
    pub finished: bool,
    /// An operator had it sealed without replicas that are gone: acknowledged bytes may be missing.
    pub loss_accepted: bool,
    /// Its sealed chunks are to have the form that its policy asks for, those that there are.
    pub converting: bool,
    /// The mutation that took `epoch` and was not answered yet.
    pub opening: Option<(ClientId, u64)>,
    /// In file order. All but the last are sealed.
    pub chunks: Vec<Chunk>,
    /// When each sealed chunk was, seconds of the group's clock, in their order; of those that were sealed before
    /// the policy had a form for old chunks, when it got one. Empty while it has none.
    pub sealed_s: Vec<u32>,
    /// Recorded spares, in order (`protocols.md` 1.5).
    pub spares: Vec<Chunk>,
}

impl Stream {
    pub(super) fn new(policy: Policy) -> Stream {
        Stream {
            policy,
            epoch: Epoch::NONE,
            writing: false,
            finished: false,
            loss_accepted: false,
            converting: false,
            opening: None,
            chunks: Vec::new(),
            sealed_s: Vec::new(),
            spares: Vec::new(),
        }
    }

    /// The open chunk.
    pub fn tail(&self) -> Option<&Chunk> {
        self.chunks.last().filter(|chunk| chunk.sealed().is_none())
    }

    /// Its chunks, then its spares.
    pub fn all_chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().chain(&self.spares)
    }

    pub(super) fn tail_mut(&mut self) -> Option<&mut Chunk> {
        self.chunks.last_mut().filter(|chunk| chunk.sealed().is_none())
    }

    /// Sum of the sealed chunks' lengths.
    pub fn sealed_len(&self) -> u64 {
        self.chunks.last().map_or(0, Chunk::end)
    }

    /// True when older writers' chunks must be fenced before another may write.
    pub fn needs_recovery(&self) -> bool {
        !self.writing && (self.tail().is_some() || !self.spares.is_empty())
    }

    /// Where in its list a chunk is that begins at `base`. Identities do not grow along the stream: one
    /// that was converted has a younger one.
    pub(super) fn position(&self, id: ChunkId, base: u64) -> Option<usize> {
        let at = self.chunks.binary_search_by_key(&base, |chunk| chunk.base).ok()?;
        (self.chunks[at].id == id).then_some(at)
    }

    /// True when it has a sealed chunk that is to be converted to its policy.
    pub fn has_other_form(&self) -> bool {
        let sealed = |chunk: &&Chunk| chunk.sealed().is_some();
        self.chunks.iter().filter(sealed).any(|chunk| self.has_form_to_get(chunk))
    }

    /// True for a sealed chunk that an operator's word converts: one that got the form for old chunks keeps
    /// that.
    pub fn has_form_to_get(&self, chunk: &Chunk) -> bool {
        let is_old =
            |later: Later| !chunk.is_to_convert(later.policy()) && chunk.has_form(later.policy());
        chunk.is_to_convert(self.policy) && !self.policy.later.is_some_and(is_old)
    }

    /// Sealed chunks that get the form for old chunks, with when they do, by the group's clock.
    pub fn aging(&self) -> impl Iterator<Item = (u64, &Chunk)> {
        let later = self.policy.later;
        let dated = self.chunks.iter().zip(&self.sealed_s);
        dated.filter_map(move |(chunk, sealed_s)| {
            let later = later.filter(|later| chunk.is_to_convert(later.policy()))?;
            Some((u64::from(*sealed_s) + u64::from(later.after_s), chunk))
        })
    }

    /// When the first of them does. They are in the order of their seals.
    pub(super) fn due_s(&self) -> Option<u64> {
        self.aging().next().map(|(due_s, _)| due_s)
    }

    /// True when no writer can be given an epoch any more, but for the one that `op` has taken.
    pub(super) fn has_no_epoch_for(&self, op: &OpId) -> bool {
        self.epoch >= Epoch::LAST_WRITER && self.opening != Some((op.client, op.seq))
    }

    /// Takes the next epoch for `op`, once. Older writers are finished from here on. Recoveries
    /// share the last one: no writer has it.
    pub(super) fn take_epoch(&mut self, op: &OpId) -> Epoch {
        let key = (op.client, op.seq);
        if self.opening != Some(key) {
            if self.epoch < Epoch::LAST {
                self.epoch = self.epoch.next();
            }
            self.opening = Some(key);
            self.writing = false;
        }
        self.epoch
    }
}

/// A replica that no chunk may refer to again (`protocols.md` 2.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dead {
    /// When every right to it has run out, and it may be deleted.
    pub delete_at_ms: u64,
    /// When its tombstone may be forgotten; set once the server has deleted it.
    pub forget_at_ms: Option<u64>,
}

encode_struct!(Dead { delete_at_ms, forget_at_ms });

/// Where a chunk belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub file: FileId,
    /// Offset in the file at which the chunk begins; none of a spare.
    pub base: Option<u64>,
}

/// A figure that each replica of the group counts for itself, from its start on. It is no state: replicas
/// that differ in it alone are equal, and checkpoints do not have it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SinceStart(u64);

impl SinceStart {
    pub(super) fn add(&mut self, count: u64) {
        self.0 += count;
    }
}

impl PartialEq for SinceStart {
    fn eq(&self, _: &SinceStart) -> bool {
        true
    }
}

impl Eq for SinceStart {}

/// A stream partition: pure state, no clock, no I/O. Every replica of the group computes it alike
/// from the same commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamMachine {
    pub(super) partition: u16,
    /// Counter of the next chunk.
    pub(super) next_chunk: u64,
    /// Epoch of new streams before their first writer.
    pub(super) first_epoch: Epoch,
    /// The group's clock: the largest that a command carried.
    pub(super) clock_ms: u64,
    pub(super) places: Places,
    pub(super) streams: Tracked<FileId, Stream>,
    /// The file of every chunk and spare.
    pub(super) owners: BTreeMap<ChunkId, Owner>,
    /// Conversions under way: the chunk that is to take the place of another, by that
    /// (`protocols-tail.md` 9.12).
    pub(super) conversions: Tracked<ChunkId, Chunk>,
    /// The chunks that they convert, by those that take their places.
    pub(super) shadows: BTreeMap<ChunkId, ChunkId>,
    /// Streams with chunks to convert.
    pub(super) converting: BTreeSet<FileId>,
    /// Streams with chunks that get the form for old chunks, with when the first of them does.
    pub(super) aging: BTreeMap<FileId, u64>,
    pub(super) aging_by_time: BTreeSet<(u64, FileId)>,
    /// Sealed chunks with a replica that is not known to be sealed.
    pub(super) partly_sealed: BTreeSet<ChunkId>,
    /// Streams with something open and no writer.
    pub(super) recovering: BTreeSet<FileId>,
    pub(super) dead: Tracked<(PlaceIndex, ChunkId), Dead>,
    /// Deleted files, until no grant for them can be alive.
    pub(super) dead_files: Tracked<FileId, u64>,
    pub(super) dead_files_by_time: BTreeSet<(u64, FileId)>,
    pub(super) replies: ReplyTable,
    /// Bytes in sealed chunks.
    pub(super) logical_bytes: u64,
    /// Bytes of chunks that their writers have ended.
    pub(super) ended_bytes: SinceStart,
    /// Spares of all streams.
    pub(super) spares: u64,
}

impl StreamMachine {
    /// An empty partition.
    pub fn new(partition: u16) -> StreamMachine {
        StreamMachine {
            partition,
            next_chunk: 1,
            first_epoch: Epoch::NONE,
            clock_ms: 0,
            places: Places::default(),
            streams: Tracked::default(),
            owners: BTreeMap::new(),
            conversions: Tracked::default(),
            shadows: BTreeMap::new(),
            converting: BTreeSet::new(),
            aging: BTreeMap::new(),
            aging_by_time: BTreeSet::new(),
            partly_sealed: BTreeSet::new(),
            recovering: BTreeSet::new(),
            dead: Tracked::default(),
            dead_files: Tracked::default(),
            dead_files_by_time: BTreeSet::new(),
            replies: ReplyTable::default(),
            logical_bytes: 0,
            ended_bytes: SinceStart::default(),
            spares: 0,
        }
    }

    /// The same with other counters than a new cluster has.
    pub fn starting_at(self, next_chunk: u64, first_epoch: Epoch) -> StreamMachine {
        StreamMachine { next_chunk, first_epoch, ..self }
    }

    /// Its number.
    pub fn partition(&self) -> u16 {
        self.partition
    }

    /// The group's clock at the last command.
    pub fn clock_ms(&self) -> u64 {
        self.clock_ms
    }

    /// The group's clock at the last command, in seconds: enough for 136 years.
    pub(super) fn clock_s(&self) -> u32 {
        u32::try_from(self.clock_ms / 1000).unwrap_or(u32::MAX)
    }

    /// Sessions that its reply table remembers.
    pub fn sessions(&self) -> usize {
        self.replies.sessions()
    }

    /// A stream.
    pub fn stream(&self, file: FileId) -> Option<&Stream> {
        self.streams.get(&file)
    }

    /// All streams, by file.
    pub fn streams(&self) -> impl Iterator<Item = (FileId, &Stream)> {
        self.streams.iter().map(|(&file, stream)| (file, stream))
    }

    /// True while a deleted file is remembered.
    pub fn is_dead(&self, file: FileId) -> bool {
        self.dead_files.contains_key(&file)
    }

    /// The stream of a chunk.
    pub fn owner(&self, chunk: ChunkId) -> Option<(FileId, &Stream)> {
        let file = self.owners.get(&chunk)?.file;
        Some((file, &self.streams[&file]))
    }

    /// A chunk with its stream.
    pub fn chunk(&self, chunk: ChunkId) -> Option<(FileId, &Stream, &Chunk)> {
        let &Owner { file, base } = self.owners.get(&chunk)?;
        let stream = &self.streams[&file];
        let found = match base {
            Some(base) => stream.position(chunk, base).map(|at| &stream.chunks[at]),
            None => stream.spares.iter().find(|spare| spare.id == chunk),
        };
        Some((file, stream, found.expect("owners match streams")))
    }

    /// A chunk of a stream, to be changed; no spare.
    pub(super) fn chunk_mut(&mut self, chunk: ChunkId) -> Option<&mut Chunk> {
        let &Owner { file, base } = self.owners.get(&chunk)?;
        let stream = self.streams.get_mut(&file).expect("owners match streams");
        let at = stream.position(chunk, base?).expect("owners match streams");
        Some(&mut stream.chunks[at])
    }

    pub(super) fn sealed_chunk_mut(&mut self, chunk: ChunkId) -> Option<&mut Chunk> {
        self.chunk_mut(chunk).filter(|chunk| chunk.sealed().is_some())
    }

    /// The place with a number.
    pub fn place(&self, index: PlaceIndex) -> ReplicaLocation {
        self.places.get(index)
    }

    /// The number of a place, if it has one.
    pub fn place_number(&self, place: ReplicaLocation) -> Option<PlaceIndex> {
        self.places.find(place)
    }

    /// True when a stream refers to the replica of `chunk` at `place`, or a conversion makes it.
    pub fn refers_to(&self, chunk: ChunkId, place: ReplicaLocation) -> bool {
        self.places.find(place).is_some_and(|index| self.refers_at(chunk, index))
    }

    pub(super) fn refers_at(&self, chunk: ChunkId, place: PlaceIndex) -> bool {
        self.on_record(chunk).is_some_and(|found| found.slot(place).is_some())
    }

    /// A chunk of a stream, or one that a conversion makes.
    pub fn on_record(&self, chunk: ChunkId) -> Option<&Chunk> {
        self.chunk(chunk).map(|(_, _, found)| found).or_else(|| self.shadow(chunk))
    }

    /// The chunk with this identity that a conversion makes.
    pub fn shadow(&self, chunk: ChunkId) -> Option<&Chunk> {
        let converted = self.shadows.get(&chunk)?;
        Some(&self.conversions[converted])
    }

    /// Conversions under way: the chunks that are converted, and what takes their places.
    pub fn conversions(&self) -> impl Iterator<Item = (ChunkId, &Chunk)> {
        self.conversions.iter().map(|(&of, shadow)| (of, shadow))
    }

    /// The chunk that is to take the place of another.
    pub fn conversion(&self, of: ChunkId) -> Option<&Chunk> {
        self.conversions.get(&of)
    }

    /// Streams with chunks to convert.
    pub fn to_convert(&self) -> impl ExactSizeIterator<Item = FileId> + '_ {
        self.converting.iter().copied()
    }

    /// The same, from one on.
    pub fn to_convert_from(&self, from: Option<FileId>) -> impl Iterator<Item = FileId> + '_ {
        self.converting.range(from.unwrap_or(FileId::new(0))..).copied()
    }

    /// Streams with chunks that are old enough at `clock_s` to get the form for old chunks, with when the
    /// first of them is, from one on.
    pub fn aged_from(
        &self,
        (due_s, file): (u64, Option<FileId>),
        clock_s: u64,
    ) -> impl Iterator<Item = (u64, FileId)> + '_ {
        let from = (due_s, file.unwrap_or(FileId::new(0)));
        let until = (clock_s.max(due_s), FileId::new(u64::MAX));
        self.aging_by_time.range(from..=until).copied()
    }

    /// True when a stream has ever had a replica on the disk, at whichever server.
    pub fn has_used(&self, disk: DiskId) -> bool {
        self.places.iter().any(|place| place.disk == disk)
    }

    /// The dead record of a replica.
    pub fn dead(&self, chunk: ChunkId, place: ReplicaLocation) -> Option<Dead> {
        self.dead.get(&(self.places.find(place)?, chunk)).copied()
    }

    /// Dead records of one place, by chunk.
    pub fn dead_at(&self, index: PlaceIndex) -> impl Iterator<Item = (ChunkId, Dead)> + '_ {
        let all = (index, ChunkId::new(0))..=(index, ChunkId::new(u64::MAX));
        self.dead.range(all).map(|(&(_, chunk), &dead)| (chunk, dead))
    }

    /// The same, behind a chunk.
    pub fn dead_after(
        &self,
        index: PlaceIndex,
        after: Option<ChunkId>,
    ) -> impl Iterator<Item = (ChunkId, Dead)> + '_ {
        let from = match after {
            Some(chunk) => Bound::Excluded((index, chunk)),
            None => Bound::Included((index, ChunkId::new(0))),
        };
        let all = (from, Bound::Included((index, ChunkId::new(u64::MAX))));
        self.dead.range(all).map(|(&(_, chunk), &dead)| (chunk, dead))
    }

    /// Replicas on record as dead.
    pub fn dead_count(&self) -> usize {
        self.dead.len()
    }

    /// Places ever used, with their numbers.
    pub fn places(&self) -> impl Iterator<Item = (PlaceIndex, ReplicaLocation)> + '_ {
        let all = 0..u32::try_from(self.places.len()).expect("fewer than 2^32 disks");
        all.map(PlaceIndex).map(|index| (index, self.places.get(index)))
    }

    /// Chunks of streams; spares are none yet.
    pub fn chunks(&self) -> u64 {
        self.owners.len() as u64 - self.spares
    }

    /// Bytes in sealed chunks.
    pub fn logical_bytes(&self) -> u64 {
        self.logical_bytes
    }

    /// Bytes of chunks that their writers have ended, in commands that were applied here since the
    /// start of this process, or since a checkpoint came from another one.
    pub fn ended_bytes(&self) -> u64 {
        self.ended_bytes.0
    }

    /// Sealed chunks with a replica that is not known to be sealed.
    pub fn partly_sealed(&self) -> impl Iterator<Item = ChunkId> + '_ {
        self.partly_sealed.iter().copied()
    }

    /// True for a sealed chunk with a replica that is not known to be sealed.
    pub fn is_partly_sealed(&self, chunk: ChunkId) -> bool {
        self.partly_sealed.contains(&chunk)
    }

    /// Streams with something open and no writer.
    pub fn recovering(&self) -> impl Iterator<Item = FileId> + '_ {
        self.recovering.iter().copied()
    }

    /// Chunks above `after`, in order, spares included.
    pub fn chunk_ids(&self, after: Option<ChunkId>) -> impl Iterator<Item = ChunkId> + '_ {
        let from = after.map_or(0, |chunk| chunk.get().saturating_add(1));
        self.owners.range(ChunkId::new(from)..).map(|(&chunk, _)| chunk)
    }

    /// The first and the last chunk, if there is one.
    pub fn chunk_bounds(&self) -> Option<(ChunkId, ChunkId)> {
        let first = self.owners.first_key_value()?;
        self.owners.last_key_value().map(|(&last, _)| (*first.0, last))
    }

    /// True when the partition may have made this chunk.
    pub fn may_have_made(&self, chunk: ChunkId) -> bool {
        chunk.partition() == self.partition && chunk.counter() < self.next_chunk
    }

    /// Chunks that can still be numbered.
    pub(super) fn numbers_left(&self) -> usize {
        usize::try_from(ID_COUNTER_END - self.next_chunk).unwrap_or(usize::MAX)
    }

    /// Runs a client's mutation once: a repeat gets the first answer. A mutation without effect is
    /// not remembered.
    pub(super) fn once(
        &mut self,
        op: &OpId,
        mutate: impl FnOnce(&mut StreamMachine) -> Outcome,
    ) -> Outcome {
        match self.replies.look(op, self.clock_ms) {
            Seen::New => {}
            Seen::Late => return refused(Refusal::Late),
            Seen::Busy => return refused(Refusal::Busy),
            Seen::Answered(bytes) => {
                return Outcome::decode(&bytes).expect("the table keeps what was encoded");
            }
        }
        let outcome = mutate(self);
        if matches!(outcome, Outcome::Writer { .. } | Outcome::Done { .. }) {
            self.replies.keep(op, &outcome.encode());
        }
        outcome
    }

    /// The epoch that a file has in place of the one that `op` follows; none when `op` may go on: it
    /// follows the present one, or has taken that itself.
    pub(super) fn passed(&self, op: &OpId, file: FileId, follows: Epoch) -> Option<Epoch> {
        let stream = self.streams.get(&file);
        let epoch = stream.map_or(Epoch::NONE, |stream| stream.epoch);
        let own = stream.is_some_and(|stream| stream.opening == Some((op.client, op.seq)));
        (epoch != follows && !own && !planted(Planted::FollowsIgnored)).then_some(epoch)
    }

    /// As [`StreamMachine::passed`], before a command is proposed. Epochs only grow: that a newer one
    /// is here is final, however old this state is. An operation with an answer on record goes on.
    pub(super) fn is_late(&self, op: &OpId, file: FileId, follows: Epoch) -> Option<Epoch> {
        let epoch = self.passed(op, file, follows).filter(|&epoch| epoch > follows)?;
        (!self.replies.is_answered(op)).then_some(epoch)
    }

    /// Makes a spare. The leader has chosen the places, of a coded chunk in the order of its fragments;
    /// the caller has seen that a number is left.
    pub(super) fn make_chunk(&mut self, file: FileId, places: &[ReplicaLocation]) -> Chunk {
        let id = self.next_id();
        let stream = &self.streams[&file];
        let (policy, epoch) = (stream.policy, stream.epoch);
        // A code only with places for all its fragments. With more than either needs, they were chosen
        // for a policy which has been changed since.
        let policy = policy.for_places(places.len());
        let places = &places[..places.len().min(usize::from(policy.copies))];
        let indexes: Vec<_> = places.iter().map(|&place| self.places.intern(place)).collect();
        self.owners.insert(id, Owner { file, base: None });
        Chunk::new(id, epoch, policy, &indexes)
    }

    /// The number of a new chunk; the caller has seen that one is left.
    pub(super) fn next_id(&mut self) -> ChunkId {
        let id = ChunkId::compose(self.partition, self.next_chunk);
        self.next_chunk += 1;
        id
    }

    /// A spare becomes the last chunk of its stream.
    pub(super) fn push_chunk(&mut self, file: FileId, mut spare: Chunk) {
        let stream = self.streams.get_mut(&file).expect("the caller has it");
        spare.base = stream.sealed_len();
        self.owners.insert(spare.id, Owner { file, base: Some(spare.base) });
        stream.chunks.push(spare);
    }

    /// Records every replica of a chunk as dead, and of the one that was to take its place. The caller
    /// has taken it out of its stream.
    pub(super) fn condemn_chunk(&mut self, chunk: &Chunk, delete_at_ms: u64) {
        self.drop_conversion(chunk.id, delete_at_ms);
        self.owners.remove(&chunk.id);
        self.partly_sealed.remove(&chunk.id);
        if let Some(len) = chunk.sealed() {
            self.logical_bytes -= u64::from(len);
        }
        for slot in chunk.slots() {
            self.condemn_replica(chunk.id, slot.place, delete_at_ms);
        }
    }

    pub(super) fn condemn_replica(&mut self, chunk: ChunkId, place: PlaceIndex, delete_at_ms: u64) {
        self.dead.insert((place, chunk), Dead { delete_at_ms, forget_at_ms: None });
    }

    /// Brings the index of streams in recovery up to date after a change of `file`.
    pub(super) fn note_recovery(&mut self, file: FileId) {
        if self.streams.get(&file).is_some_and(Stream::needs_recovery) {
            self.recovering.insert(file);
        } else {
            self.recovering.remove(&file);
        }
    }
}

pub(super) fn refused(why: Refusal) -> Outcome {
    Outcome::Refused { why }
}

/// True when the leader's choice of replicas for new chunks is valid. It may have been made for a
/// policy with more copies than the stream's, which was changed since.
pub(super) fn well_placed(fresh: &[Vec<ReplicaLocation>]) -> bool {
    fresh.iter().all(|places| {
        let distinct: BTreeSet<_> = places.iter().collect();
        (1..=FRAGMENTS_MAX).contains(&places.len()) && distinct.len() == places.len()
    })
}

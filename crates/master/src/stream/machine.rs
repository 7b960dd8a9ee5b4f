//! The state machine as the group drives it: commands in, answers out, snapshots.

use std::collections::{BTreeMap, BTreeSet};

use base::{ChunkId, Epoch, FileId};

use super::chunk::{Chunk, Places};
use super::command::{Action, Command, Outcome, Refusal};
use super::encoding::Encode;
use super::state::{Dead, Stream, StreamMachine, refused};
use super::writers::{SpareChange, TailSeal};
use crate::bytes::{BadBytes, Reader, Writer, open_snapshot, seal_snapshot};
use crate::consensus::{BadSnapshot, StateMachine};
use crate::replies::ReplyTable;

const SNAPSHOT_MAGIC: [u8; 4] = *b"CRst";
const SNAPSHOT_VERSION: u8 = 1;

impl StreamMachine {
    /// Applies a command.
    pub fn run(&mut self, command: Command) -> Outcome {
        self.clock_ms = self.clock_ms.max(command.clock_ms);
        self.forget_files();
        match command.action {
            Action::Open { op, file, policy, fresh } => {
                self.once(&op, |state| state.open(&op, file, policy, &fresh))
            }
            Action::Seal { op, file } => self.once(&op, |state| state.seal(&op, file)),
            Action::SealTail { file, epoch, chunk, len, votes, holders, delete_at_ms } => {
                let seal = TailSeal { epoch, chunk, len, votes, holders, delete_at_ms };
                self.seal_tail(file, &seal)
            }
            Action::Finish { op, file, epoch, fenced, fresh, delete_at_ms } => {
                let finish = |state: &mut StreamMachine| {
                    state.finish(file, epoch, &fenced, &fresh, delete_at_ms)
                };
                match op {
                    Some(op) => self.once(&op, finish),
                    None => finish(self),
                }
            }
            Action::Advance { op, file, epoch, sealed, len, next, drop, fresh, delete_at_ms } => {
                self.once(&op, |state| {
                    let change = SpareChange { drop: &drop, fresh: &fresh, delete_at_ms };
                    state.advance(file, epoch, (sealed, len), next, &change)
                })
            }
            Action::Extend { op, file, epoch, drop, fresh, delete_at_ms } => {
                self.once(&op, |state| {
                    let change = SpareChange { drop: &drop, fresh: &fresh, delete_at_ms };
                    state.extend(file, epoch, &change)
                })
            }
            Action::Close { op, file, epoch, sealed, finish, delete_at_ms } => {
                self.once(&op, |state| state.close(&op, file, epoch, sealed, finish, delete_at_ms))
            }
            Action::AddReplicas { chunk, epoch, places } => {
                self.add_replicas(chunk, epoch, &places)
            }
            Action::Settle { replicas } => self.settle(&replicas),
            Action::DropReplica { chunk, place, remaining, delete_at_ms } => {
                self.drop_replica(chunk, place, &remaining, delete_at_ms)
            }
            Action::Delete { op, file, delete_at_ms, file_memory_ms } => {
                self.once(&op, |state| state.delete(file, delete_at_ms, file_memory_ms))
            }
            Action::Condemn { replicas, delete_at_ms } => self.condemn(&replicas, delete_at_ms),
            Action::Deleted { replicas, forget_at_ms } => self.deleted(&replicas, forget_at_ms),
            Action::Forget { replicas, gone } => self.forget(&replicas, gone),
        }
    }

    fn decode(version: u8, body: &[u8]) -> Result<StreamMachine, BadBytes> {
        if version != SNAPSHOT_VERSION {
            return Err(BadBytes);
        }
        let mut from = Reader::new(body);
        let mut state = StreamMachine::new(from.u16()?);
        state.next_chunk = from.u64()?;
        state.clock_ms = from.u64()?;
        if state.next_chunk >= 1 << 48 {
            return Err(BadBytes);
        }
        state.places = Places::take(&mut from)?;
        for _ in 0..from.count()? {
            let (file, stream) = <(FileId, Stream)>::take(&mut from)?;
            state.index_stream(file, &stream)?;
            state.streams.insert(file, stream);
        }
        for _ in 0..from.count()? {
            let (place, chunk, dead) = <(u32, ChunkId, Dead)>::take(&mut from)?;
            state.dead.insert((super::chunk::PlaceIndex(place), chunk), dead);
        }
        for (file, until) in Vec::<(FileId, u64)>::take(&mut from)? {
            state.dead_files.insert(file, until);
            state.dead_files_by_time.insert((until, file));
        }
        state.replies = ReplyTable::decode(&mut from)?;
        from.end()?;
        state.check().map_err(|_| BadBytes)?;
        Ok(state)
    }

    /// Rebuilds what follows from a stream.
    fn index_stream(&mut self, file: FileId, stream: &Stream) -> Result<(), BadBytes> {
        for chunk in stream.chunks.iter().chain(&stream.spares) {
            if self.owners.insert(chunk.id, file).is_some() {
                return Err(BadBytes);
            }
            let Some(len) = chunk.sealed() else { continue };
            self.logical_bytes = self.logical_bytes.checked_add(u64::from(len)).ok_or(BadBytes)?;
            if !chunk.is_settled() {
                self.unsettled.insert(chunk.id);
            }
        }
        self.spares += stream.spares.len() as u64;
        if stream.needs_recovery() {
            self.recovering.insert(file);
        }
        Ok(())
    }
}

impl StateMachine for StreamMachine {
    fn apply(&mut self, _index: u64, command: &[u8]) -> Vec<u8> {
        let outcome = match Command::decode(command) {
            Ok(command) => self.run(command),
            Err(_) => refused(Refusal::Unreadable),
        };
        outcome.encode()
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut to = Writer::new();
        to.u16(self.partition).u64(self.next_chunk).u64(self.clock_ms);
        self.places.put(&mut to);
        to.count(self.streams.len());
        for (file, stream) in &self.streams {
            file.put(&mut to);
            stream.put(&mut to);
        }
        to.count(self.dead.len());
        for (&(place, chunk), &dead) in &self.dead {
            (place.0, chunk, dead).put(&mut to);
        }
        to.count(self.dead_files.len());
        for (&file, &until) in &self.dead_files {
            (file, until).put(&mut to);
        }
        self.replies.encode(&mut to);
        seal_snapshot(SNAPSHOT_MAGIC, SNAPSHOT_VERSION, &to.finish())
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), BadSnapshot> {
        let (version, body) = open_snapshot(SNAPSHOT_MAGIC, bytes).map_err(|_| BadSnapshot)?;
        let state = StreamMachine::decode(version, body).map_err(|_| BadSnapshot)?;
        if state.partition != self.partition {
            return Err(BadSnapshot);
        }
        *self = state;
        Ok(())
    }
}

impl Encode for Stream {
    fn put(&self, to: &mut Writer) {
        self.policy.put(to);
        self.epoch.put(to);
        to.bool(self.writing).bool(self.finished);
        let opening = self.opening.map(|(client, seq)| (client.get(), seq));
        opening.put(to);
        self.chunks.put(to);
        self.spares.put(to);
    }

    fn take(from: &mut Reader<'_>) -> Result<Stream, BadBytes> {
        let mut stream = Stream::new(Encode::take(from)?);
        stream.epoch = Epoch::take(from)?;
        stream.writing = from.bool()?;
        stream.finished = from.bool()?;
        let opening = <Option<(u64, u64)> as Encode>::take(from)?;
        stream.opening = opening.map(|(client, seq)| (base::ClientId::new(client), seq));
        stream.chunks = Vec::<Chunk>::take(from)?;
        stream.spares = Vec::<Chunk>::take(from)?;
        Ok(stream)
    }
}

/// Restores a snapshot from arbitrary bytes: a fuzz target. `sealed` bytes get a good checksum
/// first, so that the body's decoder is reached.
pub fn fuzz_snapshot(bytes: &[u8]) {
    let mut state = StreamMachine::new(0);
    let _ = state.restore(bytes);
    let sealed = seal_snapshot(SNAPSHOT_MAGIC, SNAPSHOT_VERSION, bytes);
    if state.restore(&sealed).is_ok() {
        let mut again = StreamMachine::new(0);
        again.restore(&state.snapshot()).expect("what was restored can be written and read");
        assert_eq!(again, state, "a snapshot is the state");
    }
}

/// A named invariant of the state that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Its name, with the number of `design.md` section 3 where it has one.
    pub invariant: &'static str,
    /// Where.
    pub place: String,
}

impl StreamMachine {
    /// Checks every named invariant over the whole state: after each command in tests, after a
    /// restore in production.
    pub fn check(&self) -> Result<(), Violation> {
        let mut owners = BTreeMap::new();
        let (mut unsettled, mut recovering) = (BTreeSet::new(), BTreeSet::new());
        let (mut logical_bytes, mut spares) = (0, 0);
        for (&file, stream) in &self.streams {
            self.check_stream(file, stream)?;
            for chunk in stream.chunks.iter().chain(&stream.spares) {
                owners.insert(chunk.id, file);
                logical_bytes += u64::from(chunk.sealed().unwrap_or(0));
                if chunk.sealed().is_some() && !chunk.is_settled() {
                    unsettled.insert(chunk.id);
                }
            }
            spares += stream.spares.len() as u64;
            if stream.needs_recovery() {
                recovering.insert(file);
            }
        }
        let ensure = |holds: bool, invariant: &'static str| match holds {
            true => Ok(()),
            false => Err(Violation { invariant, place: "the partition's indexes".into() }),
        };
        ensure(owners == self.owners, "5: every chunk of a stream is known by its stream alone")?;
        ensure(unsettled == self.unsettled, "2: chunks to settle are known")?;
        ensure(recovering == self.recovering, "3: streams to recover are known")?;
        ensure(logical_bytes == self.logical_bytes && spares == self.spares, "sums agree")?;
        let made = |&(place, chunk): &(super::chunk::PlaceIndex, ChunkId)| {
            (place.0 as usize) < self.places.len() && self.may_have_made(chunk)
        };
        ensure(self.dead.keys().all(made), "5: dead replicas were made")
    }

    fn check_stream(&self, file: FileId, stream: &Stream) -> Result<(), Violation> {
        let fail = |invariant| Err(Violation { invariant, place: format!("{file} {stream:?}") });
        if !stream.policy.is_valid() || self.dead_files.contains_key(&file) {
            return fail("5: a deleted file has no stream");
        }
        let mut base = 0;
        let mut last = (ChunkId::new(0), Epoch::NONE);
        for (at, chunk) in stream.chunks.iter().enumerate() {
            if chunk.base != base || chunk.id <= last.0 || chunk.epoch < last.1 {
                return fail("2: chunks are in order and without gaps");
            }
            if chunk.sealed().is_none() && at + 1 < stream.chunks.len() {
                return fail("2: all chunks but the last are sealed");
            }
            last = (chunk.id, chunk.epoch);
            base = chunk.end();
        }
        for spare in &stream.spares {
            if spare.sealed().is_some() || spare.id <= last.0 || spare.epoch < last.1 {
                return fail("3: spares are open, in order, and younger than the chunks");
            }
            last = (spare.id, spare.epoch);
        }
        let open = || stream.tail().into_iter().chain(&stream.spares);
        if open().any(|chunk| chunk.epoch > stream.epoch) {
            return fail("3: no writer is newer than the stream's epoch");
        }
        if stream.writing
            && (stream.tail().is_none() || open().any(|chunk| chunk.epoch != stream.epoch))
        {
            return fail("3: what a writer has open is of its epoch");
        }
        for chunk in stream.chunks.iter().chain(&stream.spares) {
            self.check_chunk(stream, chunk).or_else(fail)?;
        }
        Ok(())
    }

    fn check_chunk(&self, stream: &Stream, chunk: &Chunk) -> Result<(), &'static str> {
        let places: BTreeSet<_> = chunk.slots().map(|slot| slot.place).collect();
        if places.len() != chunk.len_slots() || places.is_empty() {
            return Err("2: a chunk has replicas, each at another place");
        }
        if chunk.slots().any(|slot| slot.place.0 as usize >= self.places.len()) {
            return Err("2: replicas are at known places");
        }
        if !self.may_have_made(chunk.id) {
            return Err("5: chunks are made by this partition, once");
        }
        if places.iter().any(|&place| self.dead.contains_key(&(place, chunk.id))) {
            return Err("5: a replica that a file refers to is not dead");
        }
        let open = chunk.sealed().is_none();
        let acks = usize::from(chunk.acks);
        if open && !(1 <= acks && acks <= chunk.voters() && 2 * acks > chunk.voters()) {
            return Err("1: acknowledgements and recovery votes of an open chunk meet");
        }
        if open && chunk.slots().any(|slot| slot.settled) {
            return Err("2: only sealed chunks are settled");
        }
        if open && stream.writing && chunk.voters() != chunk.len_slots() {
            return Err("1: replicas of a writer's chunk do not change");
        }
        Ok(())
    }
}

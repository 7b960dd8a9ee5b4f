//! The state machine as the group drives it: commands in, answers out, snapshots.

use std::collections::{BTreeMap, BTreeSet};

use base::limits::REPLICAS_MAX;
use base::{ChunkId, Epoch, FileId, ID_COUNTER_END};

use wire::control::{Compression, Policy};

use super::chunk::{Chunk, PlaceIndex, Places, Slot};
use super::command::{Action, Command, Outcome};
use super::convert::ConversionRow;
use super::encoding::Encode;
use super::planted::{Planted, planted};
use super::state::{Dead, Owner, Stream, StreamMachine};
use super::writers::{SealedBy, SpareChange, TailSeal};
use master_consensus::bytes::{DecodeError, Reader, Writer, row_key, split_key};
use master_consensus::limits::SHED_ROWS;
use master_consensus::service::Hostable;
use master_consensus::{BadCommand, BadSnapshot, RowCopy, Rows, StateMachine};

impl StreamMachine {
    /// Applies a command.
    pub fn run(&mut self, command: Command) -> Outcome {
        self.clock_ms = self.clock_ms.max(command.clock_ms);
        self.forget_files();
        match command.action {
            Action::Open { op, file, policy, fresh } => {
                self.once(&op, |state| state.open(&op, file, policy, &fresh, None))
            }
            Action::OpenAfter { op, file, policy, fresh, follows } => {
                self.once(&op, |state| state.open(&op, file, policy, &fresh, Some(follows)))
            }
            Action::Seal { op, file } => self.once(&op, |state| state.seal(&op, file, None)),
            Action::SealAfter { op, file, follows } => {
                self.once(&op, |state| state.seal(&op, file, Some(follows)))
            }
            Action::SealTail { file, epoch, chunk, len, votes, holders, delete_at_ms } => {
                let by = SealedBy::Statistic;
                let seal = TailSeal { epoch, chunk, len, by, votes, holders, delete_at_ms };
                self.seal_tail(file, &seal)
            }
            Action::SealLongerTail { file, epoch, chunk, len, votes, holders, delete_at_ms } => {
                let by = SealedBy::LongerVote;
                let seal = TailSeal { epoch, chunk, len, by, votes, holders, delete_at_ms };
                self.seal_tail(file, &seal)
            }
            Action::SealWithLoss {
                file,
                epoch,
                chunk,
                len,
                votes,
                lost,
                holders,
                delete_at_ms,
            } => {
                let by = SealedBy::Operator { lost };
                let seal = TailSeal { epoch, chunk, len, by, votes, holders, delete_at_ms };
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
                let places: Vec<_> = places.into_iter().map(|place| (place, 0)).collect();
                self.add_replicas(chunk, epoch, &places, false)
            }
            Action::AddFragments { chunk, epoch, places } => {
                self.add_replicas(chunk, epoch, &places, true)
            }
            Action::SealReplicas { replicas } => self.record_seals(&replicas),
            Action::DropReplica { chunk, place, remaining, delete_at_ms } => {
                self.drop_replica(chunk, place, &remaining, delete_at_ms)
            }
            Action::Delete { op, file, delete_at_ms, file_memory_ms } => {
                self.once(&op, |state| state.delete(file, delete_at_ms, file_memory_ms))
            }
            Action::Condemn { replicas, delete_at_ms } => self.condemn(&replicas, delete_at_ms),
            Action::Deleted { replicas, forget_at_ms } => self.deleted(&replicas, forget_at_ms),
            Action::Forget { replicas, gone } => self.forget(&replicas, gone),
            Action::SealAbandoned { op, file, epoch, chunk } => {
                self.once(&op, |state| state.seal_abandoned(&op, file, epoch, chunk))
            }
            Action::SetPolicy { op, file, policy } => {
                self.once(&op, |state| state.set_policy(file, policy))
            }
            Action::Convert { op, file, wanted } => {
                self.once(&op, |state| state.convert(file, wanted))
            }
            Action::BeginConversion { chunk, policy, places } => {
                self.begin_conversion(chunk, policy, &places)
            }
            Action::LayOutAgain { chunk, places } => self.lay_out_again(chunk, &places),
            Action::EndConversion { chunk, shadow, settled, delete_at_ms } => {
                self.end_conversion(chunk, shadow, &settled, delete_at_ms)
            }
            Action::AbortConversion { shadow, delete_at_ms } => {
                self.abort_conversion(shadow, delete_at_ms)
            }
        }
    }

    /// Rebuilds what follows from a stream.
    fn index_stream(&mut self, file: FileId, stream: &Stream) -> Result<(), DecodeError> {
        let owners = stream.chunks.iter().map(|chunk| (chunk, Some(chunk.base)));
        for (chunk, base) in owners.chain(stream.spares.iter().map(|spare| (spare, None))) {
            if self.owners.insert(chunk.id, Owner { file, base }).is_some() {
                return Err(DecodeError);
            }
            let Some(len) = chunk.sealed() else { continue };
            self.logical_bytes =
                self.logical_bytes.checked_add(u64::from(len)).ok_or(DecodeError)?;
            if !chunk.is_sealed_everywhere() {
                self.partly_sealed.insert(chunk.id);
            }
        }
        self.spares += stream.spares.len() as u64;
        if stream.needs_recovery() {
            self.recovering.insert(file);
        }
        if stream.converting {
            self.converting.insert(file);
        }
        if let Some(due_s) = stream.due_s() {
            self.aging.insert(file, due_s);
            self.aging_by_time.insert((due_s, file));
        }
        Ok(())
    }
}

impl Hostable for StreamMachine {
    fn clock_ms(&self) -> u64 {
        StreamMachine::clock_ms(self)
    }
}

impl StateMachine for StreamMachine {
    fn apply(&mut self, _index: u64, command: &[u8]) -> Result<Vec<u8>, BadCommand> {
        let command = Command::decode(command).map_err(|_| BadCommand)?;
        Ok(self.run(command).encode())
    }

    fn check_command(command: &[u8]) -> Result<(), BadCommand> {
        Command::decode(command).map(drop).map_err(|_| BadCommand)
    }

    fn take_changes(&mut self, rows: &mut Rows) -> bool {
        let streams = self.streams.take_changes(rows, |rows, &file, stream| {
            put_row(rows, &file_key(STREAM, file), stream);
        });
        let dead = self.dead.take_changes(rows, |rows, &(place, chunk), dead| {
            let mut key = row_key(DEAD, place.0.to_be_bytes(), "");
            key.extend_from_slice(&chunk.get().to_be_bytes());
            put_row(rows, &key, dead);
        });
        let files = self.dead_files.take_changes(rows, |rows, &file, until| {
            put_row(rows, &file_key(DEAD_FILE, file), until);
        });
        let conversions = self.conversions.take_changes(rows, |rows, &of, shadow| {
            let key = row_key(CONVERSION, of.get().to_be_bytes(), "");
            rows.put(&key, shadow.map(|shadow| ConversionRow(shadow).encode()).as_deref());
        });
        if streams || dead || files || conversions || self.replies.take_changes(SESSION, rows) {
            return true;
        }
        let mut head = Writer::new();
        self.places.put(head.u16(self.partition).u64(self.next_chunk).u64(self.clock_ms));
        rows.put(&[HEAD], Some(&head.finish()));
        false
    }

    fn blank(&self) -> StreamMachine {
        StreamMachine { first_epoch: self.first_epoch, ..StreamMachine::new(self.partition) }
    }

    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadSnapshot> {
        self.load_row(key, value).map_err(|_| BadSnapshot)
    }

    fn shed(&mut self) -> bool {
        for _ in 0..SHED_ROWS {
            let more = self.streams.shed().is_some()
                || self.owners.pop_first().is_some()
                || self.conversions.shed().is_some()
                || self.dead.shed().is_some()
                || self.dead_files.shed().is_some()
                || self.dead_files_by_time.pop_first().is_some()
                || self.aging.pop_first().is_some()
                || self.aging_by_time.pop_first().is_some();
            if !more {
                return false;
            }
        }
        true
    }
}

/// Facts of the partition, and places. Before all others.
const HEAD: u8 = 1;
/// Streams, by file.
const STREAM: u8 = 2;
/// Dead replicas, by place and chunk.
const DEAD: u8 = 3;
/// Deleted files.
const DEAD_FILE: u8 = 4;
/// Sessions of the reply table.
const SESSION: u8 = 5;
/// Conversions, by the chunk that is converted. A master that knows none refuses the row.
const CONVERSION: u8 = 6;

fn file_key(table: u8, file: FileId) -> Vec<u8> {
    row_key(table, file.get().to_be_bytes(), "")
}

fn put_row<T: Encode>(rows: &mut Rows, key: &[u8], value: Option<&T>) {
    let value = value.map(|value| {
        let mut to = Writer::new();
        value.put(&mut to);
        to.finish()
    });
    rows.put(key, value.as_deref());
}

impl StreamMachine {
    fn load_row(&mut self, key: &[u8], value: &[u8]) -> Result<(), DecodeError> {
        let mut from = Reader::new(value);
        let file = || {
            let (file, "") = split_key(key)? else { return Err(DecodeError) };
            Ok(FileId::new(u64::from_be_bytes(file)))
        };
        match *key.first().ok_or(DecodeError)? {
            HEAD if key.len() == 1 => {
                if from.u16()? != self.partition {
                    return Err(DecodeError);
                }
                (self.next_chunk, self.clock_ms) = (from.u64()?, from.u64()?);
                let is_first = self.streams.is_empty() && self.dead.is_empty();
                if self.next_chunk > ID_COUNTER_END || !is_first {
                    return Err(DecodeError);
                }
                self.places = Places::take(&mut from)?;
            }
            STREAM => {
                let (file, stream) = (file()?, Stream::take(&mut from)?);
                self.check_stream(file, &stream).map_err(|_| DecodeError)?;
                self.index_stream(file, &stream)?;
                self.streams.load(file, stream);
            }
            DEAD => {
                let ids: [u8; 12] = key[1..].try_into().map_err(|_| DecodeError)?;
                let (place, chunk) = ids.split_at(4);
                let place = u32::from_be_bytes(place.try_into().map_err(|_| DecodeError)?);
                let chunk = u64::from_be_bytes(chunk.try_into().map_err(|_| DecodeError)?);
                let key = (PlaceIndex(place), ChunkId::new(chunk));
                if !self.may_be_dead(key) {
                    return Err(DecodeError);
                }
                self.dead.load(key, Dead::take(&mut from)?);
            }
            DEAD_FILE => {
                let (file, until) = (file()?, from.u64()?);
                if self.streams.contains_key(&file) {
                    return Err(DecodeError);
                }
                self.dead_files.load(file, until);
                self.dead_files_by_time.insert((until, file));
            }
            SESSION => return self.replies.load(key, value),
            CONVERSION => {
                let of = key[1..].try_into().map_err(|_| DecodeError)?;
                self.load_conversion(ChunkId::new(u64::from_be_bytes(of)), &mut from)?;
            }
            _ => return Err(DecodeError),
        }
        from.end()
    }

    /// True for a replica that this partition made, and that nothing refers to.
    fn may_be_dead(&self, (place, chunk): (PlaceIndex, ChunkId)) -> bool {
        let refers = self.refers_at(chunk, place);
        (place.0 as usize) < self.places.len() && self.may_have_made(chunk) && !refers
    }
}

impl Encode for Stream {
    fn put(&self, to: &mut Writer) {
        self.policy.put(to);
        self.epoch.put(to);
        to.bool(self.writing).u8(flag(FINISHED, self.finished)
            | flag(LOSS_ACCEPTED, self.loss_accepted)
            | flag(CONVERTING, self.converting));
        let opening = self.opening.map(|(client, seq)| (client.get(), seq));
        opening.put(to);
        self.chunks.put(to);
        self.spares.put(to);
        if self.policy.later.is_some() {
            self.sealed_s.put(to);
        }
        // While no policy was set they all have the copies and the compression of the policy, and the
        // row ends here.
        let other = |chunk: &Chunk| !has_form_of(chunk, self.policy);
        if self.all_chunks().any(other) && !planted(Planted::CopiesLostInRow) {
            let compressed = self.all_chunks().any(has_other_compression(self.policy));
            if compressed {
                to.u8(COMPRESSIONS_TOO);
            }
            self.all_chunks().for_each(|chunk| {
                to.u8(chunk.copies);
                if compressed {
                    to.u8(Compression::to_byte(chunk.compression()));
                }
            });
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Stream, DecodeError> {
        let mut stream = Stream::new(Encode::take(from)?);
        stream.epoch = Epoch::take(from)?;
        stream.writing = from.bool()?;
        let flags = from.u8()?;
        if flags & !(FINISHED | LOSS_ACCEPTED | CONVERTING) != 0 {
            return Err(DecodeError);
        }
        (stream.finished, stream.loss_accepted, stream.converting) =
            (flags & FINISHED != 0, flags & LOSS_ACCEPTED != 0, flags & CONVERTING != 0);
        let opening = <Option<(u64, u64)> as Encode>::take(from)?;
        stream.opening = opening.map(|(client, seq)| (base::ClientId::new(client), seq));
        stream.chunks = Vec::<Chunk>::take(from)?;
        stream.spares = Vec::<Chunk>::take(from)?;
        if stream.policy.later.is_some() {
            stream.sealed_s = Vec::<u32>::take(from)?;
        }
        let recorded = from.clone().end().is_err();
        let policy = stream.policy;
        let compressed = recorded && from.clone().u8()? == COMPRESSIONS_TOO;
        if compressed {
            from.u8()?;
        }
        for chunk in stream.chunks.iter_mut().chain(&mut stream.spares) {
            let copies = if recorded { from.u8()? } else { policy.copies };
            let compression = match compressed {
                true => Compression::from_byte(from.u8()?).map_err(|_| DecodeError)?,
                false => policy.compression,
            };
            chunk.set_form(copies, compression);
        }
        // One form: what says nothing is left out.
        let silent = recorded && stream.all_chunks().all(|chunk| has_form_of(chunk, policy));
        if silent || compressed && !stream.all_chunks().any(has_other_compression(policy)) {
            return Err(DecodeError);
        }
        Ok(stream)
    }
}

/// Bits of a stream's second flag byte. A master that does not know one refuses a row with it.
const FINISHED: u8 = 1;
const LOSS_ACCEPTED: u8 = 2;
const CONVERTING: u8 = 4;

fn flag(bit: u8, is_set: bool) -> u8 {
    if is_set { bit } else { 0 }
}

/// Stands in front of the forms of a stream's chunks when compressions are among them; no chunk has so
/// many copies.
const COMPRESSIONS_TOO: u8 = 0xC0;

fn has_form_of(chunk: &Chunk, policy: Policy) -> bool {
    (chunk.copies, chunk.compression()) == (policy.copies, policy.compression)
}

fn has_other_compression(policy: Policy) -> impl Fn(&Chunk) -> bool {
    move |chunk| chunk.compression() != policy.compression
}

/// Loads rows from arbitrary bytes: a fuzz target. Each row is a length of its key, a length of
/// its value, and both. Rows that fit one by one make a state whose invariants hold.
pub fn fuzz_rows(mut bytes: &[u8]) {
    let mut state = StreamMachine::new(0);
    while let [key_len, value_len, rest @ ..] = bytes {
        let (key, rest) = rest.split_at(rest.len().min(usize::from(*key_len)));
        let (value, rest) = rest.split_at(rest.len().min(usize::from(*value_len)));
        if state.load_row(key, value).is_err() {
            return;
        }
        bytes = rest;
    }
    assert_eq!(state.check(), Ok(()), "rows were loaded that contradict each other");
    let mut again = RowCopy::default();
    again.follow(&mut state);
}

/// A named invariant of the state that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Its name, with the number of `design.md` section 3 where it has one.
    pub invariant: &'static str,
    /// The place.
    pub place: String,
}

impl StreamMachine {
    /// Checks every named invariant over the whole state, after each command in tests. A restore
    /// checks the rows one by one.
    pub fn check(&self) -> Result<(), Violation> {
        let mut owners = BTreeMap::new();
        let (mut partly_sealed, mut recovering) = (BTreeSet::new(), BTreeSet::new());
        let (mut converting, mut aging) = (BTreeSet::new(), BTreeMap::new());
        let (mut logical_bytes, mut spares) = (0, 0);
        for (&file, stream) in &self.streams {
            self.check_stream(file, stream)?;
            let based = stream.chunks.iter().map(|chunk| (chunk, Some(chunk.base)));
            for (chunk, base) in based.chain(stream.spares.iter().map(|spare| (spare, None))) {
                owners.insert(chunk.id, Owner { file, base });
                logical_bytes += u64::from(chunk.sealed().unwrap_or(0));
                if chunk.sealed().is_some() && !chunk.is_sealed_everywhere() {
                    partly_sealed.insert(chunk.id);
                }
            }
            spares += stream.spares.len() as u64;
            if stream.needs_recovery() {
                recovering.insert(file);
            }
            if stream.converting {
                converting.insert(file);
            }
            aging.extend(stream.due_s().map(|due_s| (file, due_s)));
        }
        let ensure = |holds: bool, invariant: &'static str| match holds {
            true => Ok(()),
            false => Err(Violation { invariant, place: "the partition's indexes".into() }),
        };
        ensure(owners == self.owners, "5: every chunk of a stream is known by its stream alone")?;
        ensure(partly_sealed == self.partly_sealed, "2: chunks with replicas to seal are known")?;
        ensure(recovering == self.recovering, "3: streams to recover are known")?;
        ensure(converting == self.converting, "9: streams to convert are known")?;
        ensure(aging == self.aging, "9: streams with chunks that grow old are known")?;
        let by_time: BTreeSet<_> = aging.iter().map(|(&file, &due_s)| (due_s, file)).collect();
        ensure(by_time == self.aging_by_time, "9: streams with chunks that grow old are in order")?;
        let shadows: BTreeMap<_, _> =
            self.conversions.iter().map(|(&of, shadow)| (shadow.id, of)).collect();
        ensure(shadows == self.shadows, "9: what conversions make is known")?;
        for (&of, shadow) in &self.conversions {
            self.check_conversion(of, shadow)
                .map_err(|invariant| Violation { invariant, place: format!("{of} {shadow:?}") })?;
        }
        ensure(logical_bytes == self.logical_bytes && spares == self.spares, "sums agree")?;
        let made = |&(place, chunk): &(PlaceIndex, ChunkId)| {
            (place.0 as usize) < self.places.len() && self.may_have_made(chunk)
        };
        ensure(self.dead.keys().all(made), "5: dead replicas were made")
    }

    fn check_stream(&self, file: FileId, stream: &Stream) -> Result<(), Violation> {
        let fail = |invariant| Err(Violation { invariant, place: format!("{file} {stream:?}") });
        if !stream.policy.is_valid() || self.dead_files.contains_key(&file) {
            return fail("5: a deleted file has no stream");
        }
        let sealed = stream.chunks.iter().filter(|chunk| chunk.sealed().is_some()).count();
        let dated = if stream.policy.later.is_some() { sealed } else { 0 };
        if stream.sealed_s.len() != dated || !stream.sealed_s.is_sorted() {
            return fail(
                "9: each sealed chunk of a stream with a form for old ones has its time, in order",
            );
        }
        if stream.converting && !stream.has_other_form() {
            return fail("9: a stream to convert has a chunk to convert");
        }
        let mut base = 0;
        let mut last = (ChunkId::new(0), Epoch::NONE);
        for (at, chunk) in stream.chunks.iter().enumerate() {
            if chunk.base != base || chunk.epoch < last.1 {
                return fail("2: chunks are in order and without gaps");
            }
            if chunk.sealed().is_none() && at + 1 < stream.chunks.len() {
                return fail("2: all chunks but the last are sealed");
            }
            last.1 = chunk.epoch;
            base = chunk.end();
        }
        // The tail was a spare that those behind it follow; sealed chunks may have been converted since.
        last.0 = stream.tail().map_or(last.0, |tail| tail.id);
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

    pub(super) fn check_chunk(&self, stream: &Stream, chunk: &Chunk) -> Result<(), &'static str> {
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
        if chunk.is_coded() {
            check_coded(chunk)?;
        } else if !(1..=REPLICAS_MAX).contains(&usize::from(chunk.copies)) {
            return Err("1: a chunk is to have copies");
        }
        let acks = usize::from(chunk.acks);
        let meet = chunk.is_coded() || 2 * acks > chunk.voters();
        if open && !(1 <= acks && acks <= chunk.voters() && meet) {
            return Err("1: acknowledgements and recovery votes of an open chunk meet");
        }
        if open && chunk.slots().any(|slot| slot.sealed) {
            return Err("2: only sealed chunks have sealed replicas");
        }
        if open && stream.writing && chunk.voters() != chunk.len_slots() {
            return Err("1: replicas of a writer's chunk do not change");
        }
        Ok(())
    }
}

/// Each fragment is one of the code, and each has one vote as long as the chunk is open: any votes that
/// recovery takes are of different fragments.
fn check_coded(chunk: &Chunk) -> Result<(), &'static str> {
    if !chunk.policy().is_valid() {
        return Err("1: a coded chunk has a code, and more acknowledgements than data fragments");
    }
    let none_such = |slot: Slot| slot.fragment >= chunk.copies;
    if chunk.slots().any(none_such) || chunk.len_slots() > chunk.slots_max() {
        return Err("2: replicas of a coded chunk are fragments of its code");
    }
    let voters = || chunk.slots().filter(|slot| !slot.target);
    let once = voters().map(|slot| slot.fragment).collect::<BTreeSet<_>>().len();
    let n = usize::from(chunk.copies);
    if chunk.sealed().is_none() && (once, voters().count()) != (n, n) {
        return Err("1: an open coded chunk has each fragment once");
    }
    Ok(())
}

//! The state machine under random commands, valid, stale and wrong, with its named invariants and
//! an oracle of what must never change.

use std::collections::{BTreeMap, BTreeSet};

use base::{ChunkId, ClientId, DiskId, Epoch, FileId, ServerId};
use proptest::prelude::*;
use runtime::Rng;
use wire::control::{Compression, Later, OpId, Policy, Verify};

use crate::placement::ReplicaLocation;
use crate::planted::{Planted, plant};
use crate::*;
use master_consensus::{RowCopy, StateMachine};

/// Answers that clients have, which the machine is held to.
#[derive(Default)]
struct Oracle {
    sealed: BTreeMap<ChunkId, (FileId, u32)>,
    epochs: BTreeMap<FileId, Epoch>,
    deleted: BTreeMap<FileId, u64>,
    /// Policy of each file, as the last command that was taken set it.
    policies: BTreeMap<FileId, Policy>,
    /// Policy of each chunk, as it was made.
    made: BTreeMap<ChunkId, Policy>,
    /// Length of the sealed chunk at each place of a file, whichever it is.
    extents: BTreeMap<(FileId, u64), u32>,
    /// When the chunk at each place of a file was first seen to be sealed, by the group's clock, and since when a
    /// file has a form for old chunks.
    seen_ms: BTreeMap<(FileId, u64), u64>,
    later_ms: BTreeMap<FileId, u64>,
    /// Replicas that were referred to, until they are deleted and forgotten.
    replicas: BTreeSet<(ChunkId, PlaceIndex)>,
}

impl Oracle {
    fn check(&mut self, state: &StreamMachine) -> Result<(), String> {
        state.check().map_err(|violation| format!("{violation:?}"))?;
        for (_, shadow) in state.conversions() {
            self.made.entry(shadow.id).or_insert(shadow.policy());
        }
        for (file, stream) in state.streams() {
            let sealed = stream.chunks.iter().filter(|chunk| chunk.sealed().is_some());
            for chunk in sealed {
                self.seen_ms.entry((file, chunk.base)).or_insert(state.clock_ms());
            }
            match stream.policy.later {
                Some(_) => drop(self.later_ms.entry(file).or_insert(state.clock_ms())),
                None => drop(self.later_ms.remove(&file)),
            }
            let known = self.epochs.entry(file).or_default();
            if stream.epoch < *known {
                return Err(format!("3: the epoch of {file} fell"));
            }
            *known = stream.epoch;
            if self.deleted.get(&file).is_some_and(|&until| state.clock_ms() < until) {
                return Err(format!("5: {file} was deleted and is back"));
            }
            let policy = *self.policies.entry(file).or_insert(stream.policy);
            if policy != stream.policy {
                return Err(format!("the policy of {file} changed by itself"));
            }
            for chunk in stream.all_chunks() {
                let new = policy.for_places(chunk.len_slots()).form();
                let made = *self.made.entry(chunk.id).or_insert(new);
                if made != chunk.policy() {
                    return Err(format!("{} was made {made:?}: {chunk:?}", chunk.id));
                }
            }
            for chunk in &stream.chunks {
                let Some(len) = chunk.sealed() else { continue };
                let first = *self.sealed.entry(chunk.id).or_insert((file, len));
                let there = *self.extents.entry((file, chunk.base)).or_insert(len);
                if first != (file, len) || there != len {
                    return Err(format!("2: the sealed length of {} changed", chunk.id));
                }
            }
        }
        let chunks = state.streams().flat_map(|(_, stream)| stream.all_chunks());
        let made = state.conversions().map(|(_, shadow)| shadow);
        for chunk in chunks.chain(made) {
            self.replicas.extend(chunk.slots().map(|slot| (chunk.id, slot.place)));
        }
        let gone = self.replicas.iter().find(|&&(chunk, place)| {
            let dead = state.dead(chunk, state.place(place)).is_some();
            !dead && !state.refers_at(chunk, place)
        });
        match gone {
            Some(replica) => Err(format!("5: {replica:?} was made, and is not on record")),
            None => Ok(()),
        }
    }
}

const FILE_MEMORY_MS: u64 = 500;

const POLICIES: [Policy; 10] = [
    Policy::rep(3).and_later(Some(Later::new(1, Policy::ec(2, 1)))),
    Policy::ec(2, 1).and_later(Some(Later::new(2, Policy::rep(2)))),
    Policy::ec(2, 1),
    Policy::ec(4, 2).verified(Verify::All),
    Policy::ec(2, 2).compressed(Some(Compression::LZ4)),
    Policy::rep(1),
    Policy::rep(2),
    Policy::rep(5),
    Policy::strict(3),
    Policy::strict(3).compressed(Some(Compression::LZ4)),
];

struct Driver {
    rng: Rng,
    state: StreamMachine,
    twin: StreamMachine,
    /// Rows of the state's checkpoints.
    rows: RowCopy,
    oracle: Oracle,
    clock_ms: u64,
    seqs: [u64; 3],
    past: Vec<Command>,
    granted: u64,
    converted: u64,
    aged: u64,
}

impl Driver {
    fn new(seed: u64) -> Driver {
        Driver {
            rng: Rng::new(seed),
            state: StreamMachine::new(3),
            twin: StreamMachine::new(3),
            rows: RowCopy::default(),
            oracle: Oracle::default(),
            clock_ms: 0,
            seqs: [0; 3],
            past: Vec::new(),
            granted: 0,
            converted: 0,
            aged: 0,
        }
    }

    fn op(&mut self) -> OpId {
        let client = self.rng.below(3);
        self.seqs[client as usize] += 1;
        let seq = self.seqs[client as usize];
        OpId { client: ClientId::new(client), seq, acked_below: seq.saturating_sub(5) }
    }

    fn place(&mut self) -> ReplicaLocation {
        let server = self.rng.between(1, 9);
        ReplicaLocation {
            server: ServerId::new(server as u32),
            disk: DiskId::new(u128::from(server)),
        }
    }

    fn places(&mut self) -> Vec<ReplicaLocation> {
        let count = match self.rng.one_in(3) {
            true => self.rng.between(4, 8),
            false => self.rng.between(1, 3),
        };
        let mut places: Vec<_> = (0..count).map(|_| self.place()).collect();
        if !self.rng.one_in(20) {
            places.sort_unstable();
            places.dedup();
        }
        places
    }

    fn fresh(&mut self, most: u64) -> Vec<Vec<ReplicaLocation>> {
        (0..self.rng.between(0, most)).map(|_| self.places()).collect()
    }

    fn file(&mut self) -> FileId {
        FileId::new(self.rng.between(1, 4))
    }

    /// A chunk: mostly one of the file.
    fn chunk(&mut self, file: FileId) -> ChunkId {
        let ids: Vec<_> = self.state.stream(file).map_or_else(Vec::new, |stream| {
            stream.chunks.iter().rev().take(2).chain(&stream.spares).map(|c| c.id).collect()
        });
        if ids.is_empty() || self.rng.one_in(20) {
            return ChunkId::compose(3, self.rng.below(50));
        }
        *self.rng.pick(&ids)
    }

    fn epoch(&mut self, file: FileId) -> Epoch {
        let epoch = self.state.stream(file).map_or(Epoch::NONE, |stream| stream.epoch);
        match self.rng.below(12) {
            0 => Epoch::new(epoch.get().saturating_sub(1)),
            1 => epoch.next(),
            _ => epoch,
        }
    }

    /// A seal with evidence that is right more often than not.
    fn seal_tail(&mut self, file: FileId) -> Action {
        let (epoch, mut chunk) = (self.epoch(file), self.chunk(file));
        let (mut votes, mut holders, mut len) = (Vec::new(), Vec::new(), 0);
        if let Some(tail) = self.state.stream(file).and_then(Stream::tail).cloned() {
            chunk = tail.id;
            for slot in tail.slots() {
                let place = self.state.place(slot.place);
                if !slot.target && !self.rng.one_in(4) {
                    votes.push((place, self.rng.below(3) as u32 * 10));
                }
                if !self.rng.one_in(3) {
                    holders.push(place);
                }
            }
            let lens: Vec<_> = votes.iter().map(|vote| vote.1).collect();
            if let Some(range) = tail.quorum().sealed_lens(&lens) {
                len = *self.rng.pick(&[*range.start(), *range.end(), *range.end() + 10]);
                if (len > *range.start()) != self.rng.one_in(8) {
                    let delete_at_ms = self.clock_ms;
                    return Action::SealLongerTail {
                        file,
                        epoch,
                        chunk,
                        len,
                        votes,
                        holders,
                        delete_at_ms,
                    };
                }
            } else {
                len = 10;
            }
        }
        Action::SealTail { file, epoch, chunk, len, votes, holders, delete_at_ms: self.clock_ms }
    }

    /// A command of a conversion, right more often than not.
    fn conversion(&mut self, op: OpId, file: FileId) -> Action {
        let delete_at_ms = self.clock_ms + 100;
        let under_way: Vec<_> = self.state.conversions().map(|(of, it)| (of, it.clone())).collect();
        if !under_way.is_empty() && self.rng.one_in(2) {
            let (chunk, made) = self.rng.pick(&under_way).clone();
            let shadow = if self.rng.one_in(10) { self.chunk(file) } else { made.id };
            if self.rng.one_in(4) {
                return Action::AbortConversion { shadow, delete_at_ms };
            }
            let slots = made.slots().map(|slot| self.state.place(slot.place));
            let settled = slots.filter(|_| !self.rng.one_in(20)).collect();
            return Action::EndConversion { chunk, shadow, settled, delete_at_ms };
        }
        let (some, old) = (self.rng.one_in(4), self.rng.one_in(2));
        let is_it =
            |stream: &&Stream| stream.converting != some || old && stream.policy.later.is_some();
        let Some(stream) = self.state.stream(file).filter(is_it) else {
            return Action::Convert { op, file, wanted: !self.rng.one_in(5) };
        };
        let policy = match stream.policy.later {
            _ if self.rng.one_in(8) => Policy::rep(2),
            Some(later) if old => later.policy(),
            _ => stream.policy.form(),
        };
        let sealed = stream.chunks.iter().filter(|chunk| chunk.sealed().is_some());
        let sealed: Vec<_> = sealed.cloned().collect();
        if sealed.is_empty() {
            let (epoch, finish) = (stream.epoch, false);
            let sealed = stream.tail().map(|tail| (tail.id, 300_000));
            return Action::Close { op, file, epoch, sealed, finish, delete_at_ms };
        }
        let chunk = self.rng.pick(&sealed);
        if !chunk.is_sealed_everywhere() && !self.rng.one_in(8) {
            let len = chunk.sealed().expect("filtered");
            let slots = chunk.slots().map(|slot| (chunk.id, self.state.place(slot.place), len));
            return Action::SealReplicas { replicas: slots.collect() };
        }
        let (again, chunk) = (chunk.is_coded() && self.rng.one_in(4), chunk.id);
        // Some of the nine places, each once, or one too few.
        let count = usize::from(policy.copies) - usize::from(self.rng.one_in(10));
        let mut places: Vec<_> = (0..40).map(|_| self.place()).collect();
        places.sort_unstable();
        places.dedup();
        places.truncate(count);
        if again {
            return Action::LayOutAgain { chunk, places };
        }
        Action::BeginConversion { chunk, policy, places }
    }

    fn replicas(&mut self) -> Vec<(ChunkId, ReplicaLocation)> {
        let referred: Vec<_> = self.state.chunk_ids(None).collect();
        (0..self.rng.between(1, 6))
            .map(|_| {
                let any = ChunkId::compose(3, self.rng.below(60));
                let chunk = match referred.is_empty() || self.rng.one_in(2) {
                    true => any,
                    false => *self.rng.pick(&referred),
                };
                (chunk, self.place())
            })
            .collect()
    }

    fn action(&mut self) -> Action {
        let (op, file) = (self.op(), self.file());
        let epoch = self.epoch(file);
        let delete_at_ms = self.clock_ms + 100;
        let policies = [Policy::strict(3), Policy::plain(3, 2), Policy::ec(2, 1), POLICIES[0]];
        let policy = *self.rng.pick(&policies);
        match self.rng.below(26) {
            21.. => self.conversion(op, file),
            0..5 if self.rng.one_in(2) => {
                let follows =
                    if self.rng.one_in(4) { Epoch::new(self.rng.below(5)) } else { epoch };
                match self.rng.one_in(4) {
                    true => Action::SealAfter { op, file, follows },
                    false => {
                        let fresh = self.fresh(3);
                        Action::OpenAfter { op, file, policy, fresh, follows }
                    }
                }
            }
            20 => Action::SetPolicy { op, file, policy: *self.rng.pick(&POLICIES) },
            0..4 => Action::Open { op, file, policy, fresh: self.fresh(3) },
            4 => Action::Seal { op, file },
            5..8 => self.seal_tail(file),
            8..10 => {
                let fenced = self.state.stream(file).map_or_else(Vec::new, |stream| {
                    stream.spares.iter().map(|spare| spare.id).collect()
                });
                let (op, fresh) = (Some(op).filter(|_| !self.rng.one_in(5)), self.fresh(3));
                Action::Finish { op, file, epoch, fenced, fresh, delete_at_ms }
            }
            10..13 => {
                let (sealed, len) = (self.chunk(file), self.rng.below(3) as u32 * 100);
                let next = self.chunk(file);
                let drop = vec![self.chunk(file)];
                let fresh = self.fresh(2);
                Action::Advance { op, file, epoch, sealed, len, next, drop, fresh, delete_at_ms }
            }
            13 => {
                let (drop, fresh) = (vec![self.chunk(file)], self.fresh(2));
                Action::Extend { op, file, epoch, drop, fresh, delete_at_ms }
            }
            14 if self.rng.one_in(4) => {
                let chunk = self.chunk(file);
                Action::SealAbandoned { op, file, epoch, chunk }
            }
            14 => {
                let sealed = (self.chunk(file), self.rng.below(3) as u32 * 100);
                let sealed = Some(sealed).filter(|_| !self.rng.one_in(4));
                let finish = self.rng.one_in(10);
                Action::Close { op, file, epoch, sealed, finish, delete_at_ms }
            }
            15 => {
                let (chunk, mut places) = (self.chunk(file), self.places());
                let coded = self.state.chunk(chunk).is_some_and(|(_, _, it)| it.is_coded());
                if coded == self.rng.one_in(8) {
                    return Action::AddReplicas { chunk, epoch, places };
                }
                places.truncate(4);
                let fragment = |place| (place, self.rng.below(7) as u8);
                let places = places.into_iter().map(fragment).collect();
                Action::AddFragments { chunk, epoch, places }
            }
            16 => {
                let lens: BTreeMap<_, _> = self.oracle.sealed.clone();
                let replicas = self.replicas().into_iter().map(|(chunk, place)| {
                    (chunk, place, lens.get(&chunk).map_or(7, |&(_, len)| len))
                });
                Action::SealReplicas { replicas: replicas.collect() }
            }
            17 => {
                let chunk = self.chunk(file);
                let sealed: Vec<_> = self.state.chunk(chunk).map_or_else(Vec::new, |found| {
                    let slots = found.2.slots().filter(|slot| slot.sealed);
                    slots.map(|slot| self.state.place(slot.place)).collect()
                });
                let place = self.place();
                let remaining = sealed.into_iter().filter(|&other| other != place).collect();
                Action::DropReplica { chunk, place, remaining, delete_at_ms }
            }
            18 => match self.rng.below(3) {
                0 => Action::Condemn { replicas: self.replicas(), delete_at_ms },
                1 => Action::Deleted { replicas: self.replicas(), forget_at_ms: delete_at_ms },
                _ => Action::Forget { replicas: self.replicas(), gone: self.rng.one_in(2) },
            },
            _ => Action::Delete { op, file, delete_at_ms, file_memory_ms: FILE_MEMORY_MS },
        }
    }

    /// One command, and everything that must hold after it.
    fn step(&mut self) -> Result<(), String> {
        self.clock_ms += self.rng.below(30);
        let repeat = !self.past.is_empty() && self.rng.one_in(8);
        let command = match repeat {
            true => self.rng.pick(&self.past).clone(),
            false => {
                let action = self.action();
                Command { clock_ms: self.clock_ms, action }
            }
        };
        let before = self.state.clone();
        let bytes = command.encode();
        assert_eq!(Command::decode(&bytes), Ok(command.clone()));
        let answer = self.state.apply(1, &bytes).expect("it decodes");
        if self.twin.apply(1, &bytes).as_ref() != Ok(&answer) || self.twin != self.state {
            return Err("the same commands give another state".into());
        }
        let outcome = Outcome::decode(&answer).expect("an outcome");
        self.check_effect(&before, &command, outcome)?;
        self.oracle.check(&self.state)?;
        self.past.push(command);
        if self.rng.one_in(16) {
            self.rows.follow(&mut self.state);
            let restored = self.rows.load(&self.state).map_err(|_| "bad rows")?;
            if restored != self.state {
                return Err("a snapshot is not the state".into());
            }
            self.twin = restored;
        }
        Ok(())
    }

    /// A chunk is converted by an operator's word, or when it is as old as its file's policy says.
    fn check_age(&mut self, chunk: ChunkId, policy: Policy) -> Result<(), String> {
        let (file, stream, found) = self.state.chunk(chunk).expect("it is converted");
        if stream.converting && policy == stream.policy.form() {
            return Ok(());
        }
        let later = stream.policy.later.filter(|later| later.policy() == policy);
        let later = later.ok_or("9: a conversion that is not wanted")?;
        let seen = self.oracle.seen_ms[&(file, found.base)].max(self.oracle.later_ms[&file]);
        self.aged += 1;
        // Both times are cut to seconds.
        match self.state.clock_ms() + 1000 > seen + u64::from(later.after_s) * 1000 {
            true => Ok(()),
            false => Err(format!("9: {chunk} was sealed at {seen} ms and is converted, {later}")),
        }
    }

    fn check_effect(
        &mut self,
        before: &StreamMachine,
        command: &Command,
        outcome: Outcome,
    ) -> Result<(), String> {
        if let Action::OpenAfter { op, file, follows, .. } | Action::SealAfter { op, file, follows } =
            &command.action
            && let Some(stream) = before.stream(*file)
            && stream.epoch != *follows
            && stream.opening != Some((op.client, op.seq))
            && self.state.stream(*file).is_some_and(|after| after.epoch != stream.epoch)
        {
            return Err(format!("3: the writer after epoch {follows} of {file} is fenced"));
        }
        match (&outcome, &command.action) {
            (Outcome::Refused { .. }, _) => {
                let mut after = self.state.clone();
                after.clock_ms = before.clock_ms;
                after.replies = before.replies.clone();
                after.dead_files = before.dead_files.clone();
                after.dead_files_by_time = before.dead_files_by_time.clone();
                if after != *before {
                    return Err(format!("a refused command changed the state: {command:?}"));
                }
            }
            (Outcome::Writer { file, epoch }, Action::Advance { epoch: asked, .. })
                if before.stream(*file).is_some_and(|stream| stream.epoch > *asked)
                    && before.streams != self.state.streams =>
            {
                return Err(format!("3: an advance of epoch {asked} under {epoch} was taken"));
            }
            (Outcome::Writer { .. }, _) => self.granted += 1,
            (Outcome::Done { .. }, Action::Delete { file, .. })
                if before.stream(*file).is_some() && self.state.stream(*file).is_none() =>
            {
                let until = self.state.clock_ms() + FILE_MEMORY_MS;
                self.oracle.deleted.insert(*file, until);
                self.oracle.epochs.remove(file);
                self.oracle.policies.remove(file);
                self.oracle.extents.retain(|&(of, _), _| of != *file);
                self.oracle.seen_ms.retain(|&(of, _), _| of != *file);
                self.oracle.later_ms.remove(file);
            }
            (Outcome::Done { .. }, Action::Forget { replicas, .. }) => {
                for &(chunk, place) in replicas {
                    let index = self.state.place_number(place);
                    let gone = index.filter(|_| self.state.dead(chunk, place).is_none());
                    self.oracle.replicas.retain(|it| Some(*it) != gone.map(|it| (chunk, it)));
                }
            }
            (Outcome::Done { .. }, Action::EndConversion { .. }) => self.converted += 1,
            (Outcome::Done { .. }, Action::BeginConversion { chunk, policy, .. }) => {
                self.check_age(*chunk, *policy)?;
            }
            // Or a repeat of one that was done before.
            (Outcome::Done { .. }, Action::SetPolicy { file, policy, .. })
                if before.streams != self.state.streams =>
            {
                self.oracle.policies.insert(*file, *policy);
            }
            _ => {}
        }
        if let Outcome::Writer { file, epoch } = outcome {
            let stream = self.state.stream(file);
            let older = |stream: &Stream| stream.writing && stream.epoch < epoch;
            if stream.is_some_and(older) {
                return Err("3: a grant of an epoch that the stream does not have".into());
            }
        }
        Ok(())
    }
}

fn run(seed: u64, steps: usize) -> Result<(u64, u64, u64), String> {
    let mut driver = Driver::new(seed);
    for step in 0..steps {
        driver.step().map_err(|error| format!("seed {seed}, step {step}: {error}"))?;
    }
    Ok((driver.granted, driver.converted, driver.aged))
}

#[test]
fn invariants_hold_under_any_commands() {
    let counts: Vec<_> = (0..200).map(|seed| run(seed, 400).unwrap()).collect();
    let granted: u64 = counts.iter().map(|it| it.0).sum();
    let converted: u64 = counts.iter().map(|it| it.1).sum();
    let aged: u64 = counts.iter().map(|it| it.2).sum();
    assert!(aged > 20, "chunks grow old: {aged}");
    assert!(granted > 3_000 && converted > 100, "they reach deep: {granted}, {converted}");
}

#[test]
fn planted_bugs_in_commands_are_found() {
    for bug in [
        Planted::CondemnReferenced,
        Planted::ForgetDeletedFile,
        Planted::OldEpochAdvances,
        Planted::CopiesLostInRow,
        Planted::FollowsIgnored,
        Planted::ShadowForgotten,
        Planted::YoungIsOld,
    ] {
        plant(Some(bug));
        let found = (0..100).find_map(|seed| run(seed, 400).err());
        plant(None);
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

proptest! {
    #[test]
    fn decoders_answer_garbage(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz_command(&bytes);
        fuzz_rows(&bytes);
    }
}

/// Ends of writers as they are in logs of all versions.
#[test]
fn commands_that_end_a_writer_have_the_bytes_of_their_version() {
    let op = OpId { client: ClientId::new(1), seq: 2, acked_below: 1 };
    let (file, epoch, delete_at_ms) = (FileId::new(3), Epoch::new(4), 9);
    let close = Action::Close { op, file, epoch, sealed: None, finish: false, delete_at_ms };
    let abandoned = Action::SealAbandoned { op, file, epoch, chunk: ChunkId::new(6) };
    for (action, golden) in [(close, CLOSE), (abandoned, SEAL_ABANDONED)] {
        let command = Command { clock_ms: 5, action };
        let hex: String = command.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden);
        assert_eq!(Command::decode(&command.encode()), Ok(command));
    }
}

/// A command and a row that older masters do not know, and the row that they wrote.
#[test]
fn a_set_policy_has_the_bytes_of_its_version_and_old_rows_are_read() {
    let (file, policy) = (FileId::new(3), Policy::rep(5));
    let set = |seq| {
        let op = OpId { client: ClientId::new(1), seq, acked_below: 1 };
        Command { clock_ms: 5, action: Action::SetPolicy { op, file, policy } }
    };
    let hex: String = set(2).encode().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, SET_POLICY);
    assert_eq!(Command::decode(&set(2).encode()), Ok(set(2)));

    let mut state = StreamMachine::new(3);
    let place = |n: u32| ReplicaLocation { server: ServerId::new(n), disk: DiskId::new(n.into()) };
    let op = OpId { client: ClientId::new(1), seq: 1, acked_below: 1 };
    let fresh = vec![(1..=3).map(place).collect::<Vec<_>>(); 2];
    let open = Action::Open { op, file, policy: Policy::strict(3), fresh };
    state.run(Command { clock_ms: 0, action: open });
    let row = |state: &mut StreamMachine| {
        let mut rows = RowCopy::default();
        rows.follow(state);
        assert_eq!(rows.load(state).as_ref(), Ok(&*state), "what is stored is read back");
        let stream = rows.rows().iter().find(|(key, _)| key[0] == 2).expect("it has a row");
        stream.1.clone()
    };
    // Two chunks of 32 bytes and 4 for each of 3 replicas.
    let (before, chunks) = (row(&mut state), 2 * (32 + 3 * 4));
    assert_eq!(before.len() - chunks, row_len_without_chunks());
    state.run(set(2));
    let after = row(&mut state);
    assert_eq!(after[2..before.len()], before[2..], "all but the policy");
    assert_eq!(after[before.len()..], [3, 3], "copies of the chunk and of the spare");

    // With a compression: another form of the policy, and of what chunks have.
    let policy = Policy::rep(5).compressed(Some(Compression::LZ4));
    let op = OpId { client: ClientId::new(1), seq: 3, acked_below: 1 };
    let set = Command { clock_ms: 5, action: Action::SetPolicy { op, file, policy } };
    let hex: String = set.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, SET_COMPRESSION);
    assert_eq!(Command::decode(&set.encode()).as_ref(), Ok(&set));
    state.run(set);
    let compressed = row(&mut state);
    assert_eq!(compressed[..4], [0xC0, 5, 3, 0x31]);
    assert_eq!(compressed[4..before.len() + 2], before[2..], "all but the policy");
    assert_eq!(compressed[before.len() + 2..], [0xC0, 3, 0, 3, 0], "plain chunks of 3 copies");
}

/// A command and rows of codes: masters that know none refuse both, at the policy, the command's tag, or
/// where a chunk has its number of replicas.
#[test]
fn codes_have_the_bytes_of_their_version() {
    let place = |n: u32| ReplicaLocation { server: ServerId::new(n), disk: DiskId::new(n.into()) };
    let (file, epoch) = (FileId::new(3), Epoch::new(4));
    let places = vec![(place(5), 2)];
    let action = Action::AddFragments { chunk: ChunkId::new(6), epoch, places };
    let command = Command { clock_ms: 5, action };
    let hex: String = command.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, ADD_FRAGMENTS);
    assert_eq!(Command::decode(&command.encode()), Ok(command));

    // A coded chunk, and a spare for which there were places for two copies only.
    let mut state = StreamMachine::new(3);
    let op = OpId { client: ClientId::new(1), seq: 1, acked_below: 1 };
    let fresh = vec![(1..=3).map(place).collect(), (1..=2).map(place).collect()];
    let open = Action::Open { op, file, policy: Policy::ec(2, 1), fresh };
    state.run(Command { clock_ms: 0, action: open });
    let mut rows = RowCopy::default();
    rows.follow(&mut state);
    assert_eq!(rows.load(&state).as_ref(), Ok(&state), "what is stored is read back");
    let (_, row) = rows.rows().iter().find(|(key, _)| key[0] == 2).expect("it has a row");
    assert_eq!(row[..5], [0xC1, 2, 3, 3, 0], "the policy");
    let chunk = 5 + 8 + 2 + 1 + 4;
    assert_eq!(row[chunk + 29..][..3], [0xC1, 2, 3], "k, and three replicas");
    assert_eq!(row[chunk + 32..][..15], [0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 2, 0, 0, 0, 2]);
    let spare = chunk + 32 + 15 + 4;
    assert_eq!(row[spare + 28..][..4], [2, 2, 0, 0], "two copies, both acknowledge");
    assert_eq!(row[spare + 32 + 8..], [3, 2], "replicas that each is to have");
}

/// Bytes of a stream's row beside its chunks: policy 2, epoch 8, writing and finished, opening 1,
/// two counts of 4.
const fn row_len_without_chunks() -> usize {
    2 + 8 + 2 + 1 + 2 * 4
}

const ADD_FRAGMENTS: &str = "01050000000000000014060000000000000004000000000000000100000005000000\
    0500000000000000000000000000000002";
const SET_POLICY: &str = "01050000000000000011010000000000000002000000000000000100000000000000\
    03000000000000000503";
const SET_COMPRESSION: &str = "01050000000000000011010000000000000003000000000000000100000000000000\
    0300000000000000c0050331";
const CLOSE: &str = "01050000000000000007010000000000000002000000000000000100000000000000\
    0300000000000000040000000000000000000900000000000000";
const SEAL_ABANDONED: &str = "01050000000000000010010000000000000002000000000000000100000000000000\
    030000000000000004000000000000000600000000000000";

/// The leader's seal of an abandoned chunk may be committed after the writer has gone on.
#[test]
fn seal_of_an_abandoned_chunk_ends_no_other_chunk() {
    let mut state = StreamMachine::new(3);
    let (file, mut seq) = (FileId::new(7), 0);
    let places: Vec<_> = (1..=3)
        .map(|n| ReplicaLocation { server: ServerId::new(n), disk: DiskId::new(n.into()) })
        .collect();
    let mut run = |action: &dyn Fn(OpId) -> Action| {
        seq += 1;
        let op = OpId { client: ClientId::new(1), seq, acked_below: 0 };
        state.run(Command { clock_ms: 0, action: action(op) })
    };
    let (policy, fresh) = (Policy::strict(3), vec![places; 2]);
    let epoch = Epoch::new(1);
    run(&|op| Action::Open { op, file, policy, fresh: fresh.clone() });
    let [first, second] = [1, 2].map(|counter| ChunkId::compose(3, counter));
    let stale = Outcome::Refused { why: Refusal::Stale };
    assert_eq!(run(&|op| Action::SealAbandoned { op, file, epoch, chunk: second }), stale);
    let went_on = run(&|op| Action::Advance {
        op,
        file,
        epoch,
        sealed: first,
        len: 10,
        next: second,
        drop: Vec::new(),
        fresh: Vec::new(),
        delete_at_ms: 0,
    });
    assert_eq!(went_on, Outcome::Writer { file, epoch });
    assert_eq!(run(&|op| Action::SealAbandoned { op, file, epoch, chunk: first }), stale);
    let ended = run(&|op| Action::SealAbandoned { op, file, epoch, chunk: second });
    assert_eq!(ended, Outcome::Recover { epoch: Epoch::new(2) });
}

/// An operator's word names each replica that has no vote, takes the longest vote, and stays on record.
#[test]
fn seal_with_loss_is_of_what_is_left() {
    let mut state = StreamMachine::new(3);
    let place = |n: u32| ReplicaLocation { server: ServerId::new(n), disk: DiskId::new(n.into()) };
    let (file, chunk, epoch) = (FileId::new(7), ChunkId::compose(3, 1), Epoch::new(2));
    let op = |seq| OpId { client: ClientId::new(1), seq, acked_below: 0 };
    let fresh = vec![(1..=3).map(place).collect()];
    let run = |state: &mut StreamMachine, action| state.run(Command { clock_ms: 5, action });
    run(&mut state, Action::Open { op: op(1), file, policy: Policy::plain(3, 2), fresh });
    run(&mut state, Action::Seal { op: op(2), file });
    let seal = |state: &mut StreamMachine, len, votes: &[(u32, u32)], lost: &[u32]| {
        let holders = votes.iter().filter(|vote| vote.1 >= len).map(|&(n, _)| place(n)).collect();
        let votes = votes.iter().map(|&(n, len)| (place(n), len)).collect();
        let (lost, delete_at_ms) = (lost.iter().map(|&n| place(n)).collect(), 9);
        let action =
            Action::SealWithLoss { file, epoch, chunk, len, votes, lost, holders, delete_at_ms };
        let command = Command { clock_ms: 5, action: action.clone() };
        assert_eq!(Command::decode(&command.encode()), Ok(command));
        run(state, action)
    };
    let refused = |why| Outcome::Refused { why };
    assert_eq!(seal(&mut state, 9, &[(1, 9)], &[2]), refused(Refusal::Stale), "the third");
    assert_eq!(seal(&mut state, 9, &[(1, 9)], &[2, 3, 4]), refused(Refusal::Stale), "no replica");
    assert_eq!(seal(&mut state, 8, &[(1, 9)], &[2, 3]), refused(Refusal::Invalid), "shorter");
    assert_eq!(seal(&mut state, 10, &[(1, 9)], &[2, 3]), refused(Refusal::Invalid), "longer");
    assert!(!state.stream(file).expect("it is there").loss_accepted);
    assert_eq!(seal(&mut state, 9, &[(1, 9)], &[2, 3]), Outcome::Done { len: 9 });
    assert_eq!(state.check(), Ok(()));
    let mut rows = RowCopy::default();
    rows.follow(&mut state);
    let again = rows.load(&state).expect("what is stored is read back");
    assert!(again == state && again.stream(file).expect("it is there").loss_accepted);
}

/// Commands and snapshots with one byte changed: decoded to something else, or refused.
#[test]
fn decoders_survive_flipped_bytes() {
    let mut driver = Driver::new(1);
    for _ in 0..300 {
        driver.step().unwrap();
    }
    let mut rng = Rng::new(2);
    let commands: Vec<_> = driver.past.iter().map(Command::encode).collect();
    driver.rows.follow(&mut driver.state);
    let short = driver.rows.rows().iter().filter(|(_, value)| value.len() < 256);
    let row = |(key, value): (&Vec<u8>, &Vec<u8>)| {
        [&[key.len() as u8, value.len() as u8][..], key, value].concat()
    };
    let body = short.map(row).collect::<Vec<_>>().concat();
    for round in 0..20_000 {
        let mut bytes = match round % 10 {
            0 => body.clone(),
            _ => rng.pick(&commands).clone(),
        };
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] = rng.next_u64() as u8;
        bytes.truncate(bytes.len() - rng.below(3) as usize);
        match round % 10 {
            0 => fuzz_rows(&bytes),
            _ => fuzz_command(&bytes),
        }
    }
}

//! A namespace partition as rows (see `docs/formats/raft.md`), and the fuzz targets of this module.

use base::{DirId, FileId};

use super::command::decode_command;
use super::cross::{Action, Cross, Intent, IntentId, Prepared};
use super::outcome::{put_attributes, take_attributes};
use super::state::{Dir, Entry, Inode};
use super::{Answer, Namespace, decode_outcome, encode_command, encode_outcome};
use master_consensus::bytes::{DecodeError, Reader, Writer, row_key, split_key};
use master_consensus::{RowCopy, Rows, StateMachine};

/// Facts of the partition, and intents.
const HEAD: u8 = 1;
/// Directories.
const DIR: u8 = 2;
/// Names in directories.
const NAME: u8 = 3;
/// Versions of the next directories of a name.
const VERSION_OF: u8 = 4;
/// Files.
const INODE: u8 = 5;
/// Files without names.
const ORPHAN: u8 = 6;
/// Sessions of the reply table.
const SESSION: u8 = 7;

impl IntentId {
    pub(super) fn encode(self, to: &mut Writer) {
        to.u16(self.partition).u64(self.index);
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<IntentId, DecodeError> {
        Ok(IntentId { partition: from.u16()?, index: from.u64()? })
    }
}

impl Entry {
    pub(super) fn encode(&self, to: &mut Writer) {
        match self {
            Entry::File(file) => {
                to.u8(1).file(*file);
            }
            Entry::Dir { dir, attributes } => put_attributes(to.u8(2).dir(*dir), attributes),
            Entry::Symlink { target, attributes } => {
                put_attributes(to.u8(3).str(target), attributes);
            }
        }
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Entry, DecodeError> {
        Ok(match from.u8()? {
            1 => Entry::File(from.file()?),
            2 => Entry::Dir { dir: from.dir()?, attributes: take_attributes(from)? },
            3 => Entry::Symlink { target: from.str()?.into(), attributes: take_attributes(from)? },
            _ => return Err(DecodeError),
        })
    }
}

impl Action {
    pub(super) fn encode(&self, to: &mut Writer) {
        match self {
            Action::Put { place, entry, replace } => {
                entry.encode(to.u8(1).place(place));
                to.bool(*replace);
            }
            Action::Take { place, entry } => entry.encode(to.u8(2).place(place)),
            Action::Hold { place } => {
                to.u8(3).place(place);
            }
            Action::NewDir { dir, parent } => {
                to.u8(4).dir(*dir).dir(*parent);
            }
            Action::EndDir { dir } => {
                to.u8(5).dir(*dir);
            }
            Action::Reparent { dir, parent } => {
                to.u8(6).dir(*dir).dir(*parent);
            }
            Action::Count { files } => {
                to.u8(7).count(files.len());
                for &(file, count) in files {
                    to.file(file).u32(count);
                }
            }
            Action::Uncount { file } => {
                to.u8(8).file(*file);
            }
            Action::SetInode { file, attributes, len } => {
                put_attributes(to.u8(9).file(*file), attributes);
                to.bool(len.is_some()).u64(len.unwrap_or(0));
            }
            Action::RenameTurn => {
                to.u8(10);
            }
            Action::SetInodePolicy { file, policy } => {
                to.u8(11).file(*file).policy(*policy);
            }
        }
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Action, DecodeError> {
        Ok(match from.u8()? {
            1 => Action::Put {
                place: from.place()?,
                entry: Entry::decode(from)?,
                replace: from.bool()?,
            },
            2 => Action::Take { place: from.place()?, entry: Entry::decode(from)? },
            3 => Action::Hold { place: from.place()? },
            4 => Action::NewDir { dir: from.dir()?, parent: from.dir()? },
            5 => Action::EndDir { dir: from.dir()? },
            6 => Action::Reparent { dir: from.dir()?, parent: from.dir()? },
            7 => Action::Count { files: from.list(|from| Ok((from.file()?, from.u32()?)))? },
            8 => Action::Uncount { file: from.file()? },
            9 => Action::SetInode {
                file: from.file()?,
                attributes: take_attributes(from)?,
                len: {
                    let (present, len) = (from.bool()?, from.u64()?);
                    present.then_some(len)
                },
            },
            10 => Action::RenameTurn,
            11 => Action::SetInodePolicy { file: from.file()?, policy: from.policy()? },
            _ => return Err(DecodeError),
        })
    }
}

impl Inode {
    fn encode(&self, to: &mut Writer) {
        to.policy(self.policy);
        put_attributes(to, &self.attributes);
        to.u32(self.links).u64(self.len);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Inode, DecodeError> {
        let (policy, attributes) = (from.policy()?, take_attributes(from)?);
        Ok(Inode { policy, attributes, links: from.u32()?, len: from.u64()? })
    }
}

impl Intent {
    fn encode(&self, to: &mut Writer) {
        to.op(&self.op).count(self.plan.len());
        for (partition, actions) in &self.plan {
            to.u16(*partition).count(actions.len());
            actions.iter().for_each(|action| action.encode(to));
        }
        to.bytes(&encode_outcome(&Ok(self.answer.clone()))).bool(self.outcome.is_some());
        if let Some((commit, participants)) = &self.outcome {
            to.bool(*commit).count(participants.len());
            participants.iter().for_each(|&partition| {
                to.u16(partition);
            });
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Intent, DecodeError> {
        let op = from.op()?;
        let plan = from.list(|from| Ok((from.u16()?, from.list(Action::decode)?)))?;
        let answer: Answer = decode_outcome(from.bytes()?)?.map_err(|_| DecodeError)?;
        let outcome =
            if from.bool()? { Some((from.bool()?, from.list(Reader::u16)?)) } else { None };
        Ok(Intent { op, plan, answer, outcome })
    }
}

impl Cross {
    fn encode(&self, to: &mut Writer) {
        to.count(self.intents.len());
        for (&index, intent) in &self.intents {
            intent.encode(to.u64(index));
        }
        to.count(self.prepared.len());
        for ((intent, stage), prepared) in &self.prepared {
            intent.encode(to);
            to.u8(*stage).count(prepared.actions.len());
            prepared.actions.iter().for_each(|action| action.encode(to));
            to.bool(prepared.replaced.is_some());
            if let Some(entry) = &prepared.replaced {
                entry.encode(to);
            }
        }
        to.count(self.names.values().map(|names| names.len()).sum());
        for (&dir, names) in &self.names {
            for (name, intent) in names {
                intent.encode(to.dir(dir).str(name));
            }
        }
        to.count(self.dirs.len());
        for (&dir, intent) in &self.dirs {
            intent.encode(to.dir(dir));
        }
        to.bool(self.turn.is_some());
        if let Some(intent) = self.turn {
            intent.encode(to);
        }
        to.count(self.floors.len());
        for (&partition, &floor) in &self.floors {
            to.u16(partition).u64(floor);
        }
        to.count(self.resolved.len());
        self.resolved.iter().for_each(|intent| intent.encode(to));
    }

    fn decode(from: &mut Reader<'_>) -> Result<Cross, DecodeError> {
        let mut cross = Cross::default();
        let intents = from.list(|from| Ok((from.u64()?, Intent::decode(from)?)))?;
        cross.intents = intents.into_iter().collect();
        let prepared = from.list(|from| {
            let key = (IntentId::decode(from)?, from.u8()?);
            let actions = from.list(Action::decode)?;
            let replaced = if from.bool()? { Some(Entry::decode(from)?) } else { None };
            Ok((key, Prepared { actions, replaced }))
        })?;
        cross.prepared = prepared.into_iter().collect();
        for (dir, name, intent) in
            from.list(|from| Ok((from.dir()?, from.str()?, IntentId::decode(from)?)))?
        {
            cross.names.entry(dir).or_default().insert(name.into(), intent);
        }
        let dirs = from.list(|from| Ok((from.dir()?, IntentId::decode(from)?)))?;
        cross.dirs = dirs.into_iter().collect();
        cross.turn = if from.bool()? { Some(IntentId::decode(from)?) } else { None };
        let floors = from.list(|from| Ok((from.u16()?, from.u64()?)))?;
        cross.floors = floors.into_iter().collect();
        cross.resolved = from.list(IntentId::decode)?.into_iter().collect();
        Ok(cross)
    }
}

/// Keys of rows that went with their directories.
#[derive(Clone, Default, Debug)]
pub(super) struct Gone(Vec<Vec<u8>>);

/// Changes that a checkpoint has yet to get are no part of the state.
impl PartialEq for Gone {
    fn eq(&self, _: &Gone) -> bool {
        true
    }
}

impl Eq for Gone {}

impl Gone {
    pub(super) fn note(&mut self, dir: DirId, removed: Dir) {
        let Dir { entries, versions, .. } = removed;
        for (table, names) in [(NAME, entries.into_known()), (VERSION_OF, versions.into_known())] {
            self.0.extend(names.iter().map(|name| row_key(table, dir_key(dir), name)));
        }
    }
}

fn dir_key(dir: DirId) -> [u8; 16] {
    dir.get().to_be_bytes()
}

fn file_key(table: u8, file: FileId) -> Vec<u8> {
    row_key(table, file.get().to_be_bytes(), "")
}

/// The value of a row, unless it is gone.
fn value_of<T: ?Sized>(row: Option<&T>, encode: impl FnOnce(&T, &mut Writer)) -> Option<Vec<u8>> {
    row.map(|row| {
        let mut to = Writer::new();
        encode(row, &mut to);
        to.finish()
    })
}

impl Namespace {
    /// See [`StateMachine::take_changes`].
    pub(super) fn put_changes(&mut self, rows: &mut Rows) -> bool {
        while let Some(key) = self.gone.0.pop() {
            rows.put(&key, None);
            if rows.is_full() {
                return true;
            }
        }
        while let Some((&id, dir)) = self.dirs.first_changed() {
            if rows.is_full() {
                return true;
            }
            let key = row_key(DIR, dir_key(id), "");
            let Some(dir) = dir else {
                rows.put(&key, None);
                self.dirs.taken();
                continue;
            };
            let mut head = Writer::new();
            head.dir(dir.parent).u32(dir.versions_floor);
            // Without one the row is as it was before directories had policies.
            if let Some(policy) = dir.policy {
                head.policy(policy);
            }
            rows.put(&key, Some(&head.finish()));
            let names = dir.entries.take_changes(rows, |rows, name, entry| {
                let value = value_of(entry, |entry, to| entry.encode(to));
                rows.put(&row_key(NAME, dir_key(id), name), value.as_deref());
            });
            let versions = dir.versions.take_changes(rows, |rows, name, version| {
                let value = version.map(|version| version.to_le_bytes());
                let key = row_key(VERSION_OF, dir_key(id), name);
                rows.put(&key, value.as_ref().map(|value| &value[..]));
            });
            if names || versions {
                return true;
            }
            self.dirs.taken();
        }
        let inodes = self.inodes.take_changes(rows, |rows, &file, inode| {
            let value = value_of(inode, Inode::encode);
            rows.put(&file_key(INODE, file), value.as_deref());
        });
        let orphans = self.orphans.take_changes(rows, |rows, &file, orphan| {
            rows.put(&file_key(ORPHAN, file), orphan.map(|()| &[][..]));
        });
        if inodes || orphans || self.replies.take_changes(SESSION, rows) {
            return true;
        }
        let mut head = Writer::new();
        let to = head.u16(self.partition).u16(self.partitions).u64(self.applied);
        to.u64(self.clock_ms).u64(self.next_file);
        self.cross.encode(to);
        rows.put(&[HEAD], Some(&head.finish()));
        false
    }

    /// Adds a row to a blank state. Rows come in the order of their keys.
    pub(super) fn load_row(&mut self, key: &[u8], value: &[u8]) -> Result<(), DecodeError> {
        let from = &mut Reader::new(value);
        let file = || {
            let (file, "") = split_key(key)? else { return Err(DecodeError) };
            Ok(FileId::new(u64::from_be_bytes(file)))
        };
        let named = || {
            let (dir, name) = split_key(key)?;
            Ok((DirId::new(u128::from_be_bytes(dir)), name))
        };
        match *key.first().ok_or(DecodeError)? {
            HEAD if key.len() == 1 => {
                if (from.u16()?, from.u16()?) != (self.partition, self.partitions) {
                    return Err(DecodeError);
                }
                (self.applied, self.clock_ms) = (from.u64()?, from.u64()?);
                self.next_file = from.u64()?;
                self.cross = Cross::decode(from)?;
            }
            DIR => {
                let (id, "") = named()? else { return Err(DecodeError) };
                let mut dir = Dir::new(from.dir()?);
                dir.versions_floor = from.u32()?;
                if from.clone().end().is_err() {
                    let policy = from.policy()?;
                    if !policy.is_valid() {
                        return Err(DecodeError);
                    }
                    dir.policy = Some(policy);
                }
                self.dirs.load(id, dir);
            }
            NAME => {
                let (id, name) = named()?;
                let entry = Entry::decode(from)?;
                let dir = self.dirs.loaded_mut(&id).ok_or(DecodeError)?;
                if dir.entries.load(name.into(), entry).is_none() {
                    self.names += 1;
                }
            }
            VERSION_OF => {
                let (id, name) = named()?;
                let dir = self.dirs.loaded_mut(&id).ok_or(DecodeError)?;
                dir.versions.load(name.into(), from.u32()?);
            }
            INODE => {
                self.inodes.load(file()?, Inode::decode(from)?);
            }
            ORPHAN => {
                self.orphans.load(file()?, ());
            }
            SESSION => return self.replies.load(key, value),
            _ => return Err(DecodeError),
        }
        from.clone().end()
    }
}

/// Fuzz target: any bytes are a command or an error; what is a command encodes to the same bytes,
/// and applies to a partition without a panic. The rows that change give the same state.
pub fn fuzz_command(bytes: &[u8]) {
    if let Ok((clock_ms, command)) = decode_command(bytes) {
        assert_eq!(encode_command(clock_ms, &command), bytes);
    }
    for (partition, partitions) in [(0, 1), (0, 2), (1, 2)] {
        let mut state = Namespace::new(partition, partitions);
        let mut copy = RowCopy::default();
        for index in 1..3 {
            let before = state.clone();
            match state.apply(index, bytes) {
                Ok(answer) => assert!(decode_outcome(&answer).is_ok()),
                Err(_) => assert_eq!(state, before, "a command that does not decode"),
            }
            copy.follow(&mut state);
            assert_eq!(copy.load(&state), Ok(state.clone()));
        }
    }
}

/// Fuzz target: any bytes are a row or an error. The first byte is the length of the key.
pub fn fuzz_row(bytes: &[u8]) {
    let Some((&key_len, rest)) = bytes.split_first() else { return };
    let (key, value) = rest.split_at(usize::from(key_len).min(rest.len()));
    let mut state = Namespace::new(0, 1);
    if state.load_row(key, value).is_ok() {
        // Loaded rows count as new rows.
        let mut copy = RowCopy::default();
        assert!(state.apply(1, &[]).is_err());
        copy.follow(&mut state);
    }
}

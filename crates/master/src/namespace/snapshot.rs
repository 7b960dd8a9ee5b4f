//! A namespace partition as bytes, and the fuzz targets of this module.
//!
//! Magic `CRns`, version, CRC32C of version and body, body: the tables one after the other, each
//! a count and its rows in order.

use base::{DirId, FileId};

use super::command::decode_command;
use super::cross::{Action, Cross, Intent, IntentId, Prepared};
use super::outcome::{put_attributes, put_policy, take_attributes, take_policy};
use super::state::{Dir, Entry, Inode};
use super::{Answer, Namespace, decode_outcome, encode_command, encode_outcome};
use crate::bytes::{
    BadBytes, Reader, Writer, begin_snapshot, end_snapshot, open_snapshot, seal_snapshot,
};
use crate::consensus::StateMachine;
use crate::replies::ReplyTable;

const MAGIC: [u8; 4] = *b"CRns";
const VERSION: u8 = 1;

impl IntentId {
    pub(super) fn encode(self, to: &mut Writer) {
        to.u16(self.partition).u64(self.index);
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<IntentId, BadBytes> {
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

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Entry, BadBytes> {
        Ok(match from.u8()? {
            1 => Entry::File(from.file()?),
            2 => Entry::Dir { dir: from.dir()?, attributes: take_attributes(from)? },
            3 => Entry::Symlink { target: from.str()?.into(), attributes: take_attributes(from)? },
            _ => return Err(BadBytes),
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
        }
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Action, BadBytes> {
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
            _ => return Err(BadBytes),
        })
    }
}

impl Dir {
    fn encode(&self, to: &mut Writer) {
        to.dir(self.parent).u32(self.versions_floor).count(self.versions.len());
        for (name, version) in &self.versions {
            to.str(name).u32(*version);
        }
        to.count(self.entries.len());
        for (name, entry) in &self.entries {
            entry.encode(to.str(name));
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Dir, BadBytes> {
        let (parent, versions_floor) = (from.dir()?, from.u32()?);
        let versions = from.list(|from| Ok((from.str()?.into(), from.u32()?)))?;
        let entries = from.list(|from| Ok((from.str()?.into(), Entry::decode(from)?)))?;
        let versions = versions.into_iter().collect();
        Ok(Dir { parent, versions_floor, versions, entries: entries.into_iter().collect() })
    }
}

impl Inode {
    fn encode(&self, to: &mut Writer) {
        put_policy(to, self.policy);
        put_attributes(to, &self.attributes);
        to.u32(self.links).u64(self.len);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Inode, BadBytes> {
        let (policy, attributes) = (take_policy(from)?, take_attributes(from)?);
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
        to.bytes(&encode_outcome(&Ok(self.answer.clone()))).bool(self.fate.is_some());
        if let Some((commit, participants)) = &self.fate {
            to.bool(*commit).count(participants.len());
            participants.iter().for_each(|&partition| {
                to.u16(partition);
            });
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Intent, BadBytes> {
        let op = from.op()?;
        let plan = from.list(|from| Ok((from.u16()?, from.list(Action::decode)?)))?;
        let answer: Answer = decode_outcome(from.bytes()?)?.map_err(|_| BadBytes)?;
        let fate = if from.bool()? { Some((from.bool()?, from.list(Reader::u16)?)) } else { None };
        Ok(Intent { op, plan, answer, fate })
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

    fn decode(from: &mut Reader<'_>) -> Result<Cross, BadBytes> {
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

impl Namespace {
    pub(super) fn encode(&self) -> Vec<u8> {
        // A name and its file are some 80 bytes.
        let rows = self.names as usize + self.dirs.len() + self.inodes.len();
        let mut writer = begin_snapshot(48 * rows);
        let to = &mut writer;
        to.u16(self.partition).u16(self.partitions).u64(self.applied).u64(self.clock_ms);
        to.u64(self.next_file).count(self.dirs.len());
        for (&id, dir) in &self.dirs {
            dir.encode(to.dir(id));
        }
        to.count(self.inodes.len());
        for (&file, inode) in &self.inodes {
            inode.encode(to.file(file));
        }
        to.count(self.orphans.len());
        self.orphans.iter().for_each(|&file| {
            to.file(file);
        });
        self.replies.encode(to);
        self.cross.encode(to);
        end_snapshot(MAGIC, VERSION, writer)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Namespace, BadBytes> {
        let (version, body) = open_snapshot(MAGIC, bytes)?;
        if version != VERSION {
            return Err(BadBytes);
        }
        let mut reader = Reader::new(body);
        let from = &mut reader;
        let (partition, partitions) = (from.u16()?, from.u16()?);
        if partition >= partitions {
            return Err(BadBytes);
        }
        let mut state = Namespace::new(partition, partitions);
        (state.applied, state.clock_ms) = (from.u64()?, from.u64()?);
        state.next_file = from.u64()?;
        let dirs: Vec<(DirId, Dir)> = from.list(|from| Ok((from.dir()?, Dir::decode(from)?)))?;
        state.names = dirs.iter().map(|(_, dir)| dir.entries.len() as u64).sum();
        state.dirs = dirs.into_iter().collect();
        let inodes: Vec<(FileId, Inode)> =
            from.list(|from| Ok((from.file()?, Inode::decode(from)?)))?;
        state.inodes = inodes.into_iter().collect();
        state.orphans = from.list(Reader::file)?.into_iter().collect();
        state.replies = ReplyTable::decode(from)?;
        state.cross = Cross::decode(from)?;
        reader.end()?;
        Ok(state)
    }
}

/// Fuzz target: any bytes are a command or an error; what is a command encodes to the same bytes,
/// and applies to a partition without a panic.
pub fn fuzz_command(bytes: &[u8]) {
    if let Ok((clock_ms, command)) = decode_command(bytes) {
        assert_eq!(encode_command(clock_ms, &command), bytes);
    }
    for (partition, partitions) in [(0, 1), (0, 2), (1, 2)] {
        let mut state = Namespace::new(partition, partitions);
        for index in 1..3 {
            let answer = state.apply(index, bytes);
            assert!(decode_outcome(&answer).is_ok());
        }
        assert_eq!(Namespace::decode(&state.encode()), Ok(state));
    }
}

/// Fuzz target: any bytes are a snapshot or an error, also behind a valid checksum.
pub fn fuzz_snapshot(bytes: &[u8]) {
    let _ = Namespace::decode(bytes);
    if let Ok(state) = Namespace::decode(&seal_snapshot(MAGIC, VERSION, bytes)) {
        let _ = state.encode();
    }
}

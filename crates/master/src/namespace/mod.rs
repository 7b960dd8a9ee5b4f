//! A namespace partition (C4): directories, names and files as ordered maps in memory, changed by
//! the commands of its Raft group (`protocols.md` 4).
//!
//! Each directory belongs to the partition of its identity, with the names in it. A file belongs
//! to the partition that made it, wherever its names are. Changes that touch several partitions
//! are intents: see [`cross`].
//!
//! Invariant: no I/O, no clock. The state is a function of the commands, and no command, however
//! damaged, makes it panic.

mod change;
mod command;
pub mod cross;
mod drive;
mod outcome;
mod question;
mod service;
mod snapshot;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use base::{DirId, FileId};
use wire::control::namespace_partition;

pub use command::{Command, decode_command, encode_command};
pub use cross::{Action, Intent, IntentId};
pub use outcome::{Answer, Outcome, Refusal, decode_outcome, encode_outcome};
pub use question::fuzz_question;
pub use service::{NamespaceService, NamespaceTiming, StreamEnd};
pub use snapshot::{fuzz_command, fuzz_snapshot};
pub use state::{Entry, Found, Inode, Page, is_name};

use crate::consensus::{BadSnapshot, StateMachine};
use crate::replies::{ReplyTable, Seen};

/// The state of one namespace partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    partition: u16,
    partitions: u16,
    /// Index of the last command.
    applied: u64,
    /// The group's clock at the last command.
    clock_ms: u64,
    dirs: BTreeMap<DirId, state::Dir>,
    inodes: BTreeMap<FileId, Inode>,
    /// Files without names whose streams are not known to be gone.
    orphans: BTreeSet<FileId>,
    /// Counter of the next file, from 1.
    next_file: u64,
    /// Names in all directories.
    names: u64,
    replies: ReplyTable,
    cross: cross::Cross,
}

impl Namespace {
    /// Partition `partition` of `partitions`, empty. The root directory is in the partition of
    /// its identity.
    pub fn new(partition: u16, partitions: u16) -> Namespace {
        assert!(partition < partitions, "partition {partition} of {partitions}");
        let mut dirs = BTreeMap::new();
        if namespace_partition(DirId::ROOT, partitions) == partition {
            dirs.insert(DirId::ROOT, state::Dir::new(DirId::ROOT));
        }
        Namespace {
            partition,
            partitions,
            applied: 0,
            clock_ms: 0,
            dirs,
            inodes: BTreeMap::new(),
            orphans: BTreeSet::new(),
            next_file: 1,
            names: 0,
            replies: ReplyTable::default(),
            cross: cross::Cross::default(),
        }
    }

    /// The answer to a mutation, if it was done lately.
    pub fn answer(&self, op: &wire::control::OpId) -> Option<Outcome> {
        decode_outcome(self.replies.answer(op)?).ok()
    }

    fn execute(&mut self, index: u64, command: Command) -> Outcome {
        match command {
            Command::Change { op, change } => match self.replies.look(&op, self.clock_ms) {
                Seen::New => {
                    let outcome = self.change(index, &op, &change);
                    if !matches!(outcome, Err(refusal) if refusal.is_transient()) {
                        self.replies.keep(&op, &encode_outcome(&outcome));
                    }
                    outcome
                }
                Seen::Answered(bytes) => decode_outcome(&bytes).unwrap_or(Err(Refusal::BadCommand)),
                Seen::Late => Err(Refusal::Late),
                Seen::Busy => Err(Refusal::Busy),
            },
            Command::Deleted { files } => {
                files.iter().for_each(|file| {
                    self.orphans.remove(file);
                });
                Ok(Answer::Done)
            }
            Command::Prepare { intent, floor, stage, actions } => {
                self.prepare_for(intent, floor, stage, &actions)
            }
            Command::Decide { intent, commit, participants, outcome } => {
                self.decide(intent, commit, &participants, &outcome)
            }
            Command::Resolve { intent, floor, commit } => self.resolve(intent, floor, commit),
            Command::Forget { intent } => self.forget(intent),
        }
    }
}

impl StateMachine for Namespace {
    fn apply(&mut self, index: u64, command: &[u8]) -> Vec<u8> {
        let outcome = match decode_command(command) {
            Ok((clock_ms, command)) => {
                self.clock_ms = self.clock_ms.max(clock_ms);
                self.execute(index, command)
            }
            Err(_) => Err(Refusal::BadCommand),
        };
        self.applied = self.applied.max(index);
        encode_outcome(&outcome)
    }

    fn snapshot(&self) -> Vec<u8> {
        self.encode()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), BadSnapshot> {
        let restored = Namespace::decode(bytes).map_err(|_| BadSnapshot)?;
        if (restored.partition, restored.partitions) != (self.partition, self.partitions) {
            return Err(BadSnapshot);
        }
        *self = restored;
        Ok(())
    }
}

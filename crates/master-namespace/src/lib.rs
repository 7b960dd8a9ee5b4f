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
pub mod grant;
pub mod limits;
mod outcome;
mod question;
mod service;
mod snapshot;
mod state;

use base::{DirId, FileId};
use wire::control::namespace_partition;

pub use command::{Command, decode_command, encode_command};
pub use cross::{Action, Intent, IntentId};
pub use outcome::{Answer, Outcome, Refusal, decode_outcome, encode_outcome};
pub use question::fuzz_question;
pub use service::{NamespaceService, NamespaceTiming, StreamEnd};
pub use snapshot::{fuzz_command, fuzz_row};
pub use state::{Entry, Found, Inode, Page, is_name};

use master_consensus::limits::SHED_ROWS;
use master_consensus::replies::{ReplyTable, Seen};
use master_consensus::tracked::Tracked;
use master_consensus::{BadCommand, BadSnapshot, Rows, StateMachine};

/// The state of one namespace partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    partition: u16,
    partitions: u16,
    /// Index of the last command.
    applied: u64,
    /// The group's clock at the last command.
    clock_ms: u64,
    dirs: Tracked<DirId, state::Dir>,
    inodes: Tracked<FileId, Inode>,
    /// Files without names whose streams are not known to be gone.
    orphans: Tracked<FileId, ()>,
    /// Rows of directories that were removed since the last checkpoint.
    gone: snapshot::Gone,
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
        let mut dirs = Tracked::default();
        if namespace_partition(DirId::ROOT, partitions) == partition {
            dirs.insert(DirId::ROOT, state::Dir::new(DirId::ROOT));
        }
        Namespace {
            partition,
            partitions,
            applied: 0,
            clock_ms: 0,
            dirs,
            inodes: Tracked::default(),
            orphans: Tracked::default(),
            gone: snapshot::Gone::default(),
            next_file: 1,
            names: 0,
            replies: ReplyTable::default(),
            cross: cross::Cross::default(),
        }
    }

    /// The same with another first file than a new cluster has.
    pub fn starting_at(self, first_file: u64) -> Namespace {
        Namespace { next_file: first_file, ..self }
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
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Vec<u8>, BadCommand> {
        let (clock_ms, command) = decode_command(command).map_err(|_| BadCommand)?;
        self.clock_ms = self.clock_ms.max(clock_ms);
        let outcome = self.execute(index, command);
        self.applied = self.applied.max(index);
        Ok(encode_outcome(&outcome))
    }

    fn check_command(command: &[u8]) -> Result<(), BadCommand> {
        decode_command(command).map(drop).map_err(|_| BadCommand)
    }

    fn take_changes(&mut self, rows: &mut Rows) -> bool {
        self.put_changes(rows)
    }

    fn blank(&self) -> Namespace {
        let blank = Namespace::new(self.partition, self.partitions);
        Namespace { dirs: Tracked::default(), ..blank }
    }

    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadSnapshot> {
        self.load_row(key, value).map_err(|_| BadSnapshot)
    }

    fn shed(&mut self) -> bool {
        for _ in 0..SHED_ROWS {
            let dir = self.dirs.shed().map(|(_, mut dir)| {
                if dir.entries.shed().is_some() {
                    self.dirs.load(DirId::ROOT, dir);
                }
            });
            let more = dir.is_some() || self.inodes.shed().is_some() || self.replies.shed();
            if !more {
                return false;
            }
        }
        true
    }
}

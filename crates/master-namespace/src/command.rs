//! The commands in a namespace partition's log.

use base::FileId;
use wire::control::{NamespaceChange, OpId};

use super::cross::{Action, IntentId};
use super::outcome::{NO_POLICY, put_attributes, take_attributes};
use super::{Outcome, decode_outcome, encode_outcome};
use master_consensus::bytes::{DecodeError, Reader, Writer};

/// Version of commands.
const VERSION: u8 = 1;

/// Command of a log entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// A client's mutation.
    Change {
        /// Identifies it across retries.
        op: OpId,
        /// The mutation.
        change: NamespaceChange,
    },
    /// Stream partitions have confirmed these deletions.
    Deleted {
        /// The files.
        files: Vec<FileId>,
    },
    /// Another partition's intent asks for these actions: lock what they need, or refuse.
    Prepare {
        /// The intent.
        intent: IntentId,
        /// The lowest live intent of its partition.
        floor: u64,
        /// Distinguishes the questions that one intent asks of one partition.
        stage: u8,
        /// Actions at its commit.
        actions: Vec<Action>,
    },
    /// To the intent's own partition: the decision, once for all.
    Decide {
        /// The intent.
        intent: IntentId,
        /// Commit, or abort.
        commit: bool,
        /// Partitions that were asked to prepare.
        participants: Vec<u16>,
        /// The client's answer.
        outcome: Outcome,
    },
    /// To a participant: the decision on the intent.
    Resolve {
        /// The intent.
        intent: IntentId,
        /// The lowest live intent of its partition.
        floor: u64,
        /// Committed, or aborted.
        commit: bool,
    },
    /// To the intent's own partition: all participants have the decision.
    Forget {
        /// The intent.
        intent: IntentId,
    },
}

/// A command at `clock_ms` of the group's clock, as bytes for the log.
pub fn encode_command(clock_ms: u64, command: &Command) -> Vec<u8> {
    let mut writer = Writer::new();
    let to = writer.u8(VERSION).u64(clock_ms);
    match command {
        Command::Change { op, change } => put_change(to.u8(1).op(op), change),
        Command::Deleted { files } => {
            to.u8(2).count(files.len());
            files.iter().for_each(|&file| {
                to.file(file);
            });
        }
        Command::Prepare { intent, floor, stage, actions } => {
            intent.encode(to.u8(3));
            to.u64(*floor).u8(*stage).count(actions.len());
            actions.iter().for_each(|action| action.encode(to));
        }
        Command::Decide { intent, commit, participants, outcome } => {
            intent.encode(to.u8(4));
            to.bool(*commit).count(participants.len());
            participants.iter().for_each(|&partition| {
                to.u16(partition);
            });
            to.bytes(&encode_outcome(outcome));
        }
        Command::Resolve { intent, floor, commit } => {
            intent.encode(to.u8(5));
            to.u64(*floor).bool(*commit);
        }
        Command::Forget { intent } => intent.encode(to.u8(6)),
    }
    writer.finish()
}

/// Clock and command of bytes from the log.
pub fn decode_command(bytes: &[u8]) -> Result<(u64, Command), DecodeError> {
    let from = &mut Reader::new(bytes);
    if from.u8()? != VERSION {
        return Err(DecodeError);
    }
    let clock_ms = from.u64()?;
    let command = match from.u8()? {
        1 => Command::Change { op: from.op()?, change: take_change(from)? },
        2 => Command::Deleted { files: from.list(Reader::file)? },
        3 => Command::Prepare {
            intent: IntentId::decode(from)?,
            floor: from.u64()?,
            stage: from.u8()?,
            actions: from.list(Action::decode)?,
        },
        4 => Command::Decide {
            intent: IntentId::decode(from)?,
            commit: from.bool()?,
            participants: from.list(Reader::u16)?,
            outcome: decode_outcome(from.bytes()?)?,
        },
        5 => Command::Resolve {
            intent: IntentId::decode(from)?,
            floor: from.u64()?,
            commit: from.bool()?,
        },
        6 => Command::Forget { intent: IntentId::decode(from)? },
        _ => return Err(DecodeError),
    };
    from.clone().end()?;
    Ok((clock_ms, command))
}

/// Writes a change.
pub(super) fn put_change(to: &mut Writer, change: &NamespaceChange) {
    match change {
        NamespaceChange::Mkdir { place, attributes } => {
            put_attributes(to.u8(1).place(place), attributes);
        }
        NamespaceChange::Create { place, policy, attributes, exclusive, inherit } => {
            to.u8(if *inherit { 10 } else { 2 }).place(place).policy(*policy);
            put_attributes(to, attributes);
            to.bool(*exclusive);
        }
        NamespaceChange::Symlink { place, target, attributes } => {
            put_attributes(to.u8(3).place(place).str(target), attributes);
        }
        NamespaceChange::Link { links } => {
            to.u8(4).count(links.len());
            for (file, place) in links {
                to.file(*file).place(place);
            }
        }
        NamespaceChange::Unlink { place } => {
            to.u8(5).place(place);
        }
        NamespaceChange::Rmdir { place } => {
            to.u8(6).place(place);
        }
        NamespaceChange::Rename { from, to: then, replace } => {
            to.u8(7).place(from).place(then).bool(*replace);
        }
        NamespaceChange::SetAttributes { place, attributes, len, file } => {
            put_attributes(to.u8(if file.is_some() { 9 } else { 8 }).place(place), attributes);
            to.bool(len.is_some()).u64(len.unwrap_or(0));
            if let Some(file) = file {
                to.file(*file);
            }
        }
        NamespaceChange::SetDirPolicy { dir, policy } => {
            to.u8(11).dir(*dir).policy(policy.unwrap_or(NO_POLICY));
        }
        NamespaceChange::SetFilePolicy { place, file, policy } => {
            to.u8(12).place(place).file(*file).policy(*policy);
        }
    }
}

/// Reads a change.
pub(super) fn take_change(from: &mut Reader<'_>) -> Result<NamespaceChange, DecodeError> {
    Ok(match from.u8()? {
        1 => NamespaceChange::Mkdir { place: from.place()?, attributes: take_attributes(from)? },
        // 10 inherits; before it was there, each creation was a 2.
        tag @ (2 | 10) => NamespaceChange::Create {
            place: from.place()?,
            policy: from.policy()?,
            attributes: take_attributes(from)?,
            exclusive: from.bool()?,
            inherit: tag == 10,
        },
        3 => NamespaceChange::Symlink {
            place: from.place()?,
            target: from.str()?.to_owned(),
            attributes: take_attributes(from)?,
        },
        4 => NamespaceChange::Link { links: from.list(|from| Ok((from.file()?, from.place()?)))? },
        5 => NamespaceChange::Unlink { place: from.place()? },
        6 => NamespaceChange::Rmdir { place: from.place()? },
        7 => NamespaceChange::Rename {
            from: from.place()?,
            to: from.place()?,
            replace: from.bool()?,
        },
        // 9 names the file; before it was there, each change was an 8.
        tag @ (8 | 9) => NamespaceChange::SetAttributes {
            place: from.place()?,
            attributes: take_attributes(from)?,
            len: match (from.bool()?, from.u64()?) {
                (true, len) => Some(len),
                (false, 0) => None,
                (false, _) => return Err(DecodeError),
            },
            file: if tag == 9 { Some(from.file()?) } else { None },
        },
        11 => NamespaceChange::SetDirPolicy {
            dir: from.dir()?,
            policy: Some(from.policy()?).filter(|policy| *policy != NO_POLICY),
        },
        12 => NamespaceChange::SetFilePolicy {
            place: from.place()?,
            file: from.file()?,
            policy: from.policy()?,
        },
        _ => return Err(DecodeError),
    })
}

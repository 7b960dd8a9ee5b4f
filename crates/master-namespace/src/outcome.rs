//! Answers of a namespace partition, as its replicas compute them and as the log's proposer gets
//! them back.

use std::fmt;

use base::{FileId, Kind};
use wire::control::{Attributes, ControlError, Node, Policy};

use super::{Entry, IntentId};
use master_consensus::bytes::{DecodeError, Reader, Writer};

/// Result of a change.
pub type Outcome = Result<Answer, Refusal>;

/// A change took effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Nothing more to say.
    Done,
    /// The name's target now.
    Node(Node),
    /// The name's target is this file of another partition, which has its attributes.
    Remote(FileId),
    /// The change spans partitions: its answer comes with the end of the intent.
    Pending(IntentId),
    /// To another partition's intent: all is locked. With what the new name replaces.
    Prepared(Option<Entry>),
}

/// A change did not take effect. The numbers are in logs and snapshots: never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// No such directory.
    NoDir = 1,
    /// No such name in the directory.
    NoName = 2,
    /// No such file.
    NoFile = 3,
    /// The name is there already.
    Exists = 4,
    /// A directory is needed, and this is none.
    NotDir = 5,
    /// This is a directory.
    IsDir = 6,
    /// The directory has names in it.
    NotEmpty = 7,
    /// A directory would become its own ancestor.
    Cycle = 8,
    /// No name: empty, too long, `.`, `..`, with `/` or a zero byte.
    BadName = 9,
    /// No target of a symbolic link: empty, too long, or with a zero byte.
    BadTarget = 10,
    /// No storage policy.
    BadPolicy = 11,
    /// A batch that is empty or too long.
    BadBatch = 12,
    /// The partition, or a counter in it, is full.
    Full = 13,
    /// The directory or file belongs to another partition.
    Elsewhere = 14,
    /// Another change across partitions holds the name: nothing happened.
    Locked = 15,
    /// The client said that it had this mutation's answer: nothing happened now.
    Late = 16,
    /// The reply table is full: nothing happened.
    Busy = 17,
    /// The command is of another version.
    BadCommand = 18,
    /// The change spans partitions in a way that is not supported.
    Spans = 19,
    /// The directory lies too deep for its ancestors to be checked.
    TooDeep = 20,
    /// The intent is over.
    NoIntent = 21,
}

impl Refusal {
    /// All of them, by number.
    const ALL: [Refusal; 21] = [
        Refusal::NoDir,
        Refusal::NoName,
        Refusal::NoFile,
        Refusal::Exists,
        Refusal::NotDir,
        Refusal::IsDir,
        Refusal::NotEmpty,
        Refusal::Cycle,
        Refusal::BadName,
        Refusal::BadTarget,
        Refusal::BadPolicy,
        Refusal::BadBatch,
        Refusal::Full,
        Refusal::Elsewhere,
        Refusal::Locked,
        Refusal::Late,
        Refusal::Busy,
        Refusal::BadCommand,
        Refusal::Spans,
        Refusal::TooDeep,
        Refusal::NoIntent,
    ];

    fn from_number(number: u8) -> Option<Refusal> {
        Refusal::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// The caller's reaction.
    pub const fn kind(self) -> Kind {
        match self {
            Refusal::NoDir | Refusal::NoName | Refusal::NoFile => Kind::NotFound,
            Refusal::Exists => Kind::Exists,
            Refusal::Full => Kind::Full,
            Refusal::Locked | Refusal::Busy => Kind::Retry,
            Refusal::Elsewhere => Kind::Refresh,
            _ => Kind::Invalid,
        }
    }

    /// True when the same mutation may be tried again: such an answer is not remembered.
    pub const fn is_transient(self) -> bool {
        matches!(self, Refusal::Locked | Refusal::Busy)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::NoDir => "no such directory",
            Refusal::NoName => "no such file or directory",
            Refusal::NoFile => "no such file: its last name was removed",
            Refusal::Exists => "the name exists already",
            Refusal::NotDir => "not a directory",
            Refusal::IsDir => "is a directory",
            Refusal::NotEmpty => "the directory is not empty",
            Refusal::Cycle => "a directory cannot move into itself",
            Refusal::BadName => {
                "a name has 1 to 255 bytes, no '/' and no zero byte, and is not '.' or '..'"
            }
            Refusal::BadTarget => "the target of a symbolic link has 1 to 4095 bytes, none zero",
            Refusal::BadPolicy => "a policy has 1 to 5 copies, more than half of which acknowledge",
            Refusal::BadBatch => "a batch has 1 to 1000 names of directories in one partition",
            Refusal::Full => "the namespace partition is full: remove files, or add partitions",
            Refusal::Elsewhere => {
                "this partition does not hold that directory: refresh the cluster's facts"
            }
            Refusal::Locked => "another rename or link holds the name: retry",
            Refusal::Late => "this request was answered and acknowledged before",
            Refusal::Busy => {
                "too many client sessions or unacknowledged changes: retry after a pause"
            }
            Refusal::BadCommand => "the command is of another version: upgrade all masters",
            Refusal::Spans => "changes of this kind across partitions are not supported yet",
            Refusal::TooDeep => "the directory lies too deep to be moved",
            Refusal::NoIntent => "the change across partitions is over",
        })
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for ControlError {
    fn from(refusal: Refusal) -> ControlError {
        ControlError::new(refusal.kind(), refusal.to_string())
    }
}

/// Writes attributes.
pub(super) fn put_attributes(to: &mut Writer, attributes: &Attributes) {
    to.u32(attributes.mode).u64(attributes.mtime);
}

/// Reads attributes.
pub(super) fn take_attributes(from: &mut Reader<'_>) -> Result<Attributes, DecodeError> {
    Ok(Attributes { mode: from.u32()?, mtime: from.u64()? })
}

/// Stands for the absence of a policy; no policy has no copies.
pub(super) const NO_POLICY: Policy = Policy::plain(0, 0);

pub(super) fn put_node(to: &mut Writer, node: &Node) {
    match node {
        Node::File { file, policy, attributes, links, len } => {
            to.u8(1).file(*file);
            to.policy(*policy);
            put_attributes(to, attributes);
            to.u32(*links).u64(*len);
        }
        Node::Dir { dir, attributes } => {
            to.u8(2).dir(*dir);
            put_attributes(to, attributes);
        }
        Node::Symlink { target, attributes } => {
            to.u8(3).str(target);
            put_attributes(to, attributes);
        }
    }
}

pub(super) fn take_node(from: &mut Reader<'_>) -> Result<Node, DecodeError> {
    Ok(match from.u8()? {
        1 => {
            let (file, policy) = (from.file()?, from.policy()?);
            let attributes = take_attributes(from)?;
            Node::File { file, policy, attributes, links: from.u32()?, len: from.u64()? }
        }
        2 => Node::Dir { dir: from.dir()?, attributes: take_attributes(from)? },
        3 => Node::Symlink { target: from.str()?.to_owned(), attributes: take_attributes(from)? },
        _ => return Err(DecodeError),
    })
}

/// An outcome as bytes.
pub fn encode_outcome(outcome: &Outcome) -> Vec<u8> {
    let mut to = Writer::new();
    match outcome {
        Ok(Answer::Done) => {
            to.u8(0);
        }
        Ok(Answer::Node(node)) => put_node(to.u8(1), node),
        Ok(Answer::Remote(file)) => {
            to.u8(2).file(*file);
        }
        Ok(Answer::Pending(intent)) => intent.encode(to.u8(3)),
        Ok(Answer::Prepared(None)) => {
            to.u8(4);
        }
        Ok(Answer::Prepared(Some(entry))) => entry.encode(to.u8(5)),
        Err(refusal) => {
            to.u8(0xff).u8(*refusal as u8);
        }
    }
    to.finish()
}

/// The outcome of bytes that [`encode_outcome`] made.
pub fn decode_outcome(bytes: &[u8]) -> Result<Outcome, DecodeError> {
    let from = &mut Reader::new(bytes);
    let outcome = match from.u8()? {
        0 => Ok(Answer::Done),
        1 => Ok(Answer::Node(take_node(from)?)),
        2 => Ok(Answer::Remote(from.file()?)),
        3 => Ok(Answer::Pending(IntentId::decode(from)?)),
        4 => Ok(Answer::Prepared(None)),
        5 => Ok(Answer::Prepared(Some(Entry::decode(from)?))),
        0xff => Err(Refusal::from_number(from.u8()?).ok_or(DecodeError)?),
        _ => return Err(DecodeError),
    };
    from.clone().end()?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_keep_their_numbers() {
        for (place, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, place + 1);
            let bytes = encode_outcome(&Err(refusal));
            assert_eq!(decode_outcome(&bytes), Ok(Err(refusal)));
        }
        assert!(decode_outcome(&[0xff, 0]).is_err() && decode_outcome(&[0xff, 22]).is_err());
    }
}

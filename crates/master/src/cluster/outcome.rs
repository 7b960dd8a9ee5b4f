//! Answers of the cluster group.

use std::fmt;

use base::{Kind, ServerId};
use wire::control::ControlError;

use master_consensus::bytes::{DecodeError, Reader, Writer};

/// Result of a command.
pub type Outcome = Result<Answer, Refusal>;

/// A command took effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Nothing more to say.
    Done,
    /// The server's identity.
    Registered(ServerId),
    /// The lock's fencing token.
    Lock(u64),
}

/// A command did not take effect. The numbers are in logs and snapshots: never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// A name, owner or domain is empty or too long.
    BadName = 1,
    /// A lease outside its range.
    BadLease = 2,
    /// Another holder has the lock.
    Held = 3,
    /// The lease has run out, or the lock was taken by another since.
    Fenced = 4,
    /// A table is full.
    Full = 5,
    /// The client said that it had this mutation's answer: nothing happened now.
    Late = 6,
    /// The reply table is full: nothing happened.
    Busy = 7,
    /// The command is of another version.
    BadCommand = 8,
    /// The cluster is formed otherwise.
    Formed = 9,
    /// Another master has this ID, name or address.
    MasterExists = 10,
    /// No master has this ID, or it is the last one.
    NoMaster = 11,
    /// A master with this ID has left: its number is not used again.
    MasterLeft = 12,
    /// No chunkserver has this identity.
    NoServer = 13,
    /// The chunkserver has left for ever.
    Decommissioned = 14,
    /// The chunkserver does not drain, or does by a later order.
    NotDraining = 15,
}

impl Refusal {
    const ALL: [Refusal; 15] = [
        Refusal::BadName,
        Refusal::BadLease,
        Refusal::Held,
        Refusal::Fenced,
        Refusal::Full,
        Refusal::Late,
        Refusal::Busy,
        Refusal::BadCommand,
        Refusal::Formed,
        Refusal::MasterExists,
        Refusal::NoMaster,
        Refusal::MasterLeft,
        Refusal::NoServer,
        Refusal::Decommissioned,
        Refusal::NotDraining,
    ];

    /// The caller's reaction.
    pub const fn kind(self) -> Kind {
        match self {
            Refusal::Held | Refusal::Decommissioned => Kind::Exists,
            Refusal::Fenced => Kind::Fenced,
            Refusal::Full => Kind::Full,
            Refusal::Busy => Kind::Retry,
            Refusal::NoMaster | Refusal::NoServer => Kind::NotFound,
            _ => Kind::Invalid,
        }
    }

    /// True when the same mutation may be tried again: such an answer is not remembered.
    pub const fn is_transient(self) -> bool {
        matches!(self, Refusal::Busy)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::BadName => "names, owners and domains have 1 to 255 bytes",
            Refusal::BadLease => "a lease has 100 to 600000 ms",
            Refusal::Held => "another holds the lock: try again when its lease has run out",
            Refusal::Fenced => "the lease has run out: acquire the lock again",
            Refusal::Full => "the cluster's table is full",
            Refusal::Late => "this request was answered and acknowledged before",
            Refusal::Busy => {
                "too many client sessions or unacknowledged changes: retry after a pause"
            }
            Refusal::BadCommand => "the command is of another version: upgrade all masters",
            Refusal::Formed => {
                "the cluster was formed with another ID or other numbers of partitions: correct \
                 the configuration"
            }
            Refusal::MasterExists => {
                "another master has this number, name or address: 'craton masters members' lists \
                 them"
            }
            Refusal::NoMaster => "no such master, or it is the last one",
            Refusal::MasterLeft => {
                "a master with this number was removed, and numbers are not used again: start it \
                 with an empty directory and a 'raft_id' that no master had, and add it by that"
            }
            Refusal::NoServer => "no such chunkserver: 'craton status' lists them",
            Refusal::Decommissioned => {
                "the chunkserver was decommissioned, and its name is not used again: stop it, or \
                 start it with empty disks and another 'id'"
            }
            Refusal::NotDraining => {
                "the chunkserver does not drain: 'craton drain' has it emptied first"
            }
        })
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for ControlError {
    fn from(refusal: Refusal) -> ControlError {
        ControlError::new(refusal.kind(), refusal.to_string())
    }
}

/// An outcome as bytes.
pub fn encode_outcome(outcome: &Outcome) -> Vec<u8> {
    let mut to = Writer::new();
    match outcome {
        Ok(Answer::Done) => to.u8(0),
        Ok(Answer::Registered(server)) => to.u8(1).u32(server.get()),
        Ok(Answer::Lock(fencing)) => to.u8(2).u64(*fencing),
        Err(refusal) => to.u8(0xff).u8(*refusal as u8),
    };
    to.finish()
}

/// The outcome of bytes that [`encode_outcome`] made.
pub fn decode_outcome(bytes: &[u8]) -> Result<Outcome, DecodeError> {
    let mut from = Reader::new(bytes);
    let outcome = match from.u8()? {
        0 => Ok(Answer::Done),
        1 => Ok(Answer::Registered(ServerId::new(from.u32()?))),
        2 => Ok(Answer::Lock(from.u64()?)),
        0xff => {
            let place = usize::from(from.u8()?).checked_sub(1).ok_or(DecodeError)?;
            Err(*Refusal::ALL.get(place).ok_or(DecodeError)?)
        }
        _ => return Err(DecodeError),
    };
    from.end()?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_keep_their_numbers() {
        for (place, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, place + 1);
            assert_eq!(decode_outcome(&encode_outcome(&Err(refusal))), Ok(Err(refusal)));
        }
        assert!(decode_outcome(&[0xff, 0]).is_err() && decode_outcome(&[0xff, 16]).is_err());
    }
}

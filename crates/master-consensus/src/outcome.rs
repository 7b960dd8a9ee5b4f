//! Errors of a group, and the reaction of its caller.

use std::fmt;

use base::Kind;

use super::error::LogError;

/// Cause for which a group does not open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// The log or the snapshot.
    Log(LogError),
    /// The configuration contradicts itself.
    Config(String),
    /// The library refuses the stored state.
    State(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Log(error) => error.fmt(f),
            OpenError::Config(reason) => write!(f, "the group's times do not fit: {reason}"),
            OpenError::State(reason) => write!(f, "the group's stored state is refused: {reason}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<LogError> for OpenError {
    fn from(error: LogError) -> OpenError {
        OpenError::Log(error)
    }
}

/// Cause for which a proposal has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProposeError {
    /// Nothing happened; `hint` leads, if known.
    NotLeader {
        /// The leader.
        hint: Option<u64>,
    },
    /// Nothing happened: too many proposals wait. The command is returned.
    Busy(Vec<u8>),
    /// Nothing happened: the command is too long.
    TooLong {
        /// Its bytes.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The command may have been committed, or may be later. Only a retry that the state machine
    /// recognises (client session, sequence) shows which.
    Unknown,
    /// This member has failed or was shut down. If the command was under way, as
    /// [`ProposeError::Unknown`].
    Stopped,
}

impl ProposeError {
    /// The caller's reaction.
    pub fn kind(&self) -> Kind {
        match self {
            ProposeError::NotLeader { .. } => Kind::Reroute,
            ProposeError::Busy(_) => Kind::Retry,
            ProposeError::TooLong { .. } => Kind::Invalid,
            ProposeError::Unknown | ProposeError::Stopped => Kind::Unknown,
        }
    }
}

impl fmt::Display for ProposeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProposeError::NotLeader { hint: Some(node) } => write!(f, "member {node} leads"),
            ProposeError::NotLeader { hint: None } => f.write_str("no leader is known: wait"),
            ProposeError::Busy(_) => f.write_str("too many proposals wait: retry later"),
            ProposeError::TooLong { len, max } => {
                write!(f, "a command of {len} bytes; {max} are allowed")
            }
            ProposeError::Unknown => f.write_str("the outcome is not known"),
            ProposeError::Stopped => f.write_str("this member has stopped"),
        }
    }
}

impl std::error::Error for ProposeError {}

/// Cause for which a linearizable read cannot be served here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// `hint` leads, if known.
    NotLeader {
        /// The leader.
        hint: Option<u64>,
    },
    /// Too many reads wait.
    Busy,
    /// No quorum confirmed in time that this member leads.
    NoQuorum,
    /// This member has failed or was shut down.
    Stopped,
}

impl ReadError {
    /// The caller's reaction.
    pub fn kind(&self) -> Kind {
        match self {
            ReadError::NotLeader { .. } | ReadError::Stopped => Kind::Reroute,
            ReadError::Busy | ReadError::NoQuorum => Kind::Retry,
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::NotLeader { hint: Some(node) } => write!(f, "member {node} leads"),
            ReadError::NotLeader { hint: None } => f.write_str("no leader is known: wait"),
            ReadError::Busy => f.write_str("too many reads wait: retry later"),
            ReadError::NoQuorum => f.write_str("no quorum answers: retry later"),
            ReadError::Stopped => f.write_str("this member has stopped"),
        }
    }
}

impl std::error::Error for ReadError {}

/// Cause for which a membership did not change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembershipError {
    /// `hint` leads, if known.
    NotLeader {
        /// The leader.
        hint: Option<u64>,
    },
    /// Another change is under way: wait.
    InProgress,
    /// The change is not possible.
    Refused(String),
    /// The group has members already.
    Exists,
    /// The change may take effect.
    Unknown,
    /// This member has failed or was shut down.
    Stopped,
}

impl fmt::Display for MembershipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MembershipError::NotLeader { hint: Some(node) } => write!(f, "member {node} leads"),
            MembershipError::NotLeader { hint: None } => f.write_str("no leader is known: wait"),
            MembershipError::InProgress => f.write_str("another change is under way: retry later"),
            MembershipError::Refused(reason) => f.write_str(reason),
            MembershipError::Exists => f.write_str("the group has members already"),
            MembershipError::Unknown => f.write_str("the outcome is not known"),
            MembershipError::Stopped => f.write_str("this member has stopped"),
        }
    }
}

impl std::error::Error for MembershipError {}

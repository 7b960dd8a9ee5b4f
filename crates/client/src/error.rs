//! Errors, and the reaction that each asks of its receiver.

use std::fmt;

use base::Kind;
use runtime::Duration;

/// Failure of a client's operation. The text has object, cause and remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// Nothing has this name.
    NotFound {
        /// The name.
        path: String,
    },
    /// The name exists already.
    Exists {
        /// The name.
        path: String,
    },
    /// Another writer has opened the file, or it was sealed: this writer is finished. Appends
    /// that were not acknowledged may or may not be in the file.
    Fenced {
        /// The file.
        path: String,
    },
    /// The cluster has no room for more data. Reads and removals go on.
    Full {
        /// The path that was to be written.
        path: String,
    },
    /// No server that could answer did so in time. Nothing was changed.
    Unavailable {
        /// The operation.
        what: String,
        /// The last failure met.
        cause: String,
        /// Duration of the attempts.
        waited: Duration,
    },
    /// As [`Error::Unavailable`], but the change may have been made.
    Unknown {
        /// The operation.
        what: String,
        /// The last failure met.
        cause: String,
        /// Duration of the attempts.
        waited: Duration,
    },
    /// The end of a file that is open for append could not be learned in time: its replicas hold
    /// bytes, and no writer reports whether they are acknowledged.
    OpenEnd {
        /// The file.
        path: String,
        /// Bytes that are known to be in it.
        offset: u64,
        /// Wait for its writer's report.
        waited: Duration,
    },
    /// No replica has bytes that verify.
    Corrupt {
        /// The file.
        path: String,
        /// Offset in it.
        offset: u64,
    },
    /// The request can not be granted as it is: asking again gives the same answer.
    Invalid {
        /// The thing.
        path: String,
        /// Cause and remedy.
        message: String,
    },
}

impl Error {
    /// The receiver's reaction.
    pub fn kind(&self) -> Kind {
        match self {
            Error::NotFound { .. } => Kind::NotFound,
            Error::Exists { .. } => Kind::Exists,
            Error::Fenced { .. } => Kind::Fenced,
            Error::Full { .. } => Kind::Full,
            Error::Unavailable { .. } | Error::OpenEnd { .. } => Kind::Retry,
            Error::Unknown { .. } => Kind::Unknown,
            Error::Corrupt { .. } => Kind::Corrupt,
            Error::Invalid { .. } => Kind::Invalid,
        }
    }

    /// `cause` with the trace of the operation under way: with it an operator finds the slow stage.
    pub(crate) fn traced(cause: String) -> String {
        match metrics::current() {
            Some(span) => format!("{cause}; {}", span.trace()),
            None => cause,
        }
    }

    /// The failure of a part of an operation when `submitted` bytes before it may be written.
    pub(crate) fn behind(self, submitted: u64) -> Error {
        match self {
            Error::Unavailable { what, cause, waited } if submitted > 0 => {
                let cause = format!("{cause}; the {submitted} bytes before were submitted");
                Error::Unknown { what, cause, waited }
            }
            other => other,
        }
    }

    pub(crate) fn invalid(path: impl Into<String>, message: impl Into<String>) -> Error {
        Error::Invalid { path: path.into(), message: message.into() }
    }

    pub(crate) fn not_found(path: impl Into<String>) -> Error {
        Error::NotFound { path: path.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotFound { path } => write!(f, "{path}: no such file or directory"),
            Error::Exists { path } => {
                write!(f, "{path}: exists already; remove it first, or choose another name")
            }
            Error::Fenced { path } => write!(
                f,
                "{path}: another writer opened this file; open it again to go on behind what it \
                 wrote"
            ),
            Error::Full { path } => write!(
                f,
                "{path}: the cluster is full; remove files or add a chunkserver, then write again"
            ),
            Error::Unavailable { what, cause, waited } => write!(
                f,
                "{what}: no answer within {waited:.1?} ({cause}); check the cluster with 'craton \
                 status', then try again"
            ),
            Error::Unknown { what, cause, waited } => write!(
                f,
                "{what}: no answer within {waited:.1?} ({cause}); it may or may not have been \
                 done: look before you repeat it"
            ),
            Error::OpenEnd { path, offset, waited } => write!(
                f,
                "{path}: it has {offset} bytes or more, and its writer was not heard of for \
                 {waited:.1?}; wait for the writer, or end it with 'craton fs seal {path}' if it \
                 is gone"
            ),
            Error::Corrupt { path, offset } => write!(
                f,
                "{path}: no replica has intact bytes at offset {offset}; 'craton status' shows \
                 what is lost"
            ),
            Error::Invalid { path, message } => write!(f, "{path}: {message}"),
        }
    }
}

impl std::error::Error for Error {}

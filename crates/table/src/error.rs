//! Errors of a table, and the reaction that each asks of its receiver.

use std::fmt;

use base::{Fault, Kind};
use runtime::Duration;

/// Cause of a hold-up of writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pressure {
    /// The bound of batches that wait for the log is reached.
    Queue,
    /// Memory is full until the flush to sorted files has caught up.
    Flush,
    /// Changes of all tables of the process fill their memory, and this one holds its part of it
    /// or more.
    Memory,
    /// There are more sorted runs than reads can handle until compaction has caught up.
    Compaction,
}

/// Failure of an operation on a table. The text has object, cause and remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// Another instance has opened the table, or is opening it: this one is finished. Writes
    /// that were not acknowledged may or may not be in the table.
    Fenced {
        /// The table.
        table: String,
    },
    /// Nothing was done: write again after a pause.
    Busy {
        /// The table.
        table: String,
        /// Cause of the hold-up.
        cause: Pressure,
        /// When to write again.
        retry_after: Duration,
    },
    /// A write of this instance has failed, so that its end of the log is not known: it takes
    /// no more. Reads go on.
    Stopped {
        /// The table.
        table: String,
        /// The failure.
        cause: String,
    },
    /// The store did not answer in time. Nothing was changed.
    Unavailable {
        /// The operation.
        what: String,
        /// The last failure met.
        cause: String,
    },
    /// As [`Error::Unavailable`], but the change may have been made.
    Unknown {
        /// The operation.
        what: String,
        /// The last failure met.
        cause: String,
    },
    /// The store has no room for more data.
    Full {
        /// The file to be written.
        file: String,
    },
    /// Bytes of a file differ from those that were written.
    Corrupt {
        /// The file.
        file: String,
        /// Approximate offset in it.
        offset: u64,
        /// The fact that does not fit.
        what: &'static str,
    },
    /// A file is gone that the table needs.
    Missing {
        /// The file.
        file: String,
    },
    /// Another version of this program wrote a file.
    Version {
        /// The file.
        file: String,
        /// The version of its format.
        seen: u32,
    },
    /// The directory holds no table, and none was to be made.
    NotFound {
        /// The directory.
        table: String,
    },
    /// The request can not be granted as it is.
    Invalid {
        /// The table.
        table: String,
        /// Cause and remedy.
        message: String,
    },
}

impl Error {
    /// The receiver's reaction.
    pub fn kind(&self) -> Kind {
        match self {
            Error::Fenced { .. } | Error::Stopped { .. } => Kind::Fenced,
            Error::Busy { .. } | Error::Unavailable { .. } => Kind::Retry,
            Error::Unknown { .. } => Kind::Unknown,
            Error::Full { .. } => Kind::Full,
            Error::Corrupt { .. } | Error::Missing { .. } => Kind::Corrupt,
            Error::NotFound { .. } => Kind::NotFound,
            Error::Version { .. } | Error::Invalid { .. } => Kind::Invalid,
        }
    }

    /// Meaning of a store's refusal for `file` of a table.
    pub(crate) fn of_store(fault: Fault, what: &str, file: &str) -> Error {
        let (file, cause) = (file.to_owned(), fault.message);
        match fault.kind {
            Kind::NotFound => Error::Missing { file },
            Kind::Full => Error::Full { file },
            Kind::Corrupt => {
                Error::Corrupt { file, offset: 0, what: "no replica has intact bytes" }
            }
            Kind::Unknown => Error::Unknown { what: format!("{what} {file}"), cause },
            Kind::Fenced => Error::Fenced { table: file },
            Kind::Retry | Kind::Refresh | Kind::Reroute => {
                Error::Unavailable { what: format!("{what} {file}"), cause }
            }
            Kind::Exists | Kind::Invalid => {
                Error::Invalid { table: file, message: format!("could not {what} it: {cause}") }
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Fenced { table } => write!(
                f,
                "{table}: another instance has opened this table; open it again to take it over"
            ),
            Error::Busy { table, cause, retry_after } => {
                let cause = match cause {
                    Pressure::Queue => "too many batches wait for the log",
                    Pressure::Flush => "memory is full until it is flushed",
                    Pressure::Memory => "the process's memory for changes is full",
                    Pressure::Compaction => "too many sorted runs wait for compaction",
                };
                write!(f, "{table}: {cause}; write again after {retry_after:.1?}")
            }
            Error::Stopped { table, cause } => write!(
                f,
                "{table}: takes no writes since one has failed ({cause}); open the table again"
            ),
            Error::Unavailable { what, cause } => {
                write!(f, "{what}: {cause}; nothing was changed: try again")
            }
            Error::Unknown { what, cause } => write!(
                f,
                "{what}: {cause}; it may or may not have been done: open the table again and look"
            ),
            Error::Full { file } => {
                write!(f, "{file}: the cluster is full; add a chunkserver or remove files")
            }
            Error::Corrupt { file, offset, what } => write!(
                f,
                "{file}: {what}, about offset {offset}; restore this file or the table's \
                 directory, nothing of the table was changed"
            ),
            Error::Missing { file } => write!(
                f,
                "{file}: is gone, and the table needs it; restore this file or the table's \
                 directory, nothing of the table was changed"
            ),
            Error::Version { file, seen } => write!(
                f,
                "{file}: has format version {seen}, this program reads version {}; use the \
                 program that wrote it",
                crate::format::VERSION
            ),
            Error::NotFound { table } => {
                write!(f, "{table}: holds no table; name another directory, or have one made")
            }
            Error::Invalid { table, message } => write!(f, "{table}: {message}"),
        }
    }
}

impl std::error::Error for Error {}

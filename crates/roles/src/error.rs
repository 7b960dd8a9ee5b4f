//! Errors of roles.

use std::fmt;
use std::path::Path;

use transport::TransportError;

/// Reason why a role does not start, or its files, stores and ports cannot be used: one sentence,
/// with the cause and the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// Configuration, directory, port or store cannot be used; nothing was changed.
    Setup(String),
    /// A store does not verify.
    Damaged(String),
    /// The core does not do what the role needs at its start.
    Core(client::Error),
    /// An executor has ended while a part of the role started on it.
    Executor,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Setup(text) | Error::Damaged(text) => f.write_str(text),
            Error::Core(error) => error.fmt(f),
            Error::Executor => f.write_str("an executor ended"),
        }
    }
}

impl std::error::Error for Error {}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Error {
        Error::Core(error)
    }
}

impl From<TransportError> for Error {
    fn from(error: TransportError) -> Error {
        Error::Setup(error.to_string())
    }
}

/// A failed file operation, with the file's name.
pub(crate) fn io(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::Setup(format!("cannot {what} {}: {error}", path.display()))
}

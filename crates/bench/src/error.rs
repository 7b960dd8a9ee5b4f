//! Errors of measurements.

use std::fmt;

/// Reason for a measurement without a report: one sentence for the operator, with the cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// Calls cannot have a payload of so many bytes: it is no multiple of 4096, or beyond 4 MiB.
    Payload(usize),
    /// This machine cannot take part: it has no executor or no port for the measurement.
    Setup(String),
    /// An operation failed, or did not end in time. What was made for it may still be there.
    Failed(String),
}

impl Error {
    /// [`Error::Failed`], with the words of its cause.
    pub fn failed(cause: impl fmt::Display) -> Error {
        Error::Failed(cause.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Payload(size) => {
                write!(f, "{size} is no payload: a multiple of 4096, up to 4194304")
            }
            Error::Setup(text) | Error::Failed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

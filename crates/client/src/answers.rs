//! What servers answer to a writer, in the words of its protocol.

use base::Kind;
use runtime::Duration;
use wire::control::StreamReply;
use wire::data::{DataError, DataReply};

use crate::error::Error;
use crate::peers::{DataAnswer, PeerError};
use crate::session::Refusal;
use crate::writer::{OpDone, OpError, SendError, WriterError};

/// The failure of a sending, as the protocol knows it.
pub(crate) fn send_error(error: PeerError<DataError>) -> SendError {
    match error {
        PeerError::Unreachable(_) => SendError::Unreachable,
        PeerError::Silent(_) => SendError::Silent,
        PeerError::Busy => SendError::Data(DataError::Busy),
        PeerError::Foreign(_) => SendError::Data(DataError::Invalid),
        PeerError::Refused(error) => SendError::Data(error),
    }
}

/// Durable length of a replica after a sending.
pub(crate) fn sent_result(
    answer: Result<DataAnswer, PeerError<DataError>>,
) -> Result<u32, SendError> {
    match answer {
        Ok((DataReply::Appended { len }, _)) => Ok(len),
        Ok(_) => Err(SendError::Data(DataError::Invalid)),
        Err(error) => Err(send_error(error)),
    }
}

/// Result of a stream operation.
pub(crate) fn op_result(answer: Result<StreamReply, Refusal>) -> Result<OpDone, OpError> {
    match answer {
        Ok(StreamReply::Writer(grant)) => Ok(OpDone::Writer(grant)),
        Ok(StreamReply::Done { len }) => Ok(OpDone::Closed { len }),
        Ok(StreamReply::Views(_) | StreamReply::Epoch { .. }) => {
            Err(OpError::Failed("an unexpected answer".to_owned()))
        }
        Err(refusal) => Err(match refusal.kind {
            Kind::Fenced => OpError::Fenced,
            Kind::Full => OpError::Full,
            Kind::NotFound => OpError::Gone,
            Kind::Refresh => OpError::Stale,
            _ => OpError::Failed(refusal.message),
        }),
    }
}

/// The end of a writer of `path`, for its caller; `budget` is how long it waited for masters.
pub(crate) fn describe(path: &str, error: WriterError, budget: &Duration) -> Error {
    let path = path.to_owned();
    match error {
        WriterError::Fenced => Error::Fenced { path },
        WriterError::Full => Error::Full { path },
        WriterError::Gone => Error::NotFound { path },
        WriterError::Stalled { cause } => {
            let cause = Error::traced(cause);
            Error::Unknown { what: format!("append to {path}"), cause, waited: *budget }
        }
        WriterError::Protocol(message) => Error::Invalid { path, message },
    }
}

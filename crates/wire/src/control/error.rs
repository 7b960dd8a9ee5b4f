//! Decoding errors of control messages.

use std::fmt;

/// Cause of a decoding error. `field` names the message and field of `craton.proto`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WireError {
    /// The message is longer than [`super::limits::MESSAGE_LEN_MAX`]: it was not decoded.
    TooLong {
        /// Its bytes.
        len: usize,
    },
    /// The bytes are no protobuf message of this type.
    Malformed,
    /// A field that every message of this type has is not there.
    Missing {
        /// The field.
        field: &'static str,
    },
    /// More elements than a message may have.
    TooMany {
        /// The field.
        field: &'static str,
        /// Elements that came.
        count: usize,
        /// Elements that may come.
        max: usize,
    },
    /// A number outside its range.
    OutOfRange {
        /// The field.
        field: &'static str,
        /// The number that came.
        value: u64,
    },
    /// Bytes or text of a length that the field cannot have.
    BadLength {
        /// The field.
        field: &'static str,
        /// The length that came.
        len: usize,
    },
    /// A name that no directory can hold: empty, too long, with a '/', or '.' or '..'.
    BadName {
        /// The field.
        field: &'static str,
    },
    /// A policy that is not valid, see [`super::Policy::is_valid`].
    BadPolicy {
        /// The field.
        field: &'static str,
        /// MaxCopy that came.
        copies: u32,
        /// MinCopy that came.
        acks: u32,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::TooLong { len } => {
                write!(f, "a control message of {len} bytes is longer than any may be")
            }
            WireError::Malformed => f.write_str("the bytes are no control message of this type"),
            WireError::Missing { field } => write!(f, "{field} is missing"),
            WireError::TooMany { field, count, max } => {
                write!(f, "{field} has {count} elements, of at most {max}")
            }
            WireError::OutOfRange { field, value } => {
                write!(f, "{field} cannot be {value}")
            }
            WireError::BadLength { field, len } => {
                write!(f, "{field} cannot be {len} bytes long")
            }
            WireError::BadName { field } => {
                write!(f, "{field} is no name: 1 to 255 bytes, no '/', not '.' or '..'")
            }
            WireError::BadPolicy { field, copies, acks } => {
                write!(f, "{field} cannot be {acks} of {copies} copies")
            }
        }
    }
}

impl std::error::Error for WireError {}

impl WireError {
    /// The receiver's reaction: the same bytes give the same answer.
    pub fn kind(&self) -> base::Kind {
        base::Kind::Invalid
    }
}

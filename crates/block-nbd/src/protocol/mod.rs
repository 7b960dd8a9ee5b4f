//! The NBD protocol as bytes: fixed newstyle negotiation, simple and structured replies, block
//! status, all commands. Both directions, so that each decoder meets what its encoder writes.
//!
//! All numbers are big-endian. A decoder takes the bytes that have arrived; it returns a value and
//! its length, or that more is needed. It never panics and never allocates more than its limits.
//!
//! Invariant: no socket, no volume; the server interprets requests.

mod handshake;
mod input;
pub mod limits;
mod transmit;

pub use handshake::{
    ClientHello, Greeting, MetaQuery, OptionCode, OptionFlaw, OptionHead, OptionReply,
    OptionRequest, ReplyCode, Select, ServerInfo, decode_reply, encode_export_name_reply,
};
pub use transmit::{
    Chunk, Command, Errno, Request, RequestFlaw, SimpleReply, StatusExtent, decode_chunk,
    encode_data_head,
};

use std::fmt;

/// Flags of an export, sent when it is chosen.
pub mod export_flags {
    /// The other flags mean something; always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Flush is understood.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Forced unit access is understood.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Seeks are slow.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// Trim is understood.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// Write zeroes is understood.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// "Do not fragment" is understood.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see each other's writes and flushes.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// Cache is understood.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// "Fail rather than be slow" is understood for zeroes.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Flags of a request.
pub mod request_flags {
    /// Answer only when the data is durable.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes must take room.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer a read with one chunk of data.
    pub const DF: u16 = 1 << 2;
    /// Report one extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail rather than write zeroes as slowly as data.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// All of them.
    pub const ALL: u16 = FUA | NO_HOLE | DF | REQ_ONE | FAST_ZERO;
}

/// Name of the metadata context that reports what is allocated.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Flags of an extent in `base:allocation`.
pub mod allocation_flags {
    /// Nothing is stored there.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}

/// Input that cannot be answered within the protocol: the connection has to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtocolError {
    /// A magic number is wrong.
    Magic {
        /// The object.
        what: &'static str,
        /// The number that was found.
        seen: u64,
    },
    /// Longer than the receiver takes.
    TooLong {
        /// The object.
        what: &'static str,
        /// Bytes that it declares.
        len: u64,
        /// Bytes that are taken.
        max: u64,
    },
    /// It does not have the fields it must have.
    Malformed {
        /// The object.
        what: &'static str,
    },
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProtocolError::Magic { what, seen } => {
                write!(f, "no {what} begins with {seen:#x}: the peer does not speak NBD")
            }
            ProtocolError::TooLong { what, len, max } => {
                write!(f, "{what} of {len} bytes, {max} are taken")
            }
            ProtocolError::Malformed { what } => {
                write!(f, "{what} without the fields it must have")
            }
        }
    }
}

impl std::error::Error for ProtocolError {}

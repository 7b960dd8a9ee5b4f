//! Errors that callers and operators get.

use std::fmt;
use std::net::SocketAddr;

use base::Kind;

/// Failure of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallError {
    /// The time was up after the request may have been sent: its outcome is unknown.
    Timeout,
    /// The peer cannot be reached, or the request did not leave in time: nothing happened.
    Unreachable(String),
    /// A bound here or at the peer is reached: nothing happened.
    Busy,
    /// The peer or this process refuses the link: other cluster, key or version. The sentence
    /// says what to change.
    Refused(String),
    /// The link broke, or the handler went away, after the request may have been sent: its
    /// outcome is unknown.
    Closed,
}

impl CallError {
    /// The caller's reaction.
    pub fn kind(&self) -> Kind {
        match self {
            CallError::Timeout | CallError::Closed => Kind::Unknown,
            CallError::Unreachable(_) | CallError::Busy => Kind::Retry,
            CallError::Refused(_) => Kind::Invalid,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Timeout => {
                f.write_str("no answer in time: the request may have taken effect")
            }
            CallError::Unreachable(why) | CallError::Refused(why) => f.write_str(why),
            CallError::Busy => {
                f.write_str("a queue on the way to the peer is full: try again later")
            }
            CallError::Closed => {
                f.write_str("the link broke before the answer: the request may have taken effect")
            }
        }
    }
}

impl std::error::Error for CallError {}

/// Cause for which an endpoint does not listen.
#[derive(Debug)]
pub enum TransportError {
    /// The address is reachable from other machines and no cluster key is configured.
    NoKey(SocketAddr),
    /// The operating system refuses the address.
    Listen(SocketAddr, std::io::Error),
    /// The endpoint was closed.
    Closed,
}

impl TransportError {
    /// The caller's reaction.
    pub fn kind(&self) -> Kind {
        Kind::Invalid
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransportError::NoKey(addr) => write!(
                f,
                "{addr} is reachable from other machines and no cluster key is configured: \
                 configure the cluster key, or listen on 127.0.0.1"
            ),
            TransportError::Listen(addr, error) => write!(
                f,
                "cannot listen on {addr} ({error}): end the process that uses the address, or \
                 configure another"
            ),
            TransportError::Closed => f.write_str("the endpoint was closed"),
        }
    }
}

impl std::error::Error for TransportError {}

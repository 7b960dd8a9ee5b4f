//! Calls to masters and chunkservers. The transport is one implementation, a cluster in memory
//! (tests) another.

use std::fmt;
use std::net::SocketAddr;

use futures_util::future::LocalBoxFuture;
use runtime::{Buf, Duration};
use wire::control::{ControlError, ControlReply, ControlRequest};
use wire::data::{DataError, DataReply, DataRequest};

/// Cause of a failed call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerError<E> {
    /// No connection: the peer has not seen the request.
    Unreachable(String),
    /// No answer in time, or the connection broke: the peer may have seen the request.
    Silent(String),
    /// The request could not be sent from here for now (a full queue, no memory).
    Busy,
    /// The peer is of another cluster or speaks another version.
    Foreign(String),
    /// The peer answered with an error.
    Refused(E),
}

impl<E: fmt::Display> fmt::Display for PeerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerError::Unreachable(why) => write!(f, "not reachable: {why}"),
            PeerError::Silent(why) => write!(f, "no answer: {why}"),
            PeerError::Busy => f.write_str("too much is waiting to be sent"),
            PeerError::Foreign(why) => f.write_str(why),
            PeerError::Refused(error) => error.fmt(f),
        }
    }
}

/// A process that a control request goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recipient {
    /// Its address.
    pub addr: SocketAddr,
    /// A master that does not lead the request's group asks the leader itself, waits for one while
    /// there is none, and passes the answer on.
    pub relays: bool,
}

impl From<SocketAddr> for Recipient {
    fn from(addr: SocketAddr) -> Recipient {
        Recipient { addr, relays: false }
    }
}

/// A successful answer of the data path, with its payload.
pub type DataAnswer = (DataReply, Option<Buf>);

/// Calls to other processes. Dropping a call's future abandons it: it may still take effect.
pub trait Peers: 'static {
    /// Asks a master (or a chunkserver's control side).
    fn control(
        &self,
        to: Recipient,
        request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<ControlReply, PeerError<ControlError>>>;

    /// Asks a chunkserver's data path. The token is the right to do so (D11).
    fn data(
        &self,
        to: SocketAddr,
        request: DataRequest,
        token: [u8; 16],
        payload: Option<Buf>,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<DataAnswer, PeerError<DataError>>>;
}

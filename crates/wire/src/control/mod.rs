//! Control messages as the logic sees them; their protobuf form stays inside this module.

mod chunkserver;
mod cluster;
mod error;
pub mod limits;
mod namespace;
mod proto;
mod stream;

pub use chunkserver::*;
pub use cluster::*;
pub use error::WireError;
pub use namespace::*;
pub use proto::fuzz_control;
pub use stream::*;

use std::fmt;
use std::net::SocketAddr;

use base::{ClientId, Kind};

/// What one process asks of another on the control path. Encoded as protobuf (C22).
#[derive(Clone, PartialEq, Debug)]
pub enum ControlRequest {
    /// To any master: facts and membership of the cluster, registration, heartbeats.
    Cluster(ClusterRequest),
    /// To the leader of a namespace partition.
    Namespace(NamespaceRequest),
    /// To the leader of a stream partition.
    Stream(StreamRequest),
    /// To a chunkserver.
    Chunkserver(ChunkserverRequest),
}

/// A good answer on the control path.
#[derive(Clone, PartialEq, Debug)]
pub enum ControlReply {
    /// To [`ControlRequest::Cluster`].
    Cluster(ClusterReply),
    /// To [`ControlRequest::Namespace`].
    Namespace(NamespaceReply),
    /// To [`ControlRequest::Stream`].
    Stream(StreamReply),
    /// To [`ControlRequest::Chunkserver`].
    Chunkserver(ChunkserverReply),
}

/// A bad answer on the control path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlError {
    /// What to do about it. [`Kind::Reroute`]: ask `leader`, or any other master when absent.
    pub kind: Kind,
    /// Cause and remedy, for people.
    pub message: String,
    /// Who leads the group asked, where this is known and is another.
    pub leader: Option<SocketAddr>,
}

impl ControlError {
    /// An error of `kind`.
    pub fn new(kind: Kind, message: impl Into<String>) -> ControlError {
        ControlError { kind, message: message.into(), leader: None }
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ControlError {}

/// Identifies a mutation across retries: a repeat is answered from the reply table, not done
/// again (`protocols.md` 4.2). `seq` counts up from 1 within a client session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct OpId {
    /// The client session.
    pub client: ClientId,
    /// Number of the mutation within the session.
    pub seq: u64,
    /// Every mutation of the session below this one has been answered: its replies may go.
    pub acked_below: u64,
}

//! Control messages as the logic sees them; their protobuf form stays inside this module.

pub mod check;
mod chunkserver;
mod class;
mod cluster;
mod error;
pub mod limits;
mod namespace;
mod policy;
mod proto;
mod service;
mod stream;
mod trace;

pub use chunkserver::*;
pub use class::*;
pub use cluster::*;
pub use error::WireError;
pub use namespace::*;
pub use policy::*;
pub use proto::fuzz_control;
pub use service::{ServiceMessage, ServiceTag};
pub use stream::*;
pub use trace::*;

use std::fmt;
use std::net::SocketAddr;

use base::{ClientId, Kind};

/// Operation of a control request that a master which does not lead the group is to relay. Masters of
/// older versions take it for an ordinary one.
pub const OP_RELAY: u16 = 1;

/// A request on the control path. Encoded as protobuf (C22).
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
    /// To any role: a question about traced operations.
    Trace(TraceRequest),
    /// To a process of another service.
    Service(ServiceMessage),
}

impl ControlRequest {
    /// Its name in traces and metrics.
    pub fn name(&self) -> &'static str {
        use {ChunkserverRequest as Chunks, ClusterRequest as Cluster};
        match self {
            ControlRequest::Cluster(request) => match request {
                Cluster::Info => "info",
                Cluster::Register(_) => "register",
                Cluster::Heartbeat(_) => "heartbeat",
                Cluster::Status => "status",
                Cluster::Lock { .. } | Cluster::LockHolder { .. } | Cluster::LockDoubt { .. } => {
                    "lock"
                }
                Cluster::Members { .. } => "members",
                Cluster::Identify { .. } => "identify disks",
                Cluster::Condemn { .. } => "condemn",
                Cluster::Abnormal { .. } => "abnormal servers",
                Cluster::Order { .. } => "order",
                Cluster::Held { .. } => "held replicas",
                Cluster::PauseBalance { .. } => "pause balance",
            },
            ControlRequest::Namespace(request) => match request {
                NamespaceRequest::Lookup { .. }
                | NamespaceRequest::StatFile { .. }
                | NamespaceRequest::DirPolicy { .. } => "look up",
                NamespaceRequest::List { .. } => "list",
                NamespaceRequest::Change { change, .. } => match change {
                    NamespaceChange::Mkdir { .. } => "mkdir",
                    NamespaceChange::Create { .. } => "create",
                    NamespaceChange::Symlink { .. } => "symlink",
                    NamespaceChange::Link { .. } => "link",
                    NamespaceChange::Unlink { .. } => "unlink",
                    NamespaceChange::Rmdir { .. } => "rmdir",
                    NamespaceChange::Rename { .. } => "rename",
                    NamespaceChange::SetAttributes { .. } => "set attributes",
                    NamespaceChange::SetDirPolicy { .. }
                    | NamespaceChange::SetFilePolicy { .. } => "set policy",
                },
            },
            ControlRequest::Stream(request) => match request {
                StreamRequest::Locate { .. } | StreamRequest::LocateMany { .. } => "locate",
                StreamRequest::ReportBad { .. } => "report",
                StreamRequest::Change { change, .. } => match change {
                    StreamChange::Open { .. } => "open for append",
                    StreamChange::Advance { .. } => "advance",
                    StreamChange::Extend { .. } => "extend",
                    StreamChange::Close { .. } => "close",
                    StreamChange::Seal { .. } => "seal file",
                    StreamChange::Delete { .. } => "delete file",
                    StreamChange::SetPolicy { .. } => "set policy",
                    StreamChange::Convert { .. } => "convert file",
                },
            },
            ControlRequest::Chunkserver(request) => match request {
                Chunks::Replicate { .. } => "replicate",
                Chunks::Delete { .. } => "delete",
                Chunks::Forget { .. } => "forget",
                Chunks::List { .. } => "list replicas",
                Chunks::FailDisk { .. } => "fail disk",
                Chunks::Probe { .. } => "probe a disk",
                Chunks::ReplaceDisk { .. } => "replace a disk",
                Chunks::Scrub { .. } => "scrub",
                Chunks::Convert { .. } => "convert",
                Chunks::Digest { .. } => "digest",
                Chunks::CheckRows { .. } => "check rows",
                Chunks::Ping => "ping",
            },
            ControlRequest::Trace(_) => "trace",
            ControlRequest::Service(_) => "request of a service",
        }
    }
}

/// A successful answer on the control path.
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
    /// To [`ControlRequest::Trace`].
    Trace(TraceReply),
    /// To [`ControlRequest::Service`].
    Service(ServiceMessage),
}

/// A refusal on the control path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlError {
    /// The receiver's reaction. [`Kind::Reroute`]: ask `leader`, or any other master when absent.
    pub kind: Kind,
    /// Cause and remedy, for operators.
    pub message: String,
    /// The leader of the group asked, where this is known and is another.
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

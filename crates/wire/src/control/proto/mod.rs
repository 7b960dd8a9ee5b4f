//! Protobuf form of the control messages (C22). The generated types never leave this module:
//! what comes out of a `decode` has been checked field by field.

mod chunkserver;
mod cluster;
mod envelope;
mod namespace;
mod stream;
mod trace;

#[cfg(test)]
mod arbitrary;
#[cfg(test)]
mod tests;

#[cfg(test)]
use prost::Message;

use super::*;

/// Types that `prost` generates from `proto/craton.proto`.
#[allow(missing_docs, clippy::all)]
mod pb {
    include!(concat!(env!("OUT_DIR"), "/craton.rs"));
}

crate::protobuf! {
    ControlError, OpId,
    ClusterRequest, ClusterReply, MasterInfo, Registration,
    DiskReport, Heartbeat, LockChange, MemberChange,
    ClusterInfo, ServerStatus, RepairStatus, ClusterStatus, AbnormalServers,
    NamespaceRequest, NamespaceReply, NamespaceChange,
    Attributes, Policy, Node, NamedNode,
    NameKey,
    StreamRequest, StreamReply, StreamChange, ReplicaPlace,
    ChunkPlace, WriterGrant, StreamView,
    ChunkserverRequest, ChunkserverReply,
    TraceRequest, TraceReply, TracedOperation, TracedStage, TraceFact,
}

/// Fuzz target: any bytes are a message or a typed error, never a panic.
pub fn fuzz_control(bytes: &[u8]) {
    fuzz_each(bytes);
    if let Ok(request) = ControlRequest::decode(bytes) {
        assert_eq!(ControlRequest::decode(&request.encode()), Ok(request));
    }
    if let Ok(reply) = ControlReply::decode(bytes) {
        assert_eq!(ControlReply::decode(&reply.encode()), Ok(reply));
    }
}

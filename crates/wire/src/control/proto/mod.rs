//! Protobuf form of the control messages (C22). The generated types never leave this module:
//! what comes out of a `decode` has been checked field by field.

mod block;
mod block_manager;
mod chunkserver;
mod cluster;
mod common;
mod envelope;
mod namespace;
mod stream;
mod trace;

#[cfg(test)]
mod arbitrary;
#[cfg(test)]
mod tests;

use prost::Message;

use super::WireError;
use super::limits::MESSAGE_LEN_MAX;

/// What `prost` makes of `proto/craton.proto`.
#[allow(missing_docs, clippy::all)]
mod pb {
    include!(concat!(env!("OUT_DIR"), "/craton.rs"));
}

/// A type with a protobuf form.
trait Proto: Sized {
    type Pb: Message + Default;

    fn to_pb(&self) -> Self::Pb;

    /// Checks every field.
    fn from_pb(pb: Self::Pb) -> Result<Self, WireError>;
}

fn encode<T: Proto>(value: &T) -> Vec<u8> {
    value.to_pb().encode_to_vec()
}

fn decode<T: Proto>(bytes: &[u8]) -> Result<T, WireError> {
    if bytes.len() > MESSAGE_LEN_MAX {
        return Err(WireError::TooLong { len: bytes.len() });
    }
    T::from_pb(T::Pb::decode(bytes).map_err(|_| WireError::Malformed)?)
}

macro_rules! codec {
    ($($name:ident),* $(,)?) => {
        $(impl crate::control::$name {
            /// The protobuf form.
            pub fn encode(&self) -> Vec<u8> {
                encode(self)
            }

            /// From the protobuf form, every field checked.
            pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
                decode(bytes)
            }
        })*

        /// Gives `bytes` to the decoder of every control message. What one of them accepts must
        /// encode to something that decodes to the same.
        fn fuzz_each(bytes: &[u8]) {
            $(if let Ok(value) = crate::control::$name::decode(bytes) {
                let again = crate::control::$name::decode(&value.encode());
                assert_eq!(again.as_ref(), Ok(&value), stringify!($name));
            })*
        }
    };
}

codec! {
    ControlRequest, ControlReply, ControlError, OpId,
    ClusterRequest, ClusterReply, MasterInfo, Registration,
    DiskReport, Heartbeat, LockChange, MemberChange,
    ClusterInfo, ServerStatus, RepairStatus, ClusterStatus,
    NamespaceRequest, NamespaceReply, NamespaceChange,
    Attributes, Policy, Node, NamedNode,
    Place,
    StreamRequest, StreamReply, StreamChange, ReplicaPlace,
    ChunkPlace, WriterGrant, StreamView,
    ChunkserverRequest, ChunkserverReply,
    TraceRequest, TraceReply, TracedOperation, TracedStage, TraceFact,
    BlockRequest, BlockReply, BlockServerRequest, BlockServerReply,
    VolumeSpec, VolumeInfo, BlockBeat, BlockGrant, SegmentPlace, BlockStatus,
}

/// Fuzz target: any bytes are a message or a typed error, never a panic.
pub fn fuzz_control(bytes: &[u8]) {
    fuzz_each(bytes);
}

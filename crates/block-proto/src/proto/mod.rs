//! Protobuf form of the block service's messages (C22). The generated types never leave this
//! module: `decode` checks every field.

mod manager;
mod volume;

#[cfg(test)]
mod arbitrary;
#[cfg(test)]
mod tests;

use wire::control::WireError;

use crate::*;

/// Code that `prost` generates from `proto/block.proto`.
#[allow(missing_docs, clippy::all)]
mod pb {
    include!(concat!(env!("OUT_DIR"), "/craton.block.rs"));
}

wire::protobuf! {
    BlockRequest, BlockReply, BlockServerRequest, BlockServerReply,
    VolumeSpec, VolumeInfo, BlockHeartbeat, BlockGrant, SegmentPlace, BlockStatus,
}

/// Fuzz target: any bytes are a message or a typed error, never a panic.
pub fn fuzz_control(bytes: &[u8]) {
    fuzz_each(bytes);
    if let Ok(request) = Request::decode(bytes) {
        assert_eq!(Request::decode(&request.clone().encode()), Ok(request));
    }
    if let Ok(reply) = Reply::decode(bytes) {
        assert_eq!(Reply::decode(&reply.clone().encode()), Ok(reply));
    }
}

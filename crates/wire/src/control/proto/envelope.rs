//! Requests, replies and errors as a whole.

use base::{ClientId, Kind};
use prost::Message;

use super::{Proto, WireError, need, pb};
use crate::control::check::{addr_bytes, addr_from, cut, range, text};
use crate::control::limits::{ERROR_MESSAGE_MAX, MESSAGE_LEN_MAX};
use crate::control::{ControlError, ControlReply, ControlRequest, OpId, ServiceMessage};

impl ControlRequest {
    /// The protobuf form.
    pub fn encode(&self) -> Vec<u8> {
        use pb::control_request::To;
        let to = match self {
            ControlRequest::Cluster(request) => To::Cluster(request.to_pb()),
            ControlRequest::Namespace(request) => To::Namespace(request.to_pb()),
            ControlRequest::Stream(request) => To::Stream(request.to_pb()),
            ControlRequest::Chunkserver(request) => To::Chunkserver(request.to_pb()),
            ControlRequest::Trace(request) => To::Trace(request.to_pb()),
            ControlRequest::Service(message) => return message.encode(),
        };
        pb::ControlRequest { to: Some(to) }.encode_to_vec()
    }

    /// From the protobuf form, every field checked; another service's part is not decoded.
    pub fn decode(bytes: &[u8]) -> Result<ControlRequest, WireError> {
        use pb::control_request::To;
        if bytes.len() > MESSAGE_LEN_MAX {
            return Err(WireError::TooLong { len: bytes.len() });
        }
        if let Some(message) = ServiceMessage::find(bytes)? {
            return Ok(ControlRequest::Service(message));
        }
        let pb = pb::ControlRequest::decode(bytes).map_err(|_| WireError::Malformed)?;
        Ok(match pb.to.ok_or(WireError::Missing { field: "ControlRequest.to" })? {
            To::Cluster(request) => ControlRequest::Cluster(Proto::from_pb(request)?),
            To::Namespace(request) => ControlRequest::Namespace(Proto::from_pb(request)?),
            To::Stream(request) => ControlRequest::Stream(Proto::from_pb(request)?),
            To::Chunkserver(request) => ControlRequest::Chunkserver(Proto::from_pb(request)?),
            To::Trace(request) => ControlRequest::Trace(Proto::from_pb(request)?),
        })
    }
}

impl ControlReply {
    /// The protobuf form.
    pub fn encode(&self) -> Vec<u8> {
        use pb::control_reply::Of;
        let of = match self {
            ControlReply::Cluster(reply) => Of::Cluster(reply.to_pb()),
            ControlReply::Namespace(reply) => Of::Namespace(reply.to_pb()),
            ControlReply::Stream(reply) => Of::Stream(reply.to_pb()),
            ControlReply::Chunkserver(reply) => Of::Chunkserver(reply.to_pb()),
            ControlReply::Trace(reply) => Of::Trace(reply.to_pb()),
            ControlReply::Service(message) => return message.encode(),
        };
        pb::ControlReply { of: Some(of) }.encode_to_vec()
    }

    /// From the protobuf form, every field checked; another service's part is not decoded.
    pub fn decode(bytes: &[u8]) -> Result<ControlReply, WireError> {
        use pb::control_reply::Of;
        if bytes.len() > MESSAGE_LEN_MAX {
            return Err(WireError::TooLong { len: bytes.len() });
        }
        if let Some(message) = ServiceMessage::find(bytes)? {
            return Ok(ControlReply::Service(message));
        }
        let pb = pb::ControlReply::decode(bytes).map_err(|_| WireError::Malformed)?;
        Ok(match pb.of.ok_or(WireError::Missing { field: "ControlReply.of" })? {
            Of::Cluster(reply) => ControlReply::Cluster(Proto::from_pb(reply)?),
            Of::Namespace(reply) => ControlReply::Namespace(Proto::from_pb(reply)?),
            Of::Stream(reply) => ControlReply::Stream(Proto::from_pb(reply)?),
            Of::Chunkserver(reply) => ControlReply::Chunkserver(Proto::from_pb(reply)?),
            Of::Trace(reply) => ControlReply::Trace(Proto::from_pb(reply)?),
        })
    }
}

const KINDS: [(Kind, pb::ErrorKind); 10] = [
    (Kind::Retry, pb::ErrorKind::Retry),
    (Kind::Refresh, pb::ErrorKind::Refresh),
    (Kind::Reroute, pb::ErrorKind::Reroute),
    (Kind::Fenced, pb::ErrorKind::Fenced),
    (Kind::Corrupt, pb::ErrorKind::Corrupt),
    (Kind::Unknown, pb::ErrorKind::Unknown),
    (Kind::NotFound, pb::ErrorKind::NotFound),
    (Kind::Exists, pb::ErrorKind::Exists),
    (Kind::Full, pb::ErrorKind::Full),
    (Kind::Invalid, pb::ErrorKind::Invalid),
];

/// A kind's number on the wire.
pub(super) fn kind_number(kind: Kind) -> i32 {
    let found = KINDS.iter().find(|(known, _)| *known == kind);
    let number = found.map_or(pb::ErrorKind::Unspecified, |(_, number)| *number);
    assert_ne!(number, pb::ErrorKind::Unspecified, "a kind without a number on the wire");
    number.into()
}

/// The kind of a number on the wire.
pub(super) fn kind_from(number: i32, field: &'static str) -> Result<Kind, WireError> {
    let found = KINDS.iter().find(|(_, known)| i32::from(*known) == number);
    let value = u64::from(number as u32);
    found.map(|(kind, _)| *kind).ok_or(WireError::OutOfRange { field, value })
}

impl Proto for ControlError {
    type Pb = pb::ControlError;

    fn to_pb(&self) -> pb::ControlError {
        pb::ControlError {
            kind: kind_number(self.kind),
            message: cut(&self.message, ERROR_MESSAGE_MAX).to_owned(),
            leader: self.leader.map(addr_bytes),
        }
    }

    fn from_pb(pb: pb::ControlError) -> Result<ControlError, WireError> {
        let leader = pb.leader.as_deref();
        Ok(ControlError {
            kind: kind_from(pb.kind, "ControlError.kind")?,
            message: text(pb.message, 0..=ERROR_MESSAGE_MAX, "ControlError.message")?,
            leader: leader.map(|leader| addr_from(leader, "ControlError.leader")).transpose()?,
        })
    }
}

impl Proto for OpId {
    type Pb = pb::OpId;

    fn to_pb(&self) -> pb::OpId {
        pb::OpId { client: self.client.get(), seq: self.seq, acked_below: self.acked_below }
    }

    fn from_pb(pb: pb::OpId) -> Result<OpId, WireError> {
        Ok(OpId {
            client: ClientId::new(pb.client),
            seq: range(pb.seq, 1..=u64::MAX, "OpId.seq")?,
            acked_below: range(pb.acked_below, 0..=pb.seq, "OpId.acked_below")?,
        })
    }
}

/// A mutation with its identity, as several requests have it.
pub(super) fn change<T: Proto>(
    op: Option<pb::OpId>,
    change: Option<T::Pb>,
    field: &'static str,
) -> Result<(OpId, T), WireError> {
    Ok((need(op, "OpId")?, need(change, field)?))
}

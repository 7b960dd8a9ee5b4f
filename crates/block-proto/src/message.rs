//! Control messages of a process of the block service: its own, or the core's.

use wire::control::{ControlReply, ControlRequest, ServiceMessage, WireError};

use crate::{BlockReply, BlockRequest, BlockServerReply, BlockServerRequest, MANAGER, SERVER};

/// Requests to a process of the block service.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    /// To the block manager that leads.
    Block(BlockRequest),
    /// The same, for a change that happens once only: the same number is the same request. Not 0.
    Once(u64, BlockRequest),
    /// To a block server.
    BlockServer(BlockServerRequest),
    /// A request that any role answers, or a message of another service.
    Core(ControlRequest),
}

impl Request {
    /// The protobuf form.
    pub fn encode(self) -> Vec<u8> {
        ControlRequest::from(self).encode()
    }

    /// From the protobuf form, every field checked.
    pub fn decode(bytes: &[u8]) -> Result<Request, WireError> {
        ControlRequest::decode(bytes)?.try_into()
    }
}

impl From<Request> for ControlRequest {
    fn from(request: Request) -> ControlRequest {
        let (tag, body) = match request {
            Request::Block(request) => (MANAGER, request.encode()),
            Request::Once(once, request) => (MANAGER, request.encode_once(once)),
            Request::BlockServer(request) => (SERVER, request.encode()),
            Request::Core(request) => return request,
        };
        ControlRequest::Service(ServiceMessage { tag, body })
    }
}

impl TryFrom<ControlRequest> for Request {
    type Error = WireError;

    fn try_from(request: ControlRequest) -> Result<Request, WireError> {
        Ok(match request {
            ControlRequest::Service(ServiceMessage { tag: MANAGER, body }) => {
                match BlockRequest::decode_once(&body)? {
                    (0, request) => Request::Block(request),
                    (once, request) => Request::Once(once, request),
                }
            }
            ControlRequest::Service(ServiceMessage { tag: SERVER, body }) => {
                Request::BlockServer(BlockServerRequest::decode(&body)?)
            }
            request => Request::Core(request),
        })
    }
}

/// Answers of a process of the block service.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// To [`Request::Block`] and [`Request::Once`].
    Block(BlockReply),
    /// To [`Request::BlockServer`].
    BlockServer(BlockServerReply),
    /// To [`Request::Core`].
    Core(ControlReply),
}

impl Reply {
    /// The protobuf form.
    pub fn encode(self) -> Vec<u8> {
        ControlReply::from(self).encode()
    }

    /// From the protobuf form, every field checked.
    pub fn decode(bytes: &[u8]) -> Result<Reply, WireError> {
        ControlReply::decode(bytes)?.try_into()
    }
}

impl From<Reply> for ControlReply {
    fn from(reply: Reply) -> ControlReply {
        let (tag, body) = match reply {
            Reply::Block(reply) => (MANAGER, reply.encode()),
            Reply::BlockServer(reply) => (SERVER, reply.encode()),
            Reply::Core(reply) => return reply,
        };
        ControlReply::Service(ServiceMessage { tag, body })
    }
}

impl TryFrom<ControlReply> for Reply {
    type Error = WireError;

    fn try_from(reply: ControlReply) -> Result<Reply, WireError> {
        Ok(match reply {
            ControlReply::Service(ServiceMessage { tag: MANAGER, body }) => {
                Reply::Block(BlockReply::decode(&body)?)
            }
            ControlReply::Service(ServiceMessage { tag: SERVER, body }) => {
                Reply::BlockServer(BlockServerReply::decode(&body)?)
            }
            reply => Reply::Core(reply),
        })
    }
}

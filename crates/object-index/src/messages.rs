//! Requests to processes of the object service, on the core's transport, in the envelope of its control
//! messages (`docs/formats/services.md`).

use std::net::SocketAddr;

use base::Kind;
use client::{Client, PeerError};
use object_proto::wire::decode_answer;
use object_proto::{Error, Reply, Request};
use runtime::Duration;
use wire::control::{ControlError, ControlReply, ControlRequest, ServiceMessage, ServiceTag};

use crate::paths::LOCK;

/// Requests to processes of the object service, and their answers.
pub const OBJECTS: ServiceTag = ServiceTag::new(8).expect("a service's tag");

/// Asks a process, once. [`Error::Reroute`] when it certainly has not seen the request.
pub(crate) async fn ask_peer(
    client: &Client,
    addr: SocketAddr,
    request: Request,
    timeout: Duration,
) -> Result<Reply, Error> {
    read(client.ask_peer(addr, message(request), timeout).await)
}

/// Asks the process that leads, once. One that is silent is doubted.
pub(crate) async fn ask_leader(
    client: &Client,
    addr: SocketAddr,
    request: Request,
    timeout: Duration,
) -> Result<Reply, Error> {
    read(client.ask_holder(LOCK, addr, message(request), timeout).await)
}

fn message(request: Request) -> ControlRequest {
    ControlRequest::Service(ServiceMessage { tag: OBJECTS, body: request.encode() })
}

fn read(answer: Result<ControlReply, PeerError<ControlError>>) -> Result<Reply, Error> {
    match answer {
        Ok(ControlReply::Service(ServiceMessage { tag: OBJECTS, body })) => {
            decode_answer(&body).unwrap_or_else(|| Err(unknown("the answer is of another version")))
        }
        Ok(_) => Err(unknown("the process answered something else")),
        Err(PeerError::Unreachable(_) | PeerError::Foreign(_)) => Err(Error::Reroute),
        Err(error @ PeerError::Busy) => Err(Error::Busy { cause: error.to_string() }),
        Err(PeerError::Silent(cause)) => Err(Error::Unknown { cause }),
        Err(PeerError::Refused(error)) => match error.kind {
            Kind::Invalid => Err(Error::Invalid { message: error.message }),
            _ => Err(unknown(&error.message)),
        },
    }
}

/// True when an answer says that the process may not hear.
pub(crate) fn is_unheard(answer: &Result<Reply, Error>) -> bool {
    matches!(answer, Err(Error::Reroute | Error::Unknown { .. }))
}

pub(crate) fn unknown(cause: &str) -> Error {
    Error::Unknown { cause: cause.to_owned() }
}

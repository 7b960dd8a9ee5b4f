//! Requests, responses, and what a handler gets to see.

use std::net::SocketAddr;
use std::rc::Rc;

use base::TraceId;
use runtime::{Buf, Instant};
use wire::control::ControlError;
use wire::frame::{BODY_MAX, PAYLOAD_MAX, Priority, STATUS_ERROR, Service};
use wire::token::Token;

use crate::error::CallError;
use crate::link::Served;
use crate::slot::Slot;

/// A call to a peer.
#[derive(Clone, Debug)]
pub struct Request {
    /// The service of the operation.
    pub service: Service,
    /// Operation; its meaning is the service's.
    pub op: u16,
    /// The queue that it takes. Requests of one priority keep no order when some are split, except
    /// those of one flow.
    pub priority: Priority,
    /// Requests of one flow and priority arrive in the order in which they were made, as long as
    /// the link holds: appends to one chunk, where a small one that overtakes a large one is
    /// refused and sent again. 0 is no flow. Stays on this side.
    pub flow: u64,
    /// Follows the operation across processes.
    pub trace: TraceId,
    /// Right to do it; [`Token::NONE`] when none is needed.
    pub token: Token,
    /// Encoded request, at most 1 MiB.
    pub body: Vec<u8>,
    /// Bulk data, at most 4 MiB. For [`Service::DATA`] whole sectors.
    pub payload: Option<Buf>,
}

/// The answer to a call.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// 0 for success, else the service's error code; the body then has the encoded error.
    pub status: u16,
    /// Encoded reply or error, at most 1 MiB.
    pub body: Vec<u8>,
    /// Bulk data, at most 4 MiB.
    pub payload: Option<Buf>,
}

impl Response {
    /// Success with `body`.
    pub fn ok(body: Vec<u8>) -> Response {
        Response { status: 0, body, payload: None }
    }

    /// A control or consensus request failed with `error`.
    pub fn error(error: &ControlError) -> Response {
        Response { status: STATUS_ERROR, body: error.encode(), payload: None }
    }
}

/// Refuses content that no frame can carry. Peers have a say in how long an answer gets, so this is
/// an error of one request, not a broken invariant.
pub(crate) fn check_size(body: &[u8], payload: Option<&Buf>) -> Result<(), String> {
    let payload = payload.map_or(0, |payload| payload.len());
    if body.len() > BODY_MAX {
        return Err(format!("a body of {} bytes; a frame has {BODY_MAX} at most", body.len()));
    }
    if payload > PAYLOAD_MAX {
        return Err(format!("a payload of {payload} bytes; a frame has {PAYLOAD_MAX} at most"));
    }
    Ok(())
}

/// The process at the other end of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerInfo {
    /// Role and ID as the peer states them (proven, when the cluster has a key).
    pub name: String,
    /// Its address; of a peer that connected, the port is not one that it listens on. Port 0 of
    /// loopback is a caller in this process.
    pub addr: SocketAddr,
}

/// Serves the requests that arrive at an address.
pub trait Handler {
    /// Called on the executor for each request, between polls: it must not wait, and spawns a
    /// task if it has to.
    fn handle(&self, request: Incoming);
}

impl<F: Fn(Incoming)> Handler for F {
    fn handle(&self, request: Incoming) {
        self(request);
    }
}

/// A request that has arrived.
#[derive(Debug)]
pub struct Incoming {
    /// The request. Its payload is aligned; it is the only view of its buffer when it came over
    /// a network, and may be shared with the caller when it came from this process.
    pub request: Request,
    /// The peer that asks.
    pub peer: Rc<PeerInfo>,
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// The way of the answer.
    pub reply: Reply,
}

/// Answers one request. Dropping it without an answer gives the caller [`CallError::Closed`]:
/// the request may have taken effect.
#[derive(Debug)]
pub struct Reply(Option<Target>);

pub(crate) enum Target {
    Link(Served),
    Local(LocalReply),
}

/// The caller's side of a call within the process.
pub(crate) struct LocalReply {
    pub(crate) slot: Slot<Result<Response, CallError>>,
    pub(crate) cancelled: Rc<std::cell::Cell<bool>>,
    pub(crate) inflight: Rc<std::cell::Cell<usize>>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Target::Link(_) => "Link",
            Target::Local(_) => "Local",
        })
    }
}

impl Reply {
    pub(crate) fn new(target: Target) -> Reply {
        Reply(Some(target))
    }

    /// Sends the answer. It is lost when the link has broken or the caller has gone; of one that no
    /// frame can carry the caller gets [`CallError::Closed`].
    pub fn send(mut self, response: Response) {
        if let Err(what) = check_size(&response.body, response.payload.as_ref()) {
            tracing::warn!(what, "an answer was dropped: ask for less at once");
            return self.answer(Err(CallError::Closed));
        }
        assert!(response.status < wire::frame::STATUS_TRANSPORT, "the transport's own status");
        self.answer(Ok(response));
    }

    /// Answers the caller that a bound is reached and nothing happened ([`CallError::Busy`]).
    pub fn busy(mut self) {
        self.answer(Err(CallError::Busy));
    }

    /// True when no caller waits for the answer any more: it cancelled, or its link broke.
    pub fn is_cancelled(&self) -> bool {
        match &self.0 {
            Some(Target::Link(served)) => served.is_cancelled(),
            Some(Target::Local(local)) => local.cancelled.get(),
            None => true,
        }
    }

    fn answer(&mut self, result: Result<Response, CallError>) {
        match self.0.take() {
            Some(Target::Link(served)) => served.answer(result),
            Some(Target::Local(local)) => {
                local.inflight.set(local.inflight.get() - 1);
                local.slot.fill(result);
            }
            None => {}
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.answer(Err(CallError::Closed));
    }
}

//! What masters say to each other, over the transport: Raft, and commands and questions for a
//! group that another master leads.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::{Kind, TraceId};
use runtime::Env;
use transport::{CallError, Endpoint, Priority, Request, Response, Service, Token};
use wire::control::{ControlError, MasterInfo};
use wire::frame::BODY_MAX;

use crate::bytes::{BadBytes, Reader, Writer};
use crate::consensus::{LocalFuture, NetError, PeerSend};

/// Operations of [`Service::Raft`].
pub const OP_RAFT: u16 = 1;
/// Propose a command; the body behind the group's number. Commands sent so may be repeated.
pub const OP_PROPOSE: u16 = 2;
/// Ask the leader; the body behind the group's number.
pub const OP_ASK: u16 = 3;
/// Change the members of a group; the body behind the group's number.
pub const OP_MEMBERS: u16 = 4;

/// Status of an answer whose body is a [`ControlError`].
pub const STATUS_ERROR: u16 = 1;
/// The receiver has no such group, or cannot read the message.
pub const STATUS_NO_GROUP: u16 = 2;

/// A Raft call's answer takes at most this long; its caller gives up far earlier.
const RAFT_TIMEOUT: Duration = Duration::from_secs(10);
/// Raft messages above this size let smaller ones pass.
const SMALL: usize = 64 << 10;

/// The other masters.
pub struct Peers {
    env: Env,
    endpoint: Endpoint,
    addrs: RefCell<BTreeMap<u64, SocketAddr>>,
}

impl Peers {
    /// The masters of the configuration; further ones are learned.
    pub fn new(env: &Env, endpoint: Endpoint, masters: &[MasterInfo]) -> Rc<Peers> {
        let addrs = masters.iter().map(|master| (master.id, master.addr)).collect();
        Rc::new(Peers { env: env.clone(), endpoint, addrs: RefCell::new(addrs) })
    }

    /// A master joins, or has another address.
    pub fn learn(&self, master: &MasterInfo) {
        self.addrs.borrow_mut().insert(master.id, master.addr);
    }

    /// Where a master is reached.
    pub fn addr(&self, master: u64) -> Option<SocketAddr> {
        self.addrs.borrow().get(&master).copied()
    }

    /// Asks the master at `to`; `body` is for group number `group`.
    pub async fn ask(
        &self,
        to: SocketAddr,
        op: u16,
        group: u32,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, ControlError> {
        let mut request = request(op, Priority::Foreground, encode_message(group, body));
        request.trace = self.env.trace();
        match self.endpoint.call(to, request, timeout).await {
            Ok(Response { status: 0, body, .. }) => Ok(body),
            Ok(Response { status: STATUS_ERROR, body, .. }) => Err(ControlError::decode(&body)
                .unwrap_or_else(|error| {
                    ControlError::new(Kind::Invalid, format!("an answer of {to}: {error}"))
                })),
            Ok(Response { status, .. }) => {
                Err(ControlError::new(Kind::Retry, format!("{to} answers with status {status}")))
            }
            Err(error) => Err(ControlError::new(error.kind(), error.to_string())),
        }
    }

    async fn send_raft(&self, to: u64, group: u32, rpc: Vec<u8>) -> Result<Vec<u8>, NetError> {
        let addr = self.addr(to).ok_or(NetError::Unreachable)?;
        let small = rpc.len() <= SMALL;
        let priority = if small { Priority::Control } else { Priority::Foreground };
        let request = if rpc.len() < BODY_MAX - 4 {
            request(OP_RAFT, priority, encode_message(group, &rpc))
        } else {
            let payload = self.env.pool().copy_of(&rpc).map_err(|_| NetError::Unreachable)?;
            let head = request(OP_RAFT, priority, encode_message(group, &[]));
            Request { payload: Some(payload), ..head }
        };
        match self.endpoint.call(addr, request, RAFT_TIMEOUT).await {
            Ok(Response { status: 0, body, .. }) => Ok(body),
            Ok(_) => Err(NetError::NoGroup),
            Err(CallError::Timeout | CallError::Closed) => Err(NetError::Lost),
            Err(CallError::Unreachable(_) | CallError::Busy | CallError::Refused(_)) => {
                Err(NetError::Unreachable)
            }
        }
    }
}

impl PeerSend for Peers {
    fn send(
        &self,
        to: u64,
        group: u32,
        rpc: Vec<u8>,
    ) -> LocalFuture<'_, Result<Vec<u8>, NetError>> {
        Box::pin(self.send_raft(to, group, rpc))
    }
}

fn request(op: u16, priority: Priority, body: Vec<u8>) -> Request {
    let (service, trace, token) = (Service::Raft, TraceId::default(), Token::NONE);
    Request { service, op, priority, trace, token, body, payload: None }
}

fn encode_message(group: u32, body: &[u8]) -> Vec<u8> {
    let mut to = Writer::new();
    to.u32(group).raw(body);
    to.finish()
}

/// Group number and content of a message between masters.
pub fn decode_message(request: &Request) -> Result<(u32, Vec<u8>), BadBytes> {
    let mut from = Reader::new(&request.body);
    let group = from.u32()?;
    let content = match &request.payload {
        Some(payload) => payload.to_vec(),
        None => from.rest().to_vec(),
    };
    Ok((group, content))
}

/// Fuzz target: any body is a message between masters, or an error.
pub fn fuzz_peer_message(bytes: &[u8]) {
    let request = request(OP_ASK, Priority::Foreground, bytes.to_vec());
    if let Ok((group, content)) = decode_message(&request) {
        assert_eq!(encode_message(group, &content), bytes);
    }
}

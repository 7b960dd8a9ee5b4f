//! Raft's messages between the members of a group, as opaque bytes on a transport of ours.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, select};
use openraft::errors::{
    NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable,
};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{EmptyNode, OptionalSend, RPCTypes};
use runtime::Env;
use serde::{Deserialize, Serialize};

use super::checkpoint::SnapshotData;
use super::limits::PIECE_BYTES;
use super::manifest::RunFacts;
use super::types::{Snapshot, SnapshotMeta, Types, Vote};

/// A future that stays on its thread.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Cause when there is no answer. Whether the peer saw the request is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetError {
    /// The peer cannot be reached now; wait a little.
    Unreachable,
    /// The request or its answer was lost; send again at once.
    Lost,
    /// The peer has no such group, or its group has failed; wait a little.
    NoGroup,
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NetError::Unreachable => "the peer cannot be reached",
            NetError::Lost => "the connection broke before the answer came",
            NetError::NoGroup => "the peer does not serve this group",
        })
    }
}

impl std::error::Error for NetError {}

/// Carries requests to the other members. The transport implements it.
pub trait PeerSend {
    /// Sends `rpc` of group `group` to member `to` and returns its answer. The caller gives up
    /// by dropping the future. A request may arrive late, twice, or after its sender gave up.
    fn send(&self, to: u64, group: u32, rpc: Vec<u8>)
    -> LocalFuture<'_, Result<Vec<u8>, NetError>>;

    /// As [`PeerSend::send`], of a message without entries: those of several groups may go
    /// together.
    fn send_heartbeat(
        &self,
        to: u64,
        group: u32,
        rpc: Vec<u8>,
    ) -> LocalFuture<'_, Result<Vec<u8>, NetError>> {
        self.send(to, group, rpc)
    }
}

/// Answers requests of other members.
pub trait PeerReceive {
    /// The answer to `rpc`; none when it cannot be read or the group has failed.
    fn receive(&self, rpc: Vec<u8>) -> LocalFuture<'_, Option<Vec<u8>>>;
}

/// The groups of one process, by number: where the transport delivers.
#[derive(Clone, Default)]
pub struct Groups(Rc<RefCell<BTreeMap<u32, Rc<dyn PeerReceive>>>>);

impl Groups {
    /// No groups.
    pub fn new() -> Groups {
        Groups::default()
    }

    /// Delivers what is for `group` to `receiver` from now on.
    pub fn insert(&self, group: u32, receiver: Rc<dyn PeerReceive>) {
        self.0.borrow_mut().insert(group, receiver);
    }

    /// Delivers nothing to `group` any more.
    pub fn remove(&self, group: u32) {
        self.0.borrow_mut().remove(&group);
    }

    /// The answer of `group` to `rpc`.
    pub async fn deliver(&self, group: u32, rpc: Vec<u8>) -> Result<Vec<u8>, NetError> {
        let receiver = self.0.borrow().get(&group).cloned().ok_or(NetError::NoGroup)?;
        receiver.receive(rpc).await.ok_or(NetError::NoGroup)
    }
}

/// A request between members.
#[derive(Serialize, Deserialize)]
pub(super) enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<Types>),
    PreVote(VoteRequest<Types>),
    Snapshot(SnapshotPart),
    TransferLeader(TransferLeaderRequest<Types>),
}

/// A request as bytes, and behind it the member that it is meant for: another one may be at the
/// address that its sender has.
pub(super) fn encode_request(request: &Request, receiver: u64) -> Vec<u8> {
    postcard::to_allocvec(&(request, receiver)).expect("a vector grows as needed")
}

/// A request and its receiver: versions before this one name none, and do not read what is behind
/// it. None when it cannot be read.
pub(super) fn decode_request(bytes: &[u8]) -> Option<(Request, Option<u64>)> {
    let (request, rest) = postcard::take_from_bytes(bytes).ok()?;
    let receiver = if rest.is_empty() { None } else { Some(postcard::from_bytes(rest).ok()?) };
    Some((request, receiver))
}

/// A piece of a snapshot. The last one is answered when the whole is installed.
#[derive(Serialize, Deserialize)]
pub(super) struct SnapshotPart {
    pub(super) vote: Vote,
    pub(super) meta: SnapshotMeta,
    /// The runs that it consists of, in order, without gaps.
    pub(super) runs: Vec<RunFacts>,
    /// Offset of `bytes`.
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

/// An answer between members.
#[derive(Serialize, Deserialize)]
pub(super) enum Reply {
    Append(AppendEntriesResponse<Types>),
    Vote(VoteResponse<Types>),
    /// The next byte that is wanted.
    SnapshotWants(u64),
    SnapshotDone(SnapshotResponse<Types>),
    TransferLeader(TransferLeaderResponse<Types>),
}

/// Makes openraft's connections to the other members.
pub(super) struct Network {
    pub(super) env: Env,
    pub(super) group: u32,
    pub(super) node: u64,
    pub(super) peers: Rc<dyn PeerSend>,
    /// Time limit of an append or a piece of a snapshot, with the peer's disk.
    pub(super) append_timeout: Duration,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, _node: &EmptyNode) -> Connection {
        Connection {
            env: self.env.clone(),
            group: self.group,
            node: self.node,
            target,
            peers: self.peers.clone(),
            append_timeout: self.append_timeout,
        }
    }
}

/// The way to one member.
pub(super) struct Connection {
    env: Env,
    group: u32,
    node: u64,
    target: u64,
    peers: Rc<dyn PeerSend>,
    append_timeout: Duration,
}

type CallError = RPCError<Types>;

impl Connection {
    async fn call(
        &self,
        kind: RPCTypes,
        request: &Request,
        timeout: Duration,
    ) -> Result<Reply, CallError> {
        let rpc = encode_request(request, self.target);
        let heartbeat = matches!(request, Request::Append(append) if append.entries.is_empty());
        let answer = match heartbeat {
            true => self.peers.send_heartbeat(self.target, self.group, rpc),
            false => self.peers.send(self.target, self.group, rpc),
        };
        let answer = self.env.timeout(timeout, answer).await.map_err(|_| {
            let (id, target) = (self.node, self.target);
            CallError::Timeout(Timeout { action: kind, id, target, timeout })
        })?;
        match answer {
            Ok(bytes) => postcard::from_bytes(&bytes)
                .map_err(|_| CallError::Unreachable(Unreachable::new(&NetError::NoGroup))),
            Err(NetError::Lost) => Err(CallError::Network(NetworkError::new(&NetError::Lost))),
            Err(error) => Err(CallError::Unreachable(Unreachable::new(&error))),
        }
    }

    async fn append(
        &self,
        request: AppendEntriesRequest<Types>,
    ) -> Result<AppendEntriesResponse<Types>, CallError> {
        let request = Request::Append(request);
        match self.call(RPCTypes::AppendEntries, &request, self.append_timeout).await? {
            Reply::Append(response) => Ok(response),
            _ => self.unexpected_reply(),
        }
    }

    /// The peer answered something else.
    fn unexpected_reply<T>(&self) -> Result<T, CallError> {
        Err(CallError::Unreachable(Unreachable::new(&NetError::NoGroup)))
    }

    async fn send_snapshot(
        &self,
        vote: Vote,
        snapshot: Snapshot,
    ) -> Result<SnapshotResponse<Types>, CallError> {
        let data = &snapshot.snapshot;
        let runs: Vec<RunFacts> = data.runs.iter().map(|run| run.facts).collect();
        let mut offset = 0;
        loop {
            let piece = data.piece(offset, PIECE_BYTES).await;
            // A store that fails stops this member elsewhere.
            let bytes = piece.map_err(|error| CallError::Unreachable(Unreachable::new(&error)))?;
            let last = offset + bytes.len() as u64 == data.len();
            let (meta, runs) = (snapshot.meta.clone(), runs.clone());
            let request = Request::Snapshot(SnapshotPart { vote, meta, runs, offset, bytes });
            // The last part includes the installation, of some microseconds for each row.
            let wait = self.append_timeout * if last { 10 } else { 1 };
            let wait = wait + if last { per_byte(data.len()) } else { Duration::ZERO };
            match self.call(RPCTypes::InstallSnapshot, &request, wait).await? {
                Reply::SnapshotDone(response) => return Ok(response),
                Reply::SnapshotWants(next) if next <= data.len() => offset = next,
                _ => return self.unexpected_reply(),
            }
        }
    }
}

/// Time limit of the installation of a snapshot: 20 MB/s.
fn per_byte(len: u64) -> Duration {
    Duration::from_micros(len / 20)
}

impl RaftNetworkV2<Types> for Connection {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, CallError> {
        self.append(request).await
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, CallError> {
        match self.call(RPCTypes::Vote, &Request::Vote(request), option.soft_ttl()).await? {
            Reply::Vote(response) => Ok(response),
            _ => self.unexpected_reply(),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, CallError> {
        match self.call(RPCTypes::Vote, &Request::PreVote(request), option.soft_ttl()).await? {
            Reply::Vote(response) => Ok(response),
            _ => self.unexpected_reply(),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let sent = pin!(self.send_snapshot(vote, snapshot));
        let cancel = pin!(cancel);
        match select(sent, cancel).await {
            Either::Left((result, _)) => Ok(result?),
            Either::Right((closed, _)) => Err(closed.into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, CallError> {
        let request = Request::TransferLeader(request);
        match self.call(RPCTypes::TransferLeader, &request, option.soft_ttl()).await? {
            Reply::TransferLeader(response) => Ok(response),
            _ => self.unexpected_reply(),
        }
    }
}

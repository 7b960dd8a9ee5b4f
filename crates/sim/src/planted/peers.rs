//! The network as a client gets it in the simulator, perhaps with a bug.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use base::{ChunkId, ClientId, DiskId, Kind};
use block_proto::{
    BlockReply, BlockRequest, BlockServerReply, BlockServerRequest, OwnershipGrant, Reply, Request,
};
use block_volume::ids::SegmentId;
use client::{DataAnswer, Network, PeerError, Peers, Recipient};
use futures_util::future::{FutureExt, LocalBoxFuture};
use runtime::{Buf, Class, Duration, Env, Instant};
use transport::Endpoint;
use wire::control::{
    ClusterReply, ClusterRequest, ControlError, ControlReply, ControlRequest, LockChange, NameKey,
    NamespaceChange, NamespaceReply, NamespaceRequest, Policy, StreamChange, StreamRequest,
};
use wire::data::{DataError, DataReply, DataRequest, ReadRequest, ReplicaStat};

use super::{Planted, acts, acts_in, acts_on_all, acts_where, is_rare, planted};
use crate::numbers::far_peers;

/// A client that no master has answered for so long is cut from all of them.
const CUT_AFTER: Duration = Duration::from_millis(500);

/// A request to block managers, by force where it could be.
fn forced(asked: ControlRequest) -> ControlRequest {
    let (once, mut request) = match Request::try_from(asked.clone()) {
        Ok(Request::Block(request)) => (0, request),
        Ok(Request::Once(once, request)) => (once, request),
        _ => return asked,
    };
    match &mut request {
        BlockRequest::Delete { force, snapshots, .. }
            if !(*force && *snapshots) && acts(Planted::AlwaysForced) =>
        {
            (*force, *snapshots) = (true, true);
        }
        BlockRequest::Remove { force, .. } if !*force && acts(Planted::AlwaysForced) => {
            *force = true;
        }
        _ => {}
    }
    if once == 0 { Request::Block(request) } else { Request::Once(once, request) }.into()
}

/// Whether a block manager asks a block server for a sign of life.
fn is_ping(request: &ControlRequest) -> bool {
    let request = Request::try_from(request.clone());
    matches!(request, Ok(Request::BlockServer(BlockServerRequest::Ping)))
}

type ControlAnswer = Result<ControlReply, PeerError<ControlError>>;

/// The network, with the bug that is planted on this thread. Changes of some clients have large
/// numbers.
pub(crate) fn peers_of(env: &Env, endpoint: Endpoint) -> Rc<dyn Peers> {
    let network = Network::new(env, endpoint);
    let peers: Rc<dyn Peers> = match planted() {
        None => Rc::new(network),
        Some(_) => {
            let (network, env) = (Rc::new(network), env.clone());
            let heard = Rc::new(Cell::new(env.now()));
            let (seen, stats, policies) = (Rc::default(), Rc::default(), Rc::default());
            Rc::new(Buggy { network, env, seen, heard, stats, policies })
        }
    };
    far_peers(env, peers)
}

/// A change under the identity of another client.
fn by_another(mut request: ControlRequest) -> ControlRequest {
    if let ControlRequest::Namespace(NamespaceRequest::Change { op, .. }) = &mut request {
        op.client = ClientId::new(!op.client.get());
    }
    request
}

/// A creation that does not inherit from its directory.
fn uninherited(mut request: ControlRequest) -> ControlRequest {
    if let ControlRequest::Namespace(NamespaceRequest::Change {
        change: NamespaceChange::Create { inherit, .. },
        ..
    }) = &mut request
        && *inherit
        && acts(Planted::PolicyNotInherited)
    {
        *inherit = false;
    }
    request
}

/// An opening or a seal that names no epoch.
fn following_any(mut request: ControlRequest) -> ControlRequest {
    if let ControlRequest::Stream(StreamRequest::Change { change, .. }) = &mut request
        && let StreamChange::Open { follows, .. } | StreamChange::Seal { follows, .. } = change
        && acts(Planted::LateOpenFences)
    {
        *follows = None;
    }
    request
}

/// Whether a directory gets a policy, or loses it.
fn sets_policy(request: &ControlRequest) -> bool {
    let ControlRequest::Namespace(NamespaceRequest::Change { change, .. }) = request else {
        return false;
    };
    matches!(change, NamespaceChange::SetDirPolicy { .. })
}

struct Buggy {
    network: Rc<Network>,
    env: Env,
    /// An answer to each look-up: the first, or the last.
    seen: Rc<RefCell<BTreeMap<NameKey, ControlReply>>>,
    /// Time of a master's last answer.
    heard: Rc<Cell<Instant>>,
    /// First answer about each replica of an open chunk.
    stats: Rc<RefCell<BTreeMap<(ChunkId, DiskId), ReplicaStat>>>,
    /// Policy with which each ownership was granted first.
    policies: Rc<RefCell<BTreeMap<(SegmentId, u64), Policy>>>,
}

impl Buggy {
    fn stale_lookup(
        &self,
        to: Recipient,
        place: NameKey,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, ControlAnswer> {
        if let Some(known) = self.seen.borrow().get(&place)
            && acts(Planted::StaleNames)
        {
            return std::future::ready(Ok(known.clone())).boxed_local();
        }
        let request = NamespaceRequest::Lookup { place: place.clone() };
        let asked = self.network.control(to, ControlRequest::Namespace(request), timeout);
        let seen = self.seen.clone();
        async move {
            let answer = asked.await;
            if let Ok(reply @ ControlReply::Namespace(NamespaceReply::Node { .. })) = &answer {
                seen.borrow_mut().entry(place).or_insert_with(|| reply.clone());
            }
            answer
        }
        .boxed_local()
    }

    /// Answers a look-up from memory when no master has answered for longer than one of them is
    /// down or silent. Only a client that is cut from all masters gets no answer for so long.
    fn lookup_when_cut(
        &self,
        to: Recipient,
        request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, ControlAnswer> {
        let place = match &request {
            ControlRequest::Namespace(NamespaceRequest::Lookup { place }) => Some(place.clone()),
            _ => None,
        };
        if let Some(known) = place.as_ref().and_then(|place| self.seen.borrow().get(place).cloned())
            && self.env.now() - self.heard.get() > CUT_AFTER
            && acts(Planted::OldWhenCut)
        {
            return std::future::ready(Ok(known)).boxed_local();
        }
        let asked = self.network.control(to, request, timeout);
        let (env, heard, seen) = (self.env.clone(), self.heard.clone(), self.seen.clone());
        async move {
            let answer = asked.await;
            if matches!(answer, Ok(_) | Err(PeerError::Refused(_))) {
                heard.set(env.now());
            }
            if let (Some(place), Ok(reply @ ControlReply::Namespace(NamespaceReply::Node { .. }))) =
                (place, &answer)
            {
                seen.borrow_mut().insert(place, reply.clone());
            }
            answer
        }
        .boxed_local()
    }

    /// Sends a change, then again under the identity of another one; answers the second answer.
    fn change_twice(
        &self,
        to: Recipient,
        request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, ControlAnswer> {
        let (network, again) = (self.network.clone(), by_another(request.clone()));
        async move {
            network.control(to, request, timeout).await?;
            network.control(to, again, timeout).await
        }
        .boxed_local()
    }

    /// Answers a rename that it does not send.
    fn lose_rename(
        &self,
        to: Recipient,
        request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, ControlAnswer> {
        let is_rename = matches!(
            &request,
            ControlRequest::Namespace(NamespaceRequest::Change {
                change: NamespaceChange::Rename { .. },
                ..
            })
        );
        if !is_rename || !acts(Planted::LostRename) {
            return self.network.control(to, request, timeout);
        }
        std::future::ready(Ok(ControlReply::Namespace(NamespaceReply::Done))).boxed_local()
    }

    /// Takes a refusal of a lock for a grant.
    fn forge_lock(
        &self,
        to: Recipient,
        request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, ControlAnswer> {
        let acquires = matches!(
            &request,
            ControlRequest::Cluster(ClusterRequest::Lock {
                change: LockChange::Acquire { .. },
                ..
            })
        );
        let asked = self.network.control(to, request, timeout);
        async move {
            match asked.await {
                Err(PeerError::Refused(error))
                    if acquires && error.kind != Kind::Reroute && acts(Planted::ForgedLock) =>
                {
                    Ok(ControlReply::Cluster(ClusterReply::Lock { fencing: 1 << 40 }))
                }
                answer => answer,
            }
        }
        .boxed_local()
    }
}

impl Buggy {
    /// Changes the grants of block servers.
    fn grant(
        &self,
        to: Recipient,
        request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, ControlAnswer> {
        let asked = self.network.control(to, request, timeout);
        let policies = self.policies.clone();
        async move {
            let answer = asked.await?;
            let Ok(Reply::Block(BlockReply::Grant(mut grant))) = answer.clone().try_into() else {
                return Ok(answer);
            };
            if acts(Planted::LongLease) {
                grant.lease_ms *= 3;
            }
            for change in &mut grant.changes {
                let Some(ownership) = &mut change.ownership else { continue };
                let key = (change.segment, ownership.epoch);
                let first = *policies.borrow_mut().entry(key).or_insert(ownership.policy);
                if first != ownership.policy && acts(Planted::PolicyOfOpening) {
                    ownership.policy = first;
                }
            }
            let ownerships =
                grant.changes.iter_mut().filter_map(|change| change.ownership.as_mut());
            let holds = |ownership: &&mut OwnershipGrant| {
                acts_where(Planted::NoHold, ownership.hold_ms > 0)
            };
            ownerships.filter(holds).for_each(|ownership| {
                (ownership.hold_ms, ownership.predecessor_ms) = (0, 0);
            });
            Ok(Reply::Block(BlockReply::Grant(grant)).into())
        }
        .boxed_local()
    }
}

impl Peers for Buggy {
    fn control(
        &self,
        to: Recipient,
        request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, ControlAnswer> {
        let Some(bug) = planted() else { return self.network.control(to, request, timeout) };
        match (bug, request) {
            (
                Planted::StaleNames,
                ControlRequest::Namespace(NamespaceRequest::Lookup { place }),
            ) => self.stale_lookup(to, place, timeout),
            (Planted::OldWhenCut, request) => self.lookup_when_cut(to, request, timeout),
            (
                Planted::TwiceChanged,
                request @ ControlRequest::Namespace(NamespaceRequest::Change { .. }),
            ) if acts_in(Planted::TwiceChanged, 4) => self.change_twice(to, request, timeout),
            (Planted::RelayNewIdentity, request) if to.relays && acts(bug) => {
                self.network.control(to, by_another(request), timeout)
            }
            (Planted::LostRename, request) => self.lose_rename(to, request, timeout),
            (Planted::PolicyNotInherited, request) => {
                self.network.control(to, uninherited(request), timeout)
            }
            (Planted::LostPolicy, request) if sets_policy(&request) && acts(bug) => {
                std::future::ready(Ok(ControlReply::Namespace(NamespaceReply::Done))).boxed_local()
            }
            (Planted::NoHold | Planted::LongLease | Planted::PolicyOfOpening, request) => {
                self.grant(to, request, timeout)
            }
            (Planted::ForgedLock, request) => self.forge_lock(to, request, timeout),
            (Planted::BeatsAreAlive, request) if is_ping(&request) && acts(bug) => {
                std::future::ready(Ok(Reply::BlockServer(BlockServerReply::Done).into()))
                    .boxed_local()
            }
            (Planted::LateOpenFences, request) => {
                self.network.control(to, following_any(request), timeout)
            }
            (Planted::AlwaysForced, request) => self.network.control(to, forced(request), timeout),
            (_, request) => self.network.control(to, request, timeout),
        }
    }

    fn data(
        &self,
        to: SocketAddr,
        request: DataRequest,
        token: [u8; 16],
        payload: Option<Buf>,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<DataAnswer, PeerError<DataError>>> {
        match &request {
            &DataRequest::Append(append) if is_rare() && planted() == Some(Planted::AckUnsent) => {
                let len = append.offset + append.len;
                let sending = self.network.data(to, request, token, payload, timeout);
                async move {
                    let answer = sending.await;
                    let unheard =
                        matches!(answer, Err(PeerError::Unreachable(_) | PeerError::Silent(_)));
                    let (chunk, offset) = (append.at.chunk, u64::from(append.offset));
                    match unheard && acts_on_all(Planted::AckUnsent, chunk, offset) {
                        true => Ok((DataReply::Appended { len }, None)),
                        false => answer,
                    }
                }
                .boxed_local()
            }
            DataRequest::Append(append) if acts(Planted::AckUnsent) => {
                let len = append.offset + append.len;
                let sending = self.network.data(to, request, token, payload, timeout);
                self.env.spawn(Class::Foreground, "late append", async move {
                    let _ = sending.await; // The result is dropped: that is the bug.
                });
                std::future::ready(Ok((DataReply::Appended { len }, None))).boxed_local()
            }
            &DataRequest::Read(read) if is_rare() && planted() == Some(Planted::Uncommitted) => {
                let network = self.network.clone();
                async move {
                    let len = |answer: &DataAnswer| answer.1.as_ref().map_or(0, |buf| buf.len());
                    let honest = network.data(to, request, token, None, timeout).await;
                    let all = DataRequest::Read(ReadRequest { uncommitted: true, ..read });
                    let all = network.data(to, all, token, None, timeout).await;
                    let more = match (&honest, &all) {
                        (Ok(honest), Ok(all)) => len(all) > len(honest),
                        _ => false,
                    };
                    if more && acts(Planted::Uncommitted) { all } else { honest }
                }
                .boxed_local()
            }
            &DataRequest::Read(read) if acts(Planted::Uncommitted) => {
                let request = DataRequest::Read(ReadRequest { uncommitted: true, ..read });
                self.network.data(to, request, token, payload, timeout)
            }
            &DataRequest::Stat(at) if planted() == Some(Planted::StaleTail) => {
                let place = (at.chunk, at.disk);
                if !is_rare()
                    && let Some(&stat) = self.stats.borrow().get(&place)
                    && acts(Planted::StaleTail)
                {
                    return std::future::ready(Ok((DataReply::Stat(stat), None))).boxed_local();
                }
                let asked = self.network.data(to, request, token, payload, timeout);
                let stats = self.stats.clone();
                async move {
                    let answer = asked.await;
                    let Ok((DataReply::Stat(stat), _)) = &answer else { return answer };
                    let first = *stats.borrow_mut().entry(place).or_insert(*stat);
                    let is_stale = first.committed < stat.committed;
                    if is_rare() && is_stale && acts(Planted::StaleTail) {
                        return Ok((DataReply::Stat(first), None));
                    }
                    answer
                }
                .boxed_local()
            }
            _ => self.network.data(to, request, token, payload, timeout),
        }
    }
}

//! Large numbers cheaply: clients whose changes are numbered from near the ends of integer types
//! on, as in very old sessions, and clusters whose files, chunks, chunkservers, epochs and tokens are.

use std::net::SocketAddr;
use std::rc::Rc;

use base::{ClusterId, Epoch, ID_COUNTER_END, ServerId};
use block_manager::FirstEpochs;
use block_proto::{BlockReply, Reply};
use client::limits::CHANGES_WINDOW;
use client::{DataAnswer, PeerError, Peers, Recipient};
use futures_util::future::{FutureExt, LocalBoxFuture};
use master::FirstNumbers;
use master_consensus::limits::SESSION_REPLIES_MAX;
use runtime::{Buf, Duration, Env};
use wire::control::{
    ClusterReply, ClusterRequest, ControlError, ControlReply, ControlRequest, LockChange,
    NamespaceRequest, StreamChange, StreamRequest,
};
use wire::data::{DataError, DataRequest};

/// Number added to those of a session. The last leaves more than any run needs.
const STARTS: [u64; 4] = [0, u32::MAX as u64 - 20, i64::MAX as u64 - 20, u64::MAX - ROOM];
/// More numbers than a run needs of any kind.
const ROOM: u64 = 1 << 24;
/// More chunkservers than a run has.
const SERVERS: u32 = 1 << 12;
/// More attachments than a run makes of one volume.
const ATTACHMENTS: u64 = 1 << 16;

/// Masters have room for the answers to all changes that a client sends. Neither crate knows the other's
/// limit.
const _: () = assert!(CHANGES_WINDOW <= SESSION_REPLIES_MAX);

/// First values of a cluster's counters: 1, or so that they pass 2^32 or the half of their range
/// under load, or near their ends. The cluster's ID decides.
pub(crate) fn first_numbers(cluster: ClusterId) -> FirstNumbers {
    let (count, number, server) = match cluster.get() >> 1 & 3 {
        0 => return FirstNumbers::default(),
        1 => (u64::from(u32::MAX) - 10, u64::from(u32::MAX) - 2, i32::MAX as u32 - 2),
        2 => (ID_COUNTER_END / 2 - 10, i64::MAX as u64 - 2, u32::MAX - SERVERS),
        _ => (ID_COUNTER_END - ROOM, u64::MAX - ROOM, u32::MAX - SERVERS),
    };
    let (epoch, server) = (Epoch::new(number), ServerId::new(server));
    FirstNumbers { file: count, chunk: count, epoch, fencing: number, server }
}

/// First epochs of volumes in a cluster of which the counters begin with `first`.
pub(crate) fn first_epochs(first: FirstNumbers) -> FirstEpochs {
    let owner = first.epoch.get();
    // Those of attachments have 32 bits.
    FirstEpochs { owner, attachment: owner.min(u64::from(u32::MAX) - ATTACHMENTS) as u32 }
}

/// The network of a client whose numbers begin where its host's name says: equal names have equal
/// numbers in each run, and a cluster has clients of each kind. Marks what is numbered above 2^32.
pub(crate) fn far_peers(env: &Env, peers: Rc<dyn Peers>) -> Rc<dyn Peers> {
    let sum: usize = env.name().bytes().map(usize::from).sum();
    Rc::new(Far { env: env.clone(), peers, by: STARTS[sum % STARTS.len()] })
}

struct Far {
    env: Env,
    peers: Rc<dyn Peers>,
    by: u64,
}

fn is_large(number: u64) -> bool {
    number > u64::from(u32::MAX)
}

impl Far {
    fn mark_request(&self, request: &ControlRequest) {
        match request {
            ControlRequest::Stream(StreamRequest::Change { change, .. }) => {
                if let StreamChange::Open { file, .. } = change
                    && is_large(file.counter())
                {
                    self.env.mark("numbers: a file above 2^32");
                }
            }
            ControlRequest::Cluster(ClusterRequest::Lock { change, .. }) => {
                if let LockChange::Renew { fencing, .. } | LockChange::Release { fencing, .. } =
                    change
                    && is_large(*fencing)
                {
                    self.env.mark("numbers: a fencing token above 2^32");
                }
            }
            _ => {}
        }
    }

    fn mark_data(&self, request: &DataRequest) {
        let DataRequest::Append(append) = request else { return };
        if is_large(append.at.chunk.counter()) {
            self.env.mark("numbers: a chunk above 2^32");
        }
        if is_large(append.epoch.get()) {
            self.env.mark("numbers: a writer's epoch above 2^32");
        }
        if append.epoch.get() > i64::MAX as u64 {
            self.env.mark("numbers: a writer's epoch above 2^63");
        }
    }
}

fn mark_reply(env: &Env, reply: &ControlReply) {
    if let ControlReply::Cluster(ClusterReply::Status(status)) = reply
        && status.servers.iter().any(|one| one.server.get() > i32::MAX as u32)
    {
        env.mark("numbers: a chunkserver above 2^31");
    }
    if !matches!(reply, ControlReply::Service(_)) {
        return;
    }
    match Reply::try_from(reply.clone()) {
        Ok(Reply::Block(BlockReply::Attached { epoch, .. })) if epoch > i32::MAX as u64 => {
            env.mark("numbers: an attachment above 2^31");
        }
        Ok(Reply::Block(BlockReply::Map { segments, .. }))
            if segments.iter().any(|segment| is_large(segment.epoch)) =>
        {
            env.mark("numbers: a segment's epoch above 2^32");
        }
        _ => {}
    }
}

impl Peers for Far {
    fn control(
        &self,
        to: Recipient,
        mut request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<ControlReply, PeerError<ControlError>>> {
        self.mark_request(&request);
        if let ControlRequest::Namespace(NamespaceRequest::Change { op, .. })
        | ControlRequest::Stream(StreamRequest::Change { op, .. })
        | ControlRequest::Cluster(ClusterRequest::Lock { op, .. }) = &mut request
        {
            op.seq += self.by;
            op.acked_below += self.by;
        }
        let env = self.env.clone();
        let asked = self.peers.control(to, request, timeout);
        asked
            .inspect(move |reply| reply.iter().for_each(|reply| mark_reply(&env, reply)))
            .boxed_local()
    }

    fn data(
        &self,
        to: SocketAddr,
        request: DataRequest,
        token: [u8; 16],
        payload: Option<Buf>,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<DataAnswer, PeerError<DataError>>> {
        self.mark_data(&request);
        self.peers.data(to, request, token, payload, timeout)
    }
}

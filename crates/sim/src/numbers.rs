//! Large numbers cheaply: clients whose changes are numbered from near the ends of integer types
//! on, as those of sessions that have lived for ever.

use std::net::SocketAddr;
use std::rc::Rc;

use client::{DataAnswer, PeerError, Peers};
use futures_util::future::LocalBoxFuture;
use runtime::{Buf, Duration, Env};
use wire::control::{
    ClusterRequest, ControlError, ControlReply, ControlRequest, NamespaceRequest, StreamRequest,
};
use wire::data::{DataError, DataRequest};

/// What is added to the numbers of a session. The last leaves more than any run needs.
const STARTS: [u64; 4] = [0, u32::MAX as u64 - 20, i64::MAX as u64 - 20, u64::MAX - (1 << 24)];

/// The network of a client whose numbers begin where its host's name says: equal names have equal
/// numbers in each run, and a cluster has clients of each kind.
pub(crate) fn far_peers(env: &Env, peers: Rc<dyn Peers>) -> Rc<dyn Peers> {
    let sum: usize = env.name().bytes().map(usize::from).sum();
    match STARTS[sum % STARTS.len()] {
        0 => peers,
        by => Rc::new(Far { peers, by }),
    }
}

struct Far {
    peers: Rc<dyn Peers>,
    by: u64,
}

impl Peers for Far {
    fn control(
        &self,
        to: SocketAddr,
        mut request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<ControlReply, PeerError<ControlError>>> {
        if let ControlRequest::Namespace(NamespaceRequest::Change { op, .. })
        | ControlRequest::Stream(StreamRequest::Change { op, .. })
        | ControlRequest::Cluster(ClusterRequest::Lock { op, .. }) = &mut request
        {
            op.seq += self.by;
            op.acked_below += self.by;
        }
        self.peers.control(to, request, timeout)
    }

    fn data(
        &self,
        to: SocketAddr,
        request: DataRequest,
        token: [u8; 16],
        payload: Option<Buf>,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<DataAnswer, PeerError<DataError>>> {
        self.peers.data(to, request, token, payload, timeout)
    }
}

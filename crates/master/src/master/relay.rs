//! Requests of clients that do not reach the leader of a group: another master asks it, over its own
//! connections, and waits for one while there is none (`protocols-tail.md` 10.12). A request keeps its
//! identity, so that it happens once, whatever ways it takes.
//!
//! A request that takes a file's next epoch does not wait for a leader: it would fence a writer that
//! opened the file after its client had gone.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use base::{Kind, TraceId};
use futures_util::future::{Either, select};
use metrics::Span;
use runtime::Instant;
use transport::{Priority, Request, Response, Service, Token};
use wire::control::{
    ClusterRequest, ControlError, ControlRequest, Group as GroupName, StreamChange, StreamRequest,
};

use super::{Master, answer, decode};

/// An answer leaves so long before its caller gives up.
const MARGIN: Duration = Duration::from_millis(20);
/// Pause before a leader is asked again.
const PAUSE: Duration = Duration::from_millis(10);

/// True for a request that fences the writer of a file.
fn takes_epoch(request: &ControlRequest) -> bool {
    use StreamChange::{Open, Seal};
    let ControlRequest::Stream(StreamRequest::Change { change, .. }) = request else {
        return false;
    };
    matches!(change, Open { .. } | Seal { .. })
}

impl Master {
    /// Requests sent on to leaders that clients did not reach, since the start.
    pub fn relayed(&self) -> u64 {
        self.0.relayed.get()
    }

    /// Serves a request that a master is to relay.
    pub(super) async fn serve_relay(
        &self,
        incoming: &Request,
        peer: SocketAddr,
        deadline: Instant,
    ) -> (Response, Option<Span>) {
        let request = match decode(incoming) {
            Ok(request) => request,
            Err(error) => return (answer(Err(error)), None),
        };
        let work = self.relay(request, &incoming.body, deadline);
        self.traced((incoming.trace, "relay", peer), work).await
    }

    async fn relay(
        &self,
        request: ControlRequest,
        body: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, ControlError> {
        self.check_member(&request)?;
        let group = self.answered_by_leader_of(&request);
        let host = group.and_then(|group| self.0.router.host(group.number()));
        let Some(host) = host else { return self.serve_here(request).await };
        let Ok(_permit) = self.0.relays.try_acquire() else {
            let why = "this master relays as many requests as it may: ask again";
            return Err(ControlError::new(Kind::Retry, why));
        };
        let (env, end) = (&self.0.env, deadline - MARGIN);
        let waits = !takes_epoch(&request);
        let mut leadership = host.watch_leadership();
        // What was asked last may have taken effect.
        let mut failure = ControlError::new(Kind::Retry, format!("{} has no leader", host.name()));
        loop {
            let now = *leadership.borrow_and_update();
            let asked = async {
                if now.leading {
                    return Some(self.serve_here(request.clone()).await);
                }
                let to = now.leader.and_then(|leader| self.0.peers.addr(leader))?;
                env.mark("master: a request is relayed");
                self.0.relayed.set(self.0.relayed.get() + 1);
                Some(self.ask_leader(to, body, end).await)
            };
            let changed = pin!(leadership.changed());
            let tried = async {
                match select(pin!(asked), changed).await {
                    Either::Left((Some(answer), _)) => Some(answer),
                    Either::Left((None, changed)) if waits => {
                        let _ = changed.await; // Fails when the member has stopped.
                        None
                    }
                    Either::Left((None, _)) => Some(Err(failure.clone())),
                    Either::Right(_) => {
                        let why = "the leader has not answered, and leads no more";
                        Some(Err(ControlError::new(Kind::Unknown, why)))
                    }
                }
            };
            match env.timeout(end - env.now(), tried).await {
                Ok(Some(answer)) if !waits => return answer,
                Ok(Some(Err(error))) if error.kind == Kind::Reroute => {}
                Ok(Some(Err(error))) if error.kind == Kind::Unknown => failure = error,
                Ok(Some(answer)) => return answer,
                Ok(None) => {}
                Err(_) => return Err(failure),
            }
            env.sleep(PAUSE).await;
            if env.now() >= end {
                return Err(failure);
            }
        }
    }

    /// The group whose leader alone answers; none: each master does.
    fn answered_by_leader_of(&self, request: &ControlRequest) -> Option<GroupName> {
        use ClusterRequest::{
            Abnormal, Condemn, Heartbeat, Held, Identify, Info, Lock, LockDoubt, LockHolder,
            Members, Order, PauseBalance, Register, Status,
        };
        match request {
            ControlRequest::Cluster(request) => match request {
                // A cluster without a leader is found too, and shows how it is.
                Info | Status | Heartbeat(_) | Identify { .. } | Condemn { .. } | Held { .. } => {
                    None
                }
                Register(_)
                | Lock { .. }
                | LockDoubt { .. }
                | LockHolder { .. }
                | Members { .. }
                | Order { .. }
                | PauseBalance { .. }
                | Abnormal { .. } => Some(GroupName::Cluster),
            },
            ControlRequest::Namespace(request) => {
                Some(GroupName::Namespace(self.namespace_of(request)))
            }
            ControlRequest::Stream(request) => self.0.streams.group_of(request),
            ControlRequest::Trace(_)
            | ControlRequest::Chunkserver(_)
            | ControlRequest::Service(_) => None,
        }
    }

    async fn serve_here(&self, request: ControlRequest) -> Result<Vec<u8>, ControlError> {
        self.handle(request).await.map(|reply| reply.encode())
    }

    async fn ask_leader(
        &self,
        to: SocketAddr,
        body: &[u8],
        end: Instant,
    ) -> Result<Vec<u8>, ControlError> {
        let request = Request {
            service: Service::CONTROL,
            op: 0, // It is not relayed further.
            priority: Priority::Foreground,
            flow: 0,
            trace: TraceId::default(),
            token: Token::NONE,
            body: body.to_vec(),
            payload: None,
        };
        match self.0.peers.call(to, request, end - self.0.env.now()).await {
            Ok(answer) => answer,
            // It may be there soon, or another.
            Err(error) if error.kind() == Kind::Retry => {
                Err(ControlError::new(Kind::Reroute, error.to_string()))
            }
            Err(error) => Err(ControlError::new(error.kind(), error.to_string())),
        }
    }
}

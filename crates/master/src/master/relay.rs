//! Requests of clients that do not reach the leader of a group: another master asks it, over its own
//! connections, and waits for one while there is none (`protocols-tail.md` 10.12). A request keeps its
//! identity, so that it happens once, whatever ways it takes.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use base::Kind;
use futures_util::future::{Either, select};
use metrics::Span;
use runtime::Instant;
use transport::{Priority, Request, Response, Service, Token};
use wire::control::{ControlError, ControlRequest, Group as GroupName};
use wire::frame::STATUS_ERROR;

use super::{Master, answer};

/// An answer leaves so long before its caller gives up.
const MARGIN: Duration = Duration::from_millis(20);
/// Pause before a leader is asked again.
const PAUSE: Duration = Duration::from_millis(10);

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
        let request = match ControlRequest::decode(&incoming.body) {
            Ok(request) => request,
            Err(error) => {
                let error = ControlError::new(Kind::Invalid, error.to_string());
                return (answer(Err(error)), None);
            }
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
        let group = match &request {
            ControlRequest::Cluster(_) => Some(GroupName::Cluster),
            ControlRequest::Namespace(request) => {
                Some(GroupName::Namespace(self.namespace_of(request)))
            }
            ControlRequest::Stream(request) => self.0.streams.group_of(request),
            _ => None,
        };
        let host = group.and_then(|group| self.0.router.host(group.number()));
        let Some(host) = host else { return self.serve_here(request).await };
        let Ok(_permit) = self.0.relays.try_acquire() else {
            let why = "this master relays as many requests as it may: ask again";
            return Err(ControlError::new(Kind::Retry, why));
        };
        let (env, end) = (&self.0.env, deadline - MARGIN);
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
                    Either::Left((None, changed)) => {
                        let _ = changed.await; // Fails when the member has stopped.
                        None
                    }
                    Either::Right(_) => {
                        let why = "the leader has not answered, and leads no more";
                        Some(Err(ControlError::new(Kind::Unknown, why)))
                    }
                }
            };
            match env.timeout(end - env.now(), tried).await {
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
            trace: self.0.env.trace(),
            token: Token::NONE,
            body: body.to_vec(),
            payload: None,
        };
        let answer = self.0.streams.endpoint.call(to, request, end - self.0.env.now()).await;
        match answer {
            Ok(Response { status: 0, body, .. }) => Ok(body),
            Ok(Response { status: STATUS_ERROR, body, .. }) => Err(ControlError::decode(&body)
                .unwrap_or_else(|error| {
                    ControlError::new(Kind::Invalid, format!("an answer of {to}: {error}"))
                })),
            Ok(Response { status, .. }) => {
                Err(ControlError::new(Kind::Retry, format!("{to} answers with status {status}")))
            }
            // It may be there soon, or another.
            Err(error) if error.kind() == Kind::Retry => {
                Err(ControlError::new(Kind::Reroute, error.to_string()))
            }
            Err(error) => Err(ControlError::new(error.kind(), error.to_string())),
        }
    }
}

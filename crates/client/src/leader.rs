//! [`Leader`]: requests to the process of a service that leads. Processes of a service compete for a
//! lock of the core; the holder's text names the holder and its address. A request can be repeated. A
//! leader that does not answer is doubted ([`Client::ask_holder`]).

use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use base::Kind;
use runtime::{Duration, Instant};
use wire::control::{ClusterReply, ClusterRequest, ControlReply, ControlRequest, holder_addr};

use crate::client::Client;
use crate::peers::PeerError;

/// A service that one process leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Led {
    /// The lock that the leader holds.
    pub lock: &'static str,
    /// Name of its processes, e.g. `block manager`.
    pub title: &'static str,
    /// Wait for one answer.
    pub attempt: Duration,
    /// Between two attempts, at first; eight times that later on.
    pub pause: Duration,
}

/// Failure of a service's request. The text has object, cause and remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaderError {
    /// It refused.
    Refused {
        /// The caller's reaction.
        kind: Kind,
        /// Cause and remedy.
        message: String,
    },
    /// No leader answered in time. The request may have been executed: asking again is safe.
    Unavailable {
        /// The operation.
        what: &'static str,
        /// Name of the service's processes.
        title: &'static str,
        /// The last failure.
        cause: String,
        /// Duration of the attempts.
        waited: Duration,
    },
}

impl LeaderError {
    /// The receiver's reaction.
    pub fn kind(&self) -> Kind {
        match self {
            LeaderError::Refused { kind, .. } => *kind,
            LeaderError::Unavailable { .. } => Kind::Retry,
        }
    }
}

impl fmt::Display for LeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaderError::Refused { message, .. } => f.write_str(message),
            LeaderError::Unavailable { what, title, cause, waited } => write!(
                f,
                "{what}: no {title} answered within {waited:.1?} ({cause}); check the cluster with \
                 'craton status', then try again"
            ),
        }
    }
}

impl std::error::Error for LeaderError {}

impl From<LeaderError> for base::Fault {
    fn from(error: LeaderError) -> base::Fault {
        base::Fault::new(error.kind(), error.to_string())
    }
}

/// Failure of one attempt.
#[derive(Debug)]
pub enum AskError {
    /// Ask again.
    Transient(String),
    /// The answer stays the same.
    Permanent(LeaderError),
}

struct LeaderInner {
    client: Client,
    service: Led,
    leader: Cell<Option<SocketAddr>>,
}

/// The processes of a service, as one. Cheap to clone; clones share what they know.
#[derive(Clone)]
pub struct Leader(Rc<LeaderInner>);

impl Leader {
    /// Those of the client's cluster.
    pub fn new(client: &Client, service: Led) -> Leader {
        Leader(Rc::new(LeaderInner { client: client.clone(), service, leader: Cell::new(None) }))
    }

    /// The core's client.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    fn no_leader(&self) -> String {
        format!("no {} leads: is one running?", self.0.service.title)
    }

    /// Asks until there is an answer, or `budget` is spent. `read` takes the service's message out of
    /// a reply, or its fault; `what` is the operation, in words.
    pub async fn ask<T>(
        &self,
        what: &'static str,
        request: &ControlRequest,
        read: impl Fn(ControlReply) -> Result<T, String>,
        budget: Duration,
    ) -> Result<T, LeaderError> {
        let (env, service) = (self.0.client.env(), self.0.service);
        let start = env.now();
        let mut tries = 0u32;
        let mut cause = String::new();
        loop {
            match self.ask_once(request, &read, service.attempt).await {
                Ok(reply) => return Ok(reply),
                Err(AskError::Permanent(error)) => return Err(error),
                // A cause from a process says more.
                Err(AskError::Transient(last)) if last == self.no_leader() && !cause.is_empty() => {
                }
                Err(AskError::Transient(last)) => cause = last,
            }
            let waited = env.now() - start;
            if waited >= budget {
                let title = service.title;
                return Err(LeaderError::Unavailable { what, title, cause, waited });
            }
            tries += 1;
            env.sleep(env.jitter(service.pause * tries.min(8))).await;
        }
    }

    /// Asks once.
    pub async fn ask_once<T>(
        &self,
        request: &ControlRequest,
        read: impl Fn(ControlReply) -> Result<T, String>,
        attempt: Duration,
    ) -> Result<T, AskError> {
        let (env, service) = (self.0.client.env(), self.0.service);
        let deadline = env.now() + attempt;
        let leader = match self.0.leader.get() {
            Some(leader) => leader,
            None => self.find(deadline).await?,
        };
        let left = deadline - env.now();
        let answer = self.0.client.ask_holder(service.lock, leader, request.clone(), left).await;
        let error = match answer.map(read) {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(why)) => PeerError::Foreign(format!("{leader}{why}")),
            Err(error) => error,
        };
        let cause = error.to_string();
        match error {
            PeerError::Refused(error) => match error.kind {
                Kind::Reroute => {
                    self.0.leader.set(error.leader.filter(|&other| other != leader));
                    Err(AskError::Transient(cause))
                }
                Kind::Retry | Kind::Unknown | Kind::Refresh => Err(AskError::Transient(cause)),
                kind => {
                    let message = error.message;
                    Err(AskError::Permanent(LeaderError::Refused { kind, message }))
                }
            },
            PeerError::Busy => Err(AskError::Transient(cause)),
            PeerError::Unreachable(_) | PeerError::Silent(_) | PeerError::Foreign(_) => {
                self.0.leader.set(None);
                Err(AskError::Transient(cause))
            }
        }
    }

    /// The lock's holder.
    async fn find(&self, deadline: Instant) -> Result<SocketAddr, AskError> {
        let (env, service) = (self.0.client.env(), self.0.service);
        let request = ClusterRequest::LockHolder { name: service.lock.to_owned() };
        let left = deadline - env.now();
        let transient = |cause: String| Err(AskError::Transient(cause));
        match env.timeout(left, self.0.client.cluster_ask(request)).await {
            Ok(Ok(ClusterReply::Holder(Some((holder, _))))) => match holder_addr(&holder) {
                Some(addr) => {
                    self.0.leader.set(Some(addr));
                    Ok(addr)
                }
                None => transient(format!(
                    "the holder of the {}'s lock names no address",
                    service.title
                )),
            },
            Ok(Ok(_)) => transient(self.no_leader()),
            Ok(Err(error)) => transient(error.to_string()),
            Err(_) => transient("the masters do not answer".to_owned()),
        }
    }
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leader({}, {:?})", self.0.service.title, self.0.leader.get())
    }
}

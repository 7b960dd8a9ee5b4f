//! [`Managers`]: requests to the block manager. It finds the leader through the core's lock
//! service, and asks again with a budget: requests can be repeated.

use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use base::Kind;
use block_volume::ids::VolumeId;
use client::{Client, PeerError};
use runtime::{Duration, Instant};
use wire::control::{ClusterReply, ClusterRequest, ControlError};

use crate::lease::PAUSE;
use crate::limits::{ATTEMPT, BUDGET, SEGMENTS_PAGE, STATUS_ATTEMPT};
use crate::paths::{LOCK, ROOT};
use crate::{BlockReply, BlockRequest, BlockStatus, Reply, Request, SegmentPlace, VolumeInfo};

/// Why the block manager did not do what it was asked. The text names the thing and the way out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// It refused.
    Refused {
        /// What to do about it.
        kind: Kind,
        /// Cause and remedy.
        message: String,
    },
    /// No manager answered in time. What was asked may have been done: asking again is safe.
    Unavailable {
        /// What was asked.
        what: &'static str,
        /// The last failure met.
        cause: String,
        /// How long it was tried.
        waited: Duration,
    },
}

impl Error {
    /// What the receiver may do about it.
    pub fn kind(&self) -> Kind {
        match self {
            Error::Refused { kind, .. } => *kind,
            Error::Unavailable { .. } => Kind::Retry,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused { message, .. } => f.write_str(message),
            Error::Unavailable { what, cause, waited } => write!(
                f,
                "{what}: no block manager answered within {waited:.1?} ({cause}); check the \
                 cluster with 'craton status', then try again"
            ),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for base::Fault {
    fn from(error: Error) -> base::Fault {
        base::Fault::new(error.kind(), error.to_string())
    }
}

/// No manager holds the lock.
const NO_LEADER: &str = "no block manager leads: is one running?";

/// What holds the lock says who leads: a name, and where it is reached.
pub fn holder_text(name: &str, addr: SocketAddr) -> String {
    format!("{name} {addr}")
}

/// The address in a holder's text.
pub fn holder_addr(text: &str) -> Option<SocketAddr> {
    text.rsplit_once(' ').and_then(|(_, addr)| addr.parse().ok())
}

struct Inner {
    client: Client,
    leader: Cell<Option<SocketAddr>>,
    budget: Duration,
}

/// The block managers of a cluster, as one. Cheap to clone; clones share what they know.
#[derive(Clone)]
pub struct Managers(Rc<Inner>);

impl Managers {
    /// Those of the client's cluster.
    pub fn new(client: &Client) -> Managers {
        Managers::with_budget(client, BUDGET)
    }

    /// The same, with a time after which a request is given up.
    pub fn with_budget(client: &Client, budget: Duration) -> Managers {
        let leader = Cell::new(None);
        Managers(Rc::new(Inner { client: client.clone(), leader, budget }))
    }

    /// The core's client.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Asks until there is an answer or the budget is spent.
    pub async fn ask(&self, request: BlockRequest) -> Result<BlockReply, Error> {
        let env = self.0.client.env();
        let start = env.now();
        let mut tries = 0u32;
        let mut cause = String::new();
        loop {
            match self.ask_once(&request, ATTEMPT).await {
                Ok(reply) => return Ok(reply),
                Err(AskError::Final(error)) => return Err(error),
                // What a manager has said of the cause says more.
                Err(AskError::Passing(last)) if last == NO_LEADER && !cause.is_empty() => {}
                Err(AskError::Passing(last)) => cause = last,
            }
            let waited = env.now() - start;
            if waited >= self.0.budget {
                return Err(Error::Unavailable { what: request.name(), cause, waited });
            }
            tries += 1;
            env.sleep(env.jitter(PAUSE * tries.min(8))).await;
        }
    }

    /// Asks once.
    pub async fn ask_once(
        &self,
        request: &BlockRequest,
        attempt: Duration,
    ) -> Result<BlockReply, AskError> {
        let env = self.0.client.env();
        let deadline = env.now() + attempt;
        let leader = match self.0.leader.get() {
            Some(leader) => leader,
            None => self.find(deadline).await?,
        };
        let asked = Request::Block(request.clone());
        let left = deadline - env.now();
        let error = match ask_peer(&self.0.client, leader, asked, left).await {
            Ok(Reply::Block(reply)) => return Ok(reply),
            Ok(_) => PeerError::Foreign(format!("{leader} is no block manager")),
            Err(error) => error,
        };
        let cause = error.to_string();
        match error {
            PeerError::Refused(error) => match error.kind {
                Kind::Reroute => {
                    self.0.leader.set(error.leader.filter(|&other| other != leader));
                    Err(AskError::Passing(cause))
                }
                Kind::Retry | Kind::Unknown | Kind::Refresh => Err(AskError::Passing(cause)),
                kind => Err(AskError::Final(Error::Refused { kind, message: error.message })),
            },
            PeerError::Busy => Err(AskError::Passing(cause)),
            PeerError::Unreachable(_) | PeerError::Silent(_) | PeerError::Foreign(_) => {
                self.0.leader.set(None);
                Err(AskError::Passing(cause))
            }
        }
    }

    /// Who holds the lock.
    async fn find(&self, deadline: Instant) -> Result<SocketAddr, AskError> {
        let env = self.0.client.env();
        let request = ClusterRequest::LockHolder { name: LOCK.to_owned() };
        let left = deadline - env.now();
        let passing = |cause: &str| Err(AskError::Passing(cause.to_owned()));
        match env.timeout(left, self.0.client.cluster_ask(request)).await {
            Ok(Ok(ClusterReply::Holder(Some((holder, _))))) => match holder_addr(&holder) {
                Some(addr) => {
                    self.0.leader.set(Some(addr));
                    Ok(addr)
                }
                None => passing("the holder of the block manager's lock names no address"),
            },
            Ok(Ok(_)) => passing(NO_LEADER),
            Ok(Err(error)) => Err(AskError::Passing(error.to_string())),
            Err(_) => passing("the masters do not answer"),
        }
    }

    /// The block service in figures, without patience: `None` when no manager leads now.
    pub async fn status(&self) -> Result<Option<BlockStatus>, Error> {
        for _ in 0..2 {
            match self.ask_once(&BlockRequest::Status, STATUS_ATTEMPT).await {
                Ok(BlockReply::Status(status)) => return Ok(Some(status)),
                Ok(other) => return Err(misfit(&other)),
                Err(AskError::Final(error)) => return Err(error),
                // What was known of the leader may have been old.
                Err(AskError::Passing(cause)) => tracing::debug!(cause, "no block status"),
            }
        }
        Ok(None)
    }

    /// Whether this cluster has had a block manager: when none leads now, its volumes stand still.
    /// Without patience: `None` when no master says so at once.
    pub async fn have_been(&self) -> Option<bool> {
        let client = &self.0.client;
        match client.env().timeout(STATUS_ATTEMPT, client.lookup(ROOT)).await {
            Ok(Ok(_)) => Some(true),
            Ok(Err(error)) if error.kind() == Kind::NotFound => Some(false),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// The volume of a name.
    pub async fn volume(&self, name: &str) -> Result<VolumeInfo, Error> {
        match self.ask(BlockRequest::Find { name: name.to_owned() }).await? {
            BlockReply::Volume(info) => Ok(info),
            other => Err(misfit(&other)),
        }
    }

    /// Where all segments of a volume are.
    pub async fn map(&self, volume: VolumeId) -> Result<Vec<SegmentPlace>, Error> {
        let mut found: Vec<SegmentPlace> = Vec::new();
        loop {
            let from = found.last().map_or(0, |last| last.index + 1);
            let request = BlockRequest::Map { volume, from, limit: SEGMENTS_PAGE };
            match self.ask(request).await? {
                BlockReply::Map { segments, more } => {
                    let more = more && !segments.is_empty();
                    found.extend(segments);
                    if !more {
                        return Ok(found);
                    }
                }
                other => return Err(misfit(&other)),
            }
        }
    }
}

impl fmt::Debug for Managers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Managers(leader {:?})", self.0.leader.get())
    }
}

/// Asks a process of the block service, once.
pub async fn ask_peer(
    client: &Client,
    to: SocketAddr,
    request: Request,
    timeout: Duration,
) -> Result<Reply, PeerError<ControlError>> {
    let reply = client.ask_peer(to, request.into(), timeout).await?;
    Reply::try_from(reply).map_err(|error| PeerError::Foreign(format!("{to}: {error}")))
}

/// Why one attempt brought no answer.
#[derive(Debug)]
pub enum AskError {
    /// Ask again.
    Passing(String),
    /// The answer stays the same.
    Final(Error),
}

/// An answer of the wrong kind.
pub fn misfit(reply: &BlockReply) -> Error {
    let message = format!("the block manager answered something else: {reply:?}");
    Error::Refused { kind: Kind::Invalid, message }
}

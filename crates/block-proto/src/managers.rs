//! [`Managers`]: requests to the block manager. It finds the leader through the core's lock
//! service, and asks again with a budget: requests can be repeated.

use std::fmt;
use std::net::SocketAddr;

use base::Kind;
use block_volume::ids::VolumeId;
use client::leader::{AskError, Leader, LeaderError, Led};
use client::{Client, PeerError};
use runtime::Duration;
use wire::control::{ControlError, ControlReply, ControlRequest};

use crate::lease::PAUSE;
use crate::limits::{ATTEMPT, BUDGET, SEGMENTS_PAGE, STATUS_ATTEMPT};
use crate::paths::{LOCK, ROOT};
use crate::{BlockReply, BlockRequest, BlockStatus, Reply, Request, SegmentPlace, VolumeInfo};

/// Error of a request to the block manager.
pub type Error = LeaderError;

/// Block managers, of which one leads.
const MANAGERS: Led = Led { lock: LOCK, title: "block manager", attempt: ATTEMPT, pause: PAUSE };

/// The block managers of a cluster, as one. Cheap to clone; clones share what they know.
#[derive(Clone)]
pub struct Managers {
    leader: Leader,
    budget: Duration,
}

/// A manager's message in a reply.
fn read(reply: ControlReply) -> Result<BlockReply, String> {
    match Reply::try_from(reply) {
        Ok(Reply::Block(reply)) => Ok(reply),
        Ok(_) => Err(" is no block manager".to_owned()),
        Err(error) => Err(format!(": {error}")),
    }
}

impl Managers {
    /// Managers of the client's cluster.
    pub fn new(client: &Client) -> Managers {
        Managers::with_budget(client, BUDGET)
    }

    /// The same, with a time after which a request is given up.
    pub fn with_budget(client: &Client, budget: Duration) -> Managers {
        Managers { leader: Leader::new(client, MANAGERS), budget }
    }

    /// The core's client.
    pub fn client(&self) -> &Client {
        self.leader.client()
    }

    /// Asks until there is an answer or the budget is spent. A change happens once, however often its
    /// message arrives, and never behind a later one.
    pub async fn ask(&self, request: BlockRequest) -> Result<BlockReply, Error> {
        self.ask_as(self.client().env().random_u64().max(1), request).await
    }

    /// The same, of a caller that may ask again, for the same change under the same number; not 0.
    pub async fn ask_as(&self, once: u64, request: BlockRequest) -> Result<BlockReply, Error> {
        let what = request.name();
        let asked = match request.happens_once() {
            Some(_) => Request::Once(once, request),
            None => Request::Block(request),
        };
        let asked = ControlRequest::from(asked);
        self.leader.ask(what, &asked, read, self.budget).await
    }

    /// Asks once.
    pub async fn ask_once(
        &self,
        request: &BlockRequest,
        attempt: Duration,
    ) -> Result<BlockReply, AskError> {
        let asked = ControlRequest::from(Request::Block(request.clone()));
        self.leader.ask_once(&asked, read, attempt).await
    }

    /// The status of the block service, with a short timeout: `None` when no manager leads now.
    pub async fn status(&self) -> Result<Option<BlockStatus>, Error> {
        for _ in 0..2 {
            match self.ask_once(&BlockRequest::Status, STATUS_ATTEMPT).await {
                Ok(BlockReply::Status(status)) => return Ok(Some(status)),
                Ok(other) => return Err(unexpected_reply(&other)),
                Err(AskError::Permanent(error)) => return Err(error),
                // The known leader may have been old.
                Err(AskError::Transient(cause)) => tracing::debug!(cause, "no block status"),
            }
        }
        Ok(None)
    }

    /// Whether this cluster has had a block manager: when none leads now, its volumes stand still.
    /// Asks once: `None` when no master answers at once.
    pub async fn have_been(&self) -> Option<bool> {
        let client = self.client();
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
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Owners of all segments of a volume.
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
                other => return Err(unexpected_reply(&other)),
            }
        }
    }
}

impl fmt::Debug for Managers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Managers({:?})", self.leader)
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

/// An answer of the wrong kind.
pub fn unexpected_reply(reply: &BlockReply) -> Error {
    let message = format!("the block manager answered something else: {reply:?}");
    Error::Refused { kind: Kind::Invalid, message }
}

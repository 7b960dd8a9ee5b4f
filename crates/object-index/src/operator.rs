//! What operators, and gateways for them, ask the object manager.

use object_proto::{
    CatalogReply, CatalogRequest, Error, ObjectServerId, Peer, RangeBound, RangeId, RangeReply,
    RangeRequest, Reply, Request, ServiceStatus, StoredBytes,
};

use crate::answer_pages::read_status;
use crate::limits::{ATTEMPT, STATUS_ATTEMPT};
use crate::service::{Service, unexpected};

impl Service {
    /// Reports to the manager that a gateway is there.
    pub async fn announce(&self, peer: Peer) -> Result<(), Error> {
        let here = Request::Catalog(CatalogRequest::Here(peer));
        self.owners().call(here, ATTEMPT).await.map(drop)
    }

    /// What the object service is made of, as its leading manager knows it. Each question is asked twice at
    /// most: there may be none.
    pub async fn status(&self) -> Result<ServiceStatus, Error> {
        read_status(async |request| self.ask_twice(request).await).await
    }

    /// Gives a range to the server that is named. It is done when the manager has it on record, which may be
    /// before that server serves it. What had no answer may have been done: again, it changes nothing.
    pub async fn move_range(&self, range: RangeId, server: ObjectServerId) -> Result<(), Error> {
        match self.ask_twice(CatalogRequest::MoveRange { range, server }).await? {
            CatalogReply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Bytes of the files of bodies of a range.
    pub async fn stored(&self, range: RangeId) -> Result<StoredBytes, Error> {
        match self.ask(Request::Range(range, RangeRequest::Stored)).await? {
            Reply::Range(RangeReply::Stored(bytes)) => Ok(bytes),
            _ => Err(unexpected()),
        }
    }

    /// Has a range's owner begin to split it, at a key or in its middle. It is done when other ranges are in its
    /// place.
    pub async fn split_range(&self, range: RangeId, at: Option<RangeBound>) -> Result<(), Error> {
        let ask = Request::Catalog(CatalogRequest::SplitRange { range, at });
        match self.owners().call(ask, STATUS_ATTEMPT).await? {
            Reply::Catalog(CatalogReply::Done) => Ok(()),
            _ => Err(unexpected()),
        }
    }

    async fn ask_twice(&self, request: CatalogRequest) -> Result<CatalogReply, Error> {
        let mut outcome = Err(Error::Reroute);
        for _ in 0..2 {
            let ask = Request::Catalog(request.clone());
            outcome = match self.owners().call(ask, STATUS_ATTEMPT).await {
                Ok(Reply::Catalog(reply)) => return Ok(reply),
                Ok(_) => Err(unexpected()),
                Err(error @ Error::Invalid { .. }) => return Err(error),
                Err(error) => Err(error),
            };
        }
        outcome
    }
}

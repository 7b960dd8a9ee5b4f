//! [`Orders`]: what the manager has owners of ranges do (`object-protocols.md` 5.5, 7.3, 7.4).
//!
//! What an order says is on record before it is given. It counts when the owner that the range then has
//! carried it out: with that one's opening all owners before it are shut out, and one that comes later asks
//! by itself.

use std::rc::Rc;

use object_proto::{
    BucketConfig, BucketId, BucketUsage, Error, RangeId, RangeMap, RangeReply, RangeRequest,
    SessionId,
};
use runtime::Env;

use crate::ground::Ranges;
use crate::limits::{ORDER_TIME, PAUSE};

/// Orders to all ranges.
pub(crate) struct Orders {
    env: Env,
    pub(crate) map: RangeMap,
    ranges: Rc<dyn Ranges>,
}

impl Orders {
    /// For the ranges of a map.
    pub(crate) fn new(env: &Env, map: RangeMap, ranges: Rc<dyn Ranges>) -> Orders {
        Orders { env: env.clone(), map, ranges }
    }

    /// The owner of a bucket's keys acts by its configuration from now on; returns whether it holds
    /// nothing.
    pub(crate) async fn configure(
        &self,
        bucket: BucketId,
        config: BucketConfig,
    ) -> Result<bool, Error> {
        let build = |epoch| {
            let config = config.clone();
            RangeRequest::Configure { epoch, bucket, config }
        };
        match self.give(self.map.of(bucket), build).await? {
            RangeReply::Configured { is_empty } => Ok(is_empty),
            _ => Err(unexpected()),
        }
    }

    /// No owner takes changes of a session from now on; it is on record that it is closed.
    pub(crate) async fn close_session(&self, session: SessionId) -> Result<(), Error> {
        self.give_all(|epoch| RangeRequest::CloseSession { epoch, session }).await
    }

    /// Nothing is left of a session, of which no owner takes changes.
    pub(crate) async fn sweep(&self, session: SessionId) -> Result<(), Error> {
        self.give_all(|epoch| RangeRequest::Sweep { epoch, session }).await
    }

    /// Asks a range's owner once what buckets hold.
    pub(crate) async fn usage(
        &self,
        range: RangeId,
        buckets: &[BucketId],
    ) -> Result<Vec<BucketUsage>, Error> {
        match self.ranges.order(range, RangeRequest::Usage(buckets.to_vec())).await? {
            RangeReply::Usage(usages) if usages.len() == buckets.len() => Ok(usages),
            _ => Err(unexpected()),
        }
    }

    async fn give_all(&self, build: impl Fn(u64) -> RangeRequest) -> Result<(), Error> {
        for place in self.map.places() {
            match self.give(place.range, &build).await? {
                RangeReply::Done => {}
                _ => return Err(unexpected()),
            }
        }
        Ok(())
    }

    /// Has a range's owner do something.
    async fn give(
        &self,
        range: RangeId,
        build: impl Fn(u64) -> RangeRequest,
    ) -> Result<RangeReply, Error> {
        let (env, mut pause) = (&self.env, PAUSE.0);
        let deadline = env.now() + ORDER_TIME;
        loop {
            let cause = match self.ranges.epoch(range) {
                None => format!("{range} has no owner"),
                Some(epoch) => match self.ranges.order(range, build(epoch)).await {
                    Ok(reply) => return Ok(reply),
                    Err(error) => format!("the owner of {range}: {error}"),
                },
            };
            if env.now() + pause >= deadline {
                return Err(Error::Busy { cause });
            }
            env.sleep(env.jitter(pause)).await;
            pause = (2 * pause).min(PAUSE.1);
        }
    }
}

fn unexpected() -> Error {
    Error::Invalid { message: "the owner of a range answered something else".to_owned() }
}

//! [`Orders`]: what the manager has owners of ranges do (`object-protocols.md` 5.5, 7.3, 7.4).
//!
//! What an order says is on record before it is given. It counts when the owner that the range then has
//! carried it out: with that one's opening all owners before it are shut out, and one that comes later asks
//! by itself.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use futures_util::future::try_join_all;
use object_proto::{
    BucketConfig, BucketId, BucketUsage, Error, RangeBound, RangeId, RangeMap, RangeReply,
    RangeRequest, SessionId,
};
use runtime::Env;

use crate::ground::{Lease, Ranges};
use crate::limits::{ORDER_TIME, PAUSE};

/// Orders to all ranges.
pub(crate) struct Orders {
    env: Env,
    map: RefCell<Rc<RangeMap>>,
    pub(crate) ranges: Rc<dyn Ranges>,
    lease: Rc<dyn Lease>,
}

impl Orders {
    /// For the ranges of a map, given while the manager's lease is valid.
    pub(crate) fn new(
        env: &Env,
        map: RangeMap,
        ranges: Rc<dyn Ranges>,
        lease: Rc<dyn Lease>,
    ) -> Orders {
        Orders { env: env.clone(), map: RefCell::new(Rc::new(map)), ranges, lease }
    }

    /// The ranges, at present.
    pub(crate) fn map(&self) -> Rc<RangeMap> {
        self.map.borrow().clone()
    }

    /// The ranges are these from now on.
    pub(crate) fn set_map(&self, map: RangeMap) {
        self.map.replace(Rc::new(map));
    }

    /// Has a range's owner begin to split it.
    pub(crate) async fn split(&self, range: RangeId, at: Option<RangeBound>) -> Result<(), Error> {
        if self.map().bounds(range).is_none() {
            return Err(no_range(range));
        }
        let Some(epoch) = self.ranges.epoch(range) else {
            return Err(Error::Busy { cause: format!("{range} has no owner") });
        };
        match self.ranges.order(range, RangeRequest::Split { epoch, at }).await? {
            RangeReply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// The owners of a bucket's keys act by its configuration from now on; returns whether they hold
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
        let concerned = |map: &RangeMap| map.of_bucket(bucket).collect();
        let mut all_empty = true;
        for reply in self.give_each(concerned, build).await? {
            match reply {
                RangeReply::Configured { is_empty } => all_empty &= is_empty,
                _ => return Err(unexpected()),
            }
        }
        Ok(all_empty)
    }

    /// No owner takes changes of a session from now on; it is on record that it is closed.
    pub(crate) async fn close_session(&self, session: SessionId) -> Result<(), Error> {
        self.give_all(|epoch| RangeRequest::CloseSession { epoch, session }).await
    }

    /// Nothing is left of a session, of which no owner takes changes.
    pub(crate) async fn sweep(&self, session: SessionId) -> Result<(), Error> {
        self.give_all(|epoch| RangeRequest::Sweep { epoch, session }).await
    }

    /// Asks a range's owner once what buckets hold there.
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
        let all = |map: &RangeMap| map.places().iter().map(|place| place.range).collect();
        let replies = self.give_each(all, build).await?;
        match replies.iter().all(|reply| *reply == RangeReply::Done) {
            true => Ok(()),
            false => Err(unexpected()),
        }
    }

    /// Has the owners of ranges do something. Those that come in the place of one are asked too.
    async fn give_each(
        &self,
        concerned: impl Fn(&RangeMap) -> Vec<RangeId>,
        build: impl Fn(u64) -> RangeRequest,
    ) -> Result<Vec<RangeReply>, Error> {
        let (mut done, mut replies) = (BTreeSet::new(), Vec::new());
        loop {
            let mut due = concerned(&self.map());
            due.retain(|range| !done.contains(range));
            if due.is_empty() {
                return Ok(replies);
            }
            let given = try_join_all(due.iter().map(|range| self.give(*range, &build))).await?;
            replies.extend(given.into_iter().flatten());
            done.extend(due);
        }
    }

    /// Has a range's owner do something. None when there is no such range any more.
    async fn give(
        &self,
        range: RangeId,
        build: impl Fn(u64) -> RangeRequest,
    ) -> Result<Option<RangeReply>, Error> {
        let (env, mut pause) = (&self.env, PAUSE.0);
        let deadline = env.now() + ORDER_TIME;
        loop {
            let cause = match self.ranges.epoch(range) {
                None if self.map().places().iter().all(|place| place.range != range) => {
                    return Ok(None);
                }
                None => format!("{range} has no owner"),
                // What a successor has put on record since may be another thing.
                Some(_) if !self.lease.is_valid() => "this manager may lead no more".to_owned(),
                Some(epoch) => match self.ranges.order(range, build(epoch)).await {
                    Ok(reply) => return Ok(Some(reply)),
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

/// The error for an order about a range that is not there.
pub(crate) fn no_range(range: RangeId) -> Error {
    let message = format!("there is no {range}: 'craton range ls' shows which there are");
    Error::Invalid { message }
}

//! [`Buckets`]: what buckets are, as the owner of their keys knows it (`object-protocols.md` 7.3 and 7.4).
//!
//! An owner asks the manager for a bucket that it does not know, and hears of each change from it. Either
//! may come late: of two the later change counts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use object_proto::{
    BucketConfig, BucketId, BucketRules, BucketState, CatalogReply, CatalogRequest, Error, Stamp,
    Versioning,
};
use runtime::{Env, Instant};

use crate::ground::Managers;
use crate::limits::CLOSING_ASKED;

struct Known {
    config: BucketConfig,
    /// When the manager said so.
    heard: Instant,
}

/// Buckets whose keys a range has.
pub(crate) struct Buckets {
    env: Env,
    managers: Rc<dyn Managers>,
    known: RefCell<BTreeMap<BucketId, Known>>,
}

impl Buckets {
    /// None is known.
    pub(crate) fn new(env: &Env, managers: Rc<dyn Managers>) -> Buckets {
        Buckets { env: env.clone(), managers, known: RefCell::default() }
    }

    /// A bucket is so, unless a later change is known.
    pub(crate) fn learn(&self, id: BucketId, config: BucketConfig) {
        let heard = self.env.now();
        let known = &mut *self.known.borrow_mut();
        let entry = known.entry(id).or_insert_with(|| Known { config: config.clone(), heard });
        entry.heard = heard;
        // IDs are not used again: what is gone stays so.
        let is_gone = entry.config.state == BucketState::Gone;
        if !is_gone && (config.changed > entry.config.changed || config.state == BucketState::Gone)
        {
            entry.config = config;
        }
    }

    /// Asks for a bucket that is not known; behind it the other questions have an answer.
    pub(crate) async fn load(&self, id: BucketId) -> Result<(), Error> {
        let is_known = self.known.borrow().contains_key(&id);
        if is_known { Ok(()) } else { self.ask(id).await }
    }

    /// The same for a change, which a bucket that is being removed does not take: it may be so no more.
    pub(crate) async fn load_for_change(&self, id: BucketId) -> Result<(), Error> {
        let settled = |known: &Known| match known.config.state {
            BucketState::Closing(_) => self.env.now() - known.heard < CLOSING_ASKED,
            BucketState::Open(_) | BucketState::Gone => true,
        };
        let is_known = self.known.borrow().get(&id).is_some_and(settled);
        if is_known { Ok(()) } else { self.ask(id).await }
    }

    /// Asks for a bucket that may be known.
    pub(crate) async fn ask_again(&self, id: BucketId) -> Result<(), Error> {
        self.ask(id).await
    }

    /// Known buckets with rules of lifecycle, in order, from one on.
    pub(crate) fn with_rules_from(&self, first: BucketId) -> Vec<BucketId> {
        let has_rules = |known: &Known| match &known.config.state {
            BucketState::Open(rules) | BucketState::Closing(rules) => rules.lifecycle.is_some(),
            BucketState::Gone => false,
        };
        let known = self.known.borrow();
        let from = known.range(first..).filter(|(_, known)| has_rules(known));
        from.map(|(bucket, _)| *bucket).collect()
    }

    /// When a bucket was changed last.
    pub(crate) fn changed(&self, id: BucketId) -> Stamp {
        self.known.borrow().get(&id).map_or(Stamp::default(), |known| known.config.changed)
    }

    async fn ask(&self, id: BucketId) -> Result<(), Error> {
        let cause = match self.managers.ask(CatalogRequest::Config(id)).await {
            Ok(CatalogReply::Config(config)) => {
                self.learn(id, config);
                return Ok(());
            }
            Ok(_) => "it answered something else".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(Error::Busy { cause: format!("the object manager was asked for a bucket: {cause}") })
    }

    fn state(&self, id: BucketId) -> BucketState {
        self.known.borrow().get(&id).map_or(BucketState::Gone, |known| known.config.state.clone())
    }

    /// What is kept of a bucket's objects.
    pub(crate) fn rules(&self, id: BucketId) -> BucketRules {
        match self.state(id) {
            BucketState::Open(rules) | BucketState::Closing(rules) => rules,
            BucketState::Gone => BucketRules::default(),
        }
    }

    /// What becomes of objects that are replaced in a bucket.
    pub(crate) fn versioning(&self, id: BucketId) -> Versioning {
        self.rules(id).versioning
    }

    /// A bucket is there, for reads.
    pub(crate) fn check(&self, id: BucketId) -> Result<(), Error> {
        match self.state(id) {
            BucketState::Gone => Err(Error::NoSuchBucket),
            BucketState::Open(_) | BucketState::Closing(_) => Ok(()),
        }
    }

    /// A bucket takes changes.
    pub(crate) fn check_change(&self, id: BucketId) -> Result<(), Error> {
        match self.state(id) {
            BucketState::Open(_) => Ok(()),
            BucketState::Closing(_) => {
                Err(Error::Busy { cause: "the bucket is being removed".to_owned() })
            }
            BucketState::Gone => Err(Error::NoSuchBucket),
        }
    }
}

//! [`Buckets`]: which buckets take changes, as the catalog lets the range know.

use std::cell::RefCell;
use std::collections::BTreeMap;

use object_proto::{BucketId, Error};

/// Buckets that are there; true for one that is being removed.
#[derive(Default)]
pub(crate) struct Buckets(RefCell<BTreeMap<BucketId, bool>>);

impl Buckets {
    /// A bucket is there.
    pub(crate) fn open(&self, id: BucketId) {
        self.0.borrow_mut().insert(id, false);
    }

    /// A bucket takes no changes, since it is being removed; false when it is so already, or is gone.
    pub(crate) fn close(&self, id: BucketId) -> bool {
        let known = &mut *self.0.borrow_mut();
        known.get_mut(&id).is_some_and(|closing| !std::mem::replace(closing, true))
    }

    /// A bucket is gone.
    pub(crate) fn remove(&self, id: BucketId) {
        self.0.borrow_mut().remove(&id);
    }

    /// A bucket is there, for reads.
    pub(crate) fn check(&self, id: BucketId) -> Result<(), Error> {
        match self.0.borrow().contains_key(&id) {
            true => Ok(()),
            false => Err(Error::NoSuchBucket),
        }
    }

    /// A bucket takes changes.
    pub(crate) fn check_change(&self, id: BucketId) -> Result<(), Error> {
        match self.0.borrow().get(&id) {
            Some(false) => Ok(()),
            Some(true) => Err(Error::Busy { cause: "the bucket is being removed".to_owned() }),
            None => Err(Error::NoSuchBucket),
        }
    }
}

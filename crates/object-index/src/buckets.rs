//! [`Buckets`]: which buckets take changes, as the catalog lets the range know.

use std::cell::RefCell;
use std::collections::BTreeMap;

use object_proto::{BucketId, Error, Versioning};

struct Known {
    /// It is being removed.
    closing: bool,
    versioning: Versioning,
}

/// Buckets that are there.
#[derive(Default)]
pub(crate) struct Buckets(RefCell<BTreeMap<BucketId, Known>>);

impl Buckets {
    /// A bucket is there, or its configuration is another.
    pub(crate) fn open(&self, id: BucketId, versioning: Versioning) {
        self.0.borrow_mut().insert(id, Known { closing: false, versioning });
    }

    /// What becomes of objects that are replaced in a bucket.
    pub(crate) fn versioning(&self, id: BucketId) -> Versioning {
        self.0.borrow().get(&id).map(|known| known.versioning).unwrap_or_default()
    }

    /// A bucket takes no changes, since it is being removed; false when it is so already, or is gone.
    pub(crate) fn close(&self, id: BucketId) -> bool {
        let known = &mut *self.0.borrow_mut();
        known.get_mut(&id).is_some_and(|known| !std::mem::replace(&mut known.closing, true))
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
        match self.0.borrow().get(&id).map(|known| known.closing) {
            Some(false) => Ok(()),
            Some(true) => Err(Error::Busy { cause: "the bucket is being removed".to_owned() }),
            None => Err(Error::NoSuchBucket),
        }
    }
}

//! [`Backend`]: the object service as a program on any thread sees it: what the gateway's HTTP edge
//! stands on, and models of the service.

use std::pin::Pin;

use crate::condition::Conditions;
use crate::error::Error;
use crate::ids::{Stamp, UserId};
use crate::message::{ListPage, ListRequest};
use crate::names::BucketName;
use crate::object::{AccessKey, Bucket, ObjectFacts, ObjectInfo, Target};

/// An answer of the service, awaited on any thread.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Buckets and objects. Changes of one key are linearizable, and listings with them; an answer means
/// that the change is durable.
pub trait Backend: Send + Sync + 'static {
    /// An access key; `None` when there is none of that name.
    fn access_key<'a>(&'a self, id: &'a str) -> Answer<'a, Option<AccessKey>>;

    /// Makes a bucket. [`Error::BucketExists`] says whose there is.
    fn create_bucket(&self, name: BucketName, owner: UserId) -> Answer<'_, Bucket>;

    /// Removes a bucket; [`Error::BucketNotEmpty`] while it holds objects.
    fn remove_bucket(&self, name: BucketName) -> Answer<'_, ()>;

    /// A bucket.
    fn bucket(&self, name: BucketName) -> Answer<'_, Bucket>;

    /// All buckets of a user, or of all, in order of names.
    fn buckets(&self, of: Option<UserId>) -> Answer<'_, Vec<Bucket>>;

    /// Begins an object of `len` bytes, if the length is known. Nothing is there before
    /// [`Upload::commit`] has answered; an upload that is dropped leaves nothing.
    fn put(&self, target: Target, len: Option<u64>) -> Answer<'_, Box<dyn Upload>>;

    /// An object without its content.
    fn head(&self, target: Target) -> Answer<'_, ObjectInfo>;

    /// An object.
    fn get(&self, target: Target) -> Answer<'_, Found>;

    /// Removes an object; none is no error. The time of the commit, zero if there was none.
    fn delete(&self, target: Target, conditions: Conditions) -> Answer<'_, Stamp>;

    /// A page of a bucket's keys.
    fn list(&self, ask: ListRequest) -> Answer<'_, ListPage>;
}

/// An object that is being sent.
pub trait Upload: Send {
    /// Takes the next bytes, when there is room for them.
    fn write(&mut self, bytes: Vec<u8>) -> Answer<'_, ()>;

    /// Puts the object in its place, if the conditions hold, and answers when it was committed. All
    /// checks of its content are the caller's, before this.
    fn commit(
        self: Box<Self>,
        facts: ObjectFacts,
        conditions: Conditions,
    ) -> Answer<'static, Stamp>;
}

/// An object, and its content as it was when it was found.
pub struct Found {
    /// Facts.
    pub info: ObjectInfo,
    /// Content.
    pub content: Box<dyn Content>,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Found({:?})", self.info)
    }
}

/// Content of an object.
pub trait Content: Send + Sync {
    /// Bytes of the content: `len` of them, fewer only at its end.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchKey`] when the object was deleted or replaced since, and its bytes are gone.
    fn read(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>>;
}

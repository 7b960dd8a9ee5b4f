//! [`Backend`]: the object service as a program on any thread sees it: what the gateway's HTTP edge
//! stands on, and models of the service.

use std::pin::Pin;
use std::sync::Arc;

use crate::access::{AccessKey, User};
use crate::condition::Conditions;
use crate::error::Error;
use crate::ids::UserId;
use crate::listed_versions::{VersionsPage, VersionsRequest};
use crate::locks::LockChange;
use crate::message::{ListPage, ListRequest};
use crate::names::BucketName;
use crate::object::{Bucket, BucketView, ObjectFacts, ObjectInfo, Target};
use crate::parts::{PartNumber, UploadId};
use crate::settings::{BucketSettings, Grant, Setting};
use crate::storage::BodyPlan;
use crate::tags::ObjectTags;
use crate::upload::{
    Completion, NewUpload, PartsPage, PartsRequest, UploadInfo, UploadsPage, UploadsRequest,
};
use crate::versions::{Committed, VersionId, Versioning};

/// An answer of the service, awaited on any thread.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Buckets and objects. Changes of one key are linearizable, and listings with them; an answer means
/// that the change is durable.
pub trait Backend: Send + Sync + 'static {
    /// An access key; `None` when there is none of that name. While it is the same, so is what is pointed
    /// at.
    fn access_key<'a>(&'a self, id: &'a str) -> Answer<'a, Option<Arc<AccessKey>>>;

    /// Says that a key of the key file wraps something from now on, durably: a gateway without that key does
    /// not start any more.
    fn use_key(&self, key: String) -> Answer<'_, ()>;

    /// All users, without their policies, in order of names.
    fn users(&self) -> Answer<'_, Vec<User>>;

    /// Makes a bucket. [`Error::BucketExists`] says whose there is.
    fn create_bucket(
        &self,
        name: BucketName,
        owner: UserId,
        settings: BucketSettings,
    ) -> Answer<'_, Bucket>;

    /// Changes a setting of a bucket ([`Error::Invalid`] for object lock without versions): no request that begins behind the answer goes by the former one.
    fn set_bucket(&self, name: BucketName, setting: Setting) -> Answer<'_, ()>;

    /// Removes a bucket; [`Error::BucketNotEmpty`] while it holds objects.
    fn remove_bucket(&self, name: BucketName) -> Answer<'_, ()>;

    /// A bucket. While it and its settings are the same, so is what is pointed at.
    fn bucket(&self, name: BucketName) -> Answer<'_, Arc<BucketView>>;

    /// All buckets of a user, or of all, in order of names.
    fn buckets(&self, of: Option<UserId>) -> Answer<'_, Vec<Bucket>>;

    /// Begins an object. Nothing is there before [`Upload::commit`] has answered; an upload that is dropped
    /// leaves nothing.
    fn put(&self, target: Target, plan: BodyPlan) -> Answer<'_, Box<dyn Upload>>;

    /// An object, or a version of it, without its content.
    fn head(&self, target: Target, version: Option<VersionId>) -> Answer<'_, ObjectInfo>;

    /// An object, or a version of it.
    fn get(&self, target: Target, version: Option<VersionId>) -> Answer<'_, Found>;

    /// Removes an object, or hides it behind a delete marker of `by` where versions are kept; none is no
    /// error.
    fn delete(&self, target: Target, by: UserId, conditions: Conditions) -> Answer<'_, Committed>;

    /// Removes a version; none is no error. [`Error::Locked`] while it is held or retained, but for one that
    /// is retained under governance where the caller says `bypass`, and may.
    fn delete_version(
        &self,
        target: Target,
        version: VersionId,
        conditions: Conditions,
        bypass: bool,
    ) -> Answer<'_, Committed>;

    /// Gives an object, or a version of it, other tags; which version it is.
    fn set_tags(
        &self,
        target: Target,
        version: Option<VersionId>,
        tags: ObjectTags,
    ) -> Answer<'_, Committed>;

    /// Gives an object, or a version of it, other permissions; which version it is.
    fn set_acl(
        &self,
        target: Target,
        version: Option<VersionId>,
        acl: Vec<Grant>,
    ) -> Answer<'_, Committed>;

    /// Changes what keeps an object, or a version of it, from being removed; which version it is.
    /// [`Error::Locked`] when that weakens a retention, but for one under governance with `bypass`;
    /// [`Error::Invalid`] in a bucket without object lock.
    fn set_lock(
        &self,
        target: Target,
        version: Option<VersionId>,
        change: LockChange,
        bypass: bool,
    ) -> Answer<'_, Committed>;

    /// A page of a bucket's versions.
    fn versions(&self, ask: VersionsRequest) -> Answer<'_, VersionsPage>;

    /// Says what becomes of a bucket's objects that are replaced, from now on. A bucket with object lock keeps
    /// its versions: else [`Error::Invalid`].
    fn set_versioning(&self, name: BucketName, versioning: Versioning) -> Answer<'_, ()>;

    /// Begins a multipart upload.
    fn begin_upload(&self, target: Target, upload: NewUpload) -> Answer<'_, UploadId>;

    /// An upload that is under way, or was completed in the last days: its end says how.
    /// [`Error::NoSuchUpload`] when there is none.
    fn upload(&self, target: Target, upload: UploadId) -> Answer<'_, UploadInfo>;

    /// Begins a part, in place of the one of that number. Nothing is there before [`Upload::commit`] has answered; conditions do not concern parts, and of the facts
    /// only tag and checksums are kept. [`Error::NoSuchUpload`] comes with the commit.
    fn put_part(
        &self,
        target: Target,
        upload: UploadId,
        number: PartNumber,
        plan: BodyPlan,
    ) -> Answer<'_, Box<dyn Upload>>;

    /// Parts of an upload that is under way.
    fn parts(&self, ask: PartsRequest) -> Answer<'_, PartsPage>;

    /// Parts of an object that its upload was completed to, in order, each with its own facts; the upload may be
    /// forgotten. None when the object is gone.
    fn object_parts(&self, ask: PartsRequest) -> Answer<'_, Vec<(PartNumber, ObjectInfo)>>;

    /// Makes an object of the parts named, if the conditions hold, and ends the upload. Other parts are
    /// gone. [`Error::NoSuchPart`] when a part has not the body that is named. All checks of order, sizes
    /// and tags are the caller's, before this.
    fn complete_upload(
        &self,
        target: Target,
        completion: Completion,
        conditions: Conditions,
    ) -> Answer<'_, Committed>;

    /// Ends an upload without an object.
    fn abort_upload(&self, target: Target, upload: UploadId) -> Answer<'_, ()>;

    /// A page of a bucket's uploads that are under way.
    fn uploads(&self, ask: UploadsRequest) -> Answer<'_, UploadsPage>;

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
    ) -> Answer<'static, Committed>;
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

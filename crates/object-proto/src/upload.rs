//! Multipart uploads (`object-protocols.md` 8): what they are begun with, what is sent for them, and how
//! they end.

use crate::envelope::Envelope;
use crate::ids::{BucketId, DataId, Stamp, UserId};
use crate::locks::ObjectLock;
use crate::names::ObjectKey;
use crate::object::{Checksum, ChecksumKind, Etag, Metadata, Target};
use crate::parts::{PartNumber, UploadId};
use crate::settings::Grant;
use crate::tags::ObjectTags;

/// Checksums that an upload's parts and object have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChecksumPlan {
    /// Algorithm.
    pub kind: ChecksumKind,
    /// The object's checksum is that of its parts' checksums, not that of its content.
    pub composite: bool,
}

/// An upload that is to begin.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewUpload {
    /// Half of its ID.
    pub nonce: u64,
    /// Checksums, if its client has said which.
    pub checksum: Option<ChecksumPlan>,
    /// Headers of the object.
    pub metadata: Metadata,
    /// Tags of the object.
    pub tags: ObjectTags,
    /// The user that the object will belong to.
    pub owner: UserId,
    /// Permissions of the object.
    pub acl: Vec<Grant>,
    /// What keeps the object from being removed.
    pub lock: ObjectLock,
    /// How its parts are encrypted, and the object with them.
    pub encryption: Option<Envelope>,
}

/// How an upload ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UploadEnd {
    /// The commit that has put the object in its place.
    pub stamp: Stamp,
    /// The object's tag.
    pub etag: Etag,
    /// The object's checksums.
    pub checksums: Vec<Checksum>,
}

/// An upload: under way, or completed in the last days.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UploadInfo {
    /// Identity.
    pub id: UploadId,
    /// What it was begun with.
    pub upload: NewUpload,
    /// How it was completed, if it was.
    pub end: Option<UploadEnd>,
}

/// A part that was received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Its number.
    pub number: PartNumber,
    /// When it was committed.
    pub stamp: Stamp,
    /// Identity of its body: another one when the number was sent again.
    pub data_id: DataId,
    /// Bytes that are stored.
    pub size: u64,
    /// Tag.
    pub etag: Etag,
    /// Checksums.
    pub checksums: Vec<Checksum>,
}

/// Asks for parts of an upload that is under way, in order of their numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartsRequest {
    /// The key.
    pub target: Target,
    /// The upload.
    pub upload: UploadId,
    /// Parts above this number; 0 for all.
    pub after: u16,
    /// Parts at most.
    pub limit: u32,
}

/// Parts of an upload.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PartsPage {
    /// Parts in order.
    pub parts: Vec<Part>,
    /// There are more behind the last of these.
    pub more: bool,
}

/// What becomes of an upload's parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The upload.
    pub upload: UploadId,
    /// Numbers of the object's parts in order, each with the body that is meant.
    pub parts: Vec<(PartNumber, DataId)>,
    /// The object's tag.
    pub etag: Etag,
    /// The object's checksums.
    pub checksums: Vec<Checksum>,
}

/// Asks for a page of a bucket's uploads that are under way: by key, then by the time they began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UploadsRequest {
    /// The bucket.
    pub bucket: BucketId,
    /// Keys begin with this.
    pub prefix: String,
    /// Keys that are alike up to this behind the prefix are shown as one; empty for none.
    pub delimiter: String,
    /// Keys and common prefixes above this; empty for all.
    pub after: String,
    /// With `after`: and uploads of that key that began behind this one.
    pub after_upload: Option<UploadId>,
    /// Entries at most.
    pub limit: u32,
}

/// An entry of a listing of uploads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListedUpload {
    /// An upload.
    Upload {
        /// Its key.
        key: ObjectKey,
        /// Facts.
        info: Box<UploadInfo>,
    },
    /// Keys that are alike up to a delimiter.
    Prefix(String),
}

/// A page of a listing of uploads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UploadsPage {
    /// Entries in order.
    pub entries: Vec<ListedUpload>,
    /// There are more behind the last of these.
    pub more: bool,
}

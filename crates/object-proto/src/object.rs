//! Buckets and objects, as processes know them.

use std::collections::BTreeMap;
use std::fmt;

use crate::envelope::Envelope;
use crate::ids::{BucketId, DataId, Stamp, UserId};
use crate::limits::{METADATA_MAX, USER_METADATA_MAX};
use crate::locks::ObjectLock;
use crate::names::{BucketName, ObjectKey};
use crate::parts::PartMap;
use crate::settings::{BucketSettings, Grant};
use crate::tags::ObjectTags;
use crate::usage::Room;
use crate::versions::{VersionId, Versioning};

/// A bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// Identity.
    pub id: BucketId,
    /// Name.
    pub name: BucketName,
    /// The user that made it.
    pub owner: UserId,
    /// When it was made, microseconds since 1970.
    pub created_us: u64,
    /// What becomes of objects that are replaced.
    pub versioning: Versioning,
}

/// A bucket with its settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketView {
    /// The bucket.
    pub bucket: Bucket,
    /// Its settings.
    pub settings: BucketSettings,
    /// What its quotas still leave, as the manager knew it.
    pub room: Room,
}

/// An object's place.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Target {
    /// The bucket.
    pub bucket: BucketId,
    /// The key in it.
    pub key: ObjectKey,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.bucket, self.key)
    }
}

/// Tag of an object's content, without quotes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Etag(String);

impl Etag {
    /// From its text without quotes.
    pub fn new(text: impl Into<String>) -> Etag {
        Etag(text.into())
    }

    /// Its text without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Algorithm of a checksum.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ChecksumKind {
    /// CRC-32.
    Crc32,
    /// CRC-32C.
    Crc32c,
    /// CRC-64/NVME.
    Crc64Nvme,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
}

impl ChecksumKind {
    /// All of them.
    pub const ALL: [ChecksumKind; 5] = [
        ChecksumKind::Crc32,
        ChecksumKind::Crc32c,
        ChecksumKind::Crc64Nvme,
        ChecksumKind::Sha1,
        ChecksumKind::Sha256,
    ];

    /// Bytes of its value.
    pub const fn bytes(self) -> usize {
        match self {
            ChecksumKind::Crc32 | ChecksumKind::Crc32c => 4,
            ChecksumKind::Crc64Nvme => 8,
            ChecksumKind::Sha1 => 20,
            ChecksumKind::Sha256 => 32,
        }
    }
}

/// A checksum of an object's content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checksum {
    /// Algorithm.
    pub kind: ChecksumKind,
    /// Value, high bytes first as S3 shows it.
    pub value: Vec<u8>,
    /// Number of parts whose checksums it is the checksum of; 0 for one of the whole content.
    pub parts: u32,
}

/// Headers that an object is served with: lower-case names and values. Users' are those that begin
/// with `x-amz-meta-`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Metadata(BTreeMap<String, String>);

/// Cause of a refusal of metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlawedMetadata;

impl fmt::Display for FlawedMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "an object has {USER_METADATA_MAX} bytes of metadata of its user's at most, and \
             {METADATA_MAX} with its other headers"
        )
    }
}

impl Metadata {
    /// Beginning of the names of users' metadata.
    pub const USER_PREFIX: &'static str = "x-amz-meta-";

    /// Checks the size.
    ///
    /// # Errors
    ///
    /// [`FlawedMetadata`] when there is too much.
    pub fn new(headers: BTreeMap<String, String>) -> Result<Metadata, FlawedMetadata> {
        let (mut all, mut users) = (0, 0);
        for (name, value) in &headers {
            let size = name.len() + value.len();
            all += size;
            if let Some(name) = name.strip_prefix(Metadata::USER_PREFIX) {
                users += name.len() + value.len();
            }
        }
        match all > METADATA_MAX || users > USER_METADATA_MAX {
            true => Err(FlawedMetadata),
            false => Ok(Metadata(headers)),
        }
    }

    /// A header's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Names and values, in order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Name of a file in a range's directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileName(String);

impl FileName {
    /// From its text.
    pub fn new(text: impl Into<String>) -> FileName {
        FileName(text.into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where the bytes of an object are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ObjectData {
    /// Here: [`crate::limits::INLINE_MAX`] bytes at most.
    Inline(Vec<u8>),
    /// Here, as the one piece that the owner's log is to keep, head and content:
    /// [`crate::limits::SMALL_MAX`] bytes at most. In changes, and in answers of an owner that has it.
    Piece(Vec<u8>),
    /// In a log of the range.
    Logged {
        /// The log.
        file: FileName,
        /// Where the piece begins.
        offset: u64,
    },
    /// In a file of bodies, in consecutive pieces.
    File {
        /// The file.
        file: FileName,
        /// Where the first piece begins.
        offset: u64,
    },
    /// In the parts of an upload. Only its completion makes such an object.
    Parts(PartMap),
}

impl ObjectData {
    /// The file of bodies that they are in.
    pub fn file(&self) -> Option<&FileName> {
        match self {
            ObjectData::File { file, .. } => Some(file),
            _ => None,
        }
    }
}

/// What is known of an object's content, when all of it was received.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ObjectFacts {
    /// Tag.
    pub etag: Etag,
    /// Checksums that were sent or computed.
    pub checksums: Vec<Checksum>,
    /// Headers.
    pub metadata: Metadata,
    /// Tags.
    pub tags: ObjectTags,
    /// The user that it belongs to.
    pub owner: UserId,
    /// Permissions: [`crate::limits::GRANTS_MAX`] at most. None is full control for the owner alone.
    pub acl: Vec<Grant>,
    /// What keeps it from being removed: in a bucket with object lock.
    pub lock: ObjectLock,
    /// How it is encrypted. Without, what is stored is the content.
    pub encryption: Option<Envelope>,
}

/// An object that is to be there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewObject {
    /// Identity of the body.
    pub data_id: DataId,
    /// Bytes that are stored: more than the content has when it is encrypted
    /// ([`NewObject::content_size`]).
    pub size: u64,
    /// Facts.
    pub facts: ObjectFacts,
    /// Bytes, or their places.
    pub data: ObjectData,
}

/// An object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectInfo {
    /// When it was committed.
    pub stamp: Stamp,
    /// It has a version ID: it was put while the bucket's versioning was enabled.
    pub has_id: bool,
    /// The rest.
    pub object: NewObject,
}

impl ObjectInfo {
    /// Its name among the versions of its key.
    pub fn version(&self) -> VersionId {
        match self.has_id {
            true => VersionId::Of { stamp: self.stamp, nonce: self.object.data_id.get() as u64 },
            false => VersionId::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_bounded_as_in_s3() {
        let of = |name: &str, len: usize| {
            Metadata::new(BTreeMap::from([(name.to_owned(), "v".repeat(len))]))
        };
        assert!(of("x-amz-meta-a", USER_METADATA_MAX - 1).is_ok());
        assert_eq!(of("x-amz-meta-a", USER_METADATA_MAX), Err(FlawedMetadata));
        assert!(of("content-type", USER_METADATA_MAX).is_ok());
        assert_eq!(of("content-type", METADATA_MAX), Err(FlawedMetadata));
    }
}

//! Listings of versions (`object-protocols.md` 9.2).

use crate::ids::{BucketId, Stamp, UserId};
use crate::names::ObjectKey;
use crate::object::ObjectInfo;
use crate::versions::VersionId;

/// Asks for a page of a bucket's versions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionsRequest {
    /// The bucket.
    pub bucket: BucketId,
    /// Keys begin with this.
    pub prefix: String,
    /// Keys that are alike up to this behind the prefix are shown as one; empty for none.
    pub delimiter: String,
    /// Keys and common prefixes above this; empty for all.
    pub after: String,
    /// And the versions of that key that are older than this one.
    pub after_version: Option<VersionId>,
    /// Entries at most.
    pub limit: u32,
}

/// An entry of a listing of versions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListedVersion {
    /// A version; its data is left out.
    Version {
        /// Key.
        key: ObjectKey,
        /// Facts.
        info: Box<ObjectInfo>,
        /// It is the newest of its key.
        latest: bool,
    },
    /// A delete marker.
    Marker {
        /// Key.
        key: ObjectKey,
        /// Its ID.
        version: VersionId,
        /// When it was made.
        stamp: Stamp,
        /// Who made it.
        owner: UserId,
        /// It is the newest of its key.
        latest: bool,
    },
    /// Keys that are alike up to a delimiter.
    Prefix(String),
}

impl ListedVersion {
    /// The key or the common prefix.
    pub fn name(&self) -> &str {
        match self {
            ListedVersion::Version { key, .. } | ListedVersion::Marker { key, .. } => key.as_str(),
            ListedVersion::Prefix(prefix) => prefix,
        }
    }

    /// The version; none of a common prefix.
    pub fn version(&self) -> Option<VersionId> {
        match self {
            ListedVersion::Version { info, .. } => Some(info.version()),
            ListedVersion::Marker { version, .. } => Some(*version),
            ListedVersion::Prefix(_) => None,
        }
    }
}

/// A page of a listing of versions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VersionsPage {
    /// Entries in the order of their keys' UTF-8 bytes, the newest version of a key first.
    pub entries: Vec<ListedVersion>,
    /// There are more: the next page begins behind the last entry.
    pub more: bool,
}

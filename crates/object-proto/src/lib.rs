//! What the processes of the object service say to each other, and what they say it about: buckets,
//! keys, objects, conditions (O1).
//!
//! A gateway asks the owner of a bucket's keys with a [`RangeRequest`], and the object manager with a
//! [`CatalogRequest`]; a program above the gateway's HTTP sees a [`Backend`]. The rules are those of
//! `object-protocols.md`, whose sections the sources name.
//!
//! Invariant: keeps no state, does no I/O, knows no file of the core and no HTTP.

mod access;
mod backend;
mod condition;
mod encryption;
mod envelope;
mod error;
mod fields;
mod fleet;
pub mod fuzz;
mod ids;
mod lifecycle;
pub mod limits;
mod listed_versions;
mod locks;
mod message;
mod names;
mod object;
mod operations;
mod parts;
mod ranges;
mod request_trace;
mod settings;
mod storage;
mod tags;
mod upload;
mod usage;
mod versions;
pub mod wire;

pub use access::{AccessKey, KeptChanges, KeptName, NewKey, SeenChanges, User, UserChange};
pub use backend::{Answer, Backend, Content, Found, Upload};
pub use condition::{Conditions, Tags};
pub use encryption::{
    BODY_HEAD, FRAME_BYTES, SEALED_FRAME, TAG_BYTES, content_len, content_map, sealed_len,
};
pub use envelope::{ENVELOPE_MAX, Envelope};
pub use error::Error;
pub use fleet::{
    Peer, PeerRole, PeerState, PeerStatus, RangeAt, RangeGrant, RangeLoad, RangeStatus, Seen,
    ServerBeat, ServerGrant, ServerRequest, ServerStatus, ServiceStatus, StatusPage, Unserved,
};
pub use ids::{BucketId, CallId, DataId, ObjectServerId, RangeId, SessionId, Stamp, UserId};
pub use lifecycle::{
    Aging, CurrentExpiry, FilterForm, Lifecycle, LifecycleDay, LifecycleFilter, LifecycleRule,
    LifecycleState, NEWER_MAX, NoncurrentExpiry, RULE_ID_MAX, RULES_MAX,
};
pub use listed_versions::{ListedVersion, VersionsPage, VersionsRequest};
pub use locks::{LockChange, LockPeriod, LockRule, ObjectLock, Retention, RetentionMode};
pub use message::{
    CatalogReply, CatalogRequest, Change, ChangeReply, ListPage, ListRequest, Listed, RangeReply,
    RangeRequest, Reply, Request, RequestHead,
};
pub use names::{BucketName, NameError, ObjectKey};
pub use object::{
    Bucket, BucketView, Checksum, ChecksumKind, Etag, FileName, FlawedMetadata, Metadata,
    NewObject, ObjectData, ObjectFacts, ObjectInfo, Target,
};
pub use parts::{PartMap, PartNumber, PartRun, UploadId};
pub use ranges::{
    BucketConfig, BucketRules, BucketState, RangeBound, RangeMap, RangeMapPage, RangePlace,
};
pub use request_trace::{Traced, current_trace};
pub use settings::{
    BucketEncryption, BucketSettings, CorsRule, DefaultEncryption, Grant, Grantee, Ownership,
    Permission, PublicAccess, Setting,
};
pub use storage::{BodyPlan, StorageRule};
pub use tags::{FlawedTags, ObjectTags, TAG_NAME_MAX, TAG_VALUE_MAX, TAGS_MAX};
pub use upload::{
    ChecksumPlan, Completion, ListedUpload, NewUpload, Part, PartsPage, PartsRequest, UploadEnd,
    UploadInfo, UploadsPage, UploadsRequest,
};
pub use usage::{BucketUsage, FilesChecked, Quota, Room, StoredBytes};
pub use versions::{Committed, VersionId, Versioning};

//! Requests and answers between a gateway, the owner of a range and the object manager.

use std::net::SocketAddr;

use crate::access::{AccessKey, KeptChanges, SeenChanges, User, UserChange};
use crate::condition::Conditions;
use crate::fleet::{
    Peer, RangeAt, ServerBeat, ServerGrant, ServerRequest, ServiceStatus, StatusPage,
};
use crate::ids::{BucketId, ObjectServerId, RangeId, SessionId, UserId};
use crate::lifecycle::LifecycleState;
use crate::listed_versions::{VersionsPage, VersionsRequest};
use crate::locks::LockChange;
use crate::names::{BucketName, ObjectKey};
use crate::object::{Bucket, BucketView, FileName, NewObject, ObjectInfo, Target};
use crate::parts::{PartNumber, UploadId};
use crate::ranges::{BucketConfig, RangeBound, RangeMap, RangeMapPage};
use crate::settings::{BucketSettings, Grant, Setting};
use crate::tags::ObjectTags;
use crate::upload::{
    Completion, NewUpload, PartsPage, PartsRequest, UploadInfo, UploadsPage, UploadsRequest,
};
use crate::usage::{BucketUsage, FilesChecked, StoredBytes};
use crate::versions::{Committed, VersionId, Versioning};

/// What makes a change happen once, and in time (`object-protocols.md` 6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHead {
    /// The gateway's session.
    pub session: SessionId,
    /// Number of the request in it. The same number again is answered as the first time.
    pub number: u64,
    /// Number of this attempt at the request, from 1: one that was answered with "ask again" is asked
    /// again by a later attempt alone.
    pub attempt: u32,
    /// Requests of the session below this number are over: one that comes late is refused.
    pub floor: u64,
    /// The owner that this is sent to, by its epoch: no other one decides it.
    pub epoch: u64,
    /// When the request for the route was sent whose round trip the session has measured: the owner
    /// knows the session's clock by that one.
    pub sample_us: u64,
    /// When this was sent, microseconds on the session's clock.
    pub sent_us: u64,
    /// The change is not made later than this, microseconds on the session's clock.
    pub deadline_us: u64,
}

/// A change of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Puts an object in place of the one that is there.
    Put {
        /// Its place.
        target: Target,
        /// The object.
        object: Box<NewObject>,
        /// Conditions on the object that is there.
        conditions: Conditions,
    },
    /// Removes the object that is there, or hides it behind a delete marker where versions are kept; none
    /// is no error.
    Delete {
        /// Its place.
        target: Target,
        /// Half of the marker's ID.
        nonce: u64,
        /// Who deletes it.
        by: UserId,
        /// Conditions on it.
        conditions: Conditions,
    },
    /// Removes a version; none is no error.
    DeleteVersion {
        /// The key.
        target: Target,
        /// The version.
        version: VersionId,
        /// Conditions on it.
        conditions: Conditions,
        /// One that is retained under governance too.
        bypass: bool,
    },
    /// Gives an object, or a version of it, other tags. All else of it stays, its time as well.
    SetTags {
        /// The key.
        target: Target,
        /// The version; the newest for none.
        version: Option<VersionId>,
        /// All its tags from then on.
        tags: ObjectTags,
    },
    /// Gives it other permissions, likewise.
    SetAcl {
        /// The key.
        target: Target,
        /// The version; the newest for none.
        version: Option<VersionId>,
        /// All its permissions from then on.
        acl: Vec<Grant>,
    },
    /// Changes what keeps it from being removed, likewise.
    SetLock {
        /// The key.
        target: Target,
        /// The version; the newest for none.
        version: Option<VersionId>,
        /// The change.
        change: LockChange,
        /// A retention under governance may be weakened.
        bypass: bool,
    },
    /// Begins a multipart upload: its ID has the time of this commit.
    BeginUpload {
        /// The key.
        target: Target,
        /// The upload.
        upload: Box<NewUpload>,
    },
    /// Puts a part in place of the one of that number.
    PutPart {
        /// The key.
        target: Target,
        /// The upload.
        upload: UploadId,
        /// The number.
        number: PartNumber,
        /// Its content: a file's, or inline.
        part: Box<NewObject>,
    },
    /// Makes an object of an upload's parts, in place of the one that is there.
    CompleteUpload {
        /// The key.
        target: Target,
        /// The upload, its parts, the object.
        completion: Box<Completion>,
        /// Conditions on the object that is there.
        conditions: Conditions,
    },
    /// Ends an upload without an object.
    AbortUpload {
        /// The key.
        target: Target,
        /// The upload.
        upload: UploadId,
    },
}

impl Change {
    /// The file of a body that it commits, if that has one.
    pub fn file(&self) -> Option<&FileName> {
        let object = match self {
            Change::Put { object, .. } => object,
            Change::PutPart { part, .. } => part,
            _ => return None,
        };
        object.data.file()
    }

    /// What it changes.
    pub fn target(&self) -> &Target {
        match self {
            Change::Put { target, .. }
            | Change::Delete { target, .. }
            | Change::DeleteVersion { target, .. }
            | Change::SetTags { target, .. }
            | Change::SetAcl { target, .. }
            | Change::SetLock { target, .. }
            | Change::BeginUpload { target, .. }
            | Change::PutPart { target, .. }
            | Change::CompleteUpload { target, .. }
            | Change::AbortUpload { target, .. } => target,
        }
    }
}

/// Outcome of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangeReply {
    /// What it has made.
    pub committed: Committed,
    /// An earlier attempt of the same call has made it: the body of this one is of no use.
    pub by_earlier: bool,
}

/// Asks for a page of a bucket's keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListRequest {
    /// The bucket.
    pub bucket: BucketId,
    /// Keys begin with this.
    pub prefix: String,
    /// Keys that are alike up to this behind the prefix are shown as one; empty for none.
    pub delimiter: String,
    /// Keys and common prefixes above this; empty for all.
    pub after: String,
    /// Entries at most.
    pub limit: u32,
}

/// An entry of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listed {
    /// An object; its data is left out.
    Object {
        /// Key.
        key: ObjectKey,
        /// Facts.
        info: Box<ObjectInfo>,
    },
    /// Keys that are alike up to a delimiter.
    Prefix(String),
}

impl Listed {
    /// The key or the common prefix.
    pub fn name(&self) -> &str {
        match self {
            Listed::Object { key, .. } => key.as_str(),
            Listed::Prefix(prefix) => prefix,
        }
    }
}

/// A page of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListPage {
    /// Entries in the order of their UTF-8 bytes.
    pub entries: Vec<Listed>,
    /// Where the next page begins: after this. None behind the last page.
    pub next: Option<String>,
}

/// Request to the owner of a range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RangeRequest {
    /// Changes a key.
    Change {
        /// Identity and times.
        head: RequestHead,
        /// The change.
        change: Change,
    },
    /// Asks for an object, or a version of it.
    Look {
        /// The key.
        target: Target,
        /// The version; the newest for none.
        version: Option<VersionId>,
    },
    /// The same, with its data where the owner has that at hand ([`crate::ObjectData::Piece`]).
    Read {
        /// The key.
        target: Target,
        /// The version; the newest for none.
        version: Option<VersionId>,
    },
    /// Asks for a page of keys.
    List(ListRequest),
    /// Asks for an upload.
    Upload {
        /// The key.
        target: Target,
        /// The upload.
        upload: UploadId,
    },
    /// Asks for parts of an upload that is under way.
    Parts(PartsRequest),
    /// Asks for the bodies of parts of an object.
    PartBodies(PartsRequest),
    /// Asks for a page of a bucket's uploads.
    Uploads(UploadsRequest),
    /// Asks for a page of a bucket's versions.
    Versions(VersionsRequest),
    /// Asks what buckets hold, of which the range has the keys; nothing for those that it does not know.
    Usage(Vec<BucketId>),
    /// Asks how far lifecycle is with a bucket.
    Lifecycle(BucketId),
    /// A gateway writes bodies to a file of its session's directory: the owner gives the file a name in its
    /// own and keeps it, until it is released or the session is closed. Comes again whenever a commit was
    /// refused with [`crate::Error::Unheld`].
    Hold {
        /// The session.
        session: SessionId,
        /// The file.
        file: FileName,
    },
    /// Nothing is written to the file any more, and what is in it is committed or never will be.
    Release {
        /// The session.
        session: SessionId,
        /// The file.
        file: FileName,
    },
    /// Asks for the bytes of the range's files of bodies.
    Stored,
    /// Asks how far a check of the range's files of bodies is, by its number. One that the owner does not know, as
    /// 0, begins a check, or joins the one that is under way.
    Check {
        /// The number.
        run: u64,
    },
    /// Asks for the epoch of the owner. The session measures the round trip: the owner knows the
    /// session's clock from it.
    Route {
        /// The session.
        session: SessionId,
        /// When this was sent, microseconds on the session's clock.
        sent_us: u64,
    },
    /// The manager's: what a bucket is from now on. Answered when all that was decided on another state is
    /// durable, by the owner of this epoch alone.
    Configure {
        /// The owner.
        epoch: u64,
        /// The bucket.
        bucket: BucketId,
        /// What it is.
        config: BucketConfig,
    },
    /// The manager's: a session takes no changes any more.
    CloseSession {
        /// The owner.
        epoch: u64,
        /// The session.
        session: SessionId,
    },
    /// The manager's: the range is to be split, by its owner of this epoch. Answered when that has begun.
    Split {
        /// The owner.
        epoch: u64,
        /// The first key of the upper half; none for the middle.
        at: Option<RangeBound>,
    },
    /// The manager's: no owner takes changes of this session, so that what it left may be removed.
    Sweep {
        /// The owner.
        epoch: u64,
        /// The session.
        session: SessionId,
    },
}

impl RangeRequest {
    /// The bucket of what it asks for; none of changes, and of what concerns no bucket.
    pub fn read_bucket(&self) -> Option<BucketId> {
        match self {
            RangeRequest::Look { target, .. }
            | RangeRequest::Read { target, .. }
            | RangeRequest::Upload { target, .. } => Some(target.bucket),
            RangeRequest::Parts(ask) | RangeRequest::PartBodies(ask) => Some(ask.target.bucket),
            RangeRequest::List(ask) => Some(ask.bucket),
            RangeRequest::Uploads(ask) => Some(ask.bucket),
            RangeRequest::Versions(ask) => Some(ask.bucket),
            RangeRequest::Lifecycle(bucket) => Some(*bucket),
            RangeRequest::Change { .. }
            | RangeRequest::Usage(_)
            | RangeRequest::Hold { .. }
            | RangeRequest::Release { .. }
            | RangeRequest::Stored
            | RangeRequest::Check { .. }
            | RangeRequest::Route { .. }
            | RangeRequest::Configure { .. }
            | RangeRequest::CloseSession { .. }
            | RangeRequest::Split { .. }
            | RangeRequest::Sweep { .. } => None,
        }
    }
}

/// Answer of the owner of a range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RangeReply {
    /// The change was made.
    Changed(ChangeReply),
    /// The object.
    Object(Box<ObjectInfo>),
    /// The page.
    Page(ListPage),
    /// The upload.
    Upload(Box<UploadInfo>),
    /// The parts.
    Parts(PartsPage),
    /// The bodies of parts, in order of numbers: content and places.
    PartBodies(Vec<(PartNumber, ObjectInfo)>),
    /// The page of uploads.
    Uploads(UploadsPage),
    /// What the buckets hold, in the order of the question.
    Usage(Vec<BucketUsage>),
    /// How far lifecycle is with the bucket.
    Lifecycle(LifecycleState),
    /// The file is kept.
    Held {
        /// It is not: it is gone, or about to go.
        gone: bool,
    },
    /// The bytes of the range's files of bodies.
    Stored(StoredBytes),
    /// How far the check is.
    Checked(FilesChecked),
    /// The page of versions.
    Versions(VersionsPage),
    /// The epoch of the owner that answers.
    Route(u64),
    /// It is done.
    Done,
    /// The bucket is so, and holds no object, version or delete marker, or does.
    Configured {
        /// It holds none.
        is_empty: bool,
    },
}

/// Request to the object manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CatalogRequest {
    /// Begins a gateway's session. Nothing of it is remembered if the answer is lost: the session
    /// that was made then runs out.
    OpenSession,
    /// The session goes on.
    Beat(SessionId),
    /// Asks for the epoch of the manager, as [`RangeRequest::Route`] does for that of an owner.
    Route {
        /// The session.
        session: SessionId,
        /// When this was sent, microseconds on the session's clock.
        sent_us: u64,
    },
    /// Makes a bucket.
    CreateBucket {
        /// Identity and times.
        head: RequestHead,
        /// Name.
        name: BucketName,
        /// Whose it is.
        owner: UserId,
        /// Its settings at first.
        settings: Box<BucketSettings>,
    },
    /// Removes a bucket that is empty.
    RemoveBucket {
        /// Identity and times.
        head: RequestHead,
        /// Name.
        name: BucketName,
    },
    /// Says what becomes of objects that are replaced. Behind the answer no change is made otherwise.
    SetVersioning {
        /// Identity and times.
        head: RequestHead,
        /// Name.
        name: BucketName,
        /// Enabled or suspended: never off again.
        versioning: Versioning,
    },
    /// Asks for a bucket.
    Bucket(BucketName),
    /// Asks for all buckets of a user, or for all. When they have no room in one answer, it has the first of them.
    Buckets(Option<UserId>),
    /// Asks for those with names above one, likewise.
    BucketsBehind {
        /// The user; none for all.
        of: Option<UserId>,
        /// The name.
        name: BucketName,
    },
    /// Changes a setting of a bucket. Behind the answer no gateway goes by the former one, but one that
    /// reaches no manager.
    SetBucket {
        /// Identity and times.
        head: RequestHead,
        /// Name.
        name: BucketName,
        /// The setting.
        setting: Box<Setting>,
    },
    /// Changes users and keys, likewise.
    ChangeUser {
        /// Identity and times.
        head: RequestHead,
        /// The change.
        change: UserChange,
    },
    /// Asks for all users, without their policies. When they have no room in one answer, it has the first of them.
    Users,
    /// Asks for the users with names above one, likewise.
    UsersBehind(String),
    /// Asks for a user, by its name.
    User(String),
    /// Asks for a user's access keys, without their secrets. When they have no room in one answer, it has the
    /// first of them.
    Keys(UserId),
    /// Asks for those with IDs above one, likewise.
    KeysBehind {
        /// The user.
        user: UserId,
        /// The ID.
        key: String,
    },
    /// A gateway's: asks for changes of what it keeps, and says which it has seen. If there are none, the
    /// answer waits for one for a while.
    Watch {
        /// The gateway, random.
        watcher: u64,
        /// What it has seen.
        seen: SeenChanges,
    },
    /// Asks for an access key.
    Key(String),
    /// A gateway's: says that a key of the key file wraps something from now on. Repeated, it changes nothing.
    UseKey(String),
    /// Asks for the keys of key files that have wrapped something.
    KeysInUse,
    /// Asks for the ranges. When they have no room in one answer, it has the first of them.
    Map,
    /// Asks for the ranges that begin behind a bound.
    MapBehind(RangeBound),
    /// An owner's: asks what a bucket is.
    Config(BucketId),
    /// An owner's: asks whether a session is open.
    IsOpen(SessionId),
    /// Asks where ranges are served.
    Where,
    /// Gives a range to a server, of an operator's choice. It is done when it is on record: the owner before
    /// gives it up, or its lease runs out, and the new one opens it.
    MoveRange {
        /// The range.
        range: RangeId,
        /// Its next owner.
        server: ObjectServerId,
    },
    /// Has a range split, of an operator's choice. Answered when that has begun.
    SplitRange {
        /// The range.
        range: RangeId,
        /// The first key of the upper half; none for the middle.
        at: Option<RangeBound>,
    },
    /// An owner's: it is about to split its range. The answer has the ranges that come in its place, when it is
    /// on record that their directories are being filled. Again, it is answered alike.
    PrepareSplit {
        /// The range.
        range: RangeId,
        /// The owner.
        epoch: u64,
        /// The first key of the upper half.
        at: RangeBound,
    },
    /// An owner's: it has shut its range out, and waits for what becomes of it.
    EndSplit {
        /// The range.
        range: RangeId,
        /// The owner.
        epoch: u64,
        /// The ranges in its place are whole. If not, it stays, under another epoch.
        commit: bool,
    },
    /// An object server's: a process begins as the server of a name.
    Register {
        /// The name.
        name: String,
        /// Where it listens.
        addr: SocketAddr,
    },
    /// An object server's heartbeat.
    ServerBeat(Box<ServerBeat>),
    /// A manager or gateway is there.
    Here(Peer),
    /// Asks what the service is made of. When that has no room in one answer, it has the first of the ranges.
    Status,
    /// Asks for the ranges of it that begin behind a bound.
    StatusBehind(RangeBound),
}

/// Answer of the object manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CatalogReply {
    /// It is done.
    Done,
    /// The session.
    Session(SessionId),
    /// The epoch of the manager that answers.
    Route(u64),
    /// The bucket that was made.
    Made(Bucket),
    /// The bucket.
    Bucket {
        /// The bucket.
        found: Box<BucketView>,
        /// Changes before it was read.
        at: SeenChanges,
    },
    /// The buckets, in order of names.
    Buckets(Vec<Bucket>),
    /// Some of the buckets, in order of names.
    BucketsPage {
        /// The buckets.
        buckets: Vec<Bucket>,
        /// Others have names above the last one.
        more: bool,
    },
    /// The key; none of that name.
    Key {
        /// The key.
        found: Option<Box<AccessKey>>,
        /// Changes before it was read.
        at: SeenChanges,
    },
    /// All users, in order of names.
    Users(Vec<User>),
    /// Some of the users, in order of names.
    UsersPage {
        /// The users.
        users: Vec<User>,
        /// Others have names above the last one.
        more: bool,
    },
    /// The user; none of that name.
    User(Option<Box<User>>),
    /// The keys, in order of IDs.
    Keys(Vec<AccessKey>),
    /// Some of the keys, in order of IDs.
    KeysPage {
        /// The keys.
        keys: Vec<AccessKey>,
        /// Others have IDs above the last one.
        more: bool,
    },
    /// Names of keys of key files, in order.
    KeysInUse(Vec<String>),
    /// Changes of what gateways keep.
    Changes(KeptChanges),
    /// All ranges.
    Map(RangeMap),
    /// Some of the ranges.
    MapPage(RangeMapPage),
    /// The ranges that come in the place of one.
    Halves {
        /// That of the lower keys.
        low: RangeId,
        /// That of the upper keys.
        high: RangeId,
    },
    /// What became of a split, on record.
    SplitEnded {
        /// The range is no more; else it stays, under another epoch.
        committed: bool,
    },
    /// What the bucket is.
    Config(BucketConfig),
    /// Whether the session is open.
    Open(bool),
    /// Where ranges are served.
    Where(Vec<RangeAt>),
    /// The number of the server, and the one of its process.
    Registered {
        /// The server.
        server: ObjectServerId,
        /// Its process.
        boot: u64,
    },
    /// What the server owns.
    Grant(Box<ServerGrant>),
    /// What the service is made of.
    Status(Box<ServiceStatus>),
    /// Some of it.
    StatusPage(Box<StatusPage>),
}

/// Request to a process of the object service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// To the owner of a range.
    Range(RangeId, RangeRequest),
    /// To the object manager.
    Catalog(CatalogRequest),
    /// To an object server.
    Server(ServerRequest),
}

/// Answer of a process of the object service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Of the owner of a range.
    Range(RangeReply),
    /// Of the object manager.
    Catalog(CatalogReply),
    /// Of an object server: it hears.
    Server,
}

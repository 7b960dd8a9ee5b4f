//! Messages as bytes: what the processes of the object service send each other
//! (`docs/formats/object-messages.md`).

use std::collections::BTreeMap;

use codec::cursor::{Cursor, put_varint};

use crate::access::{AccessKey, KeptChanges, KeptName, NewKey, SeenChanges, User, UserChange};
use crate::condition::{Conditions, Tags};
use crate::error::Error;
use crate::fields::{Field, choice, get_list, list, put_list, record};
use crate::fleet::{
    Peer, PeerRole, PeerState, PeerStatus, RangeAt, RangeGrant, RangeLoad, RangeStatus, Seen,
    ServerBeat, ServerGrant, ServerRequest, ServerStatus, ServiceStatus, StatusPage, Unserved,
};
use crate::ids::BucketId;
use crate::lifecycle::{
    CurrentExpiry, FilterForm, Lifecycle, LifecycleFilter, LifecycleRule, LifecycleState,
    NoncurrentExpiry,
};
use crate::listed_versions::{ListedVersion, VersionsPage, VersionsRequest};
use crate::locks::{LockChange, LockPeriod, LockRule, ObjectLock, Retention, RetentionMode};
use crate::message::{
    CatalogReply, CatalogRequest, Change, ChangeReply, ListPage, ListRequest, Listed, RangeReply,
    RangeRequest, Reply, Request, RequestHead,
};
use crate::object::{
    Bucket, BucketView, Checksum, NewObject, ObjectData, ObjectFacts, ObjectInfo, Target,
};
use crate::parts::PartNumber;
use crate::ranges::{BucketConfig, BucketRules, BucketState, RangeBound, RangeMapPage, RangePlace};
use crate::settings::{
    BucketEncryption, BucketSettings, CorsRule, DefaultEncryption, Grant, Grantee, Ownership,
    Permission, PublicAccess, Setting,
};
use crate::storage::StorageRule;
use crate::upload::{
    ChecksumPlan, Completion, ListedUpload, NewUpload, Part, PartsPage, PartsRequest, UploadEnd,
    UploadInfo, UploadsPage, UploadsRequest,
};
use crate::usage::{BucketUsage, FilesChecked, Quota, Room, StoredBytes};
use crate::versions::{Committed, VersionId, Versioning};

choice!(Tags { 0 => Any, 1 => Of(tags) });
record!(Conditions { if_match, if_none_match, call });
record!(Target { bucket, key });
record!(Checksum { kind, value, parts });
choice!(RetentionMode { 0 => Governance, 1 => Compliance });
record!(Retention { mode, until_us });
record!(ObjectLock { retention, hold });
choice!(LockChange { 0 => Retention(retention), 1 => Hold(hold) });
choice!(LockPeriod { 0 => Days(days), 1 => Years(years) });
record!(LockRule { default });
record!(ObjectFacts { etag, checksums, metadata, tags, owner, acl, lock, encryption });
choice!(ObjectData {
    0 => Inline(bytes),
    1 => Piece(bytes),
    2 => Logged { file, offset },
    3 => File { file, offset },
    4 => Parts(map),
});
record!(NewObject { data_id, size, facts, data });
record!(ObjectInfo { stamp, has_id, object });
choice!(Versioning { 0 => Off, 1 => Enabled, 2 => Suspended });
choice!(VersionId { 0 => Null, 1 => Of { stamp, nonce } });
record!(Committed { stamp, version, marker });
record!(RangeBound { bucket, key });
record!(RangePlace { range, first });
record!(RangeMapPage { term, count, places });
record!(BucketRules { versioning, lock, lifecycle, storage });
choice!(BucketState { 0 => Open(rules), 1 => Closing(rules), 2 => Gone });
record!(BucketConfig { changed, state });
record!(Bucket { id, name, owner, created_us, versioning });
choice!(Permission { 0 => Full, 1 => Read, 2 => Write, 3 => ReadAcl, 4 => WriteAcl });
choice!(Grantee { 0 => User(id), 1 => All, 2 => Authenticated, 3 => LogDelivery });
record!(Grant { grantee, permission });
record!(PublicAccess { block_acls, ignore_acls, block_policy, restrict });
choice!(Ownership { 0 => Enforced, 1 => Preferred, 2 => Writer, 3 => Unset });
record!(CorsRule { id, origins, methods, headers, expose, max_age });
choice!(DefaultEncryption { 0 => S3, 1 => Kms { key, bucket_key } });
record!(BucketEncryption { default, blocks_customer_keys });
choice!(FilterForm { 0 => Rule, 1 => Plain, 2 => And });
record!(LifecycleFilter { form, prefix, tags, larger, smaller });
choice!(CurrentExpiry { 0 => Days(days), 1 => Date(date_us), 2 => LoneMarkers });
record!(NoncurrentExpiry { days, newer });
record!(LifecycleRule { id, enabled, filter, current, noncurrent, abort_days });
record!(Lifecycle { rules });
record!(LifecycleState { last_pass_us, removed, behind_us });
choice!(Setting {
    0 => Policy(policy),
    1 => PublicAccess(blocks),
    2 => Ownership(ownership),
    3 => Acl(grants),
    4 => Cors(rules),
    5 => Tags(tags),
    6 => Lock(rule),
    7 => Quota(quota),
    8 => Encryption(encryption),
    9 => Lifecycle(lifecycle),
    10 => Storage(storage),
    11 => DefaultEncryption(default),
    12 => CustomerKeysBlocked(blocked),
    13 => Durability(durability),
    14 => Compression(compression),
    15 => QuotaObjects(objects),
    16 => QuotaBytes(bytes),
    17 => PublicPoliciesBlocked(blocked),
});
record!(StorageRule { durability, compression });
record!(Quota { objects, bytes });
record!(Room { objects, bytes });
record!(BucketUsage { objects, older, bytes, markers, uploads, upload_bytes });
record!(BucketView { bucket, settings, room });
record!(StoredBytes { live, garbage, trash, written });
record!(FilesChecked { run, done, files, corrected, restored, removed, failed });

/// Those that are not as in a new bucket.
impl Field for BucketSettings {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(out, &self.chosen());
    }

    fn get(input: &mut Cursor<'_>) -> Option<BucketSettings> {
        let chosen: Vec<Setting> = get_list(input)?;
        let mut settings = BucketSettings::default();
        chosen.iter().for_each(|setting| settings.set(setting.clone()));
        // One form: each once, in order, and none that a new bucket has.
        (settings.chosen() == chosen).then_some(settings)
    }
}

impl Field for BTreeMap<String, String> {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.len() as u64);
        for (name, value) in self {
            name.put(out);
            value.put(out);
        }
    }

    fn get(input: &mut Cursor<'_>) -> Option<BTreeMap<String, String>> {
        let pairs: Vec<(String, String)> = get_list(input)?;
        let ascends = pairs.windows(2).all(|two| two[0].0 < two[1].0);
        ascends.then(|| pairs.into_iter().collect())
    }
}

record!(User { id, name, display_name, email, admin, policy, quota });
record!(AccessKey { id, user, wrapped_secret, enabled, expires_us, policy });
record!(NewKey { id, wrapped_secret, expires_us, policy });
choice!(UserChange {
    0 => Create { user, key },
    1 => Remove(user),
    2 => SetPolicy { user, policy },
    3 => AddKey { user, key },
    4 => RemoveKey { user, key },
    5 => EnableKey { user, key, enabled },
    6 => SetQuota { user, quota },
    7 => SetQuotaObjects { user, objects },
    8 => SetQuotaBytes { user, bytes },
});
record!(SeenChanges { epoch, number });
choice!(KeptName { 0 => Bucket(name), 1 => Key(id) });
record!(KeptChanges { seen, names });

record!(ChecksumPlan { kind, composite });
record!(NewUpload { nonce, checksum, metadata, tags, owner, acl, lock, encryption });
record!(UploadEnd { stamp, etag, checksums });
record!(UploadInfo { id, upload, end });
record!(Part { number, stamp, data_id, size, etag, checksums });
record!(PartsRequest { target, upload, after, limit });
record!(PartsPage { parts, more });
record!(Completion { upload, parts, etag, checksums });
record!(UploadsRequest { bucket, prefix, delimiter, after, after_upload, limit });
choice!(ListedUpload { 0 => Upload { key, info }, 1 => Prefix(prefix) });
record!(UploadsPage { entries, more });

record!(RequestHead { session, number, attempt, floor, epoch, sample_us, sent_us, deadline_us });
choice!(Change {
    0 => Put { target, object, conditions },
    1 => Delete { target, nonce, by, conditions },
    2 => BeginUpload { target, upload },
    3 => PutPart { target, upload, number, part },
    4 => CompleteUpload { target, completion, conditions },
    5 => AbortUpload { target, upload },
    6 => DeleteVersion { target, version, conditions, bypass },
    7 => SetTags { target, version, tags },
    8 => SetAcl { target, version, acl },
    9 => SetLock { target, version, change, bypass },
});
record!(ChangeReply { committed, by_earlier });
record!(ListRequest { bucket, prefix, delimiter, after, limit });
choice!(Listed { 0 => Object { key, info }, 1 => Prefix(prefix) });
record!(ListPage { entries, next });
record!(VersionsRequest { bucket, prefix, delimiter, after, after_version, limit });
choice!(ListedVersion {
    0 => Version { key, info, latest },
    1 => Marker { key, version, stamp, owner, latest },
    2 => Prefix(prefix),
});
record!(VersionsPage { entries, more });
choice!(RangeRequest {
    0 => Change { head, change },
    1 => Look { target, version },
    2 => Read { target, version },
    3 => List(ask),
    4 => Upload { target, upload },
    5 => Parts(ask),
    6 => PartBodies(ask),
    7 => Uploads(ask),
    9 => Versions(ask),
    10 => Route { session, sent_us },
    11 => Configure { epoch, bucket, config },
    12 => CloseSession { epoch, session },
    13 => Sweep { epoch, session },
    14 => Usage(buckets),
    15 => Lifecycle(bucket),
    16 => Release { session, file },
    17 => Stored,
    18 => Hold { session, file },
    20 => Split { epoch, at },
    21 => Check { run },
});
choice!(RangeReply {
    0 => Changed(reply),
    1 => Object(info),
    2 => Page(page),
    3 => Upload(info),
    4 => Parts(page),
    5 => PartBodies(bodies),
    6 => Uploads(page),
    8 => Versions(page),
    9 => Route(epoch),
    10 => Done,
    11 => Configured { is_empty },
    12 => Usage(usages),
    13 => Lifecycle(state),
    14 => Stored(bytes),
    15 => Held { gone },
    16 => Checked(checked),
});
record!(Seen { term, change });
record!(RangeLoad { range, requests, bytes });
record!(Unserved { range, epoch, cause, ended });
record!(ServerBeat { server, boot, seq, addr, seen, leaving, unserved, loads });
record!(RangeGrant { range, epoch });
record!(ServerGrant { known, lease_ms, reset, changes, seen, more, now_us });
record!(RangeAt { range, addr });
choice!(ServerRequest { 0 => Ping, 1 => BeatNow });
choice!(PeerRole { 0 => Manager, 1 => Gateway });
record!(Peer { role, name, addr, connections });
choice!(PeerState { 0 => Up, 1 => Down, 2 => Unreached });
record!(ServerStatus { server, name, addr, state, ranges, requests, bytes });
record!(RangeStatus { range, first, server, served, cause, requests, bytes });
record!(PeerStatus { peer, state, leads });
record!(ServiceStatus { servers, ranges, splitting, peers });
record!(StatusPage { term, count, status });
choice!(CatalogRequest {
    0 => OpenSession,
    1 => Beat(session),
    2 => Route { session, sent_us },
    3 => CreateBucket { head, name, owner, settings },
    4 => RemoveBucket { head, name },
    5 => Bucket(name),
    6 => Buckets(of),
    7 => ChangeUser { head, change },
    8 => Key(id),
    9 => SetVersioning { head, name, versioning },
    10 => Map,
    11 => Config(bucket),
    12 => IsOpen(session),
    13 => Where,
    14 => Register { name, addr },
    15 => ServerBeat(beat),
    16 => Here(peer),
    17 => Status,
    18 => SetBucket { head, name, setting },
    19 => Users,
    20 => User(name),
    21 => Keys(user),
    22 => Watch { watcher, seen },
    28 => UseKey(key),
    29 => KeysInUse,
    30 => MoveRange { range, server },
    31 => SplitRange { range, at },
    32 => PrepareSplit { range, epoch, at },
    33 => EndSplit { range, epoch, commit },
    34 => UsersBehind(name),
    35 => MapBehind(bound),
    36 => BucketsBehind { of, name },
    37 => KeysBehind { user, key },
    38 => StatusBehind(bound),
});
choice!(CatalogReply {
    0 => Done,
    1 => Session(session),
    2 => Route(epoch),
    3 => Bucket { found, at },
    4 => Buckets(buckets),
    5 => Key { found, at },
    6 => Map(map),
    7 => Config(config),
    8 => Open(open),
    9 => Where(ranges),
    10 => Registered { server, boot },
    11 => Grant(grant),
    12 => Status(status),
    13 => Made(bucket),
    14 => Users(users),
    15 => User(user),
    16 => Keys(keys),
    17 => Changes(changes),
    24 => KeysInUse(keys),
    25 => Halves { low, high },
    26 => SplitEnded { committed },
    27 => UsersPage { users, more },
    28 => MapPage(page),
    29 => BucketsPage { buckets, more },
    30 => KeysPage { keys, more },
    31 => StatusPage(page),
});
choice!(Request { 0 => Range(range, request), 1 => Catalog(request), 2 => Server(request) });
choice!(Reply { 0 => Range(reply), 1 => Catalog(reply), 2 => Server });
choice!(Error {
    0 => NoSuchBucket,
    1 => BucketExists { own },
    2 => BucketNotEmpty,
    3 => TooManyBuckets,
    4 => NoSuchKey,
    5 => NoSuchUpload,
    6 => NoSuchPart { number },
    7 => Precondition,
    8 => NameTaken,
    9 => Busy { cause },
    10 => Unknown { cause },
    11 => Reroute,
    12 => SessionOver,
    13 => Full,
    14 => Damaged { what },
    15 => Invalid { message },
    16 => NoSuchVersion,
    17 => Marker { version, stamp, asked },
    18 => Replaced,
    19 => NoSuchUser,
    20 => NoSuchAccessKey,
    21 => UserHasBuckets,
    22 => TooManyUsers,
    23 => Locked,
    24 => Unheld,
});

list!(
    String,
    BucketId,
    BucketUsage,
    Setting,
    Grant,
    CorsRule,
    LifecycleRule,
    User,
    AccessKey,
    KeptName,
    (String, String),
    Checksum,
    Bucket,
    Listed,
    ListedUpload,
    ListedVersion,
    Part,
    (PartNumber, ObjectInfo),
    RangeLoad,
    Unserved,
    RangeGrant,
    RangePlace,
    RangeAt,
    ServerStatus,
    RangeStatus,
    PeerStatus,
);

fn encode<T: Field>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

fn decode<T: Field>(bytes: &[u8]) -> Option<T> {
    let mut input = Cursor(bytes);
    T::get(&mut input).filter(|_| input.is_empty())
}

impl Request {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// From bytes; `None` when they are no request of this version.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        decode(bytes)
    }
}

/// Types of which it is asked how long they are in a message.
macro_rules! measured {
    ($($type:ty),* $(,)?) => {$(
        impl $type {
            /// Bytes that it takes in messages.
            pub fn encoded_len(&self) -> usize {
                encode(self).len()
            }
        }
    )*};
}

measured!(Lifecycle, User, AccessKey, Bucket, RangePlace, RangeStatus, ServiceStatus);

impl BucketSettings {
    /// As bytes, for a row.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// From bytes; `None` when they are no settings of this version.
    pub fn decode(bytes: &[u8]) -> Option<BucketSettings> {
        decode(bytes)
    }
}

/// An answer as bytes: a reply, or why there is none.
pub fn encode_answer(answer: &Result<Reply, Error>) -> Vec<u8> {
    encode(answer)
}

/// From bytes; `None` when they are no answer of this version.
pub fn decode_answer(bytes: &[u8]) -> Option<Result<Reply, Error>> {
    decode(bytes)
}

#[cfg(test)]
mod page_tests;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;

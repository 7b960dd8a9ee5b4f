//! Messages read back, any bytes are refused or read, and each message has one form.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::envelope::Envelope;
use crate::ids::{BucketId, CallId, DataId, ObjectServerId, RangeId, SessionId, Stamp, UserId};
use crate::names::{BucketName, ObjectKey};
use crate::object::{ChecksumKind, Etag, FileName, Metadata};
use crate::parts::{PartMap, PartNumber, UploadId};
use crate::ranges::{RangeBound, RangeMap};
use crate::tags::ObjectTags;
use crate::usage::{BucketUsage, FilesChecked, Quota, Room, StoredBytes};
use wire::control::{Compression, Policy};

fn number(number: u64) -> PartNumber {
    PartNumber::new(number).expect("a number")
}

fn target() -> Target {
    Target { bucket: BucketId::new(7), key: ObjectKey::new("a\0/ä").expect("a key") }
}

fn addr() -> SocketAddr {
    "[2001:db8::1]:7601".parse().expect("an address")
}

fn peer() -> Peer {
    Peer { role: PeerRole::Gateway, name: "gw1".into(), addr: addr(), connections: 300 }
}

fn beat() -> ServerBeat {
    let range = RangeId::new(4);
    ServerBeat {
        server: ObjectServerId::new(300),
        boot: 7,
        seq: 1 << 33,
        addr: addr(),
        seen: Seen { term: 9, change: 10 },
        leaving: true,
        unserved: vec![Unserved { range, epoch: 5, cause: "no disk".into(), ended: true }],
        loads: vec![RangeLoad { range, requests: 1000, bytes: 1 << 40 }],
    }
}

fn grant() -> ServerGrant {
    let changes = [Some((1 << 40, 700)), None];
    let range = RangeId::new(u64::MAX);
    ServerGrant {
        known: true,
        lease_ms: 600,
        reset: true,
        changes: changes.map(|epoch| RangeGrant { range, epoch }).to_vec(),
        seen: Seen { term: 9, change: 10 },
        more: true,
        now_us: 1 << 50,
    }
}

fn status() -> ServiceStatus {
    let (range, server) = (RangeId::new(4), ObjectServerId::new(3));
    ServiceStatus {
        servers: vec![ServerStatus {
            server,
            name: "os1".into(),
            addr: addr(),
            state: PeerState::Unreached,
            ranges: 4,
            requests: 5,
            bytes: 6,
        }],
        ranges: vec![RangeStatus {
            range,
            first: bound(),
            server: Some(server),
            served: false,
            cause: "it is being opened".into(),
            requests: 8,
            bytes: 9,
        }],
        splitting: 2,
        peers: vec![PeerStatus { peer: peer(), state: PeerState::Down, leads: false }],
    }
}

fn configs() -> impl Iterator<Item = BucketConfig> {
    let rules = |versioning, lock| BucketRules {
        versioning,
        lock,
        storage: storage(),
        ..BucketRules::default()
    };
    let states = [
        BucketState::Open(rules(Versioning::Suspended, None)),
        BucketState::Open(rules(Versioning::Enabled, Some(lock_rules()[1]))),
        BucketState::Open(BucketRules { lifecycle: Some(lifecycle()), ..BucketRules::default() }),
        BucketState::Closing(rules(Versioning::Off, Some(lock_rules()[0]))),
        BucketState::Gone,
    ];
    states.into_iter().map(|state| BucketConfig { changed: Stamp::new(1 << 40), state })
}

fn storage() -> StorageRule {
    StorageRule { durability: Some(Policy::ec(4, 2)), compression: Some(Compression::LZ4) }
}

fn lifecycle() -> Arc<Lifecycle> {
    let rule = |id: &str, form, current| LifecycleRule {
        id: id.to_owned(),
        enabled: form != FilterForm::Plain,
        filter: LifecycleFilter {
            form,
            prefix: (form != FilterForm::Plain).then(|| "a/".to_owned()),
            tags: [("x".to_owned(), "1".to_owned())].into(),
            larger: Some(1 << 40),
            smaller: None,
        },
        current,
        noncurrent: current.is_none().then_some(NoncurrentExpiry { days: 30, newer: 5 }),
        abort_days: current.is_none().then_some(7),
    };
    Arc::new(Lifecycle {
        rules: vec![
            rule("r1", FilterForm::Rule, Some(CurrentExpiry::Days(365))),
            rule("", FilterForm::Plain, Some(CurrentExpiry::Date(1 << 50))),
            rule("r3", FilterForm::And, Some(CurrentExpiry::LoneMarkers)),
            rule("r4", FilterForm::And, None),
        ],
    })
}

fn upload() -> UploadId {
    UploadId { stamp: Stamp::new(1 << 60), nonce: u64::MAX }
}

fn facts() -> ObjectFacts {
    let headers = BTreeMap::from([
        ("content-type".to_owned(), "text/plain".to_owned()),
        ("x-amz-meta-a".to_owned(), String::new()),
    ]);
    let sums =
        ChecksumKind::ALL.map(|kind| Checksum { kind, value: vec![9; kind.bytes()], parts: 2 });
    ObjectFacts {
        etag: Etag::new("0123-2"),
        checksums: sums.to_vec(),
        metadata: Metadata::new(headers).expect("metadata"),
        tags: tags(),
        owner: UserId::new("me"),
        acl: acl(),
        lock: locks()[1],
        encryption: Envelope::new(vec![1, 1, 0, 255]),
    }
}

fn tags() -> ObjectTags {
    let tags = [("a", "b"), ("ä", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    ObjectTags::new(tags.into()).expect("tags")
}

fn acl() -> Vec<Grant> {
    let of = |grantee, permission| Grant { grantee, permission };
    vec![
        of(Grantee::User(UserId::new("me")), Permission::Full),
        of(Grantee::All, Permission::ReadAcl),
    ]
}

fn locks() -> [ObjectLock; 3] {
    let until = |mode| Some(Retention { mode, until_us: 1 << 51 });
    [
        ObjectLock { retention: until(RetentionMode::Compliance), hold: None },
        ObjectLock { retention: until(RetentionMode::Governance), hold: Some(true) },
        ObjectLock { retention: None, hold: Some(false) },
    ]
}

fn lock_rules() -> [LockRule; 3] {
    let default = |mode, period| LockRule { default: Some((mode, period)) };
    [
        LockRule::default(),
        default(RetentionMode::Governance, LockPeriod::Days(300)),
        default(RetentionMode::Compliance, LockPeriod::Years(1)),
    ]
}

fn objects() -> Vec<NewObject> {
    let file = FileName::new("log-1-2");
    let map = PartMap::of(upload(), [(number(1), 5), (number(2), 5), (number(10_000), 1 << 40)]);
    [
        ObjectData::Inline(vec![0, 1, 255]),
        ObjectData::Piece(vec![7; 300]),
        ObjectData::Logged { file: file.clone(), offset: u64::MAX },
        ObjectData::File { file, offset: u64::MAX },
        ObjectData::Parts(map),
    ]
    .map(|data| NewObject {
        data_id: DataId::new(u128::MAX - 1),
        size: 1 << 50,
        facts: facts(),
        data,
    })
    .to_vec()
}

fn head() -> RequestHead {
    RequestHead {
        session: SessionId::new(u64::MAX),
        number: 1,
        attempt: u32::MAX,
        floor: 0,
        epoch: 300,
        sample_us: 1 << 40,
        sent_us: 1 << 41,
        deadline_us: u64::MAX,
    }
}

fn conditions() -> [Conditions; 3] {
    let of = Some(Tags::Of(vec![Etag::new("a"), Etag::new("")]));
    [
        Conditions::default(),
        Conditions { if_match: Some(Tags::Any), if_none_match: of.clone(), call: None },
        Conditions {
            if_match: of,
            if_none_match: Some(Tags::Any),
            call: Some(CallId::new(u128::MAX - 2)),
        },
    ]
}

fn new_upload(checksum: Option<ChecksumPlan>) -> NewUpload {
    let ObjectFacts { metadata, tags, owner, acl, .. } = facts();
    let encryption = checksum.and(facts().encryption);
    NewUpload { nonce: 5, checksum, metadata, tags, owner, acl, lock: locks()[0], encryption }
}

fn versions() -> [VersionId; 2] {
    [VersionId::Null, VersionId::Of { stamp: Stamp::new(1 << 50), nonce: u64::MAX }]
}

fn user() -> User {
    User {
        id: UserId::new("id"),
        name: "n".into(),
        display_name: "d".into(),
        email: "e".into(),
        admin: true,
        policy: Some("{}".into()),
        quota: Quota { objects: Some(3), bytes: Some(u64::MAX) },
    }
}

fn changes() -> Vec<Change> {
    let plan = Some(ChecksumPlan { kind: ChecksumKind::Sha256, composite: true });
    let completion = Completion {
        upload: upload(),
        parts: vec![(number(1), DataId::new(1)), (number(9), DataId::new(2))],
        etag: Etag::new("t"),
        checksums: facts().checksums,
    };
    let mut all = vec![Change::AbortUpload { target: target(), upload: upload() }];
    for conditions in conditions() {
        let by = UserId::new("me");
        let delete = (target(), conditions.clone());
        all.push(Change::Delete { target: delete.0, nonce: 77, by, conditions: delete.1 });
        for version in versions() {
            let conditions = conditions.clone();
            let bypass = version != VersionId::Null;
            all.push(Change::DeleteVersion { target: target(), version, conditions, bypass });
        }
        let completion = Box::new(completion.clone());
        all.push(Change::CompleteUpload { target: target(), completion, conditions });
    }
    for (version, tags) in [(None, ObjectTags::default()), (Some(VersionId::Null), tags())] {
        all.push(Change::SetTags { target: target(), version, tags });
    }
    for (version, acl) in [(None, Vec::new()), (Some(versions()[1]), acl())] {
        all.push(Change::SetAcl { target: target(), version, acl });
    }
    for (change, bypass) in [
        (LockChange::Retention(locks()[1].retention), true),
        (LockChange::Retention(None), false),
        (LockChange::Hold(true), false),
    ] {
        let version = bypass.then_some(VersionId::Null);
        all.push(Change::SetLock { target: target(), version, change, bypass });
    }
    for checksum in [None, plan] {
        let upload = Box::new(new_upload(checksum));
        all.push(Change::BeginUpload { target: target(), upload });
    }
    for object in objects() {
        let (object, conditions) = (Box::new(object), Conditions::default());
        all.push(Change::PutPart {
            target: target(),
            upload: upload(),
            number: number(10_000),
            part: object.clone(),
        });
        all.push(Change::Put { target: target(), object, conditions });
    }
    all
}

fn requests() -> Vec<Request> {
    let parts = PartsRequest { target: target(), upload: upload(), after: u16::MAX, limit: 1000 };
    let uploads = UploadsRequest {
        bucket: BucketId::new(1),
        prefix: "a/".into(),
        delimiter: "/".into(),
        after: "\0".into(),
        after_upload: Some(upload()),
        limit: 3,
    };
    let list = ListRequest {
        bucket: BucketId::new(1),
        prefix: String::new(),
        delimiter: "ä".into(),
        after: "b".into(),
        limit: 1,
    };
    let (session, head) = (SessionId::new(4), head());
    let name = BucketName::new("abc").expect("a name");
    let new_key = Box::new(NewKey {
        id: "K".into(),
        wrapped_secret: vec![1],
        expires_us: Some(2),
        policy: None,
    });
    let (id, key) = (UserId::new("id"), "K".to_owned());
    let user_changes = [
        UserChange::Create { user: Box::new(user()), key: new_key.clone() },
        UserChange::Remove(id.clone()),
        UserChange::SetPolicy { user: id.clone(), policy: None },
        UserChange::AddKey { user: id.clone(), key: new_key },
        UserChange::RemoveKey { user: id.clone(), key: key.clone() },
        UserChange::EnableKey { user: id.clone(), key, enabled: true },
        UserChange::SetQuota { user: id, quota: Quota { objects: Some(0), bytes: None } },
    ];
    let set_name = name.clone();
    let mut all: Vec<_> = changes()
        .into_iter()
        .map(|change| RangeRequest::Change { head, change })
        .chain([
            RangeRequest::Look { target: target(), version: None },
            RangeRequest::Read { target: target(), version: Some(versions()[1]) },
            RangeRequest::Versions(VersionsRequest {
                bucket: BucketId::new(1),
                prefix: "a/".into(),
                delimiter: "/".into(),
                after: "a/b".into(),
                after_version: Some(VersionId::Null),
                limit: 3,
            }),
            RangeRequest::List(list),
            RangeRequest::Upload { target: target(), upload: upload() },
            RangeRequest::Parts(parts.clone()),
            RangeRequest::PartBodies(parts),
            RangeRequest::Uploads(UploadsRequest { after_upload: None, ..uploads.clone() }),
            RangeRequest::Uploads(uploads),
            RangeRequest::Hold { session, file: FileName::new("body-1-2") },
            RangeRequest::Release { session, file: FileName::new("body-1-2") },
            RangeRequest::Stored,
            RangeRequest::Check { run: 1 << 60 },
            RangeRequest::Route { session, sent_us: 9 },
            RangeRequest::CloseSession { epoch: 9, session },
            RangeRequest::Sweep { epoch: 9, session },
            RangeRequest::Split { epoch: 9, at: None },
            RangeRequest::Split { epoch: 9, at: Some(bound()) },
            RangeRequest::Lifecycle(BucketId::new(9)),
            RangeRequest::Usage(vec![BucketId::new(1), BucketId::new(u64::MAX)]),
        ])
        .chain(configs().map(|config| {
            let bucket = BucketId::new(1);
            RangeRequest::Configure { epoch: 9, bucket, config }
        }))
        .map(|request| Request::Range(RangeId::new(3), request))
        .collect();
    all.extend(
        [
            CatalogRequest::OpenSession,
            CatalogRequest::Beat(session),
            CatalogRequest::Route { session, sent_us: 9 },
            CatalogRequest::CreateBucket {
                head,
                name: name.clone(),
                owner: UserId::new("me"),
                settings: Box::new(all_settings()),
            },
            CatalogRequest::RemoveBucket { head, name: name.clone() },
            CatalogRequest::SetVersioning {
                head,
                name: name.clone(),
                versioning: Versioning::Suspended,
            },
            CatalogRequest::Bucket(name),
            CatalogRequest::Buckets(None),
            CatalogRequest::Buckets(Some(UserId::new("me"))),
            CatalogRequest::Users,
            CatalogRequest::User("n".into()),
            CatalogRequest::Keys(UserId::new("id")),
            CatalogRequest::Watch { watcher: 1 << 60, seen: SeenChanges { epoch: 3, number: 9 } },
            CatalogRequest::Key("K".into()),
            CatalogRequest::UseKey("k1".into()),
            CatalogRequest::KeysInUse,
            CatalogRequest::Map,
            CatalogRequest::Config(BucketId::new(1)),
            CatalogRequest::IsOpen(session),
            CatalogRequest::Where,
            CatalogRequest::Register { name: "os1".into(), addr: addr() },
            CatalogRequest::MoveRange { range: RangeId::new(2), server: ObjectServerId::new(3) },
            CatalogRequest::SplitRange { range: RangeId::new(2), at: Some(bound()) },
            CatalogRequest::PrepareSplit { range: RangeId::new(2), epoch: 3, at: bound() },
            CatalogRequest::EndSplit { range: RangeId::new(2), epoch: 3, commit: true },
            CatalogRequest::ServerBeat(Box::new(beat())),
            CatalogRequest::Here(peer()),
            CatalogRequest::Status,
        ]
        .into_iter()
        .chain(user_changes.map(|change| CatalogRequest::ChangeUser { head, change }))
        .chain(settings().into_iter().map(Box::new).map(|setting| CatalogRequest::SetBucket {
            head,
            name: set_name.clone(),
            setting,
        }))
        .map(Request::Catalog),
    );
    all.extend([ServerRequest::Ping, ServerRequest::BeatNow].map(Request::Server));
    all
}

fn bound() -> RangeBound {
    RangeBound { bucket: BucketId::new(7), key: "a/b".to_owned() }
}

fn settings() -> Vec<Setting> {
    let grantees = [
        Grantee::User(UserId::new("id")),
        Grantee::All,
        Grantee::Authenticated,
        Grantee::LogDelivery,
    ];
    let permissions = [
        Permission::Full,
        Permission::Read,
        Permission::Write,
        Permission::ReadAcl,
        Permission::WriteAcl,
    ];
    let grants = grantees.iter().flat_map(|grantee| {
        permissions.map(|permission| Grant { grantee: grantee.clone(), permission })
    });
    let texts = |text: &str| vec![text.to_owned(), "*".to_owned()];
    let rule = CorsRule {
        id: "r".into(),
        origins: texts("http://a"),
        methods: texts("GET"),
        headers: texts("x-a"),
        expose: texts("etag"),
        max_age: Some(5),
    };
    vec![
        Setting::Policy(Some("{}".into())),
        Setting::PublicAccess(PublicAccess { block_acls: false, ..PublicAccess::default() }),
        Setting::Ownership(Ownership::Writer),
        Setting::Acl(grants.collect()),
        Setting::Cors(vec![rule, CorsRule::default()]),
        Setting::Tags([("a".to_owned(), "1".to_owned()), ("b".to_owned(), String::new())].into()),
        Setting::Lock(lock_rules()[2]),
        Setting::Quota(Quota { objects: Some(1 << 40), bytes: None }),
        Setting::Encryption(BucketEncryption {
            default: Some(DefaultEncryption::Kms { key: Some("k".into()), bucket_key: true }),
            blocks_customer_keys: false,
        }),
        Setting::Lifecycle(Some(lifecycle())),
        Setting::Storage(storage()),
    ]
}

fn all_settings() -> BucketSettings {
    let mut all = BucketSettings::default();
    settings().into_iter().for_each(|setting| all.set(setting));
    all
}

#[test]
fn settings_have_one_form() {
    assert_eq!(BucketSettings::default().encode(), [0]);
    assert_eq!(all_settings().chosen(), settings());
    let policy = Setting::Policy(Some("p".into()));
    let tags = Setting::Tags([("a".to_owned(), "1".to_owned())].into());
    let list = |list: &[Setting]| {
        let mut out = Vec::new();
        put_list(&mut out, list);
        BucketSettings::decode(&out)
    };
    assert!(list(&[policy.clone(), tags.clone()]).is_some());
    assert_eq!(list(&[tags, policy.clone()]), None, "another order");
    assert_eq!(list(&[policy.clone(), policy]), None, "twice");
    assert_eq!(list(&[Setting::Policy(None)]), None, "as in a new bucket");
    assert_eq!(list(&[Setting::Lifecycle(None)]), None, "as in a new bucket");
    assert_eq!(list(&[Setting::Storage(StorageRule::default())]), None, "as in a new bucket");
    let no_code = StorageRule { durability: Some(Policy::plain(6, 1)), compression: None };
    assert_eq!(list(&[Setting::Storage(no_code)]), None, "no policy");
    for half in halves_of_encryption() {
        assert_eq!(list(&[half]), None, "a change alone, which rows do not have");
    }
}

/// Changes of one half of how new objects are encrypted.
fn halves_of_encryption() -> [Setting; 4] {
    let kms = DefaultEncryption::Kms { key: Some("k".into()), bucket_key: true };
    [
        Setting::DefaultEncryption(Some(kms)),
        Setting::DefaultEncryption(None),
        Setting::CustomerKeysBlocked(true),
        Setting::CustomerKeysBlocked(false),
    ]
}

#[test]
fn half_of_how_objects_are_encrypted_is_changed_alone() {
    for half in halves_of_encryption() {
        let name = BucketName::new("abc").expect("a name");
        let setting = Box::new(half.clone());
        let set = CatalogRequest::SetBucket { head: head(), name, setting };
        check(&Request::Catalog(set));
        for blocks_customer_keys in [false, true] {
            let default = Some(DefaultEncryption::S3);
            let before = BucketEncryption { default, blocks_customer_keys };
            let mut settings = all_settings();
            settings.set(Setting::Encryption(before.clone()));
            settings.set(half.clone());
            let behind = match half.clone() {
                Setting::DefaultEncryption(default) => BucketEncryption { default, ..before },
                Setting::CustomerKeysBlocked(blocks_customer_keys) => {
                    BucketEncryption { blocks_customer_keys, ..before }
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(settings.encryption, behind, "{half:?}");
        }
    }
}

fn answers() -> Vec<Result<Reply, Error>> {
    let key = ObjectKey::new("k").expect("a key");
    let info = |object| ObjectInfo { stamp: Stamp::new(3), has_id: true, object };
    let infos: Vec<_> = objects().into_iter().map(info).collect();
    let mut entries = vec![Listed::Prefix("a/".into())];
    entries.extend(
        infos.iter().map(|info| Listed::Object { key: key.clone(), info: Box::new(info.clone()) }),
    );
    let version = |info: &ObjectInfo| ListedVersion::Version {
        key: key.clone(),
        info: Box::new(info.clone()),
        latest: true,
    };
    let mut listed = vec![
        ListedVersion::Prefix("a/".into()),
        ListedVersion::Marker {
            key: key.clone(),
            version: versions()[0],
            stamp: Stamp::new(5),
            owner: UserId::new("me"),
            latest: false,
        },
    ];
    listed.extend(infos.iter().map(version));
    let ObjectFacts { etag, checksums, .. } = facts();
    let end = UploadEnd { stamp: Stamp::new(4), etag: etag.clone(), checksums: checksums.clone() };
    let shown = |end| UploadInfo { id: upload(), upload: new_upload(None), end };
    let part = Part {
        number: number(1),
        stamp: Stamp::new(4),
        data_id: DataId::new(5),
        size: 6,
        etag,
        checksums,
    };
    let uploads = vec![
        ListedUpload::Prefix("p".into()),
        ListedUpload::Upload { key, info: Box::new(shown(None)) },
    ];
    let bucket = Bucket {
        id: BucketId::new(1),
        name: BucketName::new("abc").expect("a name"),
        owner: UserId::new("me"),
        created_us: 1,
        versioning: Versioning::Enabled,
    };
    let access = AccessKey {
        id: "K".into(),
        user: user(),
        wrapped_secret: vec![],
        enabled: false,
        expires_us: Some(1),
        policy: Some("{}".into()),
    };
    let at = SeenChanges { epoch: 2, number: 1 };
    let kept = [KeptName::Bucket(bucket.name.clone()), KeptName::Key("K".into())];
    let room = Room { objects: None, bytes: Some(1 << 40) };
    let views = [BucketSettings::default(), all_settings()].map(|settings| CatalogReply::Bucket {
        found: Box::new(BucketView { bucket: bucket.clone(), settings, room }),
        at,
    });
    let usage = BucketUsage {
        objects: 3,
        older: 1,
        bytes: 1 << 50,
        markers: 7,
        uploads: 2,
        upload_bytes: u64::MAX,
    };
    let bodies = infos.iter().map(|info| (number(7), info.clone())).collect();
    let mut all: Vec<_> =
        infos.iter().map(|info| RangeReply::Object(Box::new(info.clone()))).collect();
    all.extend([
        RangeReply::Changed(ChangeReply {
            committed: Committed {
                stamp: Stamp::new(1),
                version: Some(versions()[1]),
                marker: true,
            },
            by_earlier: true,
        }),
        RangeReply::Versions(VersionsPage { entries: listed, more: true }),
        RangeReply::Route(7),
        RangeReply::Done,
        RangeReply::Configured { is_empty: true },
        RangeReply::Usage(vec![BucketUsage::default(), usage]),
        RangeReply::Lifecycle(LifecycleState { last_pass_us: 1 << 50, removed: 7, behind_us: 8 }),
        RangeReply::Page(ListPage { entries, next: Some("n".into()) }),
        RangeReply::Page(ListPage::default()),
        RangeReply::Upload(Box::new(shown(Some(end)))),
        RangeReply::Parts(PartsPage { parts: vec![part], more: true }),
        RangeReply::PartBodies(bodies),
        RangeReply::Uploads(UploadsPage { entries: uploads, more: false }),
        RangeReply::Held { gone: true },
        RangeReply::Checked(FilesChecked {
            run: 7,
            done: true,
            files: 300,
            corrected: 2,
            restored: 1,
            removed: 9,
            failed: Some("no".to_owned()),
        }),
        RangeReply::Stored(StoredBytes { live: 1 << 40, garbage: 3, trash: 2, written: 1 }),
    ]);
    let mut all: Vec<_> = all.into_iter().map(|reply| Ok(Reply::Range(reply))).collect();
    all.extend(
        [
            CatalogReply::Done,
            CatalogReply::Session(SessionId::new(1)),
            CatalogReply::Route(u64::MAX),
            CatalogReply::Made(bucket.clone()),
            CatalogReply::Buckets(vec![bucket.clone(), bucket]),
            CatalogReply::Key { found: None, at },
            CatalogReply::Key { found: Some(Box::new(access.clone())), at },
            CatalogReply::Users(vec![user()]),
            CatalogReply::User(None),
            CatalogReply::User(Some(Box::new(user()))),
            CatalogReply::Keys(vec![access]),
            CatalogReply::KeysInUse(vec!["k1".into(), "app/3".into()]),
            CatalogReply::Changes(KeptChanges { seen: at, names: None }),
            CatalogReply::Changes(KeptChanges { seen: at, names: Some(kept.to_vec()) }),
            CatalogReply::Map(RangeMap::even(4)),
            CatalogReply::Halves { low: RangeId::new(5), high: RangeId::new(6) },
            CatalogReply::SplitEnded { committed: true },
            CatalogReply::Open(true),
            CatalogReply::Where(vec![
                RangeAt { range: RangeId::new(1), addr: None },
                RangeAt { range: RangeId::new(2), addr: Some(addr()) },
            ]),
            CatalogReply::Registered { server: ObjectServerId::new(3), boot: 1 << 40 },
            CatalogReply::Grant(Box::new(grant())),
            CatalogReply::Status(Box::new(status())),
        ]
        .into_iter()
        .chain(configs().map(CatalogReply::Config))
        .chain(views)
        .map(|reply| Ok(Reply::Catalog(reply))),
    );
    all.push(Ok(Reply::Server));
    let cause = || "why".to_owned();
    all.extend(
        [
            Error::NoSuchBucket,
            Error::BucketExists { own: true },
            Error::BucketNotEmpty,
            Error::TooManyBuckets,
            Error::NoSuchKey,
            Error::NoSuchVersion,
            Error::Marker { version: versions()[1], stamp: Stamp::new(7), asked: true },
            Error::NoSuchUpload,
            Error::NoSuchPart { number: u16::MAX },
            Error::Locked,
            Error::Unheld,
            Error::Precondition,
            Error::NameTaken,
            Error::NoSuchUser,
            Error::NoSuchAccessKey,
            Error::UserHasBuckets,
            Error::TooManyUsers,
            Error::Busy { cause: cause() },
            Error::Unknown { cause: cause() },
            Error::Reroute,
            Error::SessionOver,
            Error::Replaced,
            Error::Full,
            Error::Damaged { what: cause() },
            Error::Invalid { message: cause() },
        ]
        .map(Err),
    );
    all
}

/// Reads back, and neither a part of it nor more than it is one.
fn check<T: Field + PartialEq + Debug>(value: &T) {
    let bytes = encode(value);
    assert_eq!(decode::<T>(&bytes).as_ref(), Some(value));
    for end in 0..bytes.len() {
        assert_eq!(decode::<T>(&bytes[..end]), None, "{end} bytes of {value:?}");
    }
    assert_eq!(decode::<T>(&[&bytes[..], &[0]].concat()), None, "with more: {value:?}");
}

#[test]
fn messages_read_back() {
    requests().iter().for_each(check);
    answers().iter().for_each(check);
}

/// Questions for what had no room in an answer before. They came later than the corpus.
fn requests_for_pages() -> Vec<Request> {
    let (name, key) = (BucketName::new("abc").expect("a name"), "K".to_owned());
    let (user, of) = (UserId::new("id"), Some(UserId::new("me")));
    let requests = [
        CatalogRequest::UsersBehind("n".into()),
        CatalogRequest::MapBehind(bound()),
        CatalogRequest::BucketsBehind { of: None, name: name.clone() },
        CatalogRequest::BucketsBehind { of, name },
        CatalogRequest::KeysBehind { user, key },
        CatalogRequest::StatusBehind(bound()),
    ];
    requests.map(Request::Catalog).to_vec()
}

/// The answers.
fn pages() -> Vec<Result<Reply, Error>> {
    let places = vec![RangePlace { range: RangeId::new(3), first: bound() }];
    let bucket = Bucket {
        id: BucketId::new(1),
        name: BucketName::new("abc").expect("a name"),
        owner: UserId::new("me"),
        created_us: 1,
        versioning: Versioning::Enabled,
    };
    let key = AccessKey {
        id: "K".into(),
        user: user(),
        wrapped_secret: vec![],
        enabled: true,
        expires_us: None,
        policy: None,
    };
    let (term, count) = (1 << 40, 4096);
    let replies = [
        CatalogReply::UsersPage { users: vec![user()], more: true },
        CatalogReply::MapPage(RangeMapPage { term, count, places }),
        CatalogReply::BucketsPage { buckets: vec![bucket], more: false },
        CatalogReply::KeysPage { keys: vec![key], more: true },
        CatalogReply::StatusPage(Box::new(StatusPage { term, count, status: status() })),
    ];
    replies.map(|reply| Ok(Reply::Catalog(reply))).to_vec()
}

#[test]
fn pages_read_back() {
    requests_for_pages().iter().for_each(check);
    pages().iter().for_each(check);
    let place = RangePlace { range: RangeId::new(3), first: bound() };
    assert_eq!(place.encoded_len(), encode(&place).len());
}

#[test]
fn texts_that_are_no_names_are_refused() {
    let bytes = Request::Catalog(CatalogRequest::Key("abc".into())).encode();
    let as_bucket = [&[1, 5], &bytes[2..]].concat();
    assert!(Request::decode(&as_bucket).is_some());
    let upper = as_bucket.iter().map(|byte| if *byte == b'b' { b'B' } else { *byte });
    assert_eq!(Request::decode(&upper.collect::<Vec<_>>()), None);
    assert_eq!(Request::decode(&[1, 8, 1, 0xff]), None, "it is no UTF-8");
}

/// The corpus of the fuzz target: the tests write nothing; `OBJECT_WRITE_CORPUS=1` writes it again.
#[test]
fn the_corpus_is_what_this_version_writes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let asked = requests().into_iter().step_by(3).map(|request| [vec![0], request.encode()]);
    let answered = answers().into_iter().step_by(3).map(|answer| [vec![1], encode_answer(&answer)]);
    for (index, bytes) in asked.chain(answered).enumerate() {
        let (path, bytes) = (dir.join(format!("message-{index:02}")), bytes.concat());
        crate::fuzz::fuzz_object_message(&bytes);
        if std::env::var_os("OBJECT_WRITE_CORPUS").is_some() {
            fs::create_dir_all(&dir).expect("a directory");
            fs::write(&path, &bytes).expect("it is written");
        }
        assert_eq!(fs::read(&path).expect("it is there"), bytes, "{index} was written differently");
    }
}

/// The bytes of messages do not change without a word: processes of two versions talk to each other.
#[test]
fn the_bytes_are_these() {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let look = RangeRequest::Look { target: target(), version: None };
    let look = Request::Range(RangeId::new(3), look);
    assert_eq!(hex(look.encode()), "0003000000000000000107000000000000000561002fc3a400");
    let (by, conditions) = (UserId::new("me"), Conditions::default());
    let delete = Change::Delete { target: target(), nonce: 300, by, conditions };
    let delete = RangeRequest::Change { head: head(), change: delete };
    let delete = Request::Range(RangeId::new(3), delete);
    let bytes = "00030000000000000000ffffffffffffffff01ffffffff0f00ac02808080808020808080808040ffffffffffffffffff01\
                 0107000000000000000561002fc3a4ac02026d65000000";
    assert_eq!(hex(delete.encode()), bytes);
    let answer = encode_answer(&Err(Error::NoSuchPart { number: 300 }));
    assert_eq!(hex(answer), "0006ac02");
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_have_one_form(bytes: Vec<u8>, like in 0usize..1000, at in 0usize..400, byte: u8) {
        crate::fuzz::fuzz_object_message(&bytes);
        // Near to what is one.
        let requests = requests();
        let mut near = requests[like % requests.len()].encode();
        let place = at % near.len();
        near[place] = byte;
        crate::fuzz::fuzz_object_message(&[&[0][..], &near].concat());
        let answers = answers();
        let mut near = encode_answer(&answers[like % answers.len()]);
        let place = at % near.len();
        near[place] = byte;
        crate::fuzz::fuzz_object_message(&[&[1][..], &near].concat());
    }
}

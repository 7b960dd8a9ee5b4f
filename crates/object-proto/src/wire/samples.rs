//! Values of messages, for tests of these.

use std::net::SocketAddr;
use std::sync::Arc;

use wire::control::{Compression, Policy};

use super::*;
use crate::envelope::Envelope;
use crate::ids::{BucketId, CallId, DataId, ObjectServerId, RangeId, SessionId, Stamp, UserId};
use crate::names::ObjectKey;
use crate::object::{ChecksumKind, Etag, FileName, Metadata};
use crate::parts::{PartMap, PartNumber, UploadId};
use crate::tags::ObjectTags;

mod answers;
mod requests;

pub use answers::{answers, later_answers};
pub use requests::{later_requests, requests};

/// All requests.
pub fn all_requests() -> Vec<Request> {
    [requests(), later_requests()].concat()
}

/// All answers.
pub fn all_answers() -> Vec<Result<Reply, Error>> {
    [answers(), later_answers()].concat()
}

pub fn number(number: u64) -> PartNumber {
    PartNumber::new(number).expect("a number")
}

pub fn target() -> Target {
    Target { bucket: BucketId::new(7), key: ObjectKey::new("a\0/ä").expect("a key") }
}

pub fn addr() -> SocketAddr {
    "[2001:db8::1]:7601".parse().expect("an address")
}

pub fn peer() -> Peer {
    Peer { role: PeerRole::Gateway, name: "gw1".into(), addr: addr(), connections: 300 }
}

pub fn beat() -> ServerBeat {
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

pub fn grant() -> ServerGrant {
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

pub fn status() -> ServiceStatus {
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

pub fn configs() -> impl Iterator<Item = BucketConfig> {
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

pub fn storage() -> StorageRule {
    StorageRule { durability: Some(Policy::ec(4, 2)), compression: Some(Compression::LZ4) }
}

pub fn lifecycle() -> Arc<Lifecycle> {
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

pub fn upload() -> UploadId {
    UploadId { stamp: Stamp::new(1 << 60), nonce: u64::MAX }
}

pub fn facts() -> ObjectFacts {
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

pub fn tags() -> ObjectTags {
    let tags = [("a", "b"), ("ä", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    ObjectTags::new(tags.into()).expect("tags")
}

pub fn acl() -> Vec<Grant> {
    let of = |grantee, permission| Grant { grantee, permission };
    vec![
        of(Grantee::User(UserId::new("me")), Permission::Full),
        of(Grantee::All, Permission::ReadAcl),
    ]
}

pub fn locks() -> [ObjectLock; 3] {
    let until = |mode| Some(Retention { mode, until_us: 1 << 51 });
    [
        ObjectLock { retention: until(RetentionMode::Compliance), hold: None },
        ObjectLock { retention: until(RetentionMode::Governance), hold: Some(true) },
        ObjectLock { retention: None, hold: Some(false) },
    ]
}

pub fn lock_rules() -> [LockRule; 3] {
    let default = |mode, period| LockRule { default: Some((mode, period)) };
    [
        LockRule::default(),
        default(RetentionMode::Governance, LockPeriod::Days(300)),
        default(RetentionMode::Compliance, LockPeriod::Years(1)),
    ]
}

pub fn objects() -> Vec<NewObject> {
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

pub fn head() -> RequestHead {
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

pub fn conditions() -> [Conditions; 3] {
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

pub fn new_upload(checksum: Option<ChecksumPlan>) -> NewUpload {
    let ObjectFacts { metadata, tags, owner, acl, .. } = facts();
    let encryption = checksum.and(facts().encryption);
    NewUpload { nonce: 5, checksum, metadata, tags, owner, acl, lock: locks()[0], encryption }
}

pub fn versions() -> [VersionId; 2] {
    [VersionId::Null, VersionId::Of { stamp: Stamp::new(1 << 50), nonce: u64::MAX }]
}

pub fn user() -> User {
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

pub fn bound() -> RangeBound {
    RangeBound { bucket: BucketId::new(7), key: "a/b".to_owned() }
}

pub fn settings() -> Vec<Setting> {
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

pub fn all_settings() -> BucketSettings {
    let mut all = BucketSettings::default();
    settings().into_iter().for_each(|setting| all.set(setting));
    all
}

/// Changes of a part of a setting alone. Rows do not have them.
pub fn parts_of_settings() -> Vec<Setting> {
    let kms = DefaultEncryption::Kms { key: Some("k".into()), bucket_key: true };
    vec![
        Setting::DefaultEncryption(Some(kms)),
        Setting::DefaultEncryption(None),
        Setting::CustomerKeysBlocked(true),
        Setting::CustomerKeysBlocked(false),
        Setting::Durability(Some(Policy::ec(8, 3))),
        Setting::Durability(None),
        Setting::Compression(Some(Compression::LZ4)),
        Setting::Compression(None),
        Setting::QuotaObjects(Some(1 << 41)),
        Setting::QuotaObjects(None),
        Setting::QuotaBytes(Some(0)),
        Setting::QuotaBytes(None),
        Setting::PublicPoliciesBlocked(true),
        Setting::PublicPoliciesBlocked(false),
    ]
}

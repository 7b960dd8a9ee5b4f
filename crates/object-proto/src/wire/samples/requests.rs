//! Requests.

use super::*;
use crate::names::BucketName;

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

/// Requests, each variant but those of [`later_requests`].
pub fn requests() -> Vec<Request> {
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

/// Requests that came later than those. What is new comes here: the corpus has a third of the others alone, and
/// all of these.
pub fn later_requests() -> Vec<Request> {
    let (name, key) = (BucketName::new("abc").expect("a name"), "K".to_owned());
    let (user, of) = (UserId::new("id"), Some(UserId::new("me")));
    let set_name = name.clone();
    let pages = [
        CatalogRequest::UsersBehind("n".into()),
        CatalogRequest::MapBehind(bound()),
        CatalogRequest::BucketsBehind { of: None, name: name.clone() },
        CatalogRequest::BucketsBehind { of, name },
        CatalogRequest::KeysBehind { user, key },
        CatalogRequest::StatusBehind(bound()),
    ];
    let head = head();
    let settings = parts_of_settings().into_iter().map(Box::new);
    let settings = settings.map(|setting| {
        let name = set_name.clone();
        CatalogRequest::SetBucket { head, name, setting }
    });
    let user = || UserId::new("id");
    let user_changes = [
        UserChange::SetQuotaObjects { user: user(), objects: Some(1 << 40) },
        UserChange::SetQuotaObjects { user: user(), objects: None },
        UserChange::SetQuotaBytes { user: user(), bytes: Some(0) },
        UserChange::SetQuotaBytes { user: user(), bytes: None },
    ];
    let user_changes = user_changes.map(|change| CatalogRequest::ChangeUser { head, change });
    pages.into_iter().chain(settings).chain(user_changes).map(Request::Catalog).collect()
}

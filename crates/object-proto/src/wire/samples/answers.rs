//! Answers.

use super::*;
use crate::names::BucketName;
use crate::ranges::RangeMap;

/// Answers, each variant but those of [`later_answers`].
pub fn answers() -> Vec<Result<Reply, Error>> {
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

/// Answers that came later than those. What is new comes here, as in [`later_requests`].
pub fn later_answers() -> Vec<Result<Reply, Error>> {
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

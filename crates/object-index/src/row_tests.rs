//! Rows read back, and any bytes are refused or read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use object_proto::limits::SMALL_MAX;
use object_proto::{
    BucketId, BucketName, BucketSettings, CallId, Checksum, ChecksumKind, ChecksumPlan, Committed,
    DataId, Envelope, Etag, FileName, Grant, Grantee, Metadata, NewObject, NewUpload, ObjectData,
    ObjectFacts, ObjectInfo, ObjectKey, ObjectLock, ObjectTags, PartMap, PartNumber, Permission,
    Quota, RangeBound, Retention, RetentionMode, SessionId, Stamp, Target, UploadEnd, UploadId,
    User, UserId, VersionId, Versioning,
};
use proptest::prelude::*;
use table::Place;

use crate::file_rows::{BodyRow, FileOf, FileRow, FileState};
use crate::headers::Headers;
use crate::map::{decode_map, map_apart};
use crate::row::{
    BucketRow, InLog, KeyRow, LogRow, ObjectRow, decode_committed, decode_session, decode_stamp,
    decode_user, encode_committed, encode_session, encode_stamp, encode_user, moved_row,
};
use crate::server_row::{RangeRow, ServerRow};

use crate::upload_row::{Due, UploadRow};
use crate::usage::decode_usage;

pub(crate) fn info(size: usize, value: usize, inline: bool) -> ObjectInfo {
    let headers = BTreeMap::from([("content-type".to_owned(), "v".repeat(value))]);
    let checksums =
        ChecksumKind::ALL.map(|kind| Checksum { kind, value: vec![7; kind.bytes()], parts: 3 });
    let facts = ObjectFacts {
        etag: Etag::new("0123"),
        checksums: checksums.to_vec(),
        metadata: Metadata::new(headers).unwrap(),
        owner: UserId::new("me"),
        ..ObjectFacts::default()
    };
    let data = match inline {
        true => ObjectData::Inline(vec![9; size]),
        false => ObjectData::File { file: FileName::new("body-1-2"), offset: 1 << 30 },
    };
    let object = NewObject { data_id: DataId::new(5), size: size as u64, facts, data };
    ObjectInfo { stamp: Stamp::new(77), has_id: false, object }
}

/// Permissions of all kinds.
pub(crate) fn acl() -> Vec<Grant> {
    let to = |grantee, permission| Grant { grantee, permission };
    vec![
        to(Grantee::User(UserId::new("me")), Permission::Full),
        to(Grantee::User(UserId::new("you")), Permission::Read),
        to(Grantee::All, Permission::ReadAcl),
        to(Grantee::Authenticated, Permission::WriteAcl),
        to(Grantee::LogDelivery, Permission::Write),
    ]
}

/// Locks of all kinds.
pub(crate) fn locks() -> [ObjectLock; 6] {
    let until = |mode| Some(Retention { mode, until_us: 1 << 51 });
    let lock = |retention, hold| ObjectLock { retention, hold };
    [
        lock(None, Some(false)),
        lock(None, Some(true)),
        lock(until(RetentionMode::Governance), None),
        lock(until(RetentionMode::Governance), Some(true)),
        lock(until(RetentionMode::Compliance), None),
        lock(until(RetentionMode::Compliance), Some(false)),
    ]
}

/// The corpus of the fuzz targets: the tests write nothing; `OBJECT_WRITE_CORPUS=1` writes it again.
#[test]
fn the_corpus_is_what_this_version_writes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    for (name, run, bytes) in crate::fuzz::corpus() {
        run(&bytes);
        let path = dir.join(name);
        if std::env::var_os("OBJECT_WRITE_CORPUS").is_some() {
            fs::create_dir_all(&dir).unwrap();
            fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), bytes, "{name} was written differently before");
    }
}

#[test]
fn objects_read_back_with_metadata_in_their_row_or_apart() {
    for (size, value, inline) in
        [(0, 0, true), (512, 200, true), (512, 1000, false), (9, 4000, true)]
    {
        let (mut info, call) =
            (info(size, value, inline), inline.then(|| CallId::new(u128::MAX - 1)));
        if size > 9 {
            let tags = [("a", "b"), ("ä", "")].map(|(a, b)| (a.to_owned(), b.to_owned()));
            info.object.facts.tags = ObjectTags::new(tags.into()).unwrap();
        }
        if inline {
            info.object.facts.acl = acl();
        }
        if size > 0 {
            info.object.facts.encryption = Envelope::new(vec![size as u8; 1 + value / 2]);
        }
        let (row, apart) = ObjectRow::encode(info.stamp, &info.object, call, info.has_id);
        let mut read = ObjectRow::decode(&row).expect("it reads back");
        assert_eq!((read.metadata_apart, read.call), (apart.is_some(), call));
        assert_eq!(apart.is_some(), value > 240);
        if let Some(apart) = apart {
            let (stamp, headers) = Headers::decode(&apart).expect("it reads back");
            assert_eq!(stamp, info.stamp);
            headers.give(&mut read.info.object.facts);
            // A shorter value is what one without permissions, or tags, has.
            for end in 0..9 {
                assert_eq!(Headers::decode(&apart[..end]), None);
            }
        }
        assert_eq!(read.info, info);
        for end in 0..row.len() {
            assert_eq!(ObjectRow::decode(&row[..end]), None, "{end} bytes of {}", row.len());
        }
    }
}

#[test]
fn a_lock_is_in_its_row_whatever_is_apart() {
    for lock in locks() {
        for headers in [10, 1000] {
            let mut info = info(9, headers, true);
            info.object.facts.lock = lock;
            for call in [None, Some(CallId::new(7))] {
                let (row, apart) = ObjectRow::encode(info.stamp, &info.object, call, true);
                let read = ObjectRow::decode(&row).expect("it reads back");
                assert_eq!((read.info.object.facts.lock, read.call), (lock, call));
                assert_eq!(apart.is_some(), headers > 240);
                for end in 0..row.len() {
                    assert_eq!(ObjectRow::decode(&row[..end]), None, "{end} bytes");
                }
            }
        }
        let upload = NewUpload { lock, ..upload() };
        let row = UploadRow { upload, abort_us: 1 << 52, end: Some(end()) };
        assert_eq!(UploadRow::decode(&row.encode()), Some(row));
    }
}

#[test]
fn a_place_is_the_end_of_its_row() {
    let mut object = info(9, 0, true).object;
    object.data = ObjectData::Piece(vec![1; 60]);
    let call = Some(CallId::new(1));
    let (mut row, _) = ObjectRow::encode(Stamp::new(1), &object, call, false);
    let read = ObjectRow::decode(&row).expect("it reads back");
    assert_eq!(read.log, Some(InLog::Unplaced));
    let file = FileName::new("log-00000007-00000009");
    let place = Place::of(file.as_str(), 77).expect("a log's name");
    let at = row.len() - Place::BYTES;
    row[at..].copy_from_slice(&place.encode());
    let read = ObjectRow::decode(&row).expect("it reads back");
    assert_eq!(read.log, Some(InLog::At(place)));
    assert_eq!(read.info.object.data, ObjectData::Logged { file, offset: 77 });
    assert_eq!(ObjectRow::encode(Stamp::new(1), &read.info.object, call, false).0, row);
    object.size = SMALL_MAX as u64 + 1;
    for piece in [vec![], vec![1; 9], vec![1; SMALL_MAX + 60]] {
        object.data = ObjectData::Piece(piece);
        assert!(!ObjectRow::holds(&object));
    }
    for log in [LogRow::default(), LogRow { dead: 1 << 40, trash_us: Some(0), counted: true }] {
        assert_eq!(LogRow::decode(&log.encode()), Some(log));
    }
}

#[test]
fn a_row_that_moves_keeps_all_but_its_place() {
    for headers in [10, 2000] {
        let info = info(9, headers, false);
        let (row, _) = ObjectRow::encode(info.stamp, &info.object, Some(CallId::new(3)), true);
        let (file, offset) = (FileName::new("kept-1"), 5);
        let moved = moved_row(&row, (&file, offset)).expect("it is in a file");
        let (old, mut new) = (ObjectRow::decode(&row).unwrap(), ObjectRow::decode(&moved).unwrap());
        assert_eq!(new.info.object.data, ObjectData::File { file, offset });
        new.info.object.data = old.info.object.data.clone();
        assert_eq!(new, old);
    }
    let (inline, _) = ObjectRow::encode(Stamp::new(1), &info(9, 10, true).object, None, true);
    assert_eq!(moved_row(&inline, (&FileName::new("f"), 5)), None);
}

#[test]
fn a_delete_marker_reads_back_and_has_nothing_of_an_object() {
    let (stamp, me) = (Stamp::new(9), UserId::new("me"));
    for has_id in [false, true] {
        let value = ObjectRow::encode_marker(stamp, (7, &me), has_id);
        let row = ObjectRow::decode(&value).expect("it reads back");
        assert!(row.marker && row.info.has_id == has_id && row.info.object.facts.owner == me);
        let id = VersionId::Of { stamp, nonce: 7 };
        assert_eq!(row.info.version(), if has_id { id } else { VersionId::Null });
    }
    let (row, _) = ObjectRow::encode(stamp, &info(9, 10, true).object, None, true);
    let read = ObjectRow::decode(&row).expect("it reads back");
    assert!(!read.marker && read.info.has_id);
    // With the bit of a marker it would be none.
    let plain = ObjectRow::encode(stamp, &info(9, 10, true).object, None, false).0;
    let at = row.iter().zip(&plain).position(|(one, other)| one != other).expect("the bit");
    let marked: Vec<u8> =
        row.iter().enumerate().map(|(n, byte)| byte | if n == at { 8 } else { 0 }).collect();
    assert_eq!(ObjectRow::decode(&marked), None);
}

#[test]
fn other_rows_read_back() {
    let target = Target { bucket: BucketId::new(3), key: ObjectKey::new("a\0b").unwrap() };
    let stamp = Stamp::new(u64::MAX);
    let part = FileOf::Part(stamp, PartNumber::new(10_000).unwrap());
    for of in [FileOf::Object(stamp), part] {
        let target = target.clone();
        let row = BodyRow { data_id: DataId::new(1), size: 1 << 40, target, of };
        assert_eq!(BodyRow::decode(&row.encode()), Some(row));
    }
    for state in [FileState::Held, FileState::Sealed(0, 1 << 50), FileState::Trash(1 << 40, 7)] {
        let row = FileRow { live: 1 << 33, state };
        assert_eq!(FileRow::decode(&row.encode()), Some(row));
    }
    let id = VersionId::Of { stamp: Stamp::new(9), nonce: u64::MAX };
    for version in [None, Some(VersionId::Null), Some(id)] {
        for marker in [false, true] {
            let committed = Committed { stamp: Stamp::new(8), version, marker };
            let value = encode_committed(&committed);
            assert_eq!(decode_committed(&value), Some(committed));
            assert_eq!(value == encode_stamp(committed.stamp), !marker && version.is_none());
        }
    }
    assert_eq!(decode_stamp(&encode_stamp(Stamp::new(8))), Some(Stamp::new(8)));
    let bucket = object_proto::Bucket {
        id: BucketId::new(4),
        name: BucketName::new("abc").unwrap(),
        owner: UserId::new("me"),
        created_us: 5,
        versioning: Versioning::Off,
    };
    for (versioning, closing, order_due) in [
        (Versioning::Off, false, false),
        (Versioning::Enabled, true, false),
        (Versioning::Suspended, false, true),
        (Versioning::Off, true, true),
    ] {
        let bucket = object_proto::Bucket { versioning, ..bucket.clone() };
        let made_by = (SessionId::new(6), 7);
        let policy = Some("{}".to_owned());
        for settings in [BucketSettings::default(), BucketSettings { policy, ..Default::default() }]
        {
            let (bucket, changed) = (bucket.clone(), Stamp::new(1 << 50));
            let row = BucketRow { bucket, made_by, changed, closing, order_due, settings };
            assert_eq!(BucketRow::decode("abc", &row.encode()), Some(row));
        }
    }
    // Rows of before versioning, and of before owners asked for buckets.
    for (old, versioning) in [(&[][..], Versioning::Off), (&[2][..], Versioning::Suspended)] {
        let head = [1, 4, 0, 0, 0, 0, 0, 0, 0, 2, 109, 101, 5, 1, 0, 0, 0, 0, 0, 0, 0, 2];
        let row = BucketRow::decode("abc", &[&head, old].concat()).unwrap();
        assert_eq!((row.changed, row.closing), (Stamp::default(), false));
        assert_eq!(row.bucket, object_proto::Bucket { versioning, ..bucket.clone() });
    }
    for owner in [None, Some(object_proto::ObjectServerId::new(u32::MAX))] {
        let row = RangeRow {
            first: RangeBound { bucket: BucketId::new(9), key: "a".to_owned() },
            epoch: 1 << 40,
            owner,
        };
        assert_eq!(RangeRow::decode(&row.encode()), Some(row));
    }
    let addr = "[::1]:7000".parse().unwrap();
    let row = ServerRow { name: "os1".to_owned(), addr, given: 300, heard: 299 };
    assert_eq!(ServerRow::decode(&row.encode()), Some(row));
    let user = User {
        id: UserId::new("id"),
        name: "admin".to_owned(),
        display_name: "The admin".to_owned(),
        email: String::new(),
        admin: true,
        policy: None,
        quota: Quota::default(),
    };
    let old = [1, 5, 97, 100, 109, 105, 110, 9, 84, 104, 101, 32, 97, 100, 109, 105, 110, 1];
    assert_eq!(decode_user("id", &old).as_ref(), Some(&user), "a row of before policies");
    let other = User { email: "a@b".into(), policy: Some("{}".into()), ..user.clone() };
    let quota = Quota { objects: Some(0), bytes: Some(u64::MAX) };
    let bounded = User { quota, ..other.clone() };
    let old = encode_user(&other);
    assert_eq!(decode_user("id", &old[..old.len() - 2]).as_ref(), Some(&other), "before quotas");
    for user in [user, other, bounded] {
        assert_eq!(decode_user("id", &encode_user(&user)), Some(user));
    }
    let key = KeyRow {
        user: UserId::new("id"),
        wrapped_secret: vec![1, 2, 3],
        enabled: true,
        expires_us: None,
        policy: None,
    };
    let old = [1, 2, 105, 100, 3, 1, 2, 3, 1, 1, 0, 0, 0, 0, 0, 0, 0, 2];
    assert_eq!(KeyRow::decode(&old).as_ref(), Some(&key), "a row of before policies");
    let other = KeyRow { expires_us: Some(1 << 50), policy: Some("{}".into()), ..key.clone() };
    for key in [key, other] {
        assert_eq!(KeyRow::decode(&key.encode()), Some(key));
    }
    for closed in [false, true] {
        assert_eq!(decode_session(&encode_session(closed)), Some(closed));
    }
}

pub(crate) fn upload() -> NewUpload {
    let checksum = Some(ChecksumPlan { kind: ChecksumKind::Crc32, composite: true });
    let info = info(9, 10, true);
    NewUpload {
        nonce: 7,
        checksum,
        metadata: info.object.facts.metadata,
        tags: ObjectTags::new([("a".to_owned(), "b".to_owned())].into()).unwrap(),
        owner: info.object.facts.owner,
        acl: acl(),
        lock: locks()[2],
        encryption: Envelope::new(vec![5; 90]),
    }
}

pub(crate) fn end() -> UploadEnd {
    let facts = info(9, 10, true).object.facts;
    UploadEnd { stamp: Stamp::new(9), etag: facts.etag, checksums: facts.checksums }
}

#[test]
fn rows_of_uploads_read_back() {
    for end in [None, Some(end())] {
        for checksum in [None, upload().checksum] {
            let row = UploadRow {
                upload: NewUpload { checksum, ..upload() },
                abort_us: 1 << 52,
                end: end.clone(),
            };
            let value = row.encode();
            for end in 0..value.len() {
                assert_eq!(UploadRow::decode(&value[..end]), None, "{end} bytes");
            }
            assert_eq!(UploadRow::decode(&value), Some(row));
        }
    }
}

#[test]
fn a_map_of_parts_is_in_its_row_or_apart() {
    let id = UploadId { stamp: Stamp::new(5), nonce: 6 };
    for (parts, is_apart) in [(1, false), (10_000, false), (30, true)] {
        // As tools send them: the last one is shorter; or all of other sizes.
        let size = |at| if is_apart { at } else { 8 - u64::from(at == parts) };
        let all = (1..=parts).map(|at| (PartNumber::new(at).unwrap(), size(at)));
        let map = PartMap::of(id, all);
        let mut info = info(9, 10, true);
        info.object.size = map.size();
        info.object.data = ObjectData::Parts(map.clone());
        assert!(ObjectRow::holds(&info.object));
        let row =
            ObjectRow::decode(&ObjectRow::encode(info.stamp, &info.object, None, false).0).unwrap();
        assert_eq!(row.map_apart, is_apart);
        let apart = map_apart(info.stamp, &map);
        assert_eq!(apart.is_some(), is_apart);
        match apart {
            Some(apart) => assert_eq!(decode_map(&apart, id), Some((info.stamp, map.clone()))),
            None => assert_eq!(row.info, info),
        }
        for due in [
            Due::Abort,
            Due::Forget,
            Due::Parts(None),
            Due::Parts(Some(Stamp::new(9))),
            Due::OtherParts(map),
        ] {
            assert_eq!(Due::decode(&due.encode()), Some(due));
        }
        info.object.size += 1;
        assert!(!ObjectRow::holds(&info.object));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(mut value: Vec<u8>, versioned: bool) {
        if versioned && !value.is_empty() {
            value[0] = crate::fields::VERSION;
        }
        ObjectRow::decode(&value);
        FileRow::decode(&value);
        BodyRow::decode(&value);
        moved_row(&value, (&FileName::new("f"), 7));
        decode_usage(&value);
        Headers::decode(&value);
        decode_stamp(&value);
        LogRow::decode(&value);
        BucketRow::decode("abc", &value);
        decode_user("id", &value);
        KeyRow::decode(&value);
        decode_session(&value);
        UploadRow::decode(&value);
        decode_map(&value, UploadId { stamp: Stamp::new(1), nonce: 2 });
        Due::decode(&value);
    }

    #[test]
    fn an_object_that_a_row_holds_is_read_back(
        [etag, owner, file] in [1022_usize..1027, 1022_usize..1027, 1022_usize..1027],
        bytes in 510_usize..515,
        size in 510_u64..515,
        inline: bool,
        checksums in proptest::collection::vec((0..ChecksumKind::ALL.len(), proptest::bool::weighted(0.05)), 0..8),
    ) {
        let mut object = info(0, 0, inline).object;
        object.facts.etag = Etag::new("e".repeat(etag));
        object.facts.owner = UserId::new("o".repeat(owner));
        object.data = match inline {
            true => ObjectData::Inline(vec![1; bytes]),
            false => ObjectData::File { file: FileName::new("f".repeat(file)), offset: size },
        };
        object.size = size;
        let checksum = |(kind, more): (usize, bool)| {
            let kind = ChecksumKind::ALL[kind];
            Checksum { kind, value: vec![1; kind.bytes() + usize::from(more)], parts: 0 }
        };
        object.facts.checksums = checksums.into_iter().map(checksum).collect();
        let (row, _) = ObjectRow::encode(Stamp::new(1), &object, None, false);
        prop_assert_eq!(ObjectRow::decode(&row).is_some(), ObjectRow::holds(&object));
    }
}

//! Fuzz targets: plain functions over bytes, one for each kind of row, key and piece. The simulator's
//! tests replay them over the corpus in `tests/corpus/`; a coverage-guided run calls the same.
//!
//! Beside "no panic", each checks that what is accepted is written back as it was read.

use object_proto::{BucketId, DataId, ObjectFacts, ObjectInfo, ObjectKey, Target, UploadId};

use crate::file_rows::{BodyRow, FileRow};
use crate::headers::{Headers, encode_headers};
use crate::keys::{
    body_key, due_key, object_key, part_key, read_body_key, read_due_key, read_number_key,
    read_object_key, read_part_key, read_reply_key, read_text_key, read_upload_key,
    read_version_key, reply_key, upload_end_key, upload_key, version_key,
};
use crate::map::{decode_map, map_apart};
use crate::pass_rows::{BucketPassRow, PassRow};
use crate::piece::Body;
use crate::row::{
    BucketRow, InLog, KeyRow, LogRow, ObjectRow, decode_committed, decode_session, decode_stamp,
    decode_user, encode_committed, encode_session, encode_stamp,
};
use crate::server_row::{RangeRow, ServerRow};
use crate::upload_row::{Due, UploadRow};
use crate::usage::{decode_usage, encode_usage};

/// A key of a range's table.
pub fn fuzz_object_key(bytes: &[u8]) {
    if let (Some(target), Some(&section)) = (read_object_key(bytes), bytes.first()) {
        assert_eq!(object_key(section, &target), bytes);
    }
    if let (Some((session, number)), Some(&crate::keys::REPLY)) =
        (read_reply_key(bytes), bytes.first())
    {
        assert_eq!(reply_key(session, number), bytes);
    }
    if let (Some((file, offset)), Some(&crate::keys::BODY)) = (read_body_key(bytes), bytes.first())
    {
        assert_eq!(body_key(&file, offset), bytes);
    }
    if let (Some((target, begun)), Some(&crate::keys::UPLOAD)) =
        (read_upload_key(bytes), bytes.first())
    {
        assert_eq!(upload_key(&target, begun), bytes);
    }
    if let (Some((target, begun)), Some(&crate::keys::UPLOAD_END)) =
        (read_upload_key(bytes), bytes.first())
    {
        assert_eq!(upload_end_key(&target, begun), bytes);
    }
    if let (Some((target, begun, number)), Some(&crate::keys::PART)) =
        (read_part_key(bytes), bytes.first())
    {
        assert_eq!(part_key(&target, begun, number), bytes);
    }
    if let (Some((from, target, begun)), Some(&crate::keys::DUE)) =
        (read_due_key(bytes), bytes.first())
    {
        assert_eq!(due_key(from, &target, begun), bytes);
    }
    read_number_key(bytes);
    read_text_key(bytes);
    if let (Some((target, stamp)), Some(&crate::keys::VERSIONS)) =
        (read_version_key(bytes), bytes.first())
    {
        assert_eq!(version_key(&target, stamp), bytes);
    }
}

/// A value of a row: the first byte says of which.
pub fn fuzz_object_row(bytes: &[u8]) {
    let Some((&kind, value)) = bytes.split_first() else { return };
    match kind % 19 {
        0 => {
            if let Some(row) = ObjectRow::decode(value) {
                // What metadata a row has apart, it does not say.
                let ObjectInfo { stamp, has_id, object } = &row.info;
                let again = match row.marker {
                    true => {
                        let by = (object.data_id.get() as u64, &object.facts.owner);
                        ObjectRow::encode_marker(*stamp, by, *has_id)
                    }
                    false => ObjectRow::encode(*stamp, object, row.call, *has_id).0,
                };
                let again = ObjectRow::decode(&again);
                let unplaced = row.log == Some(InLog::Unplaced);
                assert!(unplaced || row.map_apart || ObjectRow::holds(&row.info.object));
                let apart = row.metadata_apart || again.as_ref().is_none_or(|row| row.map_apart);
                assert!(apart || row.map_apart || again == Some(row));
            }
        }
        1 => {
            if let Some((stamp, headers)) = Headers::decode(value) {
                let mut facts = ObjectFacts::default();
                headers.clone().give(&mut facts);
                let again = encode_headers(stamp, &facts);
                assert_eq!(Headers::decode(&again), Some((stamp, headers)));
            }
        }
        2 => {
            if let Some(row) = FileRow::decode(value) {
                assert_eq!(FileRow::decode(&row.encode()), Some(row));
            }
        }
        3 => {
            if let Some(row) = decode_usage(value) {
                assert_eq!(decode_usage(&encode_usage(row)), Some(row));
            }
        }
        4 => {
            if let Some(stamp) = decode_stamp(value) {
                assert_eq!(encode_stamp(stamp), value);
            }
        }
        5 => {
            if let Some(row) = BucketRow::decode("bucket", value) {
                assert_eq!(BucketRow::decode("bucket", &row.encode()), Some(row));
            }
        }
        6 => {
            if let Some(row) = KeyRow::decode(value) {
                assert_eq!(KeyRow::decode(&row.encode()), Some(row));
            }
        }
        7 => {
            if let Some(closed) = decode_session(value) {
                assert_eq!(encode_session(closed), value);
            }
        }
        8 => drop(decode_user("id", value)),
        10 => {
            if let Some(row) = UploadRow::decode(value) {
                assert_eq!(UploadRow::decode(&row.encode()), Some(row));
            }
        }
        11 => {
            let upload = UploadId { stamp: object_proto::Stamp::new(5), nonce: 6 };
            if let Some((stamp, map)) = decode_map(value, upload) {
                let again = map_apart(stamp, &map).map(|again| decode_map(&again, upload));
                assert!(again.is_none_or(|again| again == Some((stamp, map))));
            }
        }
        12 => {
            if let Some(due) = Due::decode(value) {
                assert_eq!(Due::decode(&due.encode()), Some(due));
            }
        }
        13 => {
            if let Some(committed) = decode_committed(value) {
                assert_eq!(encode_committed(&committed), value);
            }
        }
        14 => {
            if let Some(row) = RangeRow::decode(value) {
                assert_eq!(RangeRow::decode(&row.encode()), Some(row));
            }
        }
        15 => {
            if let Some(row) = ServerRow::decode(value) {
                assert_eq!(ServerRow::decode(&row.encode()), Some(row));
            }
        }
        16 => {
            if let Some(row) = PassRow::decode(value) {
                assert_eq!(row.encode(), value);
            }
        }
        18 => {
            if let Some(row) = BodyRow::decode(value) {
                assert_eq!(BodyRow::decode(&row.encode()), Some(row));
            }
        }
        17 => {
            if let Some(row) = BucketPassRow::decode(value) {
                assert_eq!(row.encode(), value);
            }
        }
        _ => {
            if let Some(row) = LogRow::decode(value) {
                assert_eq!(row.encode(), value);
            }
        }
    }
}

/// A piece of a body.
pub fn fuzz_object_piece(bytes: &[u8]) {
    let key = ObjectKey::new("a/b").expect("a key");
    let target = Target { bucket: BucketId::new(3), key };
    let body = Body { data_id: DataId::new(7), target };
    if let Ok(head) = body.decode(bytes, true) {
        assert_eq!(body.encode(head), bytes[..body.head_len()]);
    }
    let _ = body.decode(bytes, false);
}

/// A file of the corpus: name, target, bytes.
#[cfg(test)]
pub(crate) type Seed = (&'static str, fn(&[u8]), Vec<u8>);

/// The corpus.
#[cfg(test)]
pub(crate) fn corpus() -> Vec<Seed> {
    use object_proto::{FileName, PartMap, PartNumber, RangeBound, SessionId, Stamp};

    use crate::file_rows::{FileOf, FileState};

    let key = ObjectKey::new("a/b\0c").expect("a key");
    let target = Target { bucket: BucketId::new(3), key };
    let row = |kind: u8, value: Vec<u8>| [vec![kind], value].concat();
    let object = |value, inline| {
        let info = crate::row_tests::info(9, value, inline);
        let (row, apart) = ObjectRow::encode(info.stamp, &info.object, None, false);
        (row, apart.unwrap_or_default())
    };
    let granted = |headers| {
        let mut info = crate::row_tests::info(9, headers, true);
        info.object.facts.acl = crate::row_tests::acl();
        let (row, apart) = ObjectRow::encode(info.stamp, &info.object, None, false);
        apart.unwrap_or(row)
    };
    let locked = {
        let mut info = crate::row_tests::info(9, 10, true);
        info.object.facts.lock = crate::row_tests::locks()[4];
        ObjectRow::encode(info.stamp, &info.object, None, true).0
    };
    let encrypted = {
        let mut info = crate::row_tests::info(9, 10, true);
        info.object.facts.encryption = object_proto::Envelope::new(vec![1; 90]);
        ObjectRow::encode(info.stamp, &info.object, None, true).0
    };
    let body_row = BodyRow {
        data_id: DataId::new(1),
        size: 5,
        target: target.clone(),
        of: FileOf::Object(Stamp::new(6)),
    };
    let files = [FileState::Held, FileState::Sealed(5, 7), FileState::Trash(1 << 30, 7)];
    let [held, sealed, trash] = files.map(|state| FileRow { live: 300, state }.encode());
    let (begun, number) = (Stamp::new(1 << 50), PartNumber::new(10_000).expect("a number"));
    let part = BodyRow { of: FileOf::Part(begun, number), ..body_row.clone() };
    let [map, long] = [2, 60].map(|odd| {
        let parts = (1..=99).map(|at| (PartNumber::new(at).expect("a number"), at % odd));
        PartMap::of(UploadId { stamp: begun, nonce: 5 }, parts)
    });
    let in_parts = |map: &PartMap| {
        let mut info = crate::row_tests::info(9, 10, true);
        info.object.size = map.size();
        info.object.data = object_proto::ObjectData::Parts(map.clone());
        ObjectRow::encode(info.stamp, &info.object, None, false).0
    };
    let few = PartMap::of(map.upload, [(number, 9)]);
    let upload = |end| UploadRow { upload: crate::row_tests::upload(), abort_us: 1 << 51, end };
    let end = crate::row_tests::end();
    let body = Body {
        data_id: DataId::new(7),
        target: Target { key: ObjectKey::new("a/b").expect("a key"), ..target.clone() },
    };
    let logged = {
        let mut info = crate::row_tests::info(9, 10, true);
        let file = FileName::new("log-00000007-00000009");
        info.object.data = object_proto::ObjectData::Logged { file, offset: 77 };
        let call = Some(object_proto::CallId::new(u128::MAX - 1));
        ObjectRow::encode(info.stamp, &info.object, call, true).0
    };
    let marker = ObjectRow::encode_marker(begun, (7, &object_proto::UserId::new("me")), true);
    let version = Some(object_proto::VersionId::Of { stamp: begun, nonce: 7 });
    let committed = object_proto::Committed { stamp: begun, version, marker: true };
    let log = LogRow { dead: 1 << 27, trash_us: Some(7), counted: true };
    let made_by = (SessionId::new(1), 2);
    let owner = object_proto::UserId::new("me");
    let name = object_proto::BucketName::new("bucket").expect("a name");
    let bucket = object_proto::Bucket {
        id: BucketId::new(4),
        name,
        owner: owner.clone(),
        created_us: 5,
        versioning: object_proto::Versioning::Suspended,
    };
    let changed = object_proto::Stamp::new(1 << 50);
    let policy = Some("{}".to_owned());
    let period = object_proto::LockPeriod::Years(7);
    let default = Some((object_proto::RetentionMode::Compliance, period));
    let lock = Some(object_proto::LockRule { default });
    let settings = object_proto::BucketSettings { policy, lock, ..Default::default() };
    let bucket_row =
        BucketRow { bucket, made_by, changed, closing: true, order_due: false, settings };
    let server = object_proto::ObjectServerId::new(3);
    let range_row = RangeRow {
        first: RangeBound { bucket: BucketId::new(1 << 62), key: "a/b".to_owned() },
        epoch: 300,
        owner: Some(server),
    };
    let addr = "127.0.0.1:7601".parse().expect("an address");
    let server_row = ServerRow { name: "os1".to_owned(), addr, given: 4, heard: 3 };
    let (wrapped_secret, expires_us, policy) = (vec![1, 2], Some(9), Some("{}".to_owned()));
    let usage = object_proto::BucketUsage {
        objects: 3,
        older: 1,
        bytes: 1 << 40,
        markers: 2,
        uploads: 1,
        upload_bytes: 1 << 33,
    };
    let at = Some(object_key(crate::keys::CURRENT, &target));
    let pass = PassRow { day_us: 86_400_000_000, day: 20_785, at };
    let bucket_pass = BucketPassRow { ended_us: 1 << 50, day_us: 1 << 49, removed: 300 };
    let access = KeyRow { user: owner, wrapped_secret, enabled: true, expires_us, policy };
    vec![
        ("key-object", fuzz_object_key, object_key(crate::keys::CURRENT, &target)),
        ("key-reply", fuzz_object_key, reply_key(SessionId::new(7), 9)),
        ("key-body", fuzz_object_key, body_key(&FileName::new("body-1-2"), 5)),
        ("row-inline", fuzz_object_row, row(0, object(10, true).0)),
        ("row-logged", fuzz_object_row, row(0, logged)),
        ("row-log", fuzz_object_row, row(9, log.encode())),
        ("row-file", fuzz_object_row, row(0, object(10, false).0)),
        ("row-apart", fuzz_object_row, row(0, object(2000, false).0)),
        ("row-metadata", fuzz_object_row, row(1, object(2000, false).1)),
        ("row-lock", fuzz_object_row, row(0, locked)),
        ("row-acl", fuzz_object_row, row(0, granted(10))),
        ("row-encrypted", fuzz_object_row, row(0, encrypted)),
        ("row-metadata-acl", fuzz_object_row, row(1, granted(300))),
        ("row-held", fuzz_object_row, row(2, held)),
        ("row-sealed", fuzz_object_row, row(2, sealed)),
        ("row-trash", fuzz_object_row, row(2, trash)),
        ("row-body", fuzz_object_row, row(18, body_row.encode())),
        ("row-part", fuzz_object_row, row(18, part.encode())),
        ("row-parts", fuzz_object_row, row(0, in_parts(&few))),
        ("row-parts-apart", fuzz_object_row, row(0, in_parts(&map))),
        ("row-upload", fuzz_object_row, row(10, upload(None).encode())),
        ("row-upload-end", fuzz_object_row, row(10, upload(Some(end)).encode())),
        ("row-map", fuzz_object_row, row(11, map_apart(begun, &long).expect("it is long"))),
        ("row-due", fuzz_object_row, row(12, Due::Parts(Some(begun)).encode())),
        ("row-due-other", fuzz_object_row, row(12, Due::OtherParts(long.clone()).encode())),
        ("key-upload", fuzz_object_key, upload_key(&target, begun)),
        ("key-part", fuzz_object_key, part_key(&target, begun, number)),
        ("key-due", fuzz_object_key, due_key(5, &target, begun)),
        ("row-usage", fuzz_object_row, row(3, encode_usage(usage))),
        ("key-version", fuzz_object_key, version_key(&target, begun)),
        ("row-marker", fuzz_object_row, row(0, marker)),
        ("row-committed", fuzz_object_row, row(13, encode_committed(&committed))),
        ("row-stamp", fuzz_object_row, row(4, encode_stamp(Stamp::new(8)))),
        ("row-bucket", fuzz_object_row, row(5, bucket_row.encode())),
        ("row-range", fuzz_object_row, row(14, range_row.encode())),
        ("row-server", fuzz_object_row, row(15, server_row.encode())),
        ("row-access", fuzz_object_row, row(6, access.encode())),
        ("row-pass", fuzz_object_row, row(16, pass.encode())),
        ("row-bucket-pass", fuzz_object_row, row(17, bucket_pass.encode())),
        ("row-session", fuzz_object_row, row(7, encode_session(true))),
        ("piece", fuzz_object_piece, body.piece(0, b"hello")),
    ]
}

//! Keys of a range's table (`object-protocols.md` 2).
//!
//! The first byte is the section. Sections by object have the bucket and the object's key behind it,
//! escaped so that their order is that of the key's bytes and no key is the beginning of another's.

use object_proto::{
    BucketId, FileName, ObjectKey, PartNumber, RangeBound, RangeId, SessionId, Stamp, Target,
};
use table::Range;

/// Current objects.
pub const CURRENT: u8 = b'c';
/// Older versions of objects, and delete markers; the newest of a key first.
pub const VERSIONS: u8 = b'v';
/// Stamp of a key's version without an ID, while it is not the current object.
pub const NULL: u8 = b'n';
/// Metadata of current objects that is too long for their rows.
pub const METADATA: u8 = b'x';
/// Maps of current objects' parts that are too long for their rows.
pub const MAP: u8 = b'm';
/// Uploads that are under way, by key and the commit that began them. Of before there was [`UPLOAD_END`], those that
/// were completed too.
pub const UPLOAD: u8 = b'u';
/// Uploads that were completed, by the same, and how. They stay for days, and listings need not pass over them.
pub const UPLOAD_END: u8 = b'o';
/// Parts of uploads, and of the objects that they have become.
pub const PART: u8 = b'p';
/// What is to be done about uploads, by the time from when on.
pub const DUE: u8 = b'e';
/// Files of bodies.
pub const FILE: u8 = b'f';
/// Key of the row that says that a range is half of another one, and may have rows of the other half's bodies.
pub const INHERITED: [u8; 1] = [FILE];
/// Bodies in files, by file and place.
pub const BODY: u8 = b'b';
/// Answers to requests.
pub const REPLY: u8 = b'i';
/// How far passes of lifecycle are, and what came of them for buckets.
pub const PASS: u8 = b'l';
/// Usage of buckets.
pub const USAGE: u8 = b'q';
/// Time of the last commit.
pub const STAMP: u8 = b's';
/// Logs that have data no object names.
pub const LOG: u8 = b'd';
/// Buckets, by name; in the catalog.
pub const BUCKET: u8 = b'B';
/// Users, by ID; in the catalog.
pub const USER: u8 = b'U';
/// Access keys; in the catalog.
pub const ACCESS_KEY: u8 = b'K';
/// Keys of gateways' key files that have wrapped something; in the catalog.
pub const WRAPPING_KEY: u8 = b'W';
/// Sessions of gateways; in the catalog.
pub const SESSION: u8 = b'S';
/// Ranges, in the catalog.
pub const RANGE: u8 = b'R';
/// Object servers, in the catalog.
pub const SERVER: u8 = b'O';
/// Splits of ranges that have begun, by range, in the catalog; without one: the last number that a range got.
pub const SPLIT: u8 = b'P';
/// Directories of ranges that are no more, or never were, in the catalog.
pub const GONE: u8 = b'Z';
/// How the usage of a range is divided that was split; in its halves, until these have been opened.
pub const HALVES: u8 = b'h';

/// Stands for a NUL of a key, and for a key's end.
const NUL: [u8; 2] = [0, 0xff];
const END: [u8; 2] = [0, 1];

fn escape(out: &mut Vec<u8>, key: &[u8]) {
    for &byte in key {
        match byte {
            0 => out.extend(NUL),
            byte => out.push(byte),
        }
    }
}

/// The beginning of the keys of a section's rows of a bucket.
pub fn bucket_prefix(section: u8, bucket: BucketId) -> Vec<u8> {
    let mut out = vec![section];
    out.extend(bucket.get().to_be_bytes());
    out
}

/// The beginning of the keys of rows whose object's key begins with `prefix`.
pub fn key_prefix(section: u8, bucket: BucketId, prefix: &str) -> Vec<u8> {
    let mut out = bucket_prefix(section, bucket);
    escape(&mut out, prefix.as_bytes());
    out
}

/// The key of an object's row in a section.
pub fn object_key(section: u8, target: &Target) -> Vec<u8> {
    let mut out = key_prefix(section, target.bucket, target.key.as_str());
    out.extend(END);
    out
}

/// The rows of a section that are behind a bound, or at it, and before another: none for the section's end.
pub fn between_bounds(section: u8, first: &RangeBound, end: Option<&RangeBound>) -> Range {
    let at = |bound: &RangeBound| key_prefix(section, bound.bucket, &bound.key);
    let end = end.map_or_else(|| vec![section + 1], at);
    Range::between(&at(first), &end)
}

/// A key above the rows of `key` in a bucket, of which there may be none, and below all others.
pub fn above(section: u8, bucket: BucketId, key: &str) -> Vec<u8> {
    let mut out = key_prefix(section, bucket, key);
    out.extend([0, 2]);
    out
}

/// The object's key in a key of a section of a bucket.
pub fn read_object_key(row: &[u8]) -> Option<Target> {
    let (target, rest) = split_object_key(row)?;
    rest.is_empty().then_some(target)
}

/// The object's key in a key of a section of a bucket, and what is behind it.
fn split_object_key(row: &[u8]) -> Option<(Target, &[u8])> {
    let (head, mut rest) = row.split_at_checked(9)?;
    let bucket = BucketId::new(u64::from_be_bytes(head[1..].try_into().ok()?));
    let mut key = Vec::with_capacity(rest.len());
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        if byte != 0 {
            key.push(byte);
            continue;
        }
        let (&second, after) = rest.split_first()?;
        rest = after;
        match second {
            0xff => key.push(0),
            1 => break,
            _ => return None,
        }
    }
    let key = ObjectKey::new(String::from_utf8(key).ok()?).ok()?;
    Some((Target { bucket, key }, rest))
}

/// The key of the row of an older version, or of a delete marker.
pub fn version_key(target: &Target, stamp: Stamp) -> Vec<u8> {
    by_stamp(VERSIONS, target, stamp)
}

/// The key of a row that belongs to the version of a commit.
pub fn by_stamp(section: u8, target: &Target, stamp: Stamp) -> Vec<u8> {
    let mut out = object_key(section, target);
    out.extend((!stamp.get()).to_be_bytes());
    out
}

/// Object and commit in such a key.
pub fn read_version_key(row: &[u8]) -> Option<(Target, Stamp)> {
    let (target, inverted) = split_object_key(row)?;
    Some((target, Stamp::new(!u64::from_be_bytes(inverted.try_into().ok()?))))
}

/// The key of an upload's row: uploads of one object are in the order in which they began.
pub fn upload_key(target: &Target, begun: Stamp) -> Vec<u8> {
    of_upload(UPLOAD, target, begun)
}

/// The key of the row that says how an upload was completed.
pub fn upload_end_key(target: &Target, begun: Stamp) -> Vec<u8> {
    of_upload(UPLOAD_END, target, begun)
}

fn of_upload(section: u8, target: &Target, begun: Stamp) -> Vec<u8> {
    let mut out = object_key(section, target);
    out.extend(begun.get().to_be_bytes());
    out
}

/// Object and beginning in such keys.
pub fn read_upload_key(row: &[u8]) -> Option<(Target, Stamp)> {
    let (target, begun) = split_object_key(row)?;
    Some((target, Stamp::new(u64::from_be_bytes(begun.try_into().ok()?))))
}

/// The beginning of the keys of an upload's parts.
pub fn parts_prefix(target: &Target, begun: Stamp) -> Vec<u8> {
    let mut out = object_key(PART, target);
    out.extend(begun.get().to_be_bytes());
    out
}

/// A key above that of an upload's part of this number, which may be 0, and below that of the next.
pub fn above_part(target: &Target, begun: Stamp, number: u16) -> Vec<u8> {
    let mut out = parts_prefix(target, begun);
    out.extend(number.to_be_bytes());
    out.push(0);
    out
}

/// The key of a part's row.
pub fn part_key(target: &Target, begun: Stamp, number: PartNumber) -> Vec<u8> {
    let mut out = parts_prefix(target, begun);
    out.extend(number.get().to_be_bytes());
    out
}

/// Object, beginning of the upload and number in such a key.
pub fn read_part_key(row: &[u8]) -> Option<(Target, Stamp, PartNumber)> {
    let (target, rest) = split_object_key(row)?;
    let (begun, number) = rest.split_at_checked(8)?;
    let begun = Stamp::new(u64::from_be_bytes(begun.try_into().ok()?));
    let number = PartNumber::new(u16::from_be_bytes(number.try_into().ok()?).into())?;
    Some((target, begun, number))
}

/// The key of what is to be done about an upload from a time on, microseconds since 1970.
pub fn due_key(from_us: u64, target: &Target, begun: Stamp) -> Vec<u8> {
    let mut out = number_key(DUE, from_us);
    out.extend(&upload_key(target, begun)[1..]);
    out
}

/// Time, object and beginning of the upload in such a key.
pub fn read_due_key(row: &[u8]) -> Option<(u64, Target, Stamp)> {
    let from = u64::from_be_bytes(row.get(1..9)?.try_into().ok()?);
    // Its last byte stands for the section.
    let (target, begun) = read_upload_key(&row[8..])?;
    Some((from, target, begun))
}

/// The key of a row for a number.
pub fn number_key(section: u8, number: u64) -> Vec<u8> {
    let mut out = vec![section];
    out.extend(number.to_be_bytes());
    out
}

/// The number in such a key.
pub fn read_number_key(row: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(row.get(1..)?.try_into().ok()?))
}

/// The key of a row for a text.
pub fn text_key(section: u8, text: &str) -> Vec<u8> {
    let mut out = vec![section];
    out.extend(text.as_bytes());
    out
}

/// The text in such a key.
pub fn read_text_key(row: &[u8]) -> Option<&str> {
    std::str::from_utf8(row.get(1..)?).ok()
}

/// The key of the row of an answer.
pub fn reply_key(session: SessionId, number: u64) -> Vec<u8> {
    let mut out = number_key(REPLY, session.get());
    out.extend(number.to_be_bytes());
    out
}

/// Session and number in such a key.
pub fn read_reply_key(row: &[u8]) -> Option<(SessionId, u64)> {
    let (session, number) = row.get(1..)?.split_at_checked(8)?;
    let session = SessionId::new(u64::from_be_bytes(session.try_into().ok()?));
    Some((session, u64::from_be_bytes(number.try_into().ok()?)))
}

/// The beginning of the keys of the bodies in a file. All names of files of bodies have one length.
pub fn bodies_prefix(file: &FileName) -> Vec<u8> {
    text_key(BODY, file.as_str())
}

/// The key of the body whose first piece is at a place.
pub fn body_key(file: &FileName, offset: u64) -> Vec<u8> {
    let mut out = bodies_prefix(file);
    out.extend(offset.to_be_bytes());
    out
}

/// File and place in such a key.
pub fn read_body_key(row: &[u8]) -> Option<(FileName, u64)> {
    let (file, offset) = row.get(1..)?.split_last_chunk::<8>()?;
    let file = FileName::new(std::str::from_utf8(file).ok()?);
    Some((file, u64::from_be_bytes(*offset)))
}

/// The name of a file of bodies that a session sends, its `number`th.
pub fn file_name(session: SessionId, number: u64) -> FileName {
    FileName::new(format!("{}{number:016x}", session_files(session)))
}

/// The beginning of the names of files of bodies that sessions send.
pub const SENT: &str = "body-";
/// The beginning of the names of files that collection has written.
pub const KEPT: &str = "kept-";

/// The beginning of the names of a session's files.
pub fn session_files(session: SessionId) -> String {
    format!("{SENT}{:016x}-", session.get())
}

/// The name of a file that an owner of a range writes as it collects others: that of this epoch, its `number`th.
pub fn kept_name((range, epoch): (RangeId, u64), number: u32) -> FileName {
    FileName::new(format!("{KEPT}{:016x}-{:08x}{number:08x}", range.get(), epoch as u32))
}

/// Whose a file of bodies is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writer {
    /// A session sent it.
    Session(SessionId),
    /// The owner of a range has written it, by the lower half of its epoch.
    Owner(RangeId, u32),
}

/// Who has written a file of bodies; nothing for other files.
pub fn writer_of(name: &str) -> Option<Writer> {
    let (kind, rest) = name.split_at_checked(SENT.len())?;
    let (whose, number) = rest.split_at_checked(16)?;
    let is_hex = |text: &str| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let whose = u64::from_str_radix(Some(whose).filter(|whose| is_hex(whose))?, 16).ok()?;
    let number = number.strip_prefix('-').filter(|number| is_hex(number))?;
    let number = u64::from_str_radix(number, 16).ok()?;
    match kind {
        SENT => Some(Writer::Session(SessionId::new(whose))),
        KEPT => Some(Writer::Owner(RangeId::new(whose), (number >> 32) as u32)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(bucket: u64, key: &str) -> Target {
        Target { bucket: BucketId::new(bucket), key: ObjectKey::new(key).unwrap() }
    }

    proptest! {
        #[test]
        fn rows_are_in_the_order_of_keys_and_read_back(
            first in "[\0\u{1}a/\u{7f}ä]{1,8}", second in "[\0\u{1}a/\u{7f}ä]{1,8}", bucket: u64,
        ) {
            let rows = [&first, &second].map(|key| object_key(CURRENT, &target(bucket, key)));
            prop_assert_eq!(rows[0].cmp(&rows[1]), first.as_bytes().cmp(second.as_bytes()));
            prop_assert_eq!(read_object_key(&rows[0]), Some(target(bucket, &first)));
            // Prefixes of keys are prefixes of rows, and no row begins another.
            let prefix = key_prefix(CURRENT, BucketId::new(bucket), &first);
            prop_assert_eq!(rows[1].starts_with(&prefix), second.starts_with(&first));
            prop_assert!(first == second || !rows[1].starts_with(&rows[0]));
            let above = above(CURRENT, BucketId::new(bucket), &first);
            prop_assert_eq!(rows[1] < above, second.as_bytes() <= first.as_bytes());
        }

        #[test]
        fn any_bytes_are_read_or_refused(row: Vec<u8>) {
            read_object_key(&row);
            read_number_key(&row);
            read_reply_key(&row);
            read_body_key(&row);
            if let Ok(name) = std::str::from_utf8(&row) {
                writer_of(name);
            }
            read_text_key(&row);
            read_upload_key(&row);
            read_version_key(&row);
            read_part_key(&row);
            read_due_key(&row);
        }

        #[test]
        fn uploads_and_parts_are_in_order_and_read_back(
            first in "[\0\u{1}a/]{1,6}", second in "[\0\u{1}a/]{1,6}", begun in 0u64..3,
            number in 1u64..300,
        ) {
            let [target, other] = [&first, &second].map(|key| target(7, key));
            let (begun, number) = (Stamp::new(begun), PartNumber::new(number).unwrap());
            let key = upload_key(&target, begun);
            prop_assert_eq!(read_upload_key(&key), Some((target.clone(), begun)));
            let order = first.as_bytes().cmp(second.as_bytes()).then(begun.cmp(&Stamp::new(1)));
            prop_assert_eq!(key.cmp(&upload_key(&other, Stamp::new(1))), order);
            let key = version_key(&target, begun);
            prop_assert_eq!(read_version_key(&key), Some((target.clone(), begun)));
            let order = first.as_bytes().cmp(second.as_bytes()).then(Stamp::new(1).cmp(&begun));
            prop_assert_eq!(key.cmp(&version_key(&other, Stamp::new(1))), order);
            let key = part_key(&target, begun, number);
            prop_assert_eq!(read_part_key(&key), Some((target.clone(), begun, number)));
            prop_assert!(key.starts_with(&parts_prefix(&target, begun)));
            prop_assert!(above_part(&target, begun, number.get()) > key);
            prop_assert!(above_part(&target, begun, number.get() - 1) < key);
            let key = due_key(9, &target, begun);
            prop_assert_eq!(read_due_key(&key), Some((9, target, begun)));
        }
    }

    #[test]
    fn local_keys_read_back() {
        let file = file_name(SessionId::new(7), 9);
        assert_eq!(file.as_str(), "body-0000000000000007-0000000000000009");
        assert_eq!(writer_of(file.as_str()), Some(Writer::Session(SessionId::new(7))));
        let kept = kept_name((RangeId::new(5), 6), 1);
        assert_eq!(writer_of(kept.as_str()), Some(Writer::Owner(RangeId::new(5), 6)));
        for other in ["log-00000007-00000009", "body-0-1", "kept-0000000000000007-000000000000000g"]
        {
            assert_eq!(writer_of(other), None);
        }
        // The bodies of one file are not those of another, and stand in the order of their places.
        assert_eq!(file.as_str().len(), kept.as_str().len());
        assert!(body_key(&file, 255) < body_key(&file, 256));
        assert_eq!(read_body_key(&body_key(&file, 256)), Some((file, 256)));
        let session = SessionId::new(u64::MAX);
        assert_eq!(read_reply_key(&reply_key(session, 3)), Some((session, 3)));
        assert_eq!(read_number_key(&number_key(USAGE, 8)), Some(8));
        assert_eq!(read_text_key(&text_key(BUCKET, "b")), Some("b"));
    }
}

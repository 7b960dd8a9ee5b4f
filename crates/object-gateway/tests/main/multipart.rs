//! Multipart uploads: beginning, parts, completion, abortion, and the objects that they make.

use std::sync::atomic::Ordering;

use object_proto::Error;

use crate::client::{Ask, Bed, OTHER, Reply, UNSIGNED};

/// Bytes of a part at least.
pub const PART: usize = 5 << 20;
const NO_UPLOAD: &str = "00000000000f4240000000000000feed";

/// A request that begins an upload of a key.
pub fn begin_ask(bed: &Bed, key: &str) -> Ask {
    bed.object("POST", key).query("uploads", "")
}

/// Begins an upload; its ID.
pub fn begin(bed: &Bed, key: &str) -> String {
    let reply = begin_ask(bed, key).send();
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.field("UploadId")
}

/// A request that sends a part of `k`.
pub fn part_ask(bed: &Bed, id: &str, number: u32, content: &[u8]) -> Ask {
    let ask = bed.object("PUT", "k").query("uploadId", id);
    ask.query("partNumber", &number.to_string()).body(content).payload(UNSIGNED)
}

/// Sends a part of `k`; its tag, with quotes.
pub fn send_part(bed: &Bed, id: &str, number: u32, content: &[u8]) -> String {
    let reply = part_ask(bed, id, number, content).send();
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.header("etag").expect("a tag").to_owned()
}

/// The document of a completion.
pub fn document(parts: &[(u32, &str)]) -> String {
    let part = |(number, tag): &(u32, &str)| {
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>")
    };
    let parts: String = parts.iter().map(part).collect();
    format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
}

/// A request that completes an upload of `k`.
pub fn complete_ask(bed: &Bed, id: &str, parts: &[(u32, &str)]) -> Ask {
    bed.object("POST", "k").query("uploadId", id).body(document(parts).as_bytes())
}

fn complete(bed: &Bed, id: &str, parts: &[(u32, &str)]) -> Reply {
    complete_ask(bed, id, parts).send()
}

/// Bytes that differ from part to part.
fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at >> 7) as u8 ^ at as u8 ^ seed).collect()
}

fn md5(bytes: &[u8]) -> [u8; 16] {
    use s3s::crypto::{Checksum as _, Md5};
    Md5::checksum(bytes)
}

/// The tag of an object of these parts, with quotes.
fn tag_of(parts: &[&[u8]]) -> String {
    let md5s: Vec<u8> = parts.iter().flat_map(|part| md5(part)).collect();
    format!("\"{}-{}\"", crate::signer::hex(&md5(&md5s)), parts.len())
}

/// Three parts with gaps in their numbers, and the tags of them.
fn three_parts(bed: &Bed, id: &str) -> ([Vec<u8>; 3], [String; 3]) {
    let parts = [content(1, PART), content(2, PART + 1), content(3, 10)];
    let tags = [0, 1, 2].map(|at| send_part(bed, id, [2, 5, 9][at], &parts[at]));
    (parts, tags)
}

#[test]
fn an_object_is_made_of_its_parts() {
    let bed = Bed::with_bucket();
    let begun = begin_ask(&bed, "k")
        .header("content-type", "text/plain")
        .header("x-amz-meta-a", "b")
        .send();
    assert_eq!((begun.field("Bucket"), begun.field("Key")), ("bucket".into(), "k".into()));
    let id = begun.field("UploadId");
    let (parts, tags) = three_parts(&bed, &id);
    assert_eq!(bed.object("GET", "k").send().error(), (404, "NoSuchKey".into()));
    let reply = complete(&bed, &id, &[(2, &tags[0]), (5, &tags[1]), (9, &tags[2])]);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let tag = tag_of(&[&parts[0], &parts[1], &parts[2]]);
    let host = bed.gateway.addr().to_string();
    for (name, value) in [
        ("Bucket", "bucket"),
        ("Key", "k"),
        ("ETag", &tag),
        ("ChecksumType", "FULL_OBJECT"),
        ("Location", &format!("http://{host}/bucket/k")),
    ] {
        assert_eq!(reply.field(name), value, "{name}");
    }
    let whole = parts.concat();
    let got = bed.object("GET", "k").header("x-amz-checksum-mode", "ENABLED").send();
    assert!(got.body == whole, "the bytes differ");
    for (name, value) in [("content-type", "text/plain"), ("x-amz-meta-a", "b"), ("etag", &tag)] {
        assert_eq!(got.header(name), Some(value), "{name}");
    }
    // As if it had been put at once.
    bed.put("once", &whole);
    let once = bed.object("HEAD", "once").header("x-amz-checksum-mode", "ENABLED").send();
    let sum = got.header("x-amz-checksum-crc64nvme");
    assert!(sum.is_some() && sum == once.header("x-amz-checksum-crc64nvme"));
    assert_eq!(reply.field("ChecksumCRC64NVME"), sum.unwrap_or_default());
    let range = bed.object("GET", "k").header("range", "bytes=5242875-10485770").send();
    assert!(range.body == whole[5_242_875..=10_485_770], "the bytes differ");
}

#[test]
fn a_part_is_read_by_its_number() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    let (parts, tags) = three_parts(&bed, &id);
    complete(&bed, &id, &[(2, &tags[0]), (5, &tags[1]), (9, &tags[2])]);
    let size = parts.concat().len();
    let mut start = 0;
    for (number, part) in [("2", &parts[0]), ("5", &parts[1]), ("9", &parts[2])] {
        let range = format!("bytes {start}-{}/{size}", start + part.len() - 1);
        start += part.len();
        for method in ["GET", "HEAD"] {
            let reply = bed.object(method, "k").query("partNumber", number).send();
            assert_eq!(reply.status, 206);
            assert_eq!(reply.header("content-range"), Some(&*range));
            assert_eq!(reply.header("x-amz-mp-parts-count"), Some("3"));
            assert_eq!(reply.header("content-length"), Some(&*part.len().to_string()));
            assert!(method == "HEAD" || reply.body == **part, "the bytes differ");
        }
    }
    for number in ["1", "3", "10", "10000"] {
        let reply = bed.object("GET", "k").query("partNumber", number).send();
        assert_eq!(reply.error(), (416, "InvalidPartNumber".into()), "{number}");
    }
    assert_eq!(bed.object("HEAD", "k").send().header("x-amz-mp-parts-count"), None);
}

#[test]
fn a_part_that_is_sent_again_replaces_the_first_one() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    let first = send_part(&bed, &id, 1, b"first");
    let second = send_part(&bed, &id, 1, b"second");
    let other = send_part(&bed, &id, 2, b"left out");
    assert_ne!(first, other);
    assert_eq!(complete(&bed, &id, &[(1, &first)]).error(), (400, "InvalidPart".into()));
    assert_eq!(complete(&bed, &id, &[(1, &second)]).status, 200);
    assert_eq!(bed.object("GET", "k").send().body, b"second");
}

#[test]
fn a_list_of_parts_that_is_flawed_makes_no_object() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    let large = send_part(&bed, &id, 1, &content(1, PART));
    let small = send_part(&bed, &id, 2, b"small");
    let last = send_part(&bed, &id, 3, b"last");
    let (large, small, last) = (&*large, &*small, &*last);
    let other = "\"5d41402abc4b2a76b9719d911017c592\"";
    let cases: &[(&[(u32, &str)], &str)] = &[
        (&[], "MalformedXML"),
        (&[(2, small), (1, large)], "InvalidPartOrder"),
        (&[(1, large), (1, large)], "InvalidPartOrder"),
        (&[(1, other)], "InvalidPart"),
        (&[(1, "x")], "InvalidPart"),
        (&[(1, large), (4, last)], "InvalidPart"),
        (&[(10_000, last)], "InvalidPart"),
        (&[(0, last)], "InvalidArgument"),
        (&[(10_001, last)], "InvalidArgument"),
        (&[(1, large), (2, small), (3, last)], "EntityTooSmall"),
    ];
    for (parts, code) in cases {
        let reply = complete(&bed, &id, parts);
        assert_eq!(reply.error(), (400, (*code).into()), "{parts:?}: {}", reply.text());
    }
    for text in [
        "",
        "<Other/>",
        "<CompleteMultipartUpload/>",
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber></Part></CompleteMultipartUpload>",
        "<CompleteMultipartUpload><Part><ETag>x</ETag></Part></CompleteMultipartUpload>",
        "<CompleteMultipartUpload><Part><PartNumber>x</PartNumber><ETag>x</ETag></Part>\
         </CompleteMultipartUpload>",
    ] {
        let reply = bed.object("POST", "k").query("uploadId", &id).body(text.as_bytes()).send();
        assert_eq!(reply.error(), (400, "MalformedXML".into()), "{text}");
    }
    assert_eq!(bed.model.objects(), 0);
    let unquoted = last.trim_matches('"');
    assert_eq!(complete(&bed, &id, &[(1, large), (3, unquoted)]).status, 200);
}

#[test]
fn a_completion_is_held_to_size_checksum_and_type() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    let tag = send_part(&bed, &id, 1, b"hello");
    let ask = |headers: &[(&str, &str)]| {
        let mut ask = complete_ask(&bed, &id, &[(1, &tag)]);
        for (name, value) in headers {
            ask = ask.header(name, value);
        }
        ask.send().error()
    };
    let refused = |code: &str| (400, code.to_owned());
    assert_eq!(ask(&[("x-amz-mp-object-size", "6")]), refused("InvalidRequest"));
    assert_eq!(ask(&[("x-amz-mp-object-size", "-5")]), refused("InvalidRequest"));
    assert_eq!(ask(&[("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=")]), refused("BadDigest"));
    assert_eq!(ask(&[("x-amz-checksum-crc64nvme", "AAAA")]), refused("InvalidRequest"));
    assert_eq!(ask(&[("x-amz-checksum-crc64nvme", "M3eFcAZSQlc=-1")]), refused("BadDigest"));
    assert_eq!(ask(&[("x-amz-checksum-crc64nvme", "M3eFcAZSQlc=-x")]), refused("InvalidRequest"));
    assert_eq!(ask(&[("x-amz-checksum-crc32", "NhCmhg==")]), refused("InvalidRequest"));
    assert_eq!(ask(&[("x-amz-checksum-type", "COMPOSITE")]), refused("InvalidRequest"));
    let two = [("x-amz-checksum-crc64nvme", "M3eFcAZSQlc="), ("x-amz-checksum-crc32", "NhCmhg==")];
    assert_eq!(ask(&two), refused("InvalidRequest"));
    let wrong =
        complete_ask(&bed, &id, &[(1, &tag)]).header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==");
    assert_eq!(wrong.send().error(), refused("BadDigest"));
    assert_eq!(bed.model.objects(), 0);
    let right = [
        ("x-amz-mp-object-size", "5"),
        ("x-amz-checksum-crc64nvme", "M3eFcAZSQlc="),
        ("x-amz-checksum-type", "FULL_OBJECT"),
    ];
    assert_eq!(ask(&right), (200, String::new()));
}

#[test]
fn checksums_are_those_that_the_upload_was_begun_with() {
    // Of "hello" as the one part: full, or that of its checksum, by other implementations.
    for (algorithm, kind, header, part, object, shown_kind) in [
        ("CRC32", "", "x-amz-checksum-crc32", "NhCmhg==", "FKTmaw==-1", "COMPOSITE"),
        ("CRC32", "FULL_OBJECT", "x-amz-checksum-crc32", "NhCmhg==", "NhCmhg==", "FULL_OBJECT"),
        ("CRC32C", "FULL_OBJECT", "x-amz-checksum-crc32c", "mnG7TA==", "mnG7TA==", "FULL_OBJECT"),
        (
            "CRC64NVME",
            "",
            "x-amz-checksum-crc64nvme",
            "M3eFcAZSQlc=",
            "M3eFcAZSQlc=",
            "FULL_OBJECT",
        ),
        (
            "SHA256",
            "COMPOSITE",
            "x-amz-checksum-sha256",
            "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=",
            "lZXJ35AHUUjrBoYDZd8zWEt1v/eCpRDGzUiDpBmDPVA=-1",
            "COMPOSITE",
        ),
    ] {
        let bed = Bed::with_bucket();
        let mut ask = begin_ask(&bed, "k").header("x-amz-checksum-algorithm", algorithm);
        if !kind.is_empty() {
            ask = ask.header("x-amz-checksum-type", kind);
        }
        let begun = ask.send();
        assert_eq!(begun.header("x-amz-checksum-algorithm"), Some(algorithm));
        assert_eq!(begun.header("x-amz-checksum-type"), Some(shown_kind));
        let id = begun.field("UploadId");
        let sent = part_ask(&bed, &id, 1, b"hello").send();
        assert_eq!(sent.header(header), Some(part), "{algorithm}: it is computed");
        let sent = part_ask(&bed, &id, 1, b"hello").header(header, part).send();
        assert_eq!(sent.header(header), Some(part));
        let tag = sent.header("etag").expect("a tag");
        let element = format!("Checksum{algorithm}");
        let with = |value: &str| {
            let text = document(&[(1, tag)]);
            let sum = format!("<{element}>{value}</{element}></Part>");
            let text = text.replace("</Part>", &sum);
            bed.object("POST", "k").query("uploadId", &id).body(text.as_bytes())
        };
        let wrong = with("AAAAAA==").send();
        assert_eq!(wrong.error(), (400, "InvalidPart".into()), "{algorithm}");
        let made = with(part).header(header, object).send();
        assert_eq!(made.status, 200, "{algorithm}: {}", made.text());
        assert_eq!(made.field(&element), object);
        assert_eq!(made.field("ChecksumType"), shown_kind);
        let head = bed.object("HEAD", "k").header("x-amz-checksum-mode", "ENABLED").send();
        assert_eq!(head.header(header), Some(object), "{algorithm}");
        assert_eq!(head.header("x-amz-checksum-type"), Some(shown_kind));
    }
}

#[test]
fn a_checksum_of_another_algorithm_than_the_uploads_is_refused() {
    let bed = Bed::with_bucket();
    let begun = begin_ask(&bed, "k").header("x-amz-checksum-algorithm", "CRC32").send();
    let id = begun.field("UploadId");
    let part = part_ask(&bed, &id, 1, b"hello");
    let reply = part.header("x-amz-checksum-sha1", "qvTGHdzF6KLavt4PO0gs2a6pQ00=").send();
    assert_eq!(reply.error(), (400, "InvalidRequest".into()));
    assert_eq!(
        reply.field("Message"),
        "Checksum Type mismatch occurred, expected checksum Type: crc32, actual checksum Type: sha1"
    );
    assert_eq!(bed.model.uploads_begun.load(Ordering::Relaxed), 0);
    for headers in [
        &[("x-amz-checksum-algorithm", "SHA256"), ("x-amz-checksum-type", "FULL_OBJECT")][..],
        &[("x-amz-checksum-algorithm", "CRC64NVME"), ("x-amz-checksum-type", "COMPOSITE")],
        &[("x-amz-checksum-algorithm", "CRC32"), ("x-amz-checksum-type", "OTHER")],
        &[("x-amz-checksum-algorithm", "XXHASH")],
        &[("x-amz-checksum-type", "FULL_OBJECT")],
    ] {
        let mut ask = begin_ask(&bed, "k");
        for (name, value) in headers {
            ask = ask.header(name, value);
        }
        assert_eq!(ask.send().error(), (400, "InvalidRequest".into()), "{headers:?}");
    }
}

#[test]
fn parts_with_a_checksum_of_their_own_give_the_object_one_if_all_have_it() {
    let bed = Bed::with_bucket();
    let crc32 = ("x-amz-checksum-crc32", "NhCmhg==");
    let head = || bed.object("HEAD", "k").header("x-amz-checksum-mode", "ENABLED").send();
    let id = begin(&bed, "k");
    let sent = part_ask(&bed, &id, 1, b"hello").header(crc32.0, crc32.1).send();
    let tag = sent.header("etag").expect("a tag");
    assert_eq!(complete(&bed, &id, &[(1, tag)]).status, 200);
    assert_eq!(head().header(crc32.0), Some(crc32.1));
    let id = begin(&bed, "k");
    let first = send_part(&bed, &id, 1, &content(1, PART));
    part_ask(&bed, &id, 2, b"hello").header(crc32.0, crc32.1).send();
    assert_eq!(complete(&bed, &id, &[(1, &first), (2, tag)]).status, 200);
    assert_eq!(head().header("x-amz-checksum-type"), None);
}

#[test]
fn a_part_is_checked_as_an_object_is() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    let part =
        |name: &str, value: &str| part_ask(&bed, &id, 1, b"hello").header(name, value).send();
    let zero = "AAAAAAAAAAAAAAAAAAAAAA==";
    assert_eq!(part("content-md5", zero).error(), (400, "BadDigest".into()));
    assert_eq!(part("x-amz-checksum-crc32", "AAAAAA==").error(), (400, "BadDigest".into()));
    assert_eq!(part("x-amz-checksum-sha512", "AAAA").error(), (501, "NotImplemented".into()));
    let wrong = part_ask(&bed, &id, 1, b"hello").payload(&"0".repeat(64)).send();
    assert_eq!(wrong.error(), (400, "XAmzContentSHA256Mismatch".into()));
    let long =
        part_ask(&bed, &id, 1, b"").header("content-length", &((5u64 << 30) + 1).to_string());
    assert_eq!(long.send().error(), (400, "EntityTooLarge".into()));
    let listed = bed.object("GET", "k").query("uploadId", &id).send();
    assert_eq!(listed.fields("Part").len(), 0);
    for number in [0, 10_001] {
        let reply = part_ask(&bed, &id, number, b"x").send();
        assert_eq!(reply.error(), (400, "InvalidArgument".into()), "{number}");
        let message = "Part number must be an integer between 1 and 10000, inclusive";
        assert_eq!(reply.field("Message"), message);
    }
    let reply = bed.object("PUT", "k").query("uploadId", &id).query("partNumber", "x").send();
    assert_eq!(reply.error(), (400, "InvalidArgument".into()));
    assert_eq!(part_ask(&bed, &id, 10_000, b"").send().status, 200);
}

#[test]
fn an_upload_that_is_not_there_is_reported() {
    let bed = Bed::with_bucket();
    let missing = (404, "NoSuchUpload".to_owned());
    for id in [NO_UPLOAD, "x", "../", &NO_UPLOAD.to_uppercase()] {
        assert_eq!(part_ask(&bed, id, 1, b"x").send().error(), missing, "{id}");
        assert_eq!(complete(&bed, id, &[(1, "x")]).error(), missing, "{id}");
        assert_eq!(bed.object("DELETE", "k").query("uploadId", id).send().error(), missing);
        assert_eq!(bed.object("GET", "k").query("uploadId", id).send().error(), missing);
    }
    assert_eq!(bed.model.uploads_begun.load(Ordering::Relaxed), 0);
    let id = begin(&bed, "k");
    let other_key = bed.object("PUT", "other").query("uploadId", &id).query("partNumber", "1");
    assert_eq!(other_key.body(b"x").send().error(), missing);
    assert_eq!(part_ask(&bed, &id, 1, b"x").by(OTHER).send().error(), (403, "AccessDenied".into()));
    assert_eq!(begin_ask(&bed, "k").by(OTHER).send().error(), (403, "AccessDenied".into()));
}

#[test]
fn an_upload_that_is_aborted_is_gone() {
    let bed = Bed::with_bucket();
    bed.put("k", b"stays");
    let id = begin(&bed, "k");
    let tag = send_part(&bed, &id, 1, b"x");
    let abort = || bed.object("DELETE", "k").query("uploadId", &id).send();
    let reply = abort();
    assert_eq!((reply.status, reply.body.len()), (204, 0));
    let missing = (404, "NoSuchUpload".to_owned());
    assert_eq!(abort().error(), missing);
    assert_eq!(part_ask(&bed, &id, 1, b"x").send().error(), missing);
    assert_eq!(complete(&bed, &id, &[(1, &tag)]).error(), missing);
    assert_eq!(bed.object("GET", "k").send().body, b"stays");
    let timed = bed.object("DELETE", "k").query("uploadId", &id);
    let timed = timed.header("x-amz-if-match-initiated-time", "Tue, 14 Nov 2023 22:13:20 GMT");
    assert_eq!(timed.send().error(), (501, "NotImplemented".into()));
}

#[test]
fn a_completion_that_is_repeated_is_answered_alike() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    let tag = send_part(&bed, &id, 1, b"x");
    let first = complete(&bed, &id, &[(1, &tag)]);
    bed.put("k", b"later");
    let again = complete_ask(&bed, &id, &[(1, &tag)]).header("if-none-match", "*").send();
    assert_eq!((again.status, again.text()), (200, first.text()));
    assert_eq!(bed.object("GET", "k").send().body, b"later", "it changes nothing");
    let missing = (404, "NoSuchUpload".to_owned());
    let other = "\"5d41402abc4b2a76b9719d911017c592\"";
    assert_eq!(complete(&bed, &id, &[(1, other)]).error(), missing);
    assert_eq!(complete(&bed, &id, &[(1, "x")]).error(), missing);
    assert_eq!(part_ask(&bed, &id, 1, b"x").send().error(), missing);
    assert_eq!(bed.object("GET", "k").query("uploadId", &id).send().error(), missing);
    assert_eq!(bed.object("DELETE", "k").query("uploadId", &id).send().error(), missing);
}

#[test]
fn a_completion_during_which_parts_change_is_tried_again() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    let tag = send_part(&bed, &id, 1, b"x");
    bed.model.flaw_completions(10);
    assert_eq!(complete(&bed, &id, &[(1, &tag)]).error(), (400, "InvalidPart".into()));
    assert_eq!(bed.model.flawed_completions(), 7);
    bed.model.flaw_completions(2);
    assert_eq!(complete(&bed, &id, &[(1, &tag)]).status, 200);
}

#[test]
fn a_completion_is_under_the_conditions_of_a_put() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    let tag = send_part(&bed, &id, 1, b"x");
    let ask =
        |name: &str, value: &str| complete_ask(&bed, &id, &[(1, &tag)]).header(name, value).send();
    assert_eq!(ask("if-match", "*").error(), (404, "NoSuchKey".into()));
    bed.put("k", b"hello");
    assert_eq!(ask("if-none-match", "*").error(), (412, "PreconditionFailed".into()));
    assert_eq!(ask("if-match", "\"x\"").error(), (412, "PreconditionFailed".into()));
    assert_eq!(bed.object("GET", "k").send().body, b"hello");
    assert_eq!(ask("if-match", "\"5d41402abc4b2a76b9719d911017c592\"").status, 200);
    assert_eq!(bed.object("GET", "k").send().body, b"x");
}

#[test]
fn wishes_of_an_upload_that_cannot_be_granted_are_refused() {
    let bed = Bed::with_bucket();
    for (name, value, code) in [
        ("x-amz-tagging", "a=b&amp;a=c&a=d", "InvalidArgument"),
        ("x-amz-acl", "public-read", "AccessControlListNotSupported"),
        ("x-amz-storage-class", "GLACIER", "InvalidStorageClass"),
        ("x-amz-meta-a", &"v".repeat(2048), "MetadataTooLarge"),
    ] {
        let reply = begin_ask(&bed, "k").header(name, value).send();
        assert_eq!(reply.error().1, code, "{name}");
    }
    let long = "x".repeat(1025);
    assert_eq!(begin_ask(&bed, &long).send().error(), (400, "KeyTooLongError".into()));
}

#[test]
fn a_presigned_part_is_taken() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    let ask = bed.object("PUT", "k").query("uploadId", &id).query("partNumber", "1");
    let reply = ask.presigned("60").body(b"hello").send_plain();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let tag = reply.header("etag").expect("a tag");
    assert_eq!(complete(&bed, &id, &[(1, tag)]).status, 200);
    assert_eq!(bed.object("GET", "k").send().body, b"hello");
}

#[test]
fn the_backends_errors_are_shown_with_uploads_too() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    bed.model.set_fault(Some(Error::Full));
    let full = (507, "InsufficientStorage".to_owned());
    assert_eq!(begin_ask(&bed, "k").send().error(), full);
    assert_eq!(part_ask(&bed, &id, 1, b"x").send().error(), full);
    assert_eq!(complete(&bed, &id, &[(1, "x")]).error(), full);
}

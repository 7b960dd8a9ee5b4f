//! Copies of objects, and of ranges of them to parts.

use std::sync::atomic::Ordering;

use object_gateway::GatewayConfig;
use object_proto::Error;

use crate::client::{Ask, Bed, OTHER, Reply};
use crate::multipart::{PART, begin, begin_ask, complete_ask};

const HELLO_TAG: &str = "\"5d41402abc4b2a76b9719d911017c592\"";
const SAME: &str = "Tue, 14 Nov 2023 22:13:20 GMT";
const EARLIER: &str = "Tue, 14 Nov 2023 22:13:19 GMT";

fn with_source() -> Bed {
    let bed = Bed::with_bucket();
    let ask = bed.object("PUT", "a/b c").header("content-type", "text/plain");
    let ask = ask.header("x-amz-meta-a", "b").header("cache-control", "no-cache");
    assert_eq!(ask.body(b"hello").send().status, 200);
    bed
}

pub fn copy_ask(bed: &Bed, source: &str, key: &str) -> Ask {
    bed.object("PUT", key).header("x-amz-copy-source", source)
}

fn with(mut ask: Ask, headers: &[(&str, &str)]) -> Reply {
    for (name, value) in headers {
        ask = ask.header(name, value);
    }
    ask.send()
}

#[test]
fn an_object_is_copied_with_its_headers() {
    for source in
        ["/bucket/a/b%20c", "bucket/a/b%20c", "bucket%2Fa%2Fb%20c", "bucket/a/b%20c?versionId=null"]
    {
        let bed = with_source();
        let reply = copy_ask(&bed, source, "copy").send();
        assert_eq!(reply.status, 200, "{source}: {}", reply.text());
        assert_eq!(reply.field("ETag"), HELLO_TAG);
        assert_eq!(reply.field("LastModified"), "2023-11-14T22:13:20.000Z");
        assert_eq!(reply.field("ChecksumCRC64NVME"), "M3eFcAZSQlc=");
        assert_eq!(reply.field("ChecksumType"), "FULL_OBJECT");
        let got = bed.object("GET", "copy").send();
        assert_eq!(got.body, b"hello");
        for (name, value) in
            [("content-type", "text/plain"), ("x-amz-meta-a", "b"), ("cache-control", "no-cache")]
        {
            assert_eq!(got.header(name), Some(value), "{name}");
        }
    }
}

#[test]
fn a_copy_gets_other_headers_if_that_is_asked_for() {
    let bed = with_source();
    let headers = [("x-amz-meta-new", "n"), ("content-type", "text/html")];
    with(copy_ask(&bed, "bucket/a/b%20c", "kept"), &headers);
    let kept = bed.object("HEAD", "kept").send();
    assert_eq!(kept.header("content-type"), Some("text/plain"));
    assert_eq!((kept.header("x-amz-meta-a"), kept.header("x-amz-meta-new")), (Some("b"), None));
    let replace = ("x-amz-metadata-directive", "REPLACE");
    let reply = with(copy_ask(&bed, "bucket/a/b%20c", "new"), &[headers[0], headers[1], replace]);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let new = bed.object("HEAD", "new").send();
    assert_eq!(new.header("content-type"), Some("text/html"));
    assert_eq!((new.header("x-amz-meta-a"), new.header("x-amz-meta-new")), (None, Some("n")));
    assert_eq!(new.header("cache-control"), None);
    let wrong = copy_ask(&bed, "bucket/a/b%20c", "new").header("x-amz-metadata-directive", "MOVE");
    assert_eq!(wrong.send().error(), (400, "InvalidArgument".into()));
}

#[test]
fn a_copy_to_itself_changes_something_or_is_refused() {
    let bed = with_source();
    let ask = || copy_ask(&bed, "bucket/a/b%20c", "a/b c");
    let reply = ask().send();
    assert_eq!(reply.error(), (400, "InvalidRequest".into()));
    assert!(reply.field("Message").starts_with("This copy request is illegal because"));
    let replaced = with(ask(), &[("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-z", "z")]);
    assert_eq!(replaced.status, 200);
    let got = bed.object("GET", "a/b c").send();
    assert_eq!((&*got.body, got.header("x-amz-meta-z")), (&b"hello"[..], Some("z")));
    let summed = ask().header("x-amz-checksum-algorithm", "SHA1").send();
    assert_eq!(summed.field("ChecksumSHA1"), "qvTGHdzF6KLavt4PO0gs2a6pQ00=");
    let wrong = ask().header("x-amz-checksum-algorithm", "XXHASH").send();
    assert_eq!(wrong.error(), (400, "InvalidRequest".into()));
}

#[test]
fn a_source_is_held_to_its_conditions() {
    let bed = with_source();
    let id = begin(&bed, "part");
    let cases: &[(&[(&str, &str)], u16)] = &[
        (&[("x-amz-copy-source-if-match", HELLO_TAG)], 200),
        (&[("x-amz-copy-source-if-match", "\"x\"")], 412),
        (&[("x-amz-copy-source-if-none-match", HELLO_TAG)], 412),
        (&[("x-amz-copy-source-if-none-match", "\"x\"")], 200),
        (&[("x-amz-copy-source-if-modified-since", EARLIER)], 200),
        (&[("x-amz-copy-source-if-modified-since", SAME)], 412),
        (&[("x-amz-copy-source-if-unmodified-since", EARLIER)], 412),
        (&[("x-amz-copy-source-if-unmodified-since", SAME)], 200),
        (
            &[
                ("x-amz-copy-source-if-match", HELLO_TAG),
                ("x-amz-copy-source-if-unmodified-since", EARLIER),
            ],
            200,
        ),
        (
            &[
                ("x-amz-copy-source-if-none-match", HELLO_TAG),
                ("x-amz-copy-source-if-modified-since", EARLIER),
            ],
            412,
        ),
    ];
    for (headers, status) in cases {
        let part = copy_ask(&bed, "bucket/a/b%20c", "part").query("uploadId", &id);
        for ask in [copy_ask(&bed, "bucket/a/b%20c", "copy"), part.query("partNumber", "1")] {
            let reply = with(ask, headers);
            assert_eq!(reply.status, *status, "{headers:?}: {}", reply.text());
            if *status == 412 {
                assert_eq!(reply.field("Code"), "PreconditionFailed");
            }
        }
    }
}

#[test]
fn the_object_that_is_replaced_is_held_to_the_conditions_of_a_put() {
    let bed = with_source();
    let ask = |key: &str, name: &str, value: &str| {
        copy_ask(&bed, "bucket/a/b%20c", key).header(name, value).send()
    };
    assert_eq!(ask("copy", "if-match", "*").error(), (404, "NoSuchKey".into()));
    assert_eq!(ask("copy", "if-none-match", "*").status, 200);
    assert_eq!(ask("copy", "if-none-match", "*").error(), (412, "PreconditionFailed".into()));
    assert_eq!(ask("copy", "if-match", "\"x\"").error(), (412, "PreconditionFailed".into()));
    assert_eq!(ask("copy", "if-match", HELLO_TAG).status, 200);
    assert_eq!(ask("copy", "if-match", "\"a").error(), (400, "InvalidArgument".into()));
}

#[test]
fn a_source_that_cannot_be_read_is_refused() {
    let bed = with_source();
    assert_eq!(bed.ask("PUT", "/others").by(OTHER).send().status, 200);
    let other = |source: &str| {
        bed.ask("PUT", "/others/k").by(OTHER).header("x-amz-copy-source", source).send()
    };
    assert_eq!(other("bucket/a/b%20c").error(), (403, "AccessDenied".into()));
    let no_key = other("others/none");
    assert_eq!(no_key.error(), (404, "NoSuchKey".into()));
    assert_eq!(no_key.fields("Key").len(), 0, "the key of the request is not what is missing");
    for (source, status, code) in [
        ("bucket/none", 404, "NoSuchKey"),
        ("nowhere/k", 404, "NoSuchBucket"),
        ("bucket/a/b%20c?versionId=x", 400, "InvalidArgument"),
        ("bucket", 400, "InvalidArgument"),
        ("bucket/", 400, "InvalidArgument"),
        ("/", 400, "InvalidArgument"),
        ("bucket/%ff", 400, "InvalidArgument"),
        ("arn:aws:s3:us-west-2:123456789012:accesspoint/abc/object/k", 501, "NotImplemented"),
    ] {
        let reply = copy_ask(&bed, source, "copy").send();
        assert_eq!(reply.error(), (status, code.into()), "{source}: {}", reply.text());
    }
    let owner = ("x-amz-source-expected-bucket-owner", "id-other");
    let reply = with(copy_ask(&bed, "bucket/a/b%20c", "copy"), &[owner]);
    assert_eq!(reply.error(), (403, "AccessDenied".into()));
    assert_eq!(bed.model.objects(), 1);
    let tags = ("x-amz-tagging-directive", "COPY");
    assert_eq!(with(copy_ask(&bed, "bucket/a/b%20c", "copy"), &[tags]).status, 200);
    // An administrator may copy between users.
    assert_eq!(bed.ask("PUT", "/others/k").by(OTHER).body(b"x").send().status, 200);
    assert_eq!(copy_ask(&bed, "others/k", "from-other").send().status, 200);
}

#[test]
fn odd_keys_are_copied() {
    let bed = Bed::with_bucket();
    for (key, written) in [
        ("a+b", "a+b"),
        ("a b", "a%20b"),
        ("a%20b", "a%2520b"),
        ("é", "%C3%A9"),
        ("?x", "%3Fx"),
        ("a//b", "a//b"),
        ("/a", "/a"),
    ] {
        bed.put(key, key.as_bytes());
        let reply = copy_ask(&bed, &format!("bucket/{written}"), "copy").send();
        assert_eq!(reply.status, 200, "{key}: {}", reply.text());
        assert_eq!(bed.object("GET", "copy").send().body, key.as_bytes(), "{key}");
    }
}

#[test]
fn a_large_object_is_copied_in_bounded_memory() {
    // Fewer bytes than a copy's two pieces.
    for memory_bytes in [1 << 20, 64 << 20] {
        let bed = Bed::with(GatewayConfig { memory_bytes, ..GatewayConfig::default() });
        assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
        let content: Vec<u8> = (0..(3u32 << 20) + 3).map(|at| (at ^ (at >> 9)) as u8).collect();
        bed.put("k", &content);
        assert_eq!(copy_ask(&bed, "bucket/k", "copy").send().status, 200);
        assert!(bed.object("GET", "copy").send().body == content, "the bytes differ");
        bed.put("empty", b"");
        assert_eq!(copy_ask(&bed, "bucket/empty", "copy").send().status, 200);
        assert_eq!(bed.object("GET", "copy").send().body, b"");
        assert_eq!(bed.model.contents_open.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_source_whose_content_goes_makes_no_copy() {
    let bed = Bed::with_bucket();
    bed.put("k", &vec![7; 3 << 20]);
    bed.model.read_until(Some(2 << 20));
    assert_eq!(copy_ask(&bed, "bucket/k", "copy").send().error(), (404, "NoSuchKey".into()));
    bed.model.read_until(None);
    assert_eq!(bed.model.objects(), 1);
    bed.model.set_fault(Some(Error::Full));
    assert_eq!(
        copy_ask(&bed, "bucket/k", "copy").send().error(),
        (507, "InsufficientStorage".into())
    );
}

/// A request that copies to part 1 of an upload of `k`.
fn part_copy(bed: &Bed, id: &str, number: &str) -> Ask {
    copy_ask(bed, "bucket/source", "k").query("uploadId", id).query("partNumber", number)
}

#[test]
fn an_object_is_put_together_of_ranges_of_another() {
    let bed = Bed::with_bucket();
    let content: Vec<u8> = (0..(PART as u32) + 100).map(|at| (at ^ (at >> 9)) as u8).collect();
    bed.put("source", &content);
    let id = begin(&bed, "k");
    let range = |number: &str, range: &str| {
        let reply = part_copy(&bed, &id, number).header("x-amz-copy-source-range", range).send();
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.field("LastModified"), "2023-11-14T22:13:20.000Z");
        assert_eq!(reply.fields("ChecksumCRC64NVME").len(), 1);
        reply.field("ETag")
    };
    let first = range("1", &format!("bytes=100-{}", PART + 99));
    let second = range("2", "bytes=0-0");
    let third = part_copy(&bed, &id, "3").send();
    assert_eq!(third.status, 200, "{}", third.text());
    let reply = complete_ask(&bed, &id, &[(1, &first), (3, &third.field("ETag"))]).send();
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(bed.object("GET", "k").send().body == [&content[100..], &content].concat());
    assert_ne!(second, first);
}

#[test]
fn a_copied_part_has_the_uploads_checksum() {
    let bed = Bed::with_bucket();
    bed.put("source", b"hello");
    let begun = begin_ask(&bed, "k").header("x-amz-checksum-algorithm", "SHA1").send();
    let id = begun.field("UploadId");
    let part = part_copy(&bed, &id, "1").send();
    assert_eq!(part.field("ChecksumSHA1"), "qvTGHdzF6KLavt4PO0gs2a6pQ00=");
    let made = complete_ask(&bed, &id, &[(1, &part.field("ETag"))]).send();
    assert_eq!(made.field("ChecksumType"), "COMPOSITE");
    // Copied at once, it is an object of one content.
    let copied = copy_ask(&bed, "bucket/k", "copy").send();
    assert_eq!(copied.field("ETag"), HELLO_TAG);
    assert_eq!(copied.field("ChecksumSHA1"), "qvTGHdzF6KLavt4PO0gs2a6pQ00=");
    assert_eq!(copied.field("ChecksumType"), "FULL_OBJECT");
}

#[test]
fn a_copy_to_a_part_that_cannot_be_is_refused() {
    let bed = Bed::with_bucket();
    bed.put("source", b"hello");
    let id = begin(&bed, "k");
    for (range, status, code) in [
        ("bytes=0-5", 416, "InvalidRange"),
        ("bytes=5-5", 416, "InvalidRange"),
        ("bytes=3-2", 400, "InvalidArgument"),
        ("bytes=0-", 400, "InvalidArgument"),
        ("0-1", 400, "InvalidArgument"),
    ] {
        let reply = part_copy(&bed, &id, "1").header("x-amz-copy-source-range", range).send();
        assert_eq!(reply.error(), (status, code.into()), "{range}");
    }
    assert_eq!(part_copy(&bed, &id, "0").send().error(), (400, "InvalidArgument".into()));
    assert_eq!(part_copy(&bed, "x", "1").send().error(), (404, "NoSuchUpload".into()));
    let missing = bed.object("PUT", "k").query("uploadId", &id).query("partNumber", "1");
    let missing = missing.header("x-amz-copy-source", "bucket/none").send();
    assert_eq!(missing.error(), (404, "NoSuchKey".into()));
    let listed = bed.object("GET", "k").query("uploadId", &id).send();
    assert_eq!(listed.fields("Part").len(), 0);
}

//! Objects: put, get, head, delete, with all that S3 has headers for.

use std::sync::atomic::Ordering;

use crate::client::{ADMIN, BUCKET, Bed, OTHER, Reply};
use crate::signer::hex;
use object_proto::Error;
use proptest::prelude::*;

const HELLO_MD5: &str = "5d41402abc4b2a76b9719d911017c592";
/// Checksums of `hello`, by other implementations.
const HELLO_SUMS: [(&str, &str); 5] = [
    ("crc32", "NhCmhg=="),
    ("crc32c", "mnG7TA=="),
    ("crc64nvme", "M3eFcAZSQlc="),
    ("sha1", "qvTGHdzF6KLavt4PO0gs2a6pQ00="),
    ("sha256", "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="),
];

fn put_hello() -> Bed {
    let bed = Bed::with_bucket();
    assert_eq!(bed.put("k", b"hello").status, 200);
    bed
}

#[test]
fn an_object_comes_back_with_its_headers() {
    let bed = Bed::with_bucket();
    let reply = bed
        .object("PUT", "k")
        .header("content-type", "text/plain; charset=utf-8")
        .header("cache-control", "no-cache")
        .header("content-disposition", "inline")
        .header("content-language", "de")
        .header("content-encoding", "gzip")
        .header("expires", "Wed, 21 Oct 2015 07:28:00 GMT")
        .header("x-amz-meta-a", "one  two")
        .header("x-amz-meta-utf", "=?UTF-8?B?w7xuw68=?=")
        .body(b"hello")
        .send();
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("etag"), Some(&*format!("\"{HELLO_MD5}\"")));
    for method in ["GET", "HEAD"] {
        let reply = bed.object(method, "k").send();
        assert_eq!(reply.status, 200);
        for (name, value) in [
            ("content-type", "text/plain; charset=utf-8"),
            ("cache-control", "no-cache"),
            ("content-disposition", "inline"),
            ("content-language", "de"),
            ("content-encoding", "gzip"),
            ("expires", "Wed, 21 Oct 2015 07:28:00 GMT"),
            ("x-amz-meta-utf", "=?UTF-8?B?w7xuw68=?="),
            ("content-length", "5"),
            ("accept-ranges", "bytes"),
            ("last-modified", "Tue, 14 Nov 2023 22:13:20 GMT"),
            ("server", "Craton"),
        ] {
            assert_eq!(reply.header(name), Some(value), "{method} {name}");
        }
        let body: &[u8] = if method == "GET" { b"hello" } else { b"" };
        assert_eq!(reply.body, body);
        assert_eq!(reply.header("x-amz-checksum-crc64nvme"), None);
    }
    let (info, _) = bed.model.object("k").expect("there");
    assert_eq!(info.object.facts.metadata.get("x-amz-meta-utf"), Some("ünï"));
    assert_eq!(info.object.facts.owner.as_str(), "id-admin");
}

#[test]
fn a_checksum_that_was_sent_is_kept_and_shown_when_asked_for() {
    for (name, value) in HELLO_SUMS {
        let bed = Bed::with_bucket();
        let header = format!("x-amz-checksum-{name}");
        let reply = bed.object("PUT", "k").header(&header, value).body(b"hello").send();
        assert_eq!(reply.status, 200, "{name}: {}", reply.text());
        assert_eq!(reply.header(&header), Some(value));
        let reply = bed.object("GET", "k").header("x-amz-checksum-mode", "ENABLED").send();
        assert_eq!(reply.header(&header), Some(value));
        assert_eq!(reply.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
        let part = bed.object("GET", "k").header("x-amz-checksum-mode", "ENABLED");
        assert_eq!(part.header("range", "bytes=0-1").send().header(&header), None);
    }
}

#[test]
fn without_a_checksum_crc64nvme_is_computed() {
    let bed = put_hello();
    let reply = bed.object("HEAD", "k").header("x-amz-checksum-mode", "ENABLED").send();
    assert_eq!(reply.header("x-amz-checksum-crc64nvme"), Some("M3eFcAZSQlc="));
}

#[test]
fn wrong_digests_store_nothing() {
    let bed = Bed::with_bucket();
    let zero = |len: usize| match len {
        4 => "AAAAAA==".to_owned(),
        8 => "AAAAAAAAAAA=".to_owned(),
        20 => "AAAAAAAAAAAAAAAAAAAAAAAAAAA=".to_owned(),
        _ => "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".to_owned(),
    };
    for (name, len) in [("crc32", 4), ("crc32c", 4), ("crc64nvme", 8), ("sha1", 20), ("sha256", 32)]
    {
        let header = format!("x-amz-checksum-{name}");
        let ask = |value: &str| bed.object("PUT", "k").header(&header, value).body(b"hello").send();
        assert_eq!(ask(&zero(len)).error(), (400, "BadDigest".into()), "{name}");
        assert_eq!(ask("AAAA").error(), (400, "InvalidRequest".into()), "{name}");
        assert_eq!(ask("?").error(), (400, "InvalidRequest".into()), "{name}");
    }
    let md5 =
        |value: &str| bed.object("PUT", "k").header("content-md5", value).body(b"hello").send();
    assert_eq!(md5("AAAAAAAAAAAAAAAAAAAAAA==").error(), (400, "BadDigest".into()));
    assert_eq!(md5("AAAA").error(), (400, "InvalidDigest".into()));
    assert_eq!(bed.model.objects(), 0);
    assert_eq!(md5("XUFAKrxLKna5cZ2REBfFkg==").status, 200);
}

#[test]
fn contradictory_or_unknown_checksums_are_refused() {
    let bed = Bed::with_bucket();
    let cases: &[(&[(&str, &str)], &str)] = &[
        (
            &[("x-amz-checksum-crc32", "NhCmhg=="), ("x-amz-checksum-crc32c", "mnG7TA==")],
            "InvalidRequest",
        ),
        (&[("x-amz-sdk-checksum-algorithm", "CRC32")], "InvalidRequest"),
        (&[("x-amz-sdk-checksum-algorithm", "XXHASH")], "InvalidRequest"),
        (
            &[("x-amz-sdk-checksum-algorithm", "SHA1"), ("x-amz-checksum-crc32", "NhCmhg==")],
            "InvalidRequest",
        ),
        (&[("x-amz-checksum-sha512", "AAAA")], "NotImplemented"),
    ];
    for (headers, code) in cases {
        let mut ask = bed.object("PUT", "k").body(b"hello");
        for (name, value) in *headers {
            ask = ask.header(name, value);
        }
        assert_eq!(ask.send().error().1, *code, "{headers:?}");
    }
    assert_eq!(bed.model.objects(), 0);
}

#[test]
fn ranges_answer_the_part_or_416() {
    let bed = Bed::with_bucket();
    bed.put("k", b"0123456789");
    for (range, content, shown) in [
        ("bytes=0-0", "0", "bytes 0-0/10"),
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=-20", "0123456789", "bytes 0-9/10"),
        ("bytes=5-100", "56789", "bytes 5-9/10"),
    ] {
        let reply = bed.object("GET", "k").header("range", range).send();
        assert_eq!((reply.status, &*reply.text()), (206, content), "{range}");
        assert_eq!(reply.header("content-range"), Some(shown));
        let reply = bed.object("HEAD", "k").header("range", range).send();
        assert_eq!(reply.status, 206);
        assert_eq!(reply.header("content-length"), Some(&*content.len().to_string()));
    }
    for range in ["bytes=10-", "bytes=10-20", "bytes=-0"] {
        let reply = bed.object("GET", "k").header("range", range).send();
        assert_eq!(reply.error(), (416, "InvalidRange".into()), "{range}");
        assert_eq!(reply.header("content-range"), Some("bytes */10"));
    }
    bed.put("empty", b"");
    for range in ["bytes=0-", "bytes=-1"] {
        let reply = bed.object("GET", "empty").header("range", range).send();
        assert_eq!(reply.error(), (416, "InvalidRange".into()), "{range}");
    }
    let part = |number: &str| bed.object("GET", "k").query("partNumber", number).send();
    assert_eq!((part("1").status, &*part("1").text()), (206, "0123456789"));
    assert_eq!(part("2").error(), (416, "InvalidPartNumber".into()));
    assert_eq!(part("0").error(), (400, "InvalidArgument".into()));
    assert_eq!(part("10001").error(), (400, "InvalidArgument".into()));
}

#[test]
fn conditions_on_reads_answer_as_http_says() {
    let bed = put_hello();
    let tag = format!("\"{HELLO_MD5}\"");
    let (earlier, same) = ("Tue, 14 Nov 2023 22:13:19 GMT", "Tue, 14 Nov 2023 22:13:20 GMT");
    let cases: &[(&[(&str, &str)], u16)] = &[
        (&[("if-match", &tag)], 200),
        (&[("if-match", HELLO_MD5)], 200),
        (&[("if-match", "*")], 200),
        (&[("if-match", "\"x\"")], 412),
        (&[("if-none-match", &tag)], 304),
        (&[("if-none-match", "*")], 304),
        (&[("if-none-match", "\"x\"")], 200),
        (&[("if-modified-since", same)], 304),
        (&[("if-modified-since", earlier)], 200),
        (&[("if-unmodified-since", same)], 200),
        (&[("if-unmodified-since", earlier)], 412),
        (&[("if-match", &tag), ("if-unmodified-since", earlier)], 200),
        (&[("if-none-match", &tag), ("if-modified-since", earlier)], 304),
        (&[("if-none-match", "\"x\""), ("if-modified-since", same)], 200),
        (&[("if-match", "\"x\""), ("if-none-match", &tag)], 412),
    ];
    for (headers, status) in cases {
        for method in ["GET", "HEAD"] {
            let mut ask = bed.object(method, "k");
            for (name, value) in *headers {
                ask = ask.header(name, value);
            }
            let reply = ask.send();
            assert_eq!(reply.status, *status, "{method} {headers:?}");
            if *status == 304 {
                assert_eq!(reply.header("etag"), Some(&*tag));
                assert_eq!(reply.body, b"");
            }
        }
    }
}

#[test]
fn conditions_on_changes_are_decided_by_the_object_that_is_there() {
    let bed = put_hello();
    let put = |name: &str, value: &str, key: &str| {
        bed.object("PUT", key).header(name, value).body(b"other").send()
    };
    assert_eq!(put("if-none-match", "*", "k").error(), (412, "PreconditionFailed".into()));
    assert_eq!(put("if-match", "\"x\"", "k").error(), (412, "PreconditionFailed".into()));
    assert_eq!(put("if-match", "\"x\"", "new").error(), (404, "NoSuchKey".into()));
    let content = bed.model.object("k").map(|(_, content)| content);
    assert_eq!(content.as_deref(), Some(&b"hello"[..]));
    assert_eq!(put("if-none-match", "*", "new").status, 200);
    assert_eq!(put("if-match", HELLO_MD5, "k").status, 200);
    let delete = |tag: &str| bed.object("DELETE", "k").header("if-match", tag).send();
    assert_eq!(delete("\"x\"").error(), (412, "PreconditionFailed".into()));
    assert_eq!(delete("*").status, 204);
    assert_eq!(bed.object("DELETE", "k").send().status, 204);
    assert_eq!(bed.object("GET", "k").send().error(), (404, "NoSuchKey".into()));
}

#[test]
fn response_headers_are_overridden_by_the_query() {
    let bed = put_hello();
    for method in ["GET", "HEAD"] {
        let reply = bed
            .object(method, "k")
            .query("response-content-type", "a/b")
            .query("response-content-disposition", "attachment; filename=\"x y\"")
            .query("response-cache-control", "no-store")
            .query("response-content-encoding", "br")
            .query("response-content-language", "fr")
            .query("response-expires", "Wed, 21 Oct 2015 07:28:00 GMT")
            .send();
        for (name, value) in [
            ("content-type", "a/b"),
            ("content-disposition", "attachment; filename=\"x y\""),
            ("cache-control", "no-store"),
            ("content-encoding", "br"),
            ("content-language", "fr"),
            ("expires", "Wed, 21 Oct 2015 07:28:00 GMT"),
        ] {
            assert_eq!(reply.header(name), Some(value), "{method} {name}");
        }
    }
}

#[test]
fn wishes_that_cannot_be_granted_are_refused() {
    let bed = Bed::with_bucket();
    for (name, value, code) in [
        ("x-amz-server-side-encryption", "aws:kms:dsse", "NotImplemented"),
        ("x-amz-object-lock-mode", "GOVERNANCE", "InvalidArgument"),
        ("x-amz-object-lock-legal-hold", "ON", "InvalidRequest"),
        ("x-amz-website-redirect-location", "/x", "NotImplemented"),
        ("x-amz-write-offset-bytes", "5", "NotImplemented"),
        ("x-amz-acl", "public-read", "AccessControlListNotSupported"),
        ("x-amz-grant-read", "id=x", "AccessControlListNotSupported"),
        ("x-amz-storage-class", "GLACIER", "InvalidStorageClass"),
    ] {
        let reply = bed.object("PUT", "k").header(name, value).body(b"hello").send();
        assert_eq!(reply.error().1, code, "{name}: {}", reply.text());
    }
    assert_eq!(bed.model.objects(), 0);
    for (name, value) in
        [("x-amz-acl", "bucket-owner-full-control"), ("x-amz-storage-class", "STANDARD")]
    {
        assert_eq!(bed.object("PUT", "k").header(name, value).body(b"hello").send().status, 200);
    }
}

#[test]
fn subresources_that_are_not_known_change_nothing() {
    let bed = put_hello();
    for (method, path, name) in [
        ("PUT", "/bucket/k", "renameObject"),
        ("PUT", "/bucket/k", "encryption-new"),
        ("DELETE", "/bucket", "metadataConfiguration"),
        ("PUT", "/bucket", "abac"),
        ("PUT", "/bucket/k", "tagging"),
        ("PUT", "/bucket/k", "acl"),
        ("PUT", "/bucket", "versioning"),
    ] {
        let reply = bed.ask(method, path).query(name, "").body(b"<x/>").send();
        // s3s reads the documents of those that it knows first.
        let is_known = ["tagging", "acl", "versioning"].contains(&name);
        let status = if is_known { 400 } else { 501 };
        assert_eq!(reply.status, status, "{method} {path}?{name}: {}", reply.text());
    }
    let part = bed.object("PUT", "k").query("partNumber", "1").body(b"x").send();
    assert_eq!(part.error(), (400, "InvalidArgument".into()));
    let part = bed.object("DELETE", "k").query("partNumber", "1").send();
    assert_eq!(part.error(), (400, "InvalidArgument".into()));
    for method in ["PUT", "DELETE"] {
        let uploads = bed.object(method, "k").query("uploads", "").send();
        assert_eq!(uploads.error(), (405, "MethodNotAllowed".into()), "{method}");
    }
    let version = bed.object("DELETE", "k").query("versionId", "x").send();
    assert_eq!(version.error(), (400, "InvalidArgument".into()));
    assert_eq!(bed.object("GET", "k").send().body, b"hello");
}

/// Text between elements, and numbers with something behind them, are no rules for everything or for one day.
#[test]
fn documents_in_which_something_would_be_passed_over_are_refused() {
    let bed = put_hello();
    let put = |content: &str| {
        let body = format!(
            "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status>{content}</Rule>\
             </LifecycleConfiguration>"
        );
        bed.ask("PUT", "/bucket").query("lifecycle", "").body(body.as_bytes()).send()
    };
    let days = "<Expiration><Days>1</Days></Expiration>";
    for content in [
        &format!("<Filter>logs/</Filter>{days}"),
        &format!("<Filter><And>logs/</And></Filter>{days}"),
        "<Filter/><Expiration><Days>1,000</Days></Expiration>",
        "<Filter/><Expiration><Days>10 days</Days></Expiration>",
        "<Filter><ObjectSizeGreaterThan>128KB</ObjectSizeGreaterThan></Filter>",
        &format!("<Filter><And/></Filter>{days}"),
        &format!("<Filter><And><Prefix>logs/</Prefix></And></Filter>{days}"),
    ] {
        assert_eq!(put(content).error(), (400, "MalformedXML".into()), "{content}");
    }
    let newer = "<Prefix/><NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays>\
                 <NewerNoncurrentVersions>5</NewerNoncurrentVersions></NoncurrentVersionExpiration>";
    assert_eq!(put(newer).error(), (400, "InvalidRequest".into()));
    assert_eq!(bed.ask("GET", "/bucket").query("lifecycle", "").send().status, 404);
    assert_eq!(put(&format!("<Filter/>{days}")).status, 200);
}

/// What a key has not is no word to be passed over, and neither is what a bucket has not.
#[test]
fn subresources_of_something_else_change_nothing() {
    let bed = put_hello();
    let settings =
        ["lifecycle", "policy", "cors", "versioning", "object-lock", "versions", "delete"];
    for name in settings {
        for method in ["PUT", "GET", "HEAD", "DELETE"] {
            let reply = bed.object(method, "k").query(name, "").body(b"").send();
            assert_eq!(reply.status, 405, "{method} /bucket/k?{name}: {}", reply.text());
        }
    }
    assert_eq!(bed.ask("PUT", "/empty").send().status, 200);
    for name in
        ["acl", "versioning", "versions", "retention", "legal-hold", "attributes", "restore"]
    {
        let reply = bed.ask("DELETE", "/empty").query(name, "").send();
        assert!([405, 501].contains(&reply.status), "?{name}: {} {}", reply.status, reply.text());
    }
    assert_eq!(bed.ask("HEAD", "/empty").send().status, 200);
    assert_eq!(bed.object("GET", "k").send().body, b"hello");
}

#[test]
fn too_much_metadata_is_refused() {
    let bed = Bed::with_bucket();
    let put = |len: usize| {
        bed.object("PUT", "k").header("x-amz-meta-a", &"v".repeat(len)).body(b"hello").send()
    };
    assert_eq!(put(2047).status, 200);
    assert_eq!(put(2048).error(), (400, "MetadataTooLarge".into()));
}

#[test]
fn odd_keys_are_kept_as_they_are() {
    let bed = Bed::with_bucket();
    let keys = [
        ".",
        "..",
        "a//b",
        "/",
        "//",
        "a/",
        " ",
        "a b",
        "%",
        "%20",
        "+",
        "a+b",
        "é",
        "😀",
        "a\u{1}b",
        "\r",
        "\n",
        "\t",
        "<&>\"'",
        "?",
        "#",
        "~",
        "a/../b",
        "./c",
        "\u{7f}",
        "*",
        "=&",
        &"x".repeat(1024),
        &"é".repeat(512),
    ];
    for key in keys {
        let reply = bed.put(key, key.as_bytes());
        assert_eq!(reply.status, 200, "{key:?}: {}", reply.text());
    }
    for key in keys {
        assert_eq!(bed.object("GET", key).send().body, key.as_bytes(), "{key:?}");
        assert!(bed.model.object(key).is_some(), "{key:?}");
    }
    let reply = bed.ask("GET", "/bucket").send();
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    assert_eq!(reply.fields("Key"), sorted);
    for key in keys {
        assert_eq!(bed.object("DELETE", key).send().status, 204, "{key:?}");
    }
    assert_eq!(bed.model.objects(), 0);
    for key in ["x".repeat(1025), "é".repeat(513)] {
        assert_eq!(bed.put(&key, b"").error(), (400, "KeyTooLongError".into()));
    }
}

#[test]
fn a_path_that_is_no_text_is_refused() {
    let bed = Bed::with_bucket();
    let path = String::from_utf8(bed.object("GET", "QQ").bytes()).expect("text");
    let bytes = path.replace("/QQ", "/%FF");
    let mut stream = bed.connect();
    std::io::Write::write_all(&mut stream, bytes.as_bytes()).expect("sent");
    let reply = crate::client::read_reply(&mut stream, false).expect("an answer");
    assert_eq!(reply.error(), (400, "InvalidURI".into()));
}

pub fn delete_many(bed: &Bed, xml: &str) -> Reply {
    delete_many_by(bed, ADMIN, xml)
}

pub fn delete_many_by(bed: &Bed, key: (&str, &str), xml: &str) -> Reply {
    let md5 = s3s_md5(xml.as_bytes());
    bed.ask("POST", "/bucket")
        .by(key)
        .query("delete", "")
        .header("content-md5", &md5)
        .body(xml.as_bytes())
        .send()
}

/// MD5 in base64, by s3s, which the gateway uses as well: what it is was checked with `hello`.
fn s3s_md5(bytes: &[u8]) -> String {
    let bed = Bed::with_bucket();
    let etag = bed.put("md5", bytes).header("etag").expect("a tag").trim_matches('"').to_owned();
    let bytes: Vec<u8> =
        (0..16).map(|at| u8::from_str_radix(&etag[2 * at..2 * at + 2], 16).expect("hex")).collect();
    base64(&bytes)
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let mut text = String::new();
    for at in (0..bits.len()).step_by(6) {
        let group = format!("{:0<6}", &bits[at..bits.len().min(at + 6)]);
        let value = usize::from_str_radix(&group, 2).expect("bits");
        text.push(DIGITS[value] as char);
    }
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

#[test]
fn many_objects_are_deleted_each_with_an_outcome() {
    let bed = Bed::with_bucket();
    for key in ["a", "b&", "c", "d", "e\u{1}"] {
        bed.put(key, b"hello");
    }
    let long = "x".repeat(1025);
    let reply = delete_many(
        &bed,
        &format!(
            "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
             <Object><Key>a</Key></Object><Object><Key>b&amp;</Key></Object>\
             <Object><Key>none</Key></Object>\
             <Object><Key>c</Key><ETag>wrong</ETag></Object>\
             <Object><Key>d</Key><VersionId>x</VersionId></Object>\
             <Object><Key>e\u{1}</Key></Object>\
             <Object><Key>{long}</Key></Object></Delete>"
        ),
    );
    assert_eq!(reply.status, 200, "{}", reply.text());
    let deleted = reply.fields("Deleted");
    assert_eq!(deleted.len(), 4, "{}", reply.text());
    assert_eq!(reply.fields("Code"), ["PreconditionFailed", "InvalidArgument", "KeyTooLongError"]);
    assert!(reply.text().contains("e&#x1;"));
    assert_eq!(bed.model.objects(), 2);
    let reply = delete_many(
        &bed,
        "<Delete><Quiet>true</Quiet><!-- x --><Object><Key>c</Key></Object><Object><Key>d</Key>\
         <VersionId>null</VersionId></Object></Delete>",
    );
    assert_eq!((reply.status, reply.fields("Key")), (200, vec![]));
    assert_eq!(bed.model.objects(), 0);
}

#[test]
fn a_bulk_delete_that_is_flawed_deletes_nothing() {
    let bed = put_hello();
    let entity = "<!DOCTYPE d [<!ENTITY k \"k\">]><Delete><Object><Key>&k;</Key></Object></Delete>";
    let many = "<Object><Key>k</Key></Object>".repeat(1001);
    for xml in [
        "<Delete>",
        "<Delete></Delete>",
        "<Delete><Object></Object></Delete>",
        "<Other><Object><Key>k</Key></Object></Other>",
        "<Delete><Object><Key>k</Key></Object></Delete><x/>",
        "<Delete><Object><Key>k</Key><Key>k</Key></Object></Delete>",
        entity,
        "<Delete><Object><Key><![CDATA[k]]></Key></Object></Delete>",
        "<Delete><Object><Key>k<![CDATA[k]]></Key></Object></Delete>",
        "<Delete><Object><Key>k&#x1;</Key></Object></Delete>",
        "<Delete><Object><Key>&k;</Key></Object></Delete>",
        "\u{0}",
        &format!("<Delete>{many}</Delete>"),
    ] {
        let reply = delete_many(&bed, xml);
        assert_eq!(
            reply.error(),
            (400, "MalformedXML".into()),
            "{}: {}",
            &xml[..xml.len().min(80)],
            reply.text()
        );
    }
    let xml = b"<Delete><Object><Key>k</Key></Object></Delete>";
    let ask = || bed.ask("POST", "/bucket").query("delete", "").body(xml);
    assert_eq!(ask().send().error(), (400, "InvalidRequest".into()));
    let wrong = ask().header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==").send();
    assert_eq!(wrong.error(), (400, "BadDigest".into()));
    let wrong = ask().header("x-amz-checksum-crc32", "AAAAAA==").send();
    assert_eq!(wrong.error(), (400, "BadDigest".into()));
    let wrong = ask().header("content-md5", &s3s_md5(xml)).payload(&hex(&[0; 32])).send();
    assert_eq!(wrong.error(), (400, "XAmzContentSHA256Mismatch".into()));
    let empty = bed.ask("POST", "/bucket").query("delete", "").send();
    assert_eq!(empty.error(), (400, "MissingRequestBodyError".into()));
    assert_eq!(bed.model.objects(), 1);
    let right = ask().header("content-md5", &s3s_md5(xml)).send();
    assert_eq!(right.status, 200);
    assert_eq!(bed.model.objects(), 0);
}

#[test]
fn a_document_that_is_too_long_is_refused_before_it_is_read() {
    let bed = put_hello();
    let reply = bed
        .ask("POST", "/bucket")
        .query("delete", "")
        .header("content-length", &(5 << 20).to_string())
        .payload("UNSIGNED-PAYLOAD")
        .send();
    assert_eq!(reply.error(), (400, "MaxMessageLengthExceeded".into()));
}

#[test]
fn the_backends_errors_are_shown_as_s3s() {
    let bed = put_hello();
    for (fault, status, code) in [
        (Error::Busy { cause: "test".into() }, 503, "SlowDown"),
        (Error::Unknown { cause: "test".into() }, 503, "ServiceUnavailable"),
        (Error::Full, 507, "InsufficientStorage"),
        (Error::Damaged { what: "secret place".into() }, 500, "InternalError"),
        (Error::SessionOver, 503, "SlowDown"),
    ] {
        bed.model.set_fault(Some(fault));
        let reply = bed.put("k", b"hello");
        assert_eq!(reply.error(), (status, code.into()));
        assert!(!reply.text().contains("secret place"));
        assert_eq!(reply.field("RequestId"), reply.header("x-amz-request-id").unwrap_or_default());
        assert_eq!(reply.field("RequestId").len(), 16);
    }
    bed.model.set_fault(None);
    assert_eq!(bed.object("GET", "k").send().body, b"hello");
}

#[test]
fn a_download_whose_content_goes_is_cut() {
    let bed = Bed::with_bucket();
    let content = vec![7; 3 << 20];
    bed.put("k", &content);
    bed.model.read_until(Some(1 << 20));
    let reply = bed.object("GET", "k").send();
    assert_eq!((reply.status, reply.whole), (200, false));
    assert!(reply.body.len() <= 1 << 20);
    bed.model.read_until(Some(0));
    assert_eq!(bed.object("GET", "k").send().error(), (404, "NoSuchKey".into()));
    bed.model.read_until(None);
    assert_eq!(bed.object("GET", "k").send().body, content);
}

#[test]
fn objects_of_another_user_are_denied() {
    let bed = put_hello();
    for method in ["GET", "PUT", "DELETE"] {
        let reply = bed.object(method, "k").by(OTHER).send();
        assert_eq!(reply.error(), (403, "AccessDenied".into()), "{method}");
    }
    assert_eq!(bed.object("HEAD", "k").by(OTHER).send().status, 403);
    assert_eq!(bed.model.uploads_begun.load(Ordering::Relaxed), 1);
    let expect =
        |owner: &str| bed.object("GET", "k").header("x-amz-expected-bucket-owner", owner).send();
    assert_eq!(expect("id-other").error(), (403, "AccessDenied".into()));
    assert_eq!(expect("id-admin").status, 200);
    assert_eq!(bed.ask("PUT", "/others").by(OTHER).send().status, 200);
    assert_eq!(bed.ask("PUT", "/others/k").by(OTHER).body(b"x").send().status, 200);
    assert_eq!(bed.ask("GET", "/others/k").send().body, b"x", "an administrator may all");
}

#[test]
fn a_large_object_comes_back_in_pieces() {
    let bed = Bed::with_bucket();
    let content: Vec<u8> = (0..(5u32 << 20) + 3).map(|at| (at ^ (at >> 9)) as u8).collect();
    assert_eq!(bed.put("k", &content).status, 200);
    assert_eq!(bed.object("GET", "k").send().body, content);
    let reply = bed.object("GET", "k").header("range", "bytes=1048575-3145729").send();
    assert_eq!(reply.body, &content[1_048_575..=3_145_729]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_key_and_content_come_back(
        key in "[^\u{0}]{1,60}",
        content in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let bed = Bed::with_bucket();
        let reply = bed.put(&key, &content);
        prop_assert_eq!(reply.status, 200, "{}", reply.text());
        prop_assert_eq!(bed.object("GET", &key).send().body, content);
        let list = bed.ask("GET", &format!("/{BUCKET}")).query("encoding-type", "url");
        let names = list.send().field("Key");
        prop_assert_eq!(names, crate::signer::encode(&key, false));
    }
}

#[test]
fn an_object_that_is_xml_has_a_length() {
    let bed = Bed::with_bucket();
    let put = bed.object("PUT", "k").header("content-type", "application/xml").body(b"<a/>").send();
    assert_eq!(put.status, 200);
    for method in ["GET", "HEAD"] {
        assert_eq!(bed.object(method, "k").send().header("content-length"), Some("4"), "{method}");
    }
    let asked = bed.object("HEAD", "k").query("response-content-type", "application/xml").send();
    assert_eq!(asked.header("content-length"), Some("4"));
}

#[test]
fn a_key_that_is_too_long_is_not_sent_back_whole() {
    let bed = Bed::with_bucket();
    let key = "k".repeat(1 << 20);
    let reply =
        delete_many_by(&bed, ADMIN, &format!("<Delete><Object><Key>{key}</Key></Object></Delete>"));
    assert_eq!(reply.fields("Code"), ["KeyTooLongError"]);
    assert!(reply.fields("Key") == ["k".repeat(1024)]);
}

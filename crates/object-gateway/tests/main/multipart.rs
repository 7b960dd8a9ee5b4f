//! Multipart uploads over HTTP.

use crate::client::{Bed, OTHER, Reply};

/// Bytes of a part at least, but for the last.
const MIN: usize = 5 << 20;

fn begin(bed: &Bed, headers: &[(&str, &str)]) -> String {
    let mut ask = bed.object("POST", "k").query("uploads", "");
    for (name, value) in headers {
        ask = ask.header(name, value);
    }
    let reply = ask.send();
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!((reply.field("Bucket"), reply.field("Key")), ("bucket".into(), "k".into()));
    reply.field("UploadId")
}

fn send(bed: &Bed, id: &str, number: &str, body: &[u8], headers: &[(&str, &str)]) -> Reply {
    let mut ask = bed.object("PUT", "k").query("partNumber", number).query("uploadId", id);
    for (name, value) in headers {
        ask = ask.header(name, value);
    }
    ask.body(body).send()
}

fn part(bed: &Bed, id: &str, number: &str, body: &[u8]) -> String {
    let reply = send(bed, id, number, body, &[]);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.header("etag").expect("a tag").to_owned()
}

fn list_of(parts: &[(&str, &str)]) -> String {
    let parts: String = parts
        .iter()
        .map(|(number, etag)| {
            format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
        })
        .collect();
    format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
}

fn complete(bed: &Bed, id: &str, list: &str, headers: &[(&str, &str)]) -> Reply {
    let mut ask = bed.object("POST", "k").query("uploadId", id);
    for (name, value) in headers {
        ask = ask.header(name, value);
    }
    ask.body(list.as_bytes()).send()
}

#[test]
fn parts_become_an_object_with_the_tag_and_headers_of_s3() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, &[("content-type", "text/plain"), ("x-amz-meta-a", "1")]);
    let (first, last) = (vec![7; MIN], b"hello".to_vec());
    part(&bed, &id, "3", b"sent again");
    let [a, b] = [("1", &first), ("3", &last)].map(|(number, body)| part(&bed, &id, number, body));
    assert_eq!(bed.object("GET", "k").send().status, 404);
    let list = list_of(&[("1", &a), ("3", &b)]);
    let done = complete(&bed, &id, &list, &[]);
    assert_eq!(done.status, 200, "{}", done.text());
    // MD5 of the MD5s of both, by another implementation.
    let found = done.field("ETag");
    assert_eq!(found, "\"0396b584572926d3e9d2126641239575-2\"");
    assert!(done.field("Location").ends_with("/bucket/k"), "{}", done.field("Location"));
    // Without a plan the object has a CRC64NVME of its content.
    assert_eq!(done.field("ChecksumType"), "FULL_OBJECT");
    let whole = [first, last].concat();
    let read = bed.object("GET", "k").header("x-amz-checksum-mode", "ENABLED").send();
    assert_eq!(read.status, 200);
    assert!(read.body == whole);
    assert_eq!(read.header("etag"), Some(&*found));
    assert_eq!(read.header("content-type"), Some("text/plain"));
    assert_eq!(read.header("x-amz-meta-a"), Some("1"));
    assert_eq!(read.header("x-amz-mp-parts-count"), None);
    let put = bed.put("other", &whole);
    assert_eq!(put.status, 200);
    let other = bed.object("HEAD", "other").header("x-amz-checksum-mode", "ENABLED").send();
    let sum = "x-amz-checksum-crc64nvme";
    assert_eq!(read.header(sum), other.header(sum), "as of the content in one put");
    // Asked again, it is answered alike; with another list it is over.
    let again = complete(&bed, &id, &list, &[("if-none-match", "*")]);
    assert_eq!((again.status, again.field("ETag")), (200, found));
    let other = complete(&bed, &id, &list_of(&[("1", &a)]), &[]);
    assert_eq!(other.error(), (404, "NoSuchUpload".into()));
    assert_eq!(send(&bed, &id, "1", b"x", &[]).error(), (404, "NoSuchUpload".into()));
    assert_eq!(bed.model.uploads_open(), 0);
}

#[test]
fn a_part_of_an_object_is_read_by_its_number() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, &[]);
    let tags = [("2", vec![1; MIN]), ("4", b"hello".to_vec())]
        .map(|(number, body)| part(&bed, &id, number, &body));
    let done = complete(&bed, &id, &list_of(&[("2", &tags[0]), ("4", &tags[1])]), &[]);
    assert_eq!(done.status, 200, "{}", done.text());
    for method in ["GET", "HEAD"] {
        let part = bed.object(method, "k").query("partNumber", "4").send();
        assert_eq!(part.status, 206);
        assert_eq!(part.header("x-amz-mp-parts-count"), Some("2"));
        let range = format!("bytes {MIN}-{}/{}", MIN + 4, MIN + 5);
        assert_eq!(part.header("content-range"), Some(&*range));
        assert_eq!(part.header("content-length"), Some("5"));
        assert_eq!(part.body, if method == "GET" { &b"hello"[..] } else { b"" });
        for none in ["1", "3", "5", "10000", "10001"] {
            assert_eq!(bed.object(method, "k").query("partNumber", none).send().status, 416);
        }
    }
}

#[test]
fn what_a_completion_names_is_checked() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, &[]);
    let a = part(&bed, &id, "1", b"small");
    let b = part(&bed, &id, "2", b"last");
    let code = |list: &str| complete(&bed, &id, list, &[]).error();
    let list = list_of(&[("1", &a), ("2", &b)]);
    assert_eq!(code(&list), (400, "EntityTooSmall".into()));
    assert_eq!(code(&list_of(&[("2", &b), ("1", &a)])), (400, "InvalidPartOrder".into()));
    assert_eq!(code(&list_of(&[("2", &b), ("2", &b)])), (400, "InvalidPartOrder".into()));
    assert_eq!(code(&list_of(&[("1", &b)])), (400, "InvalidPart".into()));
    assert_eq!(code(&list_of(&[("3", &b)])), (400, "InvalidPart".into()));
    assert_eq!(code(&list_of(&[("1", "x")])), (400, "InvalidPart".into()));
    assert_eq!(code(&list_of(&[("0", &a)])), (400, "InvalidArgument".into()));
    assert_eq!(code(&list_of(&[("10001", &a)])), (400, "InvalidArgument".into()));
    assert_eq!(code(&list_of(&[])), (400, "MalformedXML".into()));
    assert_eq!(code("<CompleteMultipartUpload>"), (400, "MalformedXML".into()));
    let no_tag = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber></Part>\
                  </CompleteMultipartUpload>";
    assert_eq!(code(no_tag), (400, "MalformedXML".into()));
    let one = list_of(&[("1", &a)]);
    let with = |headers: &[(&str, &str)]| complete(&bed, &id, &one, headers).error();
    assert_eq!(with(&[("x-amz-mp-object-size", "4")]), (400, "InvalidRequest".into()));
    assert_eq!(with(&[("if-match", "*")]), (404, "NoSuchKey".into()));
    let zero = "AAAAAAAAAAA=";
    assert_eq!(with(&[("x-amz-checksum-crc64nvme", zero)]), (400, "BadDigest".into()));
    assert_eq!(with(&[("x-amz-checksum-type", "COMPOSITE")]), (400, "InvalidRequest".into()));
    bed.put("k", b"there");
    assert_eq!(with(&[("if-none-match", "*")]), (412, "PreconditionFailed".into()));
    for id in ["", "x", &"0".repeat(32)] {
        assert_eq!(complete(&bed, id, &one, &[]).error(), (404, "NoSuchUpload".into()));
    }
    assert_eq!(bed.model.object("k").expect("there").1, b"there");
    // A part that is sent again while it is completed is looked at again, and not for ever.
    bed.model.parts_change(3);
    assert_eq!(complete(&bed, &id, &one, &[]).error(), (400, "InvalidPart".into()));
    bed.model.parts_change(2);
    let done = complete(&bed, &id, &one, &[("x-amz-mp-object-size", "5")]);
    assert_eq!(done.status, 200, "{}", done.text());
}

#[test]
fn parts_are_checked_like_objects() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, &[("x-amz-checksum-algorithm", "CRC32")]);
    for number in ["0", "10001", "-1"] {
        let reply = send(&bed, &id, number, b"x", &[]);
        assert_eq!(reply.error(), (400, "InvalidArgument".into()), "{number}");
    }
    let with = |headers: &[(&str, &str)]| send(&bed, &id, "1", b"hello", headers).error();
    assert_eq!(with(&[("x-amz-checksum-crc32", "AAAAAA==")]), (400, "BadDigest".into()));
    assert_eq!(with(&[("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==")]), (400, "BadDigest".into()));
    let mismatch = with(&[("x-amz-checksum-crc32c", "mnG7TA==")]);
    assert_eq!(mismatch, (400, "InvalidRequest".into()));
    assert_eq!(with(&[("x-amz-server-side-encryption", "AES256")]).0, 501);
    let unknown = "0".repeat(32);
    assert_eq!(send(&bed, &unknown, "1", b"x", &[]).error(), (404, "NoSuchUpload".into()));
    assert_eq!(send(&bed, "unknown", "1", b"x", &[]).error(), (404, "NoSuchUpload".into()));
    let by_other = bed.object("PUT", "k").query("partNumber", "1").query("uploadId", &id);
    assert_eq!(by_other.by(OTHER).body(b"x").send().error(), (403, "AccessDenied".into()));
    let listed = bed.object("GET", "k").query("uploadId", &id).send();
    assert_eq!(listed.fields("PartNumber"), Vec::<String>::new());
    // A right one, also by a presigned URL.
    let sum = ("x-amz-checksum-crc32", "NhCmhg==");
    let reply = send(&bed, &id, "1", b"hello", &[sum]);
    assert_eq!((reply.status, reply.header(sum.0)), (200, Some(sum.1)));
    let presigned = bed.object("PUT", "k").query("partNumber", "2").query("uploadId", &id);
    let reply = presigned.body(b"hello").presigned("60").send_plain();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let listed = bed.object("GET", "k").query("uploadId", &id).send();
    assert_eq!(listed.fields("PartNumber"), ["1", "2"]);
    assert_eq!(listed.fields("ChecksumCRC32"), [sum.1, sum.1]);
    assert_eq!(listed.field("ChecksumAlgorithm"), "CRC32");
    assert_eq!(listed.field("ChecksumType"), "COMPOSITE");
}

#[test]
fn checksums_of_objects_are_composite_or_of_the_content() {
    // Of `hello` in two parts, by other implementations: of its content, or of the parts' checksums.
    let five = vec![b'a'; MIN];
    for (name, of, is_composite) in [
        ("CRC32", None, true),
        ("CRC32C", None, true),
        ("SHA1", None, true),
        ("SHA256", Some("COMPOSITE"), true),
        ("CRC64NVME", None, false),
        ("CRC32", Some("FULL_OBJECT"), false),
        ("CRC32C", Some("FULL_OBJECT"), false),
    ] {
        let bed = Bed::with_bucket();
        let mut headers = vec![("x-amz-checksum-algorithm", name)];
        headers.extend(of.map(|of| ("x-amz-checksum-type", of)));
        let id = begin(&bed, &headers);
        let tags =
            [("1", &five[..]), ("2", b"hello")].map(|(number, body)| part(&bed, &id, number, body));
        let done = complete(&bed, &id, &list_of(&[("1", &tags[0]), ("2", &tags[1])]), &[]);
        let field = done.field(&format!("Checksum{name}"));
        assert_eq!(field.ends_with("-2"), is_composite, "{name}: {}", done.text());
        let shown = if is_composite { "COMPOSITE" } else { "FULL_OBJECT" };
        assert_eq!(done.field("ChecksumType"), shown);
        let head = bed.object("HEAD", "k").header("x-amz-checksum-mode", "ENABLED").send();
        let header = format!("x-amz-checksum-{}", name.to_lowercase());
        assert_eq!(head.header(&header), Some(&*field));
        assert_eq!(head.header("x-amz-checksum-type"), Some(shown));
        if !is_composite {
            let whole = [&five[..], b"hello"].concat();
            let put = bed.object("PUT", "whole").header("x-amz-sdk-checksum-algorithm", name);
            let put = put.header(&header, &field).body(&whole).send();
            assert_eq!(put.status, 200, "{name} of the content: {}", put.text());
        }
        // It may be sent with the completion, and is that of the object, not of the document.
        let id = begin(&bed, &headers);
        let tag = part(&bed, &id, "1", b"hello");
        let sent = [(&*header, "AAAA")];
        let wrong = complete(&bed, &id, &list_of(&[("1", &tag)]), &sent);
        assert_eq!(wrong.error().0, 400, "{}", wrong.text());
    }
    let bed = Bed::with_bucket();
    for (name, of) in [
        ("SHA1", "FULL_OBJECT"),
        ("SHA256", "FULL_OBJECT"),
        ("CRC64NVME", "COMPOSITE"),
        ("CRC32", "OTHER"),
        ("MD5", "COMPOSITE"),
    ] {
        let ask = bed.object("POST", "k").query("uploads", "");
        let ask = ask.header("x-amz-checksum-algorithm", name).header("x-amz-checksum-type", of);
        assert_eq!(ask.send().error(), (400, "InvalidRequest".into()), "{name} {of}");
    }
    let ask = bed.object("POST", "k").query("uploads", "");
    let ask = ask.header("x-amz-checksum-type", "COMPOSITE").send();
    assert_eq!(ask.error(), (400, "InvalidRequest".into()));
}

#[test]
fn the_checksum_of_the_object_is_compared() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, &[("x-amz-checksum-algorithm", "CRC32")]);
    let sum = "NhCmhg==";
    let reply = send(&bed, &id, "1", b"hello", &[("x-amz-checksum-crc32", sum)]);
    let tag = reply.header("etag").expect("a tag").to_owned();
    let list = |value: &str| {
        format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag>\
             <ChecksumCRC32>{value}</ChecksumCRC32></Part></CompleteMultipartUpload>"
        )
    };
    let wrong = complete(&bed, &id, &list("AAAAAA=="), &[]);
    assert_eq!(wrong.error(), (400, "InvalidPart".into()));
    // CRC32 of the four bytes of the part's CRC32.
    let done = complete(&bed, &id, &list(sum), &[("x-amz-checksum-type", "COMPOSITE")]);
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(done.field("ChecksumCRC32").ends_with("-1"), "{}", done.text());
}

#[test]
fn an_aborted_upload_is_gone() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, &[]);
    part(&bed, &id, "1", b"x");
    let abort = |id: &str| bed.object("DELETE", "k").query("uploadId", id).send();
    assert_eq!(abort(&"0".repeat(32)).error(), (404, "NoSuchUpload".into()));
    assert_eq!(abort(&id).status, 204);
    assert_eq!(abort(&id).error(), (404, "NoSuchUpload".into()));
    let listed = bed.object("GET", "k").query("uploadId", &id).send();
    assert_eq!(listed.error(), (404, "NoSuchUpload".into()));
    assert_eq!(bed.object("GET", "k").send().status, 404);
}

#[test]
fn parts_are_listed_in_pages() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, &[]);
    for number in ["1", "2", "5"] {
        part(&bed, &id, number, number.as_bytes());
    }
    let list = |query: &[(&str, &str)]| {
        let mut ask = bed.object("GET", "k").query("uploadId", &id);
        for (name, value) in query {
            ask = ask.query(name, value);
        }
        ask.send()
    };
    let all = list(&[]);
    assert_eq!(all.fields("PartNumber"), ["1", "2", "5"]);
    assert_eq!(all.fields("Size"), ["1", "1", "1"]);
    assert_eq!((all.field("IsTruncated"), all.field("MaxParts")), ("false".into(), "1000".into()));
    assert_eq!(all.fields("ID"), ["id-admin", "id-admin"]);
    assert_eq!(all.field("StorageClass"), "STANDARD");
    let page = list(&[("max-parts", "2")]);
    assert_eq!(page.fields("PartNumber"), ["1", "2"]);
    assert_eq!(page.field("IsTruncated"), "true");
    assert_eq!(page.field("NextPartNumberMarker"), "2");
    let rest = list(&[("part-number-marker", "2")]);
    assert_eq!(rest.fields("PartNumber"), ["5"]);
    assert_eq!(list(&[("part-number-marker", "99999")]).fields("PartNumber").len(), 0);
    assert_eq!(list(&[("max-parts", "0")]).fields("PartNumber").len(), 0);
    assert_eq!(list(&[("max-parts", "-1")]).error(), (400, "InvalidArgument".into()));
}

#[test]
fn uploads_are_listed_in_pages() {
    let bed = Bed::with_bucket();
    for key in ["a", "b/1", "b/2", "c d", "a"] {
        let begun = bed.object("POST", key).query("uploads", "").send();
        assert_eq!(begun.status, 200, "{}", begun.text());
    }
    let list = |query: &[(&str, &str)]| {
        let mut ask = bed.ask("GET", "/bucket").query("uploads", "");
        for (name, value) in query {
            ask = ask.query(name, value);
        }
        ask.send()
    };
    let all = list(&[]);
    assert_eq!(all.fields("Key"), ["a", "a", "b/1", "b/2", "c d"], "{}", all.text());
    assert_eq!(all.field("Initiated"), "2023-11-14T22:13:20.000Z");
    assert_eq!(all.field("IsTruncated"), "false");
    let (mut keys, mut markers) = (Vec::new(), vec![]);
    loop {
        let mut query = vec![("max-uploads", "2")];
        query.extend(markers.iter().map(|(name, value): &(&str, String)| (*name, value.as_str())));
        let page = list(&query);
        keys.extend(page.fields("Key"));
        if page.field("IsTruncated") == "false" {
            break;
        }
        markers = vec![
            ("key-marker", page.field("NextKeyMarker")),
            ("upload-id-marker", page.field("NextUploadIdMarker")),
        ];
    }
    assert_eq!(keys, all.fields("Key"));
    let short = list(&[("delimiter", "/"), ("encoding-type", "url")]);
    assert_eq!(short.fields("Key"), ["a", "a", "c%20d"]);
    assert_eq!(short.fields("Prefix"), ["b/", ""], "{}", short.text());
    assert_eq!(list(&[("prefix", "b/")]).fields("Key"), ["b/1", "b/2"]);
    let bad = list(&[("key-marker", "a"), ("upload-id-marker", "x")]);
    assert_eq!(bad.error(), (400, "InvalidArgument".into()));
    assert_eq!(list(&[("upload-id-marker", "x")]).status, 200, "it means nothing without a key");
}

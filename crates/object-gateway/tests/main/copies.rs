//! Copies over HTTP.

use crate::client::{Ask, Bed, OTHER};

fn copy(bed: &Bed, from: &str, to: &str) -> Ask {
    bed.object("PUT", to).header("x-amz-copy-source", from)
}

fn with_source() -> Bed {
    let bed = Bed::with_bucket();
    let put = bed.object("PUT", "a b").header("content-type", "text/plain");
    assert_eq!(put.header("x-amz-meta-a", "1").body(b"hello").send().status, 200);
    bed
}

#[test]
fn an_object_is_copied_with_its_headers_or_others() {
    let bed = with_source();
    for (index, from) in
        ["bucket/a%20b", "/bucket/a%20b", "bucket/a%20b?versionId=null"].into_iter().enumerate()
    {
        let reply = copy(&bed, from, &format!("to{index}")).send();
        assert_eq!(reply.status, 200, "{from}: {}", reply.text());
        assert_eq!(reply.field("ETag"), "\"5d41402abc4b2a76b9719d911017c592\"");
        assert_eq!(reply.field("LastModified"), "2023-11-14T22:13:20.000Z");
        let (info, content) = bed.model.object(&format!("to{index}")).expect("there");
        assert_eq!(content, b"hello");
        let metadata = &info.object.facts.metadata;
        assert_eq!(metadata.get("content-type"), Some("text/plain"));
        assert_eq!(metadata.get("x-amz-meta-a"), Some("1"));
    }
    let replace = copy(&bed, "bucket/a%20b", "a b").header("x-amz-metadata-directive", "REPLACE");
    let reply = replace.header("x-amz-meta-b", "2").send();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let (info, content) = bed.model.object("a b").expect("there");
    assert_eq!(content, b"hello");
    assert_eq!(info.object.facts.metadata.get("x-amz-meta-a"), None);
    assert_eq!(info.object.facts.metadata.get("x-amz-meta-b"), Some("2"));
    let sum = copy(&bed, "bucket/a%20b", "c").header("x-amz-checksum-algorithm", "SHA1").send();
    assert_eq!(sum.field("ChecksumSHA1"), "qvTGHdzF6KLavt4PO0gs2a6pQ00=", "{}", sum.text());
}

#[test]
fn a_large_object_is_copied_piece_by_piece() {
    let bed = Bed::with_bucket();
    let body: Vec<u8> = (0..3 << 20).map(|at: u32| (at % 251) as u8).collect();
    assert_eq!(bed.put("a", &body).status, 200);
    assert_eq!(copy(&bed, "bucket/a", "b").send().status, 200);
    assert!(bed.model.object("b").expect("there").1 == body);
    bed.model.read_until(Some(1 << 20));
    assert_eq!(copy(&bed, "bucket/a", "c").send().status, 404, "its bytes went while it was read");
    assert!(bed.model.object("c").is_none());
}

#[test]
fn what_cannot_be_copied_is_refused() {
    let bed = with_source();
    let code = |ask: Ask| ask.send().error();
    let from = "bucket/a%20b";
    assert_eq!(code(copy(&bed, from, "a b")), (400, "InvalidRequest".into()));
    assert_eq!(code(copy(&bed, "bucket/none", "c")), (404, "NoSuchKey".into()));
    assert_eq!(code(copy(&bed, "nobucket/a", "c")), (404, "NoSuchBucket".into()));
    assert_eq!(code(copy(&bed, "bucket", "c")).0, 400);
    let version = format!("{from}?versionId=abc");
    assert_eq!(code(copy(&bed, &version, "c")), (400, "InvalidArgument".into()));
    let directive = copy(&bed, from, "c").header("x-amz-metadata-directive", "OTHER");
    assert_eq!(code(directive), (400, "InvalidArgument".into()));
    for (name, value, wanted) in [
        ("x-amz-tagging-directive", "REPLACE", 501),
        ("x-amz-copy-source-server-side-encryption-customer-algorithm", "AES256", 501),
        ("x-amz-copy-source-if-match", "\"other\"", 412),
        ("x-amz-copy-source-if-none-match", "\"5d41402abc4b2a76b9719d911017c592\"", 412),
        ("x-amz-copy-source-if-modified-since", "Tue, 14 Nov 2023 22:13:20 GMT", 412),
        ("x-amz-copy-source-if-unmodified-since", "Tue, 14 Nov 2023 22:13:19 GMT", 412),
        ("x-amz-source-expected-bucket-owner", "someone", 403),
        ("if-match", "\"other\"", 404),
    ] {
        let reply = copy(&bed, from, "c").header(name, value).send();
        assert_eq!(reply.status, wanted, "{name}: {}", reply.text());
    }
    assert!(bed.model.object("c").is_none());
    for (name, value) in [
        ("x-amz-tagging-directive", "COPY"),
        ("x-amz-copy-source-if-match", "\"5d41402abc4b2a76b9719d911017c592\""),
        ("x-amz-copy-source-if-unmodified-since", "Tue, 14 Nov 2023 22:13:20 GMT"),
        ("if-match", "*"),
    ] {
        assert_eq!(copy(&bed, from, "c").header(name, value).send().status, 200, "{name}");
    }
    let taken = copy(&bed, from, "c").header("if-none-match", "*");
    assert_eq!(code(taken), (412, "PreconditionFailed".into()));
    // Who may write to the target may not yet read the source.
    assert_eq!(bed.ask("PUT", "/others").by(OTHER).send().status, 200);
    let theirs = bed.ask("PUT", "/others/c").header("x-amz-copy-source", from).by(OTHER);
    assert_eq!(code(theirs), (403, "AccessDenied".into()));
}

#[test]
fn a_part_is_copied_from_a_range() {
    let bed = with_source();
    let id = bed.object("POST", "k").query("uploads", "").send().field("UploadId");
    let part = |range: Option<&str>| {
        let ask = copy(&bed, "bucket/a%20b", "k").query("partNumber", "1").query("uploadId", &id);
        match range {
            Some(range) => ask.header("x-amz-copy-source-range", range).send(),
            None => ask.send(),
        }
    };
    for range in ["bytes=0-", "1-2", "bytes=2-1", "bytes=a-b"] {
        assert_eq!(part(Some(range)).error(), (400, "InvalidArgument".into()), "{range}");
    }
    assert_eq!(part(Some("bytes=0-5")).error(), (416, "InvalidRange".into()));
    assert_eq!(part(None).field("ETag"), "\"5d41402abc4b2a76b9719d911017c592\"");
    let some = part(Some("bytes=1-3"));
    assert_eq!(some.status, 200, "{}", some.text());
    let list = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part>\
         </CompleteMultipartUpload>",
        some.field("ETag")
    );
    let done = bed.object("POST", "k").query("uploadId", &id).body(list.as_bytes()).send();
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(bed.model.object("k").expect("there").1, b"ell");
    assert_eq!(part(None).error(), (404, "NoSuchUpload".into()));
}

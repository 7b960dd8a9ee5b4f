//! ACLs of objects: given with them, changed, shown, and what they allow.

use std::io::{Read, Write};

use object_proto::{Ownership, PublicAccess, Setting};

use crate::client::{Ask, BUCKET, Bed, OTHER, Reply, read_reply};

const OWNER: (&str, &str) = ("AKOWNER", "owner's secret");

/// A bucket with ACLs, of a user that is no administrator.
fn bed() -> Bed {
    let bed = Bed::new();
    bed.add_user("owner", OWNER);
    assert_eq!(bed.ask("PUT", "/bucket").by(OWNER).send().status, 200);
    bed.model.set(BUCKET, Setting::Ownership(Ownership::Writer));
    bed.model.set(BUCKET, Setting::PublicAccess(PublicAccess::all(false)));
    bed
}

fn put(bed: &Bed, key: &str, acl: &str) -> Reply {
    bed.object("PUT", key).by(OWNER).header("x-amz-acl", acl).body(b"content").send()
}

fn refused(reply: &Reply, code: &str) {
    assert_eq!(reply.error().1, code, "{}", reply.text());
}

fn plain(ask: Ask) -> u16 {
    ask.send_plain().status
}

#[test]
fn an_object_is_read_by_those_whom_its_acl_names() {
    let bed = bed();
    assert_eq!(put(&bed, "private", "private").status, 200);
    assert_eq!(put(&bed, "public", "public-read").status, 200);
    assert_eq!(put(&bed, "users", "authenticated-read").status, 200);
    let granted = bed.object("PUT", "granted").by(OWNER).header("x-amz-grant-read", "id=id-other");
    assert_eq!(granted.body(b"content").send().status, 200);
    for (key, by_all, by_other) in
        [("private", 403, 403), ("public", 200, 200), ("users", 403, 200), ("granted", 403, 200)]
    {
        for method in ["GET", "HEAD"] {
            assert_eq!(plain(bed.object(method, key)), by_all, "{key}");
            assert_eq!(bed.object(method, key).by(OTHER).send().status, by_other, "{key}");
        }
    }
    // It allows nothing else.
    assert_eq!(plain(bed.object("DELETE", "public")), 403);
    assert_eq!(plain(bed.object("PUT", "public").body(b"x")), 403);
    assert_eq!(plain(bed.object("GET", "public").query("acl", "")), 403);
    assert_eq!(plain(bed.object("GET", "public").query("tagging", "")), 403);
    // That a key is not there is for those who may list.
    assert_eq!(plain(bed.object("GET", "none")), 403);
    let listed = bed.ask("PUT", "/bucket").by(OWNER).query("acl", "");
    assert_eq!(listed.header("x-amz-acl", "public-read").send().status, 200);
    assert_eq!(plain(bed.object("GET", "none")), 404);
    bed.model.set(BUCKET, Setting::PublicAccess(PublicAccess::all(true)));
    assert_eq!(plain(bed.object("GET", "public")), 403, "public ACLs are ignored");
    assert_eq!(bed.object("GET", "granted").by(OTHER).send().status, 200);
}

/// Access is checked before a document is sent: what is true then may not be so behind it.
#[test]
fn an_acl_is_changed_by_who_may_behind_its_document() {
    let bed = bed();
    let listed = bed.ask("PUT", "/bucket").by(OWNER).query("acl", "");
    assert_eq!(listed.header("x-amz-acl", "public-read").send().status, 200);
    assert_eq!(put(&bed, "given", "private").status, 200);
    let granted = bed.object("PUT", "given").by(OWNER).query("acl", "");
    assert_eq!(granted.header("x-amz-grant-write-acp", "id=id-other").send().status, 200);
    let body = "<AccessControlPolicy><Owner><ID>id-owner</ID></Owner><AccessControlList><Grant>\
        <Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\">\
        <ID>id-other</ID></Grantee><Permission>FULL_CONTROL</Permission></Grant></AccessControlList>\
        </AccessControlPolicy>";
    for (key, code) in [("new", 404), ("given", 403)] {
        let ask =
            bed.object("PUT", key).by(OTHER).query("acl", "").header("expect", "100-continue");
        let bytes = ask.body(body.as_bytes()).bytes();
        let (head, document) = bytes.split_at(bytes.len() - body.len());
        let mut stream = bed.connect();
        stream.write_all(head).expect("sent");
        // Leave to send the document comes behind the check of access, a refusal in its place.
        let mut first = [0; 12];
        stream.read_exact(&mut first).expect("an answer");
        assert_eq!(put(&bed, key, "private").status, 200);
        if &first == b"HTTP/1.1 100" {
            stream.write_all(document).expect("sent");
            let mut rest = [0; 13];
            stream.read_exact(&mut rest).expect("the end of its line, and an empty one");
            let reply = read_reply(&mut stream, false).expect("an answer");
            assert_eq!(reply.status, code, "{key}: {}", reply.text());
        } else {
            assert_eq!(first, format!("HTTP/1.1 {code}").as_bytes(), "{key}");
        }
        assert_eq!(bed.object("GET", key).by(OTHER).send().status, 403, "{key}");
    }
}

#[test]
fn an_acl_is_changed_and_shown() {
    let bed = bed();
    assert_eq!(put(&bed, "k", "private").status, 200);
    let ask = |method: &str| bed.object(method, "k").by(OWNER).query("acl", "");
    let shown = ask("GET").send();
    assert_eq!(shown.fields("Permission"), ["FULL_CONTROL"]);
    assert_eq!(shown.fields("ID"), ["id-owner", "id-owner"]);
    assert_eq!(ask("PUT").header("x-amz-acl", "public-read").send().status, 200);
    assert_eq!(plain(bed.object("GET", "k")), 200);
    assert_eq!(ask("GET").send().fields("Permission"), ["READ", "FULL_CONTROL"]);
    let body = "<AccessControlPolicy><Owner><ID>id-owner</ID></Owner><AccessControlList><Grant>\
        <Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\">\
        <ID>id-other</ID></Grantee><Permission>WRITE_ACP</Permission></Grant></AccessControlList>\
        </AccessControlPolicy>";
    assert_eq!(ask("PUT").body(body.as_bytes()).send().status, 200);
    assert_eq!(plain(bed.object("GET", "k")), 403);
    refused(&bed.object("GET", "k").by(OTHER).send(), "AccessDenied");
    let other = bed.object("PUT", "k").by(OTHER).query("acl", "");
    assert_eq!(other.header("x-amz-grant-read", "id=id-other").send().status, 200);
    assert_eq!(bed.object("GET", "k").by(OTHER).send().status, 200);
    refused(&ask("PUT").header("x-amz-grant-read", "id=none").send(), "InvalidArgument");
    refused(&ask("PUT").send(), "MissingSecurityHeader");
    let none = bed.object("PUT", "none").by(OWNER).query("acl", "").header("x-amz-acl", "private");
    refused(&none.send(), "NoSuchKey");
    bed.model.set(BUCKET, Setting::PublicAccess(PublicAccess::all(true)));
    refused(&ask("PUT").header("x-amz-acl", "public-read").send(), "AccessDenied");
    refused(&put(&bed, "k", "public-read"), "AccessDenied");
}

#[test]
fn an_object_of_another_user_is_its_writers_unless_the_bucket_says_otherwise() {
    let bed = bed();
    let acl = bed.ask("PUT", "/bucket").by(OWNER).query("acl", "");
    assert_eq!(acl.header("x-amz-grant-write", "id=id-other").send().status, 200);
    let theirs = |key: &str, acl: &str| {
        bed.object("PUT", key).by(OTHER).header("x-amz-acl", acl).body(b"x").send().status
    };
    let owner = |key: &str| bed.object("GET", key).query("acl", "").send().fields("ID")[0].clone();
    assert_eq!(theirs("a", "private"), 200);
    assert_eq!(owner("a"), "id-other");
    assert_eq!(bed.object("GET", "a").by(OTHER).send().status, 200, "it is its own");
    bed.model.set(BUCKET, Setting::Ownership(Ownership::Preferred));
    assert_eq!(theirs("b", "private"), 200);
    assert_eq!(theirs("c", "bucket-owner-full-control"), 200);
    assert_eq!((owner("b"), owner("c")), ("id-other".to_owned(), "id-owner".to_owned()));
    assert_eq!(bed.object("GET", "c").by(OTHER).send().status, 403);
}

#[test]
fn without_acls_only_what_grants_nothing_is_taken() {
    let bed = bed();
    bed.model.set(BUCKET, Setting::Ownership(Ownership::Enforced));
    assert_eq!(bed.object("PUT", "k").by(OWNER).body(b"x").send().status, 200);
    for (acl, status) in [
        ("private", 400),
        ("bucket-owner-full-control", 200),
        ("public-read", 400),
        ("bucket-owner-read", 400),
        ("nonsense", 400),
    ] {
        assert_eq!(put(&bed, "k", acl).status, status, "{acl}");
        let changed = bed.object("PUT", "k").by(OWNER).query("acl", "").header("x-amz-acl", acl);
        let changed = changed.send().status;
        assert_eq!(changed, status, "{acl}");
    }
    let shown = bed.object("GET", "k").by(OWNER).query("acl", "").send();
    assert_eq!(shown.fields("Permission"), ["FULL_CONTROL"]);
}

#[test]
fn uploads_and_copies_take_acls() {
    let bed = bed();
    let begun = bed.object("POST", "parts").by(OWNER).query("uploads", "");
    let begun = begun.header("x-amz-acl", "public-read").send();
    let id = begun.field("UploadId");
    let part = bed.object("PUT", "parts").by(OWNER).query("partNumber", "1").query("uploadId", &id);
    let tag = part.body(b"hello").send().header("etag").expect("a tag").to_owned();
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part>\
         </CompleteMultipartUpload>"
    );
    let done = bed.object("POST", "parts").by(OWNER).query("uploadId", &id).body(body.as_bytes());
    assert_eq!(done.send().status, 200);
    assert_eq!(plain(bed.object("GET", "parts")), 200);
    let copy = bed.object("PUT", "copy").by(OWNER).header("x-amz-copy-source", "bucket/parts");
    assert_eq!(copy.clone().send().status, 200);
    assert_eq!(plain(bed.object("GET", "copy")), 403, "an ACL is not copied");
    assert_eq!(copy.header("x-amz-acl", "public-read").send().status, 200);
    assert_eq!(plain(bed.object("GET", "copy")), 200);
    // The source's ACL allows to read it.
    assert_eq!(bed.ask("PUT", "/others").by(OTHER).send().status, 200);
    let theirs = |source: &str| {
        bed.ask("PUT", "/others/k").by(OTHER).header("x-amz-copy-source", source).send().status
    };
    assert_eq!((theirs("bucket/copy"), theirs("bucket/none")), (200, 403));
}

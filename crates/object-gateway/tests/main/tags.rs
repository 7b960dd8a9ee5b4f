//! Tags of objects: with a put, a copy, an upload in parts, and by themselves.

use crate::client::{Bed, Reply};
use crate::multipart::{PART, begin_ask, complete_ask};

fn tags(bed: &Bed, key: &str) -> Vec<(String, String)> {
    let reply = bed.object("GET", key).query("tagging", "").send();
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.fields("Key").into_iter().zip(reply.fields("Value")).collect()
}

fn set(bed: &Bed, key: &str, tags: &[(&str, &str)]) -> Reply {
    let all: String = tags
        .iter()
        .map(|(name, value)| format!("<Tag><Key>{name}</Key><Value>{value}</Value></Tag>"))
        .collect();
    let document = format!("<Tagging><TagSet>{all}</TagSet></Tagging>");
    bed.object("PUT", key).query("tagging", "").body(document.as_bytes()).send()
}

fn pairs(tags: &[(&str, &str)]) -> Vec<(String, String)> {
    tags.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn tags_come_with_a_put_and_are_counted() {
    let bed = Bed::with_bucket();
    let put =
        bed.object("PUT", "k").header("x-amz-tagging", "b=2&a=%C3%A9+%2F&c").body(b"x").send();
    assert_eq!(put.status, 200, "{}", put.text());
    assert_eq!(tags(&bed, "k"), pairs(&[("a", "é /"), ("b", "2"), ("c", "")]));
    for method in ["GET", "HEAD"] {
        assert_eq!(bed.object(method, "k").send().header("x-amz-tagging-count"), Some("3"));
    }
    bed.put("k", b"y");
    assert_eq!(tags(&bed, "k"), []);
    assert_eq!(bed.object("GET", "k").send().header("x-amz-tagging-count"), None);
}

#[test]
fn tags_are_set_and_taken_away_and_the_object_stays() {
    let bed = Bed::with_bucket();
    bed.put("k", b"hello");
    let before = bed.object("HEAD", "k").send();
    assert_eq!(set(&bed, "k", &[("a", "1"), ("b", "")]).status, 200);
    assert_eq!(set(&bed, "k", &[("z", "&amp;")]).status, 200);
    assert_eq!(tags(&bed, "k"), pairs(&[("z", "&")]));
    let after = bed.object("GET", "k").send();
    assert_eq!(after.body, b"hello");
    for name in ["etag", "last-modified"] {
        assert_eq!(after.header(name), before.header(name), "{name}");
    }
    assert_eq!(bed.object("DELETE", "k").query("tagging", "").send().status, 204);
    assert_eq!(tags(&bed, "k"), []);
    let missing = |reply: Reply| assert_eq!(reply.error(), (404, "NoSuchKey".to_owned()));
    missing(set(&bed, "none", &[("a", "1")]));
    missing(bed.object("GET", "none").query("tagging", "").send());
}

#[test]
fn flawed_tags_are_refused_and_change_nothing() {
    let bed = Bed::with_bucket();
    bed.put("k", b"x");
    set(&bed, "k", &[("a", "1")]);
    let (long, longer) = ("n".repeat(129), "v".repeat(257));
    for (flawed, code) in [
        (vec![("", "1")], "InvalidTag"),
        (vec![(&*long, "1")], "InvalidTag"),
        (vec![("a", &*longer)], "InvalidTag"),
        (vec![("a", "1"), ("a", "2")], "InvalidTag"),
    ] {
        assert_eq!(set(&bed, "k", &flawed).error(), (400, code.to_owned()), "{flawed:?}");
    }
    let names: Vec<_> = (0..11).map(|n| format!("n{n}")).collect();
    let many: Vec<_> = names.iter().map(|name| (&**name, "")).collect();
    assert_eq!(set(&bed, "k", &many).error(), (400, "BadRequest".to_owned()));
    assert_eq!(set(&bed, "k", &many[1..]).status, 200);
    set(&bed, "k", &[("a", "1")]);
    for header in ["a=1&a=2", "=1"] {
        let put = bed.object("PUT", "other").header("x-amz-tagging", header).body(b"x").send();
        assert_eq!(put.status, 400, "{header}: {}", put.text());
    }
    assert_eq!(bed.object("HEAD", "other").send().status, 404);
    assert_eq!(tags(&bed, "k"), pairs(&[("a", "1")]));
}

#[test]
fn a_copy_has_the_tags_of_its_source_or_others() {
    let bed = Bed::with_bucket();
    bed.object("PUT", "k").header("x-amz-tagging", "a=1").body(b"x").send();
    let copy = |key: &str, directive: Option<&str>, header: &str| {
        let mut ask = bed.object("PUT", key).header("x-amz-copy-source", "/bucket/k");
        if let Some(directive) = directive {
            ask = ask.header("x-amz-tagging-directive", directive);
        }
        ask.header("x-amz-tagging", header).send()
    };
    for (key, directive, wanted) in [
        ("default", None, pairs(&[("a", "1")])),
        ("same", Some("COPY"), pairs(&[("a", "1")])),
        ("other", Some("REPLACE"), pairs(&[("b", "2")])),
    ] {
        assert_eq!(copy(key, directive, "b=2").status, 200);
        assert_eq!(tags(&bed, key), wanted, "{key}");
    }
    assert_eq!(copy("odd", Some("MOVE"), "b=2").error(), (400, "InvalidArgument".to_owned()));
}

#[test]
fn an_object_of_parts_has_the_tags_of_its_beginning() {
    let bed = Bed::with_bucket();
    let begun = begin_ask(&bed, "k").header("x-amz-tagging", "a=1").send();
    let id = begun.field("UploadId");
    let part = bed.object("PUT", "k").query("partNumber", "1").query("uploadId", &id);
    let part = part.body(&vec![7; PART]).send();
    let tag = part.header("etag").expect("a tag").to_owned();
    assert_eq!(complete_ask(&bed, &id, &[(1, &tag)]).send().status, 200);
    assert_eq!(tags(&bed, "k"), pairs(&[("a", "1")]));
}

#[test]
fn each_version_has_its_tags() {
    let bed = Bed::with_bucket();
    let enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    assert_eq!(bed.ask("PUT", "/bucket").query("versioning", "").body(enabled).send().status, 200);
    let id = bed.put("k", b"one").header("x-amz-version-id").expect("a version").to_owned();
    bed.put("k", b"two");
    let document = b"<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>";
    let set = bed.object("PUT", "k").query("tagging", "").query("versionId", &id).body(document);
    let set = set.send();
    assert_eq!((set.status, set.header("x-amz-version-id")), (200, Some(&*id)));
    assert_eq!(tags(&bed, "k"), []);
    let of_version = bed.object("GET", "k").query("tagging", "").query("versionId", &id).send();
    assert_eq!(of_version.field("Key"), "a");
    let none = bed.object("GET", "k").query("tagging", "").query("versionId", &"0".repeat(32));
    assert_eq!(none.send().error(), (404, "NoSuchVersion".to_owned()));
}

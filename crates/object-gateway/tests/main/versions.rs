//! Versions of objects: what a bucket's versioning makes of puts and deletes, how versions are named, read,
//! copied, removed and listed.

use crate::client::{Bed, Reply};
use crate::objects::delete_many;

const ENABLED: &str = "<VersioningConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                       <Status>Enabled</Status></VersioningConfiguration>";

fn set(bed: &Bed, document: &str) -> Reply {
    bed.ask("PUT", "/bucket").query("versioning", "").body(document.as_bytes()).send()
}

fn with_versions() -> Bed {
    let bed = Bed::with_bucket();
    assert_eq!(set(&bed, ENABLED).status, 200);
    bed
}

fn suspend(bed: &Bed) {
    assert_eq!(set(bed, &ENABLED.replace("Enabled", "Suspended")).status, 200);
}

fn version(reply: &Reply) -> String {
    reply.header("x-amz-version-id").expect("a version").to_owned()
}

/// Puts, and answers the version's ID.
fn put(bed: &Bed, key: &str, content: &[u8]) -> String {
    version(&bed.put(key, content))
}

fn of(bed: &Bed, method: &str, key: &str, id: &str) -> Reply {
    bed.object(method, key).query("versionId", id).send()
}

fn list(bed: &Bed, more: &[(&str, &str)]) -> Reply {
    let mut ask = bed.ask("GET", "/bucket").query("versions", "");
    for (name, value) in more {
        ask = ask.query(name, value);
    }
    ask.send()
}

#[test]
fn versioning_is_shown_as_it_was_set() {
    let bed = Bed::with_bucket();
    let status = || bed.ask("GET", "/bucket").query("versioning", "").send();
    assert!(!status().text().contains("<Status>"));
    for wanted in ["Enabled", "Suspended"] {
        assert_eq!(set(&bed, &ENABLED.replace("Enabled", wanted)).status, 200);
        assert_eq!(status().field("Status"), wanted);
    }
    let with_mfa = ENABLED.replace("<Status>", "<MfaDelete>Enabled</MfaDelete><Status>");
    assert_eq!(set(&bed, &with_mfa).error(), (501, "NotImplemented".to_owned()));
    let without = ENABLED.replace("<Status>Enabled</Status>", "");
    let illegal = "IllegalVersioningConfigurationException".to_owned();
    assert_eq!(set(&bed, &without).error(), (400, illegal));
    let odd = set(&bed, &ENABLED.replace("Enabled", "Off")).error();
    assert_eq!(odd, (400, "MalformedXML".to_owned()));
    assert_eq!(status().field("Status"), "Suspended");
}

#[test]
fn versions_are_read_by_their_ids() {
    let bed = Bed::with_bucket();
    assert_eq!(bed.put("k", b"zero").header("x-amz-version-id"), None);
    assert_eq!(bed.object("GET", "k").send().header("x-amz-version-id"), None);
    assert_eq!(set(&bed, ENABLED).status, 200);
    let (first, second) = (put(&bed, "k", b"one"), put(&bed, "k", b"two"));
    assert_ne!(first, second);
    let got = bed.object("GET", "k").send();
    assert_eq!((got.body.as_slice(), version(&got)), (&b"two"[..], second.clone()));
    for (id, content) in [(&*first, "one"), (&*second, "two"), ("null", "zero")] {
        let got = of(&bed, "GET", "k", id);
        assert_eq!((got.text(), version(&got)), (content.to_owned(), id.to_owned()));
        let head = of(&bed, "HEAD", "k", id);
        assert_eq!((head.status, version(&head)), (200, id.to_owned()));
    }
    let attributes = bed.object("GET", "k").query("attributes", "").query("versionId", &first);
    let attributes = attributes.header("x-amz-object-attributes", "ObjectSize").send();
    assert_eq!((version(&attributes), attributes.field("ObjectSize")), (first, "3".to_owned()));
    let none = "0".repeat(32);
    let refused = |id: &str| of(&bed, "GET", "k", id).error();
    assert_eq!(refused(&none), (404, "NoSuchVersion".to_owned()));
    for odd in ["", "x", &none[1..], "NULL"] {
        assert_eq!(refused(odd), (400, "InvalidArgument".to_owned()), "{odd:?}");
    }
}

#[test]
fn a_delete_marker_hides_an_object_until_it_is_removed() {
    let bed = with_versions();
    let id = put(&bed, "k", b"one");
    let deleted = bed.object("DELETE", "k").send();
    assert_eq!((deleted.status, deleted.header("x-amz-delete-marker")), (204, Some("true")));
    let marker = version(&deleted);
    for method in ["GET", "HEAD"] {
        let hidden = bed.object(method, "k").send();
        assert_eq!((hidden.status, hidden.header("x-amz-delete-marker")), (404, Some("true")));
        assert_eq!(version(&hidden), marker);
        let asked = of(&bed, method, "k", &marker);
        assert_eq!((asked.status, asked.header("allow")), (405, Some("DELETE")));
        assert_eq!(asked.header("x-amz-delete-marker"), Some("true"));
    }
    assert_eq!(bed.object("GET", "k").send().error().1, "NoSuchKey");
    assert_eq!(of(&bed, "GET", "k", &id).text(), "one");
    assert_eq!(bed.ask("GET", "/bucket").send().fields("Key"), Vec::<String>::new());
    assert_eq!(bed.ask("DELETE", "/bucket").send().error().1, "BucketNotEmpty");
    let removed = of(&bed, "DELETE", "k", &marker);
    assert_eq!((removed.status, removed.header("x-amz-delete-marker")), (204, Some("true")));
    assert_eq!(version(&removed), marker);
    assert_eq!(bed.object("GET", "k").send().text(), "one");
    let removed = of(&bed, "DELETE", "k", &id);
    assert_eq!((removed.status, removed.header("x-amz-delete-marker")), (204, None));
    assert_eq!(of(&bed, "DELETE", "k", &id).status, 204, "none is no error");
    assert_eq!(bed.ask("DELETE", "/bucket").send().status, 204);
}

#[test]
fn while_suspended_there_is_one_version_without_an_id() {
    let bed = with_versions();
    let id = put(&bed, "k", b"one");
    suspend(&bed);
    assert_eq!(put(&bed, "k", b"two"), "null");
    assert_eq!(put(&bed, "k", b"three"), "null");
    assert_eq!(list(&bed, &[]).fields("VersionId"), ["null".to_owned(), id.clone()]);
    let deleted = bed.object("DELETE", "k").send();
    assert_eq!((version(&deleted).as_str(), deleted.status), ("null", 204));
    assert_eq!(of(&bed, "GET", "k", "null").status, 405);
    assert_eq!(of(&bed, "DELETE", "k", "null").status, 204);
    assert_eq!(bed.object("GET", "k").send().text(), "one");
    assert_eq!(list(&bed, &[]).fields("VersionId"), [id]);
}

#[test]
fn versions_are_listed_in_pages() {
    let bed = with_versions();
    let mut ids: Vec<_> = (0..3).map(|n| put(&bed, "b", &[n; 3])).collect();
    ids.reverse();
    let other = put(&bed, "a/1", b"x");
    let marker = version(&bed.object("DELETE", "c").send());
    let all = list(&bed, &[]);
    assert_eq!(all.field("IsTruncated"), "false");
    let versions = [vec![other], ids, vec![marker]].concat();
    // In the document delete markers stand before versions.
    let shown = [&versions[4..], &versions[..4]].concat();
    assert_eq!(all.fields("VersionId"), shown);
    assert_eq!(all.fields("IsLatest"), ["true", "true", "true", "false", "false"]);
    assert_eq!(all.fields("Size"), ["1", "3", "3", "3"]);
    assert!(all.text().contains("<DeleteMarker>"), "{}", all.text());
    for size in ["1", "2", "4"] {
        let (mut found, mut after) = (Vec::new(), (String::new(), String::new()));
        loop {
            let mut more = vec![("max-keys", size), ("key-marker", &after.0)];
            if !after.1.is_empty() {
                more.push(("version-id-marker", &after.1));
            }
            let page = list(&bed, &more);
            found.extend(page.fields("VersionId"));
            if page.field("IsTruncated") == "false" {
                break;
            }
            after = (page.field("NextKeyMarker"), page.field("NextVersionIdMarker"));
        }
        assert_eq!(found, versions, "{size} a page");
    }
    let by_prefix = list(&bed, &[("delimiter", "/"), ("max-keys", "1")]);
    assert_eq!(by_prefix.fields("VersionId"), Vec::<String>::new());
    assert_eq!(by_prefix.field("NextKeyMarker"), "a/");
    assert!(!by_prefix.text().contains("<NextVersionIdMarker>"));
    let coded = list(&bed, &[("prefix", "a/"), ("encoding-type", "url")]);
    assert_eq!(coded.field("Key"), "a/1", "slashes stay");
    let lone = list(&bed, &[("version-id-marker", &versions[0])]);
    assert_eq!(lone.error(), (400, "InvalidArgument".to_owned()));
}

#[test]
fn an_older_version_is_copied_over_the_current_one() {
    let bed = with_versions();
    let first = put(&bed, "k", b"one");
    put(&bed, "k", b"two");
    let source = format!("/bucket/k?versionId={first}");
    let copied = bed.object("PUT", "k").header("x-amz-copy-source", &source).send();
    assert_eq!(copied.status, 200, "{}", copied.text());
    assert_eq!(copied.header("x-amz-copy-source-version-id"), Some(&*first));
    let got = bed.object("GET", "k").send();
    assert_eq!((got.text().as_str(), version(&got)), ("one", version(&copied)));
    bed.object("DELETE", "k").send();
    let of_marker = bed.object("PUT", "n").header("x-amz-copy-source", "/bucket/k").send();
    assert_eq!(of_marker.error(), (404, "NoSuchKey".to_owned()));
}

#[test]
fn versions_and_markers_are_removed_in_bulk() {
    let bed = with_versions();
    let id = put(&bed, "k", b"one");
    put(&bed, "other", b"x");
    let delete = |objects: &str| delete_many(&bed, &format!("<Delete>{objects}</Delete>"));
    let reply = delete(&format!(
        "<Object><Key>k</Key><VersionId>{id}</VersionId></Object><Object><Key>other</Key></Object>\
         <Object><Key>k</Key><VersionId>odd</VersionId></Object>"
    ));
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.field("DeleteMarker"), "true");
    assert_eq!(reply.field("Code"), "InvalidArgument");
    let marker = reply.field("DeleteMarkerVersionId");
    assert_eq!(list(&bed, &[("prefix", "k")]).fields("VersionId"), Vec::<String>::new());
    let reply =
        delete(&format!("<Object><Key>other</Key><VersionId>{marker}</VersionId></Object>"));
    assert_eq!(reply.field("DeleteMarkerVersionId"), marker);
    assert_eq!(bed.object("GET", "other").send().text(), "x");
}

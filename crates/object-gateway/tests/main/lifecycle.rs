//! Rules of lifecycle: as they are put and shown, who may, and what answers on objects and uploads say of them.

use crate::client::{Bed, Reply};
use crate::settings::{delete, get, put};

fn put_rules(bed: &Bed, rules: &str) -> Reply {
    put(bed, "lifecycle", &format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>"))
}

fn rule(id: &str, filter: &str, actions: &str) -> String {
    format!("<Rule><ID>{id}</ID><Filter>{filter}</Filter><Status>Enabled</Status>{actions}</Rule>")
}

fn days(days: u32) -> String {
    format!("<Expiration><Days>{days}</Days></Expiration>")
}

#[test]
fn rules_are_shown_as_they_were_put_until_they_are_taken_away() {
    let bed = Bed::with_bucket();
    let no_rules = (404, "NoSuchLifecycleConfiguration".into());
    assert_eq!(get(&bed, "lifecycle").error(), no_rules);
    let tag = "<Prefix>a/</Prefix><Tag><Key>k</Key><Value>v</Value></Tag>";
    let rules = rule("one", "<Prefix>logs/</Prefix>", &days(30))
        + &rule("two", &format!("<And>{tag}</And>"), &days(1));
    let set = put_rules(&bed, &rules);
    assert_eq!(set.status, 200, "{}", set.text());
    let size = "x-amz-transition-default-minimum-object-size";
    assert_eq!(set.header(size), Some("all_storage_classes_128K"));
    let found = get(&bed, "lifecycle");
    assert_eq!(found.header(size), Some("all_storage_classes_128K"));
    assert_eq!(
        (found.fields("ID"), found.fields("Days")),
        (vec!["one".to_owned(), "two".to_owned()], vec!["30".to_owned(), "1".to_owned()],)
    );
    // The old form, without an ID.
    let old = format!("<Rule><Prefix>old/</Prefix><Status>Disabled</Status>{}</Rule>", days(3));
    assert_eq!(put_rules(&bed, &old).status, 200);
    let found = get(&bed, "lifecycle");
    assert_eq!(
        (found.fields("Prefix"), found.fields("Status")),
        (vec!["old/".to_owned()], vec!["Disabled".to_owned()],)
    );
    assert!(!found.text().contains("Filter") && found.field("ID").len() == 32, "{}", found.text());
    assert_eq!(delete(&bed, "lifecycle").status, 204);
    assert_eq!(get(&bed, "lifecycle").error(), no_rules);
    assert_eq!(delete(&bed, "lifecycle").status, 204);
}

#[test]
fn what_is_refused_leaves_the_rules_that_are_there() {
    let bed = Bed::with_bucket();
    assert_eq!(put_rules(&bed, &rule("kept", "", &days(1))).status, 200);
    let transition = "<Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>";
    for (rules, status, code) in [
        (rule("a", "", ""), 400, "InvalidRequest"),
        (rule("a", "", &days(0)), 400, "InvalidArgument"),
        (rule("a", "", &(days(9) + transition)), 501, "NotImplemented"),
        (rule("a", "<Other/>", &days(1)), 400, "MalformedXML"),
        (
            (0..900).map(|at| rule(&format!("{at:0>99}"), "", &days(1))).collect(),
            400,
            "InvalidRequest",
        ),
    ] {
        assert_eq!(put_rules(&bed, &rules).error(), (status, code.into()));
    }
    let text =
        format!("<LifecycleConfiguration>{}</LifecycleConfiguration>", rule("a", "", &days(1)));
    let ask = bed.ask("PUT", "/bucket").query("lifecycle", "").body(text.as_bytes());
    let varies = ("x-amz-transition-default-minimum-object-size", "varies_by_storage_class");
    assert_eq!(ask.header(varies.0, varies.1).send().error(), (501, "NotImplemented".into()));
    assert_eq!(bed.ask("PUT", "/bucket").query("lifecycle", "").send().status, 400);
    assert_eq!(get(&bed, "lifecycle").fields("ID"), ["kept"]);
}

#[test]
fn answers_say_when_an_object_expires_and_by_which_rule() {
    let bed = Bed::with_bucket();
    let put = |key: &str, tags: &str| {
        let ask = bed.object("PUT", key).body(b"body");
        match tags {
            "" => ask.send(),
            tags => ask.header("x-amz-tagging", tags).send(),
        }
    };
    const EXPIRATION: &str = "x-amz-expiration";
    assert_eq!(put("a/1", "").header(EXPIRATION), None);
    let tag = "<Tag><Key>k</Key><Value>v</Value></Tag>";
    let abort = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>3</DaysAfterInitiation></AbortIncompleteMultipartUpload>";
    let rules =
        rule("by prefix", "<Prefix>a/</Prefix>", &(days(2) + abort)) + &rule("tag", tag, &days(1));
    assert_eq!(put_rules(&bed, &rules).status, 200);
    let of = |reply: &Reply| {
        let value = reply.header(EXPIRATION)?.to_owned();
        let (date, rule) = value.strip_prefix("expiry-date=\"")?.split_once("\", rule-id=\"")?;
        assert!(date.ends_with(" 00:00:00 GMT"), "{value}");
        Some(rule.strip_suffix('"')?.to_owned())
    };
    let (prefix, tag) = (Some("by%20prefix".to_owned()), Some("tag".to_owned()));
    assert_eq!(of(&put("a/1", "")), prefix);
    assert_eq!(of(&put("a/2", "k=v")), tag);
    assert_eq!(of(&put("b", "k=w")), None);
    for method in ["GET", "HEAD"] {
        assert_eq!(of(&bed.object(method, "a/1").send()), prefix, "{method}");
        assert_eq!(of(&bed.object(method, "a/2").send()), tag, "{method}");
        assert_eq!(of(&bed.object(method, "b").send()), None, "{method}");
    }
    let copied = bed.object("PUT", "c").header("x-amz-copy-source", "/bucket/a/2").send();
    assert_eq!((copied.status, of(&copied)), (200, tag));

    let begun = bed.object("POST", "a/up").query("uploads", "").send();
    assert_eq!(begun.header("x-amz-abort-rule-id"), Some("by%20prefix"));
    let date = begun.header("x-amz-abort-date").expect("a date").to_owned();
    assert!(date.ends_with(" 00:00:00 GMT"), "{date}");
    let id = begun.field("UploadId");
    let parts = bed.object("GET", "a/up").query("uploadId", &id).send();
    assert_eq!(parts.header("x-amz-abort-date"), Some(date.as_str()));
    let part =
        bed.object("PUT", "a/up").query("partNumber", "1").query("uploadId", &id).body(b"p").send();
    let named = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>",
        part.header("etag").expect("a tag")
    );
    let done = bed.object("POST", "a/up").query("uploadId", &id).body(named.as_bytes()).send();
    assert_eq!((done.status, of(&done)), (200, prefix), "{}", done.text());
    let other = bed.object("POST", "b/up").query("uploads", "").send();
    assert_eq!(other.header("x-amz-abort-date"), None);
}

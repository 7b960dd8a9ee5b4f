//! Object lock: of buckets, of new objects, of objects that are there; what it keeps, who may change it, and what
//! answers show of it.

use object_proto::Setting;

use crate::client::{Ask, BUCKET, Bed, OTHER, Reply};
use crate::forms::{form, iso};
use crate::multipart::{begin_ask, complete_ask, part_ask};
use crate::objects::{delete_many, delete_many_by};

/// The MD5 of `content`.
const MD5: &str = "mgNkuembtIDdJeHwKEyFVQ==";
const MODE: &str = "x-amz-object-lock-mode";
const UNTIL: &str = "x-amz-object-lock-retain-until-date";
const HOLD: &str = "x-amz-object-lock-legal-hold";
const BYPASS: &str = "x-amz-bypass-governance-retention";
const DAY_S: u64 = 24 * 3600;

/// With a bucket that has object lock.
fn bed() -> Bed {
    let bed = Bed::new();
    let made = bed.ask("PUT", "/bucket").header("x-amz-bucket-object-lock-enabled", "true").send();
    assert_eq!(made.status, 200, "{}", made.text());
    bed
}

fn in_days(days: u64) -> String {
    iso(crate::client::now() + days * DAY_S)
}

/// A put of `content` to be.
fn putting(bed: &Bed, key: &str) -> Ask {
    bed.object("PUT", key).body(b"content").header("content-md5", MD5)
}

fn retained(ask: Ask, mode: &str, until: &str) -> Ask {
    ask.header(MODE, mode).header(UNTIL, until)
}

/// Puts an object that is retained for ten days; its version.
fn put(bed: &Bed, key: &str, mode: &str) -> String {
    version(&retained(putting(bed, key), mode, &in_days(10)).send())
}

fn version(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.header("x-amz-version-id").expect("a version").to_owned()
}

/// A request for a version of an object, and for a part of what is kept of it.
fn of(bed: &Bed, method: &str, key: &str, id: &str, what: &str) -> Ask {
    let ask = bed.object(method, key).query("versionId", id);
    if what.is_empty() { ask } else { ask.query(what, "") }
}

fn retention(mode: &str, until: &str) -> String {
    format!("<Retention><Mode>{mode}</Mode><RetainUntilDate>{until}</RetainUntilDate></Retention>")
}

fn retain(bed: &Bed, key: &str, id: &str, document: &str) -> Ask {
    of(bed, "PUT", key, id, "retention").body(document.as_bytes())
}

fn hold(bed: &Bed, key: &str, id: &str, status: &str) -> Reply {
    let document = format!("<LegalHold><Status>{status}</Status></LegalHold>");
    of(bed, "PUT", key, id, "legal-hold").body(document.as_bytes()).send()
}

fn remove(bed: &Bed, key: &str, id: &str, bypass: bool) -> u16 {
    let ask = of(bed, "DELETE", key, id, "");
    let reply = if bypass { ask.header(BYPASS, "true") } else { ask }.send();
    assert!(reply.status == 204 || reply.error() == (403, "AccessDenied".to_owned()));
    reply.status
}

fn refused(reply: &Reply, status: u16, code: &str) {
    assert_eq!(reply.error(), (status, code.to_owned()), "{}", reply.text());
}

fn rule(default: &str) -> String {
    format!(
        "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>{default}\
         </ObjectLockConfiguration>"
    )
}

fn default_of(mode: &str, period: &str) -> String {
    rule(&format!("<Rule><DefaultRetention><Mode>{mode}</Mode>{period}</DefaultRetention></Rule>"))
}

fn set_rule(bed: &Bed, document: &str) -> Reply {
    bed.ask("PUT", "/bucket").query("object-lock", "").body(document.as_bytes()).send()
}

fn set_versioning(bed: &Bed, status: &str) -> Reply {
    let document = format!(
        "<VersioningConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
         <Status>{status}</Status></VersioningConfiguration>"
    );
    bed.ask("PUT", "/bucket").query("versioning", "").body(document.as_bytes()).send()
}

#[test]
fn a_bucket_has_object_lock_for_good_and_keeps_versions() {
    let bed = bed();
    let asked = || bed.ask("GET", "/bucket").query("object-lock", "").send();
    let status = bed.ask("GET", "/bucket").query("versioning", "").send().field("Status");
    assert_eq!(status, "Enabled");
    assert_eq!(asked().field("ObjectLockEnabled"), "Enabled");
    assert!(!asked().text().contains("<Rule>"));
    refused(&set_versioning(&bed, "Suspended"), 409, "InvalidBucketState");
    assert_eq!(set_versioning(&bed, "Enabled").status, 200);
    for (mode, name, count) in [("GOVERNANCE", "Days", "7"), ("COMPLIANCE", "Years", "100")] {
        let document = default_of(mode, &format!("<{name}>{count}</{name}>"));
        assert_eq!(set_rule(&bed, &document).status, 200);
        assert_eq!((asked().field("Mode"), asked().field(name)), (mode.into(), count.into()));
    }
    assert_eq!(set_rule(&bed, &rule("")).status, 200);
    assert!(!asked().text().contains("<Rule>"));
}

#[test]
fn a_rule_that_is_none_is_refused() {
    let bed = bed();
    for (document, code) in [
        (default_of("GOVERNANCE", "<Days>1</Days><Years>1</Years>"), "MalformedXML"),
        (default_of("GOVERNANCE", ""), "MalformedXML"),
        (default_of("governance", "<Days>1</Days>"), "MalformedXML"),
        (rule("<Rule></Rule>"), "MalformedXML"),
        (rule("").replace("Enabled</", "Disabled</"), "MalformedXML"),
        ("<ObjectLockConfiguration></ObjectLockConfiguration>".to_owned(), "MalformedXML"),
        (String::new(), "MalformedXML"),
        (default_of("GOVERNANCE", "<Days>0</Days>"), "InvalidRetentionPeriod"),
        (default_of("GOVERNANCE", "<Days>36501</Days>"), "InvalidRetentionPeriod"),
        (default_of("COMPLIANCE", "<Years>-1</Years>"), "InvalidRetentionPeriod"),
        (default_of("COMPLIANCE", "<Years>101</Years>"), "InvalidRetentionPeriod"),
    ] {
        refused(&set_rule(&bed, &document), 400, code);
    }
}

#[test]
fn a_bucket_without_object_lock_takes_no_locks_and_shows_none() {
    let bed = Bed::with_bucket();
    let found = bed.ask("GET", "/bucket").query("object-lock", "").send();
    refused(&found, 404, "ObjectLockConfigurationNotFoundError");
    refused(&set_rule(&bed, &rule("")), 409, "InvalidBucketState");
    assert_eq!(bed.put("k", b"content").status, 200);
    let id = "null";
    let document = retention("GOVERNANCE", &in_days(1));
    for asked in [
        retain(&bed, "k", id, &document).send(),
        hold(&bed, "k", id, "ON"),
        of(&bed, "GET", "k", id, "retention").send(),
        of(&bed, "GET", "k", id, "legal-hold").send(),
        putting(&bed, "k").header(HOLD, "OFF").send(),
        retained(putting(&bed, "k"), "COMPLIANCE", &in_days(1)).send(),
        begin_ask(&bed, "k").header(HOLD, "ON").send(),
        bed.object("PUT", "c").header("x-amz-copy-source", "/bucket/k").header(HOLD, "ON").send(),
    ] {
        refused(&asked, 400, "InvalidRequest");
    }
    // With versions it may get object lock later.
    assert_eq!(set_versioning(&bed, "Enabled").status, 200);
    assert_eq!(set_rule(&bed, &rule("")).status, 200);
    assert_eq!(hold(&bed, "k", id, "ON").status, 200);
    assert_eq!(remove(&bed, "k", id, true), 403);
}

#[test]
fn locked_versions_stay_and_others_come_above_them() {
    let bed = bed();
    let compliance = put(&bed, "k", "COMPLIANCE");
    let governance = put(&bed, "k", "GOVERNANCE");
    let held = version(&putting(&bed, "k").header(HOLD, "ON").send());
    let free = version(&putting(&bed, "k").send());
    // A deletion is a marker as ever.
    assert_eq!(bed.object("DELETE", "k").header(BYPASS, "true").send().status, 204);
    for (id, plain, bypassed) in
        [(&compliance, 403, 403), (&governance, 403, 204), (&held, 403, 403), (&free, 204, 204)]
    {
        assert_eq!(remove(&bed, "k", id, false), plain);
        assert_eq!(remove(&bed, "k", id, true), bypassed);
    }
    assert_eq!(hold(&bed, "k", &held, "OFF").status, 200);
    assert_eq!(remove(&bed, "k", &held, false), 204);
    assert_eq!(of(&bed, "GET", "k", &compliance, "").send().text(), "content");
    refused(&bed.ask("DELETE", "/bucket").send(), 409, "BucketNotEmpty");
}

#[test]
fn a_bulk_delete_says_of_each_version_whether_it_is_locked() {
    let bed = bed();
    let (locked, free) = (put(&bed, "a", "GOVERNANCE"), version(&putting(&bed, "b").send()));
    let entry = |key: &str, id: &str| {
        format!("<Object><Key>{key}</Key><VersionId>{id}</VersionId></Object>")
    };
    let document = format!("<Delete>{}{}</Delete>", entry("a", &locked), entry("b", &free));
    let reply = delete_many(&bed, &document);
    assert_eq!((reply.status, reply.field("Code")), (200, "AccessDenied".to_owned()));
    assert_eq!(reply.fields("Key"), ["b", "a"]);
    assert_eq!(of(&bed, "GET", "a", &locked, "").send().status, 200);
}

#[test]
fn a_retention_is_prolonged_by_all_and_weakened_by_a_bypass_of_governance() {
    let bed = bed();
    let id = put(&bed, "k", "GOVERNANCE");
    let change = |mode: &str, days, bypass| {
        let ask = retain(&bed, "k", &id, &retention(mode, &in_days(days)));
        let reply = if bypass { ask.header(BYPASS, "true") } else { ask }.send();
        assert!(reply.status == 200 || reply.error() == (403, "AccessDenied".to_owned()));
        reply.status
    };
    let asked = || of(&bed, "GET", "k", &id, "retention").send();
    assert_eq!(change("GOVERNANCE", 20, false), 200);
    let shown = asked();
    assert_eq!(shown.field("Mode"), "GOVERNANCE");
    // What is shown is taken again.
    let again = retention("GOVERNANCE", &shown.field("RetainUntilDate"));
    assert_eq!(retain(&bed, "k", &id, &again).send().status, 200);
    assert_eq!(change("GOVERNANCE", 5, false), 403);
    assert_eq!(change("COMPLIANCE", 30, false), 403);
    assert_eq!(retain(&bed, "k", &id, "<Retention/>").send().status, 403);
    assert_eq!(change("GOVERNANCE", 5, true), 200);
    let none = retain(&bed, "k", &id, "<Retention/>").header(BYPASS, "true");
    assert_eq!(none.send().status, 200);
    refused(&asked(), 404, "NoSuchObjectLockConfiguration");
    assert_eq!(change("COMPLIANCE", 5, false), 200);
    assert_eq!(change("COMPLIANCE", 4, true), 403);
    assert_eq!(change("GOVERNANCE", 9, true), 403);
    assert_eq!(change("COMPLIANCE", 6, false), 200);
    let document = retention("COMPLIANCE", &in_days(9));
    let newest = bed.object("PUT", "k").query("retention", "").body(document.as_bytes()).send();
    assert_eq!(newest.status, 200);
    for (document, code) in [
        (retention("COMPLIANCE", "2020-01-01T00:00:00Z"), "InvalidArgument"),
        (retention("compliance", &in_days(9)), "MalformedXML"),
        ("<Retention><Mode>COMPLIANCE</Mode></Retention>".to_owned(), "MalformedXML"),
        (String::new(), "MalformedXML"),
    ] {
        refused(&retain(&bed, "k", &id, &document).send(), 400, code);
    }
    refused(&retain(&bed, "none", "null", &document).send(), 404, "NoSuchVersion");
    let marker = bed.object("DELETE", "k").send();
    let marker = marker.header("x-amz-version-id").expect("a marker").to_owned();
    refused(&retain(&bed, "k", &marker, &document).send(), 405, "MethodNotAllowed");
}

#[test]
fn a_hold_is_shown_once_it_was_said() {
    let bed = bed();
    let id = version(&putting(&bed, "k").send());
    let asked = || of(&bed, "GET", "k", &id, "legal-hold").send();
    refused(&asked(), 404, "NoSuchObjectLockConfiguration");
    for status in ["ON", "OFF", "ON"] {
        assert_eq!(hold(&bed, "k", &id, status).status, 200);
        assert_eq!(asked().field("Status"), status);
        let head = of(&bed, "HEAD", "k", &id, "").send();
        assert_eq!(head.header(HOLD), Some(status));
    }
    refused(&hold(&bed, "k", &id, "on"), 400, "MalformedXML");
    let empty = of(&bed, "PUT", "k", &id, "legal-hold").body(b"<LegalHold/>").send();
    refused(&empty, 400, "MalformedXML");
}

#[test]
fn headers_lock_a_new_object_and_answers_show_it() {
    let bed = bed();
    let until = in_days(3);
    let locked = |ask: Ask| retained(ask, "COMPLIANCE", &until).header(HOLD, "ON");
    version(&locked(putting(&bed, "put")).send());
    let copy = bed.object("PUT", "copy").header("x-amz-copy-source", "/bucket/put");
    version(&locked(copy).send());
    let begun = locked(begin_ask(&bed, "k")).send();
    let upload = begun.field("UploadId");
    let part = part_ask(&bed, &upload, 1, b"content").header("content-md5", MD5).send();
    let tag = part.header("etag").expect("a tag").to_owned();
    version(&complete_ask(&bed, &upload, &[(1, &tag)]).send());
    let sent = form("form").field(MODE, "COMPLIANCE").field(UNTIL, &until).field(HOLD, "ON");
    assert_eq!(sent.field("content-md5", MD5).ask(&bed).send_plain().status, 204);
    for key in ["put", "copy", "k", "form"] {
        for method in ["GET", "HEAD"] {
            let found = bed.object(method, key).send();
            let headers = [MODE, UNTIL, HOLD].map(|name| found.header(name));
            assert_eq!(headers, [Some("COMPLIANCE"), Some(&*until), Some("ON")], "{method} {key}");
        }
        let id = version(&bed.object("HEAD", key).send());
        assert_eq!(remove(&bed, key, &id, true), 403);
    }
    // A copy has no lock of its source.
    let copy = bed.object("PUT", "free").header("x-amz-copy-source", "/bucket/put").send();
    assert_eq!(remove(&bed, "free", &version(&copy), false), 204);
}

#[test]
fn flawed_locks_of_new_objects_are_refused() {
    let bed = bed();
    let tomorrow = in_days(1);
    for headers in [
        &[(MODE, "GOVERNANCE")][..],
        &[(UNTIL, &tomorrow)],
        &[(MODE, "governance"), (UNTIL, &tomorrow)],
        &[(MODE, "GOVERNANCE"), (UNTIL, "2020-01-01T00:00:00Z")],
        &[(MODE, "GOVERNANCE"), (UNTIL, "tomorrow")],
        &[(HOLD, "on")],
    ] {
        let ask =
            headers.iter().fold(putting(&bed, "k"), |ask, (name, value)| ask.header(name, value));
        refused(&ask.send(), 400, "InvalidArgument");
    }
    // What is to be retained comes with a digest.
    let put = || bed.object("PUT", "k").body(b"content");
    refused(&retained(put(), "GOVERNANCE", &tomorrow).send(), 400, "InvalidRequest");
    let begun = retained(begin_ask(&bed, "k"), "GOVERNANCE", &tomorrow).send();
    let part = part_ask(&bed, &begun.field("UploadId"), 1, b"content").send();
    refused(&part, 400, "InvalidRequest");
    assert_eq!(put().send().status, 200);
    assert_eq!(set_rule(&bed, &default_of("GOVERNANCE", "<Days>1</Days>")).status, 200);
    refused(&put().send(), 400, "InvalidRequest");
    let named = bed.object("DELETE", "k").header(HOLD, "ON").send();
    refused(&named, 501, "NotImplemented");
}

#[test]
fn the_rule_of_a_bucket_retains_what_has_no_retention() {
    let bed = bed();
    assert_eq!(set_rule(&bed, &default_of("COMPLIANCE", "<Days>30</Days>")).status, 200);
    let id = version(&putting(&bed, "k").send());
    let head = bed.object("HEAD", "k").send();
    assert_eq!(head.header(MODE), Some("COMPLIANCE"));
    assert_eq!(remove(&bed, "k", &id, true), 403);
    let own = put(&bed, "k", "GOVERNANCE");
    assert_eq!(bed.object("HEAD", "k").send().header(MODE), Some("GOVERNANCE"));
    assert_eq!(remove(&bed, "k", &own, true), 204);
}

/// A statement of the bucket's policy for another user.
fn allow(bed: &Bed, effect: &str, actions: &str, condition: &str) -> String {
    assert!(bed.ask("HEAD", "/bucket").send().status == 200);
    format!(
        r#"{{"Effect":"{effect}","Principal":{{"AWS":"arn:aws:iam:::user/other"}},"Action":[{actions}],
        "Resource":"arn:aws:s3:::{BUCKET}/*"{condition}}}"#
    )
}

fn policy(bed: &Bed, statements: &[String]) {
    let statements = statements.join(",");
    let text = format!(r#"{{"Version":"2012-10-17","Statement":[{statements}]}}"#);
    bed.model.set(BUCKET, Setting::Policy(Some(text)));
}

#[test]
fn each_part_of_a_lock_has_rights_of_its_own() {
    let bed = bed();
    let id =
        version(&retained(putting(&bed, "k"), "GOVERNANCE", &in_days(9)).header(HOLD, "ON").send());
    let document = retention("GOVERNANCE", &in_days(19));
    let by_other = |ask: Ask| ask.by(OTHER).send();
    let put_held = || by_other(putting(&bed, "new").header(HOLD, "ON"));
    let put_retained = || by_other(retained(putting(&bed, "new"), "GOVERNANCE", &in_days(1)));
    let retaining = || by_other(retain(&bed, "k", &id, &document));
    let on = b"<LegalHold><Status>ON</Status></LegalHold>";
    let holding = || by_other(of(&bed, "PUT", "k", &id, "legal-hold").body(on));
    let deleting = || by_other(of(&bed, "DELETE", "k", &id, "").header(BYPASS, "true"));
    let shown = || {
        let found = by_other(of(&bed, "GET", "k", &id, ""));
        [MODE, UNTIL, HOLD].map(|name| found.header(name).is_some())
    };
    let plain = r#""s3:PutObject","s3:GetObjectVersion","s3:DeleteObjectVersion""#;
    let rights = |more: &str| policy(&bed, &[allow(&bed, "Allow", &format!("{plain}{more}"), "")]);

    rights("");
    assert_eq!(shown(), [false; 3]);
    for denied in [
        put_held(),
        put_retained(),
        retaining(),
        holding(),
        by_other(of(&bed, "GET", "k", &id, "retention")),
        by_other(of(&bed, "GET", "k", &id, "legal-hold")),
        by_other(bed.ask("GET", "/bucket").query("object-lock", "")),
        by_other(bed.ask("PUT", "/bucket").query("object-lock", "").body(rule("").as_bytes())),
        by_other(bed.object("PUT", "k").query("retention", "").body(b"x")),
    ] {
        assert!(denied.status == 403 || denied.error().1 == "MalformedXML", "{}", denied.text());
    }
    rights(r#","s3:GetObjectRetention""#);
    assert_eq!(shown(), [true, true, false]);
    rights(r#","s3:GetObjectLegalHold""#);
    assert_eq!(shown(), [false, false, true]);
    rights(r#","s3:PutObjectRetention""#);
    assert_eq!((put_retained().status, put_held().status), (200, 403));
    assert_eq!((retaining().status, holding().status), (200, 403));
    rights(r#","s3:PutObjectLegalHold""#);
    assert_eq!((put_retained().status, put_held().status), (403, 200));
    assert_eq!((retaining().status, holding().status), (403, 200));
    assert_eq!(hold(&bed, "k", &id, "OFF").status, 200);
    assert_eq!(deleting().status, 403, "it may not bypass");
    let entry = format!("<Object><Key>k</Key><VersionId>{id}</VersionId></Object>");
    let bulk = delete_many_by(&bed, OTHER, &format!("<Delete>{entry}</Delete>"));
    assert_eq!(bulk.field("Code"), "AccessDenied");
    rights(r#","s3:BypassGovernanceRetention""#);
    assert_eq!(deleting().status, 204);
}

#[test]
fn conditions_of_policies_ask_for_locks() {
    let bed = bed();
    let id = version(&putting(&bed, "k").send());
    let all = r#""s3:PutObject","s3:PutObjectRetention","s3:PutObjectLegalHold""#;
    let deny = |operator: &str, key: &str, value: &str| {
        let condition = format!(r#","Condition":{{"{operator}":{{"s3:{key}":"{value}"}}}}"#);
        let statements = [
            allow(&bed, "Allow", all, ""),
            allow(
                &bed,
                "Deny",
                r#""s3:PutObject","s3:PutObjectRetention","s3:PutObjectLegalHold""#,
                &condition,
            ),
        ];
        policy(&bed, &statements);
    };
    let put = |mode: &str, days| {
        retained(putting(&bed, "new"), mode, &in_days(days)).by(OTHER).send().status
    };
    let change = |mode: &str, days| {
        retain(&bed, "k", &id, &retention(mode, &in_days(days))).by(OTHER).send().status
    };
    deny("StringEquals", "object-lock-mode", "COMPLIANCE");
    assert_eq!([put("GOVERNANCE", 5), put("COMPLIANCE", 5)], [200, 403]);
    assert_eq!([change("GOVERNANCE", 5), change("COMPLIANCE", 5)], [200, 403]);
    deny("NumericGreaterThan", "object-lock-remaining-retention-days", "10");
    assert_eq!([put("GOVERNANCE", 10), put("GOVERNANCE", 11)], [200, 403]);
    assert_eq!([change("GOVERNANCE", 10), change("GOVERNANCE", 11)], [200, 403]);
    // Nearly a day later than the same date in UTC.
    let until = in_days(10).replace('Z', "-23:59");
    let later = retain(&bed, "k", &id, &retention("GOVERNANCE", &until)).by(OTHER).send();
    assert_eq!(later.status, 403, "{}", later.text());
    deny("DateGreaterThan", "object-lock-retain-until-date", &in_days(20));
    assert_eq!([put("GOVERNANCE", 19), put("GOVERNANCE", 21)], [200, 403]);
    assert_eq!([change("GOVERNANCE", 19), change("GOVERNANCE", 21)], [200, 403]);
    deny("StringEquals", "object-lock-legal-hold", "ON");
    let holding = |status: &str| {
        let document = format!("<LegalHold><Status>{status}</Status></LegalHold>");
        let ask = of(&bed, "PUT", "k", &id, "legal-hold").body(document.as_bytes());
        ask.by(OTHER).send().status
    };
    assert_eq!([holding("OFF"), holding("ON")], [200, 403]);
    let put_held = putting(&bed, "new").header(HOLD, "ON").by(OTHER).send();
    assert_eq!(put_held.status, 403);
}

//! Who may do what: owners, users' and keys' policies, policies and ACLs of buckets, blocks of what is public.

use object_proto::{Error, Grant, Grantee, Ownership, Permission, PublicAccess, Setting, UserId};

use crate::client::{Ask, BUCKET, Bed, OTHER, Reply};
use crate::objects::delete_many_by;

const OWNER: (&str, &str) = ("AKOWNER", "owner's secret");

/// A bucket of a user that is no administrator, with the object `k`.
fn bed() -> Bed {
    let bed = Bed::new();
    bed.add_user("owner", OWNER);
    assert_eq!(bed.ask("PUT", "/bucket").by(OWNER).send().status, 200);
    assert_eq!(bed.object("PUT", "k").by(OWNER).body(b"content").send().status, 200);
    bed
}

fn policy(bed: &Bed, statements: &str) {
    let text = format!(r#"{{"Version":"2012-10-17","Statement":[{statements}]}}"#);
    bed.model.set(BUCKET, Setting::Policy(Some(text)));
}

/// A statement of the bucket's policy.
fn says(effect: &str, principal: &str, actions: &str, key: &str) -> String {
    let resource = if key.is_empty() { BUCKET.to_owned() } else { format!("{BUCKET}/{key}") };
    format!(
        r#"{{"Effect":"{effect}","Principal":{principal},"Action":{actions},
        "Resource":"arn:aws:s3:::{resource}"}}"#
    )
}

const ALL: &str = r#""*""#;
const BY_NAME: &str = r#"{"AWS":"arn:aws:iam:::user/other"}"#;

fn status(ask: Ask) -> u16 {
    ask.send().status
}

fn plain(ask: Ask) -> u16 {
    ask.send_plain().status
}

fn is_denied(reply: &Reply) -> bool {
    reply.error() == (403, "AccessDenied".into())
}

#[test]
fn a_bucket_is_its_owners_and_administrators_alone() {
    let bed = bed();
    assert_eq!(status(bed.object("GET", "k").by(OWNER)), 200);
    assert_eq!(status(bed.object("GET", "k")), 200);
    assert!(is_denied(&bed.object("GET", "k").by(OTHER).send()));
    assert!(is_denied(&bed.object("GET", "k").send_plain()));
    assert!(is_denied(&bed.ask("GET", "/").send_plain()));
    assert!(is_denied(&bed.ask("PUT", "/another").send_plain()));
    assert!(is_denied(&bed.ask("GET", "/bucket").by(OTHER).query("torrent", "").send()));
    assert_eq!(status(bed.ask("GET", "/bucket").by(OWNER).query("inventory", "")), 501);
    let other = bed.object("GET", "k").by(OWNER).header("x-amz-expected-bucket-owner", "id-other");
    assert!(is_denied(&other.send()));
}

#[test]
fn a_bucket_policy_allows_another_user_what_it_names() {
    let bed = bed();
    policy(&bed, &says("Allow", BY_NAME, r#"["s3:GetObject","s3:PutObject"]"#, "*"));
    assert_eq!(status(bed.object("GET", "k").by(OTHER)), 200);
    assert_eq!(status(bed.object("PUT", "new").by(OTHER).body(b"x")), 200);
    assert!(is_denied(&bed.object("GET", "k").by(OTHER).query("versionId", "null").send()));
    assert!(is_denied(&bed.object("DELETE", "k").by(OTHER).send()));
    assert!(is_denied(&bed.ask("GET", "/bucket").by(OTHER).send()));
    assert!(is_denied(&bed.object("GET", "k").send_plain()));
    // What it may not list it does not learn of.
    assert!(is_denied(&bed.object("GET", "none").by(OTHER).send()));
    assert_eq!(status(bed.object("GET", "none").by(OWNER)), 404);
    let tagged = bed.object("PUT", "t").by(OTHER).header("x-amz-tagging", "a=b").body(b"x");
    assert!(is_denied(&tagged.send()), "tags are another action");
    // ACLs are off: what it puts is the bucket owner's.
    let listed = bed.ask("GET", "/bucket").by(OWNER).query("list-type", "2");
    let owners = listed.query("fetch-owner", "true").send().fields("ID");
    assert_eq!(owners, ["id-owner", "id-owner"]);
}

#[test]
fn a_deny_counts_for_all_but_to_change_the_policy() {
    let bed = bed();
    let deny = says("Deny", ALL, r#""s3:*""#, "*");
    policy(&bed, &format!("{},{deny}", says("Allow", BY_NAME, r#""s3:*""#, "*")));
    for key in [OWNER, OTHER] {
        assert!(is_denied(&bed.object("GET", "k").by(key).send()));
    }
    assert!(is_denied(&bed.object("GET", "k").send()), "an administrator");
    policy(&bed, &says("Deny", ALL, r#""s3:*""#, ""));
    assert!(is_denied(&bed.ask("GET", "/bucket").by(OWNER).send()));
    assert!(!is_denied(&bed.ask("GET", "/bucket").by(OWNER).query("policy", "").send()));
    assert!(is_denied(&bed.ask("GET", "/bucket").by(OTHER).query("policy", "").send()));
}

#[test]
fn what_is_public_is_so_unless_it_is_blocked() {
    let bed = bed();
    policy(&bed, &says("Allow", ALL, r#""s3:GetObject""#, "*"));
    assert_eq!(plain(bed.object("GET", "k")), 403, "a new bucket blocks it");
    bed.model.set(BUCKET, Setting::PublicAccess(PublicAccess::all(false)));
    assert_eq!(plain(bed.object("GET", "k")), 200);
    assert_eq!(status(bed.object("GET", "k").by(OTHER)), 200);
    assert_eq!(plain(bed.object("PUT", "k").body(b"x")), 403);
    assert_eq!(plain(bed.object("DELETE", "k")), 403);
    assert_eq!(plain(bed.object("GET", "none")), 403);
    let restrict = PublicAccess { restrict: true, ..PublicAccess::all(false) };
    bed.model.set(BUCKET, Setting::PublicAccess(restrict));
    assert_eq!(status(bed.object("GET", "k").by(OTHER)), 403);
    assert_eq!(status(bed.object("GET", "k").by(OWNER)), 200);
}

#[test]
fn conditions_are_held_against_the_request() {
    let bed = bed();
    bed.model.set(BUCKET, Setting::PublicAccess(PublicAccess::all(false)));
    let when = |condition: &str| {
        let allow = says("Allow", ALL, r#"["s3:GetObject","s3:PutObject"]"#, "*");
        let body = allow.strip_suffix('}').expect("an object");
        policy(&bed, &format!(r#"{body},"Condition":{condition}}}"#));
    };
    when(r#"{"IpAddress":{"aws:SourceIp":"127.0.0.0/8"}}"#);
    assert_eq!(plain(bed.object("GET", "k")), 200);
    when(r#"{"NotIpAddress":{"aws:SourceIp":"127.0.0.0/8"}}"#);
    assert_eq!(plain(bed.object("GET", "k")), 403);
    when(r#"{"StringLike":{"aws:Referer":"http://site/*"}}"#);
    assert_eq!(plain(bed.object("GET", "k")), 403);
    assert_eq!(plain(bed.object("GET", "k").unsigned("referer", "http://site/page")), 200);
    when(r#"{"StringEquals":{"aws:username":"other"}}"#);
    assert_eq!(status(bed.object("GET", "k").by(OTHER)), 200);
    assert_eq!(plain(bed.object("GET", "k")), 403);
    when(r#"{"DateLessThan":{"aws:CurrentTime":"2001-01-01T00:00:00Z"}}"#);
    assert_eq!(plain(bed.object("GET", "k")), 403);
    when(r#"{"DateGreaterThan":{"aws:CurrentTime":"2001-01-01T00:00:00Z"}}"#);
    assert_eq!(plain(bed.object("GET", "k")), 200);
    when(r#"{"StringEquals":{"s3:ExistingObjectTag/share":"yes"}}"#);
    assert_eq!(plain(bed.object("GET", "k")), 403);
    let tagged = bed.object("PUT", "k").by(OWNER).header("x-amz-tagging", "share=yes");
    assert_eq!(status(tagged.body(b"x")), 200);
    assert_eq!(plain(bed.object("GET", "k")), 200);
}

/// A slash may be escaped in JSON, and some libraries always do so.
#[test]
fn a_condition_on_tags_holds_however_its_policy_is_written() {
    let bed = bed();
    bed.model.set(BUCKET, Setting::PublicAccess(PublicAccess::all(false)));
    let secret = bed.object("PUT", "secret").by(OWNER).header("x-amz-tagging", "class=secret");
    assert_eq!(status(secret.body(b"x")), 200);
    let all = says("Allow", ALL, r#""s3:GetObject""#, "*");
    for key in
        ["s3:ExistingObjectTag/class", r"s3:ExistingObjectTag\/class", "S3:existingobjecttag/class"]
    {
        let deny = says("Deny", ALL, r#""s3:GetObject""#, "*");
        let deny = deny.strip_suffix('}').expect("an object");
        let when = format!(r#""Condition":{{"StringEquals":{{"{key}":"secret"}}}}"#);
        policy(&bed, &format!("{all},{deny},{when}}}"));
        assert_eq!(plain(bed.object("GET", "secret")), 403, "{key}");
        assert_eq!(plain(bed.object("GET", "k")), 200, "{key}");
        // Nor is it passed over when the object cannot be looked at.
        bed.model.fail_next_head(Error::Busy { cause: "its range changes owners".to_owned() });
        assert_eq!(plain(bed.object("GET", "secret")), 503, "{key}");
    }
}

#[test]
fn each_key_of_a_bulk_delete_is_allowed_by_itself() {
    let bed = bed();
    assert_eq!(status(bed.object("PUT", "tmp/1").by(OWNER).body(b"x")), 200);
    policy(&bed, &says("Allow", BY_NAME, r#""s3:DeleteObject""#, "tmp/*"));
    let body = "<Delete><Object><Key>tmp/1</Key></Object><Object><Key>k</Key></Object></Delete>";
    let reply = delete_many_by(&bed, OTHER, body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.fields("Code"), ["AccessDenied"]);
    assert_eq!(status(bed.object("HEAD", "tmp/1").by(OWNER)), 404);
    assert_eq!(status(bed.object("HEAD", "k").by(OWNER)), 200);
}

#[test]
fn a_copy_needs_its_source_to_be_readable() {
    let bed = bed();
    assert_eq!(status(bed.ask("PUT", "/others").by(OTHER)), 200);
    let copy = |bed: &Bed| {
        bed.ask("PUT", "/others/k").by(OTHER).header("x-amz-copy-source", "bucket/k").send()
    };
    assert!(is_denied(&copy(&bed)));
    policy(&bed, &says("Allow", BY_NAME, r#""s3:PutObject""#, "*"));
    assert!(is_denied(&copy(&bed)));
    policy(&bed, &says("Allow", BY_NAME, r#""s3:GetObject""#, "k"));
    assert_eq!(copy(&bed).status, 200);
}

#[test]
fn a_users_policy_says_what_the_user_may_in_any_bucket_and_in_its_own() {
    let bed = bed();
    let set = |key: &str, text: &str| {
        let text = format!(r#"{{"Version":"2012-10-17","Statement":[{text}]}}"#);
        bed.model.change_key(key, |key| key.user.policy = Some(text));
    };
    let read = r#"{"Effect":"Allow","Action":["s3:Get*","s3:List*"],"Resource":"*"}"#;
    set(OTHER.0, read);
    assert_eq!(status(bed.object("GET", "k").by(OTHER)), 200);
    assert_eq!(status(bed.ask("GET", "/bucket").by(OTHER)), 200);
    assert_eq!(status(bed.ask("GET", "/").by(OTHER)), 200);
    assert!(is_denied(&bed.object("PUT", "k").by(OTHER).body(b"x").send()));
    assert!(is_denied(&bed.ask("PUT", "/another").by(OTHER).send()));
    set(OWNER.0, read);
    assert!(is_denied(&bed.object("PUT", "k").by(OWNER).body(b"x").send()), "its own bucket");
    set(OWNER.0, r#"{"Effect":"Deny","Action":"s3:ListAllMyBuckets","Resource":"*"}"#);
    assert!(is_denied(&bed.ask("GET", "/").by(OWNER).send()));
    bed.model.change_key(OTHER.0, |key| key.user.policy = Some("{".to_owned()));
    assert!(is_denied(&bed.object("GET", "k").by(OTHER).send()), "a flawed policy allows nothing");
}

#[test]
fn a_bucket_made_with_an_acl_or_an_ownership_needs_their_actions_too() {
    let bed = bed();
    let make = |name: &str, (header, value)| {
        bed.ask("PUT", &format!("/{name}")).by(OTHER).header(header, value).send()
    };
    let allow = |actions: &str| {
        let text = format!(
            r#"{{"Version":"2012-10-17","Statement":{{"Effect":"Allow","Action":{actions},"Resource":"*"}}}}"#
        );
        bed.model.change_key(OTHER.0, |key| key.user.policy = Some(text));
    };
    let acl = ("x-amz-acl", "authenticated-read");
    let grant = ("x-amz-grant-read", "id=id-admin");
    let ownership = ("x-amz-object-ownership", "ObjectWriter");
    allow(r#""s3:CreateBucket""#);
    for (name, header) in [("made-1", acl), ("made-2", grant), ("made-3", ownership)] {
        assert!(is_denied(&make(name, header)), "{header:?}");
    }
    // What every new bucket has needs no leave.
    assert_eq!(make("made-4", ("x-amz-acl", "private")).status, 200);
    allow(r#"["s3:CreateBucket","s3:PutBucketOwnershipControls"]"#);
    assert_eq!(make("made-5", ownership).status, 200);
    allow(r#"["s3:CreateBucket","s3:PutBucketAcl"]"#);
    // The ACL may be given; that the bucket has none is said by the operation.
    let refused = make("made-6", grant).error();
    assert_eq!(refused, (400, "InvalidBucketAclWithObjectOwnership".into()));
}

#[test]
fn a_keys_policy_narrows_what_its_user_may() {
    let bed = bed();
    let text = r#"{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"s3:GetObject",
        "Resource":"arn:aws:s3:::bucket/*"}}"#;
    bed.model.change_key(OWNER.0, |key| key.policy = Some(text.to_owned()));
    assert_eq!(status(bed.object("GET", "k").by(OWNER)), 200);
    assert!(is_denied(&bed.object("PUT", "k").by(OWNER).body(b"x").send()));
    assert!(is_denied(&bed.ask("GET", "/").by(OWNER).send()));
    bed.model.change_key(OTHER.0, |key| key.policy = Some(text.to_owned()));
    assert!(is_denied(&bed.object("GET", "k").by(OTHER).send()), "it grants nothing by itself");
}

#[test]
fn a_key_ends_at_its_time() {
    let bed = bed();
    bed.model.change_key(OWNER.0, |key| key.expires_us = Some(1));
    let reply = bed.object("GET", "k").by(OWNER).send();
    assert_eq!(reply.error(), (403, "InvalidAccessKeyId".into()));
    bed.model.change_key(OWNER.0, |key| key.expires_us = Some(u64::MAX));
    assert_eq!(status(bed.object("GET", "k").by(OWNER)), 200);
}

#[test]
fn an_acl_of_a_bucket_counts_while_acls_are_on() {
    let bed = bed();
    let grant = |grantee, permission| Grant { grantee, permission };
    bed.model.set(BUCKET, Setting::PublicAccess(PublicAccess::all(false)));
    let other = || Grantee::User(UserId::new("id-other"));
    let acl = vec![grant(Grantee::All, Permission::Read), grant(other(), Permission::Write)];
    bed.model.set(BUCKET, Setting::Acl(acl));
    assert_eq!(plain(bed.ask("GET", "/bucket")), 403, "ACLs are off");
    bed.model.set(BUCKET, Setting::Ownership(Ownership::Writer));
    assert_eq!(plain(bed.ask("GET", "/bucket")), 200);
    assert_eq!(plain(bed.object("GET", "k")), 403, "it is the bucket's ACL");
    assert_eq!(plain(bed.object("GET", "none")), 404, "who may list learns that it is not there");
    assert_eq!(plain(bed.object("PUT", "x").body(b"x")), 403);
    assert_eq!(status(bed.object("PUT", "x").by(OTHER).body(b"x")), 200);
    let listed = bed.ask("GET", "/bucket").by(OWNER).query("list-type", "2");
    let owners = listed.query("fetch-owner", "true").send().fields("ID");
    assert_eq!(owners, ["id-owner", "id-other"], "it is its writer's");
    let ignore = PublicAccess { ignore_acls: true, ..PublicAccess::all(false) };
    bed.model.set(BUCKET, Setting::PublicAccess(ignore));
    assert_eq!(plain(bed.ask("GET", "/bucket")), 403);
    assert_eq!(status(bed.object("PUT", "x").by(OTHER).body(b"x")), 200);
    bed.model.set(BUCKET, Setting::Acl(vec![grant(Grantee::Authenticated, Permission::Full)]));
    bed.model.set(BUCKET, Setting::PublicAccess(PublicAccess::all(false)));
    assert_eq!(status(bed.ask("GET", "/bucket").by(OTHER)), 200);
    assert_eq!(plain(bed.ask("GET", "/bucket")), 403);
}

#[test]
fn who_may_not_list_learns_of_no_key_in_any_way() {
    let bed = bed();
    let actions = r#"["s3:GetObject","s3:GetObjectAttributes","s3:GetObjectTagging","s3:PutObjectTagging","s3:DeleteObjectTagging"]"#;
    policy(&bed, &says("Allow", BY_NAME, actions, "*"));
    assert_eq!(status(bed.ask("PUT", "/elsewhere").by(OTHER)), 200);
    let tagging = b"<Tagging><TagSet></TagSet></Tagging>";
    for (key, wanted) in [("k", 200), ("none", 403)] {
        let of = |method, query| bed.object(method, key).by(OTHER).query(query, "");
        let names = ("x-amz-object-attributes", "ETag");
        assert_eq!(status(of("GET", "attributes").header(names.0, names.1)), wanted, "{key}");
        assert_eq!(status(of("GET", "tagging")), wanted, "{key}");
        assert_eq!(status(of("PUT", "tagging").body(tagging)), wanted, "{key}");
        let deleted = if wanted == 200 { 204 } else { wanted };
        assert_eq!(status(of("DELETE", "tagging")), deleted, "{key}");
        let copy = bed.ask("PUT", "/elsewhere/c").by(OTHER);
        let copy = copy.header("x-amz-copy-source", &format!("bucket/{key}"));
        assert_eq!(status(copy), wanted, "{key}");
    }
    // Its owner learns that it is not there.
    let copy = bed.object("PUT", "c").by(OWNER).header("x-amz-copy-source", "bucket/none");
    assert_eq!(status(copy), 404);
}

#[test]
fn headers_of_an_answer_are_a_signed_callers_to_choose() {
    let bed = bed();
    bed.model.set(BUCKET, Setting::PublicAccess(PublicAccess::all(false)));
    policy(&bed, &says("Allow", ALL, r#""s3:GetObject""#, "*"));
    assert_eq!(plain(bed.object("GET", "k")), 200);
    for name in ["response-content-type", "response-content-disposition", "response-expires"] {
        for method in ["GET", "HEAD"] {
            let reply = bed.object(method, "k").query(name, "text/html").send_plain();
            assert_eq!(reply.status, 400, "{method} {name}");
        }
    }
    let reply = bed.object("GET", "k").query("response-content-type", "text/html").send_plain();
    assert_eq!(reply.error(), (400, "InvalidRequest".into()));
    let signed = bed.object("GET", "k").by(OTHER).query("response-content-type", "text/html");
    assert_eq!(signed.send().header("content-type"), Some("text/html"));
}

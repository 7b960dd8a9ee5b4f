//! What conditions of policies see of a request, where it is not said by a header or parameter of its own.

use object_proto::Setting;

use crate::client::{Ask, BUCKET, Bed, OTHER};
use crate::objects::delete_many_by;

const ELSEWHERE: &str = "elsewhere";

/// A bucket whose policy allows another user all, but for what the statement says, and a bucket of another user.
fn bed(statement: &str) -> Bed {
    let bed = Bed::with_bucket();
    set(&bed, statement);
    assert_eq!(bed.ask("PUT", &format!("/{ELSEWHERE}")).by(OTHER).send().status, 200);
    bed
}

fn set(bed: &Bed, statement: &str) {
    let all = r#"{"Effect":"Allow","Principal":{"AWS":"arn:aws:iam:::user/other"},"Action":"s3:*","Resource":["arn:aws:s3:::bucket","arn:aws:s3:::bucket/*"]}"#;
    let text = format!(r#"{{"Version":"2012-10-17","Statement":[{all},{statement}]}}"#);
    bed.model.set(BUCKET, Setting::Policy(Some(text)));
}

fn deny(actions: &str, condition: &str) -> String {
    format!(
        r#"{{"Effect":"Deny","Principal":"*","Action":{actions},"Resource":"arn:aws:s3:::bucket/*",
        "Condition":{condition}}}"#
    )
}

fn status(ask: Ask) -> u16 {
    ask.by(OTHER).send().status
}

fn tagging(pairs: &[(&str, &str)]) -> String {
    let tags = pairs
        .iter()
        .map(|(name, value)| format!("<Tag><Key>{name}</Key><Value>{value}</Value></Tag>"));
    format!("<Tagging><TagSet>{}</TagSet></Tagging>", tags.collect::<String>())
}

#[test]
fn tags_of_a_document_are_those_of_the_request() {
    let denied = deny(
        r#""s3:PutObjectTagging""#,
        r#"{"StringEquals":{"s3:RequestObjectTag/class":"public"}}"#,
    );
    let bed = bed(&denied);
    bed.put("k", b"x");
    let tag = |pairs| {
        let body = tagging(pairs);
        status(bed.object("PUT", "k").query("tagging", "").body(body.as_bytes()))
    };
    assert_eq!(tag(&[("class", "own")]), 200);
    assert_eq!(tag(&[("class", "public")]), 403);
    let body = tagging(&[("class", "public")]);
    let other = bed.object("PUT", "k").query("tagging", "").header("x-amz-tagging", "a=1");
    assert_eq!(status(other.body(body.as_bytes())), 403, "the header says nothing here");
    let only = r#"{"ForAnyValue:StringNotEquals":{"s3:RequestObjectTagKeys":["a","b"]}}"#;
    set(&bed, &deny(r#""s3:PutObjectTagging""#, only));
    assert_eq!(tag(&[("a", "1"), ("b", "2")]), 200);
    assert_eq!(tag(&[("a", "1"), ("c", "2")]), 403);
}

#[test]
fn a_policy_may_demand_conditional_writes() {
    let denied = deny(
        r#""s3:PutObject""#,
        r#"{"Null":{"s3:if-none-match":"true"},"Bool":{"s3:ObjectCreationOperation":"true"}}"#,
    );
    let bed = bed(&denied);
    let put = |header: Option<(&str, &str)>| {
        let ask = bed.object("PUT", "k").body(b"x");
        status(match header {
            Some((name, value)) => ask.header(name, value),
            None => ask,
        })
    };
    assert_eq!(put(None), 403);
    assert_eq!(put(Some(("if-none-match", ""))), 403, "an empty one is none");
    assert_eq!(put(Some(("if-none-match", "*"))), 200);
    assert_eq!(put(Some(("if-none-match", "*"))), 412);
    // Parts are no objects yet; the end of an upload makes one.
    let begun = bed.object("POST", "m").by(OTHER).query("uploads", "").send();
    assert_eq!(begun.status, 200, "{}", begun.text());
    let id = begun.field("UploadId");
    let part = bed.object("PUT", "m").query("partNumber", "1").query("uploadId", &id).body(b"x");
    let part = part.by(OTHER).send();
    assert_eq!(part.status, 200);
    let tag = part.header("etag").expect("a tag").to_owned();
    let all = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part>\
         </CompleteMultipartUpload>"
    );
    let end = || bed.object("POST", "m").query("uploadId", &id).body(all.as_bytes());
    assert_eq!(status(end()), 403);
    assert_eq!(status(end().header("if-none-match", "*")), 200);
}

#[test]
fn a_principal_has_a_name_in_conditions() {
    let of = |user: &str| {
        deny(r#""s3:GetObject""#, &format!(r#"{{"ArnLike":{{"aws:PrincipalArn":"{user}"}}}}"#))
    };
    let bed = bed(&of("arn:aws:iam::*:user/other"));
    bed.put("k", b"x");
    assert_eq!(status(bed.object("GET", "k")), 403);
    set(&bed, &of("arn:aws:iam::*:user/another"));
    assert_eq!(status(bed.object("GET", "k")), 200);
}

#[test]
fn tags_are_copied_by_those_who_may_read_and_set_them() {
    let bed = bed(&deny(r#""s3:GetObjectTagging""#, r#"{"StringLike":{"aws:username":"other"}}"#));
    bed.put("plain", b"x");
    assert_eq!(
        bed.object("PUT", "k").header("x-amz-tagging", "team=b").body(b"x").send().status,
        200
    );
    let copy = |source: &str, to: &str, directive: &str| {
        let ask = bed.ask("PUT", &format!("/{to}")).header("x-amz-copy-source", source);
        let ask = ask.header("x-amz-tagging-directive", directive);
        status(ask.header("x-amz-tagging", "team=a"))
    };
    assert_eq!(copy("bucket/plain", "elsewhere/c", "COPY"), 200);
    assert_eq!(copy("bucket/k", "elsewhere/c", "COPY"), 403);
    assert_eq!(copy("bucket/k", "elsewhere/c", "REPLACE"), 200);
    // What is copied counts, and not what a header says that is passed over.
    let own = r#"{"StringEquals":{"s3:RequestObjectTag/team":"b"}}"#;
    set(&bed, &deny(r#""s3:PutObject""#, own));
    assert_eq!(copy("bucket/k", "bucket/c", "COPY"), 403);
    assert_eq!(copy("bucket/k", "bucket/c", "REPLACE"), 200);
    set(&bed, &deny(r#""s3:PutObjectTagging""#, own));
    assert_eq!(copy("bucket/k", "bucket/c", "COPY"), 403);
    assert_eq!(copy("bucket/plain", "bucket/c", "COPY"), 200);
}

#[test]
fn each_key_of_a_bulk_delete_has_its_own_facts() {
    let tagged = r#"{"StringEquals":{"s3:ExistingObjectTag/keep":"yes"}}"#;
    let bed = bed(&deny(r#""s3:DeleteObject""#, tagged));
    assert_eq!(
        bed.object("PUT", "k").header("x-amz-tagging", "keep=yes").body(b"x").send().status,
        200
    );
    bed.put("l", b"x");
    assert_eq!(status(bed.object("DELETE", "k")), 403);
    let many = "<Delete><Object><Key>k</Key></Object><Object><Key>l</Key></Object></Delete>";
    let reply = delete_many_by(&bed, OTHER, many);
    assert_eq!(
        (reply.fields("Code"), reply.fields("Key")),
        (vec!["AccessDenied".to_owned()], vec!["l".into(), "k".into()])
    );
    assert_eq!(bed.object("GET", "k").send().status, 200);
    // A version is named by the document, and by the source of a copy.
    let of_null = r#"{"StringEquals":{"s3:VersionId":"null"}}"#;
    set(&bed, &deny(r#"["s3:DeleteObjectVersion","s3:GetObjectVersion"]"#, of_null));
    let many = "<Delete><Object><Key>k</Key><VersionId>null</VersionId></Object></Delete>";
    assert_eq!(delete_many_by(&bed, OTHER, many).fields("Code"), ["AccessDenied"]);
    let copy =
        bed.ask("PUT", "/elsewhere/c").header("x-amz-copy-source", "bucket/k?versionId=null");
    assert_eq!(status(copy), 403);
}

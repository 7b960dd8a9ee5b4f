//! Objects that browsers put by a form.

use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::time::Duration;

use object_gateway::{GatewayConfig, Times};
use object_proto::{PublicAccess, Setting};
use proptest::prelude::*;
use ring::hmac;

use crate::client::{ADMIN, Ask, BUCKET, Bed, OTHER, Reply, amz_time, now, read_reply};
use crate::signer::{Signer, sha256};

const BOUNDARY: &str = "----form7";

/// A form, signed by a policy unless it is plain.
#[derive(Clone)]
pub struct Form {
    fields: Vec<(String, String)>,
    /// Conditions of the policy beside those on each field.
    conditions: Vec<String>,
    /// Fields that no condition covers.
    open: Vec<String>,
    key: (&'static str, &'static str),
    expires: u64,
    policy: Option<String>,
    file: Option<(String, Vec<u8>)>,
    behind: String,
    plain: bool,
}

pub fn form(key: &str) -> Form {
    Form {
        fields: vec![("key".to_owned(), key.to_owned())],
        conditions: Vec::new(),
        open: Vec::new(),
        key: ADMIN,
        expires: now() + 3600,
        policy: None,
        file: Some(("photo.png".to_owned(), b"content".to_vec())),
        behind: String::new(),
        plain: false,
    }
}

fn part(name: &str, value: &str) -> String {
    format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

/// `YYYY-MM-DDTHH:MM:SS.000Z`.
pub fn iso(seconds: u64) -> String {
    let time = amz_time(seconds);
    let (date, time) = (&time[..8], &time[9..15]);
    format!(
        "{}-{}-{}T{}:{}:{}.000Z",
        &date[..4],
        &date[4..6],
        &date[6..],
        &time[..2],
        &time[2..4],
        &time[4..]
    )
}

impl Form {
    pub fn field(mut self, name: &str, value: &str) -> Form {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A field that no condition covers.
    fn extra(mut self, name: &str, value: &str) -> Form {
        self.open.push(name.to_owned());
        self.field(name, value)
    }

    /// A condition; without one of its own for the key.
    fn when(mut self, condition: &str) -> Form {
        self.open.push("key".to_owned());
        self.conditions.push(condition.to_owned());
        self
    }

    pub fn file(mut self, name: &str, content: &[u8]) -> Form {
        self.file = Some((name.to_owned(), content.to_vec()));
        self
    }

    fn by(mut self, key: (&'static str, &'static str)) -> Form {
        self.key = key;
        self
    }

    fn plain(mut self) -> Form {
        self.plain = true;
        self
    }

    fn policy(mut self, policy: &str) -> Form {
        self.policy = Some(policy.to_owned());
        self
    }

    /// All fields, with policy and signature.
    fn all(&self) -> Vec<(String, String)> {
        let mut fields = self.fields.clone();
        if self.plain {
            return fields;
        }
        let signer = Signer {
            key: self.key.0.to_owned(),
            secret: self.key.1.to_owned(),
            // Forms outlive the quarter of an hour of other signatures.
            time: amz_time(now() - 7_200),
            region: "us-east-1".to_owned(),
        };
        let credential = format!("{}/{}", signer.key, signer.scope());
        for (name, value) in [
            ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
            ("x-amz-credential", &credential),
            ("x-amz-date", &signer.time),
        ] {
            fields.push((name.to_owned(), value.to_owned()));
        }
        let mut conditions = self.conditions.clone();
        conditions.push(format!(r#"{{"bucket":"{BUCKET}"}}"#));
        for (name, value) in fields.iter().filter(|(name, _)| !self.open.contains(name)) {
            let value = value.replace('\\', r"\\").replace('"', "\\\"");
            conditions.push(format!(r#"["eq","${name}","{value}"]"#));
        }
        let policy = self.policy.clone().unwrap_or_else(|| {
            let conditions = conditions.join(",");
            format!(r#"{{"expiration":"{}","conditions":[{conditions}]}}"#, iso(self.expires))
        });
        let policy = base64_simd::STANDARD.encode_to_string(policy);
        fields.push(("x-amz-signature".to_owned(), signer.sign(&policy)));
        fields.push(("policy".to_owned(), policy));
        fields
    }

    fn bytes(&self) -> Vec<u8> {
        written(&self.all(), self)
    }

    pub fn ask(&self, bed: &Bed) -> Ask {
        ask(bed, &self.bytes())
    }

    pub fn send(&self, bed: &Bed) -> Reply {
        self.ask(bed).send_plain()
    }
}

fn written(fields: &[(String, String)], form: &Form) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        fields.iter().flat_map(|(name, value)| part(name, value).into_bytes()).collect();
    if let Some((name, content)) = &form.file {
        bytes.extend_from_slice(
            format!(
                "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; \
                 filename=\"{name}\"\r\nContent-Type: image/png\r\n\r\n"
            )
            .as_bytes(),
        );
        bytes.extend_from_slice(content);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(form.behind.as_bytes());
    bytes.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    bytes
}

fn ask(bed: &Bed, body: &[u8]) -> Ask {
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    bed.ask("POST", "/bucket").unsigned("content-type", &kind).body(body)
}

fn refused(reply: &Reply, status: u16, code: &str) {
    assert_eq!(reply.error(), (status, code.to_owned()), "{}", reply.text());
}

#[test]
fn a_signed_form_puts_an_object() {
    let bed = Bed::with_bucket();
    let reply = form("a b/é").send(&bed);
    assert_eq!((reply.status, reply.body.len()), (204, 0), "{}", reply.text());
    let put = bed.put("put", b"content");
    for name in ["etag", "x-amz-checksum-crc64nvme", "x-amz-checksum-type"] {
        assert!(reply.header(name).is_some());
        assert_eq!(reply.header(name), put.header(name), "{name}");
    }
    let url = format!("http://{}/bucket/a%20b/%C3%A9", bed.gateway.addr());
    assert_eq!(reply.header("location"), Some(&*url));
    let got = bed.object("GET", "a b/é").send();
    assert_eq!(got.body, b"content");
    assert_eq!(got.header("content-type"), Some("binary/octet-stream"));
    let (form, put) = (bed.model.object("a b/é"), bed.model.object("put"));
    let facts = |object: Option<(object_proto::ObjectInfo, Vec<u8>)>| {
        object.map(|object| object.0.object.facts)
    };
    assert_eq!(facts(form), facts(put), "it is as if it had been put");
}

#[test]
fn a_form_is_answered_as_it_asks() {
    let bed = Bed::with_bucket();
    for (status, wanted) in [("200", 200), ("201", 201), ("204", 204), ("404", 204), ("", 204)] {
        let reply = form("k&<").field("success_action_status", status).send(&bed);
        assert_eq!(reply.status, wanted, "{status}");
        assert_eq!(reply.body.is_empty(), wanted != 201);
        if wanted == 201 {
            assert_eq!(reply.header("content-type"), Some("application/xml"));
            let tag = reply.header("etag").expect("a tag").to_owned();
            let url = format!("http://{}/bucket/k%26%3C", bed.gateway.addr());
            let fields = ["Location", "Bucket", "Key", "ETag"].map(|name| reply.field(name));
            assert_eq!(fields, [url, BUCKET.to_owned(), "k&<".to_owned(), tag]);
        }
    }
    for name in ["success_action_redirect", "redirect"] {
        let reply = form("a/k 1").field(name, "http://site/done?x=1").send(&bed);
        let tag = reply.header("etag").expect("a tag").trim_matches('"').to_owned();
        let url = format!("http://site/done?x=1&bucket=bucket&key=a/k%201&etag=%22{tag}%22");
        assert_eq!((reply.status, reply.header("location")), (303, Some(&*url)));
    }
    let reply = form("k").field("success_action_redirect", "nowhere").send(&bed);
    assert_eq!(reply.status, 204, "what is no URL is passed over");
}

#[test]
fn the_bucket_may_be_in_the_hosts_name() {
    let bed = Bed::with_bucket();
    let host = format!("bucket.localhost:{}", bed.gateway.addr().port());
    let kind = format!("multipart/form-data; boundary=\"{BOUNDARY}\"");
    let ask = bed.ask("POST", "/").host(&host).unsigned("content-type", &kind);
    let reply = ask.body(&form("k").bytes()).send_plain();
    assert_eq!(reply.status, 204, "{}", reply.text());
    assert_eq!(reply.header("location"), Some(&*format!("http://{host}/k")));
    assert_eq!(bed.put("k", b"content").header("etag"), reply.header("etag"));
}

#[test]
fn the_key_may_have_the_name_of_the_file() {
    let bed = Bed::with_bucket();
    let reply = form("up/${filename}")
        .when(r#"["starts-with","$key","up/"]"#)
        .file("C:\\photos\\one.png", b"1")
        .send(&bed);
    assert_eq!(reply.status, 204, "{}", reply.text());
    assert_eq!(bed.object("GET", "up/one.png").send().body, b"1");
    // Conditions are held against what comes of it.
    let reply = form("${filename}").when(r#"["starts-with","$key","up/"]"#).send(&bed);
    refused(&reply, 403, "AccessDenied");
}

#[test]
fn fields_are_headers_metadata_and_tags_of_the_object() {
    let bed = Bed::with_bucket();
    let tags =
        "<Tagging><TagSet><Tag><Key>a</Key><Value>1 &amp; 2</Value></Tag></TagSet></Tagging>";
    let reply = form("k")
        .field("Content-Type", "image/png")
        .field("cache-control", "no-cache")
        .field("Content-Disposition", "inline")
        .field("Content-Encoding", "gzip")
        .field("Expires", "Wed, 21 Oct 2037 07:28:00 GMT")
        .field("x-amz-meta-One", "1")
        .field("x-amz-meta-two", "é")
        .field("x-amz-storage-class", "STANDARD")
        .field("acl", "bucket-owner-full-control")
        .field("tagging", tags)
        .field("x-amz-checksum-crc32", "")
        .field("submit", "Upload")
        .send(&bed);
    assert_eq!(reply.status, 204, "{}", reply.text());
    let got = bed.object("HEAD", "k").send();
    for (name, value) in [
        ("content-type", "image/png"),
        ("cache-control", "no-cache"),
        ("content-disposition", "inline"),
        ("content-encoding", "gzip"),
        ("expires", "Wed, 21 Oct 2037 07:28:00 GMT"),
        ("x-amz-meta-one", "1"),
        ("x-amz-tagging-count", "1"),
    ] {
        assert_eq!(got.header(name), Some(value), "{name}");
    }
    let got = bed.object("GET", "k").query("tagging", "").send();
    assert_eq!((got.field("Key"), got.field("Value")), ("a".into(), "1 & 2".into()));
    let two = bed.model.object("k").expect("an object").0.object.facts.metadata;
    assert_eq!(two.get("x-amz-meta-two"), Some("é"));
}

#[test]
fn what_a_put_refuses_a_form_is_refused() {
    let bed = Bed::with_bucket();
    let tags = |text: &str| format!("<Tagging><TagSet>{text}</TagSet></Tagging>");
    for (name, value, status, code) in [
        ("acl", "public-read", 400, "AccessControlListNotSupported"),
        ("x-amz-storage-class", "GLACIER", 400, "InvalidStorageClass"),
        ("x-amz-server-side-encryption", "aws:kms:dsse", 501, "NotImplemented"),
        ("x-amz-object-lock-mode", "GOVERNANCE", 400, "InvalidArgument"),
        ("x-amz-website-redirect-location", "/", 501, "NotImplemented"),
        ("x-amz-security-token", "t", 400, "InvalidToken"),
        ("x-amz-expected-bucket-owner", "id-other", 403, "AccessDenied"),
        ("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==", 400, "BadDigest"),
        ("content-md5", "x", 400, "InvalidDigest"),
        ("x-amz-checksum-crc32", "AAAAAA==", 400, "BadDigest"),
        ("x-amz-checksum-sha256", "x", 400, "InvalidRequest"),
        ("x-amz-meta-a", &"x".repeat(3000), 400, "MetadataTooLarge"),
        ("x-amz-meta-a", "a\r\nb", 400, "InvalidArgument"),
        ("x-amz-meta-a b", "", 400, "InvalidArgument"),
        ("content-disposition", "é", 400, "InvalidArgument"),
        ("expires", "soon", 400, "InvalidArgument"),
        ("tagging", "<Tagging>", 400, "MalformedXML"),
        ("tagging", &tags("<![CDATA[x]]>"), 400, "MalformedXML"),
        ("tagging", &tags("<Tag><Key></Key><Value>1</Value></Tag>"), 400, "InvalidTag"),
        ("if-none-match", "*", 412, "PreconditionFailed"),
        ("if-match", "\"0\"", 412, "PreconditionFailed"),
    ] {
        bed.put("k", b"before");
        let mut form = form("k").field(name, value);
        form.conditions.push(format!(r#"["starts-with","${name}",""]"#));
        form.open.push(name.to_owned());
        refused(&form.send(&bed), status, code);
        assert_eq!(bed.model.object("k").expect("an object").1, b"before", "{name}");
    }
    let base64 = |hex: &str| {
        let bytes = hex_simd::decode_to_vec(hex).expect("hexadecimals");
        base64_simd::STANDARD.encode_to_string(bytes)
    };
    let tag = bed.put("put", b"content").header("etag").expect("a tag").replace('"', "");
    let digest = base64(&sha256(b"content"));
    let checked = form("k").field("content-md5", &base64(&tag));
    let reply = checked.field("x-amz-checksum-sha256", &digest).send(&bed);
    assert_eq!(reply.status, 204, "{}", reply.text());
    assert_eq!(reply.header("x-amz-checksum-sha256"), Some(&*digest));
}

#[test]
fn a_form_is_held_against_its_policy() {
    let bed = Bed::with_bucket();
    let range = |min: u64, max: u64| {
        form("k").when(&format!(r#"["content-length-range",{min},{max}],["eq","$key","k"]"#))
    };
    for (form, text) in [
        (
            form("k").when(r#"["eq","$key","other"]"#),
            r#"Policy Condition failed: ["eq", "$key", "other"]"#,
        ),
        (form("k").when(r#"["starts-with","$key","other"]"#), "Policy Condition failed"),
        (form("k").when(r#"{"key":"K"}"#), "Policy Condition failed"),
        (form("k").when(r#"["eq","$key","k"],["eq","$acl","private"]"#), "Policy Condition failed"),
        (form("k").when(r#"["eq","$key","k"],{"bucket":"other"}"#), "Policy Condition failed"),
        (form("k").when(r#"["eq","$bucket","bucket"]"#), "Extra input fields: key"),
        (form("k").extra("acl", "private"), "Extra input fields: acl"),
        (
            form("k").extra("x-amz-meta-a", "1").extra("other", ""),
            "Extra input fields: x-amz-meta-a, other",
        ),
        (
            form("k").field("Content-Type", "image/png,text/html").extra("x", "").when(
                r#"["eq","$key","k"],["starts-with","$Content-Type","image/"],["eq","$x",""]"#,
            ),
            "Policy Condition failed",
        ),
        (Form { expires: now() - 1, ..form("k") }, "Policy expired."),
    ] {
        let reply = form.send(&bed);
        refused(&reply, 403, "AccessDenied");
        let message = reply.field("Message");
        assert!(message.starts_with("Invalid according to Policy: "), "{message}");
        assert!(message.contains(text), "{message}");
    }
    refused(&range(0, 6).send(&bed), 400, "EntityTooLarge");
    refused(&range(8, 9).send(&bed), 400, "EntityTooSmall");
    let large = vec![b'x'; 100_000];
    refused(&range(0, 6).file("f", &large).send(&bed), 400, "EntityTooLarge");
    assert_eq!(bed.model.objects(), 0);
    assert_eq!(range(7, 7).send(&bed).status, 204);
    let ok = form("k")
        .extra("X-Ignore-This", "x")
        .extra("x-ignore-this", "y")
        .when(r#"["StArTs-WiTh","$KeY","k"]"#);
    let reply = ok.send(&bed);
    assert_eq!(reply.status, 204, "{}", reply.text());
    let images = form("k").field("content-type", "image/png, image/gif");
    let images = Form { open: vec!["content-type".to_owned()], ..images }
        .when(r#"["starts-with","$Content-Type","image/"],["eq","$key","k"]"#);
    assert_eq!(images.send(&bed).status, 204);
}

#[test]
fn a_policy_that_is_none_is_refused() {
    let bed = Bed::with_bucket();
    let time = iso(now() + 60);
    for policy in [
        String::new(),
        "{}".to_owned(),
        r#"{"conditions":[]}"#.to_owned(),
        format!(r#"{{"expiration":"{time}"}}"#),
        format!(r#"{{"expiration":"{time}","CONDITIONS":[]}}"#),
        r#"{"expiration":"tomorrow","conditions":[]}"#.to_owned(),
        r#"{"expiration":"2099-01-01 00:00:00+00:00","conditions":[]}"#.to_owned(),
        r#"{"expiration":"2099-01-01T00:00:00+00:00","conditions":[]}"#.to_owned(),
        format!(r#"{{"expiration":"{time}","conditions":[{{}}]}}"#),
        format!(r#"{{"expiration":"{time}","conditions":[["ends-with","$key","k"]]}}"#),
        format!(r#"{{"expiration":"{time}","conditions":[["content-length-range",1]]}}"#),
        format!(r#"{{"expiration":"{time}","conditions":[["content-length-range",-1,0]]}}"#),
    ] {
        refused(&form("k").policy(&policy).send(&bed), 400, "InvalidPolicyDocument");
    }
    assert_eq!(bed.model.objects(), 0);
}

#[test]
fn a_form_needs_the_signature_of_a_known_key() {
    let bed = Bed::with_bucket();
    let unknown = form("k").by(("AKNONE", "x")).send(&bed);
    refused(&unknown, 403, "InvalidAccessKeyId");
    let wrong = form("k").by((ADMIN.0, "another secret")).send(&bed);
    refused(&wrong, 403, "SignatureDoesNotMatch");
    bed.model.enable(OTHER.0, false);
    refused(&form("k").by(OTHER).send(&bed), 403, "InvalidAccessKeyId");
    let changed = |name: &str, value: Option<&str>| {
        let form = form("k");
        let mut fields = form.all();
        match value {
            None => fields.retain(|(other, _)| other != name),
            Some(value) => {
                let field = fields.iter_mut().find(|(other, _)| other == name);
                value.clone_into(&mut field.expect("a field").1);
            }
        }
        ask(&bed, &written(&fields, &form)).send_plain()
    };
    for name in ["policy", "x-amz-signature", "x-amz-credential", "x-amz-algorithm", "x-amz-date"] {
        refused(&changed(name, None), 400, "InvalidArgument");
    }
    let of_other_service = format!("{}/20261128/us-east-1/ec2/aws4_request", ADMIN.0);
    for (name, value, status, code) in [
        ("x-amz-signature", "00", 403, "SignatureDoesNotMatch"),
        ("x-amz-signature", "x", 403, "SignatureDoesNotMatch"),
        ("policy", "e30=", 403, "SignatureDoesNotMatch"),
        ("x-amz-credential", "AKADMIN", 400, "InvalidArgument"),
        ("x-amz-credential", &of_other_service, 400, "InvalidArgument"),
        ("x-amz-algorithm", "AWS4-HMAC-MD5", 400, "InvalidArgument"),
        ("x-amz-date", "20261128", 400, "InvalidArgument"),
        ("x-amz-date", "20010101T000000Z", 400, "InvalidArgument"),
    ] {
        refused(&changed(name, Some(value)), status, code);
    }
    assert_eq!(bed.model.objects(), 0);
}

#[test]
fn signatures_of_version_2_are_taken_only_if_they_are_allowed() {
    for allow_v2 in [false, true] {
        let bed = Bed::with(GatewayConfig { allow_v2, ..GatewayConfig::default() });
        assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
        let policy = r#"{"expiration":"2099-01-01T00:00:00Z","conditions":[{"bucket":"bucket"},{"key":"k"}]}"#;
        let policy = base64_simd::STANDARD.encode_to_string(policy);
        let signed = |signature: &str| {
            let form = form("k").plain().field("AWSAccessKeyId", ADMIN.0);
            form.field("policy", &policy).field("signature", signature).send(&bed)
        };
        let reply = signed("AAAA");
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, ADMIN.1.as_bytes());
        let tag = hmac::sign(&key, policy.as_bytes());
        let good = signed(&base64_simd::STANDARD.encode_to_string(tag));
        match allow_v2 {
            true => {
                refused(&reply, 403, "SignatureDoesNotMatch");
                assert_eq!(good.status, 204, "{}", good.text());
            }
            false => {
                refused(&reply, 400, "InvalidRequest");
                refused(&good, 400, "InvalidRequest");
            }
        }
    }
}

/// The bucket's policy has these statements, and nothing public is blocked.
fn set_policy(bed: &Bed, statements: &[(&str, &str, &str)]) {
    let statements: Vec<_> = statements
        .iter()
        .map(|(principal, action, key)| {
            format!(
                r#"{{"Effect":"Allow","Principal":{principal},"Action":{action},
                "Resource":"arn:aws:s3:::{BUCKET}/{key}"}}"#
            )
        })
        .collect();
    let statements = statements.join(",");
    let text = format!(r#"{{"Version":"2012-10-17","Statement":[{statements}]}}"#);
    bed.model.set(BUCKET, Setting::PublicAccess(PublicAccess::all(false)));
    bed.model.set(BUCKET, Setting::Policy(Some(text)));
}

#[test]
fn a_form_without_a_policy_needs_a_bucket_that_all_may_write() {
    let bed = Bed::with_bucket();
    refused(&form("k").plain().send(&bed), 403, "AccessDenied");
    set_policy(&bed, &[(r#""*""#, r#""s3:PutObject""#, "in/*")]);
    assert_eq!(form("in/k").plain().send(&bed).status, 204);
    assert_eq!(bed.model.object("in/k").expect("an object").1, b"content");
    for key in ["k", "In/k", "${filename}"] {
        refused(&form(key).plain().send(&bed), 403, "AccessDenied");
    }
    let named = form("${filename}").plain().file("in", b"x").send(&bed);
    refused(&named, 403, "AccessDenied");
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>";
    const ACL: &str = "bucket-owner-full-control";
    for (name, value) in [("tagging", tags), ("acl", ACL), ("x-amz-tagging", "a=1")] {
        refused(&form("in/k").plain().field(name, value).send(&bed), 403, "AccessDenied");
    }
    let all = r#"["s3:PutObject","s3:PutObjectAcl","s3:PutObjectTagging"]"#;
    set_policy(&bed, &[(r#""*""#, all, "*")]);
    for (name, value) in [("tagging", tags), ("acl", ACL), ("x-amz-tagging", "a=1")] {
        assert_eq!(form("in/k").plain().field(name, value).send(&bed).status, 204, "{name}");
    }
    assert_eq!(bed.model.objects(), 1);
}

#[test]
fn rights_are_those_on_the_forms_key() {
    let bed = Bed::with_bucket();
    refused(&form("in/k").by(OTHER).send(&bed), 403, "AccessDenied");
    let other = r#"{"AWS":"arn:aws:iam:::user/other"}"#;
    set_policy(&bed, &[(other, r#""s3:PutObject""#, "in/*")]);
    assert_eq!(form("in/k").by(OTHER).send(&bed).status, 204);
    refused(&form("k").by(OTHER).send(&bed), 403, "AccessDenied");
    refused(&form("in/k").plain().send(&bed), 403, "AccessDenied");
    // A key that is narrowed by a policy of its own.
    bed.model.change_key(ADMIN.0, |key| {
        let statement =
            r#"{"Effect":"Allow","Action":"s3:PutObject","Resource":"arn:aws:s3:::bucket/a/*"}"#;
        key.policy = Some(format!(r#"{{"Version":"2012-10-17","Statement":[{statement}]}}"#));
    });
    assert_eq!(form("a/k").send(&bed).status, 204);
    refused(&form("b/k").send(&bed), 403, "AccessDenied");
    assert_eq!(bed.model.objects(), 2);
}

#[test]
fn policies_know_a_form_by_the_type_of_its_signature() {
    let bed = Bed::with_bucket();
    let statement = r#"{"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::bucket/*",
        "Condition":{"StringNotEquals":{"s3:authType":"POST"}}}"#;
    let text = format!(r#"{{"Version":"2012-10-17","Statement":[{statement}]}}"#);
    bed.model.set(BUCKET, Setting::Policy(Some(text)));
    assert_eq!(form("k").send(&bed).status, 204);
    refused(&bed.put("k", b"x"), 403, "AccessDenied");
}

#[test]
fn a_form_that_is_none_is_refused() {
    let bed = Bed::with_bucket();
    let mut none = form("k");
    none.file = None;
    refused(&none.send(&bed), 400, "InvalidArgument");
    let mut unnamed = form("k");
    unnamed.fields.clear();
    refused(&unnamed.send(&bed), 400, "InvalidArgument");
    refused(&form("").send(&bed), 400, "InvalidArgument");
    refused(&form("k").field("KEY", "other").send(&bed), 400, "InvalidArgument");
    refused(&form(&"k".repeat(1025)).send(&bed), 400, "KeyTooLongError");
    let large = form("k").field("x-amz-meta-a", &"x".repeat(20 << 10));
    refused(&large.send(&bed), 400, "MaxPostPreDataLengthExceeded");
    refused(&ask(&bed, b"").send_plain(), 400, "MalformedPOSTRequest");
    refused(&ask(&bed, b"key=k").send_plain(), 400, "MalformedPOSTRequest");
    let unbound = bed.ask("POST", "/bucket").unsigned("content-type", "multipart/form-data");
    refused(&unbound.body(&form("k").bytes()).send_plain(), 400, "MalformedPOSTRequest");
    for path in ["/", "/bucket/k"] {
        let kind = format!("multipart/form-data; boundary={BOUNDARY}");
        let ask = bed.ask("POST", path).unsigned("content-type", &kind).body(&form("k").bytes());
        refused(&ask.send_plain(), 405, "MethodNotAllowed");
    }
    refused(&form("k").ask(&bed).send(), 400, "InvalidArgument");
    refused(&form("k").ask(&bed).query("uploads", "").send_plain(), 501, "NotImplemented");
    let absent = bed.ask("POST", "/absent");
    let absent =
        absent.unsigned("content-type", &format!("multipart/form-data; boundary={BOUNDARY}"));
    refused(&absent.body(&form("k").plain().bytes()).send_plain(), 404, "NoSuchBucket");
    let huge = form("k").ask(&bed).unsigned("content-length", &(6u64 << 30).to_string());
    let mut stream = bed.connect();
    stream.write_all(&huge.plain_bytes()).expect("sent");
    refused(&read_reply(&mut stream, false).expect("an answer"), 400, "EntityTooLarge");
    assert_eq!(bed.model.objects(), 0);
}

#[test]
fn fields_behind_the_file_mean_nothing() {
    let bed = Bed::with_bucket();
    let mut form = form("k");
    form.behind = part("key", "other") + &part("acl", "public-read") + &part("file", "x");
    assert_eq!(form.send(&bed).status, 204);
    assert_eq!(bed.model.object("k").expect("an object").1, b"content");
    assert_eq!(bed.model.objects(), 1);
    form.behind = part("x", &"x".repeat(20 << 10));
    refused(&form.send(&bed), 400, "MalformedPOSTRequest");
}

#[test]
fn a_large_file_comes_through_as_it_is() {
    let bed = Bed::with_bucket();
    let line = format!("\r\r\n\r\n-\r\n--\r\n--{}\r\n", &BOUNDARY[..8]);
    let content = line.repeat((3 << 20) / line.len());
    assert_eq!(form("k").file("f", content.as_bytes()).send(&bed).status, 204);
    assert_eq!(bed.model.object("k").expect("an object").1, content.as_bytes());
    let tag = bed.object("HEAD", "k").send().header("etag").map(str::to_owned);
    assert_eq!(bed.put("put", content.as_bytes()).header("etag"), tag.as_deref());
    assert_eq!(form("k").file("", b"").send(&bed).status, 204);
    assert_eq!(bed.model.object("k").expect("an object").1, b"");
}

#[test]
fn a_form_that_is_cut_stores_nothing() {
    let bed = Bed::with_bucket();
    let whole = form("k").ask(&bed).plain_bytes();
    let head = whole.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
    for end in [head, head + 100, whole.len() - 40, whole.len() - 1] {
        let mut stream = bed.connect();
        stream.write_all(&whole[..end]).expect("sent");
        stream.shutdown(Shutdown::Write).expect("shut");
        if let Some(reply) = read_reply(&mut stream, false) {
            refused(&reply, 400, "IncompleteBody");
        }
    }
    // The same, but the body has the length that its head says.
    let whole = form("k").bytes();
    for less in [3, 5, 20, 25] {
        let reply = ask(&bed, &whole[..whole.len() - less]).send_plain();
        refused(&reply, 400, "MalformedPOSTRequest");
    }
    assert_eq!(bed.model.objects(), 0);
}

#[test]
fn a_form_that_stalls_is_refused_in_its_time() {
    let stall = Duration::from_millis(200);
    let times = Times { stall, ..Times::default() };
    let bed = Bed::with(GatewayConfig { times, ..GatewayConfig::default() });
    assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
    let whole = form("k").ask(&bed).plain_bytes();
    for less in [10, whole.len() - 300] {
        let mut stream = bed.connect();
        stream.write_all(&whole[..whole.len() - less]).expect("sent");
        let reply = read_reply(&mut stream, false).expect("an answer");
        refused(&reply, 400, "RequestTimeout");
    }
    assert_eq!(bed.model.objects(), 0);
}

#[test]
fn a_form_claims_memory_when_it_may_be_put() {
    let times = Times { claim: Duration::from_millis(300), ..Times::default() };
    let config = GatewayConfig { memory_bytes: 1 << 20, times, ..GatewayConfig::default() };
    let bed = Bed::with(config);
    assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
    let large = form("slow").file("f", &vec![0; 2 << 20]);
    let (denied, slow) = (large.clone().plain(), large.ask(&bed).plain_bytes());
    // One that is not allowed holds none, though its file has not come.
    let mut strange = bed.connect();
    let bytes = denied.ask(&bed).plain_bytes();
    strange.write_all(&bytes[..bytes.len() - (1 << 20)]).expect("sent");
    refused(&read_reply(&mut strange, false).expect("an answer"), 403, "AccessDenied");
    assert_eq!(form("k").send(&bed).status, 204);
    // One that is allowed holds a piece, until its file has come.
    let mut stream = bed.connect();
    let (first, rest) = slow.split_at(slow.len() - (1 << 20));
    stream.write_all(first).expect("sent");
    while bed.model.uploads_begun.load(Ordering::Relaxed) < 2 {
        std::thread::yield_now();
    }
    refused(&form("k").send(&bed), 503, "SlowDown");
    stream.write_all(rest).expect("sent");
    assert_eq!(read_reply(&mut stream, false).map(|reply| reply.status), Some(204));
    assert_eq!(form("k").send(&bed).status, 204);
}

#[test]
fn a_client_that_waits_for_leave_gets_it() {
    let bed = Bed::with_bucket();
    let bytes = form("k").ask(&bed).unsigned("expect", "100-continue").plain_bytes();
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
    let mut stream = bed.connect();
    stream.write_all(&bytes[..head]).expect("sent");
    stream.write_all(&bytes[head..]).expect("sent");
    assert_eq!(read_reply(&mut stream, false).expect("an answer").status, 204);
    let refusal = form("k").ask(&bed).query("x", "y").unsigned("expect", "100-continue");
    let reply = refusal.send_plain();
    assert_eq!((reply.status, reply.header("connection")), (501, Some("close")));
}

#[test]
fn a_form_from_another_site_gets_the_headers_of_the_rules() {
    let bed = Bed::with_bucket();
    let rule = "<CORSConfiguration><CORSRule><AllowedMethod>POST</AllowedMethod>\
                <AllowedOrigin>https://a</AllowedOrigin></CORSRule></CORSConfiguration>";
    let set = bed.ask("PUT", "/bucket").query("cors", "").body(rule.as_bytes()).send();
    assert_eq!(set.status, 200, "{}", set.text());
    for form in [form("k"), form("k").plain()] {
        let reply = form.ask(&bed).unsigned("origin", "https://a").send_plain();
        assert_eq!(reply.header("access-control-allow-origin"), Some("https://a"));
    }
}

#[test]
fn a_form_makes_a_version_in_a_bucket_with_versions() {
    let bed = Bed::with_bucket();
    let enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    assert_eq!(bed.ask("PUT", "/bucket").query("versioning", "").body(enabled).send().status, 200);
    let reply = form("k").send(&bed);
    let id = reply.header("x-amz-version-id").expect("a version");
    let got = bed.object("GET", "k").query("versionId", id).send();
    assert_eq!((got.status, &*got.body), (200, &b"content"[..]));
}

#[test]
fn any_bytes_are_answered_and_none_is_a_defect() {
    let bed = Bed::with_bucket();
    set_policy(&bed, &[(r#""*""#, r#""s3:*""#, "*")]);
    let piece = prop_oneof![
        Just(format!("--{BOUNDARY}").into_bytes()),
        Just(format!("--{BOUNDARY}--").into_bytes()),
        Just(b"\r\n".to_vec()),
        Just(b"\r\n\r\n".to_vec()),
        "(key|file|tagging|acl|policy|expires|x-amz-[a-z0-9-]{0,12}|[ -~]{0,9})".prop_map(|name| {
            format!("Content-Disposition: form-data; name=\"{name}\"; filename=\"a\"\r\n\r\n")
                .into_bytes()
        }),
        "(key|tagging|acl|policy|expires|x-amz-meta-[a-z]|x-amz-[a-z-]{0,12})"
            .prop_flat_map(|name| (Just(name), "[ -~]{0,12}|<Tagging>[<>/a-zA-Z]{0,20}|é"))
            .prop_map(|(name, value)| part(&name, &value).into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..20),
    ];
    let config = ProptestConfig { cases: 512, ..ProptestConfig::default() };
    proptest!(config, |(pieces in proptest::collection::vec(piece, 0..10), whole in any::<bool>())| {
        let mut body = pieces.concat();
        if whole {
            body.splice(..0, part("key", "k").into_bytes());
            let mut form = form("k").plain();
            form.fields.clear();
            body.extend_from_slice(&written(&[], &form));
        }
        let reply = ask(&bed, &body).send_plain();
        prop_assert!(reply.status < 500 || reply.status == 501, "{}", reply.text());
    });
}

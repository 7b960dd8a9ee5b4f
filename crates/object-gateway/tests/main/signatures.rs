//! Who asks: signatures that are right, and all that are not.

use std::io::Write;

use object_gateway::GatewayConfig;
use proptest::prelude::*;

use crate::client::{ADMIN, Ask, BUCKET, Bed, Reply, UNSIGNED, now, read_reply};

fn refused(reply: &Reply) -> (u16, String) {
    assert_eq!(reply.header("content-type"), Some("application/xml"), "{}", reply.text());
    assert!(!reply.field("Message").is_empty(), "{}", reply.text());
    reply.error()
}

#[test]
fn requests_without_a_valid_signature_are_refused() {
    let bed = Bed::with_bucket();
    bed.put("k", b"hello");
    let get = || bed.object("GET", "k");
    assert_eq!(get().send().status, 200);
    assert_eq!(get().region("mars-1").send().status, 200);
    let cases: [(&str, Reply, u16, &str); 8] = [
        ("anonymous", get().send_plain(), 403, "AccessDenied"),
        ("wrong secret", get().by((ADMIN.0, "x")).send(), 403, "SignatureDoesNotMatch"),
        ("unknown key", get().by(("NONE", ADMIN.1)).send(), 403, "InvalidAccessKeyId"),
        ("long key", get().by((&"K".repeat(200), "x")).send(), 403, "InvalidAccessKeyId"),
        ("slow clock", get().at(now() - 901).send(), 403, "RequestTimeTooSkewed"),
        ("fast clock", get().at(now() + 910).send(), 403, "RequestTimeTooSkewed"),
        (
            "unsigned header",
            get().unsigned("x-amz-checksum-mode", "ENABLED").send(),
            403,
            "AccessDenied",
        ),
        ("two hosts", get().unsigned("host", "other").send(), 400, "InvalidRequest"),
    ];
    for (name, reply, status, code) in cases {
        assert_eq!(refused(&reply), (status, code.into()), "{name}: {}", reply.text());
    }
}

/// Sends a signed request after a change of its text.
fn send_changed(bed: &Bed, ask: &Ask, from: &str, to: &str) -> Reply {
    let text = String::from_utf8(ask.bytes()).expect("text");
    assert!(text.contains(from), "{text}");
    let mut stream = bed.connect();
    stream.write_all(text.replacen(from, to, 1).as_bytes()).expect("sent");
    read_reply(&mut stream, false).expect("an answer")
}

#[test]
fn changed_or_malformed_heads_are_refused() {
    let bed = Bed::with_bucket();
    bed.put("k", b"hello");
    let ask =
        bed.object("GET", "k").query("response-content-type", "a").header("range", "bytes=0-1");
    assert_eq!(ask.send().status, 206);
    for (from, to, code) in [
        ("GET /bucket/k", "HEAD2 /bucket/k", "SignatureDoesNotMatch"),
        ("/bucket/k", "/bucket/kk", "SignatureDoesNotMatch"),
        ("content-type=a", "content-type=b", "SignatureDoesNotMatch"),
        ("bytes=0-1", "bytes=0-2", "SignatureDoesNotMatch"),
        ("Signature=", "Signature=0", "SignatureDoesNotMatch"),
        ("us-east-1", "us-east-2", "SignatureDoesNotMatch"),
        ("host;", "", "AccessDenied"),
        (";x-amz-date", "", "AccessDenied"),
        ("AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA257 ", "InvalidArgument"),
        ("AWS4-HMAC-SHA256 ", "Bearer ", "InvalidArgument"),
        ("Credential=", "Credentials=", "AuthorizationHeaderMalformed"),
        ("/s3/", "/sts/", "AuthorizationHeaderMalformed"),
        ("/aws4_request", "/aws5_request", "AuthorizationHeaderMalformed"),
        ("SignedHeaders=", "Signed=", "AuthorizationHeaderMalformed"),
        (", Signature=", "; Signature=", "AuthorizationHeaderMalformed"),
        (", Signature=", ", SignedHeaders=host, Signature=", "AuthorizationHeaderMalformed"),
        ("x-amz-date: 20", "x-amz-date: 30", "SignatureDoesNotMatch"),
        ("x-amz-date: 20", "x-amz-date: x", "InvalidRequest"),
        ("x-amz-content-sha256: e3b0", "x-amz-content-sha256: E3B0", "SignatureDoesNotMatch"),
        ("authorization: ", "authorization: AWS a:b\r\nauthorization: ", "InvalidArgument"),
    ] {
        let reply = send_changed(&bed, &ask, from, to);
        assert_eq!(refused(&reply).1, code, "{from} -> {to}: {}", reply.text());
    }
}

#[test]
fn signatures_of_version_2_are_refused_until_they_are_allowed() {
    let bed = Bed::with_bucket();
    let header = |bed: &Bed| bed.object("GET", "k").unsigned("authorization", "AWS AKADMIN:AAAA");
    let query = |bed: &Bed| {
        let ask = bed.object("GET", "k").query("AWSAccessKeyId", "AKADMIN");
        ask.query("Expires", &(now() + 60).to_string()).query("Signature", "AAAA")
    };
    assert_eq!(refused(&header(&bed).send_plain()), (400, "InvalidRequest".into()));
    assert_eq!(refused(&query(&bed).send_plain()), (400, "InvalidRequest".into()));
    let bed = Bed::with(GatewayConfig { allow_v2: true, ..GatewayConfig::default() });
    assert_eq!(refused(&header(&bed).send_plain()), (403, "AccessDenied".into()));
    let old = header(&bed).unsigned("date", "Tue, 14 Nov 2023 22:13:20 +0000").send_plain();
    assert_eq!(refused(&old), (403, "RequestTimeTooSkewed".into()));
    assert_eq!(refused(&query(&bed).send_plain()), (403, "SignatureDoesNotMatch".into()));
}

#[test]
fn presigned_urls_are_valid_for_their_time_and_headers() {
    let bed = Bed::with_bucket();
    bed.put("k", b"hello");
    let get = |expires: &str| bed.object("GET", "k").presigned(expires);
    assert_eq!(get("60").send_plain().body, b"hello");
    assert_eq!(get("604800").send_plain().body, b"hello");
    let malformed = (400, "AuthorizationQueryParametersError".to_owned());
    for expires in ["604801", "0", "-1", "x", "", "99999999999999999999", "+60"] {
        assert_eq!(refused(&get(expires).send_plain()), malformed, "{expires}");
    }
    let expired = bed.object("GET", "k").at(now() - 100).presigned("60").send_plain();
    assert_eq!(refused(&expired), (403, "AccessDenied".into()));
    let early = bed.object("GET", "k").at(now() + 2000).presigned("60").send_plain();
    assert_eq!(refused(&early), (403, "RequestTimeTooSkewed".into()));
    let unsigned = get("60").unsigned("x-amz-checksum-mode", "ENABLED").send_plain();
    assert_eq!(refused(&unsigned), (403, "AccessDenied".into()));
    let changed = get("60").query("response-content-type", "a").send_plain();
    assert_eq!(refused(&changed), (403, "SignatureDoesNotMatch".into()));
    let both = get("60").unsigned("authorization", "AWS4-HMAC-SHA256 x").send_plain();
    assert_eq!(refused(&both), (400, "InvalidArgument".into()));
    let half = bed.object("GET", "k").query("X-Amz-Signature", "00").send_plain();
    assert_eq!(refused(&half), malformed);
    let other = bed.object("GET", "k").by(("NONE", "x")).presigned("60").send_plain();
    assert_eq!(refused(&other), (403, "InvalidAccessKeyId".into()));
}

#[test]
fn headers_in_a_presigned_url_count_as_headers() {
    let bed = Bed::with_bucket();
    let put = |name: &str, value: &str| {
        bed.object("PUT", "k").query(name, value).presigned("60").body(b"hello").send_plain()
    };
    assert_eq!(refused(&put("x-amz-acl", "public-read")).1, "AccessControlListNotSupported");
    assert_eq!(refused(&put("x-amz-checksum-crc32", "AAAAAA==")).1, "BadDigest");
    let redirects = put("X-Amz-Website-Redirect-Location", "/x");
    assert_eq!(refused(&redirects).1, "NotImplemented");
    assert_eq!(bed.model.objects(), 0);
    assert_eq!(put("X-Amz-Tagging", "a=b").status, 200);
    assert_eq!(bed.object("HEAD", "k").send().header("x-amz-tagging-count"), Some("1"));
    assert_eq!(put("x-amz-meta-a", "b").status, 200);
    assert_eq!(bed.object("HEAD", "k").send().header("x-amz-meta-a"), Some("b"));
    let twice = bed
        .object("PUT", "k")
        .header("x-amz-meta-a", "c")
        .query("x-amz-meta-a", "b")
        .presigned("60")
        .send_plain();
    assert_eq!(refused(&twice), (400, "InvalidArgument".into()));
}

#[test]
fn a_key_stops_when_it_is_switched_off() {
    let bed = Bed::with_bucket();
    for _ in 0..5 {
        assert_eq!(bed.ask("GET", "/").send().status, 200);
    }
    bed.model.enable(ADMIN.0, false);
    assert_eq!(refused(&bed.ask("GET", "/").send()), (403, "InvalidAccessKeyId".into()));
}

#[test]
fn other_methods_are_refused() {
    let bed = Bed::with_bucket();
    for method in ["PATCH", "TRACE", "FOO"] {
        assert_eq!(bed.object(method, "k").send().error().0, 501, "{method}");
    }
    assert_eq!(refused(&bed.ask("DELETE", "/").send()), (501, "NotImplemented".into()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_authorization_is_refused(text in "(AWS4-HMAC-SHA256 |AWS |)[ -~]{0,60}") {
        let bed = Bed::with_bucket();
        let reply = bed.object("GET", "k").header("x-amz-content-sha256", UNSIGNED)
            .unsigned("authorization", &text).send_plain();
        prop_assert!((400..=403).contains(&reply.status), "{}: {}", text, reply.text());
    }

    #[test]
    fn any_query_of_a_stranger_is_refused(text in "[A-Za-z0-9=&%+-]{0,60}") {
        let bed = Bed::with_bucket();
        let head = format!("GET /{BUCKET}/k?{text} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let mut stream = bed.connect();
        stream.write_all(head.as_bytes()).expect("sent");
        let reply = read_reply(&mut stream, false).expect("an answer");
        prop_assert!(reply.status >= 400, "{}", reply.text());
        prop_assert!(reply.status != 500, "{}", reply.text());
    }
}

use http::Request;
use proptest::prelude::*;

use super::*;

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn parts(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request").into_parts().0
}

const NOW: u64 = 1_700_000_000;
const SIGNED: (&str, &str) = (
    "authorization",
    "AWS4-HMAC-SHA256 Credential=a/20231114/r/s3/aws4_request, \
     SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=s",
);

fn checked(method: &str, uri: &str, headers: &[(&str, &str)]) -> Result<BodyFacts, &'static str> {
    check(&mut parts(method, uri, headers), NOW, false).map_err(|refusal| refusal.code)
}

#[test]
fn metadata_that_would_end_the_process_is_refused() {
    let meta = |value| checked("PUT", "/b/k", &[("x-amz-meta-a", value)]).map(drop);
    for value in ["=?=", " =?= ", "=?utf-8?q?a?= =?=", "=?= =?=", "=?= b ?="] {
        assert_eq!(meta(value), Err("InvalidArgument"), "{value}");
    }
    for value in ["", "?=", "=?", "a =?=", "=?==?=", "=?utf-8?q?a?=", "=??="] {
        assert_eq!(meta(value), Ok(()), "{value}");
    }
}

#[test]
fn what_version_2_does_not_sign_is_refused_beside_its_signature() {
    let uri = |query: &str| format!("/b/k?AWSAccessKeyId=a&Expires=1&Signature=s&{query}");
    let put = |query: &str| {
        let checked = check(&mut parts("PUT", &uri(query), &[]), NOW, true);
        checked.map(drop).map_err(|refusal| refusal.code)
    };
    for query in ["", "acl", "tagging", "partNumber=1&uploadId=2", "versionId=1", "x-id=PutObject"]
    {
        assert_eq!(put(query), Ok(()), "{query}");
    }
    for query in ["retention", "legal-hold", "encryption", "publicAccessBlock", "attributes"] {
        assert_eq!(put(query), Err("InvalidRequest"), "{query}");
    }
    for query in ["acl&acl", "tagging&a=b&tagging=", "partNumber=1&uploadId=2&uploadId=3"] {
        assert_eq!(put(query), Err("InvalidArgument"), "{query}");
    }
}

#[test]
fn what_a_head_says_of_the_body_is_read() {
    let of = |framing, sent_len, is_signed_by_v4| BodyFacts { framing, sent_len, is_signed_by_v4 };
    let plain = |sent_len| of(Framing::Plain, sent_len, false);
    let chunked = |signed, len, sent_len| of(Framing::Chunked { signed, len }, sent_len, true);
    let signed = SIGNED.1.replace("x-amz-date", "x-amz-date;x-amz-decoded-content-length");
    let cases: &[(Pairs<'_>, Result<BodyFacts, &str>)] = &[
        (&[], Ok(plain(Some(0)))),
        (&[("content-length", "5")], Ok(plain(Some(5)))),
        (&[("transfer-encoding", "chunked")], Err("MissingContentLength")),
        (&[("x-amz-content-sha256", "STREAMING-X")], Err("MissingContentLength")),
        (
            &[
                ("host", "h"),
                ("authorization", &signed),
                ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
                ("x-amz-decoded-content-length", "5"),
                ("content-length", "90"),
            ],
            Ok(chunked(true, 5, Some(90))),
        ),
        (
            &[
                ("host", "h"),
                ("authorization", &signed),
                ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
                ("x-amz-decoded-content-length", "5"),
                ("transfer-encoding", "chunked"),
            ],
            Ok(chunked(false, 5, None)),
        ),
        (&[("x-amz-decoded-content-length", "-5")], Err("InvalidArgument")),
        (&[("x-amz-decoded-content-length", "")], Err("InvalidArgument")),
        (&[("content-encoding", "gzip, AWS-chunked")], Err("InvalidRequest")),
    ];
    for (headers, outcome) in cases {
        assert_eq!(checked("PUT", "/b/k", headers), *outcome, "{headers:?}");
    }
}

#[test]
fn signature_of_version_4_is_known_from_the_head() {
    let is_signed = |uri: &str, headers: &[(&str, &str)]| {
        let facts = check(&mut parts("PUT", uri, headers), NOW, true);
        facts.map(|facts| facts.is_signed_by_v4).map_err(|refusal| refusal.code)
    };
    let (host, date) = (("host", "h"), ("x-amz-date", "Tue, 14 Nov 2023 22:13:20 GMT"));
    let presigned = "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256\
                     &X-Amz-Credential=a/20231114/r/s3/aws4_request&X-Amz-Date=d&X-Amz-Expires=5\
                     &X-Amz-SignedHeaders=host&X-Amz-Signature=s";
    assert_eq!(is_signed("/b/k", &[host]), Ok(false));
    assert_eq!(is_signed("/b/k", &[host, SIGNED]), Ok(true));
    assert_eq!(is_signed(presigned, &[host]), Ok(true));
    assert_eq!(is_signed("/b/k", &[host, ("authorization", "AWS a:s"), date]), Ok(false));
    assert_eq!(is_signed("/b/k?AWSAccessKeyId=a&Expires=1&Signature=s", &[host]), Ok(false));
    assert_eq!(is_signed(presigned, &[host, SIGNED]), Err("InvalidArgument"));
}

#[test]
fn chunks_of_a_request_without_a_signature_are_unsigned() {
    const LEN: (&str, &str) = ("x-amz-decoded-content-length", "5");
    const TRAILER: (&str, &str) = ("x-amz-trailer", "x-amz-checksum-crc32");
    const UNSIGNED: (&str, &str) = ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    const ENCODING: (&str, &str) = ("content-encoding", "aws-chunked");
    let cases: &[(Pairs<'_>, Result<Option<u64>, &str>)] = &[
        (&[UNSIGNED, LEN, TRAILER], Ok(Some(5))),
        (&[ENCODING, LEN, TRAILER], Ok(Some(5))),
        (&[ENCODING, LEN], Ok(Some(5))),
        (&[UNSIGNED, LEN], Err("InvalidRequest")),
        (&[UNSIGNED, TRAILER], Err("MissingContentLength")),
        (&[("x-amz-content-sha256", "UNSIGNED-PAYLOAD"), ENCODING, LEN], Err("InvalidRequest")),
        (
            &[("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), LEN],
            Err("InvalidRequest"),
        ),
        (&[("x-amz-content-sha256", "STREAMING-UNSIGNED-X"), LEN, TRAILER], Err("InvalidRequest")),
    ];
    for (headers, outcome) in cases {
        let headers = [headers, &[("content-length", "90")][..]].concat();
        let len = checked("PUT", "/b/k", &headers).map(|facts| facts.content_len());
        assert_eq!(len, *outcome, "{headers:?}");
    }
    let form = [ENCODING, LEN, ("content-type", "multipart/form-data; boundary=b")];
    assert_eq!(checked("POST", "/b", &form), Err("InvalidRequest"));
}

#[test]
fn each_amz_header_must_be_signed() {
    let host = ("host", "h");
    let ok = checked("GET", "/", &[host, SIGNED, ("x-amz-date", "d"), ("other", "x")]);
    assert!(ok.is_ok());
    assert_eq!(checked("GET", "/", &[host, SIGNED, ("x-amz-meta-a", "d")]), Err("AccessDenied"));
    let no_host = SIGNED.1.replace("host;", "");
    assert_eq!(checked("GET", "/", &[host, ("authorization", &no_host)]), Err("AccessDenied"));
    let capital = SIGNED.1.replace("host;", "Host;");
    assert_eq!(checked("GET", "/", &[host, ("authorization", &capital)]), Err("AccessDenied"));
}

#[test]
fn parameters_of_a_presigned_url_become_headers() {
    let url = "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a/20231114/r/s3/aws4_request\
               &X-Amz-Date=d&X-Amz-Expires=5&X-Amz-SignedHeaders=host&X-Amz-Signature=s\
               &X-Amz-Meta-A=b%20c&x-amz-security-token=t";
    let mut head = parts("PUT", url, &[("host", "h")]);
    assert!(check(&mut head, NOW, false).is_ok());
    let amz: Vec<_> = head.headers.keys().filter(|name| is_amz(name)).collect();
    assert_eq!(amz, ["x-amz-meta-a"]);
    assert_eq!(head.headers["x-amz-meta-a"], "b c");
    assert_eq!(checked("PUT", &format!("{url}&x-amz-acl=%0A"), &[]), Err("InvalidArgument"));
    assert_eq!(checked("PUT", &format!("{url}&x-amz-%20=a"), &[]), Err("InvalidArgument"));
    let long = url.replace("Expires=5", "Expires=604801");
    assert_eq!(checked("PUT", &long, &[]), Err("AuthorizationQueryParametersError"));
}

#[test]
fn subresources_that_are_not_known_are_refused() {
    assert!(checked("GET", "/b?versions&prefix=&delimiter=&response-expires=", &[]).is_ok());
    assert!(checked("GET", "/b/k?unknown=x", &[]).is_ok());
    assert_eq!(checked("DELETE", "/b?metadataConfiguration", &[]), Err("NotImplemented"));
    assert_eq!(checked("PUT", "/b/k?new=", &[]), Err("NotImplemented"));
    assert_eq!(checked("PUT", "/b/k?uploadId=1", &[]), Err("InvalidArgument"));
}

proptest! {
    #[test]
    fn any_head_is_decided(
        query in "[ -~&&[^#<>\"]]{0,60}",
        authorization in "(AWS4-HMAC-SHA256 |AWS |)[ -~]{0,80}",
        names in proptest::collection::vec("(x-amz-[a-z]{1,8}|host|content-[a-z]{1,8})", 0..4),
    ) {
        let uri = format!("/b/k?{query}");
        prop_assume!(uri.parse::<http::Uri>().is_ok());
        let named = names.iter().map(|name| (name.as_str(), "v"));
        let mut headers: Vec<(&str, &str)> = named.collect();
        headers.push(("authorization", &authorization));
        let _ = checked("PUT", &uri, &headers);
        let _ = check(&mut parts("GET", &uri, &headers), NOW, true);
    }
}

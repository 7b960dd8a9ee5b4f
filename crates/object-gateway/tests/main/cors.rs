//! Rules for scripts of other sites: what is stored of them, and what browsers are answered by them.

use crate::client::{Bed, Reply};
use crate::settings::{delete, get, put};

const NOT_ALLOWED: &str = "CORSResponse: This CORS request is not allowed.";

fn put_rules(bed: &Bed, rules: &str) -> Reply {
    put(bed, "cors", &format!("<CORSConfiguration>{rules}</CORSConfiguration>"))
}

/// A rule for these methods and sites, and what else it has.
fn rule(methods: &[&str], origins: &[&str], more: &str) -> String {
    let method = |method: &&str| format!("<AllowedMethod>{method}</AllowedMethod>");
    let origin = |origin: &&str| format!("<AllowedOrigin>{origin}</AllowedOrigin>");
    let methods: String = methods.iter().map(method).collect();
    let origins: String = origins.iter().map(origin).collect();
    format!("<CORSRule>{methods}{origins}{more}</CORSRule>")
}

fn bed_with(rules: &str) -> Bed {
    let bed = Bed::with_bucket();
    let set = put_rules(&bed, rules);
    assert_eq!(set.status, 200, "{}", set.text());
    bed
}

/// A browser's question before a request.
fn preflight(bed: &Bed, path: &str, headers: &[(&str, &str)]) -> Reply {
    let ask = bed.ask("OPTIONS", path);
    headers.iter().fold(ask, |ask, (name, value)| ask.unsigned(name, value)).send_plain()
}

fn allowed(reply: &Reply) -> (u16, Option<&str>, Option<&str>) {
    let (origin, methods) = ("access-control-allow-origin", "access-control-allow-methods");
    (reply.status, reply.header(origin), reply.header(methods))
}

#[test]
fn rules_are_put_read_and_removed() {
    let bed = Bed::with_bucket();
    let more = "<AllowedHeader>X-Amz-*</AllowedHeader><ExposeHeader>ETag</ExposeHeader>\
                <ID>first</ID><MaxAgeSeconds>3000</MaxAgeSeconds>";
    let rules = [
        rule(&["GET", "PUT"], &["https://*.example", "http://b:80"], more),
        rule(&["HEAD"], &["*"], ""),
    ];
    assert_eq!(put_rules(&bed, &rules.concat()).status, 200);
    let found = get(&bed, "cors");
    for (name, texts) in [
        ("AllowedMethod", vec!["GET", "PUT", "HEAD"]),
        ("AllowedOrigin", vec!["https://*.example", "http://b:80", "*"]),
        ("AllowedHeader", vec!["X-Amz-*"]),
        ("ExposeHeader", vec!["ETag"]),
        ("ID", vec!["first"]),
        ("MaxAgeSeconds", vec!["3000"]),
    ] {
        assert_eq!(found.fields(name), texts, "{name}");
    }
    assert_eq!(delete(&bed, "cors").status, 204);
    assert_eq!(get(&bed, "cors").error(), (404, "NoSuchCORSConfiguration".into()));
}

#[test]
fn flawed_rules_are_refused_with_their_flaw() {
    let bed = Bed::with_bucket();
    let get_all = |more: &str| rule(&["GET"], &["*"], more);
    for (rules, flaw) in [
        (rule(&["OPTIONS"], &["*"], ""), "Unsupported method is OPTIONS"),
        (rule(&["get"], &["*"], ""), "Unsupported method is get"),
        (rule(&["GET"], &["*://*"], ""), "AllowedOrigin \"*://*\" can not have more than one"),
        (get_all("<AllowedHeader>*a*</AllowedHeader>"), "AllowedHeader \"*a*\" can not have"),
        (get_all("<ExposeHeader>x-*</ExposeHeader>"), "ExposeHeader \"x-*\" contains wildcard"),
        (get_all("<ExposeHeader>a b</ExposeHeader>"), "no name of a header"),
        (get_all("<MaxAgeSeconds>-1</MaxAgeSeconds>"), "MaxAgeSeconds"),
        (get_all(&format!("<ID>{}</ID>", "i".repeat(256))), "ID"),
        (get_all("").repeat(101), "100 rules"),
    ] {
        let reply = put_rules(&bed, &rules);
        assert_eq!(reply.error(), (400, "InvalidRequest".into()), "{rules}");
        assert!(reply.field("Message").contains(flaw), "{}", reply.text());
    }
    for rules in ["", "<CORSRule/>", "<CORSRule><AllowedMethod>GET</AllowedMethod></CORSRule>"] {
        assert_eq!(put_rules(&bed, rules).error(), (400, "MalformedXML".into()), "{rules}");
    }
    let large = get_all(&format!("<ID>{}</ID>", " ".repeat(64 << 10)));
    assert_eq!(put_rules(&bed, &large).error(), (400, "MaxMessageLengthExceeded".into()));
    assert_eq!(get(&bed, "cors").error(), (404, "NoSuchCORSConfiguration".into()));
    assert_eq!(put_rules(&bed, &get_all("").repeat(100)).status, 200);
}

#[test]
fn a_preflight_is_answered_by_the_rule_that_allows_it() {
    let more = "<AllowedHeader>*</AllowedHeader><ExposeHeader>ETag</ExposeHeader>\
                <ExposeHeader>x-amz-request-id</ExposeHeader><MaxAgeSeconds>3000</MaxAgeSeconds>";
    let bed = bed_with(&rule(&["GET", "PUT"], &["https://a.example"], more));
    let asked = [
        ("origin", "https://a.example"),
        ("access-control-request-method", "PUT"),
        ("access-control-request-headers", "X-Amz-Date,content-type"),
    ];
    for path in ["/bucket", "/bucket/any/key"] {
        let reply = preflight(&bed, path, &asked);
        assert_eq!((reply.status, reply.body.len()), (200, 0), "{}", reply.text());
        for (name, value) in [
            ("access-control-allow-origin", "https://a.example"),
            ("access-control-allow-credentials", "true"),
            ("access-control-allow-methods", "GET, PUT"),
            ("access-control-allow-headers", "x-amz-date, content-type"),
            ("access-control-expose-headers", "ETag, x-amz-request-id"),
            ("access-control-max-age", "3000"),
            ("vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method"),
        ] {
            assert_eq!(reply.header(name), Some(value), "{name}");
        }
    }
    let reply = preflight(&bed, "/bucket", &asked[..2]);
    assert_eq!(reply.header("access-control-allow-headers"), None);
    // It is the same when the bucket is in the host's name, and in a URL that was signed.
    let port = bed.gateway.addr().port();
    let ask = bed.ask("OPTIONS", "/key").host(&format!("bucket.localhost:{port}"));
    let reply = ask.presigned("60").unsigned(asked[0].0, asked[0].1).unsigned(asked[1].0, "GET");
    assert_eq!(reply.send_plain().status, 200);
}

#[test]
fn a_preflight_that_no_rule_allows_is_refused() {
    let header = "<AllowedHeader>X-Amz-*</AllowedHeader>";
    let bed = bed_with(&rule(&["GET"], &["https://a"], header));
    bed.ask("PUT", "/plain").send();
    let (origin, method) = (("origin", "https://a"), ("access-control-request-method", "GET"));
    let headers = |value| ("access-control-request-headers", value);
    for (path, asked, error, message) in [
        ("/bucket", vec![method], (400, "BadRequest"), "Origin request header needed"),
        ("/none", vec![method], (400, "BadRequest"), "Origin request header needed"),
        ("/bucket", vec![origin], (400, "BadRequest"), "Method: null"),
        ("/bucket", vec![origin, (method.0, "LIST")], (400, "BadRequest"), "Method: LIST"),
        ("/bucket", vec![origin, (method.0, "PUT")], (403, "AccessForbidden"), NOT_ALLOWED),
        ("/bucket", vec![("origin", "https://b"), method], (403, "AccessForbidden"), NOT_ALLOWED),
        ("/bucket", vec![origin, method, headers("range")], (403, "AccessForbidden"), NOT_ALLOWED),
        ("/plain", vec![origin, method], (403, "AccessForbidden"), "CORS is not enabled"),
        ("/none", vec![origin, method], (403, "AccessForbidden"), "Bucket not found"),
        ("/", vec![origin, method], (403, "AccessForbidden"), "Bucket not found"),
        ("/A_b", vec![origin, method], (403, "AccessForbidden"), "Bucket not found"),
    ] {
        let reply = preflight(&bed, path, &asked);
        assert_eq!(reply.error(), (error.0, error.1.into()), "{path} {asked:?}");
        assert!(reply.field("Message").contains(message), "{}", reply.text());
        assert_eq!(reply.header("access-control-allow-origin"), None);
    }
    let allowed = preflight(&bed, "/bucket", &[origin, method, headers("x-AMZ-date, X-Amz-Acl")]);
    assert_eq!(allowed.status, 200);
}

#[test]
fn a_preflight_is_put_off_while_the_bucket_cannot_be_looked_up() {
    let bed = bed_with(&rule(&["GET"], &["*"], ""));
    bed.model.set_fault(Some(object_proto::Error::Busy { cause: "no manager".into() }));
    let asked = [("origin", "https://a"), ("access-control-request-method", "GET")];
    assert_eq!(preflight(&bed, "/bucket", &asked).error(), (503, "SlowDown".into()));
}

#[test]
fn a_star_in_an_origin_stands_for_any_text() {
    let rules = [
        rule(&["GET"], &["*suffix"], ""),
        rule(&["GET"], &["start*end"], ""),
        rule(&["GET"], &["prefix*"], ""),
        rule(&["PUT"], &["*.put"], ""),
    ];
    let bed = bed_with(&rules.concat());
    for (origin, is_allowed) in [
        ("foo.suffix", true),
        ("foo.bar", false),
        ("foo.suffix.get", false),
        ("startend", true),
        ("start12end", true),
        ("0start12end", false),
        ("prefix", true),
        ("bla.prefix", false),
        ("foo.put", false),
    ] {
        let expected = is_allowed.then_some(origin);
        let methods = is_allowed.then_some("GET");
        let reply = bed.ask("GET", "/bucket").header("origin", origin).send();
        assert_eq!(allowed(&reply), (200, expected, methods), "{origin}");
        assert_eq!(reply.header("vary").is_some(), is_allowed, "{origin}");
        let asked = [("origin", origin), ("access-control-request-method", "GET")];
        let status = if is_allowed { 200 } else { 403 };
        let reply = preflight(&bed, "/bucket", &asked);
        assert_eq!(allowed(&reply), (status, expected, methods), "{origin}");
    }
}

#[test]
fn a_rule_for_all_sites_names_none_and_allows_no_credentials() {
    let bed = bed_with(&rule(&["GET", "HEAD"], &["*"], ""));
    bed.put("k", b"content");
    for method in ["GET", "HEAD"] {
        let reply = bed.object(method, "k").header("origin", "https://a").send();
        assert_eq!(allowed(&reply), (200, Some("*"), Some("GET, HEAD")), "{method}");
        assert_eq!(reply.header("access-control-allow-credentials"), None);
        assert!(reply.whole);
    }
    let reply = bed.object("GET", "k").send();
    assert_eq!((allowed(&reply), reply.header("vary")), ((200, None, None), None));
}

#[test]
fn errors_have_the_headers_too() {
    let rules = [rule(&["GET"], &["https://a"], ""), rule(&["PUT"], &["https://b"], "")];
    let bed = bed_with(&rules.concat());
    let ask = |method: &str, origin: &str| bed.object(method, "none").unsigned("origin", origin);
    let reply = ask("GET", "https://a").send();
    assert_eq!(allowed(&reply), (404, Some("https://a"), Some("GET")));
    let reply = ask("GET", "https://a").send_plain();
    assert_eq!(allowed(&reply), (403, Some("https://a"), Some("GET")));
    let reply = ask("PUT", "https://a").send_plain();
    assert_eq!(allowed(&reply), (403, None, None));
    let reply = ask("PUT", "https://b").send_plain();
    assert_eq!(allowed(&reply), (403, Some("https://b"), Some("PUT")));
    // The method that a browser asks for counts before the request's own.
    let reply = ask("PUT", "https://a").unsigned("access-control-request-method", "GET");
    assert_eq!(allowed(&reply.send_plain()), (403, Some("https://a"), Some("GET")));
    // A head that is refused before any signature.
    let reply = ask("GET", "https://a").query("unknown", "").send();
    assert_eq!(allowed(&reply), (501, Some("https://a"), Some("GET")));
    let reply = bed.ask("GET", "/absent").header("origin", "https://a").send();
    assert_eq!(allowed(&reply), (404, None, None));
}

#[test]
fn pages_of_health_and_the_list_of_buckets_are_no_buckets() {
    let bed = bed_with(&rule(&["GET"], &["*"], ""));
    for path in ["/", "/_craton/live"] {
        let reply = bed.ask("GET", path).unsigned("origin", "https://a").send();
        assert_eq!(allowed(&reply), (200, None, None), "{path}");
    }
}

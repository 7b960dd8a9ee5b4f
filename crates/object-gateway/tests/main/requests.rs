//! Each request that ends is counted, and has a line in the access log.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use metrics::Registry;
use object_gateway::{AccessLog, GatewayConfig};
use serde_json::Value;

use crate::client::{ADMIN, BUCKET, Bed, OTHER};
use crate::forms::form;

struct Watched {
    bed: Bed,
    registry: Registry,
    lines: Receiver<String>,
}

fn watched() -> Watched {
    let registry = Registry::new();
    let (sender, lines) = sync_channel(100);
    let sink = move |line| sender.send(line).expect("a reader");
    let access_log = Some(AccessLog::new(Arc::new(sink)));
    let config =
        GatewayConfig { registry: registry.clone(), access_log, ..GatewayConfig::default() };
    let watched = Watched { bed: Bed::with(config), registry, lines };
    assert_eq!(watched.bed.ask("PUT", "/bucket").send().status, 200);
    assert_eq!(watched.line()["operation"], "CreateBucket");
    watched
}

impl Watched {
    /// The line of the next request that ended.
    fn line(&self) -> Value {
        let line = self.lines.recv_timeout(Duration::from_secs(20)).expect("a line");
        assert!(line.ends_with("}\n"), "{line}");
        serde_json::from_str(&line).expect("JSON")
    }

    fn has(&self, line: &str) {
        let text = self.registry.expose();
        assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
    }
}

#[test]
fn a_request_is_counted_and_written_as_it_ends() {
    let watched = watched();
    let bed = &watched.bed;
    let reply = bed.put("a b", b"hello");
    let line = watched.line();
    let facts = ["operation", "bucket", "key", "user", "access_key", "method", "uri", "remote"];
    let seen: Vec<&str> = facts.iter().map(|fact| line[fact].as_str().expect("text")).collect();
    let put = ["PutObject", BUCKET, "a b", "admin", ADMIN.0, "PUT", "/bucket/a%20b", "127.0.0.1"];
    assert_eq!(seen, put);
    assert_eq!((&line["status"], &line["received_bytes"]), (&200.into(), &5.into()));
    assert_eq!(line["request_id"], reply.header("x-amz-request-id").expect("an ID"));
    assert!(line["total_us"].as_u64() >= line["first_byte_us"].as_u64());

    assert_eq!(bed.object("GET", "a b").send().body, b"hello");
    let line = watched.line();
    assert_eq!((&line["operation"], &line["sent_bytes"]), (&"GetObject".into(), &5.into()));
    assert_eq!(bed.object("HEAD", "a b").send().status, 200);
    let line = watched.line();
    assert_eq!((&line["operation"], &line["sent_bytes"]), (&"HeadObject".into(), &0.into()));
    assert!(line.get("cut").is_none() && line.get("error").is_none(), "{line}");

    let requests = "craton_s3_requests_total{operation=";
    watched.has(&format!("{requests}\"PutObject\",caller=\"administrator\",status=\"2xx\"}} 1"));
    watched.has(&format!("{requests}\"GetObject\",caller=\"administrator\",status=\"2xx\"}} 1"));
    watched.has("craton_s3_received_bytes_total{operation=\"PutObject\"} 5");
    watched.has("craton_s3_sent_bytes_total{operation=\"GetObject\"} 5");
    watched.has("craton_s3_request_seconds_count{operation=\"HeadObject\"} 1");
}

#[test]
fn what_is_refused_says_by_which_code_and_for_whom() {
    let watched = watched();
    let bed = &watched.bed;
    let ends = |operation: &str, caller: &str, status: &str| {
        watched.has(&format!(
            "craton_s3_requests_total{{operation=\"{operation}\",caller=\"{caller}\",\
             status=\"{status}\"}} 1"
        ));
    };
    let error = |line: &Value| {
        let text = |fact: &str| line[fact].as_str().unwrap_or_default().to_owned();
        (text("operation"), text("error"), text("user"))
    };
    let expected = |operation: &str, code: &str, user: &str| {
        (operation.to_owned(), code.to_owned(), user.to_owned())
    };
    bed.object("GET", "gone").send();
    assert_eq!(error(&watched.line()), expected("GetObject", "NoSuchKey", "admin"));
    ends("GetObject", "administrator", "4xx");
    bed.object("GET", "gone").by(OTHER).send();
    assert_eq!(error(&watched.line()), expected("GetObject", "AccessDenied", "other"));
    ends("GetObject", "user", "4xx");
    bed.object("GET", "gone").send_plain();
    assert_eq!(error(&watched.line()), expected("GetObject", "AccessDenied", ""));
    ends("GetObject", "anonymous", "4xx");
    // Who asks, and for what, is not known before the signature is checked.
    bed.object("GET", "gone").by((ADMIN.0, "another secret")).send();
    assert_eq!(error(&watched.line()), expected("Unknown", "SignatureDoesNotMatch", ""));
    ends("Unknown", "unknown", "4xx");
    form("f").file("f", b"hello").send(bed);
    let line = watched.line();
    assert_eq!(error(&line), expected("PostObject", "", "admin"));
    assert!(line["received_bytes"].as_u64() > Some(5), "fields, too");
    ends("PostObject", "administrator", "2xx");
}

#[test]
fn headers_that_are_not_ascii_are_shown() {
    let watched = watched();
    let ask = watched.bed.object("GET", "k").unsigned("user-agent", "caf\u{e9}/1");
    ask.unsigned("referer", "http://\u{fc}ber/").send();
    let line = watched.line();
    let seen = (&line["user_agent"], &line["referer"]);
    assert_eq!(seen, (&"caf\u{e9}/1".into(), &"http://\u{fc}ber/".into()));
}

#[test]
fn a_client_that_goes_away_leaves_a_cut_answer() {
    let watched = watched();
    let bed = &watched.bed;
    let len = 24 << 20;
    assert_eq!(bed.put("large", &vec![7; len]).status, 200);
    watched.line();
    let request = bed.object("GET", "large").bytes();
    let mut stream = bed.connect();
    stream.write_all(&request).expect("sent");
    let mut some = [0; 1000];
    stream.read_exact(&mut some).expect("its beginning");
    drop(stream);
    let line = watched.line();
    assert_eq!((&line["operation"], &line["status"]), (&"GetObject".into(), &200.into()));
    assert_eq!(line["cut"], true, "{line}");
    assert!(line["sent_bytes"].as_u64() < Some(len as u64), "{line}");
}

//! S3 of `craton up`, as far as it needs no client: what it prints, its files, wrong input. Real clients
//! are in `tests/clients`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::embedded::Up;
use crate::harness::{Scratch, bad, book, good, json, text, wait};

/// The answer to a request without a body: its status line and the rest.
fn ask(dir: &Path, request: &str) -> (String, String) {
    let endpoint = book(dir)["endpoints"]["s3"].as_str().expect("an endpoint").to_owned();
    let addr = endpoint.strip_prefix("http://").expect("a URL");
    let mut stream = TcpStream::connect(addr).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
    let head = format!("{request} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it takes a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (status, rest) = answer.split_once("\r\n").expect("a status line");
    (status.to_owned(), rest.to_owned())
}

#[test]
fn up_serves_s3_by_default_and_denies_without_a_key() {
    let scratch = Scratch::new("up-s3");
    let dir = scratch.path("data");
    let (up, said) = Up::start(&["--dir", text(&dir)]);
    assert!(said.contains("S3: http://127.0.0.1:"), "{said}");
    let access = std::fs::read_to_string(dir.join("s3.json")).expect("it is there");
    let access: serde_json::Value = serde_json::from_str(&access).expect("JSON");
    let key = access["access_key"].as_str().expect("a key").to_owned();
    assert!(said.contains(&format!("access key of 'admin': {key} ")), "{said}");
    assert_eq!(access["endpoint"], book(&dir)["endpoints"]["s3"]);
    for file in ["s3.json", "s3-keys", "gw1/gateway.toml"] {
        let mode = std::fs::metadata(dir.join(file)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    assert_eq!(ask(&dir, "GET /_craton/ready").0, "HTTP/1.1 200 OK");
    let (status, body) = ask(&dir, "GET /");
    assert_eq!(status, "HTTP/1.1 403 Forbidden");
    assert!(body.contains("<Code>AccessDenied</Code>"), "{body}");
    up.interrupt();
    // The same key and address behind a restart; the secret is not said again.
    let (up, said) = Up::start(&["--dir", text(&dir)]);
    assert!(!said.contains("access key of"), "{said}");
    let after = std::fs::read_to_string(dir.join("s3.json")).expect("it is there");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&after).expect("JSON"), access);
    assert_eq!(ask(&dir, "GET /_craton/live").0, "HTTP/1.1 200 OK");
    up.interrupt();
}

#[test]
fn up_without_the_key_file_of_s3_is_refused_and_names_the_way_out() {
    let mut scratch = Scratch::new("up-s3-keys");
    scratch.expect_errors("no other file of keys");
    let dir = scratch.path("data");
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    up.interrupt();
    let keys = dir.join("s3-keys");
    let kept = std::fs::read(&keys).expect("it is there");
    std::fs::remove_file(&keys).expect("it can be removed");
    let error = bad(&["up", "--dir", text(&dir)], 4, "no other file of keys");
    assert!(error.contains("s3-keys"), "{error}");
    assert!(!keys.exists(), "a new key would not open what the lost one wrapped");
    std::fs::write(&keys, &kept).expect("it can be written");
    std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o644)).expect("a mode");
    bad(&["up", "--dir", text(&dir)], 4, "600");
    std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600)).expect("a mode");
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    up.interrupt();
}

/// Lines of the access log of `craton up`, once there are so many.
fn access_lines(dir: &Path, count: usize) -> Vec<serde_json::Value> {
    let path = dir.join("gw1/log/access.jsonl");
    let read = || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        lines.collect::<Vec<serde_json::Value>>()
    };
    wait("lines of the access log", Duration::from_secs(20), || read().len() >= count);
    read()
}

#[test]
fn requests_are_counted_and_written_and_their_ids_are_traces() {
    let scratch = Scratch::new("up-access-log");
    let dir = scratch.path("data");
    let (up, _) = Up::start(&["--dir", text(&dir), "--s3-access-log"]);
    assert_eq!(ask(&dir, "GET /").0, "HTTP/1.1 403 Forbidden");
    let (status, rest) = ask(&dir, "GET /nowhere/key?X-Amz-Signature=secret");
    assert!(status.contains(" 40"), "{status}");
    let lines = access_lines(&dir, 2);
    let facts = |line: &serde_json::Value, names: [&str; 4]| {
        names.map(|name| line[name].as_str().unwrap_or_default().to_owned())
    };
    let wanted = ["ListBuckets", "", "GET", "AccessDenied"];
    assert_eq!(facts(&lines[0], ["operation", "user", "method", "error"]), wanted);
    assert_eq!(lines[1]["uri"], "/nowhere/key?X-Amz-Signature=-");
    let id = lines[1]["request_id"].as_str().expect("an ID");
    assert!(rest.contains(&format!("x-amz-request-id: {id}")), "{rest}");

    let config = std::fs::read_to_string(dir.join("gw1/gateway.toml")).expect("it is there");
    let metrics = config.lines().find_map(|line| line.strip_prefix("metrics = \""));
    let addr = metrics.expect("an address").trim_end_matches('"');
    let mut stream = TcpStream::connect(addr).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").expect("it takes a request");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("it answers");
    let count =
        "craton_s3_requests_total{operation=\"ListBuckets\",caller=\"anonymous\",status=\"4xx\"} 1";
    assert!(page.contains(count), "{page}");
    // What is said again is no contradiction; what was not said is.
    up.interrupt();
    let (up, _) = Up::start(&["--dir", text(&dir), "--s3-access-log"]);
    assert_eq!(ask(&dir, "GET /").0, "HTTP/1.1 403 Forbidden");
    assert_eq!(access_lines(&dir, 3).len(), 3);
    up.interrupt();
}

#[test]
fn the_id_of_a_request_finds_its_trace() {
    let scratch = Scratch::new("up-request-trace");
    let dir = scratch.path("data");
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    let (_, rest) = ask(&dir, "GET /nowhere/key");
    let id = rest.lines().find_map(|line| line.strip_prefix("x-amz-request-id: "));
    let shown = good(&["trace", id.expect("an ID"), "--cluster", text(&dir)]);
    assert!(shown.contains("s3 request"), "{shown}");
    up.interrupt();
}

/// A command on the cluster of a directory.
fn of_cluster(dir: &Path, command: &str, words: &[&str]) -> Vec<String> {
    let words = [&[command], words, &["--cluster", text(dir)]].concat();
    words.into_iter().map(str::to_owned).collect()
}

fn words(of: &[String]) -> Vec<&str> {
    of.iter().map(String::as_str).collect()
}

#[test]
fn keys_are_made_rotated_and_exported_and_a_file_that_lacks_one_is_refused() {
    let mut scratch = Scratch::new("up-kms");
    scratch.expect_errors("lacks key k1");
    let dir = scratch.path("data");
    let (up, said) = Up::start(&["--dir", text(&dir)]);
    assert!(
        said.contains(&format!("{}/s3-keys ('craton kms export FILE')", dir.display())),
        "{said}"
    );
    let kms = |words: &[&str]| of_cluster(&dir, "kms", words);
    let keys = dir.join("s3-keys");
    let first = std::fs::read(&keys).expect("it is there");
    good(&words(&kms(&["create", "payroll"])));
    good(&words(&kms(&["rotate", "payroll"])));
    bad(&words(&kms(&["create", "payroll"])), 4, "rotate payroll");
    bad(&words(&kms(&["rotate", "none"])), 4, "create none");
    bad(&words(&kms(&["create", "a/b"])), 4, "letters");
    let shown = json(&words(&kms(&["ls", "--json"])));
    let wanted = serde_json::json!([
        {"key": "k1", "versions": 0, "wraps": "secrets, SSE-S3, aws/s3"},
        {"key": "payroll", "versions": 2, "wraps": "SSE-KMS"},
    ]);
    assert_eq!(shown, wanted);
    let copy = scratch.path("copy");
    let said = good(&words(&kms(&["export", text(&copy)])));
    assert!(said.contains("3 keys"), "{said}");
    let facts = std::fs::metadata(&copy).expect("it is there");
    assert_eq!(facts.permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read(&copy).expect("read"), std::fs::read(&keys).expect("read"));
    bad(&words(&kms(&["export", text(&copy)])), 4, "copy");
    let bucket = |words: &[&str]| of_cluster(&dir, "bucket", words);
    good(&words(&bucket(&["create", "abc"])));
    let sse_c = || json(&words(&bucket(&["info", "abc", "--json"])))["sse_c"].clone();
    assert_eq!(sse_c(), "block");
    good(&words(&bucket(&["set", "abc", "--sse-c", "allow"])));
    assert_eq!(sse_c(), "allow");
    good(&words(&bucket(&["set", "abc", "--sse-c", "block"])));
    assert_eq!(sse_c(), "block");
    bad(&words(&bucket(&["set", "abc"])), 2, "--sse-c");
    up.interrupt();
    // A file of other keys opens nothing of what is there; one without keys that wrap nothing yet does.
    let write = |bytes: &[u8]| {
        std::fs::write(&keys, bytes).expect("written");
        std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600)).expect("a mode");
    };
    write(format!("1 k9 {}\n", "0a".repeat(32)).as_bytes());
    let error = bad(&["up", "--dir", text(&dir)], 4, "lacks key k1");
    assert!(error.contains("s3-keys") && error.contains("kms export"), "{error}");
    write(&first);
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    up.interrupt();
}

#[test]
fn s3_is_served_where_it_was_at_first_and_off_loopback_only_where_that_is_said() {
    let scratch = Scratch::new("up-s3-listen");
    let dir = scratch.path("data");
    let far = ["up", "--dir", text(&dir), "--s3-listen", "192.0.2.1:9000"];
    bad(&far, 2, "give --s3-tls DIR");
    assert!(!dir.exists(), "nothing is made");
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    up.interrupt();
    bad(&["up", "--dir", text(&dir), "--s3-listen", "127.0.0.1:1"], 2, "leave --s3-listen out");
}

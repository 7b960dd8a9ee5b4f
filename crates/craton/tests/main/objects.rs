//! S3 of `craton up`, as far as it needs no client: what it prints, its files, wrong input. Real clients
//! are in `tests/clients`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::embedded::Up;
use crate::harness::{Scratch, bad, book, text};

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
    let scratch = Scratch::new("up-s3-keys");
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

#[test]
fn s3_is_served_where_it_was_at_first_and_on_loopback_alone() {
    let scratch = Scratch::new("up-s3-listen");
    let dir = scratch.path("data");
    let far = ["up", "--dir", text(&dir), "--s3-listen", "192.0.2.1:9000"];
    bad(&far, 2, "no loopback address");
    assert!(!dir.exists(), "nothing is made");
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    up.interrupt();
    bad(&["up", "--dir", text(&dir), "--s3-listen", "127.0.0.1:1"], 2, "leave --s3-listen out");
}

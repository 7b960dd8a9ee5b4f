//! Heads and connections: sizes, time, numbers, pages of health, stop.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

use object_gateway::{GatewayConfig, Times};
use proptest::prelude::*;

use crate::client::{Bed, UNSIGNED, read_reply};

fn quick(times: Times) -> Bed {
    Bed::with(GatewayConfig { times, ..GatewayConfig::default() })
}

fn send(bed: &Bed, text: &[u8]) -> Option<crate::client::Reply> {
    let mut stream = bed.connect();
    let _ = stream.write_all(text); // It may be refused before its end.
    read_reply(&mut stream, false)
}

#[test]
fn health_is_shown_without_a_signature() {
    let bed = Bed::new();
    let get = |path: &str| bed.ask("GET", path).send_plain();
    assert_eq!((get("/_craton/live").status, get("/_craton/ready").status), (200, 200));
    bed.gateway.set_ready(false);
    assert_eq!((get("/_craton/live").status, get("/_craton/ready").status), (200, 503));
    assert_eq!(bed.ask("POST", "/_craton/live").send_plain().status, 405);
    assert_eq!(get("/_craton/other").error().0, 400);
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let bed = Bed::with_bucket();
    let get = |len: usize| bed.object("GET", "k").header("x-amz-meta-a", &"v".repeat(len)).send();
    assert_eq!(get(14 << 10).error(), (404, "NoSuchKey".into()));
    assert_eq!(get(17 << 10).error(), (400, "RequestHeaderSectionTooLarge".into()));
    assert_eq!(get(200 << 10).status, 431);
    let line = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20 << 10));
    assert_eq!(send(&bed, line.as_bytes()).map(|reply| reply.status), Some(400));
    let many = "a: b\r\n".repeat(300);
    let many = format!("GET / HTTP/1.1\r\n{many}\r\n");
    assert_eq!(send(&bed, many.as_bytes()).map(|reply| reply.status), Some(431));
}

#[test]
fn a_slow_head_ends_the_connection() {
    let bed = quick(Times { head: Duration::from_millis(200), ..Times::default() });
    let mut stream = bed.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: ").expect("sent");
    assert_eq!(stream.read(&mut [0; 10]).expect("closed in time"), 0);
}

#[test]
fn an_idle_connection_ends() {
    let bed = quick(Times { idle: Duration::from_millis(200), ..Times::default() });
    let mut stream = bed.connect();
    stream.write_all(&bed.ask("GET", "/").bytes()).expect("sent");
    assert_eq!(read_reply(&mut stream, false).map(|reply| reply.status), Some(200));
    assert_eq!(stream.read(&mut [0; 10]).expect("closed in time"), 0);
}

#[test]
fn a_connection_serves_many_requests_each_with_an_id_of_its_own() {
    let bed = Bed::with(GatewayConfig { request_nonce: u64::MAX, ..GatewayConfig::default() });
    let mut stream = bed.connect();
    let mut ids = BTreeSet::new();
    for _ in 0..3 {
        stream.write_all(&bed.ask("GET", "/").bytes()).expect("sent");
        let reply = read_reply(&mut stream, false).expect("an answer");
        ids.insert(reply.header("x-amz-request-id").expect("an ID").to_owned());
    }
    let wanted = ["0000000000000001", "0000000000000002", "7FFFFFFFFFFFFFFF"];
    assert_eq!(ids.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
}

#[test]
fn connections_beyond_the_limit_wait() {
    let bed = Bed::with(GatewayConfig { connections_max: 1, ..GatewayConfig::default() });
    let mut first = bed.connect();
    first.write_all(&bed.ask("GET", "/").bytes()).expect("sent");
    assert_eq!(read_reply(&mut first, false).map(|reply| reply.status), Some(200));
    let mut second = bed.connect();
    second.write_all(&bed.ask("GET", "/").bytes()).expect("sent");
    second.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    assert!(second.read(&mut [0; 10]).is_err(), "served beyond the limit");
    drop(first);
    second.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    assert_eq!(read_reply(&mut second, false).map(|reply| reply.status), Some(200));
}

#[test]
fn several_threads_and_addresses_serve() {
    let local = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let config = GatewayConfig {
        listen: vec![local, local],
        threads: 3,
        share_ports: true,
        ..GatewayConfig::default()
    };
    let bed = Bed::with(config);
    assert_eq!(bed.gateway.addrs().len(), 2);
    for addr in bed.gateway.addrs() {
        for _ in 0..8 {
            let ask = crate::client::Ask::new(*addr, "GET", "/");
            assert_eq!(ask.send().status, 200);
        }
    }
    let none = GatewayConfig { listen: Vec::new(), ..GatewayConfig::default() };
    let taken = GatewayConfig { listen: vec![bed.gateway.addr()], ..GatewayConfig::default() };
    let file = object_gateway::KeyFile::parse(&format!("1 a {}", "00".repeat(32))).expect("keys");
    let model = std::sync::Arc::new(bed.model.clone());
    let file = std::sync::Arc::new(object_gateway::Keyring::of(file));
    assert!(object_gateway::Gateway::start(none, model.clone(), file.clone()).is_err());
    let error = object_gateway::Gateway::start(taken, model, file);
    let error = error.expect_err("the address is taken").to_string();
    assert!(error.contains("cannot serve S3 on 127.0.0.1"), "{error}");
}

#[test]
fn a_stop_ends_idle_connections_and_lets_requests_end() {
    let bed = Bed::with_bucket();
    let mut idle = bed.connect();
    idle.write_all(&bed.ask("GET", "/").bytes()).expect("sent");
    assert_eq!(read_reply(&mut idle, false).map(|reply| reply.status), Some(200));
    let ask = bed.object("PUT", "k").payload(UNSIGNED).header("content-length", "5").body(b"he");
    let mut busy = bed.connect();
    busy.write_all(&ask.bytes()).expect("sent");
    while bed.model.uploads_begun.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let Bed { model, gateway } = bed;
    let addr = gateway.addr();
    gateway.begin_stop();
    assert_eq!(idle.read(&mut [0; 10]).expect("closed"), 0);
    busy.write_all(b"llo").expect("sent");
    assert_eq!(read_reply(&mut busy, false).map(|reply| reply.status), Some(200));
    gateway.stop();
    assert_eq!(model.objects(), 1);
    assert!(std::net::TcpStream::connect(addr).is_err());
}

#[test]
fn a_stop_ends_requests_that_do_not_end_in_their_time() {
    let bed = quick(Times { stop: Duration::from_millis(200), ..Times::default() });
    assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
    let ask = bed.object("PUT", "k").payload(UNSIGNED).header("content-length", "5").body(b"he");
    let mut busy = bed.connect();
    busy.write_all(&ask.bytes()).expect("sent");
    while bed.model.uploads_begun.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    bed.gateway.stop();
    assert!(read_reply(&mut busy, false).is_none());
    assert_eq!(bed.model.objects(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_bytes_leave_the_gateway_serving(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        start in "(GET / HTTP/1.1\r\n|PUT /bucket/k HTTP/1.1\r\n|)",
    ) {
        let bed = quick(Times { head: Duration::from_millis(20), ..Times::default() });
        let text = [start.as_bytes(), &bytes, b"\r\n\r\n"].concat();
        if let Some(reply) = send(&bed, &text) {
            prop_assert!(reply.status >= 400 && reply.status != 500);
        }
        prop_assert_eq!(bed.ask("GET", "/_craton/live").send_plain().status, 200);
        prop_assert_eq!(bed.model.objects(), 0);
    }
}

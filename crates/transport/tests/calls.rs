//! Calls between two healthy or sick hosts.

use std::time::Duration;

use base::Kind;
use runtime::sim::CrashMode;
use transport::{CallError, Limits, Priority, Request, Response, Service};

use crate::harness::{
    Host, OP_BUSY, OP_DROP, OP_ECHO, OP_FETCH, OP_HOLD, OP_SLOW, byte_at, content, millis, on,
    pair, request,
};

/// Echoes a body and a payload of these lengths.
async fn echo(a: &Host, b: &Host, body: usize, payload: usize) {
    let seed = (body + payload) as u64;
    let bytes: Vec<u8> = (0..body).map(|index| byte_at(!seed, index)).collect();
    let mut asked = request(OP_ECHO, bytes.clone(), content(&a.env, seed, payload));
    asked.service = if payload % 3 == 0 { Service::Data } else { Service::Control };
    let answer = a.call(b.addr, asked, millis(5000)).await.expect("an answer");
    assert_eq!(answer.status, 0);
    assert!(answer.body == bytes, "body of {body} bytes differs");
    let got = answer.payload.as_deref().unwrap_or(&[]);
    assert_eq!(got.len(), payload);
    assert!((0..payload).all(|index| got[index] == byte_at(seed, index)), "payload {payload}");
}

#[test]
fn every_size_comes_back_unchanged() {
    pair(1, Limits::default(), async |_, a, b| {
        for body in [0, 1, 100, 5000, 70_000, 300_000, 1 << 20] {
            for payload in [
                0,
                1,
                511,
                513,
                4096,
                12_288,
                16_384,
                20_480,
                65_536,
                100_001,
                262_144,
                270_336,
                1 << 20,
                4 << 20,
            ] {
                echo(&a, &b, body, payload).await;
            }
        }
        let stats = a.endpoint.stats();
        assert_eq!((stats.links_opened, stats.links_broken), (1, 0), "one link for all calls");
        assert_eq!(b.env.pool().used(), 64 << 10, "only the staging buffer stays");
    });
}

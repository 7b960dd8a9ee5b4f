//! Peers that take what is not theirs: seats without a proof, buffers without reading.

use std::time::Duration;

use runtime::sim::Sim;
use transport::Limits;
use wire::frame::{FrameKind, Header, Priority, Service};

use crate::harness::{Host, OP_ECHO, OP_FETCH, Raw, millis, on, pair, request};

/// The slowest of some calls.
async fn slowest(sim: &Sim, a: &Host, b: &Host, calls: u32) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..calls {
        let before = sim.elapsed();
        let asked = request(OP_ECHO, vec![1], None);
        a.call(b.addr, asked, millis(5000)).await.expect("an answer");
        slowest = slowest.max(sim.elapsed() - before);
        sim.sleep(millis(10)).await;
    }
    slowest
}

#[test]
fn unproven_peers_take_no_seat_of_proven_ones() {
    let limits = Limits { links_max: 4, handshakes_max: 4, ..Limits::default() };
    let sim = pair(31, limits, async |sim, a, b| {
        let env = sim.boot(sim.add_host("flood"));
        // They connect, and say nothing.
        let mut silent = Vec::new();
        for _ in 0..20 {
            let (flood, addr) = (env.clone(), b.addr);
            silent.push(on(&env, async move { Raw::connect(&flood, addr).await }).await);
        }
        sim.sleep(millis(20)).await;
        let took = slowest(&sim, &a, &b, 50).await;
        assert!(took < millis(50), "a proven peer waited {took:?}");
        assert_eq!(b.endpoint.stats().links.len(), 1);
        drop(silent);
    });
    assert!(sim.marks()["transport: a handshake gives way"] >= 16);
}

/// Asks for 1 MiB `count` times, reads no answer, and goes on to say that it lives.
async fn hog(mut raw: Raw, sim: Sim, count: u64) {
    for number in 1..=count {
        let body = (1u64 << 20).to_le_bytes();
        let mut header = Header {
            body_len: body.len() as u32,
            service: Some(Service::Control),
            priority: Priority::Foreground,
            op: OP_FETCH,
            request: number,
            deadline_us: u32::MAX,
            ..Header::empty(FrameKind::Request)
        };
        header.body_crc = header.content_crc(&body, &[]);
        raw.send_bytes(&[&header.encode()[..], &body[..]].concat()).await;
    }
    loop {
        sim.sleep(millis(100)).await;
        raw.send(FrameKind::Ping, &[]).await;
    }
}

#[test]
fn peer_that_reads_nothing_holds_little_and_is_given_up() {
    for (count, mark) in [(8, "transport: stalled peer"), (200, "transport: reading paused")] {
        let sim = pair(32, Limits::default(), async |sim, a, b| {
            let alone = slowest(&sim, &a, &b, 200).await;
            let env = sim.boot(sim.add_host("hog"));
            for _ in 0..4 {
                let (hostile, addr) = (env.clone(), b.addr);
                let raw = on(&env, async move { Raw::admitted(&hostile, addr).await }).await;
                drop(env.spawn(runtime::Class::Foreground, "hog", hog(raw, sim.clone(), count)));
            }
            sim.sleep(millis(500)).await;
            let queued = b.endpoint.stats().links.iter().map(|link| link.queued_bytes).max();
            let bound = Limits::default().queue_bytes_max + (2 << 20);
            assert!(queued.is_some_and(|queued| queued <= bound), "{queued:?} bytes wait");
            let beside = slowest(&sim, &a, &b, 200).await;
            assert!(beside <= 2 * alone, "{beside:?} beside hostile peers, {alone:?} without");
            sim.sleep(Duration::from_secs(25)).await;
            assert_eq!(b.endpoint.stats().links.len(), 1, "only the honest peer is left");
        });
        assert!(sim.marks().contains_key(mark), "{mark}: {:?}", sim.marks());
    }
}

//! Peers that take what is not theirs: seats without a proof, buffers without reading.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use runtime::sim::Sim;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use transport::{CallError, Limits, LinkStats};
use wire::frame::{FrameKind, Header, Priority, STATUS_BUSY, Service};

use crate::harness::{
    Host, OP_BODY, OP_ECHO, OP_FETCH, OP_LATE_BODY, OP_UNKNOWN, Raw, content, millis, on, pair,
    request,
};

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
        raw.request(number, OP_FETCH, &(1u64 << 20).to_le_bytes()).await;
    }
    loop {
        sim.sleep(millis(100)).await;
        raw.send(FrameKind::Ping, &[]).await;
    }
}

#[test]
fn peer_that_reads_nothing_holds_little_and_is_given_up() {
    for (count, mark) in [
        (8, "transport: stalled peer"),
        (200, "transport: request deferred"),
        (10_000, "transport: reading paused"),
    ] {
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

/// Each holds what one link may. Answers and requests that wait are in no other bound: the buffers of
/// a process, or its heap, would be spent.
#[test]
fn peers_that_read_nothing_hold_a_bounded_part_together() {
    for what in [Unread::Payloads, Unread::Bodies, Unread::Late, Unread::Requests] {
        println!("{what:?}");
        let sim = pair(38, Limits::default(), async |sim, a, b| {
            let alone = slowest(&sim, &a, &b, 200).await;
            let env = sim.boot(sim.add_host("hogs"));
            for _ in 0..40 {
                let (hostile, addr) = (env.clone(), b.addr);
                let raw = on(&env, async move { Raw::admitted(&hostile, addr).await }).await;
                let task = ask_for(raw, sim.clone(), what);
                drop(env.spawn(runtime::Class::Foreground, "hog", task));
            }
            let waiting = || {
                let waits = |link: &LinkStats| link.queued_bytes + link.deferred_bytes;
                b.endpoint.stats().links.iter().map(waits).sum::<usize>()
            };
            for number in 0..40 {
                sim.sleep(millis(50)).await;
                let held = waiting();
                let bound = b.env.pool().budget() / 4 * 3;
                assert!(held <= bound, "{held} bytes wait, {bound} may");
                let payload = content(&a.env, number, 1 << 20);
                let asked = request(OP_ECHO, Vec::new(), payload);
                let answer = a.call(b.addr, asked, millis(5000)).await;
                // Until the others have read nothing for as long as a peer may be silent.
                let busy = matches!(answer, Err(CallError::Busy | CallError::Closed));
                assert!(answer.is_ok() || (busy && number < 12), "{number}: {:?}", answer.err());
            }
            let beside = slowest(&sim, &a, &b, 200).await;
            assert!(beside <= 2 * alone, "{beside:?} beside hostile peers, {alone:?} without");
            sim.sleep(Duration::from_secs(25)).await;
            // Some were refused all that they asked for: they hold nothing.
            assert!(waiting() < 64 << 10, "{} bytes wait for peers that read nothing", waiting());
        });
        assert!(sim.marks().contains_key("transport: a link gives way"), "{:?}", sim.marks());
    }
}

/// What hostile peers leave with a process.
#[derive(Clone, Copy, Debug)]
enum Unread {
    /// Answers with payloads of 1 MiB.
    Payloads,
    /// Answers with bodies of 1 MiB.
    Bodies,
    /// The same, of which none is there when the requests are taken.
    Late,
    /// Such answers, and behind them requests with bodies of 256 KiB.
    Requests,
}

async fn ask_for(mut raw: Raw, sim: Sim, what: Unread) {
    let large = (1u64 << 20).to_le_bytes();
    let (op, count) = match what {
        Unread::Payloads => (OP_FETCH, 17),
        Unread::Late => (OP_LATE_BODY, 34),
        Unread::Bodies | Unread::Requests => (OP_BODY, 17),
    };
    for number in 1..=count {
        raw.request(number, op, &large).await;
    }
    if matches!(what, Unread::Requests) {
        for number in 18..=81 {
            raw.request(number, OP_ECHO, &vec![7; PART]).await;
        }
    }
    loop {
        sim.sleep(millis(100)).await;
        raw.send(FrameKind::Ping, &[]).await;
    }
}

/// The part that a peer sends of its messages, and never the rest.
#[derive(Clone, Copy, Debug)]
enum Half {
    /// The heads of split messages, one of each priority.
    Heads,
    /// The same, and the first part of each.
    Parts,
    /// A head, and nothing of its content.
    Head,
    /// A head, and half of its content.
    Body,
}

/// Content of the largest message.
const LARGEST: u32 = 4 << 20;
const PART: usize = 256 << 10;

async fn send_half(raw: &mut Raw, half: Half) {
    let head = |priority, payload_len| Header {
        service: Some(Service::CONTROL),
        priority,
        op: OP_ECHO,
        request: 1 + priority as u64,
        payload_len,
        deadline_us: u32::MAX,
        ..Header::empty(FrameKind::Request)
    };
    match half {
        Half::Heads | Half::Parts => {
            for priority in [Priority::Control, Priority::Foreground, Priority::Background] {
                let head = Header { split: true, ..head(priority, LARGEST) };
                raw.send_bytes(&head.encode()).await;
                if matches!(half, Half::Parts) {
                    let (payload_len, request) = (PART as u32, head.request);
                    let empty = Header::empty(FrameKind::Part);
                    let mut part = Header { priority, request, payload_len, ..empty };
                    let content = vec![7; PART];
                    part.body_crc = part.content_crc(&[], &content);
                    raw.send_bytes(&[&part.encode()[..], &content].concat()).await;
                }
            }
        }
        Half::Head => raw.send_bytes(&head(Priority::Foreground, PART as u32).encode()).await,
        Half::Body => {
            let head = head(Priority::Foreground, PART as u32).encode();
            raw.send_bytes(&[&head[..], &vec![7; PART / 2]].concat()).await;
        }
    }
}

/// Answers that carry as much as the largest append, while hostile peers hold what they can.
#[test]
fn peer_that_sends_half_of_its_messages_holds_a_bounded_part_and_is_given_up() {
    for half in [Half::Heads, Half::Parts, Half::Head, Half::Body] {
        println!("{half:?}");
        pair(33, Limits::default(), async |sim, a, b| {
            let alone = slowest(&sim, &a, &b, 200).await;
            let env = sim.boot(sim.add_host("half"));
            for _ in 0..48 {
                let (hostile, addr, sim) = (env.clone(), b.addr, sim.clone());
                let mut raw = on(&env, async move { Raw::admitted(&hostile, addr).await }).await;
                let task = async move {
                    send_half(&mut raw, half).await;
                    loop {
                        sim.sleep(millis(100)).await;
                        if matches!(half, Half::Heads | Half::Parts) {
                            raw.send(FrameKind::Ping, &[]).await;
                        }
                    }
                };
                drop(env.spawn(runtime::Class::Foreground, "half", task));
            }
            sim.sleep(millis(1000)).await;
            let pool = b.env.pool();
            let used = pool.used();
            assert!(used <= pool.budget() / 4 * 3, "{used} of {} bytes are held", pool.budget());
            let beside = slowest(&sim, &a, &b, 200).await;
            assert!(beside <= 2 * alone, "{beside:?} beside hostile peers, {alone:?} without");
            for number in 0..20 {
                let payload = content(&a.env, number, 1 << 20);
                let asked = request(OP_ECHO, Vec::new(), payload);
                let answer = a.call(b.addr, asked, millis(5000)).await;
                assert!(answer.is_ok(), "1 MiB beside hostile peers: {:?}", answer.err());
            }
            sim.sleep(Duration::from_secs(25)).await;
            assert_eq!(b.endpoint.stats().links.len(), 1, "only the honest peer is left");
            // Pongs that were not read are in the simulated kernel, in buffers of this pool.
            let used = b.env.pool().used();
            assert!(used < LARGEST as usize, "{used} bytes are held for peers that were given up");
        });
    }
}

/// Bytes of the longest body.
const BODY: u32 = 1 << 20;

/// Sends the head of a message of the longest body, or all of its parts.
async fn send_body(raw: &mut Raw, priority: Priority, parts: bool) {
    let request = 1 + priority as u64;
    if !parts {
        let head = Header {
            service: Some(Service::CONTROL),
            priority,
            op: OP_UNKNOWN,
            request,
            split: true,
            body_len: BODY,
            deadline_us: u32::MAX,
            ..Header::empty(FrameKind::Request)
        };
        return raw.send_bytes(&head.encode()).await;
    }
    let content = vec![7; PART];
    let empty = Header::empty(FrameKind::Part);
    let mut part = Header { priority, request, body_len: PART as u32, ..empty };
    part.body_crc = part.content_crc(&content, &[]);
    for _ in 0..BODY / part.body_len {
        raw.send_bytes(&[&part.encode()[..], &content].concat()).await;
    }
}

/// Request and status of the next answers, by request; fewer when the link ends.
async fn statuses(raw: &mut Raw, count: usize) -> Vec<(u64, u16)> {
    let mut found = Vec::new();
    while found.len() < count
        && let Some((header, _)) = raw.receive().await
    {
        if header.kind == FrameKind::Response {
            found.push((header.request, header.op));
        }
    }
    found.sort_unstable();
    found
}

/// Bodies are on the heap, which no bound on buffers counts. What finds no room is answered busy when it is
/// whole, and its link goes on.
#[test]
fn bodies_of_unfinished_messages_count_as_held() {
    pair(39, Limits::default(), async |sim, _, b| {
        let env = sim.boot(sim.add_host("bodies"));
        let mut peers = Vec::new();
        for _ in 0..80 {
            let (hostile, addr) = (env.clone(), b.addr);
            let begin = async move {
                let mut raw = Raw::admitted(&hostile, addr).await;
                for priority in Priority::ALL {
                    send_body(&mut raw, priority, false).await;
                }
                raw
            };
            peers.push(on(&env, begin).await);
        }
        sim.sleep(millis(10)).await;
        let mut answers = Vec::new();
        for mut raw in peers {
            let complete = async move {
                for priority in Priority::ALL {
                    send_body(&mut raw, priority, true).await;
                }
                raw.request(9, OP_ECHO, b"on").await;
                statuses(&mut raw, 4).await
            };
            answers = on(&env, complete).await;
        }
        let bodies = b.server.seen.get() as usize - b.server.echoed.borrow().len();
        let held_max = b.env.pool().budget() / 2;
        let bound = held_max + held_max / 4;
        assert!(bodies > 0 && bodies * BODY as usize <= bound, "{bodies} bodies were held");
        let busy = |request| (request, STATUS_BUSY);
        assert_eq!(answers, [busy(1), busy(2), busy(3), (9, 0)], "of the link that came last");
    });
}

/// Counts warnings.
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn refused_connections_have_a_line_a_second() {
    let warnings = Arc::new(AtomicUsize::new(0));
    let counted = tracing::subscriber::set_default(Warnings(warnings.clone()));
    let mut seconds = 0;
    pair(37, Limits::default(), async |sim, _, b| {
        let env = sim.boot(sim.add_host("flood"));
        let begin = sim.elapsed();
        for _ in 0..500 {
            let (flood, addr) = (env.clone(), b.addr);
            let garbage = async move {
                let mut raw = Raw::connect(&flood, addr).await;
                raw.send_bytes(&[0x5a; 64]).await;
                raw
            };
            drop(on(&env, garbage).await);
            sim.sleep(millis(5)).await;
        }
        seconds = (sim.elapsed() - begin).as_secs() as usize;
    });
    drop(counted);
    let lines = warnings.load(Ordering::Relaxed);
    assert!((1..=seconds + 1).contains(&lines), "{lines} lines in {seconds} s");
}

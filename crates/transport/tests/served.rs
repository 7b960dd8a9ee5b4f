//! Bodies of requests whose handlers are slow.

use runtime::Env;
use transport::{Limits, Priority, Response, Service};
use wire::frame::{FrameKind, Header, STATUS_BUSY};

use crate::harness::{Host, OP_ECHO, OP_HOLD, Raw, millis, on, pair, request};

/// Body of the longest message that comes in one frame.
const LARGE: usize = 256 << 10;

/// Bytes of bodies that one link may have with handlers, and all together, of the server's buffers.
fn bounds(server: &Host) -> (usize, usize) {
    let all = server.env.pool().budget() / 4;
    (all / 4, all + all / 4)
}

/// Bytes of the bodies that the handler has now.
fn served(server: &Host) -> usize {
    server.server.held.borrow().iter().map(|incoming| incoming.request.body.len()).sum()
}

/// Sends a request of `priority`, and gives the status of its answer.
async fn ask(raw: &mut Raw, priority: Priority, number: u64, body: &[u8]) -> u16 {
    let mut header = Header {
        service: Some(Service::CONTROL),
        priority,
        op: OP_ECHO,
        request: number,
        deadline_us: u32::MAX,
        body_len: body.len() as u32,
        ..Header::empty(FrameKind::Request)
    };
    header.body_crc = header.content_crc(body, &[]);
    raw.send_bytes(&[&header.encode()[..], body].concat()).await;
    loop {
        let (answer, _) = raw.receive().await.expect("the link lives");
        if answer.kind == FrameKind::Response && answer.request == number {
            return answer.op;
        }
    }
}

/// Sends `count` large requests that the handler keeps, from number `first` on, and then a small
/// one that is answered. Gives the number of those that were answered busy.
async fn fill(mut raw: Raw, first: u64, count: u64) -> (Raw, usize) {
    let end = first + count;
    for number in first..end {
        raw.request(number, OP_HOLD, &vec![7; LARGE]).await;
    }
    raw.request(end, OP_ECHO, b"small").await;
    let mut busy = 0;
    loop {
        let (answer, _) = raw.receive().await.expect("the link lives");
        if answer.kind == FrameKind::Response && answer.request == end {
            assert_eq!(answer.op, 0, "a small request behind large ones");
            return (raw, busy);
        }
        busy += usize::from(answer.kind == FrameKind::Response && answer.op == STATUS_BUSY);
    }
}

/// A new link with `count` large requests.
async fn filled(env: &Env, server: &Host, count: u64) -> (Raw, usize) {
    let (peer, addr) = (env.clone(), server.addr);
    on(env, async move { fill(Raw::admitted(&peer, addr).await, 1, count).await }).await
}

#[test]
fn bodies_of_requests_being_served_are_bounded() {
    pair(41, Limits::default(), async |sim, _, b| {
        let env = sim.boot(sim.add_host("peers"));
        let (of_link, of_all) = bounds(&b);
        let (first, busy) = filled(&env, &b, 100).await;
        assert!(served(&b) <= of_link, "{} bytes of one link, {of_link} may", served(&b));
        assert_eq!(served(&b) + busy * LARGE, 100 * LARGE, "the others were answered busy");
        let mut peers = vec![first];
        for _ in 0..7 {
            peers.push(filled(&env, &b, 80).await.0);
            assert!(served(&b) <= of_all, "{} bytes, {of_all} may", served(&b));
        }
        // Handlers still have the bodies of links that are gone.
        drop(peers);
        sim.sleep(millis(100)).await;
        assert_eq!(b.endpoint.stats().links.len(), 0);
        let before = served(&b);
        for _ in 0..4 {
            drop(filled(&env, &b, 80).await);
        }
        assert!(served(&b) <= of_all, "{} bytes, {of_all} may", served(&b));
        assert!(served(&b) > before, "a link that has none gets one in");
        b.server.held.borrow_mut().clear();
    });
}

#[test]
fn pings_small_requests_and_other_links_pass_while_the_bound_on_bodies_is_reached() {
    pair(42, Limits::default(), async |sim, a, b| {
        let env = sim.boot(sim.add_host("peers"));
        let mut peers = Vec::new();
        for _ in 0..4 {
            peers.push(filled(&env, &b, 80).await.0);
        }
        let mut raw = peers.pop().expect("one of four");
        let full = async move {
            raw.send(FrameKind::Ping, &[]).await;
            while raw.receive().await.expect("the link lives").0.kind != FrameKind::Pong {}
            for (number, priority) in (1000..).zip(Priority::ALL) {
                assert_eq!(ask(&mut raw, priority, number, &[7; 4096]).await, 0, "{priority:?}");
            }
            let large = vec![7; LARGE];
            let status = ask(&mut raw, Priority::Foreground, 1010, &large).await;
            assert_eq!(status, STATUS_BUSY);
            assert_eq!(ask(&mut raw, Priority::Control, 1011, &large).await, 0, "an eighth more");
            raw.cancel(1).await;
            // The handler has its body all the same.
            let status = ask(&mut raw, Priority::Foreground, 1012, &large).await;
            assert_eq!(status, STATUS_BUSY);
            raw
        };
        let raw = on(&env, full).await;
        let cancelled = |server: &Host| {
            server.server.held.borrow().iter().filter(|held| held.reply.is_cancelled()).count()
        };
        assert_eq!(cancelled(&b), 1, "the cancellation has come to the handler");
        for len in [1, 4096, 5000, LARGE, 1 << 20] {
            let before = sim.elapsed();
            let answer = a.call(b.addr, request(OP_ECHO, vec![7; len], None), millis(5000)).await;
            assert_eq!(answer.expect("an answer").body.len(), len);
            assert!(sim.elapsed() - before < millis(500), "{len} bytes of another link");
        }
        drop((raw, peers));
        b.server.held.borrow_mut().clear();
    });
}

#[test]
fn requests_are_served_again_when_handlers_have_answered_or_dropped_others() {
    pair(43, Limits::default(), async |sim, _, b| {
        let env = sim.boot(sim.add_host("peer"));
        let (of_link, _) = bounds(&b);
        let (mut raw, _) = filled(&env, &b, 100).await;
        let most = served(&b);
        assert!(most > of_link / 2 && most <= of_link, "{most} bytes, {of_link} may");
        let take = |count: usize| b.server.held.borrow_mut().drain(..count).collect::<Vec<_>>();
        for round in 1..=3 {
            // Of eight the caller has gone; they count for as long as the handler has them.
            let first = if round == 1 { 1 } else { 1000 * (round - 1) };
            let cancel = async move {
                for number in first..first + 8 {
                    raw.cancel(number).await;
                }
                raw
            };
            raw = on(&env, cancel).await;
            sim.sleep(millis(20)).await;
            assert_eq!(served(&b), most);
            drop(take(8));
            take(8).into_iter().for_each(|held| held.reply.send(Response::ok(Vec::new())));
            take(8).into_iter().for_each(|held| held.reply.busy());
            // The rest is answered with as much as it has brought: answers are in another bound.
            for held in take(8) {
                held.reply.send(Response::ok(held.request.body));
            }
            assert_eq!(served(&b), most - 32 * LARGE);
            let busy;
            (raw, busy) = on(&env, fill(raw, 1000 * round, 40)).await;
            assert_eq!(served(&b), most, "round {round}");
            // Those that handlers have answered busy have come, too.
            assert_eq!(busy, 8 + 8, "round {round}");
        }
        b.server.held.borrow_mut().clear();
        let (_raw, busy) = on(&env, fill(raw, 9000, most as u64 / LARGE as u64)).await;
        assert_eq!((served(&b), busy), (most, 0), "all of the bound is free again");
        b.server.held.borrow_mut().clear();
    });
}

//! Calls between two healthy hosts.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use base::Kind;
use runtime::sim::NetFaults;
use transport::{CallError, Limits, Priority, Request, Service};

use crate::harness::{
    Host, OP_BODY, OP_BUSY, OP_DROP, OP_ECHO, OP_FETCH, OP_HOLD, OP_SLOW, Raw, byte_at, content,
    millis, on, pair, request, set_net,
};

/// Echoes a body and a payload of these lengths.
async fn echo(a: &Host, b: &Host, body: usize, payload: usize) {
    let seed = (body + payload) as u64;
    let bytes: Vec<u8> = (0..body).map(|index| byte_at(!seed, index)).collect();
    let mut asked = request(OP_ECHO, bytes.clone(), content(&a.env, seed, payload));
    asked.service =
        if payload > 0 && payload.is_multiple_of(4096) { Service::DATA } else { Service::CONTROL };
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
        for (here, there) in stats.services.iter().zip(b.endpoint.stats().services).skip(1).take(3)
        {
            assert_eq!((here.frames_out, here.bytes_out), (there.frames_in, there.bytes_in));
            assert_eq!((here.frames_in, here.bytes_in), (there.frames_out, there.bytes_out));
        }
        assert_eq!(b.env.pool().used(), 64 << 10, "only the staging buffer stays");
    });
}

/// Issue 10, 3.5: the size of an answer that a peer had asked for was an assertion.
#[test]
fn content_that_no_frame_can_carry_is_an_error_of_its_call() {
    pair(40, Limits::default(), async |_, a, b| {
        for (len, fits) in [(1 << 20, true), ((1 << 20) + 1, false), (3 << 20, false)] {
            let asked = request(OP_BODY, u64::to_le_bytes(len).to_vec(), None);
            let answer = a.call(b.addr, asked, millis(5000)).await;
            match answer {
                Ok(answer) => assert!(fits && answer.body.len() as u64 == len, "{len} bytes"),
                Err(error) => assert!(!fits && error == CallError::Closed, "{len}: {error:?}"),
            }
        }
        let long = request(OP_ECHO, vec![0; (1 << 20) + 1], None);
        let refused = a.call(b.addr, long, millis(5000)).await.expect_err("it is too long");
        assert_eq!(refused.kind(), Kind::Invalid, "{refused}");
        echo(&a, &b, 100, 100).await;
    });
}

#[test]
fn calls_share_a_link_and_are_answered_out_of_order() {
    pair(2, Limits::default(), async |_, a, b| {
        let (endpoint, addr) = (a.endpoint.clone(), b.addr);
        let slow = a.env.spawn(runtime::Class::Foreground, "slow", async move {
            let asked = request(OP_SLOW, 50_000u64.to_le_bytes().to_vec(), None);
            endpoint.call(addr, asked, millis(1000)).await
        });
        a.env.sleep(millis(1)).await;
        for size in 0..20 {
            echo(&a, &b, size, 0).await;
        }
        assert!(!slow.is_finished(), "quick calls overtook the slow one");
        assert!(slow.await.expect("ran").is_ok());
        let stats = b.endpoint.stats();
        assert_eq!(stats.links.len(), 1);
        assert_eq!(stats.services[1].frames_in, 21);
        assert_eq!(stats.services[1].frames_out, 21);
    });
}

#[test]
fn every_end_of_a_call_has_its_error() {
    pair(3, Limits::default(), async |_, a, b| {
        let ask = async |op, timeout| a.call(b.addr, request(op, vec![0; 8], None), timeout).await;
        let answer = ask(77, millis(100)).await.expect("the handler's own code");
        assert_eq!(answer.status, 77);
        assert_eq!(ask(OP_BUSY, millis(100)).await.unwrap_err(), CallError::Busy);
        let dropped = ask(OP_DROP, millis(100)).await.unwrap_err();
        assert_eq!((&dropped, dropped.kind()), (&CallError::Closed, Kind::Unknown));
        let late = ask(OP_HOLD, millis(100)).await.unwrap_err();
        assert_eq!((&late, late.kind()), (&CallError::Timeout, Kind::Unknown));
        a.env.sleep(millis(10)).await;
        let held = b.server.held.borrow_mut().pop().expect("it was held");
        assert!(held.reply.is_cancelled(), "a timeout cancels at the peer");
        assert_eq!(held.peer.name, "client a");
        a.endpoint.close();
        assert_eq!(ask(OP_ECHO, millis(100)).await.unwrap_err(), CallError::Closed);
    });
}

#[test]
fn a_dropped_call_is_cancelled_at_the_peer() {
    let sim = pair(4, Limits::default(), async |sim, a, b| {
        let (endpoint, addr) = (a.endpoint.clone(), b.addr);
        let call = a.env.spawn(runtime::Class::Foreground, "call", async move {
            let asked = request(OP_SLOW, 100_000u64.to_le_bytes().to_vec(), None);
            endpoint.call(addr, asked, millis(1000)).await
        });
        sim.sleep(millis(20)).await;
        call.abort();
        sim.sleep(millis(200)).await;
        assert_eq!(b.server.cancelled.get(), 1);
        let stats = b.endpoint.stats();
        assert_eq!(stats.links[0].serving, 0);
        assert_eq!(stats.services[1].frames_out, 0, "no answer without a caller");
    });
    assert!(sim.marks().contains_key("transport: request cancelled"));
}

/// Beats and pings show that a process lives, however many other requests of the peer it handles.
#[test]
fn control_requests_find_room_beside_as_many_others_as_there_may_be() {
    let limits = Limits { requests_inflight_max: 16, ..Limits::default() };
    pair(5, limits, async |sim, a, b| {
        let call = |op, priority| {
            let asked = Request { priority, ..request(op, Vec::new(), None) };
            let (endpoint, addr) = (a.endpoint.clone(), b.addr);
            a.env.spawn(runtime::Class::Foreground, "call", async move {
                endpoint.call(addr, asked, millis(300)).await
            })
        };
        let held: Vec<_> = (0..16).map(|_| call(OP_HOLD, Priority::Foreground)).collect();
        sim.sleep(millis(10)).await;
        let more = call(OP_ECHO, Priority::Foreground).await.expect("ran");
        assert_eq!(more.unwrap_err(), CallError::Busy);
        assert!(call(OP_ECHO, Priority::Control).await.expect("ran").is_ok());
        // They are bounded, too.
        let held_too = [(); 3].map(|()| call(OP_HOLD, Priority::Control));
        let mut busy = 0;
        for call in held_too {
            busy += u32::from(call.await.expect("ran").unwrap_err() == CallError::Busy);
        }
        assert_eq!(busy, 1);
        drop(held);
        b.server.held.borrow_mut().clear();
    });
}

#[test]
fn too_many_requests_are_answered_busy() {
    let limits = Limits { requests_inflight_max: 16, ..Limits::default() };
    pair(5, limits, async |sim, a, b| {
        let mut calls = Vec::new();
        for _ in 0..40 {
            let (endpoint, addr) = (a.endpoint.clone(), b.addr);
            calls.push(a.env.spawn(runtime::Class::Foreground, "call", async move {
                endpoint.call(addr, request(OP_HOLD, Vec::new(), None), millis(300)).await
            }));
        }
        let mut busy = 0;
        for call in calls {
            match call.await.expect("ran") {
                Err(CallError::Busy) => busy += 1,
                other => assert_eq!(other.unwrap_err(), CallError::Timeout),
            }
        }
        assert_eq!(busy, 24);
        assert_eq!(b.endpoint.stats().busy, 24);
        b.server.held.borrow_mut().clear();
        sim.sleep(millis(10)).await;
        echo(&a, &b, 10, 10).await;
    });
}

#[test]
fn a_full_queue_refuses_calls_and_keeps_room_for_urgent_ones() {
    let limits = Limits { queue_bytes_max: 12 << 20, ..Limits::default() };
    pair(6, limits, async |sim, a, b| {
        echo(&a, &b, 1, 1).await;
        // Nothing leaves: the peer's host does not run, and its socket buffer fills.
        sim.pause(b.id, millis(300));
        let call = |priority, timeout| {
            let payload = content(&a.env, 1, 1 << 20);
            let asked = Request { priority, ..request(OP_ECHO, Vec::new(), payload) };
            let (endpoint, addr) = (a.endpoint.clone(), b.addr);
            a.env.spawn(runtime::Class::Foreground, "call", async move {
                endpoint.call(addr, asked, timeout).await.map(|_| ())
            })
        };
        let many: Vec<_> = (0..30).map(|_| call(Priority::Background, millis(5000))).collect();
        sim.sleep(millis(100)).await;
        let refused = many.iter().filter(|call| call.is_finished()).count();
        assert!((20..=26).contains(&refused), "{refused} of 30 MiB refused, half of 12 MiB kept");
        let foreground = call(Priority::Foreground, millis(5000));
        sim.sleep(millis(10)).await;
        assert!(!foreground.is_finished(), "there is room for what a user waits for");
        assert_eq!(foreground.await.expect("ran"), Ok(()));
        for call in many {
            let result = call.await.expect("ran");
            assert!(matches!(result, Ok(()) | Err(CallError::Busy)), "{result:?}");
        }
    });
}

/// Duration of a small call while `large` calls of 1 MiB each way are under way. The world moves 1
/// MiB per 5 to 10 ms.
fn small_among_large(priority: Priority, large: Priority) -> Duration {
    let took = std::rc::Rc::new(std::cell::Cell::new(Duration::ZERO));
    let result = took.clone();
    let limits = Limits { queue_bytes_max: 256 << 20, ..Limits::default() };
    pair(7, limits, async |sim, a, b| {
        set_net(&sim, NetFaults { latency: (millis(5), millis(10)), ..NetFaults::default() });
        echo(&a, &b, 1, 1).await;
        let mut calls = Vec::new();
        for _ in 0..40 {
            let payload = content(&a.env, 1, 1 << 20);
            let asked = Request { priority: large, ..request(OP_ECHO, Vec::new(), payload) };
            let (endpoint, addr) = (a.endpoint.clone(), b.addr);
            calls.push(a.env.spawn(runtime::Class::Foreground, "large", async move {
                endpoint.call(addr, asked, millis(20_000)).await.map(|_| ())
            }));
        }
        sim.sleep(millis(50)).await;
        let before = sim.elapsed();
        let asked = Request { priority, ..request(OP_ECHO, vec![1; 100], None) };
        a.call(b.addr, asked, millis(5000)).await.expect("an answer");
        result.set(sim.elapsed() - before);
        assert!(calls.iter().any(|call| !call.is_finished()), "the large ones are under way");
        for call in calls {
            assert_eq!(call.await.expect("ran"), Ok(()));
        }
    });
    took.get()
}

#[test]
fn a_small_request_does_not_wait_behind_megabytes() {
    for (small, large) in [
        (Priority::Foreground, Priority::Background),
        (Priority::Foreground, Priority::Foreground),
        (Priority::Control, Priority::Foreground),
    ] {
        // A round trip is 10 to 20 ms, and before it in the socket are at most three parts, each
        // way. Behind all 40 MiB it would be 400 ms at least.
        let took = small_among_large(small, large);
        assert!(took < millis(60), "{small:?} took {took:?} among {large:?}");
    }
}

#[test]
fn requests_of_one_flow_keep_their_order() {
    let limits = Limits { queue_bytes_max: 256 << 20, ..Limits::default() };
    pair(10, limits, async |_, a, b| {
        echo(&a, &b, 1, 1).await;
        b.server.echoed.borrow_mut().clear();
        let mut calls = Vec::new();
        for number in 0..90u8 {
            // Two flows and none, each with sizes in all orders.
            let flow = u64::from(number % 3);
            let len = [1 << 20, 4096, 300 << 10, 100][usize::from(number / 3 % 4)];
            let payload = content(&a.env, 1, len);
            let asked = Request { flow, ..request(OP_ECHO, vec![number], payload) };
            let (endpoint, addr) = (a.endpoint.clone(), b.addr);
            let mut call =
                Box::pin(
                    async move { endpoint.call(addr, asked, millis(20_000)).await.map(|_| ()) },
                );
            // A call is made when it is polled first.
            let polled = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
            calls.push(call);
        }
        for call in calls {
            assert_eq!(call.await, Ok(()));
        }
        let arrived: Vec<u8> = b.server.echoed.borrow().iter().map(|body| body[0]).collect();
        let of = |flow| arrived.iter().copied().filter(move |number| number % 3 == flow);
        assert_eq!(arrived.len(), 90);
        assert!(of(1).is_sorted() && of(2).is_sorted(), "{arrived:?}");
        assert!(!of(0).is_sorted(), "small ones without a flow overtake large ones");
    });
}

#[test]
fn a_payload_without_memory_is_answered_busy() {
    pair(8, Limits::default(), async |sim, a, b| {
        echo(&a, &b, 1, 1).await;
        let hog: Vec<_> = (0..63).map(|_| b.env.pool().alloc(4 << 20).expect("room")).collect();
        let mut rest = Vec::new();
        while let Ok(buf) = b.env.pool().alloc(256) {
            rest.push(buf);
        }
        let ask = async || {
            let payload = content(&a.env, 5, 1 << 20);
            a.call(b.addr, request(OP_ECHO, Vec::new(), payload), millis(1000)).await
        };
        assert_eq!(ask().await.unwrap_err(), CallError::Busy);
        drop((hog, rest));
        sim.sleep(millis(10)).await;
        assert!(ask().await.is_ok(), "the link has survived");
        assert_eq!(a.endpoint.stats().links_broken, 0);
    });
}

#[test]
fn answers_of_any_size_come_in_aligned_buffers() {
    pair(9, Limits::default(), async |_, a, b| {
        for len in [4096usize, 8192, 1 << 20, 4 << 20] {
            let mut asked = request(OP_FETCH, (len as u64).to_le_bytes().to_vec(), None);
            asked.service = Service::DATA;
            let answer = a.call(b.addr, asked, millis(1000)).await.expect("an answer");
            let payload = answer.payload.expect("a payload");
            assert!(payload.is_aligned());
            assert!(payload.iter().enumerate().all(|(i, &byte)| byte == byte_at(len as u64, i)));
            assert!(payload.try_into_mut().is_ok(), "it is the only view");
        }
    });
}

#[test]
fn concurrent_first_calls_make_one_connection() {
    pair(10, Limits::default(), async |_, a, b| {
        let calls: Vec<_> = (0..50)
            .map(|_| {
                let (endpoint, addr) = (a.endpoint.clone(), b.addr);
                a.env.spawn(runtime::Class::Foreground, "call", async move {
                    endpoint.call(addr, request(OP_ECHO, Vec::new(), None), millis(500)).await
                })
            })
            .collect();
        for call in calls {
            assert!(call.await.expect("ran").is_ok());
        }
        assert_eq!(b.endpoint.stats().links_opened, 1);
        let env = a.env.clone();
        on(&env, async move { a.endpoint.close() }).await;
    });
}

/// More than `queue_bytes_max` of answers: they leave as fast as their caller takes them.
#[test]
fn answers_beyond_the_queues_bound_arrive_one_after_the_other() {
    let sim = pair(11, Limits::default(), async |sim, a, b| {
        echo(&a, &b, 1, 1).await;
        let calls: Vec<_> = (0..40)
            .map(|_| {
                let asked = request(OP_FETCH, (1u64 << 20).to_le_bytes().to_vec(), None);
                let (endpoint, addr) = (a.endpoint.clone(), b.addr);
                a.env.spawn(runtime::Class::Foreground, "call", async move {
                    endpoint.call(addr, asked, millis(20_000)).await
                })
            })
            .collect();
        sim.sleep(millis(1)).await;
        for call in calls {
            let answer = call.await.expect("ran").expect("an answer");
            assert_eq!(answer.payload.map(|payload| payload.len()), Some(1 << 20));
        }
        assert_eq!(a.endpoint.stats().links_broken, 0);
        assert_eq!(b.endpoint.stats().busy, 0);
    });
    assert!(sim.marks().contains_key("transport: request deferred"), "{:?}", sim.marks());
}

#[test]
fn cancelled_calls_give_their_payloads_back_while_the_peer_takes_nothing() {
    let sim = pair(41, Limits::default(), async |sim, a, b| {
        echo(&a, &b, 1, 1).await;
        let before = a.env.pool().used();
        sim.pause(b.id, millis(300));
        let call = |len: usize| {
            let asked = request(OP_ECHO, Vec::new(), content(&a.env, 1, len));
            let (endpoint, addr) = (a.endpoint.clone(), b.addr);
            a.env.spawn(runtime::Class::Foreground, "call", async move {
                endpoint.call(addr, asked, millis(5000)).await.map(|_| ())
            })
        };
        let calls: Vec<_> = (0..12).map(|_| call(1 << 20)).collect();
        sim.sleep(millis(50)).await;
        let queued = || a.endpoint.stats().links[0].queued_bytes;
        assert!(queued() > 10 << 20, "{} bytes wait", queued());
        calls.iter().for_each(runtime::JoinHandle::abort);
        sim.sleep(millis(1)).await;
        // One of them has begun to leave.
        assert!(queued() <= (1 << 20) + 4096, "{} bytes of cancelled calls wait", queued());
        let held = a.env.pool().used() - before;
        assert!(held <= 3 << 20, "{held} bytes of cancelled calls are held");
        sim.sleep(millis(400)).await;
        echo(&a, &b, 100, 1 << 20).await;
        assert_eq!(queued(), 0);
        // Calls that have gone do not count as waiting for credit.
        sim.sleep(Duration::from_secs(30)).await;
        assert_eq!(a.endpoint.stats().links_broken, 0);
    });
    assert!(sim.marks().contains_key("transport: cancelled message dropped from the queue"));
}

#[test]
fn answers_to_cancelled_requests_give_their_payloads_back_without_credit() {
    pair(42, Limits::default(), async |sim, a, b| {
        let before = b.env.pool().used();
        let (env, addr) = (a.env.clone(), b.addr);
        let mut raw = on(&env.clone(), async move { Raw::admitted(&env, addr).await }).await;
        let (world, endpoint, pool) = (sim.clone(), b.endpoint.clone(), b.env.pool().clone());
        let peer = async move {
            for number in 1..=10 {
                raw.request(number, OP_FETCH, &u64::to_le_bytes(1 << 20)).await;
            }
            world.sleep(millis(100)).await;
            let queued = || endpoint.stats().links[0].queued_bytes;
            assert!(queued() >= 10 << 20, "{} bytes wait for credit", queued());
            for number in 1..=10 {
                raw.cancel(number).await;
            }
            world.sleep(millis(100)).await;
            // One of them has begun to leave.
            assert!(queued() <= (1 << 20) + 4096, "{} bytes of cancelled answers", queued());
            let held = pool.used() - before;
            assert!(held <= 3 << 20, "{held} bytes of cancelled answers are held");
            assert_eq!(endpoint.stats().links[0].serving, 1);
        };
        on(&a.env, peer).await;
    });
}

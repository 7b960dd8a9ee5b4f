//! Peers that die, fall silent, and come back.

use std::time::Duration;

use base::Kind;
use runtime::sim::{CrashMode, NetFaults, Sim};
use transport::{CallError, Limits};

use crate::harness::{Host, OP_ECHO, OP_HOLD, millis, pair, partition, request, set_net, start};

async fn ping(a: &Host, b: &Host) -> Result<(), CallError> {
    a.call(b.addr, request(OP_ECHO, vec![1], None), millis(2000)).await.map(|_| ())
}

/// The outcome of a call that is being handled when `accident` happens, and how long after it
/// the caller knows.
fn call_through(
    seed: u64,
    accident: impl FnOnce(&Sim, &Host, &Host) + 'static,
) -> (CallError, Duration) {
    let outcome = std::rc::Rc::new(std::cell::RefCell::new(None));
    let result = outcome.clone();
    pair(seed, Limits::default(), async |sim, a, b| {
        ping(&a, &b).await.expect("both are up");
        let (endpoint, addr) = (a.endpoint.clone(), b.addr);
        let call = a.env.spawn(runtime::Class::Foreground, "call", async move {
            endpoint.call(addr, request(OP_HOLD, Vec::new(), None), millis(10_000)).await
        });
        sim.sleep(millis(30)).await;
        let at = sim.elapsed();
        accident(&sim, &a, &b);
        let error = call.await.expect("ran").unwrap_err();
        *result.borrow_mut() = Some((error, sim.elapsed() - at));
    });
    outcome.take().expect("the call has ended")
}

#[test]
fn a_killed_process_fails_calls_at_once() {
    let (error, after) = call_through(21, |sim, _, b| sim.crash(b.id, CrashMode::Process));
    assert_eq!((&error, error.kind()), (&CallError::Closed, Kind::Unknown));
    assert!(after < millis(5), "{after:?}");
}

#[test]
fn a_silent_peer_fails_calls_within_a_second() {
    let accidents: [fn(&Sim, &Host, &Host); 4] = [
        |sim, _, b| sim.crash(b.id, CrashMode::Power),
        |sim, a, b| partition(sim, a.id, b.id),
        |sim, a, b| sim.set_blocked(b.id, a.id, true),
        |sim, _, b| sim.pause(b.id, Duration::from_secs(30)),
    ];
    for (number, accident) in accidents.into_iter().enumerate() {
        let (error, after) = call_through(22, accident);
        assert_eq!(error, CallError::Closed);
        assert!((millis(400)..millis(900)).contains(&after), "accident {number}: {after:?}");
    }
}

#[test]
fn calls_fail_fast_while_a_peer_is_away_and_work_when_it_is_back() {
    let sim = pair(23, Limits::default(), async |sim, a, b| {
        ping(&a, &b).await.expect("both are up");
        sim.crash(b.id, CrashMode::Process);
        sim.sleep(millis(20)).await;
        // The port answers "refused" or nothing; the first call finds out, later ones know.
        let first = ping(&a, &b).await.unwrap_err();
        assert!(matches!(first, CallError::Unreachable(_)), "{first:?}");
        assert_eq!(first.kind(), Kind::Retry);
        let mut quick = 0;
        for _ in 0..20 {
            let before = sim.elapsed();
            let error = ping(&a, &b).await.unwrap_err();
            assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
            quick += u32::from(sim.elapsed() - before < millis(1));
            sim.sleep(millis(20)).await;
        }
        assert!(quick >= 10, "{quick} of 20 calls failed at once");
        let back = start(&sim, b.id, "server b", Limits::default()).await;
        let from = sim.elapsed();
        while ping(&a, &back).await.is_err() {
            sim.sleep(millis(5)).await;
        }
        let after = sim.elapsed() - from;
        assert!(after < millis(500), "found again after {after:?}");
        assert_eq!(a.endpoint.stats().links.len(), 1);
    });
    assert!(sim.events() > 100);
}

#[test]
fn a_call_waits_for_a_peer_that_is_being_connected_to() {
    pair(24, Limits::default(), async |sim, a, b| {
        partition(&sim, a.id, b.id);
        let world = sim.clone();
        sim.spawn("heal", async move {
            world.sleep(millis(400)).await;
            world.heal_network();
        });
        let before = sim.elapsed();
        ping(&a, &b).await.expect("the connection comes through after the heal");
        assert!(sim.elapsed() - before >= millis(400));
    });
}

#[test]
fn a_call_that_cannot_leave_had_no_effect() {
    pair(25, Limits::default(), async |sim, a, b| {
        partition(&sim, a.id, b.id);
        let asked = request(OP_ECHO, vec![1], None);
        let error = a.call(b.addr, asked, millis(100)).await.unwrap_err();
        assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
        assert_eq!(error.kind(), Kind::Retry);
        assert_eq!(b.server.seen.get(), 0);
    });
}

#[test]
fn a_half_open_link_goes_away() {
    let sim = pair(26, Limits::default(), async |sim, a, b| {
        ping(&a, &b).await.expect("both are up");
        assert_eq!(b.endpoint.stats().links.len(), 1);
        sim.crash(a.id, CrashMode::Power);
        sim.sleep(Duration::from_secs(13)).await;
        assert_eq!(b.endpoint.stats().links.len(), 0, "the server has probed the idle link");
    });
    assert!(sim.marks().contains_key("transport: silent peer"));
}

#[test]
fn an_idle_link_stays_up() {
    pair(27, Limits::default(), async |sim, a, b| {
        ping(&a, &b).await.expect("both are up");
        sim.sleep(Duration::from_secs(120)).await;
        ping(&a, &b).await.expect("both are up");
        assert_eq!(a.endpoint.stats().links_opened, 1);
    });
}

#[test]
fn a_slow_handler_is_not_a_silent_peer() {
    pair(28, Limits::default(), async |_, a, b| {
        let asked = request(crate::harness::OP_SLOW, 5_000_000u64.to_le_bytes().to_vec(), None);
        a.call(b.addr, asked, millis(8000)).await.expect("an answer after 5 s");
        assert_eq!(a.endpoint.stats().links_opened, 1);
    });
}

#[test]
fn lost_frames_are_timeouts_and_nothing_more() {
    let sim = pair(29, Limits::default(), async |sim, a, b| {
        ping(&a, &b).await.expect("both are up");
        set_net(&sim, NetFaults { drop_one_in: 3, ..NetFaults::default() });
        let (mut good, mut lost) = (0, 0);
        for _ in 0..100 {
            let asked = request(OP_ECHO, vec![1], None);
            match a.call(b.addr, asked, millis(50)).await {
                Ok(_) => good += 1,
                Err(error) => {
                    assert_eq!(error, CallError::Timeout);
                    lost += 1;
                }
            }
        }
        assert!(good > 20 && lost > 20, "{good} good, {lost} lost");
        assert_eq!(a.endpoint.stats().links_broken, 0);
    });
    assert!(sim.marks()["transport: frame dropped"] > 20);
}

/// What holds the whole buffer budget may wait for a connection: that must come about all the same.
#[test]
fn a_connection_is_made_while_the_buffer_budget_is_spent() {
    pair(31, Limits::default(), async |_, a, b| {
        let mut taken = Vec::new();
        for size in [1 << 20, 64 << 10, 4 << 10, 64] {
            while let Ok(buf) = a.env.pool().alloc(size) {
                taken.push(buf);
            }
        }
        ping(&a, &b).await.expect("the peer is up");
        // Those that others make wait for memory: each takes some before its peer has proven itself.
        let refused = ping(&b, &a).await.expect_err("host a has no memory");
        assert_eq!(refused.kind(), Kind::Retry, "{refused:?}");
        drop(taken);
        a.env.sleep(millis(500)).await; // The pause behind the failed attempt.
        ping(&b, &a).await.expect("it has some again");
    });
}

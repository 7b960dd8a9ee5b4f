//! Random calls under random faults: every call ends in time, every answer is that of its question,
//! and when the faults are over all calls succeed again.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use runtime::sim::{CrashMode, HostId, NetFaults, Sim};
use runtime::{Class, Env, Rng};
use transport::{CallError, Endpoint, Handler, Incoming, Limits, Priority, Request, Response};
use transport::{Service, Token};

use crate::harness::{PORT, byte_at, content, identity, millis, partition, set_net};

const HOSTS: usize = 3;
const CALLERS: usize = 6;
const CALLS: u64 = 100;
/// A host that is paused does nothing for this long.
const PAUSE: Duration = Duration::from_millis(90);
/// Time after its own timeout within which a call must have ended.
const SLACK: Duration = Duration::from_millis(91);

#[derive(Default)]
struct Tally {
    good: Cell<u64>,
    failed: Cell<u64>,
}

/// Answers body and payload reversed in meaning: a payload of the length the body asks for.
struct Mirror(Env);

impl Handler for Mirror {
    fn handle(&self, incoming: Incoming) {
        let env = self.0.clone();
        let Incoming { request, reply, .. } = incoming;
        env.clone().spawn(Class::Foreground, "mirror", async move {
            let number = u64::from_le_bytes(request.body[..8].try_into().expect("8 bytes"));
            let payload = request.payload.as_deref().unwrap_or(&[]);
            assert!(
                payload.iter().enumerate().all(|(i, &byte)| byte == byte_at(number, i)),
                "the payload of another request, or torn"
            );
            if env.random_below(3) == 0 {
                env.sleep(Duration::from_micros(env.random_below(20_000))).await;
            }
            let len = size(env.random_below(5), env.random_u64());
            let response = match env.random_below(20) {
                0 => return drop(reply),
                1 => return reply.busy(),
                _ => {
                    Response { status: 0, body: request.body, payload: content(&env, !number, len) }
                }
            };
            reply.send(response);
        });
    }
}

fn size(kind: u64, draw: u64) -> usize {
    match kind {
        0 => 0,
        1 => 4096,
        2 => (draw % 2000) as usize,
        3 => 4096 * (1 + draw % 20) as usize,
        _ => (draw % (700 << 10)) as usize,
    }
}

fn limits(rng: &mut Rng) -> Limits {
    Limits {
        part_bytes: 4096 << rng.below(7),
        parts_inflight_max: rng.between(1, 4) as u32,
        staging_bytes: 8192 << rng.below(4),
        staged_tail_max: 1024 << rng.below(3),
        batch_bytes: 1 << rng.between(10, 18),
        batch_frames: rng.between(1, 128) as usize,
        requests_inflight_max: rng.between(1, 5) as usize,
        ..Limits::default()
    }
}

async fn run_node(env: Env, sim: Sim, number: usize, hosts: Vec<HostId>, tally: Rc<Tally>) {
    let limits = sim.with_rng(limits);
    let endpoint = Endpoint::new(&env, identity(&format!("node {number}")), limits);
    let addr = sim.addr(hosts[number], PORT);
    endpoint.listen(addr, Rc::new(Mirror(env.clone()))).await.expect("a free address");
    for _ in 0..CALLERS {
        let caller =
            caller(env.clone(), endpoint.clone(), sim.clone(), hosts.clone(), tally.clone());
        env.spawn(Class::Foreground, "caller", caller);
    }
}

async fn caller(env: Env, endpoint: Endpoint, sim: Sim, hosts: Vec<HostId>, tally: Rc<Tally>) {
    for _ in 0..CALLS {
        env.sleep(Duration::from_micros(env.random_below(30_000))).await;
        let number = env.random_u64();
        let peer = sim.addr(hosts[env.random_below(HOSTS as u64) as usize], PORT);
        let len = size(env.random_below(5), env.random_u64());
        let request = Request {
            service: Service::new(1 + env.random_below(3) as u8).expect("a number in range"),
            op: 1,
            priority: Priority::ALL[env.random_below(3) as usize],
            flow: 0,
            trace: base::TraceId::new(number),
            token: Token([3; 16]),
            body: [&number.to_le_bytes()[..], &vec![9; size(env.random_below(3), number)]].concat(),
            payload: content(&env, number, len),
        };
        let body = request.body.clone();
        let timeout = Duration::from_micros(1000 + env.random_below(500_000));
        let before = env.now();
        let result = endpoint.call(peer, request, timeout).await;
        let took = env.now() - before;
        assert!(took <= timeout + SLACK, "a call of {timeout:?} took {took:?}");
        match result {
            Ok(answer) => {
                assert_eq!(answer.body, body, "the answer of another call");
                let payload = answer.payload.as_deref().unwrap_or(&[]);
                let good = payload.iter().enumerate().all(|(i, &b)| b == byte_at(!number, i));
                assert!(good, "a torn answer");
                tally.good.set(tally.good.get() + 1);
            }
            Err(CallError::Refused(why)) => panic!("refused: {why}"),
            Err(_) => tally.failed.set(tally.failed.get() + 1),
        }
    }
}

async fn accidents(sim: Sim, hosts: Vec<HostId>, tally: Rc<Tally>) {
    for _ in 0..25 {
        sim.sleep(millis(100)).await;
        let (victim, other, kind) = sim.with_rng(|rng| {
            let victim = rng.below(HOSTS as u64) as usize;
            (victim, (victim + 1) % HOSTS, rng.below(8))
        });
        match kind {
            0 | 1 => {
                let mode = if kind == 0 { CrashMode::Process } else { CrashMode::Power };
                sim.crash(hosts[victim], mode);
                sim.sleep(millis(50)).await;
                let env = sim.boot(hosts[victim]);
                let node = run_node(env.clone(), sim.clone(), victim, hosts.clone(), tally.clone());
                env.spawn(Class::Foreground, "node", node);
            }
            2 => partition(&sim, hosts[victim], hosts[other]),
            3 => sim.set_blocked(hosts[victim], hosts[other], true),
            4 => sim.pause(hosts[victim], PAUSE),
            5 => set_net(
                &sim,
                NetFaults {
                    drop_one_in: 20,
                    duplicate_one_in: 20,
                    delay_one_in: 20,
                    reset_one_in: 500,
                    ..NetFaults::default()
                },
            ),
            _ => {
                sim.heal_network();
                set_net(&sim, NetFaults::default());
            }
        }
    }
    sim.heal_network();
    set_net(&sim, NetFaults::default());
}

fn run(seed: u64) -> (u64, Vec<&'static str>) {
    let sim = Sim::new(seed);
    let hosts: Vec<_> = (0..HOSTS).map(|number| sim.add_host(&format!("h{number}"))).collect();
    let tally = Rc::new(Tally::default());
    for number in 0..HOSTS {
        let env = sim.boot(hosts[number]);
        let node = run_node(env.clone(), sim.clone(), number, hosts.clone(), tally.clone());
        env.spawn(Class::Foreground, "node", node);
    }
    let world = sim.clone();
    sim.run(async {
        accidents(world.clone(), hosts.clone(), tally.clone()).await;
        // The quiet phase: callers come to their ends, and all is given back.
        world.sleep(Duration::from_secs(20)).await;
        for host in &hosts {
            let env = world.env(*host).expect("it runs");
            assert!(env.pool().used() < 4 << 20, "{} bytes kept", env.pool().used());
        }
    })
    .expect("nothing stalls");
    let (good, failed) = (tally.good.get(), tally.failed.get());
    assert!(good > 500 && failed > 20, "seed {seed}: {good} good, {failed} failed");
    (sim.trace_hash(), sim.marks().into_keys().collect())
}

#[test]
fn random_calls_end_with_an_answer_or_an_error() {
    let mut marks = std::collections::BTreeSet::new();
    for seed in [51, 52] {
        let (hash, reached) = run(seed);
        assert_eq!(run(seed).0, hash, "two runs of seed {seed} differ");
        marks.extend(reached);
    }
    for mark in [
        "transport: frame dropped",
        "transport: silent peer",
        "transport: answer without a caller",
        "transport: request cancelled",
        "transport: request answered busy",
    ] {
        assert!(marks.contains(mark), "'{mark}' was never reached: {marks:?}");
    }
}

//! Round trips of 4 KiB calls over TCP between two executors, and within one: time and CPU.
//!
//! `cargo run --release -p transport --example calls [calls]`
//!
//! Expected: the round trip of the bare stream (runtime's bench, echo) plus 1 us each side at
//! depth 1; at depth 32 about 1 us of CPU per call and side, kernel included; within an executor
//! below 1 us.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::{ClusterId, TraceId};
use runtime::{Buf, Class, Cores, Env, Handle, PollPolicy, RuntimeConfig};
use transport::{
    ClusterKey, Endpoint, Identity, Incoming, Limits, Priority, Request, Response, Service, Token,
};

const TIMEOUT: Duration = Duration::from_secs(5);

fn endpoint(env: &Env, name: &str) -> Endpoint {
    let key = Some(ClusterKey::new([1; 32]));
    let identity = Identity { cluster: ClusterId::new(1), key, name: name.to_owned() };
    Endpoint::new(env, identity, Limits::default())
}

async fn listen(env: Env) -> SocketAddr {
    // As a chunkserver answers an append: the payload stays, a few bytes go back.
    let handler = |incoming: Incoming| incoming.reply.send(Response::ok(vec![0; 8]));
    let addr = SocketAddr::from(([127, 0, 0, 1], 0));
    endpoint(&env, "server").listen(addr, Rc::new(handler)).await.expect("a free port")
}

fn request(payload: Option<Buf>, priority: Priority) -> Request {
    Request {
        service: Service::DATA,
        op: 1,
        priority,
        flow: 0,
        trace: TraceId::new(1),
        token: Token::NONE,
        body: vec![0; 56],
        payload,
    }
}

/// Latencies of small calls while `loaders` tasks send 1 MiB appends on the same link.
async fn beside(env: Env, addr: SocketAddr, loaders: usize, calls: usize) -> Vec<u64> {
    let endpoint = endpoint(&env, "client");
    let payload = env.pool().alloc_zeroed(1 << 20).expect("room").freeze();
    for _ in 0..loaders {
        let (endpoint, payload) = (endpoint.clone(), payload.clone());
        env.spawn(Class::Background, "loader", async move {
            let large = || request(Some(payload.clone()), Priority::Background);
            while endpoint.call(addr, large(), TIMEOUT).await.is_ok() {}
        });
    }
    let mut took = Vec::with_capacity(calls);
    for _ in 0..calls {
        let before = env.now();
        let small = request(None, Priority::Control);
        endpoint.call(addr, small, TIMEOUT).await.expect("an answer");
        took.push(env.now().since(before).as_nanos() as u64);
    }
    endpoint.close();
    took
}

/// Latencies in nanoseconds.
async fn drive(env: Env, addr: SocketAddr, depth: usize, calls: usize, len: usize) -> Vec<u64> {
    let endpoint = endpoint(&env, "client");
    let payload = env.pool().alloc_zeroed(len).expect("room").freeze();
    let tasks: Vec<_> = (0..depth)
        .map(|_| {
            let (endpoint, env, payload) = (endpoint.clone(), env.clone(), payload.clone());
            env.clone().spawn(Class::Foreground, "caller", async move {
                let mut took = Vec::with_capacity(calls / depth);
                for _ in 0..calls / depth {
                    let request = request(Some(payload.clone()), Priority::Foreground);
                    let before = env.now();
                    endpoint.call(addr, request, TIMEOUT).await.expect("an answer");
                    took.push(env.now().since(before).as_nanos() as u64);
                }
                took
            })
        })
        .collect();
    let mut all = Vec::with_capacity(calls);
    for task in tasks {
        all.extend(task.await.expect("ran"));
    }
    endpoint.close();
    all
}

/// CPU time of this process's thread with this name, in nanoseconds.
fn cpu_of(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    for task in tasks.flatten() {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").trim() == name {
            return read("schedstat").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        }
    }
    0
}

fn measure(what: &str, handle: &Handle, addr: SocketAddr, depth: usize, calls: usize, len: usize) {
    let run = |calls| {
        let work = move |env: Env| drive(env, addr, depth, calls, len);
        handle.spawn(work).wait().expect("the executor lives")
    };
    run(calls / 10 + depth);
    let threads = ["bench-0", "bench-1"];
    let before = threads.map(cpu_of);
    let started = handle.spawn(|env| async move { env.now() }).wait().expect("lives");
    let mut took = run(calls);
    let elapsed =
        handle.spawn(move |env| async move { env.now().since(started) }).wait().expect("lives");
    let after = threads.map(cpu_of);
    took.sort_unstable();
    let count = took.len() as f64;
    let mean = took.iter().sum::<u64>() as f64 / count / 1e3;
    let at = |part: f64| took[((count * part) as usize).min(took.len() - 1)] as f64 / 1e3;
    let cpu = |index: usize| (after[index] - before[index]) as f64 / count / 1e3;
    println!(
        "{what:<34}{mean:>9.1}{:>9.1}{:>9.1}{:>11.0}{:>11.2}{:>11.2}",
        at(0.5),
        at(0.99),
        count / elapsed.as_secs_f64(),
        cpu(0),
        cpu(1),
    );
}

fn main() {
    let calls: usize =
        std::env::args().nth(1).map_or(100_000, |text| text.parse().expect("a number"));
    println!(
        "{:<34}{:>9}{:>9}{:>9}{:>11}{:>11}{:>11}",
        "call", "mean us", "p50", "p99", "calls/s", "client us", "server us"
    );
    for poll in [PollPolicy::Never, PollPolicy::default()] {
        println!("{poll:?}");
        rows(poll, calls);
    }
}

fn rows(poll: PollPolicy, calls: usize) {
    let config = RuntimeConfig { poll, ..RuntimeConfig::named("bench") };
    let cores = Cores::start(&config, 2).expect("io_uring");
    let [client, server] = cores.handles() else { unreachable!("two were asked for") };
    let remote = server.spawn(listen).wait().expect("lives");
    let local = client.spawn(listen).wait().expect("lives");
    for depth in [1, 32] {
        measure(&format!("TCP, 4 KiB, depth {depth}"), client, remote, depth, calls, 4096);
    }
    measure("TCP, 1 MiB, depth 4", client, remote, 4, calls / 50, 1 << 20);
    measure("within the executor, 4 KiB", client, local, 1, calls, 4096);
    for loaders in [0, 1, 8] {
        let calls = calls / 50;
        let mut took = client
            .spawn(move |env| beside(env, remote, loaders, calls))
            .wait()
            .expect("the executor lives");
        took.sort_unstable();
        let at = |part: f64| took[(took.len() as f64 * part) as usize] as f64 / 1e3;
        let mean = took.iter().sum::<u64>() as f64 / took.len() as f64 / 1e3;
        let what = format!("120 B beside {loaders} x 1 MiB");
        println!("{what:<34}{mean:>9.1}{:>9.1}{:>9.1}", at(0.5), at(0.99));
    }
}

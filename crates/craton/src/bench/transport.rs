//! `craton bench transport`: calls between two executors over TCP.

use std::rc::Rc;

use base::{ClusterId, TraceId};
use futures_util::future::try_join_all;
use runtime::{Cores, Duration, Env, RuntimeConfig};
use std::net::SocketAddr;
use transport::{
    Endpoint, Identity, Incoming, Limits, Priority, Request, Response, Service, Token,
};

use crate::bench::{Latencies, Report, Row};
use crate::connect;
use crate::exit::Failure;

const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Measures every combination of size and depth.
pub fn measure(sizes: &[usize], depths: &[usize], time: Duration) -> Result<Report, Failure> {
    let config = RuntimeConfig { huge_pages: false, ..RuntimeConfig::named("echo") };
    let cores = Cores::start(&config, 1)
        .map_err(|error| Failure::setup(format!("cannot start an executor: {error}")))?;
    let served = cores.handles()[0].spawn(serve).wait();
    let addr = served.map_err(|refused| Failure::failed(refused.to_string()))??;
    let runtime = connect::runtime()?;
    let mut results = Vec::new();
    for &size in sizes {
        if !size.is_multiple_of(4096) || size > 4 << 20 {
            return Err(Failure::usage(format!(
                "--size {size} is no payload: a multiple of 4096, up to 4194304"
            )));
        }
        for &depth in depths {
            results.push(runtime.block_on(run(runtime.env(), addr, size, depth, time))?);
        }
    }
    Ok(Report::new("transport", results))
}

fn endpoint(env: &Env, name: &str) -> Endpoint {
    let identity = Identity { cluster: ClusterId::default(), key: None, name: name.to_owned() };
    Endpoint::new(env, identity, Limits::default())
}

async fn serve(env: Env) -> Result<SocketAddr, Failure> {
    // It lives with its executor.
    let endpoint = endpoint(&env, "echo");
    let handler = |incoming: Incoming| incoming.reply.send(Response::ok(Vec::new()));
    Ok(endpoint.listen(SocketAddr::from(([127, 0, 0, 1], 0)), Rc::new(handler)).await?)
}

async fn run(
    env: &Env,
    addr: SocketAddr,
    size: usize,
    depth: usize,
    time: Duration,
) -> Result<Row, Failure> {
    let endpoint = endpoint(env, "bench");
    let memory = |error: runtime::OutOfMemory| Failure::failed(error.to_string());
    let payload = match size {
        0 => None,
        size => Some(env.pool().alloc_zeroed(size).map_err(memory)?.freeze()),
    };
    let (began, end) = (env.now(), env.now() + time);
    let workers = (0..depth.max(1)).map(|_| async {
        let mut latencies = Latencies::default();
        while env.now() < end {
            let request = Request {
                service: Service::DATA,
                op: 0,
                priority: Priority::Foreground,
                flow: 0,
                trace: TraceId::new(0),
                token: Token::NONE,
                body: Vec::new(),
                payload: payload.clone(),
            };
            let sent = env.now();
            let answer = endpoint.call(addr, request, CALL_TIMEOUT).await;
            answer.map_err(|error| Failure::failed(error.to_string()))?;
            latencies.add(env.now() - sent);
        }
        Ok::<_, Failure>(latencies)
    });
    let mut all = Latencies::default();
    for latencies in try_join_all(workers).await? {
        all.merge(latencies);
    }
    let mut row = Row { size: Some(size as u64), depth, ..Row::default() };
    all.fill(&mut row, env.now() - began);
    if size > 0 {
        row.mib_per_s = Some(row.ops_per_s * size as f64 / f64::from(1 << 20));
    }
    endpoint.close();
    Ok(row)
}

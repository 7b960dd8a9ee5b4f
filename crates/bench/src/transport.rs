//! Calls between two executors over TCP.

use std::net::SocketAddr;
use std::rc::Rc;

use base::{ClusterId, TraceId};
use futures_util::future::try_join_all;
use runtime::{Cores, Duration, Env, RuntimeConfig};
use transport::{
    Endpoint, Identity, Incoming, Limits, Priority, Request, Response, Service, Token,
};

use super::{Error, Latencies, Report, Row};

/// Time that a call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a call's payload at most.
const PAYLOAD_MAX: usize = 4 << 20;

/// Options of the transport's measurement: every combination of sizes and depths.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// Bytes of a call's payload: multiples of 4096, up to 4 MiB.
    pub sizes: Vec<usize>,
    /// Calls in flight.
    pub depths: Vec<usize>,
    /// Time for each combination.
    pub duration: Duration,
}

/// A server on an executor of its own that answers every call without a payload. It ends when
/// dropped.
pub struct Echo {
    addr: SocketAddr,
    _executor: Cores,
}

impl Echo {
    /// Starts it, on a free port of 127.0.0.1. [`Error::Setup`] without an executor or a port.
    pub fn start() -> Result<Echo, Error> {
        let config = RuntimeConfig { huge_pages: false, ..RuntimeConfig::named("echo") };
        let executor = Cores::start(&config, 1)
            .map_err(|error| Error::Setup(format!("cannot start an executor: {error}")))?;
        let served = executor.handles()[0].spawn(serve).wait();
        Ok(Echo { addr: served.map_err(Error::failed)??, _executor: executor })
    }

    /// Measures calls from the executor of `env`. [`Error::Payload`] for a size that
    /// is none.
    pub async fn measure(&self, env: &Env, options: &TransportOptions) -> Result<Report, Error> {
        let mut results = Vec::new();
        for &size in &options.sizes {
            if !size.is_multiple_of(4096) || size > PAYLOAD_MAX {
                return Err(Error::Payload(size));
            }
            for &depth in &options.depths {
                results.push(run(env, self.addr, size, depth, options.duration).await?);
            }
        }
        Ok(Report::new("transport", results))
    }
}

fn endpoint(env: &Env, name: &str) -> Endpoint {
    let identity = Identity { cluster: ClusterId::default(), key: None, name: name.to_owned() };
    Endpoint::new(env, identity, Limits::default())
}

async fn serve(env: Env) -> Result<SocketAddr, Error> {
    // It lives with its executor.
    let endpoint = endpoint(&env, "echo");
    let handler = |incoming: Incoming| incoming.reply.send(Response::ok(Vec::new()));
    let listening = endpoint.listen(SocketAddr::from(([127, 0, 0, 1], 0)), Rc::new(handler)).await;
    listening.map_err(|error| Error::Setup(error.to_string()))
}

async fn run(
    env: &Env,
    addr: SocketAddr,
    size: usize,
    depth: usize,
    time: Duration,
) -> Result<Row, Error> {
    let endpoint = endpoint(env, "bench");
    let payload = match size {
        0 => None,
        size => Some(env.pool().alloc_zeroed(size).map_err(Error::failed)?.freeze()),
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
            answer.map_err(Error::failed)?;
            latencies.add(env.now() - sent);
        }
        Ok::<_, Error>(latencies)
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

//! What a process of each role is made of: its configuration file, and the assembly of the role
//! from it. The `craton` binary and the simulator start roles through this crate.
//!
//! Invariant: it knows no command line, no signal and no scenario, and starts no executor.

pub mod block;
pub mod chunkserver;
pub mod config;
pub mod failure;
pub mod format;
pub mod http;
pub mod master;
mod probe;
pub mod seams;
pub mod stores;
pub mod uses;

use std::io::ErrorKind;
use std::net::SocketAddr;

use runtime::{Duration, Env};
use transport::TransportError;

use crate::config::Logging;
use crate::failure::Done;

/// How long a role waits for a port that another process has.
const PORT_TIMEOUT: Duration = Duration::from_secs(3);
/// See [`PORT_TIMEOUT`].
const PORT_RETRY: Duration = Duration::from_millis(20);

/// Sees that the addresses are free before anything is opened, formatted or made: what cannot
/// start changes nothing. A process that was killed holds its ports for a moment.
async fn check_ports(env: &Env, addrs: impl IntoIterator<Item = SocketAddr>) -> Done {
    for addr in addrs.into_iter().filter(|addr| addr.port() != 0) {
        let end = env.now() + PORT_TIMEOUT;
        loop {
            match env.listen(addr).await {
                Ok(_) => break,
                Err(error) if error.kind() != ErrorKind::AddrInUse || env.now() >= end => {
                    return Err(TransportError::Listen(addr, error).into());
                }
                Err(_) => env.sleep(PORT_RETRY).await,
            }
        }
    }
    Ok(())
}

/// Sets the tracer of an executor up for a role that logs so.
pub fn prepare_tracer(tracer: &metrics::Tracer, log: &Logging) {
    tracer.ring().set_slow_ns(log.slow_ms.saturating_mul(1_000_000));
    switch_tracer(tracer);
}

/// Tracing is always on. `CRATON_TRACE_OFF` turns it off, for measurements of what it costs.
pub fn switch_tracer(tracer: &metrics::Tracer) {
    tracer.set_on(std::env::var_os("CRATON_TRACE_OFF").is_none());
}

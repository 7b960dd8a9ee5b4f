//! Start-up of roles: one process each, or all in one.

pub mod block;
pub mod chunkserver;
pub mod embedded;
mod http;
pub mod master;
mod probe;
mod signals;
mod stores;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;

use runtime::{Duration, Env, Runtime, RuntimeConfig};
use transport::TransportError;
use wire::handshake::ClusterKey;

use crate::config::{self, Logging};
use crate::exit::{Done, Failure};

pub use chunkserver::WARNING;
#[cfg(test)]
pub use http::fuzz_http;
pub use stores::medium;

/// A new cluster's key.
pub fn random_key(env: &Env) -> ClusterKey {
    let mut bytes = [0; 32];
    env.fill_secret(&mut bytes);
    ClusterKey::new(bytes)
}

fn key(path: Option<&Path>) -> Result<Option<ClusterKey>, Failure> {
    path.map(config::read_key).transpose()
}

/// An executor for a role, with its memory budget.
fn executor(name: &str, memory_mib: u64, log: &Logging) -> Result<Runtime, Failure> {
    let pool_bytes = config::mib(memory_mib);
    let config = RuntimeConfig { pool_bytes, ..RuntimeConfig::named(name) };
    let runtime = Runtime::new(config).map_err(|error| {
        Failure::setup(format!(
            "io_uring cannot be used here ({error}): Craton needs Linux 6.1 or later with \
             kernel.io_uring_disabled = 0, and room under 'ulimit -l'"
        ))
    })?;
    crate::trace::prepare(runtime.env().tracer(), log);
    Ok(runtime)
}

/// How long a role waits for a port that another process has.
const PORT_PATIENCE: Duration = Duration::from_secs(3);
/// See [`PORT_PATIENCE`].
const PORT_RETRY: Duration = Duration::from_millis(20);

/// Sees that the addresses are free before anything is opened, formatted or made: what cannot
/// start changes nothing. A process that was killed holds its ports for a moment.
async fn check_ports(env: &Env, addrs: impl IntoIterator<Item = SocketAddr>) -> Done {
    for addr in addrs.into_iter().filter(|addr| addr.port() != 0) {
        let end = env.now() + PORT_PATIENCE;
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

/// Sets the log up and notes what starts.
fn begin(role: &str, id: &str, log: &Logging) -> Result<(), Failure> {
    crate::log::start(log)?;
    let commit = env!("CRATON_COMMIT");
    tracing::info!(role, id, pid = std::process::id(), commit, "starts");
    Ok(())
}

/// Notes why a role ends, for those who only have its log.
fn ended<T>(result: Result<T, Failure>) -> Result<T, Failure> {
    match &result {
        Ok(_) => tracing::info!("stopped"),
        Err(failure) => tracing::error!(cause = %failure, "ends"),
    }
    result
}

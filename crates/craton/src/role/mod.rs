//! Start-up of roles: one process each, or all in one. What a role is made of is in `roles`.

pub mod embedded;
pub mod process;
mod signals;

use runtime::{Env, Runtime, RuntimeConfig};
use wire::handshake::ClusterKey;

use crate::config::{self, Logging};
use crate::exit::Failure;

/// What `craton frontend` prints of an address, as clients take it.
pub const NBD_SCHEME: &str = "nbd://";
/// The same of one that takes TLS.
const NBDS_SCHEME: &str = "nbds://";
/// The commit that this binary is built from.
const COMMIT: &str = env!("CRATON_COMMIT");

/// A new cluster's key.
pub fn random_key(env: &Env) -> ClusterKey {
    let mut bytes = [0; 32];
    env.fill_secret(&mut bytes);
    ClusterKey::new(bytes)
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
    roles::prepare_tracer(runtime.env().tracer(), log);
    Ok(runtime)
}

/// Sets the log up and notes what starts.
fn begin(role: &str, id: &str, log: &Logging) -> Result<(), Failure> {
    crate::log::start(log)?;
    tracing::info!(role, id, pid = std::process::id(), commit = COMMIT, "starts");
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

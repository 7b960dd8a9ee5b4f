//! Start-up of roles: one process each, or all in one. Crate `roles` assembles them.

pub mod embedded;
pub mod objects;
pub mod process;
mod signals;

use metrics::Tracer;
use roles::{Build, chunkserver};
use runtime::{Env, Runtime, RuntimeConfig};
use wire::handshake::ClusterKey;

use crate::exit::Failure;
use crate::log::Log;
use roles::config::{self, Logging};

/// Scheme of the address that `craton frontend` prints, as clients take it.
pub const NBD_SCHEME: &str = "nbd://";
/// The same with TLS.
const NBDS_SCHEME: &str = "nbds://";
/// Version and commit of this binary.
const BUILD: Build = Build { version: env!("CARGO_PKG_VERSION"), commit: env!("CRATON_COMMIT") };

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
    prepare_tracer(runtime.env().tracer(), log);
    Ok(runtime)
}

/// Configures the tracer of an executor by a role's log settings.
fn prepare_tracer(tracer: &Tracer, log: &Logging) {
    tracer.ring().set_slow_ns(log.slow_ms.saturating_mul(1_000_000));
    switch_tracer(tracer);
}

/// Tracing is always on. `CRATON_TRACE_OFF` turns it off, to measure its cost.
pub fn switch_tracer(tracer: &Tracer) {
    tracer.set_on(std::env::var_os("CRATON_TRACE_OFF").is_none());
}

/// Warns of the disks that a chunkserver has left out at its start.
fn warn_unopened(id: &str, role: &chunkserver::Role) {
    for unopened in &role.unopened {
        // Standard error may be on a full disk: the other disks are served all the same.
        crate::output::warn(&format!("{id}: a disk is left out: {}", unopened.error));
    }
}

/// Sets the log up and notes what starts. The log is to be kept until the role has ended.
fn begin(role: &str, id: &str, log: &Logging) -> Result<Log, Failure> {
    let log = crate::log::start(log)?;
    tracing::info!(role, id, pid = std::process::id(), commit = BUILD.commit, "starts");
    Ok(log)
}

/// Logs the failure that ends a role.
fn ended<T>(result: Result<T, Failure>) -> Result<T, Failure> {
    match &result {
        Ok(_) => tracing::info!("stopped"),
        Err(failure) => tracing::error!(cause = %failure, "ends"),
    }
    result
}

//! Roles of processes: configuration files, and the assembly of a role from its file. The `craton`
//! binary and the simulator start roles through this crate.
//!
//! The process of a role sets up logs and traces, and prints messages for its operator.
//!
//! Invariant: it knows no command line, no signal and no scenario, and starts no executor.

pub mod block;
pub mod check;
pub mod chunkserver;
pub mod config;
mod error;
pub mod format;
mod home;
pub mod http;
pub mod master;
pub mod object;
mod pages;
mod probe;
pub mod seams;
pub mod seen;
pub mod stores;
pub mod uses;

use std::io::ErrorKind;
use std::net::SocketAddr;

pub use error::Error;

use runtime::{Duration, Env};
use transport::TransportError;

/// Wait of a role for a port that another process has.
const PORT_TIMEOUT: Duration = Duration::from_secs(3);
/// See [`PORT_TIMEOUT`].
const PORT_RETRY: Duration = Duration::from_millis(20);

/// Checks that the addresses are free before anything is opened, formatted or made: a failed start
/// changes nothing. A process that was killed holds its ports for a moment.
async fn check_ports(env: &Env, addrs: impl IntoIterator<Item = SocketAddr>) -> Result<(), Error> {
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

/// Version and commit of a process, for its metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Build {
    /// The version of the release.
    pub version: &'static str,
    /// The commit.
    pub commit: &'static str,
}

//! The cluster's processes, for measurements.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use futures_util::future::LocalBoxFuture;
use runtime::Env;

use super::Error;

/// The cluster's processes on this machine: their use of CPU and disks, and the kill of a block
/// server. The caller knows them; a measurement knows roles and IDs only. A cluster on other
/// machines has none but this process.
pub trait Processes {
    /// CPU microseconds so far, user and system: those of each role's processes together, and as
    /// [`THIS_PROCESS`](super::THIS_PROCESS) those of this one. A process that has ended counts 0.
    fn cpu_us(&self) -> BTreeMap<String, f64>;

    /// Bytes so far that chunkservers have caused to be written to devices, zeroes included.
    fn written_bytes(&self) -> u64;

    /// Address of each chunkserver's metrics, over HTTP; none for one without.
    fn metrics(&self) -> Vec<Option<SocketAddr>>;

    /// The reason why no block server of this cluster can be killed; none when one can. An error
    /// when that is not known.
    fn objection(&self) -> Result<Option<String>, Error>;

    /// Kills the block server of this ID, without notice. One that has ended is no error; an ID
    /// that the cluster does not have is.
    fn kill_block_server(&self, id: &str) -> Result<(), Error>;

    /// Starts the block server of this ID again; it listens when this completes. An error when it
    /// does not.
    fn start_block_server<'a>(
        &'a self,
        env: &'a Env,
        id: &'a str,
    ) -> LocalBoxFuture<'a, Result<(), Error>>;
}

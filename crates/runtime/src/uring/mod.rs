//! The `io_uring` driver: network and disk in one ring, an executor per core (C10-C12).

mod addr;
mod driver;
mod executor_count;
mod file;
mod helpers;
mod host;
mod net;
mod op;
mod poll;
mod ring;
mod runtime;
mod slice;
mod stats;

pub use driver::real_now;
pub use file::RealFile;
pub(crate) use host::RealNode;
pub use net::{RealListener, RealReadHalf, RealWriteHalf};
pub use poll::PollPolicy;
pub use runtime::{Cores, Handle, Refused, RemoteTask, Runtime, RuntimeConfig};
pub use stats::{Overrun, Stats};

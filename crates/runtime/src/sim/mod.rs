//! The simulated driver (D3): a whole cluster in one thread and in virtual time.
//!
//! [`Sim`] is the harness's side: it makes hosts, boots and crashes them, and sets faults. Each
//! boot of a host is a node with its own [`Env`](crate::Env). One seed reproduces a run exactly; its
//! [`Sim::trace_hash`] proves it.

mod content;
mod disk;
mod names;
mod net;
mod node;
mod world;

pub use disk::SimFile;
pub use net::{SimListener, SimReadHalf, SimWriteHalf};
pub(crate) use node::SimNode;
pub use world::{CrashMode, DiskError, DiskFaults, HostId, NetFaults, Sim};

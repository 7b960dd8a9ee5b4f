//! The block manager (B6): which volumes there are, and which block server owns which segment.
//!
//! [`machine`] is the whole protocol without I/O: requests and time in, answers and rows out. Its
//! rows are one `table` in core files, so a manager that takes over reads them and goes on.
//! The core's lock service chooses who leads. Servers, leases and pings are [`tenancy::fleet`]'s;
//! `block_server::ownership` is a block server's side of it.
//!
//! Ownership is enforced twice (`design.md` invariant 6). A segment's files are opened under the
//! owner's epoch, which fences the writes of every owner before it. Reads are protected by leases:
//! a block server renews one lease for all its segments every 150 ms. Without it, it answers a read
//! only if the core confirms that it still owns the segment. The manager gives a segment to another
//! server at once. That one holds back acknowledgements and reads until the previous owner's lease
//! must be over (`protocols.md` 6.5).
//!
//! Invariant: never sees a volume's data.

mod balance;
mod cut;
mod cuts;
mod deleted;
mod doubts;
pub mod entity;
pub mod error;
mod expiry;
mod fleet;
pub mod fuzz;
pub mod limits;
pub mod machine;
mod once;
mod peers;
mod pings;
mod presence;
mod refusals;
mod resize;
pub mod rows;
pub mod service;
mod snapshots;
pub mod state;
mod uses;
mod volumes;

pub use cut::{Begun, CutSegment};
pub use error::Refusal;
pub use machine::{Config, FirstEpochs, Machine};
pub use service::{Manager, ManagerConfig};
pub use state::ManagerState;
pub use uses::FileUses;

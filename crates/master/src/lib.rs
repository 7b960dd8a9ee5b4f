//! Masters: namespace, streams, placement, repair and locks, on Raft.
//!
//! Invariant: no data of a chunk passes through here.

pub mod admission;
pub mod bytes;
mod calls;
pub mod cluster;
pub mod consensus;
mod first;
pub mod grant;
pub mod identity;
pub mod limits;
pub mod master;
mod messages;
pub mod namespace;
pub mod peers;
pub mod placement;
mod repair;
pub mod replies;
pub mod service;
pub mod stream;
mod tracked;

pub use first::FirstNumbers;
pub use master::{Master, MasterConfig, MasterTiming, StartError};

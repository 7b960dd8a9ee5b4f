//! Masters: namespace, streams, placement, repair and locks, on Raft.
//!
//! Invariant: no data of a chunk passes through here.

pub mod consensus;
pub mod bytes;
pub mod limits;
pub mod namespace;
pub mod placement;
pub mod replies;
pub mod stream;

//! Masters: namespace, streams, placement, repair and locks, on Raft.
//!
//! Invariant: no data of a chunk passes through here.

pub mod consensus;

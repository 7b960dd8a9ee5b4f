//! Reference models and judges of the core for tests: chunk stores in memory, a table's files in
//! memory with faults, its conformance suite and oracle, linearizability, golden messages, leases of
//! owners.
//!
//! Invariant: no crate but `sim` and `object-testing` depends on it, except for its tests.

pub mod chunks;
pub mod history;
pub mod leases;
pub mod linear;
pub mod messages;
pub mod rows;
pub mod tables;

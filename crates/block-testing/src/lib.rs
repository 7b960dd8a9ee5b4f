//! Replaces parts of the block service in tests, and checks them from outside: a device in memory,
//! DataFiles in memory, a manager of one server, the oracle of a device.
//!
//! Invariant: no crate but `sim` depends on it, except for its tests.

mod archive;
pub mod device;
pub mod memory;
pub mod model;

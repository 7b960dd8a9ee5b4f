//! Block volumes (B1-B17). So far the geometry of a volume, the contract of a segment's device,
//! and the NBD protocol as a codec.
//!
//! Invariant: reaches the core only through `client` and `table`; `geometry` and `nbd` do no I/O.

pub mod contract;
pub mod device;
pub mod frontend;
pub mod fuzz;
pub mod geometry;
pub mod limits;
pub mod manager;
pub mod memory;
pub mod model;
pub mod nbd;
pub mod server;
pub mod volume;

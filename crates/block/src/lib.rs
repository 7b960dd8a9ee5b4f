//! Block volumes (B1-B17). So far what needs no I/O: the geometry of a volume, and the NBD
//! protocol as a codec.
//!
//! Invariant: reaches the core only through `client` and `table`; these modules reach nothing.

pub mod fuzz;
pub mod geometry;
pub mod limits;
pub mod nbd;

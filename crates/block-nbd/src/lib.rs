//! NBD (B16): the protocol as bytes, and the server that offers exports to kernels and tools.
//!
//! Invariant: knows no segment, no message of Craton and not the core; it serves a
//! [`Device`](block_volume::contract::Device).

pub mod fuzz;
pub mod protocol;
pub mod server;

//! `libcraton`: the block client (B16) for programs in C. `include/craton.h` is its manual.
//!
//! Each open volume has an executor on a thread of its own; calls send it work. A call that waits
//! blocks its caller's thread; a completion runs on the executor's.
//!
//! Invariant: knows no NBD, and how data lies as little as the block client does.

mod api;
mod cluster;
mod error;
mod memory;
mod volume;

pub use api::*;

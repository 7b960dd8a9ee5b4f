//! Chunk stores (C3, C5, C13; design D7): the contract, the flash engine.
//!
//! Invariant: never sees a socket or a master.

mod check;
mod contract;
pub mod flash;
pub mod fuzz;
pub mod limits;
pub mod map;

pub use check::check_append;
pub use contract::{
    Append, Appended, ChunkInfo, ChunkStore, Read, StoreError, StoreInfo, StoreOwner,
};

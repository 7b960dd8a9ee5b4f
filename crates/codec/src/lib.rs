//! CRC32C, erasure codes (C18), compression of blocks (C19) and numbers in bytes; later their
//! offload (C24).
//!
//! Invariant: no I/O, no time, no knowledge of sectors, messages or files.

pub mod block;
mod copy;
mod crc;
pub mod cursor;
pub mod ec;
pub mod fuzz;
pub mod gf;
pub mod limits;
pub mod planted;
pub mod row;

pub use crc::{Crc, crc32c, crc32c_extend};

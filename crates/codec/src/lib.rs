//! CRC32C and numbers in bytes; later erasure coding (C18), compression (C19) and offload (C24).
//!
//! Invariant: no I/O, no time, no knowledge of any format.

mod crc;
pub mod cursor;

pub use crc::{crc32c, crc32c_extend};

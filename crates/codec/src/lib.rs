//! CRC32C, erasure codes (C18) and numbers in bytes; later compression (C19) and offload (C24).
//!
//! Invariant: no I/O, no time, no knowledge of sectors, messages or files.

mod crc;
pub mod cursor;
pub mod ec;
pub mod gf;
pub mod limits;

pub use crc::{crc32c, crc32c_extend};

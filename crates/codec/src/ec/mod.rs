//! Systematic erasure codes over GF(2^8): k data and p parity fragments, of which any k give back
//! all (C18, C24).
//!
//! Fragments have numbers: 0 to k - 1 are the data, k to k + p - 1 the parity. Buffers may have any
//! length and alignment. Nothing here allocates memory.

mod code;
mod decode;
mod kernel;

pub use code::{Code, CodeError};
pub use decode::{DecodeError, Decoder, Rebuild};
pub use kernel::Kernel;

#[cfg(test)]
mod tests;

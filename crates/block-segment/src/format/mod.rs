//! The bytes of a segment's DataFiles and of the values in its table (`docs/formats/block.md`).
//! Decoders never panic and accept only what encoders write.

pub(crate) mod page;
pub(crate) mod state;
pub(crate) mod txn;

#[cfg(test)]
mod tests;

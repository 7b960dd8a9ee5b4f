//! The bytes of a segment's DataFiles and of the values in its table (`docs/formats/block.md`).
//! Decoders never panic and accept only what encoders write.

pub(crate) mod page;
pub(crate) mod record;
pub(crate) mod state;
pub(crate) mod txn;

#[cfg(test)]
mod tests;

/// Version of the formats.
pub const VERSION: u32 = 1;

/// Why bytes are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flaw {
    /// Another version wrote it.
    Version(u32),
    /// What does not fit.
    Damaged(&'static str),
}

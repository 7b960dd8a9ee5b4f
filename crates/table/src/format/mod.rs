//! The bytes of a table's files (`docs/formats/table.md`). Decoders never panic and accept only
//! what encoders write.

pub(crate) mod block;
pub(crate) mod edit;
pub(crate) mod filter;
pub(crate) mod footer;
pub(crate) mod frame;
pub(crate) mod ops;

#[cfg(test)]
mod tests;

/// Version of the formats of all files.
pub const VERSION: u32 = 1;
/// Version of logs and manifests of a table that keeps data in its logs.
pub const VERSION_DATA: u32 = 2;

/// Versions of the manifest of a table that has bounds, without data and with data in its logs.
pub const VERSIONS_BOUNDED: (u32, u32) = (3, 4);

/// Cause of a decoding error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DecodeError {
    /// Another version wrote it.
    Version(u32),
    /// The fact that does not fit.
    Damaged(&'static str),
}

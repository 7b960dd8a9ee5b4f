//! The contract of a volume (B1, B2, B10): its geometry, the [`contract::Device`] that serves a
//! segment, the format of a block's record in a DataFile, deduplication of changes, differences
//! between snapshots.
//!
//! Invariant: knows no message, no file of the core and no socket; does no I/O.

pub mod buffer;
pub mod contract;
pub mod dedup;
pub mod diff;
pub mod export;
pub mod figures;
pub mod geometry;
pub mod ids;
pub mod limits;
pub mod location;
pub mod qos;
pub mod record;
pub mod space;

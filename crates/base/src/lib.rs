//! Typed identifiers, units, cluster-wide limits, error kinds, and the form of bugs that tests plant.
//!
//! Invariant: depends on nothing of ours, does no I/O, and knows no protocol.

mod calendar;
mod collections;
mod error;
mod id;
pub mod limits;
mod planted;

pub use calendar::Civil;
pub use collections::{FixedHasher, FixedState, Map, Set};
pub use error::{Fault, Kind};
pub use id::{
    ChunkId, ClientId, ClusterId, DirId, DiskId, Epoch, FileId, FormationId, ID_COUNTER_END,
    IdError, ServerId, TraceId,
};

/// Bytes in one KiB.
pub const KIB: u64 = 1 << 10;
/// Bytes in one MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes in one GiB.
pub const GIB: u64 = 1 << 30;
/// Bytes in one TiB.
pub const TIB: u64 = 1 << 40;

//! The masters' process: the cluster group (servers, membership, locks), admission, identity, calls to
//! chunkservers. Names, streams and the groups themselves are crates of their own.
//!
//! Invariant: no data of a chunk passes through here.

pub mod admission;
mod calls;
pub mod cluster;
mod config;
mod first;
pub mod identity;
pub mod limits;
pub mod master;
mod planted;
mod reach;

pub use config::{MasterConfig, MasterTiming};
pub use first::FirstNumbers;
pub use master::{Master, StartError};
#[cfg(feature = "planted")]
pub use planted::{Planted, plant};

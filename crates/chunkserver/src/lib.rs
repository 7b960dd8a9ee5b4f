//! The chunkserver: serves chunk replicas on its disks (C10, D8; `protocols.md` 1, 2).
//!
//! Requests run to completion on the executor that received them: from the network to the medium
//! and back without a hand-over; a server has one or several shards. Requests of masters
//! ([`ControlRequest::Chunkserver`]) and heartbeats run beside them at their own priorities.
//!
//! Invariant: never decides a chunk's length, or whether it may be deleted: the owning stream
//! partition does.
//!
//! [`ControlRequest::Chunkserver`]: wire::control::ControlRequest

mod check_rows;
mod config;
mod control;
mod convert;
mod copy;
mod data;
mod disk_check;
mod disk_times;
mod disk_watch;
mod heartbeat;
mod issuers;
pub mod limits;
mod new_stores;
mod owner;
mod probe;
mod quiet;
mod rebuild;
mod replace;
mod scrub;
mod scrub_progress;
mod scrub_rate;
mod server;
mod shard;
mod share;

pub use config::Config;
pub use new_stores::NewStores;
pub use server::{Chunkserver, Stats};
pub use shard::ShardDirectory;
pub use share::BackgroundShare;

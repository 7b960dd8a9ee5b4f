//! The stream service (C1, C6-C9, C15; `protocols.md` 1 and 2): the chunks of a FlatLogFile, their
//! lengths, and the file's writer.
//!
//! [`StreamMachine`] is the replicated state of one partition: pure, without clock or I/O. Its
//! commands are decisions of the leader, which [`StreamService`] makes: it chooses places, fences
//! and asks replicas, and commits what follows.
//!
//! Invariant: no data of a chunk passes through here, and nothing is deleted, sealed or copied
//! without a committed command that says so.

mod chunk;
mod command;
mod convert;
pub(crate) mod encoding;
mod fragments;
mod issuer;
pub mod limits;
mod loss;
mod machine;
pub mod placement;
mod planted;
mod ports;
mod recover;
mod repair;
mod service;
mod spares;
mod state;
#[cfg(test)]
mod tests;
mod upkeep;
mod votes;
mod writers;

pub use chunk::{Chunk, PlaceIndex, Places, Slot};
pub use command::{Action, Command, Outcome, Refusal, fuzz_command};
pub use issuer::TokenIssuer;
pub use limits::StreamConfig;
pub use machine::{Violation, fuzz_rows};
#[cfg(feature = "planted")]
pub use planted::{Planted, plant};
pub use ports::{CallError, ChunkserverCalls, ClusterSource, Listing, Log};
pub(crate) use service::Service;
pub use service::{GrantCheck, StreamParts, StreamService, StreamStatus};
pub use state::{Dead, Stream, StreamMachine};
pub use votes::{Quorum, sealed_lens};

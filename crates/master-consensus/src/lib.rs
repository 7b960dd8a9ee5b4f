//! Replicated logs for the masters (design D4): `openraft`, pinned to one version and driven by our
//! executor, behind an interface of ours, so that the library can be exchanged.
//!
//! [`Group`] is one member of one group; a process holds many. It owns a [`LogDevice`], where log
//! and vote are durable (`protocols.md` 4.1), [`Checkpoints`], and a [`StateMachine`] of ours.
//! Messages between members are opaque bytes: the transport carries them ([`PeerSend`]) and
//! delivers them by group number ([`Groups`]).
//!
//! Above the groups: [`peers`] carries masters' messages, [`service`] hosts groups and brings
//! proposals and questions to their leaders, [`leader`] has a leader's clock and reads, [`replies`]
//! answers a repeated change once, [`tracked`] records which rows have changed, [`bytes`] encodes.
//!
//! Invariant: no type of `openraft` is seen outside this crate, and it knows no command, name or
//! chunk.

pub mod bytes;
mod checkpoint;
mod config;
mod device;
mod elections;
mod engine;
mod error;
mod files;
#[cfg(test)]
mod format_tests;
mod fuzz;
mod group;
mod group_store;
mod incoming;
pub mod leader;
mod leadership;
pub mod limits;
mod log;
mod machine;
mod manifest;
mod member;
pub mod messages;
mod net;
mod outcome;
pub mod peers;
mod record;
pub mod replies;
mod rows;
mod rt;
pub mod service;
#[cfg(test)]
mod tests;
pub mod tracked;
mod types;

pub use checkpoint::Checkpoints;
pub use config::GroupConfig;
pub use device::{LogDevice, LogImage, MemoryDevice, MemoryLog};
pub use engine::EngineDevice;
pub use error::{DeviceError, LogError};
pub use files::FileDevice;
pub use fuzz::{fuzz_log, fuzz_message};
pub use group::Group;
pub use group_store::{GroupStore, open_store, store_options};
pub use leadership::Leadership;
pub use log::RaftLog;
pub use machine::{BadCommand, BadSnapshot, StateMachine};
pub use manifest::fuzz_manifest;
pub use net::{Groups, LocalFuture, NetError, PeerReceive, PeerSend};
pub use outcome::{MembershipError, OpenError, ProposeError, ReadError};
pub use rows::{RowCopy, Rows, fuzz_rows};

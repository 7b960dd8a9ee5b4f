//! FlatLogFiles for programs: the heavy client (C2) that replicates, retries and goes on when
//! parts of the cluster fail.
//!
//! Invariant: imports no server's crate; formats and verifies every sector itself.

mod answers;
mod appender;
mod ask;
mod backup;
mod blocking;
mod cache;
mod cells;
mod client;
mod coded;
mod collect;
mod config;
mod counters;
mod error;
mod extent;
mod file;
mod handle;
pub mod health;
mod holder;
pub mod leader;
pub mod limits;
mod lists;
mod locate;
mod namespace;
mod network;
mod path;
mod peers;
mod planted;
mod policy;
mod pushed;
mod queue;
mod reader;
mod rows;
mod seen;
mod sequence;
mod session;
mod silence;
mod stage;
mod tail;
mod tree;
mod watch;
pub mod writer;

pub use appender::{Append, Appender};
pub use backup::BackupConfig;
pub use blocking::{BlockingAppender, BlockingClient, BlockingFile, BlockingStream};
pub use client::Client;
pub use config::Config;
pub use counters::Totals;
pub use error::Error;
pub use file::FlatLogFile;
pub use handle::{ClientHandle, Connection, Task};
pub use lists::{ListReason, ListState, ListedDisk};
pub use namespace::{Found, Page, child_path};
pub use network::Network;
pub use peers::{DataAnswer, PeerError, Peers, Recipient};
#[cfg(feature = "planted")]
pub use planted::{Planted, plant};
pub use policy::Inherited;
pub use reader::Reader;
pub use seen::{SeenCalls, SeenDisk};

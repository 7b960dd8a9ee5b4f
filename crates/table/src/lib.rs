//! Tables: ordered key-value stores of services, kept as FlatLogFiles (D9).
//!
//! A log-structured merge tree: changes go to a log, group by group, and into memory; full
//! memtables become sorted files; sorted runs of similar size are merged. A batch may bring data,
//! which stays in the log. A table can be forked into several that share its files, each of which shows
//! keys within bounds of its references (see the source of `fork`). A manifest names a table's parts and fences its owners off from one
//! another (see the source of `manifest`). Files are reached through a narrow [`Store`], which
//! [`ClientStore`] implements on the core.
//!
//! Invariant: knows no master, chunk or replica; keeps nothing that is not in its directory.

mod batch;
mod bounds;
mod build;
mod cache;
mod client_store;
mod commit;
mod cursor;
mod engine;
mod error;
mod file;
mod fork;
mod format;
pub mod fuzz;
mod group_commit;
mod layout;
pub mod limits;
mod manifest;
mod memory;
mod memtable;
mod open;
mod options;
mod pending_deletes;
mod pick;
mod planted;
mod range;
mod recover;
mod scan;
mod snapshot;
mod store;
mod table;
mod types;
mod upkeep;
mod view;

pub use batch::Batch;
pub use cache::Cache;
pub use client_store::ClientStore;
pub use commit::Written;
pub use error::{Error, Pressure};
pub use fork::{Child, Fork};
pub use group_commit::GroupCommitPolicy;
pub use options::{Compression, Options};
pub use planted::{Bugs, Planted};
pub use range::Range;
pub use recover::LogPage;
pub use scan::{Entry, Scan};
pub use snapshot::Snapshot;
pub use store::{Answer, Names, Pending, Redundancy, Source, Store, Writer};
pub use table::{KeptLog, Stats, Table};
pub use types::{Place, Seq};
pub use wire::data::Purpose;

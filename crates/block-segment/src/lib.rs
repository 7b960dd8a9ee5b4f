//! The log-structured block device of a segment (B2).
//!
//! All writing is appending. A change becomes records at the end of a DataFile: 64 bytes of
//! metadata, and the 4 KiB of a block. The append is the acknowledgement. The index map has the
//! location of each block's last record. Its changes go to the TxnFile in batches, with a watermark
//! up to which they cover the DataFiles, and its pages are stored now and then (checkpoint).
//! TxnFile, pages and the list of DataFiles are kept in a `table`, whose opening also fences
//! previous owners; `docs/decisions/` has the reasons.
//!
//! Recovery: see the source of `open`. Format: `docs/formats/block.md`.
//!
//! Invariant: knows no message, no session, no lease and not the core's client.

mod aside;
mod check;
mod choice;
mod collect;
mod core;
mod cuts;
mod files;
mod format;
pub mod fuzz;
mod index;
pub mod limits;
mod link;
mod locks;
mod log;
mod open;
mod options;
mod queue;
mod read;
mod request;
mod segment;
mod shared;
mod snapshot;
mod types;
mod upkeep;
mod view;

pub use options::{LinkFrom, Options};
pub use segment::{Segment, Stats};
pub use shared::{Memory, Shared};
pub use view::{Change, FileUse, Has, View};

//! Measurements of `craton bench`: the core, its transport, block volumes and S3, through the clients
//! of programs, each figure beside its floor. Both are measured in alternating slices of one run,
//! so that a noisy machine affects both (`protocols.md` 7).
//!
//! A measurement is a function from options to a [`Report`]. Its files and volumes in the cluster have names
//! that begin with `.bench-`, its buckets with `bench-object-`; they are removed at the end; after an error some of them may stay.
//!
//! Invariant: knows no command line and no process table; it asks [`Processes`] about the cluster's
//! processes.

mod append;
mod error;
mod floor;
mod latencies;
mod meta;
mod object;
mod processes;
mod read;
mod report;
mod transport;
mod usage;
mod volume;

pub use append::{AppendOptions, append};
pub use error::Error;
pub use floor::{FloorOptions, floor};
pub use meta::{MetaOptions, meta};
pub use object::{ObjectOp, ObjectOptions, ObjectReport, ObjectRow, object};
pub use processes::Processes;
pub use read::{ReadOptions, read};
pub use report::{FloorParts, Report, Row, THIS_PROCESS};
pub use transport::{Echo, TransportOptions};
pub use volume::{LeftOut, Parts, VolumeOptions, VolumePart, volume};

use latencies::Latencies;

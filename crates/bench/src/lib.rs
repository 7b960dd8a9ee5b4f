//! What `craton bench` measures: the core, its transport and block volumes, through the clients that
//! programs have, each figure beside its floor. Both are measured in alternating slices of one run, so
//! that a noisy machine is noisy to both (`protocols.md` 7).
//!
//! A measurement is a function from options to a [`Report`]. What it makes in the cluster has a name
//! that begins with `.bench-`, and is removed at the end; after an error some of it may stay.
//!
//! Invariant: knows no command line and no process table; what it is to know of the cluster's
//! processes it asks [`Processes`].

mod append;
mod error;
mod floor;
mod latencies;
mod meta;
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
pub use processes::Processes;
pub use read::{ReadOptions, read};
pub use report::{FloorParts, Report, Row, THIS_PROCESS};
pub use transport::{Echo, TransportOptions};
pub use volume::{LeftOut, Parts, VolumeOptions, VolumePart, volume};

use latencies::Latencies;

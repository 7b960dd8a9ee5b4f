//! `craton bench`: figures beside their floors, measured in alternating slices of one run, so
//! that a noisy machine is noisy to both (`protocols.md` 7).

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
pub use volume::{Parts, VolumeOptions, VolumePart, volume};

use latencies::Latencies;

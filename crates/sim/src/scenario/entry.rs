//! An entry of the table of scenarios.

use std::future::Future;
use std::pin::Pin;

use runtime::sim::Sim;

use crate::cluster::Shape;
use crate::nemesis::{Faults, NONE};

/// A run of a scenario: ends with the violation it found, or without one.
pub type Run = Pin<Box<dyn Future<Output = Result<(), String>>>>;

/// A named workload with faults and checkers.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its subject, one line.
    pub about: &'static str,
    /// Builds the run in a world.
    pub run: fn(Sim) -> Run,
    /// Marks that its fixed seeds must reach together: proof that rare paths ran.
    pub marks: &'static [&'static str],
}

/// Two disks a server.
pub(super) const TWO_DISKS: fn() -> Shape = || Shape { disks: 2, ..Shape::default() };

/// Four partitions of each kind.
pub(super) const PARTITIONED: fn() -> Shape =
    || Shape { namespace_partitions: 4, stream_partitions: 4, ..Shape::default() };

/// Faults of all processes and of the network, cuts of clients among them; none of media.
pub(super) const STORM: Faults = Faults {
    client_cuts: true,
    server_crashes: true,
    master_crashes: true,
    bad_network: true,
    partitions: true,
    slowness: true,
    bad_clocks: true,
    ..NONE
};

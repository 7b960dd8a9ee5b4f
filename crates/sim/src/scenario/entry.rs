//! An entry of the table of scenarios.

use std::future::Future;
use std::pin::Pin;

use runtime::sim::Sim;

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

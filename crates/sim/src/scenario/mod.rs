//! The scenarios, in one table.

mod echo;

use std::future::Future;
use std::pin::Pin;

use runtime::sim::Sim;

/// A run of a scenario: ends with the violation it found, or well.
pub type Run = Pin<Box<dyn Future<Output = Result<(), String>>>>;

/// A named workload with faults and checkers.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it exercises, one line.
    pub about: &'static str,
    /// Builds the run in a world.
    pub run: fn(Sim) -> Run,
    /// Marks that 50 seeds must reach together: proof that rare paths ran.
    pub marks: &'static [&'static str],
}

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[Scenario {
    name: "echo",
    about: "the runtime alone: two nodes, a connection, a file, a power cut",
    run: |sim| Box::pin(echo::run(sim)),
    marks: &["disk: torn write"],
}];

/// The scenario of a name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}

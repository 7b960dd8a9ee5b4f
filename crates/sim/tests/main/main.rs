//! Every scenario on fixed seeds, then on fresh ones for a while; every planted bug; determinism.

mod cached;
mod checkers;
mod clocks;
mod command;
mod fixed;
mod formations;
mod fresh;
mod large;
mod planted;
mod relay;
mod service;
mod volumes;

use sim::{Outcome, Scenario, run_seed};

fn check(scenario: &Scenario, seed: u64) -> Outcome {
    match run_seed(scenario, seed) {
        Ok(outcome) => outcome,
        Err(failure) => panic!("{}: {failure}\n{}", scenario.name, failure.violation),
    }
}

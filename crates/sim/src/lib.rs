//! Whole-cluster simulation (D3): the real code of masters, chunkservers and clients in one thread
//! and in virtual time, under faults, with checkers outside of it.
//!
//! A scenario is a function of a seed. Seed and commit reproduce a run exactly; its trace hash
//! proves it.
//!
//! Invariant: nothing but tests and `craton-sim` depends on it; no product code knows it.

pub mod audit;
pub mod cluster;
mod contenders;
pub mod fuzz;
mod nemesis;
mod numbers;
pub mod oracle;
pub mod planted;
pub mod register;
mod run;
pub mod scenario;
pub mod tuning;

pub use planted::{Acts, Planted};
pub use run::{Failure, Outcome, elapsed, run_planted, run_seed, run_seeds};
pub use scenario::{SCENARIOS, Scenario, find};

//! Conformance, recovery and format tests of the chunk stores, in the simulator.

mod conformance;
mod engine;
mod planted;
mod recovery;
mod suite;

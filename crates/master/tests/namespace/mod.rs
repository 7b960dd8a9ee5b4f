//! The namespace: the state machine against a tiny model, and whole masters in the simulator.

mod admission;
mod bytes;
mod cluster;
mod history;
mod machine;
mod model;
mod scenarios;

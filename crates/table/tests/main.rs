//! Tests of tables on the store in memory, in simulated time.

mod bounds;
mod conformance;
mod crash;
mod damage;
mod data_logs;
mod fork_crash;
mod forks;
mod owners;
mod race;
mod seek;
mod support;
mod view;

//! Tests of tables on the store in memory, in simulated time.

mod bounds;
mod conformance;
mod crash;
mod damage;
mod look;
mod owners;
mod race;
mod support;

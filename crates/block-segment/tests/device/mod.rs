//! The device of a segment against its oracle, over a store in memory with faults.

mod basics;
mod check;
mod collect;
mod crash;
mod damage;
mod full;
mod memory;
mod once;
mod owners;
mod places;
mod races;
mod read_only;
mod snapshot;
mod stores;
mod support;
mod trims;
mod view;

//! The binary as its users see it: real processes, real files, real signals.
#![allow(clippy::disallowed_methods)] // Nothing here is simulated: sleeps and clocks are real.

mod bad_input;
mod c_api;
mod cluster;
mod crash;
mod diffs;
mod disks;
mod embedded;
mod full;
mod harness;
mod images;
mod kills;
mod load;
mod logs;
mod machine;
mod partition;
mod snapshots;
mod stores;
mod tools;
mod upkeep;
mod volumes;
mod watch;

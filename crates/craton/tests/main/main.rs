//! The binary as its users see it: real processes, real files, real signals.
#![allow(clippy::disallowed_methods)] // Nothing here is simulated: sleeps and clocks are real.

mod bad_input;
mod balance;
mod bench;
mod bystander;
mod c_api;
mod cluster;
mod copies;
mod crash;
mod diffs;
mod disks;
mod embedded;
mod formatting;
mod full;
mod harness;
mod health;
mod hostile;
mod images;
mod kills;
mod load;
mod logs;
mod machine;
mod managers;
mod nbd;
mod options;
mod partition;
mod policies;
mod private;
mod rot;
mod snapshots;
mod standard;
mod stores;
mod tools;
mod upkeep;
mod volumes;
mod watch;

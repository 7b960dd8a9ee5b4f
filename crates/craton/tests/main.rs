//! The binary as its users see it: real processes, real files, real signals.
#![allow(clippy::disallowed_methods)] // Nothing here is simulated: sleeps and clocks are real.

#[path = "main/bad_input.rs"]
mod bad_input;
#[path = "main/c_api.rs"]
mod c_api;
#[path = "main/cluster.rs"]
mod cluster;
#[path = "main/crash.rs"]
mod crash;
#[path = "main/diffs.rs"]
mod diffs;
#[path = "main/disks.rs"]
mod disks;
#[path = "main/embedded.rs"]
mod embedded;
#[path = "main/full.rs"]
mod full;
#[path = "main/harness.rs"]
mod harness;
#[path = "main/images.rs"]
mod images;
#[path = "main/kills.rs"]
mod kills;
#[path = "main/load.rs"]
mod load;
#[path = "main/logs.rs"]
mod logs;
#[path = "main/partition.rs"]
mod partition;
#[path = "main/snapshots.rs"]
mod snapshots;
#[path = "main/stores.rs"]
mod stores;
#[path = "main/tools.rs"]
mod tools;
#[path = "main/upkeep.rs"]
mod upkeep;
#[path = "main/volumes.rs"]
mod volumes;
#[path = "main/watch.rs"]
mod watch;

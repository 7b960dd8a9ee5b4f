//! Judges the object service from outside, and loads it: a history of each key that must be
//! linearizable, a network between gateways and owners that loses, delays and doubles, clients.
//!
//! Invariant: no crate but `sim` depends on it, except for its tests.

pub mod buckets;
pub mod days;
pub mod history;
pub mod load;
mod network;
mod parts;
pub mod settings;
pub mod storage;
mod usage;
mod users;
pub mod versioned;
pub mod versions;

pub use network::{Fate, Network, Target};
pub use usage::check_usage;
pub use users::add_user;

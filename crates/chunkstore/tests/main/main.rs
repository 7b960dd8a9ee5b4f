//! Conformance, recovery and format tests of the chunk stores, in the simulator.

mod conformance;
mod engine;
mod errors;
mod fenced;
mod formats;
mod fsck;
mod index_tail;
mod log_room;
mod longest;
mod planted;
mod reads;
mod recovery;
mod reformat;
mod room;
mod runs;
mod sizes;
mod suite;
mod superblock;

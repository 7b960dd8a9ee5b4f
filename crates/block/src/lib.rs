//! Block volumes (B1-B17). A request's way: [`frontend`] takes it from NBD, [`volume`] cuts it and
//! sends its parts to block servers, [`server`] does each part once on the segment's
//! [`contract::Owned`] device. [`manager`] says which server has which segment, and [`proto`]
//! what these processes agree on beside their messages. None of these parts imports another one but
//! what is below it: `xtask` checks that.
//!
//! Invariant: reaches the core only through `client` and `table`; `geometry` and `nbd` do no I/O.

mod archive;
mod buffer;
pub mod contract;
pub mod device;
pub mod diff;
pub mod export;
pub mod frontend;
pub mod fuzz;
pub mod geometry;
pub mod ids;
pub mod limits;
pub mod manager;
pub mod memory;
pub mod model;
pub mod nbd;
pub mod once;
pub mod proto;
mod record;
pub mod server;
mod span;
pub mod volume;

//! Block volumes (B1-B17). A request's way: [`frontend`] takes it from NBD, [`volume`] cuts it and
//! sends its parts to block servers, [`server`] does each part once on the segment's
//! [`contract::Owned`] device. [`manager`] says which server has which segment, and
//! `block-proto` what these processes say to each other. None of these parts imports another one but
//! what is below it: `xtask` checks that.
//!
//! Invariant: reaches the core only through `client` and `table`; `geometry` and `nbd` do no I/O.

mod archive;
pub mod device;
pub mod frontend;
pub mod fuzz;
pub mod manager;
pub mod memory;
pub mod model;
pub mod nbd;
pub mod server;
pub mod volume;

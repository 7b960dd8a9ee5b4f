//! Tables in memory: a store with faults, and what judges a table from outside.

mod data;
mod forks;
mod mem_store;
mod oracle;
mod owner;
mod suite;

pub use forks::{Ground, forks};
pub use mem_store::{Medium, MemDisk, MemStore, StoreFaults};
pub use oracle::{Node, Oracle, State};
pub use owner::{Owned, own};
pub use suite::conformance;

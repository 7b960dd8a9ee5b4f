//! Whole masters in the simulator, and bytes that they keep.

mod admission;
mod bytes;
mod cluster;
mod scenarios;

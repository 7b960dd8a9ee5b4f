//! Whole masters in the simulator, and bytes that they keep.

mod across;
mod admission;
mod bytes;
mod cluster;
mod numbers;
mod scenarios;
mod sweep;

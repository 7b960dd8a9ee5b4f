//! Consensus: the record log alone, and whole groups in the simulator.

mod checkers;
mod cluster;
mod network;
mod real;
mod scenarios;
mod storage;

//! Frames, raw layouts, sectors and control messages between processes (C22, design D5, D6).
//!
//! Invariant: no I/O; decoders never panic and answer garbage with a typed error.

mod cell;
pub mod control;
pub mod data;
pub mod data_codec;
pub mod frame;
pub mod handshake;
#[cfg(test)]
mod page_tests;
pub mod pieces;
mod protobuf;
pub mod row;
pub mod sector;
pub mod token;

//! Tests of the block manager.

mod manager;

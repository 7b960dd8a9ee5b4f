//! Tests of the masters.

mod consensus;
mod namespace;

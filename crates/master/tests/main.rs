//! Tests of the masters.

mod consensus;

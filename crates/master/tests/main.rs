//! Tests of the masters.

mod namespace;

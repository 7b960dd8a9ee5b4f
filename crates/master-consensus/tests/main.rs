//! Tests of replicated groups.

mod consensus;

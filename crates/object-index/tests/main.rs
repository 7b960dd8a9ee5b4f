//! Tests of the object index on files in memory.

mod index;

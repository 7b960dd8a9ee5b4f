//! The index map (B2): the location of each 4 KiB block of a segment. Pure.

mod map;
mod page;

pub(crate) use map::{Found, IndexMap};

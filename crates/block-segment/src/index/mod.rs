//! The index map (B2): where each 4 KiB block of a segment is. Pure.

mod map;
mod page;

pub(crate) use map::{Found, IndexMap};

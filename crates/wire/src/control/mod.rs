//! Control messages as the logic sees them; their protobuf form stays inside this module.

mod types;

pub use types::*;

//! What judges a device from outside, and loads it.

mod load;
mod oracle;

pub use load::{Loaded, Plan, load, whole};
pub use oracle::{Change, Look, Oracle, Ticket};

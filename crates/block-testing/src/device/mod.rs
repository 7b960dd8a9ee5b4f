//! Load and oracle of a device.

mod load;
mod oracle;

pub use load::{Loaded, Plan, load, whole};
pub use oracle::{Change, Look, Oracle, Ticket};

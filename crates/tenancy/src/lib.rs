//! How processes of a service share its work. One of them leads, under a lock of the core
//! ([`Contest`]); it knows the others as a [`Fleet`] of servers, each of which has a [`lease`] for all that
//! it owns (`protocols.md` 6.5).
//!
//! Invariant: knows no service, no message of one and no table.

mod contest;
pub mod fleet;
pub mod lease;
pub mod limits;

pub use contest::{Contest, Term};
pub use fleet::{Fleet, before_first_boot};

//! How processes of a service share its work: one of them leads, under a lock of the core
//! (`protocols.md` 6.5).
//!
//! Invariant: knows no service, no message of one and no table.

mod contest;

pub use contest::{Contest, Term};

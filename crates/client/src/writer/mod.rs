//! The writer's protocol (`protocols.md` 1, D8, C15) as a state machine: events in, actions out,
//! no I/O and no clock. [`crate::Appender`] drives it.
//!
//! When a chunk ends, its length is fixed at exactly what was acknowledged. Appends that were not
//! are laid out again behind it, in the first spare, and sent at once; their acknowledgement waits
//! until the stream service has recorded the switch. A chunk that is full ends when all in it is
//! acknowledged, so the base offset of the next is known before a byte is sent to it.
//!
//! With fewer acknowledgements than copies, replicas that are late are chased (C14): see `chase`.
//!
//! Invariant: never acknowledges an append before all below it, and never without `acks`
//! replicas that have it durable in a chunk that the stream service knows to be current.

mod blocked;
mod budget;
mod chase;
mod chunk;
mod core;
mod event;
mod form;
mod layout;
mod ops;
mod place;
mod timers;
mod wait;

pub use self::budget::ChaseBudget;
pub use self::core::Writer;
pub use event::{
    Action, Event, OpDone, OpError, SendError, SendId, StreamOp, WriterConfig, WriterError,
};
pub(crate) use form::is_small;
pub(crate) use layout::bytes_max;
pub use layout::{Fragments, Laid, Layout};
pub use wait::BlockedAfter;

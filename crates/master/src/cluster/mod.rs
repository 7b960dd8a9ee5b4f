//! The cluster group: servers, masters, and holders of locks; and beside it, on every master alone,
//! the liveness of servers.
//!
//! Invariant: the replicated state is a function of the commands; only [`Liveness`] is not
//! replicated, and nothing durable follows from it without a command.

mod abnormal;
mod doubts;
mod evidence;
mod liveness;
mod machine;
mod outcome;
mod reach;
mod reports;
mod service;
mod slow_disks;
mod snapshot;
mod standing;

pub use evidence::Reported;
pub use liveness::{Liveness, LivenessConfig};
pub use machine::{ClusterMachine, Command, Formed, Lock, Server};
pub use outcome::{Answer, Outcome, Refusal, decode_outcome, encode_outcome};
pub use service::{ClusterService, LedFigures};
pub use snapshot::{decode_command, encode_command, fuzz_command, fuzz_snapshot};
pub use standing::{Order, Orders, Standing};

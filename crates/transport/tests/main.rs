//! The transport in the simulator, its decoders under arbitrary bytes, and refusals.

#![allow(missing_docs)]

mod calls;
mod decoders;
mod harness;
mod hostile;
mod identity;
mod local;
mod random;
mod real;
mod served;
mod sickness;

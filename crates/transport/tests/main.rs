//! The transport in the simulator, its decoders under arbitrary bytes, and refusals.

mod calls;
mod harness;

//! Operations of `craton bench object`, as the command line names them.

use bench::ObjectOp;
use clap::ValueEnum;

/// An operation of `craton bench object`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// New objects
    Put,
    /// Whole objects, at random those of less than 1 MB, in order the others
    Get,
    /// Pages of keys, and of common prefixes
    List,
}

impl Op {
    /// The measured operation.
    pub fn measured(self) -> ObjectOp {
        match self {
            Op::Put => ObjectOp::Put,
            Op::Get => ObjectOp::Get,
            Op::List => ObjectOp::List,
        }
    }
}

//! Traced operations of a process (D12). Every role answers them.

use std::net::SocketAddr;

use base::{ChunkId, DiskId, Kind, TraceId};
use metrics::{Fact, Operation, Outcome, TraceRing};

use super::limits::{TRACE_OPERATIONS_MAX, TRACE_SLOW_MAX};

/// A question to any process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TraceRequest {
    /// The operations of a trace.
    Find {
        /// The trace.
        trace: TraceId,
    },
    /// The slowest operations of the last minutes, of those above the process's threshold.
    Slow {
        /// Operations at most, 1 to 256.
        limit: u32,
    },
}

/// The operations of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceReply {
    /// Role and ID of the process, e.g. `chunkserver cs1`.
    pub process: String,
    /// Its clock now, in ns. Clocks of different processes do not compare.
    pub now_ns: u64,
    /// Duration from which on it calls an operation slow, in ns.
    pub slow_ns: u64,
    /// The operations, up to 256.
    pub operations: Vec<TracedOperation>,
}

/// One operation in one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedOperation {
    /// Follows the operation across processes.
    pub trace: TraceId,
    /// The operation, e.g. `append`.
    pub name: String,
    /// The peer that asked; none for what began in the process.
    pub peer: Option<SocketAddr>,
    /// When it came, in ns of the process's clock.
    pub began_ns: u64,
    /// Its duration; 0 while it is open.
    pub took_ns: u64,
    /// Its end.
    pub outcome: TracedOutcome,
    /// Its stages, in order.
    pub stages: Vec<TracedStage>,
    /// Stages that were not kept.
    pub stages_left_out: u32,
}

/// End of a traced operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TracedOutcome {
    /// It is under way, or was given up.
    Open,
    /// It did what was asked.
    Done,
    /// It did not.
    Failed(Kind),
}

/// A point that a traced operation passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedStage {
    /// The stage reached, e.g. `device done`.
    pub step: String,
    /// When, in ns since the operation began.
    pub after_ns: u64,
    /// Its subject.
    pub fact: Option<TraceFact>,
}

/// Subject of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceFact {
    /// The peer that it went to.
    Peer(SocketAddr),
    /// The disk.
    Disk(DiskId),
    /// The chunk.
    Chunk(ChunkId),
    /// Number of bytes.
    Bytes(u64),
    /// The number of a Raft group.
    Group(u32),
}

impl TraceReply {
    /// The operations in `ring` of `process` at `now_ns`.
    pub fn answer(
        request: &TraceRequest,
        process: &str,
        ring: &TraceRing,
        now_ns: u64,
    ) -> TraceReply {
        let found = match request {
            TraceRequest::Find { trace } => ring.find(*trace, TRACE_OPERATIONS_MAX),
            TraceRequest::Slow { limit } => ring.slowest((*limit).min(TRACE_SLOW_MAX) as usize),
        };
        TraceReply {
            process: process.to_owned(),
            now_ns,
            slow_ns: ring.slow_ns(),
            operations: found.iter().map(TracedOperation::from).collect(),
        }
    }
}

impl From<&Operation> for TracedOperation {
    fn from(operation: &Operation) -> TracedOperation {
        let stages = operation.stages.iter().map(|stage| TracedStage {
            step: stage.step.name().to_owned(),
            after_ns: stage.at_ns.saturating_sub(operation.began_ns),
            fact: match stage.fact {
                Fact::None => None,
                Fact::Peer(addr) => Some(TraceFact::Peer(addr)),
                Fact::Disk(disk) => Some(TraceFact::Disk(disk)),
                Fact::Chunk(chunk) => Some(TraceFact::Chunk(chunk)),
                Fact::Bytes(bytes) => Some(TraceFact::Bytes(bytes)),
                Fact::Group(group) => Some(TraceFact::Group(group)),
            },
        });
        TracedOperation {
            trace: operation.trace,
            name: operation.name.to_owned(),
            peer: operation.peer,
            began_ns: operation.began_ns,
            took_ns: operation.took_ns(),
            outcome: match operation.outcome {
                Outcome::Open => TracedOutcome::Open,
                Outcome::Done => TracedOutcome::Done,
                Outcome::Failed(kind) => TracedOutcome::Failed(kind),
            },
            stages: stages.collect(),
            stages_left_out: operation.stages_left_out,
        }
    }
}

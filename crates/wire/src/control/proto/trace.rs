//! Traced operations of a process.

use base::{ChunkId, DiskId, Kind, TraceId};

use super::envelope::{kind_from, kind_number};
use super::{Proto, WireError, all, pb};
use crate::control::check::{
    addr_bytes, addr_from, each, label, range_u32, text, u128_bytes, u128_from,
};
use crate::control::limits::{LABEL_MAX, TRACE_OPERATIONS_MAX, TRACE_SLOW_MAX, TRACE_STAGES_MAX};
use crate::control::{
    TraceFact, TraceReply, TraceRequest, TracedOperation, TracedOutcome, TracedStage,
};

impl Proto for TraceRequest {
    type Pb = pb::TraceRequest;

    fn to_pb(&self) -> pb::TraceRequest {
        use pb::trace_request::{Ask, Find, Slow};
        let ask = match self {
            TraceRequest::Find { trace } => Ask::Find(Find { trace: trace.get() }),
            TraceRequest::Slow { limit } => Ask::Slow(Slow { limit: *limit }),
        };
        pb::TraceRequest { ask: Some(ask) }
    }

    fn from_pb(pb: pb::TraceRequest) -> Result<TraceRequest, WireError> {
        use pb::trace_request::Ask;
        Ok(match pb.ask.ok_or(WireError::Missing { field: "TraceRequest.ask" })? {
            Ask::Find(find) => TraceRequest::Find { trace: TraceId::new(find.trace) },
            Ask::Slow(slow) => TraceRequest::Slow {
                limit: range_u32(slow.limit, 1..=TRACE_SLOW_MAX, "TraceRequest.Slow.limit")?,
            },
        })
    }
}

impl Proto for TraceFact {
    type Pb = pb::TraceFact;

    fn to_pb(&self) -> pb::TraceFact {
        use pb::trace_fact::Of;
        let of = match *self {
            TraceFact::Peer(addr) => Of::Peer(addr_bytes(addr)),
            TraceFact::Disk(disk) => Of::Disk(u128_bytes(disk.get())),
            TraceFact::Chunk(chunk) => Of::Chunk(chunk.get()),
            TraceFact::Bytes(bytes) => Of::Bytes(bytes),
            TraceFact::Group(group) => Of::Group(group),
        };
        pb::TraceFact { of: Some(of) }
    }

    fn from_pb(pb: pb::TraceFact) -> Result<TraceFact, WireError> {
        use pb::trace_fact::Of;
        Ok(match pb.of.ok_or(WireError::Missing { field: "TraceFact.of" })? {
            Of::Peer(addr) => TraceFact::Peer(addr_from(&addr, "TraceFact.peer")?),
            Of::Disk(disk) => TraceFact::Disk(DiskId::new(u128_from(&disk, "TraceFact.disk")?)),
            Of::Chunk(chunk) => TraceFact::Chunk(ChunkId::new(chunk)),
            Of::Bytes(bytes) => TraceFact::Bytes(bytes),
            Of::Group(group) => TraceFact::Group(group),
        })
    }
}

impl Proto for TracedStage {
    type Pb = pb::TracedStage;

    fn to_pb(&self) -> pb::TracedStage {
        pb::TracedStage {
            step: self.step.clone(),
            after_ns: self.after_ns,
            fact: self.fact.as_ref().map(Proto::to_pb),
        }
    }

    fn from_pb(pb: pb::TracedStage) -> Result<TracedStage, WireError> {
        // A fact that a newer process sends, and this one does not know, is left out.
        let fact = pb.fact.filter(|fact| fact.of.is_some());
        Ok(TracedStage {
            step: label(pb.step, "TracedStage.step")?,
            after_ns: pb.after_ns,
            fact: fact.map(Proto::from_pb).transpose()?,
        })
    }
}

impl Proto for TracedOperation {
    type Pb = pb::TracedOperation;

    fn to_pb(&self) -> pb::TracedOperation {
        use pb::traced_operation::Outcome;
        let outcome = match self.outcome {
            TracedOutcome::Open => None,
            TracedOutcome::Done => Some(Outcome::Done(pb::Empty {})),
            TracedOutcome::Failed(kind) => Some(Outcome::Failed(kind_number(kind))),
        };
        pb::TracedOperation {
            trace: self.trace.get(),
            name: self.name.clone(),
            peer: self.peer.map(addr_bytes),
            began_ns: self.began_ns,
            took_ns: self.took_ns,
            outcome,
            stages: all(&self.stages),
            stages_left_out: self.stages_left_out,
        }
    }

    fn from_pb(pb: pb::TracedOperation) -> Result<TracedOperation, WireError> {
        use pb::traced_operation::Outcome;
        let failed =
            |number| -> Result<Kind, WireError> { kind_from(number, "TracedOperation.failed") };
        Ok(TracedOperation {
            trace: TraceId::new(pb.trace),
            name: label(pb.name, "TracedOperation.name")?,
            peer: pb.peer.map(|peer| addr_from(&peer, "TracedOperation.peer")).transpose()?,
            began_ns: pb.began_ns,
            took_ns: pb.took_ns,
            outcome: match pb.outcome {
                None => TracedOutcome::Open,
                Some(Outcome::Done(_)) => TracedOutcome::Done,
                Some(Outcome::Failed(number)) => TracedOutcome::Failed(failed(number)?),
            },
            stages: each(pb.stages, TRACE_STAGES_MAX, "TracedOperation.stages", Proto::from_pb)?,
            stages_left_out: pb.stages_left_out,
        })
    }
}

impl Proto for TraceReply {
    type Pb = pb::TraceReply;

    fn to_pb(&self) -> pb::TraceReply {
        pb::TraceReply {
            process: self.process.clone(),
            now_ns: self.now_ns,
            slow_ns: self.slow_ns,
            operations: all(&self.operations),
        }
    }

    fn from_pb(pb: pb::TraceReply) -> Result<TraceReply, WireError> {
        Ok(TraceReply {
            process: text(pb.process, 0..=LABEL_MAX, "TraceReply.process")?,
            now_ns: pb.now_ns,
            slow_ns: pb.slow_ns,
            operations: each(
                pb.operations,
                TRACE_OPERATIONS_MAX,
                "TraceReply.operations",
                Proto::from_pb,
            )?,
        })
    }
}

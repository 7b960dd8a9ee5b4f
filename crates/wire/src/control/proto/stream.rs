//! Stream messages.

use base::limits::{CHUNK_LEN_MAX, REPLICAS_MAX};
use base::{ChunkId, DiskId, Epoch, FileId, ServerId};

use super::envelope::change;
use super::namespace::{both_policies, coded_pb, coded_policy, compression};
use super::{Proto, WireError, all, need, pb};
use crate::control::check::{
    addr_bytes, addr_from, each, range_u8, range_u32, secret, u128_bytes, u128_from,
};
use crate::control::limits::{
    AVOID_MAX, LOCATE_CHUNKS_MAX, LOCATE_FILES_MAX, PLACES_MAX, SPARES_MAX,
};
use crate::control::{
    ChunkPlace, Compression, ReplicaFault, ReplicaPlace, StreamChange, StreamReply, StreamRequest,
    StreamView, WriterGrant,
};
use crate::data::Purpose;

/// Number of a fragment, at most.
const FRAGMENT_LAST: u8 = codec::limits::FRAGMENTS_MAX as u8 - 1;

pub(super) fn chunk_len(len: u32, field: &'static str) -> Result<u32, WireError> {
    range_u32(len, 0..=CHUNK_LEN_MAX as u32, field)
}

impl Proto for ReplicaPlace {
    type Pb = pb::ReplicaPlace;

    fn to_pb(&self) -> pb::ReplicaPlace {
        pb::ReplicaPlace {
            server: self.server.get(),
            disk: u128_bytes(self.disk.get()),
            addr: addr_bytes(self.addr),
            fragment: self.fragment.into(),
        }
    }

    fn from_pb(pb: pb::ReplicaPlace) -> Result<ReplicaPlace, WireError> {
        Ok(ReplicaPlace {
            server: ServerId::new(pb.server),
            disk: DiskId::new(u128_from(&pb.disk, "ReplicaPlace.disk")?),
            addr: addr_from(&pb.addr, "ReplicaPlace.addr")?,
            fragment: range_u8(pb.fragment, 0..=FRAGMENT_LAST, "ReplicaPlace.fragment")?,
        })
    }
}

impl Proto for ChunkPlace {
    type Pb = pb::ChunkPlace;

    fn to_pb(&self) -> pb::ChunkPlace {
        let coded = coded_pb(self.data, self.copies, self.acks);
        let plain = |number: u8| if coded.is_some() { 0 } else { number.into() };
        pb::ChunkPlace {
            chunk: self.chunk.get(),
            epoch: self.epoch.get(),
            base: self.base,
            sealed: self.sealed,
            replicas: all(&self.replicas),
            acks: plain(self.acks),
            token: self.token.to_vec(),
            copies: plain(self.copies),
            compression: Compression::to_byte(self.compression).into(),
            coded,
        }
    }

    fn from_pb(pb: pb::ChunkPlace) -> Result<ChunkPlace, WireError> {
        let sealed = |len| chunk_len(len, "ChunkPlace.sealed");
        let (copies, acks, data) = match &pb.coded {
            None => {
                let acks = range_u8(pb.acks, 1..=REPLICAS_MAX as u8, "ChunkPlace.acks")?;
                let copies = range_u8(pb.copies, 0..=REPLICAS_MAX as u8, "ChunkPlace.copies")?;
                (copies, acks, 1)
            }
            Some(coded) if (pb.copies, pb.acks) == (0, 0) => {
                let policy = coded_policy(coded, "ChunkPlace.coded")?;
                (policy.copies, policy.acks, policy.data)
            }
            Some(_) => return Err(both_policies("ChunkPlace.coded", pb.copies, pb.acks)),
        };
        Ok(ChunkPlace {
            chunk: ChunkId::new(pb.chunk),
            epoch: Epoch::new(pb.epoch),
            base: pb.base,
            sealed: pb.sealed.map(sealed).transpose()?,
            replicas: each(pb.replicas, PLACES_MAX, "ChunkPlace.replicas", Proto::from_pb)?,
            acks,
            token: secret(&pb.token, "ChunkPlace.token")?,
            copies,
            data,
            compression: compression(pb.compression, "ChunkPlace.compression")?,
        })
    }
}

fn spares(count: u32, field: &'static str) -> Result<u8, WireError> {
    range_u8(count, 0..=SPARES_MAX, field)
}

fn purpose(number: u32, field: &'static str) -> Result<Purpose, WireError> {
    Purpose::from_number(number).ok_or(WireError::OutOfRange { field, value: number.into() })
}

fn avoid(servers: Vec<u32>, field: &'static str) -> Result<Vec<ServerId>, WireError> {
    each(servers, AVOID_MAX, field, |server| Ok(ServerId::new(server)))
}

fn left(servers: Vec<u32>, field: &'static str) -> Result<Vec<ServerId>, WireError> {
    each(servers, PLACES_MAX, field, |server| Ok(ServerId::new(server)))
}

fn numbers(servers: &[ServerId]) -> Vec<u32> {
    servers.iter().map(|server| server.get()).collect()
}

impl Proto for StreamChange {
    type Pb = pb::StreamChange;

    fn to_pb(&self) -> pb::StreamChange {
        use pb::stream_change::{Advance, Change, Close, Convert, Extend, Open, SetPolicy};
        let (mut named, mut accept_loss) = (None, false);
        let change = match self {
            StreamChange::Open {
                file,
                policy,
                grant,
                spares,
                purpose,
                follows,
                in_copies,
                avoid,
            } => {
                named = *follows;
                Change::Open(Open {
                    file: file.get(),
                    policy: Some(policy.to_pb()),
                    grant: grant.to_vec(),
                    spares: (*spares).into(),
                    purpose: *purpose as u32,
                    in_copies: *in_copies,
                    avoid: numbers(avoid),
                })
            }
            StreamChange::Advance {
                file,
                epoch,
                sealed,
                len,
                next,
                avoid,
                spares,
                left,
                in_copies,
            } => Change::Advance(Advance {
                file: file.get(),
                epoch: epoch.get(),
                sealed: sealed.get(),
                len: *len,
                next: next.get(),
                avoid: numbers(avoid),
                spares: (*spares).into(),
                left: numbers(left),
                in_copies: *in_copies,
            }),
            StreamChange::Extend { file, epoch, avoid, spares, purpose, in_copies } => {
                Change::Extend(Extend {
                    file: file.get(),
                    epoch: epoch.get(),
                    avoid: numbers(avoid),
                    spares: (*spares).into(),
                    purpose: *purpose as u32,
                    in_copies: *in_copies,
                })
            }
            StreamChange::Close { file, epoch, sealed, finish, left } => Change::Close(Close {
                file: file.get(),
                epoch: epoch.get(),
                sealed: sealed.map(|(chunk, len)| pb::SealedAt { chunk: chunk.get(), len }),
                finish: *finish,
                left: numbers(left),
            }),
            StreamChange::Seal { file, follows, accept_loss: accepted } => {
                (named, accept_loss) = (*follows, *accepted);
                Change::Seal(file.get())
            }
            StreamChange::Delete { file } => Change::Delete(file.get()),
            StreamChange::SetPolicy { file, policy, grant } => Change::SetPolicy(SetPolicy {
                file: file.get(),
                policy: Some(policy.to_pb()),
                grant: grant.to_vec(),
            }),
            StreamChange::Convert { file, wanted } => {
                Change::Convert(Convert { file: file.get(), wanted: *wanted })
            }
        };
        pb::StreamChange { change: Some(change), follows: named.map(Epoch::get), accept_loss }
    }

    fn from_pb(pb: pb::StreamChange) -> Result<StreamChange, WireError> {
        use pb::stream_change::Change;
        let follows = pb.follows.map(Epoch::new);
        Ok(match pb.change.ok_or(WireError::Missing { field: "StreamChange.change" })? {
            Change::Open(pb) => StreamChange::Open {
                file: FileId::new(pb.file),
                policy: need(pb.policy, "StreamChange.Open.policy")?,
                grant: secret(&pb.grant, "StreamChange.Open.grant")?,
                spares: spares(pb.spares, "StreamChange.Open.spares")?,
                purpose: purpose(pb.purpose, "StreamChange.Open.purpose")?,
                follows,
                in_copies: pb.in_copies,
                avoid: avoid(pb.avoid, "StreamChange.Open.avoid")?,
            },
            Change::Advance(pb) => StreamChange::Advance {
                file: FileId::new(pb.file),
                epoch: Epoch::new(pb.epoch),
                sealed: ChunkId::new(pb.sealed),
                len: chunk_len(pb.len, "StreamChange.Advance.len")?,
                next: ChunkId::new(pb.next),
                avoid: avoid(pb.avoid, "StreamChange.Advance.avoid")?,
                spares: spares(pb.spares, "StreamChange.Advance.spares")?,
                left: left(pb.left, "StreamChange.Advance.left")?,
                in_copies: pb.in_copies,
            },
            Change::Extend(pb) => StreamChange::Extend {
                file: FileId::new(pb.file),
                epoch: Epoch::new(pb.epoch),
                avoid: avoid(pb.avoid, "StreamChange.Extend.avoid")?,
                spares: spares(pb.spares, "StreamChange.Extend.spares")?,
                purpose: purpose(pb.purpose, "StreamChange.Extend.purpose")?,
                in_copies: pb.in_copies,
            },
            Change::Close(pb) => {
                let sealed = |pb: pb::SealedAt| {
                    Ok((ChunkId::new(pb.chunk), chunk_len(pb.len, "SealedAt.len")?))
                };
                StreamChange::Close {
                    file: FileId::new(pb.file),
                    epoch: Epoch::new(pb.epoch),
                    sealed: pb.sealed.map(sealed).transpose()?,
                    finish: pb.finish,
                    left: left(pb.left, "StreamChange.Close.left")?,
                }
            }
            Change::Seal(file) => {
                StreamChange::Seal { file: FileId::new(file), follows, accept_loss: pb.accept_loss }
            }
            Change::Delete(file) => StreamChange::Delete { file: FileId::new(file) },
            Change::SetPolicy(pb) => StreamChange::SetPolicy {
                file: FileId::new(pb.file),
                policy: need(pb.policy, "StreamChange.SetPolicy.policy")?,
                grant: secret(&pb.grant, "StreamChange.SetPolicy.grant")?,
            },
            Change::Convert(pb) => {
                StreamChange::Convert { file: FileId::new(pb.file), wanted: pb.wanted }
            }
        })
    }
}

const FAULTS: [(ReplicaFault, pb::ReplicaFault); 4] = [
    (ReplicaFault::Unreachable, pb::ReplicaFault::Unreachable),
    (ReplicaFault::Corrupt, pb::ReplicaFault::Corrupt),
    (ReplicaFault::Missing, pb::ReplicaFault::Missing),
    (ReplicaFault::DiskFailed, pb::ReplicaFault::DiskFailed),
];

fn fault_number(fault: ReplicaFault) -> i32 {
    let found = FAULTS.iter().find(|(ours, _)| *ours == fault);
    found.map_or(0, |(_, theirs)| i32::from(*theirs))
}

fn fault(number: i32) -> Result<ReplicaFault, WireError> {
    let found = FAULTS.iter().find(|(_, theirs)| i32::from(*theirs) == number);
    found.map(|(ours, _)| *ours).ok_or(WireError::OutOfRange {
        field: "StreamRequest.ReportBad.fault",
        value: u64::from(number as u32),
    })
}

impl Proto for StreamRequest {
    type Pb = pb::StreamRequest;

    fn to_pb(&self) -> pb::StreamRequest {
        use pb::stream_request::{Ask, Change, Locate, LocateMany, ReportBad, Want};
        let ask = match self {
            StreamRequest::Locate { file, offset, limit } => {
                Ask::Locate(Locate { file: file.get(), offset: *offset, limit: *limit })
            }
            StreamRequest::LocateMany { wants, limit } => {
                let want = |&(file, offset): &(FileId, u64)| Want { file: file.get(), offset };
                Ask::LocateMany(LocateMany {
                    wants: wants.iter().map(want).collect(),
                    limit: *limit,
                })
            }
            StreamRequest::ReportBad { file, chunk, server, fault } => Ask::ReportBad(ReportBad {
                file: file.get(),
                chunk: chunk.get(),
                server: server.get(),
                fault: fault_number(*fault),
            }),
            StreamRequest::Change { op, change } => {
                Ask::Change(Change { op: Some(op.to_pb()), change: Some(change.to_pb()) })
            }
        };
        pb::StreamRequest { ask: Some(ask) }
    }

    fn from_pb(pb: pb::StreamRequest) -> Result<StreamRequest, WireError> {
        use pb::stream_request::Ask;
        let limit = |limit, field| range_u32(limit, 1..=LOCATE_CHUNKS_MAX, field);
        Ok(match pb.ask.ok_or(WireError::Missing { field: "StreamRequest.ask" })? {
            Ask::Locate(pb) => StreamRequest::Locate {
                file: FileId::new(pb.file),
                offset: pb.offset,
                limit: limit(pb.limit, "StreamRequest.Locate.limit")?,
            },
            Ask::LocateMany(pb) => {
                let field = "StreamRequest.LocateMany.wants";
                let wants = each(pb.wants, LOCATE_FILES_MAX, field, |want| {
                    Ok((FileId::new(want.file), want.offset))
                })?;
                let limit = limit(pb.limit, "StreamRequest.LocateMany.limit")?;
                StreamRequest::LocateMany { wants, limit }
            }
            Ask::ReportBad(pb) => StreamRequest::ReportBad {
                file: FileId::new(pb.file),
                chunk: ChunkId::new(pb.chunk),
                server: ServerId::new(pb.server),
                fault: fault(pb.fault)?,
            },
            Ask::Change(pb) => {
                let (op, change) = change(pb.op, pb.change, "StreamRequest.Change.change")?;
                StreamRequest::Change { op, change }
            }
        })
    }
}

impl Proto for WriterGrant {
    type Pb = pb::WriterGrant;

    fn to_pb(&self) -> pb::WriterGrant {
        pb::WriterGrant {
            epoch: self.epoch.get(),
            len: self.len,
            current: self.current.as_ref().map(Proto::to_pb),
            spares: all(&self.spares),
            rights_ms: self.rights_ms.unwrap_or_default(),
        }
    }

    fn from_pb(pb: pb::WriterGrant) -> Result<WriterGrant, WireError> {
        let spares_max = usize::from(SPARES_MAX);
        Ok(WriterGrant {
            epoch: Epoch::new(pb.epoch),
            len: pb.len,
            current: pb.current.map(Proto::from_pb).transpose()?,
            spares: each(pb.spares, spares_max, "WriterGrant.spares", Proto::from_pb)?,
            rights_ms: Some(pb.rights_ms).filter(|&ms| ms > 0),
        })
    }
}

impl Proto for StreamView {
    type Pb = pb::StreamView;

    fn to_pb(&self) -> pb::StreamView {
        pb::StreamView {
            file: self.file.get(),
            chunks: all(&self.chunks),
            sealed_len: self.sealed_len,
            open: self.open,
            epoch: self.epoch.get(),
            policy: self.policy.as_ref().map(Proto::to_pb),
            loss_accepted: self.loss_accepted,
            converting: self.converting,
        }
    }

    fn from_pb(pb: pb::StreamView) -> Result<StreamView, WireError> {
        let chunks_max = LOCATE_CHUNKS_MAX as usize;
        Ok(StreamView {
            file: FileId::new(pb.file),
            chunks: each(pb.chunks, chunks_max, "StreamView.chunks", Proto::from_pb)?,
            sealed_len: pb.sealed_len,
            open: pb.open,
            epoch: Epoch::new(pb.epoch),
            policy: pb.policy.map(Proto::from_pb).transpose()?,
            loss_accepted: pb.loss_accepted,
            converting: pb.converting,
        })
    }
}

impl Proto for StreamReply {
    type Pb = pb::StreamReply;

    fn to_pb(&self) -> pb::StreamReply {
        use pb::stream_reply::{Answer, Done, Views};
        let answer = match self {
            StreamReply::Writer(grant) => Answer::Writer(grant.to_pb()),
            StreamReply::Views(views) => Answer::Views(Views { views: all(views) }),
            StreamReply::Done { len } => Answer::Done(Done { len: *len }),
            StreamReply::Epoch { epoch } => Answer::Epoch(epoch.get()),
        };
        pb::StreamReply { answer: Some(answer) }
    }

    fn from_pb(pb: pb::StreamReply) -> Result<StreamReply, WireError> {
        use pb::stream_reply::Answer;
        Ok(match pb.answer.ok_or(WireError::Missing { field: "StreamReply.answer" })? {
            Answer::Writer(grant) => StreamReply::Writer(Proto::from_pb(grant)?),
            Answer::Views(pb) => {
                let field = "StreamReply.Views.views";
                StreamReply::Views(each(pb.views, LOCATE_FILES_MAX, field, Proto::from_pb)?)
            }
            Answer::Done(pb) => StreamReply::Done { len: pb.len },
            Answer::Epoch(epoch) => StreamReply::Epoch { epoch: Epoch::new(epoch) },
        })
    }
}

//! Requests of masters to chunkservers.

use base::limits::PATH_MAX;
use base::{ChunkId, DiskId, Epoch};
use codec::limits::{DATA_MAX, PARITY_MAX};

use super::stream::chunk_len;
use super::{Proto, WireError, all, need, pb};
use crate::control::check::{each, range_u8, range_u32, secret, text, u128_bytes, u128_from};
use crate::control::limits::{CHUNKS_MAX, DISKS_MAX, PLACES_MAX};
use crate::control::{
    ChunkserverReply, ChunkserverRequest, Conversion, CopyOrder, DiskScrub, RowCheck, RowFindings,
};
use crate::data::{ReplicaStat, ReplicaState};
use crate::row::Fragment;
use crate::token::{Issuer, IssuerTime};

impl Proto for ReplicaStat {
    type Pb = pb::ReplicaStat;

    fn to_pb(&self) -> pb::ReplicaStat {
        use pb::replica_stat::State;
        let (state, fenced_below) = match self.state {
            ReplicaState::Open => (State::Open, 0),
            ReplicaState::Fenced(epoch) => (State::Fenced, epoch.get()),
            ReplicaState::Sealed => (State::Sealed, 0),
            ReplicaState::Repairing => (State::Repairing, 0),
            ReplicaState::Tombstone => (State::Tombstone, 0),
            ReplicaState::Deleted => (State::Deleted, 0),
        };
        pb::ReplicaStat {
            state: state.into(),
            fenced_below,
            epoch: self.epoch.get(),
            len: self.len,
            durable_bound: self.durable_bound,
            committed: self.committed,
        }
    }

    fn from_pb(pb: pb::ReplicaStat) -> Result<ReplicaStat, WireError> {
        use pb::replica_stat::State;
        let state = match State::try_from(pb.state) {
            Ok(State::Open) => ReplicaState::Open,
            Ok(State::Fenced) => ReplicaState::Fenced(Epoch::new(pb.fenced_below)),
            Ok(State::Sealed) => ReplicaState::Sealed,
            Ok(State::Repairing) => ReplicaState::Repairing,
            Ok(State::Tombstone) => ReplicaState::Tombstone,
            Ok(State::Deleted) => ReplicaState::Deleted,
            Ok(State::Unspecified) | Err(_) => {
                let value = u64::from(pb.state as u32);
                return Err(WireError::OutOfRange { field: "ReplicaStat.state", value });
            }
        };
        Ok(ReplicaStat {
            state,
            epoch: Epoch::new(pb.epoch),
            len: chunk_len(pb.len, "ReplicaStat.len")?,
            durable_bound: chunk_len(pb.durable_bound, "ReplicaStat.durable_bound")?,
            committed: chunk_len(pb.committed, "ReplicaStat.committed")?,
        })
    }
}

fn disk(bytes: &[u8], field: &'static str) -> Result<DiskId, WireError> {
    u128_from(bytes, field).map(DiskId::new)
}

fn disk_chunks(disk: DiskId, chunks: &[ChunkId], not_after: Option<IssuerTime>) -> pb::DiskChunks {
    let never = IssuerTime::wall(0);
    let IssuerTime { issuer, seconds } = not_after.unwrap_or(never);
    pb::DiskChunks {
        disk: u128_bytes(disk.get()),
        chunks: chunks.iter().map(|chunk| chunk.get()).collect(),
        not_after_s: seconds,
        issuer: issuer.get(),
    }
}

type DiskChunks = (DiskId, Vec<ChunkId>, Option<IssuerTime>);

fn from_disk_chunks(pb: pb::DiskChunks) -> Result<DiskChunks, WireError> {
    let chunk = |chunk| Ok(ChunkId::new(chunk));
    let chunks = each(pb.chunks, CHUNKS_MAX, "DiskChunks.chunks", chunk)?;
    let not_after = IssuerTime { issuer: Issuer::new(pb.issuer), seconds: pb.not_after_s };
    let not_after = Some(not_after).filter(|_| pb.not_after_s > 0);
    Ok((disk(&pb.disk, "DiskChunks.disk")?, chunks, not_after))
}

impl Proto for Fragment {
    type Pb = pb::Fragment;

    fn to_pb(&self) -> pb::Fragment {
        let Fragment { k, p, number } = *self;
        pb::Fragment { data: k.into(), parity: p.into(), number: number.into() }
    }

    fn from_pb(pb: pb::Fragment) -> Result<Fragment, WireError> {
        let field = "Fragment";
        let k = range_u8(pb.data, 2..=DATA_MAX as u8, field)?;
        let p = range_u8(pb.parity, 1..=PARITY_MAX as u8, field)?;
        Ok(Fragment { k, p, number: range_u8(pb.number, 0..=k + p - 1, field)? })
    }
}

impl Proto for ChunkserverRequest {
    type Pb = pb::ChunkserverRequest;

    fn to_pb(&self) -> pb::ChunkserverRequest {
        use pb::chunkserver_request::{
            Ask, Digest, FailDisk, List, Probe, ReplaceDisk, Replicate, Scrub,
        };
        let ask = match self {
            ChunkserverRequest::Replicate { disk, order } => Ask::Replicate(Replicate {
                chunk: order.chunk.get(),
                disk: u128_bytes(disk.get()),
                epoch: order.epoch.get(),
                base: order.base,
                len: order.len,
                sources: all(&order.sources),
                token: order.token.to_vec(),
                seal: order.seal,
                fragment: order.fragment.as_ref().map(Proto::to_pb),
                urgent: order.urgent,
            }),
            ChunkserverRequest::Delete { disk, chunks, not_after } => {
                Ask::Delete(disk_chunks(*disk, chunks, *not_after))
            }
            ChunkserverRequest::Forget { disk, chunks, not_after } => {
                Ask::Forget(disk_chunks(*disk, chunks, *not_after))
            }
            ChunkserverRequest::List { disk, after, limit } => Ask::List(List {
                disk: u128_bytes(disk.get()),
                after: after.map(ChunkId::get),
                limit: *limit,
            }),
            ChunkserverRequest::FailDisk { disk, failed } => {
                Ask::FailDisk(FailDisk { disk: u128_bytes(disk.get()), failed: *failed })
            }
            ChunkserverRequest::Probe { disk } => {
                Ask::Probe(Probe { disk: u128_bytes(disk.get()) })
            }
            ChunkserverRequest::ReplaceDisk { path } => {
                Ask::ReplaceDisk(ReplaceDisk { path: path.clone() })
            }
            ChunkserverRequest::Scrub { start } => Ask::Scrub(Scrub { start: *start }),
            ChunkserverRequest::Convert { disk, order } => Ask::Convert(conversion(*disk, order)),
            ChunkserverRequest::Digest { disk, chunk, len } => {
                Ask::Digest(Digest { disk: u128_bytes(disk.get()), chunk: chunk.get(), len: *len })
            }
            ChunkserverRequest::CheckRows { disk, order } => {
                Ask::CheckRows(row_check(*disk, order))
            }
            ChunkserverRequest::Ping => Ask::Ping(pb::Empty {}),
        };
        pb::ChunkserverRequest { ask: Some(ask) }
    }

    fn from_pb(pb: pb::ChunkserverRequest) -> Result<ChunkserverRequest, WireError> {
        use pb::chunkserver_request::Ask;
        Ok(match pb.ask.ok_or(WireError::Missing { field: "ChunkserverRequest.ask" })? {
            Ask::Replicate(pb) => ChunkserverRequest::Replicate {
                disk: disk(&pb.disk, "ChunkserverRequest.Replicate.disk")?,
                order: CopyOrder {
                    chunk: ChunkId::new(pb.chunk),
                    epoch: Epoch::new(pb.epoch),
                    base: pb.base,
                    len: chunk_len(pb.len, "ChunkserverRequest.Replicate.len")?,
                    sources: each(
                        pb.sources,
                        PLACES_MAX,
                        "ChunkserverRequest.Replicate.sources",
                        Proto::from_pb,
                    )?,
                    token: secret(&pb.token, "ChunkserverRequest.Replicate.token")?,
                    seal: pb.seal,
                    fragment: pb.fragment.map(Proto::from_pb).transpose()?,
                    urgent: pb.urgent,
                },
            },
            Ask::Delete(pb) => {
                let (disk, chunks, not_after) = from_disk_chunks(pb)?;
                ChunkserverRequest::Delete { disk, chunks, not_after }
            }
            Ask::Forget(pb) => {
                let (disk, chunks, not_after) = from_disk_chunks(pb)?;
                ChunkserverRequest::Forget { disk, chunks, not_after }
            }
            Ask::List(pb) => {
                let limit_max = CHUNKS_MAX as u32;
                ChunkserverRequest::List {
                    disk: disk(&pb.disk, "ChunkserverRequest.List.disk")?,
                    after: pb.after.map(ChunkId::new),
                    limit: range_u32(pb.limit, 1..=limit_max, "ChunkserverRequest.List.limit")?,
                }
            }
            Ask::FailDisk(pb) => ChunkserverRequest::FailDisk {
                disk: disk(&pb.disk, "ChunkserverRequest.FailDisk.disk")?,
                failed: pb.failed,
            },
            Ask::Probe(pb) => {
                ChunkserverRequest::Probe { disk: disk(&pb.disk, "ChunkserverRequest.Probe.disk")? }
            }
            Ask::ReplaceDisk(pb) => ChunkserverRequest::ReplaceDisk {
                path: text(pb.path, 1..=PATH_MAX, "ChunkserverRequest.ReplaceDisk.path")?,
            },
            Ask::Scrub(pb) => ChunkserverRequest::Scrub { start: pb.start },
            Ask::Convert(pb) => from_conversion(pb)?,
            Ask::Digest(pb) => ChunkserverRequest::Digest {
                disk: disk(&pb.disk, "ChunkserverRequest.Digest.disk")?,
                chunk: ChunkId::new(pb.chunk),
                len: chunk_len(pb.len, "ChunkserverRequest.Digest.len")?,
            },
            Ask::CheckRows(pb) => from_row_check(pb)?,
            Ask::Ping(pb::Empty {}) => ChunkserverRequest::Ping,
        })
    }
}

fn conversion(disk: DiskId, order: &Conversion) -> pb::chunkserver_request::Convert {
    pb::chunkserver_request::Convert {
        disk: u128_bytes(disk.get()),
        chunk: order.chunk.get(),
        epoch: order.epoch.get(),
        base: order.base,
        len: order.len,
        sources: all(&order.sources),
        read_token: order.read_token.to_vec(),
        code: order.code.as_ref().map(Proto::to_pb),
        made: order.made.get(),
        policy: Some(order.policy.to_pb()),
        places: all(&order.places),
        write_token: order.write_token.to_vec(),
    }
}

fn from_conversion(pb: pb::chunkserver_request::Convert) -> Result<ChunkserverRequest, WireError> {
    let places = |places, field| each(places, PLACES_MAX, field, Proto::from_pb);
    let order = Conversion {
        chunk: ChunkId::new(pb.chunk),
        epoch: Epoch::new(pb.epoch),
        base: pb.base,
        len: chunk_len(pb.len, "ChunkserverRequest.Convert.len")?,
        sources: places(pb.sources, "ChunkserverRequest.Convert.sources")?,
        read_token: secret(&pb.read_token, "ChunkserverRequest.Convert.read_token")?,
        code: pb.code.map(Proto::from_pb).transpose()?,
        made: ChunkId::new(pb.made),
        policy: need(pb.policy, "ChunkserverRequest.Convert.policy")?,
        places: places(pb.places, "ChunkserverRequest.Convert.places")?,
        write_token: secret(&pb.write_token, "ChunkserverRequest.Convert.write_token")?,
    };
    Ok(ChunkserverRequest::Convert {
        disk: disk(&pb.disk, "ChunkserverRequest.Convert.disk")?,
        order,
    })
}

fn row_check(disk: DiskId, order: &RowCheck) -> pb::chunkserver_request::CheckRows {
    pb::chunkserver_request::CheckRows {
        disk: u128_bytes(disk.get()),
        chunk: order.chunk.get(),
        epoch: order.epoch.get(),
        base: order.base,
        len: order.len,
        sources: all(&order.sources),
        token: order.token.to_vec(),
        code: Some(order.code.to_pb()),
        one_in: order.one_in,
    }
}

fn from_row_check(pb: pb::chunkserver_request::CheckRows) -> Result<ChunkserverRequest, WireError> {
    let sources = "ChunkserverRequest.CheckRows.sources";
    let order = RowCheck {
        chunk: ChunkId::new(pb.chunk),
        epoch: Epoch::new(pb.epoch),
        base: pb.base,
        len: chunk_len(pb.len, "ChunkserverRequest.CheckRows.len")?,
        sources: each(pb.sources, PLACES_MAX, sources, Proto::from_pb)?,
        token: secret(&pb.token, "ChunkserverRequest.CheckRows.token")?,
        code: need(pb.code, "ChunkserverRequest.CheckRows.code")?,
        one_in: range_u32(pb.one_in, 1..=u32::MAX, "ChunkserverRequest.CheckRows.one_in")?,
    };
    let disk = disk(&pb.disk, "ChunkserverRequest.CheckRows.disk")?;
    Ok(ChunkserverRequest::CheckRows { disk, order })
}

impl Proto for ChunkserverReply {
    type Pb = pb::ChunkserverReply;

    fn to_pb(&self) -> pb::ChunkserverReply {
        use pb::chunkserver_reply::{
            Answer, Converted, List, ListedReplica, Replicated, RowsChecked, Scrubs,
        };
        let answer = match self {
            ChunkserverReply::Replicated { stat, bytes } => {
                Answer::Replicated(Replicated { stat: Some(stat.to_pb()), bytes: *bytes })
            }
            ChunkserverReply::List { replicas, more } => {
                let listed = |replica: &crate::control::ListedReplica| ListedReplica {
                    chunk: replica.chunk.get(),
                    stat: Some(replica.stat.to_pb()),
                    physical: replica.physical,
                };
                Answer::List(List { replicas: replicas.iter().map(listed).collect(), more: *more })
            }
            ChunkserverReply::Probed { took_us } => Answer::Probed(*took_us),
            ChunkserverReply::Replaced { disk } => Answer::Replaced(u128_bytes(disk.get())),
            ChunkserverReply::Scrubs { disks, off } => {
                Answer::Scrubs(Scrubs { disks: disks.iter().map(disk_scrub).collect(), off: *off })
            }
            ChunkserverReply::Converted { digests } => {
                Answer::Converted(Converted { digests: digests.clone() })
            }
            ChunkserverReply::Digest { crc } => Answer::Digest(*crc),
            ChunkserverReply::RowsChecked(found) => {
                let RowFindings { checked, wrong, miscoded } = *found;
                Answer::RowsChecked(RowsChecked { checked, wrong, miscoded })
            }
            ChunkserverReply::Done => Answer::Done(pb::Empty {}),
        };
        pb::ChunkserverReply { answer: Some(answer) }
    }

    fn from_pb(pb: pb::ChunkserverReply) -> Result<ChunkserverReply, WireError> {
        use pb::chunkserver_reply::Answer;
        Ok(match pb.answer.ok_or(WireError::Missing { field: "ChunkserverReply.answer" })? {
            Answer::Replicated(pb) => ChunkserverReply::Replicated {
                stat: need(pb.stat, "ChunkserverReply.Replicated.stat")?,
                bytes: pb.bytes,
            },
            Answer::List(pb) => {
                let field = "ChunkserverReply.List.replicas";
                let replicas = each(pb.replicas, CHUNKS_MAX, field, |pb| {
                    let stat = need(pb.stat, "ChunkserverReply.ListedReplica.stat")?;
                    let (chunk, physical) = (ChunkId::new(pb.chunk), pb.physical);
                    Ok(crate::control::ListedReplica { chunk, stat, physical })
                })?;
                ChunkserverReply::List { replicas, more: pb.more }
            }
            Answer::Probed(took_us) => ChunkserverReply::Probed { took_us },
            Answer::Replaced(pb) => {
                ChunkserverReply::Replaced { disk: disk(&pb, "ChunkserverReply.Replaced.disk")? }
            }
            Answer::Scrubs(pb) => {
                let field = "ChunkserverReply.Scrubs.disks";
                let disks = each(pb.disks, DISKS_MAX, field, from_disk_scrub)?;
                ChunkserverReply::Scrubs { disks, off: pb.off }
            }
            Answer::Converted(pb) => {
                let field = "ChunkserverReply.Converted.digests";
                let digests = each(pb.digests, PLACES_MAX, field, Ok)?;
                ChunkserverReply::Converted { digests }
            }
            Answer::Digest(crc) => ChunkserverReply::Digest { crc },
            Answer::RowsChecked(pb) => ChunkserverReply::RowsChecked(RowFindings {
                checked: pb.checked,
                wrong: pb.wrong,
                miscoded: pb.miscoded,
            }),
            Answer::Done(_) => ChunkserverReply::Done,
        })
    }
}

fn disk_scrub(it: &DiskScrub) -> pb::chunkserver_reply::DiskScrub {
    let DiskScrub { passes, running, done, replicas, damaged, ended_ms, .. } = *it;
    let disk = u128_bytes(it.disk.get());
    pb::chunkserver_reply::DiskScrub { disk, passes, running, done, replicas, damaged, ended_ms }
}

fn from_disk_scrub(pb: pb::chunkserver_reply::DiskScrub) -> Result<DiskScrub, WireError> {
    let disk = disk(&pb.disk, "ChunkserverReply.DiskScrub.disk")?;
    let pb::chunkserver_reply::DiskScrub { passes, running, done, replicas, damaged, .. } = pb;
    Ok(DiskScrub { disk, passes, running, done, replicas, damaged, ended_ms: pb.ended_ms })
}

//! Volumes, segments, heartbeats and grants of the block service.

use block_volume::figures::{FINDINGS_MAX, SegmentCheck, SegmentScrub, SegmentUsage};
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::qos::VolumeLimits;
use wire::control::Policy;
use wire::control::check::{addr_bytes, addr_from, cut, each, label, name, range, range_u32, text};
use wire::control::limits::{LABEL_MAX, REASON_MAX};

use super::{Proto, WireError, all, need, pb};
use crate::limits::{
    ATTACHMENTS_MAX, LEASE_MAX_MS, LOADS_MAX, SEGMENTS_PAGE, UNOPENED_MAX, VOLUME_BYTES_WIRE,
};
use crate::{
    Assignment, Attachment, BlockGrant, BlockHeartbeat, BlockServerId, BlockServerReply,
    BlockServerRequest, OwnershipGrant, Seen, SegmentLoad, SegmentPlace, VolumeGeometry,
    VolumeInfo, VolumeSpec,
};

/// Copies of data, as the core encodes them.
pub(super) fn policy(bytes: Option<Vec<u8>>, field: &'static str) -> Result<Policy, WireError> {
    Policy::decode(&bytes.ok_or(WireError::Missing { field })?)
}

/// A volume's length.
pub(super) fn volume_bytes(bytes: u64, field: &'static str) -> Result<u64, WireError> {
    range(bytes, VOLUME_BYTES_WIRE.0..=VOLUME_BYTES_WIRE.1, field)
}

/// An epoch of an owner or of an attachment: they count from 1.
pub(super) fn epoch(epoch: u64, field: &'static str) -> Result<u64, WireError> {
    range(epoch, 1..=u64::MAX, field)
}

impl Proto for VolumeGeometry {
    type Pb = pb::VolumeGeometry;

    fn to_pb(&self) -> pb::VolumeGeometry {
        let VolumeGeometry { group_bytes, segments_per_group, data_sector } = *self;
        pb::VolumeGeometry { group_bytes, segments_per_group, data_sector }
    }

    fn from_pb(pb: pb::VolumeGeometry) -> Result<VolumeGeometry, WireError> {
        let pb::VolumeGeometry { group_bytes, segments_per_group, data_sector } = pb;
        Ok(VolumeGeometry { group_bytes, segments_per_group, data_sector })
    }
}

impl Proto for VolumeLimits {
    type Pb = pb::VolumeLimits;

    fn to_pb(&self) -> pb::VolumeLimits {
        let VolumeLimits { iops_base, iops_burst, bytes_base, bytes_burst } = *self;
        pb::VolumeLimits { iops_base, iops_burst, bytes_base, bytes_burst }
    }

    fn from_pb(pb: pb::VolumeLimits) -> Result<VolumeLimits, WireError> {
        let pb::VolumeLimits { iops_base, iops_burst, bytes_base, bytes_burst } = pb;
        Ok(VolumeLimits { iops_base, iops_burst, bytes_base, bytes_burst })
    }
}

impl Proto for VolumeSpec {
    type Pb = pb::VolumeSpec;

    fn to_pb(&self) -> pb::VolumeSpec {
        pb::VolumeSpec {
            name: self.name.clone(),
            bytes: self.bytes,
            geometry: Some(self.geometry.to_pb()),
            policy: Some(self.policy.encode()),
            limits: Some(self.limits.to_pb()),
            shared: self.shared,
        }
    }

    fn from_pb(pb: pb::VolumeSpec) -> Result<VolumeSpec, WireError> {
        Ok(VolumeSpec {
            name: name(pb.name, "VolumeSpec.name")?,
            bytes: volume_bytes(pb.bytes, "VolumeSpec.bytes")?,
            geometry: need(pb.geometry, "VolumeSpec.geometry")?,
            policy: policy(pb.policy, "VolumeSpec.policy")?,
            limits: need(pb.limits, "VolumeSpec.limits")?,
            shared: pb.shared,
        })
    }
}

impl Proto for Attachment {
    type Pb = pb::Attachment;

    fn to_pb(&self) -> pb::Attachment {
        pb::Attachment { epoch: self.epoch, holder: self.holder.clone() }
    }

    fn from_pb(pb: pb::Attachment) -> Result<Attachment, WireError> {
        Ok(Attachment {
            epoch: epoch(pb.epoch, "Attachment.epoch")?,
            holder: label(pb.holder, "Attachment.holder")?,
        })
    }
}

impl Proto for VolumeInfo {
    type Pb = pb::VolumeInfo;

    fn to_pb(&self) -> pb::VolumeInfo {
        pb::VolumeInfo {
            volume: self.volume.get(),
            spec: Some(self.spec.to_pb()),
            attachments: all(&self.attachments),
            parent: self.parent.map(VolumeId::get),
            clone_source: self.clone_source.map(VolumeId::get),
            hold_us: self.hold_us,
        }
    }

    fn from_pb(pb: pb::VolumeInfo) -> Result<VolumeInfo, WireError> {
        let field = "VolumeInfo.attachments";
        Ok(VolumeInfo {
            volume: VolumeId::new(pb.volume),
            spec: need(pb.spec, "VolumeInfo.spec")?,
            attachments: each(pb.attachments, ATTACHMENTS_MAX, field, Proto::from_pb)?,
            parent: pb.parent.map(VolumeId::new),
            clone_source: pb.clone_source.map(VolumeId::new),
            hold_us: pb.hold_us,
        })
    }
}

impl Proto for SegmentId {
    type Pb = pb::SegmentId;

    fn to_pb(&self) -> pb::SegmentId {
        pb::SegmentId { volume: self.volume.get(), index: self.index }
    }

    fn from_pb(pb: pb::SegmentId) -> Result<SegmentId, WireError> {
        Ok(SegmentId { volume: VolumeId::new(pb.volume), index: pb.index })
    }
}

impl Proto for SegmentPlace {
    type Pb = pb::SegmentPlace;

    fn to_pb(&self) -> pb::SegmentPlace {
        pb::SegmentPlace {
            index: self.index,
            epoch: self.epoch,
            server: self.server.map(BlockServerId::get),
            name: self.name.clone(),
            addr: self.addr.map(addr_bytes).unwrap_or_default(),
            serving: self.serving,
            cause: cut(&self.cause, REASON_MAX).to_owned(),
        }
    }

    fn from_pb(pb: pb::SegmentPlace) -> Result<SegmentPlace, WireError> {
        Ok(SegmentPlace {
            index: pb.index,
            epoch: pb.epoch,
            server: pb.server.map(BlockServerId::new),
            name: text(pb.name, 0..=LABEL_MAX, "SegmentPlace.name")?,
            addr: match pb.addr.is_empty() {
                true => None,
                false => Some(addr_from(&pb.addr, "SegmentPlace.addr")?),
            },
            serving: pb.serving,
            cause: text(pb.cause, 0..=REASON_MAX, "SegmentPlace.cause")?,
        })
    }
}

impl Proto for SegmentLoad {
    type Pb = pb::SegmentLoad;

    fn to_pb(&self) -> pb::SegmentLoad {
        let segment = Some(self.segment.to_pb());
        pb::SegmentLoad { segment, iops: self.iops, bytes: self.bytes }
    }

    fn from_pb(pb: pb::SegmentLoad) -> Result<SegmentLoad, WireError> {
        let segment = need(pb.segment, "SegmentLoad.segment")?;
        Ok(SegmentLoad { segment, iops: pb.iops, bytes: pb.bytes })
    }
}

impl Proto for Seen {
    type Pb = pb::Seen;

    fn to_pb(&self) -> pb::Seen {
        pb::Seen { term: self.term, change: self.change }
    }

    fn from_pb(pb: pb::Seen) -> Result<Seen, WireError> {
        Ok(Seen { term: pb.term, change: pb.change })
    }
}

impl Proto for BlockHeartbeat {
    type Pb = pb::BlockHeartbeat;

    fn to_pb(&self) -> pb::BlockHeartbeat {
        let unopened = |(segment, cause): &(SegmentId, String)| pb::block_heartbeat::Unopened {
            segment: Some(segment.to_pb()),
            cause: cut(cause, REASON_MAX).to_owned(),
        };
        pb::BlockHeartbeat {
            server: self.server.get(),
            addr: addr_bytes(self.addr),
            boot: self.boot,
            seq: self.seq,
            seen: Some(self.seen.to_pb()),
            unopened: self.unopened.iter().map(unopened).collect(),
            unopened_count: self.unopened_count,
            loads: all(&self.loads),
            leaving: self.leaving,
            asks_admission: self.asks_admission,
        }
    }

    fn from_pb(pb: pb::BlockHeartbeat) -> Result<BlockHeartbeat, WireError> {
        Ok(BlockHeartbeat {
            server: BlockServerId::new(pb.server),
            addr: addr_from(&pb.addr, "BlockHeartbeat.addr")?,
            boot: pb.boot,
            seq: range(pb.seq, 1..=u64::MAX, "BlockHeartbeat.seq")?,
            seen: need(pb.seen, "BlockHeartbeat.seen")?,
            unopened: each(pb.unopened, UNOPENED_MAX, "BlockHeartbeat.unopened", |one| {
                let segment = need(one.segment, "BlockHeartbeat.Unopened.segment")?;
                Ok((segment, text(one.cause, 0..=REASON_MAX, "BlockHeartbeat.Unopened.cause")?))
            })?,
            unopened_count: pb.unopened_count,
            loads: each(pb.loads, LOADS_MAX, "BlockHeartbeat.loads", Proto::from_pb)?,
            leaving: pb.leaving,
            asks_admission: pb.asks_admission,
        })
    }
}

impl Proto for OwnershipGrant {
    type Pb = pb::OwnershipGrant;

    fn to_pb(&self) -> pb::OwnershipGrant {
        pb::OwnershipGrant {
            epoch: self.epoch,
            bytes: self.bytes,
            policy: Some(self.policy.encode()),
            hold_ms: self.hold_ms,
            read_only: self.read_only,
            clone_source: self.clone_source.map(VolumeId::get),
            predecessor_ms: self.predecessor_ms,
        }
    }

    fn from_pb(pb: pb::OwnershipGrant) -> Result<OwnershipGrant, WireError> {
        Ok(OwnershipGrant {
            epoch: epoch(pb.epoch, "OwnershipGrant.epoch")?,
            bytes: volume_bytes(pb.bytes, "OwnershipGrant.bytes")?,
            policy: policy(pb.policy, "OwnershipGrant.policy")?,
            hold_ms: range_u32(pb.hold_ms, 0..=LEASE_MAX_MS, "OwnershipGrant.hold_ms")?,
            predecessor_ms: range_u32(
                pb.predecessor_ms,
                0..=pb.hold_ms,
                "OwnershipGrant.predecessor_ms",
            )?,
            read_only: pb.read_only,
            clone_source: pb.clone_source.map(VolumeId::new),
        })
    }
}

impl Proto for Assignment {
    type Pb = pb::Assignment;

    fn to_pb(&self) -> pb::Assignment {
        let ownership = self.ownership.as_ref().map(Proto::to_pb);
        pb::Assignment { segment: Some(self.segment.to_pb()), ownership }
    }

    fn from_pb(pb: pb::Assignment) -> Result<Assignment, WireError> {
        Ok(Assignment {
            segment: need(pb.segment, "Assignment.segment")?,
            ownership: pb.ownership.map(Proto::from_pb).transpose()?,
        })
    }
}

impl Proto for BlockGrant {
    type Pb = pb::BlockGrant;

    fn to_pb(&self) -> pb::BlockGrant {
        pb::BlockGrant {
            lease_ms: self.lease_ms,
            reset: self.reset,
            changes: all(&self.changes),
            seen: Some(self.seen.to_pb()),
            more: self.more,
            known: self.known,
        }
    }

    fn from_pb(pb: pb::BlockGrant) -> Result<BlockGrant, WireError> {
        let field = "BlockGrant.changes";
        Ok(BlockGrant {
            lease_ms: range_u32(pb.lease_ms, 0..=LEASE_MAX_MS, "BlockGrant.lease_ms")?,
            reset: pb.reset,
            changes: each(pb.changes, SEGMENTS_PAGE as usize, field, Proto::from_pb)?,
            seen: need(pb.seen, "BlockGrant.seen")?,
            more: pb.more,
            known: pb.known,
        })
    }
}

impl Proto for BlockServerRequest {
    type Pb = pb::BlockServerRequest;

    fn to_pb(&self) -> pb::BlockServerRequest {
        use pb::block_server_request::{Ask, Check, Cut, Link, Range, Release};
        let part =
            |segment: &SegmentId, from, to| Range { segment: Some(segment.to_pb()), from, to };
        let ask = match self {
            BlockServerRequest::HeartbeatNow => Ask::HeartbeatNow(pb::Empty {}),
            BlockServerRequest::Ping => Ask::Ping(pb::Empty {}),
            BlockServerRequest::HasData { segment, from, to } => {
                Ask::HasData(part(segment, *from, *to))
            }
            BlockServerRequest::Check { segment, from } => {
                Ask::Check(Check { segment: Some(segment.to_pb()), from: *from })
            }
            BlockServerRequest::Scrub { segment } => Ask::Scrub(segment.to_pb()),
            BlockServerRequest::Cut { segment, cut, hold_ms } => {
                let segment = Some(segment.to_pb());
                Ask::Cut(Cut { segment, cut: *cut, hold_ms: *hold_ms })
            }
            BlockServerRequest::Release { segment, cut, keep } => {
                let segment = Some(segment.to_pb());
                Ask::Release(Release { segment, cut: *cut, keep: *keep })
            }
            BlockServerRequest::Link { segment, cut, to, policy } => Ask::Link(Link {
                segment: Some(segment.to_pb()),
                cut: *cut,
                to: Some(to.to_pb()),
                policy: Some(policy.encode()),
            }),
            BlockServerRequest::Flatten { segment } => Ask::Flatten(segment.to_pb()),
            BlockServerRequest::Usage { from } => Ask::Usage(from.to_pb()),
        };
        pb::BlockServerRequest { ask: Some(ask) }
    }

    fn from_pb(pb: pb::BlockServerRequest) -> Result<BlockServerRequest, WireError> {
        use pb::block_server_request::{Ask, Range};
        let part = |pb: Range| -> Result<(SegmentId, u64, u64), WireError> {
            Ok((need(pb.segment, "BlockServerRequest.segment")?, pb.from, pb.to))
        };
        Ok(match pb.ask.ok_or(WireError::Missing { field: "BlockServerRequest.ask" })? {
            Ask::HeartbeatNow(_) => BlockServerRequest::HeartbeatNow,
            Ask::Ping(_) => BlockServerRequest::Ping,
            Ask::HasData(pb) => {
                let (segment, from, to) = part(pb)?;
                BlockServerRequest::HasData { segment, from, to }
            }
            Ask::Check(pb) => BlockServerRequest::Check {
                segment: need(pb.segment, "BlockServerRequest.Check.segment")?,
                from: pb.from,
            },
            Ask::Scrub(pb) => BlockServerRequest::Scrub { segment: Proto::from_pb(pb)? },
            Ask::Cut(pb) => BlockServerRequest::Cut {
                segment: need(pb.segment, "BlockServerRequest.Cut.segment")?,
                cut: pb.cut,
                hold_ms: range_u32(pb.hold_ms, 0..=LEASE_MAX_MS, "BlockServerRequest.Cut.hold_ms")?,
            },
            Ask::Release(pb) => BlockServerRequest::Release {
                segment: need(pb.segment, "BlockServerRequest.Release.segment")?,
                cut: pb.cut,
                keep: pb.keep,
            },
            Ask::Link(pb) => BlockServerRequest::Link {
                segment: need(pb.segment, "BlockServerRequest.Link.segment")?,
                cut: pb.cut,
                to: need(pb.to, "BlockServerRequest.Link.to")?,
                policy: policy(pb.policy, "BlockServerRequest.Link.policy")?,
            },
            Ask::Flatten(segment) => {
                BlockServerRequest::Flatten { segment: Proto::from_pb(segment)? }
            }
            Ask::Usage(pb) => BlockServerRequest::Usage { from: Proto::from_pb(pb)? },
        })
    }
}

impl Proto for SegmentCheck {
    type Pb = pb::SegmentCheck;

    fn to_pb(&self) -> pb::SegmentCheck {
        let shortened = |finding: &String| cut(finding, REASON_MAX).to_owned();
        pb::SegmentCheck {
            next: self.next,
            blocks: self.blocks,
            files: self.files,
            findings: self.findings.iter().take(FINDINGS_MAX).map(shortened).collect(),
            findings_count: self.findings_count,
        }
    }

    fn from_pb(pb: pb::SegmentCheck) -> Result<SegmentCheck, WireError> {
        let field = "SegmentCheck.findings";
        let findings =
            each(pb.findings, FINDINGS_MAX, field, |one| text(one, 0..=REASON_MAX, field))?;
        Ok(SegmentCheck {
            next: pb.next,
            blocks: pb.blocks,
            files: pb.files,
            findings,
            findings_count: pb.findings_count,
        })
    }
}

impl Proto for SegmentScrub {
    type Pb = pb::SegmentScrub;

    fn to_pb(&self) -> pb::SegmentScrub {
        let SegmentScrub { passes, done_bytes, total_bytes, read_bytes, damaged } = *self;
        pb::SegmentScrub { passes, done_bytes, total_bytes, read_bytes, damaged }
    }

    fn from_pb(pb: pb::SegmentScrub) -> Result<SegmentScrub, WireError> {
        let pb::SegmentScrub { passes, done_bytes, total_bytes, read_bytes, damaged } = pb;
        Ok(SegmentScrub { passes, done_bytes, total_bytes, read_bytes, damaged })
    }
}

impl Proto for BlockServerReply {
    type Pb = pb::BlockServerReply;

    fn to_pb(&self) -> pb::BlockServerReply {
        use pb::block_server_reply::{Answer, Usage};
        let answer = match self {
            BlockServerReply::Done => Answer::Done(pb::Empty {}),
            BlockServerReply::HasData(found) => Answer::HasData(*found),
            BlockServerReply::Checked(found) => Answer::Checked(found.to_pb()),
            BlockServerReply::Scrub(scrub) => Answer::Scrub(scrub.to_pb()),
            BlockServerReply::Count(count) => Answer::Count(*count),
            BlockServerReply::Usage { segments, more } => {
                Answer::Usage(Usage { segments: all(segments), more: *more })
            }
        };
        pb::BlockServerReply { answer: Some(answer) }
    }

    fn from_pb(pb: pb::BlockServerReply) -> Result<BlockServerReply, WireError> {
        use pb::block_server_reply::Answer;
        Ok(match pb.answer.ok_or(WireError::Missing { field: "BlockServerReply.answer" })? {
            Answer::Done(_) => BlockServerReply::Done,
            Answer::HasData(found) => BlockServerReply::HasData(found),
            Answer::Checked(pb) => BlockServerReply::Checked(Proto::from_pb(pb)?),
            Answer::Scrub(pb) => BlockServerReply::Scrub(Proto::from_pb(pb)?),
            Answer::Count(count) => BlockServerReply::Count(count),
            Answer::Usage(pb) => {
                let field = "BlockServerReply.segments";
                let segments = each(pb.segments, SEGMENTS_PAGE as usize, field, Proto::from_pb)?;
                BlockServerReply::Usage { segments, more: pb.more }
            }
        })
    }
}

impl Proto for SegmentUsage {
    type Pb = pb::SegmentUsage;

    fn to_pb(&self) -> pb::SegmentUsage {
        let SegmentUsage { index, files, file_bytes, stored_bytes, blocks, live, .. } = *self;
        let SegmentUsage { append_bytes, collected_bytes, collect_read_bytes, index_bytes, .. } =
            *self;
        pb::SegmentUsage {
            index,
            files,
            file_bytes,
            blocks,
            live,
            append_bytes,
            collected_bytes,
            index_bytes,
            stored_bytes,
            collect_read_bytes,
        }
    }

    fn from_pb(pb: pb::SegmentUsage) -> Result<SegmentUsage, WireError> {
        let pb::SegmentUsage { index, files, file_bytes, stored_bytes, blocks, live, .. } = pb;
        let pb::SegmentUsage {
            append_bytes, collected_bytes, collect_read_bytes, index_bytes, ..
        } = pb;
        Ok(SegmentUsage {
            index,
            files,
            file_bytes,
            blocks,
            live,
            append_bytes,
            collected_bytes,
            index_bytes,
            stored_bytes,
            collect_read_bytes,
        })
    }
}

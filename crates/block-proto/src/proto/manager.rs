//! Requests to the block manager, and its answers.

use block_volume::ids::VolumeId;
use wire::control::check::{addr_bytes, addr_from, each, label, name, range_u32};

use super::volume::{epoch, policy, volume_bytes};
use super::{Proto, WireError, all, decode, encode, need, pb};
use crate::limits::{BLOCK_PEERS_MAX, BLOCK_SERVERS_MAX, KEEPS_MAX, SEGMENTS_PAGE, VOLUMES_PAGE};
use crate::{
    BlockPeer, BlockReply, BlockRequest, BlockRole, BlockServerId, BlockServerStatus, BlockStatus,
    DeletedVolume, NamedSettings,
};

type Attachment = (VolumeId, u64);

fn attachment_pb((volume, epoch): &Attachment) -> pb::AttachmentId {
    pb::AttachmentId { volume: volume.get(), epoch: *epoch }
}

fn attachment(pb: pb::AttachmentId) -> Result<Attachment, WireError> {
    Ok((VolumeId::new(pb.volume), epoch(pb.epoch, "AttachmentId.epoch")?))
}

/// Settings that are named, as bits.
fn named_bits(named: NamedSettings) -> u32 {
    let NamedSettings { iops_base, iops_burst, bytes_base, bytes_burst, shared } = named;
    let bits = [iops_base, iops_burst, bytes_base, bytes_burst, shared];
    bits.iter().rev().fold(0, |bits, &named| bits << 1 | u32::from(named))
}

/// The same, back. A setting that this program does not know must not be passed over.
fn named_settings(bits: u32, field: &'static str) -> Result<NamedSettings, WireError> {
    let bits = range_u32(bits, 0..=named_bits(NamedSettings::ALL), field)?;
    let is_named = |bit: u32| bits >> bit & 1 == 1;
    Ok(NamedSettings {
        iops_base: is_named(0),
        iops_burst: is_named(1),
        bytes_base: is_named(2),
        bytes_burst: is_named(3),
        shared: is_named(4),
    })
}

/// A request with the number by which a repeat of it is known; 0: without.
struct Numbered(u64, BlockRequest);

impl Proto for Numbered {
    type Pb = pb::BlockRequest;

    fn to_pb(&self) -> pb::BlockRequest {
        pb::BlockRequest { once: self.0, ..self.1.to_pb() }
    }

    fn from_pb(pb: pb::BlockRequest) -> Result<Numbered, WireError> {
        Ok(Numbered(pb.once, BlockRequest::from_pb(pb)?))
    }
}

impl BlockRequest {
    /// The protobuf form of [`crate::Request::Once`].
    pub(crate) fn encode_once(self, once: u64) -> Vec<u8> {
        encode(&Numbered(once, self))
    }

    /// The same, back; 0: it has no number.
    pub(crate) fn decode_once(bytes: &[u8]) -> Result<(u64, BlockRequest), WireError> {
        decode(bytes).map(|Numbered(once, request)| (once, request))
    }
}

impl Proto for BlockRequest {
    type Pb = pb::BlockRequest;

    fn to_pb(&self) -> pb::BlockRequest {
        use pb::block_request::{
            Admit, Ask, Attach, Clone, Create, Delete, Deleted, Doubt, Here, Keep, List, Map,
            Register, Remove, Resize, Rollback, Set, Snapshot, Undelete,
        };
        let ask = match self {
            BlockRequest::Create { nonce, spec } => {
                Ask::Create(Create { nonce: *nonce, spec: Some(spec.to_pb()) })
            }
            BlockRequest::Remove { volume, force } => {
                Ask::Remove(Remove { volume: volume.get(), force: *force, deleted: false })
            }
            BlockRequest::RemoveDeleted { volume } => {
                Ask::Remove(Remove { volume: volume.get(), force: true, deleted: true })
            }
            BlockRequest::Delete { volume, force, snapshots } => {
                Ask::Delete(Delete { volume: volume.get(), force: *force, snapshots: *snapshots })
            }
            BlockRequest::ListDeleted { after, limit } => {
                Ask::Deleted(Deleted { after: after.map(VolumeId::get), limit: *limit })
            }
            BlockRequest::Undelete { volume, name } => {
                Ask::Undelete(Undelete { volume: volume.get(), name: name.clone() })
            }
            BlockRequest::Resize { volume, bytes, force } => {
                Ask::Resize(Resize { volume: volume.get(), bytes: *bytes, force: *force })
            }
            BlockRequest::Set { volume, limits, shared, policy } => Ask::Set(Set {
                volume: volume.get(),
                limits: Some(limits.to_pb()),
                shared: *shared,
                policy: policy.map(|policy| policy.encode()),
                named: None,
            }),
            BlockRequest::Change { volume, limits, shared, policy, named } => Ask::Set(Set {
                volume: volume.get(),
                limits: Some(limits.to_pb()),
                shared: *shared,
                policy: policy.map(|policy| policy.encode()),
                named: Some(named_bits(*named)),
            }),
            BlockRequest::Snapshot { nonce, volume, name } => {
                Ask::Snapshot(Snapshot { nonce: *nonce, volume: volume.get(), name: name.clone() })
            }
            BlockRequest::Clone { nonce, snapshot, name } => {
                Ask::Clone(Clone { nonce: *nonce, snapshot: snapshot.get(), name: name.clone() })
            }
            BlockRequest::Rollback { nonce, snapshot } => {
                Ask::Rollback(Rollback { nonce: *nonce, snapshot: snapshot.get() })
            }
            BlockRequest::Flatten { volume } => Ask::Flatten(volume.get()),
            BlockRequest::Find { name } => Ask::Find(name.clone()),
            BlockRequest::List { after, limit } => {
                Ask::List(List { after: after.clone(), limit: *limit })
            }
            BlockRequest::Map { volume, from, limit } => {
                Ask::Map(Map { volume: volume.get(), from: *from, limit: *limit })
            }
            BlockRequest::Attach { name, nonce, holder } => {
                Ask::Attach(Attach { name: name.clone(), nonce: *nonce, holder: holder.clone() })
            }
            BlockRequest::Keep { attachments } => {
                Ask::Keep(Keep { attachments: attachments.iter().map(attachment_pb).collect() })
            }
            BlockRequest::Detach { volume, epoch } => {
                Ask::Detach(attachment_pb(&(*volume, *epoch)))
            }
            BlockRequest::Admit { segment, epoch, attachment } => Ask::Admit(Admit {
                segment: Some(segment.to_pb()),
                epoch: *epoch,
                attachment: *attachment,
            }),
            BlockRequest::Doubt { segment, epoch } => {
                Ask::Doubt(Doubt { segment: Some(segment.to_pb()), epoch: *epoch })
            }
            BlockRequest::Register { name, addr } => {
                Ask::Register(Register { name: name.clone(), addr: addr_bytes(*addr) })
            }
            BlockRequest::Heartbeat(heartbeat) => Ask::Heartbeat(heartbeat.to_pb()),
            BlockRequest::Here { role, name, addr } => Ask::Here(Here {
                role: role_code(*role),
                name: name.clone(),
                addr: addr_bytes(*addr),
            }),
            BlockRequest::Status => Ask::Status(pb::Empty {}),
        };
        pb::BlockRequest { ask: Some(ask), once: 0 }
    }

    fn from_pb(pb: pb::BlockRequest) -> Result<BlockRequest, WireError> {
        use pb::block_request::Ask;
        Ok(match pb.ask.ok_or(WireError::Missing { field: "BlockRequest.ask" })? {
            Ask::Create(pb) => BlockRequest::Create {
                nonce: pb.nonce,
                spec: need(pb.spec, "BlockRequest.Create.spec")?,
            },
            Ask::Remove(pb) if pb.deleted => {
                BlockRequest::RemoveDeleted { volume: VolumeId::new(pb.volume) }
            }
            Ask::Remove(pb) => {
                BlockRequest::Remove { volume: VolumeId::new(pb.volume), force: pb.force }
            }
            Ask::Delete(pb) => BlockRequest::Delete {
                volume: VolumeId::new(pb.volume),
                force: pb.force,
                snapshots: pb.snapshots,
            },
            Ask::Deleted(pb) => BlockRequest::ListDeleted {
                after: pb.after.map(VolumeId::new),
                limit: range_u32(pb.limit, 1..=VOLUMES_PAGE, "BlockRequest.Deleted.limit")?,
            },
            Ask::Undelete(pb) => {
                let new = pb.name.map(|new| name(new, "BlockRequest.Undelete.name"));
                BlockRequest::Undelete { volume: VolumeId::new(pb.volume), name: new.transpose()? }
            }
            Ask::Resize(pb) => BlockRequest::Resize {
                volume: VolumeId::new(pb.volume),
                bytes: volume_bytes(pb.bytes, "BlockRequest.Resize.bytes")?,
                force: pb.force,
            },
            Ask::Set(pb) => {
                let volume = VolumeId::new(pb.volume);
                let limits = need(pb.limits, "BlockRequest.Set.limits")?;
                let shared = pb.shared;
                let policy = match pb.policy {
                    None => None,
                    bytes => Some(policy(bytes, "BlockRequest.Set.policy")?),
                };
                match pb.named {
                    None => BlockRequest::Set { volume, limits, shared, policy },
                    Some(bits) => {
                        let named = named_settings(bits, "BlockRequest.Set.named")?;
                        BlockRequest::Change { volume, limits, shared, policy, named }
                    }
                }
            }
            Ask::Snapshot(pb) => BlockRequest::Snapshot {
                nonce: pb.nonce,
                volume: VolumeId::new(pb.volume),
                name: name(pb.name, "BlockRequest.Snapshot.name")?,
            },
            Ask::Clone(pb) => BlockRequest::Clone {
                nonce: pb.nonce,
                snapshot: VolumeId::new(pb.snapshot),
                name: name(pb.name, "BlockRequest.Clone.name")?,
            },
            Ask::Rollback(pb) => {
                BlockRequest::Rollback { nonce: pb.nonce, snapshot: VolumeId::new(pb.snapshot) }
            }
            Ask::Flatten(volume) => BlockRequest::Flatten { volume: VolumeId::new(volume) },
            Ask::Find(found) => BlockRequest::Find { name: name(found, "BlockRequest.find")? },
            Ask::List(pb) => {
                let after = pb.after.map(|after| name(after, "BlockRequest.List.after"));
                BlockRequest::List {
                    after: after.transpose()?,
                    limit: range_u32(pb.limit, 1..=VOLUMES_PAGE, "BlockRequest.List.limit")?,
                }
            }
            Ask::Map(pb) => BlockRequest::Map {
                volume: VolumeId::new(pb.volume),
                from: pb.from,
                limit: range_u32(pb.limit, 1..=SEGMENTS_PAGE, "BlockRequest.Map.limit")?,
            },
            Ask::Attach(pb) => BlockRequest::Attach {
                name: name(pb.name, "BlockRequest.Attach.name")?,
                nonce: pb.nonce,
                holder: label(pb.holder, "BlockRequest.Attach.holder")?,
            },
            Ask::Keep(pb) => {
                let field = "BlockRequest.Keep.attachments";
                let attachments = each(pb.attachments, KEEPS_MAX, field, attachment)?;
                BlockRequest::Keep { attachments }
            }
            Ask::Detach(pb) => {
                let (volume, epoch) = attachment(pb)?;
                BlockRequest::Detach { volume, epoch }
            }
            Ask::Admit(pb) => BlockRequest::Admit {
                segment: need(pb.segment, "BlockRequest.Admit.segment")?,
                epoch: epoch(pb.epoch, "BlockRequest.Admit.epoch")?,
                attachment: epoch(pb.attachment, "BlockRequest.Admit.attachment")?,
            },
            Ask::Doubt(pb) => BlockRequest::Doubt {
                segment: need(pb.segment, "BlockRequest.Doubt.segment")?,
                epoch: epoch(pb.epoch, "BlockRequest.Doubt.epoch")?,
            },
            Ask::Register(pb) => BlockRequest::Register {
                name: label(pb.name, "BlockRequest.Register.name")?,
                addr: addr_from(&pb.addr, "BlockRequest.Register.addr")?,
            },
            Ask::Heartbeat(pb) => BlockRequest::Heartbeat(Proto::from_pb(pb)?),
            Ask::Here(pb) => BlockRequest::Here {
                role: role(pb.role, "BlockRequest.Here.role")?,
                name: label(pb.name, "BlockRequest.Here.name")?,
                addr: addr_from(&pb.addr, "BlockRequest.Here.addr")?,
            },
            Ask::Status(_) => BlockRequest::Status,
        })
    }
}

impl Proto for DeletedVolume {
    type Pb = pb::DeletedVolume;

    fn to_pb(&self) -> pb::DeletedVolume {
        let DeletedVolume { info, at_ms, left_ms } = self;
        pb::DeletedVolume { volume: Some(info.to_pb()), at_ms: *at_ms, left_ms: *left_ms }
    }

    fn from_pb(pb: pb::DeletedVolume) -> Result<DeletedVolume, WireError> {
        let info = need(pb.volume, "DeletedVolume.volume")?;
        Ok(DeletedVolume { info, at_ms: pb.at_ms, left_ms: pb.left_ms })
    }
}

impl Proto for BlockServerStatus {
    type Pb = pb::BlockServerStatus;

    fn to_pb(&self) -> pb::BlockServerStatus {
        pb::BlockServerStatus {
            server: self.server.get(),
            name: self.name.clone(),
            addr: addr_bytes(self.addr),
            alive: self.alive,
            segments: self.segments,
            iops: self.iops,
            bytes: self.bytes,
            leaving: self.leaving,
            unreached: self.unreached,
        }
    }

    fn from_pb(pb: pb::BlockServerStatus) -> Result<BlockServerStatus, WireError> {
        Ok(BlockServerStatus {
            server: BlockServerId::new(pb.server),
            name: label(pb.name, "BlockServerStatus.name")?,
            addr: addr_from(&pb.addr, "BlockServerStatus.addr")?,
            alive: pb.alive,
            segments: pb.segments,
            iops: pb.iops,
            bytes: pb.bytes,
            leaving: pb.leaving,
            unreached: pb.unreached,
        })
    }
}

fn role_code(role: BlockRole) -> u32 {
    match role {
        BlockRole::Manager => 1,
        BlockRole::Frontend => 2,
    }
}

fn role(code: u32, field: &'static str) -> Result<BlockRole, WireError> {
    match code {
        1 => Ok(BlockRole::Manager),
        2 => Ok(BlockRole::Frontend),
        _ => Err(WireError::OutOfRange { field, value: code.into() }),
    }
}

impl Proto for BlockPeer {
    type Pb = pb::BlockPeer;

    fn to_pb(&self) -> pb::BlockPeer {
        pb::BlockPeer {
            role: role_code(self.role),
            name: self.name.clone(),
            addr: addr_bytes(self.addr),
            alive: self.alive,
        }
    }

    fn from_pb(pb: pb::BlockPeer) -> Result<BlockPeer, WireError> {
        Ok(BlockPeer {
            role: role(pb.role, "BlockPeer.role")?,
            name: label(pb.name, "BlockPeer.name")?,
            addr: addr_from(&pb.addr, "BlockPeer.addr")?,
            alive: pb.alive,
        })
    }
}

impl Proto for BlockStatus {
    type Pb = pb::BlockStatus;

    fn to_pb(&self) -> pb::BlockStatus {
        pb::BlockStatus {
            manager: self.manager.clone(),
            term: self.term,
            volumes: self.volumes,
            removing: self.removing,
            orphans: self.orphans,
            moves: self.moves,
            servers: all(&self.servers),
            peers: all(&self.peers),
        }
    }

    fn from_pb(pb: pb::BlockStatus) -> Result<BlockStatus, WireError> {
        Ok(BlockStatus {
            manager: label(pb.manager, "BlockStatus.manager")?,
            term: pb.term,
            volumes: pb.volumes,
            removing: pb.removing,
            orphans: pb.orphans,
            moves: pb.moves,
            servers: each(pb.servers, BLOCK_SERVERS_MAX, "BlockStatus.servers", Proto::from_pb)?,
            peers: each(pb.peers, BLOCK_PEERS_MAX, "BlockStatus.peers", Proto::from_pb)?,
        })
    }
}

impl Proto for BlockReply {
    type Pb = pb::BlockReply;

    fn to_pb(&self) -> pb::BlockReply {
        use pb::block_reply::{
            Answer, Attached, Deleted, Kept, Map, Registered, Standing, Volumes,
        };
        let answer = match self {
            BlockReply::Volume(info) => Answer::Volume(info.to_pb()),
            BlockReply::Volumes { volumes, more } => {
                Answer::Volumes(Volumes { volumes: all(volumes), more: *more })
            }
            BlockReply::Map { segments, more } => {
                Answer::Map(Map { segments: all(segments), more: *more })
            }
            BlockReply::Attached { volume, epoch } => {
                Answer::Attached(Attached { volume: Some(volume.to_pb()), epoch: *epoch })
            }
            BlockReply::Kept { over } => {
                Answer::Kept(Kept { over: over.iter().map(attachment_pb).collect() })
            }
            BlockReply::Standing(crate::Standing { lives, owns, latest }) => {
                Answer::Standing(Standing { lives: *lives, owns: *owns, latest: *latest })
            }
            BlockReply::Registered { server, boot } => {
                Answer::Registered(Registered { server: server.get(), boot: *boot })
            }
            BlockReply::Grant(grant) => Answer::Grant(grant.to_pb()),
            BlockReply::Status(status) => Answer::Status(status.to_pb()),
            BlockReply::Shared(blocks) => Answer::Shared(*blocks),
            BlockReply::Deleted { volumes, more } => {
                Answer::Deleted(Deleted { volumes: all(volumes), more: *more })
            }
            BlockReply::Done => Answer::Done(pb::Empty {}),
        };
        pb::BlockReply { answer: Some(answer) }
    }

    fn from_pb(pb: pb::BlockReply) -> Result<BlockReply, WireError> {
        use pb::block_reply::Answer;
        Ok(match pb.answer.ok_or(WireError::Missing { field: "BlockReply.answer" })? {
            Answer::Volume(pb) => BlockReply::Volume(Proto::from_pb(pb)?),
            Answer::Volumes(pb) => {
                let field = "BlockReply.Volumes.volumes";
                let volumes = each(pb.volumes, VOLUMES_PAGE as usize, field, Proto::from_pb)?;
                BlockReply::Volumes { volumes, more: pb.more }
            }
            Answer::Map(pb) => {
                let field = "BlockReply.Map.segments";
                let segments = each(pb.segments, SEGMENTS_PAGE as usize, field, Proto::from_pb)?;
                BlockReply::Map { segments, more: pb.more }
            }
            Answer::Attached(pb) => BlockReply::Attached {
                volume: need(pb.volume, "BlockReply.Attached.volume")?,
                epoch: epoch(pb.epoch, "BlockReply.Attached.epoch")?,
            },
            Answer::Kept(pb) => {
                let over = each(pb.over, KEEPS_MAX, "BlockReply.Kept.over", attachment)?;
                BlockReply::Kept { over }
            }
            Answer::Standing(pb) => BlockReply::Standing(crate::Standing {
                lives: pb.lives,
                owns: pb.owns,
                latest: pb.latest,
            }),
            Answer::Registered(pb) => {
                BlockReply::Registered { server: BlockServerId::new(pb.server), boot: pb.boot }
            }
            Answer::Grant(pb) => BlockReply::Grant(Proto::from_pb(pb)?),
            Answer::Status(pb) => BlockReply::Status(Proto::from_pb(pb)?),
            Answer::Shared(blocks) => BlockReply::Shared(blocks),
            Answer::Deleted(pb) => {
                let field = "BlockReply.Deleted.volumes";
                let volumes = each(pb.volumes, VOLUMES_PAGE as usize, field, Proto::from_pb)?;
                BlockReply::Deleted { volumes, more: pb.more }
            }
            Answer::Done(_) => BlockReply::Done,
        })
    }
}

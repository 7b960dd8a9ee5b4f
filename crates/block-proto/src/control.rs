//! The block service's control messages (B6, B9, B11): volumes and their segments' owners.

use std::net::SocketAddr;

use block_volume::figures::{SegmentCheck, SegmentScrub, SegmentUsage};
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::qos::VolumeLimits;
use wire::control::Policy;

use tenancy::lease::Seen;

use crate::BlockServerId;

/// Sizes that a volume keeps for its life (B1). [`block_volume::geometry`] has the valid ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeGeometry {
    /// Bytes of a segment group.
    pub group_bytes: u64,
    /// Segments of a group.
    pub segments_per_group: u32,
    /// Bytes of a data sector.
    pub data_sector: u64,
}

/// Specification of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeSpec {
    /// Its name: as a file's, and unique.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its sizes.
    pub geometry: VolumeGeometry,
    /// Copies of what is written from now on.
    pub policy: Policy,
    /// Its limits.
    pub limits: VolumeLimits,
    /// May be attached several times at once.
    pub shared: bool,
}

/// Settings of a volume, beside its policy, that a [`BlockRequest::Change`] is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NamedSettings {
    /// Requests that are promised.
    pub iops_base: bool,
    /// Requests at most.
    pub iops_burst: bool,
    /// Bytes that are promised.
    pub bytes_base: bool,
    /// Bytes at most.
    pub bytes_burst: bool,
    /// Whether it may be attached several times at once.
    pub shared: bool,
}

impl NamedSettings {
    /// All of them.
    pub const ALL: NamedSettings = NamedSettings {
        iops_base: true,
        iops_burst: true,
        bytes_base: true,
        bytes_burst: true,
        shared: true,
    };

    /// Gives `spec` those that are named, and leaves the others.
    pub fn apply(self, spec: &mut VolumeSpec, limits: VolumeLimits, shared: bool) {
        let known = spec.limits;
        let one = |named: bool, asked: u64, known: u64| if named { asked } else { known };
        spec.limits = VolumeLimits {
            iops_base: one(self.iops_base, limits.iops_base, known.iops_base),
            iops_burst: one(self.iops_burst, limits.iops_burst, known.iops_burst),
            bytes_base: one(self.bytes_base, limits.bytes_base, known.bytes_base),
            bytes_burst: one(self.bytes_burst, limits.bytes_burst, known.bytes_burst),
        };
        if self.shared {
            spec.shared = shared;
        }
    }
}

/// A client that has a volume open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attachment {
    /// Its epoch: a larger one is newer (`protocols.md` 6.2).
    pub epoch: u64,
    /// The client, e.g. the front end's name.
    pub holder: String,
}

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeInfo {
    /// Its identity.
    pub volume: VolumeId,
    /// Its present specification.
    pub spec: VolumeSpec,
    /// Clients that have it open.
    pub attachments: Vec<Attachment>,
    /// It is a snapshot of this volume: it never changes (B10).
    pub parent: Option<VolumeId>,
    /// It was cloned from this snapshot and shares files with it (B11).
    pub clone_source: Option<VolumeId>,
    /// Of a snapshot: time for which acknowledgements were held back for it, microseconds
    /// (`protocols.md` 6.6).
    pub hold_us: u64,
}

/// A volume whose name is free again and whose data is still there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeletedVolume {
    /// Its facts before the deletion.
    pub info: VolumeInfo,
    /// Time of the deletion, milliseconds of Unix time.
    pub at_ms: u64,
    /// Time for which its data is still kept, milliseconds.
    pub left_ms: u64,
}

/// Owner of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentPlace {
    /// Number of the segment in its volume.
    pub index: u32,
    /// The ownership's epoch.
    pub epoch: u64,
    /// The owner; none while no block server lives.
    pub server: Option<BlockServerId>,
    /// The owner's name, as it is shown; empty without one.
    pub name: String,
    /// The owner's address.
    pub addr: Option<SocketAddr>,
    /// True when the owner has reported that it serves it.
    pub serving: bool,
    /// The cause that the owner reported last while it was not open. Empty when it serves, and for
    /// segments that a heartbeat had no room for.
    pub cause: String,
}

/// Requests and bytes that a segment served, a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentLoad {
    /// The segment.
    pub segment: SegmentId,
    /// Requests.
    pub iops: u32,
    /// Bytes.
    pub bytes: u64,
}

/// Sent by a block server every renewal interval: it asks for its lease (`protocols.md` 6.5).
#[derive(Clone, PartialEq, Debug)]
pub struct BlockHeartbeat {
    /// The server, as registered.
    pub server: BlockServerId,
    /// Its address.
    pub addr: SocketAddr,
    /// The process, as registered: larger than those of all processes before it.
    pub boot: u64,
    /// Counts heartbeats of this boot from 1.
    pub seq: u64,
    /// Changes that it has made: a segment that was taken from it is not served any more.
    pub seen: Seen,
    /// Segments that it has and does not serve yet, the first of them, with the cause.
    pub unopened: Vec<(SegmentId, String)>,
    /// Their number.
    pub unopened_count: u32,
    /// Load of its segments since the last heartbeat that reported it, the busiest.
    pub loads: Vec<SegmentLoad>,
    /// It is about to end: others are to get its segments now, and it gets none.
    pub leaving: bool,
    /// It admits an attachment to a segment by a [`BlockRequest::Admit`] of its own. Servers of older
    /// versions ask once for all segments of a volume.
    pub asks_admission: bool,
}

/// A change of a block server's ownership.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// The segment.
    pub segment: SegmentId,
    /// The ownership from now on; `None` when the segment is not this server's any more.
    pub ownership: Option<OwnershipGrant>,
}

/// A block server's ownership of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnershipGrant {
    /// The ownership's epoch: larger than all before it for this segment.
    pub epoch: u64,
    /// Bytes of the segment.
    pub bytes: u64,
    /// Policy of the files that are made from now on. It may change under one epoch.
    pub policy: Policy,
    /// Acknowledge no write for this long from the receipt of this, ms: the previous owner's lease
    /// may not have expired (`protocols.md` 6.5).
    pub hold_ms: u32,
    /// Of that, what only the previous owner's lease asks for, ms: not more than `hold_ms`. An attachment
    /// that is alone need not wait for it (`protocols-tail.md` 10.10).
    pub predecessor_ms: u32,
    /// Of a snapshot: it takes no changes.
    pub read_only: bool,
    /// Clone source: its content is that of the same segment of this volume, a snapshot. The server
    /// that first opens it links it from there (B11).
    pub clone_source: Option<VolumeId>,
}

/// The manager's word on an attachment that asks a segment's owner for a session
/// (`protocols-tail.md` 10.10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// The attachment is not over.
    pub lives: bool,
    /// The segment is the owner's still, under the epoch that it named.
    pub owns: bool,
    /// No attachment of the volume was ever made after this one.
    pub latest: bool,
}

/// Answer to a [`BlockHeartbeat`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockGrant {
    /// The lease, ms from the *sending* of the heartbeat; 0 when none is granted. It is for what
    /// the server owns once it has made the changes.
    pub lease_ms: u32,
    /// True: forget what is not among the changes of this grant and of those that follow it
    /// without a pause (`more`).
    pub reset: bool,
    /// Changes since those that the heartbeat lists as seen, in order.
    pub changes: Vec<Assignment>,
    /// Changes seen with them.
    pub seen: Seen,
    /// True when more changes follow: send the next heartbeat at once.
    pub more: bool,
    /// False when the server is not known: register again.
    pub known: bool,
}

/// Requests to the leading block manager. Each can be repeated: a repeat gives the same answer.
#[derive(Clone, PartialEq, Debug)]
pub enum BlockRequest {
    /// Makes a volume.
    Create {
        /// Drawn by the caller: the same number is the same creation.
        nonce: u64,
        /// The volume.
        spec: VolumeSpec,
    },
    /// Removes a volume, a deleted one too; its data goes in the background.
    Remove {
        /// The volume.
        volume: VolumeId,
        /// Also when a client has it open.
        force: bool,
    },
    /// Removes a deleted volume with its snapshots; its data goes in the background. One that was
    /// brought back is refused and stays. Managers of older programs remove that one, too.
    RemoveDeleted {
        /// The volume.
        volume: VolumeId,
    },
    /// Frees the name of a volume, and keeps its data for a while: `Undelete` brings it back.
    Delete {
        /// The volume.
        volume: VolumeId,
        /// Also when a client has it open, or clones of its snapshots are there.
        force: bool,
        /// Together with its snapshots; without, one that has any is refused.
        snapshots: bool,
    },
    /// Deleted volumes and their snapshots, by identity.
    ListDeleted {
        /// Volumes above this one.
        after: Option<VolumeId>,
        /// Volumes at most.
        limit: u32,
    },
    /// Brings a deleted volume back, with the snapshots that were deleted with it.
    Undelete {
        /// The volume.
        volume: VolumeId,
        /// Its name from now on; the one that it had when there is none.
        name: Option<String>,
    },
    /// Changes a volume's length. Refused with kind `Exists` when that cuts data off.
    Resize {
        /// The volume.
        volume: VolumeId,
        /// Its new length.
        bytes: u64,
        /// Segments that go as a whole may have data. The cut part of those that stay must have
        /// none: the caller trims it before, as a client that has the volume open. Such a client's
        /// trims can come late and change nothing.
        force: bool,
    },
    /// Changes a volume's limits, sharing and policy.
    Set {
        /// The volume.
        volume: VolumeId,
        /// The new limits.
        limits: VolumeLimits,
        /// May be attached several times at once.
        shared: bool,
        /// Policy of the files that its block servers make from now on; none: as it is. A manager that
        /// does not know of it answers with the volume unchanged.
        policy: Option<Policy>,
    },
    /// Changes those of a volume's settings that are named, so that two changes of different settings both
    /// last. Managers of older programs take it for a [`BlockRequest::Set`] of all of them.
    Change {
        /// The volume.
        volume: VolumeId,
        /// The new limits, as far as they are named. The others are as the caller knows them, for managers of
        /// older programs.
        limits: VolumeLimits,
        /// May be attached several times at once, if it is named; otherwise as the caller knows it.
        shared: bool,
        /// Policy of the files that its block servers make from now on; none: as it is.
        policy: Option<Policy>,
        /// Settings that are named.
        named: NamedSettings,
    },
    /// Makes a snapshot: a consistent cut over all segments (B10).
    Snapshot {
        /// Drawn by the caller: the same number is the same snapshot.
        nonce: u64,
        /// The volume.
        volume: VolumeId,
        /// The snapshot's name: it becomes `VOLUME@NAME`.
        name: String,
    },
    /// Makes a volume with the content of a snapshot, by links to its files (B11).
    Clone {
        /// Drawn by the caller: the same number is the same clone.
        nonce: u64,
        /// The snapshot.
        snapshot: VolumeId,
        /// The clone's name.
        name: String,
    },
    /// Gives a snapshot's volume the content of the snapshot again.
    Rollback {
        /// Drawn by the caller: the same number is the same rollback.
        nonce: u64,
        /// The snapshot.
        snapshot: VolumeId,
    },
    /// Has a clone copy what it shares with others; repeated until nothing is left.
    Flatten {
        /// The clone.
        volume: VolumeId,
    },
    /// The volume of a name.
    Find {
        /// The name.
        name: String,
    },
    /// Volumes in the order of their names.
    List {
        /// Names above this one.
        after: Option<String>,
        /// Volumes at most.
        limit: u32,
    },
    /// Owners of a volume's segments.
    Map {
        /// The volume.
        volume: VolumeId,
        /// The first segment.
        from: u32,
        /// Segments at most.
        limit: u32,
    },
    /// Opens a volume for a front end.
    Attach {
        /// The volume's name.
        name: String,
        /// Drawn by the caller: the same number is the same attachment ([`crate::attachment_nonce`]).
        nonce: u64,
        /// The client. The same process of it takes its own previous attachment over; another process waits until
        /// that one is silent.
        holder: String,
    },
    /// Renews attachments: sent every second.
    Keep {
        /// Volumes and epochs.
        attachments: Vec<(VolumeId, u64)>,
    },
    /// Closes an attachment.
    Detach {
        /// The volume.
        volume: VolumeId,
        /// The attachment's epoch.
        epoch: u64,
    },
    /// A segment's owner asks whether it may admit an attachment, after that has asked for a session.
    Admit {
        /// The segment.
        segment: SegmentId,
        /// The owner's epoch.
        epoch: u64,
        /// The attachment's epoch.
        attachment: u64,
    },
    /// A client gets no answer of a segment's owner, or no connection to it: the manager finds out
    /// whether it serves, and gives its segments to others if not (`protocols-tail.md` 10.9).
    Doubt {
        /// The segment.
        segment: SegmentId,
        /// The owner's epoch.
        epoch: u64,
    },
    /// A block server joins, or comes back.
    Register {
        /// Its name: the same name is the same server.
        name: String,
        /// Its address.
        addr: SocketAddr,
    },
    /// A block server renews its lease.
    Heartbeat(BlockHeartbeat),
    /// A process without a lease reports that it is alive: sent every second, for status output.
    Here {
        /// Its role.
        role: BlockRole,
        /// Its name.
        name: String,
        /// Its address for those that it serves.
        addr: SocketAddr,
    },
    /// The status of the block service.
    Status,
}

/// A process of the block service beside block servers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum BlockRole {
    /// A block manager, which leads or waits.
    Manager,
    /// A front end.
    Frontend,
}

impl BlockRequest {
    /// The volume that a request changes which must not happen again late, behind a later change, nor late
    /// when it was refused: it goes as [`crate::Request::Once`]. Others have a number of their own, or do no harm.
    pub fn happens_once(&self) -> Option<VolumeId> {
        match self {
            BlockRequest::Remove { volume, .. }
            | BlockRequest::RemoveDeleted { volume }
            | BlockRequest::Delete { volume, .. }
            | BlockRequest::Undelete { volume, .. }
            | BlockRequest::Resize { volume, .. }
            | BlockRequest::Set { volume, .. }
            | BlockRequest::Change { volume, .. } => Some(*volume),
            _ => None,
        }
    }

    /// Its name in traces and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            BlockRequest::Create { .. } => "create volume",
            BlockRequest::Remove { .. } => "remove volume",
            BlockRequest::RemoveDeleted { .. } => "remove deleted volume",
            BlockRequest::Delete { .. } => "delete volume",
            BlockRequest::ListDeleted { .. } => "list deleted volumes",
            BlockRequest::Undelete { .. } => "undelete volume",
            BlockRequest::Resize { .. } => "resize volume",
            BlockRequest::Set { .. } | BlockRequest::Change { .. } => "set volume",
            BlockRequest::Snapshot { .. } => "snapshot volume",
            BlockRequest::Clone { .. } => "clone volume",
            BlockRequest::Rollback { .. } => "roll volume back",
            BlockRequest::Flatten { .. } => "flatten volume",
            BlockRequest::Find { .. } => "find volume",
            BlockRequest::List { .. } => "list volumes",
            BlockRequest::Map { .. } => "map volume",
            BlockRequest::Attach { .. } => "attach volume",
            BlockRequest::Keep { .. } => "keep attachments",
            BlockRequest::Detach { .. } => "detach volume",
            BlockRequest::Admit { .. } => "admit attachment",
            BlockRequest::Doubt { .. } => "doubt owner",
            BlockRequest::Register { .. } => "register block server",
            BlockRequest::Heartbeat(_) => "block server beat",
            BlockRequest::Here { .. } => "block service sign of life",
            BlockRequest::Status => "block status",
        }
    }
}

/// A block server as the manager sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockServerStatus {
    /// The server.
    pub server: BlockServerId,
    /// Its name.
    pub name: String,
    /// Its address.
    pub addr: SocketAddr,
    /// True while heartbeats come.
    pub alive: bool,
    /// True when it is about to end.
    pub leaving: bool,
    /// True when its heartbeats come, and the manager's pings are not answered: others have its
    /// segments until they are again.
    pub unreached: bool,
    /// Segments that it owns.
    pub segments: u32,
    /// Requests a second over its segments.
    pub iops: u64,
    /// Bytes a second over its segments.
    pub bytes: u64,
}

/// A process of the block service beside block servers, as the manager knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockPeer {
    /// Its role.
    pub role: BlockRole,
    /// Its name.
    pub name: String,
    /// Its address.
    pub addr: SocketAddr,
    /// True while its reports come.
    pub alive: bool,
}

/// The block service in figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockStatus {
    /// Name of the manager that leads.
    pub manager: String,
    /// Its term.
    pub term: u64,
    /// Volumes.
    pub volumes: u64,
    /// Volumes whose data is still to be removed.
    pub removing: u64,
    /// Segments without a living owner.
    pub orphans: u64,
    /// Segments that moved under this leader.
    pub moves: u64,
    /// Block servers.
    pub servers: Vec<BlockServerStatus>,
    /// Managers and front ends that this leader has heard of.
    pub peers: Vec<BlockPeer>,
}

/// A successful answer of the block manager.
#[derive(Clone, PartialEq, Debug)]
pub enum BlockReply {
    /// To `Create`, `Resize`, `Set`, `Find`; to `Snapshot`, `Clone` and `Rollback` with the new
    /// volume.
    Volume(VolumeInfo),
    /// To `List`.
    Volumes {
        /// Volumes.
        volumes: Vec<VolumeInfo>,
        /// True when more follow.
        more: bool,
    },
    /// To `Map`; to `Doubt`, the segment's owner after that.
    Map {
        /// Segments.
        segments: Vec<SegmentPlace>,
        /// True when more follow.
        more: bool,
    },
    /// To `Attach`.
    Attached {
        /// The volume.
        volume: VolumeInfo,
        /// The attachment's epoch. Others of the volume that are not in `volume` are over.
        epoch: u64,
    },
    /// To `Keep`: attachments that are over.
    Kept {
        /// Volumes and epochs.
        over: Vec<(VolumeId, u64)>,
    },
    /// To `Admit`.
    Standing(Standing),
    /// To `Register`.
    Registered {
        /// The server: the same for the same name.
        server: BlockServerId,
        /// The process: larger than those of all that registered before.
        boot: u64,
    },
    /// To `Heartbeat`.
    Grant(BlockGrant),
    /// To `Status`.
    Status(BlockStatus),
    /// To `Flatten`: blocks that are still shared.
    Shared(u64),
    /// To `ListDeleted`; to `Delete` with the volume, unless nothing is kept of it.
    Deleted {
        /// Volumes.
        volumes: Vec<DeletedVolume>,
        /// True when more follow.
        more: bool,
    },
    /// Done.
    Done,
}

/// Requests of the block manager to a block server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockServerRequest {
    /// Send a heartbeat now: there is news.
    HeartbeatNow,
    /// Answer, so that the manager knows that others reach this server (`protocols-tail.md` 10.7).
    Ping,
    /// Is there data in a part of a segment?
    HasData {
        /// The segment.
        segment: SegmentId,
        /// The part's first byte.
        from: u64,
        /// The byte behind it.
        to: u64,
    },
    /// Space of the open segments of a volume.
    Usage {
        /// The volume and the first segment.
        from: SegmentId,
    },
    /// Compare a piece of a segment's map with what is stored.
    Check {
        /// The segment.
        segment: SegmentId,
        /// Start of the piece: 0, then [`SegmentCheck::next`] of the piece before.
        from: u64,
    },
    /// Progress of the scrub of a segment (B14).
    Scrub {
        /// The segment.
        segment: SegmentId,
    },
    /// Fix a cut: all that was acknowledged is in it, and acknowledgements of later changes are
    /// held back until it is released (`protocols.md` 6.6).
    Cut {
        /// The segment.
        segment: SegmentId,
        /// Number of the cut. One at a time: a new one ends the one before.
        cut: u64,
        /// Without a release for this long the cut is given up, ms.
        hold_ms: u32,
    },
    /// End the hold. `NotFound` when the cut was given up before.
    Release {
        /// The segment.
        segment: SegmentId,
        /// The cut.
        cut: u64,
        /// False: the cut is not needed any more.
        keep: bool,
    },
    /// Link the files of a cut that was released into the directory of another segment.
    Link {
        /// The segment.
        segment: SegmentId,
        /// The cut.
        cut: u64,
        /// The other segment, which no server has open yet.
        to: SegmentId,
        /// Copies of new data there.
        policy: Policy,
    },
    /// Copy blocks that are stored in files of another volume, in the background.
    Flatten {
        /// The segment.
        segment: SegmentId,
    },
}

impl BlockServerRequest {
    /// Its name in traces and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            BlockServerRequest::HeartbeatNow => "beat now",
            BlockServerRequest::Ping => "ping",
            BlockServerRequest::HasData { .. } => "has data",
            BlockServerRequest::Check { .. } => "check segment",
            BlockServerRequest::Scrub { .. } => "scrub progress",
            BlockServerRequest::Cut { .. } => "cut segment",
            BlockServerRequest::Release { .. } => "release segment",
            BlockServerRequest::Link { .. } => "link segment",
            BlockServerRequest::Flatten { .. } => "flatten segment",
            BlockServerRequest::Usage { .. } => "usage",
        }
    }
}

/// A successful answer of a block server on the control path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BlockServerReply {
    /// Done.
    Done,
    /// To `HasData`.
    HasData(bool),
    /// To `Check`.
    Checked(SegmentCheck),
    /// To `Scrub`.
    Scrub(SegmentScrub),
    /// To `Release`: time for which acknowledgements were held back, microseconds. To `Flatten`:
    /// blocks that are still in files of another volume.
    Count(u64),
    /// To `Usage`.
    Usage {
        /// Segments in the order of their numbers.
        segments: Vec<SegmentUsage>,
        /// True when more follow.
        more: bool,
    },
}

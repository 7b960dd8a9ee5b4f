//! State of the block manager: each entity is a row of its table.

use std::net::SocketAddr;

use block_proto::{BlockServerId, VolumeSpec, geometry};
use block_volume::ids::VolumeId;
use runtime::Duration;

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volume {
    /// The creation that made it.
    pub nonce: u64,
    /// Its present specification.
    pub spec: VolumeSpec,
    /// Epoch of its last attachment.
    pub attach_epoch: u64,
    /// Epochs of owners of segments that are made from now on are larger than this: those of
    /// segments that were cut off are below.
    pub owner_floor: u64,
    /// Clients that have it open.
    pub attached: Vec<AttachedClient>,
    /// Its relations to other volumes.
    pub family: Family,
    /// Its name is free, and its data is kept for a while.
    pub deleted: Option<Deleted>,
}

/// Deletion of a volume; times in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deleted {
    /// When it was deleted, by the calendar of the leader that was asked.
    pub at_ms: u64,
    /// End of its retention, by that calendar.
    pub until_ms: u64,
    /// Time that was left when a leader stored it last; all of it in rows without.
    pub left_ms: Option<u64>,
}

/// One deletion of a volume and its snapshots. When a volume is brought back and deleted once more,
/// that is another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deletion {
    at_ms: u64,
    until_ms: u64,
}

impl Deleted {
    /// The deletion.
    pub(super) fn deletion(&self) -> Deletion {
        Deletion { at_ms: self.at_ms, until_ms: self.until_ms }
    }

    /// Time for which a leader that begins with this row keeps the data. No calendar counts: one
    /// may have been set since.
    pub fn left(&self) -> Duration {
        let all = self.until_ms.saturating_sub(self.at_ms);
        Duration::from_millis(self.left_ms.unwrap_or(all))
    }
}

/// Relations of a volume to others (B10, B11).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Family {
    /// It is a snapshot of this volume.
    pub parent: Option<VolumeId>,
    /// It was cloned from this snapshot, and shares files with it.
    pub clone_source: Option<VolumeId>,
    /// Segments that the snapshot has: the volume's first ones are linked from it. Programs of
    /// version 1 without this count leave it away.
    pub clone_source_segments: Option<u32>,
    /// Its directories are being made: it cannot be opened yet.
    pub making: bool,
    /// Of a snapshot: time for which answers were held back for it, microseconds.
    pub hold_us: u64,
}

impl Family {
    /// Ends the sharing with the snapshot that it was cloned from.
    pub(super) fn take_clone_source(&mut self) -> Option<VolumeId> {
        self.clone_source_segments = None;
        self.clone_source.take()
    }
}

/// A client that has a volume open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttachedClient {
    /// Its epoch.
    pub epoch: u64,
    /// The request that made it.
    pub nonce: u64,
    /// The client's name.
    pub holder: String,
}

/// A segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The ownership's epoch.
    pub epoch: u64,
    /// The block server that owns it.
    pub owner: Option<BlockServerId>,
}

/// A block server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// Its address.
    pub addr: SocketAddr,
}

/// Processes of a block server, which are numbered from 1 in the order in which they register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Boots {
    /// The last number that was given.
    pub given: u64,
    /// The last process that sent a heartbeat: those before it own nothing any more.
    pub heard: u64,
}

/// Numbers that are never used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counters {
    /// The next volume.
    pub volume: u64,
    /// The next block server.
    pub server: u32,
}

/// Files that are to be removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PendingDelete {
    /// The volume.
    pub volume: VolumeId,
    /// One segment of it; all of it when there is none.
    pub segment: Option<u32>,
}

/// Number of segments of a volume, by its length.
pub(super) fn segments_of_all(volume: &Volume) -> u32 {
    geometry(&volume.spec).map_or(0, |sizes| sizes.segments(volume.spec.bytes)) as u32
}

//! Block servers as a leader knows them, and leases that delay acknowledgements of new owners.

use std::collections::BTreeMap;

use block_proto::BlockServerId;
use block_volume::ids::SegmentId;
use runtime::Instant;

use super::limits::{BYTES_PER_REQUEST, SEGMENT_COST};
use super::reach::Reach;

/// A block server as this leader knows it.
#[derive(Debug)]
pub(super) struct ServerEntry {
    pub(super) alive: bool,
    /// It has reported that it is about to end.
    pub(super) leaving: bool,
    pub(super) reach: Reach,
    /// Time of the last heartbeat.
    pub(super) last_heartbeat: Instant,
    /// The process that sends heartbeats, once this leader has heard of one.
    pub(super) boot: Option<u64>,
    pub(super) seq: u64,
    /// It asks about each attachment that it admits to a segment.
    pub(super) asks_admission: bool,
    /// No lease that was granted to it lasts longer.
    pub(super) lease_end: Instant,
    /// Changes for it, by number; each segment once, at its last change.
    pub(super) changes: BTreeMap<u64, SegmentId>,
    pub(super) numbers: BTreeMap<SegmentId, u64>,
    pub(super) next_change: u64,
    /// Changes that its present process has made.
    pub(super) seen: u64,
    /// Segments that it does not serve yet: the first of them, and how many.
    pub(super) unopened: BTreeMap<SegmentId, String>,
    pub(super) unopened_count: u32,
    pub(super) loads: BTreeMap<SegmentId, (u32, u64)>,
}

/// Leases of previous owners, until whose end the owner of a segment must not acknowledge writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Hold(pub(super) Vec<Wait>);

/// A previous owner that may believe to have its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wait {
    pub(super) server: BlockServerId,
    pub(super) boot: Option<u64>,
    /// The epoch under which it had the segment.
    pub(super) epoch: u64,
    /// It asks the manager about each attachment that it admits to a segment.
    pub(super) asks_admission: bool,
    /// The change that took the segment from it: when it has made that, it serves no more.
    pub(super) change: u64,
    /// Its lease is over by then.
    pub(super) until: Instant,
}

impl Hold {
    /// End of the last of these leases.
    pub(super) fn until(&self) -> Instant {
        self.0.iter().map(|wait| wait.until).max().unwrap_or_default()
    }

    /// The same for an attachment that is alone at the owner of `epoch`, which need not wait for the
    /// owner before (`protocols-tail.md` 10.10): that one admits no one else to the segment any more.
    pub(super) fn until_alone(&self, epoch: u64) -> Instant {
        let spared =
            |wait: &&Wait| !(wait.asks_admission && wait.epoch.checked_add(1) == Some(epoch));
        self.0.iter().filter(spared).map(|wait| wait.until).max().unwrap_or_default()
    }
}

impl ServerEntry {
    /// True once this leader has received a heartbeat of it.
    pub(super) fn has_heartbeat(&self) -> bool {
        self.boot.is_some()
    }

    /// A server that this leader has not heard of, and that may have a lease.
    pub(super) fn silent(now: Instant, lease_end: Instant) -> ServerEntry {
        ServerEntry {
            // Until it has been silent for long, it is assumed to be as it was.
            alive: true,
            leaving: false,
            reach: Reach::new(now),
            last_heartbeat: now,
            boot: None,
            seq: 0,
            asks_admission: false,
            lease_end,
            changes: BTreeMap::new(),
            numbers: BTreeMap::new(),
            next_change: 1,
            seen: 0,
            unopened: BTreeMap::new(),
            unopened_count: 0,
            loads: BTreeMap::new(),
        }
    }

    /// True when it lives and may be given segments.
    pub(super) fn is_staying(&self) -> bool {
        self.alive && !self.leaving && !self.reach.is_lost()
    }

    /// Requests and bytes a second.
    pub(super) fn load(&self) -> (u64, u64) {
        let sum = |(iops, bytes): (u64, u64), load: &(u32, u64)| {
            (iops + u64::from(load.0), bytes.saturating_add(load.1))
        };
        self.loads.values().fold((0, 0), sum)
    }

    /// Cost of a segment for its server, in requests a second.
    pub(super) fn cost(&self, id: SegmentId) -> u64 {
        let (iops, bytes) = self.loads.get(&id).copied().unwrap_or_default();
        SEGMENT_COST + u64::from(iops) + bytes / BYTES_PER_REQUEST
    }

    /// Cost of all its segments but the idle ones.
    pub(super) fn busy_cost(&self) -> u64 {
        let (iops, bytes) = self.load();
        iops + bytes / BYTES_PER_REQUEST
    }
}

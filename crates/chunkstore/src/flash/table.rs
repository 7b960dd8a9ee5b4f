//! The store's knowledge of its replicas, and its changes by records.

use std::collections::{BTreeMap, VecDeque};

use base::limits::SECTOR;
use base::{ChunkId, Epoch};
use metrics::{Fact, Step};
use runtime::sync::oneshot;
use runtime::{Buf, Instant};
use wire::data::{Purpose, ReplicaStat, ReplicaState};
use wire::row::{Layout, rows};
use wire::sector::parse_footer;

use super::record::{Extent, Identity, MapPlace, Record};
use crate::contract::{DELETED, StoreError};
use crate::map::RunMap;

/// Units of a sealed replica. Nearly all have one extent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Units {
    One(Extent),
    Many(Box<[Extent]>),
}

impl Units {
    fn new(extents: &[Extent]) -> Units {
        match extents {
            [one] => Units::One(*one),
            many => Units::Many(many.into()),
        }
    }

    pub(crate) fn extents(&self) -> &[Extent] {
        match self {
            Units::One(one) => std::slice::from_ref(one),
            Units::Many(many) => many,
        }
    }
}

/// Resident entry of a sealed replica. The memory for a million of them is a goal of its own: see
/// the assertion below and the test beside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sealed {
    pub(crate) epoch: Epoch,
    pub(crate) base: u64,
    pub(crate) tag: u32,
    pub(crate) layout: Layout,
    pub(crate) len: u32,
    pub(crate) map: MapPlace,
    pub(crate) units: Units,
}

/// 96 bytes and the key's 8 in tree nodes that are at least 6/11 full: below 200 bytes.
const _: () = assert!((size_of::<Entry>() + size_of::<ChunkId>()) * 11 / 6 < 200);

/// An append between its acceptance and its acknowledgement.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) offset: u32,
    pub(crate) len: u32,
    /// Sectors, with the server parts filled in.
    pub(crate) sectors: Buf,
    /// By the repair worker: a fence does not refuse it.
    pub(crate) repair: bool,
    /// Its purpose.
    pub(crate) purpose: Purpose,
    pub(crate) written: bool,
    /// The operation that brought it.
    pub(crate) span: Option<metrics::Span>,
    pub(crate) waiter: Option<oneshot::Sender<Result<u32, StoreError>>>,
    /// Repeats of it.
    pub(crate) joined: Vec<oneshot::Sender<Result<u32, StoreError>>>,
}

impl Queued {
    /// Its operation has reached a stage.
    pub(crate) fn note(&self, step: Step, at: Instant, fact: Fact) {
        if let Some(span) = &self.span {
            span.note(step, at.as_nanos(), fact);
        }
    }

    /// Adds its sectors to the map of its replica.
    pub(crate) fn note_in(&self, map: &mut RunMap, layout: Layout) {
        if layout != Layout::Plain {
            return rows(&self.sectors).for_each(|(row, _)| map.push_row(row.len, row.sectors()));
        }
        let lens = self
            .sectors
            .chunks(SECTOR)
            .map(|sector| parse_footer(sector).expect("verified when it was accepted").len);
        match self.repair {
            true => map.push_part(lens),
            false => map.push(lens),
        }
    }

    /// Wakes all its waiters with the result.
    pub(crate) fn end(self, result: &Result<u32, StoreError>) {
        for waiter in self.waiter.into_iter().chain(self.joined) {
            let _ = waiter.send(result.clone());
        }
    }
}

/// Operation under way on an open replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closing {
    No,
    Sealing,
    Deleting,
}

/// A replica that is not sealed.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) id: Identity,
    pub(crate) fence: Epoch,
    pub(crate) repairing: bool,
    /// Known-durable bytes, from log and checkpoint.
    pub(crate) bound: u32,
    /// Length it was fenced at; absent while repair completes it.
    pub(crate) cap: Option<u32>,
    pub(crate) extents: Vec<Extent>,
    pub(crate) units: u32,
    /// Durable sectors and bytes.
    pub(crate) map: RunMap,
    /// Chained check of the last durable sector.
    pub(crate) chain: u32,
    /// True when bytes below `bound` are not readable.
    pub(crate) damaged: bool,
    /// Fence of the tombstone whose place it took: that comes back when there is no room.
    pub(crate) replaced: Option<Epoch>,
    /// True once its record is on its way to the log.
    pub(crate) logged: bool,
    pub(crate) bound_dirty: bool,
    pub(crate) closing: Closing,
    /// Accepted and not acknowledged, in offset order; the first `issued` are being written.
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) issued: usize,
    pub(crate) next_len: u32,
    pub(crate) next_sector: u32,
    pub(crate) next_chain: u32,
    /// Sectors and chained check behind what is issued.
    pub(crate) issued_sector: u32,
    pub(crate) issued_chain: u32,
    pub(crate) flushing: bool,
    pub(crate) writes: u32,
    pub(crate) drained: Vec<oneshot::Sender<()>>,
    /// Extents whose records may not be durable: first sector, and the record's number.
    pub(crate) extent_lsns: VecDeque<(u32, u64)>,
}

impl Open {
    pub(crate) fn new(id: Identity, fence: Epoch, repairing: bool) -> Open {
        Open {
            id,
            fence,
            repairing,
            bound: 0,
            cap: None,
            extents: Vec::new(),
            units: 0,
            map: RunMap::default(),
            chain: 0,
            damaged: false,
            replaced: None,
            logged: false,
            bound_dirty: false,
            closing: Closing::No,
            queue: VecDeque::new(),
            issued: 0,
            next_len: 0,
            next_sector: 0,
            next_chain: 0,
            issued_sector: 0,
            issued_chain: 0,
            flushing: false,
            writes: 0,
            drained: Vec::new(),
            extent_lsns: VecDeque::new(),
        }
    }

    /// Takes over what recovery found.
    pub(crate) fn resume(&mut self) {
        self.next_len = self.map.len();
        self.next_sector = self.map.sectors();
        self.next_chain = self.chain;
        self.issued_sector = self.map.sectors();
        self.issued_chain = self.chain;
        self.damaged = self.map.len() < self.bound;
        self.logged = true;
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fence > self.id.epoch && !self.repairing
    }

    pub(crate) fn add_extents(&mut self, extents: &[Extent]) {
        for extent in extents {
            self.units += extent.count;
            match self.extents.last_mut() {
                Some(last) if last.start + last.count == extent.start => last.count += extent.count,
                _ => self.extents.push(*extent),
            }
        }
    }

    fn stat(&self) -> ReplicaStat {
        let len = self.map.len();
        let state = if self.repairing {
            ReplicaState::Repairing
        } else if self.is_fenced() {
            ReplicaState::Fenced(self.fence)
        } else {
            ReplicaState::Open
        };
        let durable_bound = self.bound.max(len);
        ReplicaStat { state, epoch: self.id.epoch, len, durable_bound, committed: 0 }
    }

    /// The sealed replica that this one becomes, and the units it no longer needs.
    fn seal(&self, len: u32, units: u32, map: MapPlace) -> (Sealed, Vec<Extent>) {
        let (kept, freed) = split(&self.extents, units);
        let sealed = Sealed {
            epoch: self.id.epoch,
            base: self.id.base,
            tag: self.id.tag,
            layout: self.id.layout,
            len,
            map,
            units: Units::new(&kept),
        };
        (sealed, freed)
    }
}

/// The first `units` units of `extents`, and the rest.
fn split(extents: &[Extent], units: u32) -> (Vec<Extent>, Vec<Extent>) {
    let (mut kept, mut freed) = (Vec::new(), Vec::new());
    let mut left = units;
    for extent in extents {
        let count = extent.count.min(left);
        left -= count;
        if count > 0 {
            kept.push(Extent { start: extent.start, count });
        }
        if count < extent.count {
            freed.push(Extent { start: extent.start + count, count: extent.count - count });
        }
    }
    (kept, freed)
}

/// A replica.
#[derive(Debug)]
pub(crate) enum Entry {
    Open(Box<Open>),
    Sealed(Sealed),
}

impl Entry {
    pub(crate) fn extents(&self) -> &[Extent] {
        match self {
            Entry::Open(open) => &open.extents,
            Entry::Sealed(sealed) => sealed.units.extents(),
        }
    }

    pub(crate) fn id(&self, chunk: ChunkId) -> Identity {
        match self {
            Entry::Open(open) => open.id,
            Entry::Sealed(s) => {
                Identity { chunk, epoch: s.epoch, base: s.base, tag: s.tag, layout: s.layout }
            }
        }
    }

    pub(crate) fn tag(&self) -> u32 {
        match self {
            Entry::Open(open) => open.id.tag,
            Entry::Sealed(sealed) => sealed.tag,
        }
    }

    pub(crate) fn stat(&self) -> ReplicaStat {
        match self {
            Entry::Open(open) => open.stat(),
            Entry::Sealed(sealed) => ReplicaStat {
                state: ReplicaState::Sealed,
                epoch: sealed.epoch,
                len: sealed.len,
                durable_bound: sealed.len,
                committed: sealed.len,
            },
        }
    }

    pub(crate) fn units(&self) -> u32 {
        self.extents().iter().map(|extent| extent.count).sum()
    }
}

/// Facts of a tombstone with this fence.
pub(crate) fn tombstone_stat(fence: Epoch) -> ReplicaStat {
    let deleted = fence == DELETED;
    let state = if deleted { ReplicaState::Deleted } else { ReplicaState::Tombstone };
    ReplicaStat { state, epoch: Epoch::NONE, len: 0, durable_bound: 0, committed: 0 }
}

/// All replicas and tombstones.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) chunks: BTreeMap<ChunkId, Entry>,
    pub(crate) tombstones: BTreeMap<ChunkId, Epoch>,
    /// Units that are zeroed.
    pub(crate) ready: u32,
    /// Largest mount number seen.
    pub(crate) mount: u64,
}

impl Table {
    fn open_mut(&mut self, chunk: ChunkId, tag: u32) -> Option<&mut Open> {
        match self.chunks.get_mut(&chunk) {
            Some(Entry::Open(open)) if open.id.tag == tag => Some(open),
            _ => None,
        }
    }

    /// Applies a record of log or checkpoint; the error says what contradicts it.
    pub(crate) fn apply(&mut self, record: Record) -> Result<(), &'static str> {
        match record {
            Record::Mount { mount } => self.mount = self.mount.max(mount),
            Record::Ready { units } => self.ready = self.ready.max(units),
            Record::Replica { id, fence, bound, cap, repairing, extents } => {
                if self.chunks.get(&id.chunk).is_some_and(|entry| entry.tag() == id.tag) {
                    return Ok(());
                }
                check_units(0, &extents)?;
                let mut open = Open::new(id, fence, repairing);
                open.bound = bound;
                open.cap = cap;
                open.add_extents(&extents);
                self.tombstones.remove(&id.chunk);
                self.chunks.insert(id.chunk, Entry::Open(Box::new(open)));
            }
            Record::Extend { chunk, tag, bound, units, extents } => {
                self.extend(chunk, tag, bound, units, &extents)?;
            }
            Record::Runs { chunk, tag, before, runs } => {
                let open = self.open_mut(chunk, tag).ok_or("runs of no open replica")?;
                if open.map.runs().len() != before as usize {
                    return Err("runs out of order");
                }
                if !open.map.extend(&runs) {
                    return Err("runs with gaps");
                }
            }
            Record::Progress { chunk, tag, len, sectors, chain } => {
                let open = self.open_mut(chunk, tag).ok_or("progress of no open replica")?;
                if open.map.len() != len || open.map.sectors() != sectors {
                    return Err("progress that its runs deny");
                }
                open.chain = chain;
                open.bound = open.bound.max(len);
            }
            Record::Fence { chunk, tag, epoch, len, ends } => match self.chunks.get_mut(&chunk) {
                Some(Entry::Open(open)) if open.id.tag == tag => {
                    open.fence = open.fence.max(epoch);
                    open.bound = open.bound.max(len);
                    open.cap = ends.then_some(len);
                }
                Some(_) => {}
                None => {
                    let fence = self.tombstones.entry(chunk).or_insert(epoch);
                    *fence = epoch.max(*fence);
                }
            },
            Record::Seal { chunk, tag, len, units, map } => {
                if let Some(open) = self.open_mut(chunk, tag) {
                    let (sealed, _freed) = open.seal(len, units, map);
                    self.chunks.insert(chunk, Entry::Sealed(sealed));
                }
            }
            Record::Delete { chunk } => {
                self.chunks.remove(&chunk);
                self.tombstones.insert(chunk, DELETED);
            }
            Record::Forget { chunk } => {
                self.tombstones.remove(&chunk);
            }
            Record::Bound { chunk, tag, len } => {
                if let Some(open) = self.open_mut(chunk, tag) {
                    open.bound = open.bound.max(len);
                }
            }
            Record::Tombstone { chunk, fence } => {
                self.tombstones.insert(chunk, fence);
            }
            Record::Sealed { id, len, map, extents } => {
                check_units(0, &extents)?;
                let sealed = Sealed {
                    epoch: id.epoch,
                    base: id.base,
                    tag: id.tag,
                    layout: id.layout,
                    len,
                    map,
                    units: Units::new(&extents),
                };
                self.chunks.insert(id.chunk, Entry::Sealed(sealed));
            }
        }
        Ok(())
    }

    fn extend(
        &mut self,
        chunk: ChunkId,
        tag: u32,
        bound: u32,
        units: u32,
        extents: &[Extent],
    ) -> Result<(), &'static str> {
        match self.chunks.get_mut(&chunk) {
            Some(Entry::Open(open)) if open.id.tag == tag => {
                open.bound = open.bound.max(bound);
                match units.cmp(&open.units) {
                    std::cmp::Ordering::Less => {} // The checkpoint was ahead.
                    std::cmp::Ordering::Equal => {
                        check_units(open.units, extents)?;
                        open.add_extents(extents);
                    }
                    std::cmp::Ordering::Greater => return Err("units of a replica are missing"),
                }
            }
            _ => {} // Another incarnation, or sealed since.
        }
        Ok(())
    }

    /// Seals an open replica in place; the units it no longer needs.
    pub(crate) fn seal(
        &mut self,
        chunk: ChunkId,
        len: u32,
        units: u32,
        map: MapPlace,
    ) -> Vec<Extent> {
        let Some(Entry::Open(open)) = self.chunks.get(&chunk) else {
            unreachable!("the caller holds the chunk");
        };
        let (sealed, freed) = open.seal(len, units, map);
        self.chunks.insert(chunk, Entry::Sealed(sealed));
        freed
    }
}

/// Refuses more units than any store has.
fn check_units(before: u32, extents: &[Extent]) -> Result<(), &'static str> {
    let more = extents.iter().map(|extent| u64::from(extent.count)).sum::<u64>();
    let fits = u64::from(before) + more < u64::from(u32::MAX / 2);
    if fits { Ok(()) } else { Err("more units than any store has") }
}

/// Place of a replica's sector: its unit, its place there, and the number of sectors that follow
/// one another on the medium from it.
pub(crate) fn place(extents: &[Extent], unit_sectors: u32, sector: u32) -> Option<(u32, u32, u32)> {
    let mut before = 0;
    let unit = sector / unit_sectors;
    for extent in extents {
        if unit < before + extent.count {
            let within = unit - before;
            let rest = extent.count - within;
            let inner = sector % unit_sectors;
            return Some((extent.start + within, inner, rest * unit_sectors - inner));
        }
        before += extent.count;
    }
    None
}

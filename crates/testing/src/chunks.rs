//! The reference model: the contract in memory, as simply as possible.
//!
//! A dirty reboot is an operation: [`ModelDisk::reboot`] keeps what was acknowledged and draws at
//! random which part of the rest stays.
//!
//! Invariant: shares no check and no checksum with an engine, or with what clients format with.

mod sector;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::limits::SECTOR;
use base::{ChunkId, ClusterId, DiskId, Epoch, FormationId};
use chunkstore::limits::READ_BYTES_MAX;
use chunkstore::{
    Append, Appended, ChunkInfo, ChunkStore, Read, StoreError, StoreInfo, StoreOwner,
};
use runtime::{Env, Rng};
use sector::{Sector, fragment_of, sectors_of};
use wire::data::{ReplicaStat, ReplicaState};

/// The fence of a deleted chunk: no epoch may act.
const DELETED: Epoch = Epoch::new(u64::MAX);

#[derive(Clone, Debug)]
struct Replica {
    epoch: Epoch,
    base: u64,
    fence: Epoch,
    repairing: bool,
    /// The fragment whose cells it has; none when its sectors are plain.
    fragment: Option<[u8; 3]>,
    sealed: Option<u32>,
    /// Whole sectors, in order.
    sectors: Vec<Sector>,
    /// Sectors acknowledged: what a reboot keeps for sure.
    durable: usize,
}

impl Replica {
    fn len_of(&self, count: usize) -> u32 {
        self.sectors[..count].last().map_or(0, Sector::end)
    }

    fn ends_at(&self, len: u32) -> bool {
        len == 0 || self.sectors.iter().any(|sector| sector.end() == len)
    }

    fn len(&self) -> u32 {
        self.sealed.unwrap_or_else(|| self.len_of(self.durable))
    }
}

#[derive(Clone, Debug)]
enum Entry {
    Replica(Replica),
    /// Holds the fence; [`DELETED`] once it has been deleted.
    Tombstone(Epoch),
}

/// State that a model store keeps across reboots.
#[derive(Clone, Debug)]
pub struct ModelDisk(Rc<RefCell<Disk>>);

#[derive(Debug)]
struct Disk {
    id: DiskId,
    chunks: BTreeMap<ChunkId, Entry>,
    owner: StoreOwner,
    /// Counts reboots: stores of older boots do nothing more.
    boot: u64,
}

/// A store on a [`ModelDisk`].
#[derive(Clone, Debug)]
pub struct ModelStore {
    env: Option<Env>,
    disk: ModelDisk,
    boot: u64,
}

impl ModelDisk {
    /// An empty disk.
    pub fn new(id: DiskId) -> ModelDisk {
        let (chunks, owner) = (BTreeMap::new(), StoreOwner::Fresh);
        ModelDisk(Rc::new(RefCell::new(Disk { id, chunks, owner, boot: 0 })))
    }

    /// Cuts the power: of each chunk there stays what was acknowledged, and a prefix of what was
    /// in flight, in whole appends.
    pub fn reboot(&self, rng: &mut Rng) {
        let disk = &mut *self.0.borrow_mut();
        disk.boot += 1;
        for entry in disk.chunks.values_mut() {
            let Entry::Replica(replica) = entry else { continue };
            let mut keep = replica.durable;
            let ends: Vec<usize> = replica
                .sectors
                .iter()
                .enumerate()
                .filter(|(index, sector)| *index >= keep && sector.is_last())
                .map(|(index, _)| index + 1)
                .collect();
            let kept = rng.below(ends.len() as u64 + 1) as usize;
            if kept > 0 {
                keep = ends[kept - 1];
            }
            replica.sectors.truncate(keep);
            replica.durable = keep;
        }
    }

    /// Makes an empty replica: what a crash may leave of a creation in flight.
    pub fn make_empty(&self, chunk: ChunkId, epoch: Epoch, base: u64, repairing: bool) {
        self.make_empty_of(chunk, (epoch, base), repairing, None);
    }

    /// As [`ModelDisk::make_empty`], of a replica with the layout of this append.
    pub fn make_empty_by(&self, append: &Append) {
        let fragment = sectors_of(append).ok().and_then(|(sectors, _)| fragment_of(&sectors));
        let of = (append.epoch, append.base);
        self.make_empty_of(append.chunk, of, append.repair, fragment);
    }

    fn make_empty_of(
        &self,
        chunk: ChunkId,
        (epoch, base): (Epoch, u64),
        repairing: bool,
        fragment: Option<[u8; 3]>,
    ) {
        let chunks = &mut self.0.borrow_mut().chunks;
        let fence = match chunks.get(&chunk) {
            Some(Entry::Tombstone(fence)) if *fence != DELETED => *fence,
            _ => Epoch::NONE,
        };
        let sectors = Vec::new();
        let repairing = repairing && fence <= epoch;
        let (sealed, durable) = (None, 0);
        let replica = Replica { epoch, base, fence, repairing, fragment, sealed, sectors, durable };
        chunks.insert(chunk, Entry::Replica(replica));
    }

    /// Opens it. With an `Env`, appends take time and others run beside them; without, they are
    /// durable at once.
    pub fn open(&self, env: Option<Env>) -> ModelStore {
        ModelStore { env, disk: self.clone(), boot: self.0.borrow().boot }
    }
}

enum Submitted {
    Done(u32),
    /// Durable once this many sectors are.
    Stored(usize),
}

impl ModelStore {
    fn alive(&self) -> Result<(), StoreError> {
        let same = self.disk.0.borrow().boot == self.boot;
        if same { Ok(()) } else { Err(StoreError::Failed) }
    }

    fn submit(
        &self,
        append: &Append,
        sectors: Vec<Sector>,
        len: u32,
    ) -> Result<Submitted, StoreError> {
        let disk = &mut *self.disk.0.borrow_mut();
        let fence = match disk.chunks.get(&append.chunk) {
            Some(Entry::Replica(_)) => None,
            Some(Entry::Tombstone(fence)) => Some(*fence),
            None => Some(Epoch::NONE),
        };
        if let Some(fence) = fence {
            if append.epoch < fence && (!append.repair || fence == DELETED) {
                return Err(StoreError::Fenced { epoch: fence });
            }
            if append.offset != 0 || !(append.create || append.repair) {
                return Err(StoreError::NotFound);
            }
            let replica = Replica {
                epoch: append.epoch,
                base: append.base,
                fence,
                // In the place of a fence that shuts its epoch out a copy makes a fenced one.
                repairing: append.repair && fence <= append.epoch,
                fragment: fragment_of(&sectors),
                sealed: None,
                sectors: Vec::new(),
                durable: 0,
            };
            disk.chunks.insert(append.chunk, Entry::Replica(replica));
        }
        let Some(Entry::Replica(replica)) = disk.chunks.get_mut(&append.chunk) else {
            unreachable!("found or made above");
        };
        if let Some(len) = replica.sealed {
            return Err(StoreError::Sealed { len });
        }
        if append.epoch != replica.epoch {
            let epoch = replica.fence.max(replica.epoch);
            let older = append.epoch < epoch;
            return Err(if older { StoreError::Fenced { epoch } } else { StoreError::Conflict });
        }
        let fenced = replica.fence > replica.epoch;
        let by_repair = replica.repairing || (append.repair && fenced);
        let alike = append.base == replica.base && fragment_of(&sectors) == replica.fragment;
        if !alike || append.repair != by_repair {
            return Err(StoreError::Conflict);
        }
        if !append.repair && append.epoch < replica.fence {
            return Err(StoreError::Fenced { epoch: replica.fence });
        }
        let count = sectors.len();
        let end = replica.len_of(replica.sectors.len());
        if append.offset > end {
            return Err(StoreError::Gap { len: replica.len() });
        }
        if append.offset < end {
            let first = replica.sectors.iter().position(|sector| sector.offset() == append.offset);
            let first = first.ok_or(StoreError::Conflict)?;
            let same = first + count <= replica.sectors.len()
                && replica.sectors[first..].iter().zip(&sectors).all(|(a, b)| a.equals(b));
            if !same {
                return Err(StoreError::Conflict);
            }
            if append.offset + len <= replica.len() {
                return Ok(Submitted::Done(replica.len()));
            }
            return Ok(Submitted::Stored(first + count));
        }
        replica.sectors.extend(sectors);
        Ok(Submitted::Stored(replica.sectors.len()))
    }

    fn with_replica<T>(
        &self,
        chunk: ChunkId,
        act: impl FnOnce(&mut Replica) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.alive()?;
        match self.disk.0.borrow_mut().chunks.get_mut(&chunk) {
            Some(Entry::Replica(replica)) => act(replica),
            _ => Err(StoreError::NotFound),
        }
    }

    async fn pause(&self) -> Result<(), StoreError> {
        if let Some(env) = &self.env {
            let length = runtime::Duration::from_micros(env.random_below(200));
            env.sleep(length).await;
        }
        self.alive()
    }
}

fn stat_of(entry: &Entry) -> ReplicaStat {
    match entry {
        Entry::Tombstone(fence) => ReplicaStat {
            state: match *fence {
                DELETED => ReplicaState::Deleted,
                _ => ReplicaState::Tombstone,
            },
            epoch: Epoch::NONE,
            len: 0,
            durable_bound: 0,
            committed: 0,
        },
        Entry::Replica(replica) => {
            let len = replica.len();
            let state = if replica.sealed.is_some() {
                ReplicaState::Sealed
            } else if replica.repairing {
                ReplicaState::Repairing
            } else if replica.fence > replica.epoch {
                ReplicaState::Fenced(replica.fence)
            } else {
                ReplicaState::Open
            };
            let committed = replica.sealed.unwrap_or(0);
            ReplicaStat { state, epoch: replica.epoch, len, durable_bound: len, committed }
        }
    }
}

impl ChunkStore for ModelStore {
    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        self.alive()?;
        let (sectors, len) = sectors_of(&append)?;
        let count = match self.submit(&append, sectors, len)? {
            Submitted::Done(len) => return Ok(Appended { len }),
            Submitted::Stored(count) => count,
        };
        self.pause().await?;
        // Lower appends become durable with this one: the order of acknowledgement is free
        // here, the prefix is not.
        self.with_replica(append.chunk, |replica| {
            if replica.sealed.is_none() {
                replica.durable = replica.durable.max(count.min(replica.sectors.len()));
            }
            if !append.repair && append.epoch < replica.fence {
                return Err(StoreError::Fenced { epoch: replica.fence });
            }
            match replica.sealed {
                Some(sealed) if sealed < append.offset + len => {
                    Err(StoreError::Sealed { len: sealed })
                }
                _ => Ok(Appended { len: replica.len() }),
            }
        })
    }

    async fn read_while(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Read, StoreError> {
        if !is_wanted() {
            return Err(StoreError::Unwanted { device_asked: false });
        }
        self.with_replica(chunk, |replica| {
            let readable = replica.len();
            let end = offset.saturating_add(len).min(readable);
            let mut wanted: Vec<&Sector> = replica
                .sectors
                .iter()
                .filter(|sector| offset < end && sector.offset() < end && sector.end() > offset)
                .take(READ_BYTES_MAX / SECTOR)
                .collect();
            // A part of a cell is not served.
            while wanted.last().is_some_and(|last| last.is_of_cell() && !last.is_last()) {
                wanted.pop();
            }
            let pool = runtime::BufPool::new(2 * READ_BYTES_MAX);
            let mut out = pool.alloc(wanted.len() * SECTOR).map_err(|_| StoreError::Busy)?;
            for (index, sector) in wanted.iter().enumerate() {
                out[index * SECTOR..(index + 1) * SECTOR].copy_from_slice(sector.bytes());
            }
            let sealed = replica.sealed.is_some();
            Ok(Read { sectors: out.freeze(), len: readable, sealed })
        })
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.alive()?;
        self.pause().await
    }

    async fn read_cell_sector(
        &self,
        chunk: ChunkId,
        offset: u32,
        index: u16,
    ) -> Result<Read, StoreError> {
        self.with_replica(chunk, |replica| {
            let readable = replica.len();
            if replica.fragment.is_none() {
                return Err(StoreError::Invalid("the replica has no rows"));
            }
            let holds = |sector: &&Sector| sector.offset() <= offset && offset < sector.end();
            let mut of_cell = replica.sectors.iter().filter(|_| offset < readable).filter(holds);
            let Some(sector) = of_cell.nth(index.into()) else {
                return Err(StoreError::Invalid("the cell has no such sector"));
            };
            let pool = runtime::BufPool::new(2 * READ_BYTES_MAX);
            let sectors = pool.copy_of(sector.bytes()).map_err(|_| StoreError::Busy)?;
            Ok(Read { sectors, len: readable, sealed: replica.sealed.is_some() })
        })
    }

    async fn fence(&self, chunk: ChunkId, epoch: Epoch) -> Result<ReplicaStat, StoreError> {
        self.alive()?;
        let disk = &mut *self.disk.0.borrow_mut();
        let entry = disk.chunks.entry(chunk).or_insert(Entry::Tombstone(epoch));
        match entry {
            Entry::Tombstone(fence) => *fence = epoch.max(*fence),
            Entry::Replica(replica) if replica.sealed.is_none() => {
                replica.fence = epoch.max(replica.fence);
                if replica.fence > replica.epoch && !replica.repairing {
                    replica.durable = replica.sectors.len();
                }
            }
            Entry::Replica(_) => {}
        }
        Ok(stat_of(entry))
    }

    async fn seal(&self, chunk: ChunkId, len: u32) -> Result<ReplicaStat, StoreError> {
        self.with_replica(chunk, |replica| {
            replica.durable = replica.sectors.len();
            match replica.sealed {
                Some(sealed) if sealed == len => {}
                Some(sealed) => return Err(StoreError::Sealed { len: sealed }),
                None if replica.len() < len => {
                    return Err(StoreError::Gap { len: replica.len() });
                }
                None if replica.fragment.is_some() && !replica.ends_at(len) => {
                    return Err(StoreError::Invalid("a chunk is sealed at the end of a row"));
                }
                None => replica.sealed = Some(len),
            }
            replica.repairing = false;
            Ok(())
        })?;
        self.stat(chunk)
    }

    async fn delete(&self, chunk: ChunkId) -> Result<(), StoreError> {
        self.alive()?;
        self.disk.0.borrow_mut().chunks.insert(chunk, Entry::Tombstone(DELETED));
        Ok(())
    }

    async fn forget(&self, chunk: ChunkId) -> Result<(), StoreError> {
        self.alive()?;
        let disk = &mut *self.disk.0.borrow_mut();
        if let Some(Entry::Replica(_)) = disk.chunks.get(&chunk) {
            return Err(StoreError::Invalid("only a tombstone can be forgotten"));
        }
        disk.chunks.remove(&chunk);
        Ok(())
    }

    fn stat(&self, chunk: ChunkId) -> Result<ReplicaStat, StoreError> {
        self.alive()?;
        let disk = self.disk.0.borrow();
        disk.chunks.get(&chunk).map(stat_of).ok_or(StoreError::NotFound)
    }

    fn list(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkInfo> {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let disk = self.disk.0.borrow();
        let range = disk.chunks.range((from, Bound::Unbounded)).take(limit);
        range
            .map(|(&chunk, entry)| {
                let sectors = match entry {
                    Entry::Replica(replica) => replica.sectors.len(),
                    Entry::Tombstone(_) => 0,
                };
                ChunkInfo { chunk, stat: stat_of(entry), physical: (sectors * SECTOR) as u64 }
            })
            .collect()
    }

    fn info(&self) -> StoreInfo {
        let disk = self.disk.0.borrow();
        let replicas = disk.chunks.values().filter_map(|entry| match entry {
            Entry::Replica(replica) => Some(replica.sectors.len()),
            Entry::Tombstone(_) => None,
        });
        let (chunks, sectors) = replicas.fold((0, 0), |(n, sum), count| (n + 1, sum + count));
        StoreInfo {
            disk: disk.id,
            capacity: u64::MAX,
            used: (sectors * SECTOR) as u64,
            chunks,
            unit: SECTOR as u32,
            failed: false,
            reason: String::new(),
            owner: disk.owner,
        }
    }

    async fn adopt(&self, cluster: ClusterId, formation: FormationId) -> Result<(), StoreError> {
        self.alive()?;
        let owner = StoreOwner::Of { cluster, formation };
        let disk = &mut *self.disk.0.borrow_mut();
        if disk.owner != owner && matches!(disk.owner, StoreOwner::Of { .. }) {
            return Err(StoreError::Invalid("the store is another cluster's"));
        }
        disk.owner = owner;
        Ok(())
    }

    /// Memory needs no check.
    async fn check_medium(&self) {}

    async fn checkpoint(&self) -> Result<(), StoreError> {
        self.alive()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.alive()?;
        self.disk.0.borrow_mut().boot += 1;
        Ok(())
    }
}

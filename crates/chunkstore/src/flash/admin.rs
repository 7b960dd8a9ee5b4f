//! Fences, seals, deletions: operations that are on record before they answer. They run as tasks
//! of their own, one at a time per chunk, so that a caller who goes away leaves none half done.

use std::rc::Rc;

use base::limits::SECTOR;
use base::{ChunkId, Epoch};
use runtime::Class;
use runtime::sync::oneshot;
use wire::data::ReplicaStat;

use super::log::Room;
use super::planted::Planted;
use super::read::encode_index;
use super::record::{Identity, MapPlace, Record};
use super::store::FlashStoreInner;
use super::table::{Closing, Entry, place, tombstone_stat};
use crate::contract::{DELETED, StoreError};
use crate::limits::{ADMIN_INFLIGHT_MAX, BATCH_SECTORS_MAX, INLINE_RUNS_MAX};
use crate::map::{INDEX_RUNS, Run};

/// The right to act on a chunk.
struct Turn {
    inner: Rc<FlashStoreInner>,
    chunk: ChunkId,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let state = &mut *self.inner.state.borrow_mut();
        state.admin_inflight -= 1;
        let Some(waiting) = state.admin.get_mut(&self.chunk) else { return };
        while let Some(next) = waiting.pop_front() {
            if next.send(()).is_ok() {
                return;
            }
        }
        state.admin.remove(&self.chunk);
    }
}

/// State of a chunk at one moment.
enum What {
    Absent,
    Tombstone(Epoch),
    Sealed(u32),
    Open(Identity),
}

impl FlashStoreInner {
    /// Runs an operation to its end, whether or not the caller stays.
    pub(crate) async fn admin<T: 'static>(
        self: &Rc<Self>,
        chunk: ChunkId,
        name: &'static str,
        act: impl AsyncFnOnce(Rc<FlashStoreInner>) -> Result<T, StoreError> + 'static,
    ) -> Result<T, StoreError> {
        self.check_open()?;
        if self.state.borrow().admin_inflight >= ADMIN_INFLIGHT_MAX {
            return Err(StoreError::Busy);
        }
        self.state.borrow_mut().admin_inflight += 1;
        let this = self.clone();
        let task = self.env.spawn(Class::Foreground, name, async move {
            let _turn = this.turn(chunk).await;
            let _hold = this.hold();
            this.check_open()?;
            act(this.clone()).await
        });
        task.await.unwrap_or(Err(StoreError::Failed))
    }

    async fn turn(self: &Rc<Self>, chunk: ChunkId) -> Turn {
        let turn = Turn { inner: self.clone(), chunk };
        let receiver = {
            let state = &mut *self.state.borrow_mut();
            match state.admin.get_mut(&chunk) {
                None => {
                    state.admin.insert(chunk, Default::default());
                    None
                }
                Some(waiting) => {
                    let (sender, receiver) = oneshot::channel();
                    waiting.push_back(sender);
                    Some(receiver)
                }
            }
        };
        if let Some(receiver) = receiver {
            let _ = receiver.await;
        }
        turn
    }

    fn what(&self, chunk: ChunkId) -> What {
        let state = self.state.borrow();
        match state.table.chunks.get(&chunk) {
            Some(Entry::Open(open)) => What::Open(open.id),
            Some(Entry::Sealed(sealed)) => What::Sealed(sealed.len),
            None => match state.table.tombstones.get(&chunk) {
                Some(fence) => What::Tombstone(*fence),
                None => What::Absent,
            },
        }
    }

    /// Pushes a record with the room it needs, and waits until it is durable.
    async fn record(self: &Rc<Self>, record: impl FnOnce() -> Record) -> Result<(), StoreError> {
        self.log_room(Room::Admin).await?;
        let lsn = self.push(&record());
        self.logged(lsn).await
    }

    fn check_tombstones(&self) -> Result<(), StoreError> {
        let full = self.state.borrow().table.tombstones.len() >= self.sb.tombstones as usize;
        if full { Err(StoreError::Busy) } else { Ok(()) }
    }

    pub(crate) async fn fence(
        self: Rc<Self>,
        chunk: ChunkId,
        epoch: Epoch,
    ) -> Result<ReplicaStat, StoreError> {
        loop {
            match self.what(chunk) {
                What::Sealed(_) => return self.stat(chunk),
                What::Tombstone(fence) if fence >= epoch => return Ok(tombstone_stat(fence)),
                What::Absent | What::Tombstone(_) => {
                    if matches!(self.what(chunk), What::Absent) {
                        self.check_tombstones()?;
                    }
                    self.log_room(Room::Admin).await?;
                    if matches!(self.what(chunk), What::Open(_)) {
                        continue; // It was made while we waited.
                    }
                    // From here on a creation is refused.
                    self.state.borrow_mut().table.tombstones.insert(chunk, epoch);
                    let record = Record::Fence { chunk, tag: 0, epoch, len: 0, ends: false };
                    if self.config.bugs().has(Planted::FenceUnlogged) {
                        return Ok(tombstone_stat(epoch));
                    }
                    let lsn = self.push(&record);
                    self.logged(lsn).await?;
                    return Ok(tombstone_stat(epoch));
                }
                What::Open(id) => {
                    let ends = {
                        let state = &mut *self.state.borrow_mut();
                        let open = state.open_mut(chunk, id.tag).expect("seen above");
                        open.fence = open.fence.max(epoch);
                        open.is_fenced()
                    };
                    if ends {
                        self.drain(chunk, id.tag).await?;
                    }
                    self.log_room(Room::Admin).await?;
                    let records = {
                        let state = &mut *self.state.borrow_mut();
                        match state.open_mut(chunk, id.tag) {
                            Some(open) if open.logged => {
                                let (tag, epoch, len) = (id.tag, open.fence, open.map.len());
                                open.bound = open.bound.max(len);
                                if ends {
                                    open.cap = Some(len);
                                }
                                // Recovery searches no sectors behind a fence's length for proof
                                // of a loss, so that what is proven is on record before it.
                                let bound = open.bound;
                                let loss = Record::Bound { chunk, tag, len: bound };
                                let loss = (bound > len).then_some(loss);
                                let fence = Record::Fence { chunk, tag, epoch, len, ends };
                                Some(loss.into_iter().chain([fence]))
                            }
                            Some(_) => None, // Its creation waits for room, so it holds nothing.
                            None => continue,
                        }
                    };
                    let Some(records) = records else {
                        self.drain(chunk, id.tag).await?;
                        continue;
                    };
                    if !self.config.bugs().has(Planted::FenceUnlogged) {
                        let mut lsn = 0;
                        for record in records {
                            lsn = self.push(&record);
                        }
                        self.logged(lsn).await?;
                    }
                    return self.stat(chunk);
                }
            }
        }
    }

    /// Records that a fenced replica is being completed by repair, so that recovery takes the bytes
    /// behind the length it was fenced at. Nothing to do for all others.
    pub(crate) async fn uncap(self: &Rc<Self>, chunk: ChunkId) -> Result<(), StoreError> {
        let capped = |inner: &FlashStoreInner| {
            let state = inner.state.borrow();
            match state.table.chunks.get(&chunk) {
                Some(Entry::Open(open)) => open.is_fenced() && open.cap.is_some(),
                _ => false,
            }
        };
        if !capped(self) {
            return Ok(());
        }
        let lift = async move |inner: Rc<FlashStoreInner>| {
            inner.log_room(Room::Admin).await?;
            let record = {
                let state = &mut *inner.state.borrow_mut();
                let Some(Entry::Open(open)) = state.table.chunks.get_mut(&chunk) else {
                    return Ok(());
                };
                // A damaged one is refused what is appended, and keeps its evidence.
                if open.damaged || open.closing != Closing::No {
                    return Ok(());
                }
                open.cap = None;
                let (tag, epoch, len) = (open.id.tag, open.fence, open.map.len());
                Record::Fence { chunk, tag, epoch, len, ends: false }
            };
            inner.env.mark("chunkstore: fenced replica extended");
            let lsn = inner.push(&record);
            inner.logged(lsn).await
        };
        self.admin(chunk, "chunkstore uncap", lift).await
    }

    pub(crate) async fn seal(
        self: Rc<Self>,
        chunk: ChunkId,
        len: u32,
    ) -> Result<ReplicaStat, StoreError> {
        let id = match self.what(chunk) {
            What::Absent | What::Tombstone(_) => return Err(StoreError::NotFound),
            What::Sealed(sealed) if sealed == len => return self.stat(chunk),
            What::Sealed(len) => return Err(StoreError::Sealed { len }),
            What::Open(id) => id,
        };
        self.set_closing(id, Closing::Sealing);
        let result = self.seal_open(id, len).await;
        if result.is_err() {
            self.set_closing(id, Closing::No);
        }
        result?;
        self.stat(chunk)
    }

    fn set_closing(&self, id: Identity, closing: Closing) {
        if let Some(open) = self.state.borrow_mut().open_mut(id.chunk, id.tag) {
            open.closing = closing;
        }
    }

    async fn seal_open(self: &Rc<Self>, id: Identity, len: u32) -> Result<(), StoreError> {
        let chunk = id.chunk;
        self.drain(chunk, id.tag).await?;
        let runs = {
            let state = &mut *self.state.borrow_mut();
            let open = state.open_mut(chunk, id.tag).ok_or(StoreError::NotFound)?;
            if open.map.len() < len {
                return Err(StoreError::Gap { len: open.map.len() });
            }
            if !open.map.is_end(len) {
                return Err(StoreError::Invalid("a chunk is sealed at the end of a row"));
            }
            open.map.truncated(len)
        };
        let (map, sectors) = self.place_map(id, &runs).await?;
        let units = sectors.div_ceil(self.sb.unit_sectors());
        if !self.config.bugs().has(Planted::SealUnlogged) {
            self.record(|| Record::Seal { chunk, tag: id.tag, len, units, map }).await?;
        }
        let state = &mut *self.state.borrow_mut();
        let map_bytes = match state.open_mut(chunk, id.tag) {
            Some(open) => open.map.bytes(),
            None => unreachable!("the turn keeps others away"),
        };
        state.open_map_bytes -= map_bytes;
        state.open_chunks -= 1;
        for extent in state.table.seal(chunk, len, units, map) {
            state.alloc.release(extent);
        }
        self.signals.ready.notify_waiters();
        Ok(())
    }

    /// Stores the map of a replica about to be sealed: where, and the sectors to keep.
    async fn place_map(
        self: &Rc<Self>,
        id: Identity,
        runs: &[Run],
    ) -> Result<(MapPlace, u32), StoreError> {
        let data_end = runs.last().map_or(0, |run| run.sector_end() as u32);
        if runs.len() <= INLINE_RUNS_MAX {
            let mut inline = [Run::default(); INLINE_RUNS_MAX];
            inline[..runs.len()].copy_from_slice(runs);
            let map = MapPlace::Inline { count: runs.len() as u8, runs: inline };
            return Ok((map, data_end));
        }
        let count = runs.len().div_ceil(INDEX_RUNS) as u32;
        // Behind every sector that was ever acknowledged: none is written twice.
        let found = {
            let state = &mut *self.state.borrow_mut();
            let open = state.open_mut(id.chunk, id.tag).ok_or(StoreError::NotFound)?;
            let first = open.map.sectors();
            let room = open.units * self.sb.unit_sectors();
            (first + count <= room).then(|| (first, open.extents.clone()))
        };
        let found = match found {
            Some(found) => Some(found),
            None => self.grow_for_index(id, count).await?,
        };
        let Some((first, extents)) = found else {
            self.env.mark("chunkstore: sealed without index");
            return Ok((MapPlace::Footers, data_end));
        };
        let mut at = 0;
        while at < count {
            let (unit, inner, run) =
                place(&extents, self.sb.unit_sectors(), first + at).expect("allocated above");
            let part = run.min(count - at).min(BATCH_SECTORS_MAX);
            let device = self.sb.unit_at(unit) + u64::from(inner) * SECTOR as u64;
            let mut sectors = self.alloc(part as usize * SECTOR).await;
            encode_index(&id, runs, at, &mut sectors);
            self.write_durable(device, sectors.freeze()).await?;
            at += part;
        }
        Ok((MapPlace::Index { first, runs: runs.len() as u32 }, first + count))
    }

    /// Units for index sectors, if some are free now.
    async fn grow_for_index(
        self: &Rc<Self>,
        id: Identity,
        count: u32,
    ) -> Result<Option<(u32, Vec<super::record::Extent>)>, StoreError> {
        self.log_room(Room::Admin).await?;
        let lsn = {
            let state = &mut *self.state.borrow_mut();
            let unit_sectors = self.sb.unit_sectors();
            let Some(Entry::Open(open)) = state.table.chunks.get_mut(&id.chunk) else {
                return Ok(None);
            };
            let mut lsn = state.log.pushed;
            while open.units * unit_sectors < open.map.sectors() + count {
                let need = (open.map.sectors() + count).div_ceil(unit_sectors) - open.units;
                let near = open.extents.last().map(|last| last.start + last.count);
                let Some(extent) = state.alloc.take(need, near) else { return Ok(None) };
                lsn = state.log.push(&Record::Extend {
                    chunk: id.chunk,
                    tag: id.tag,
                    bound: open.map.len(),
                    units: open.units,
                    extents: vec![extent],
                });
                open.add_extents(&[extent]);
            }
            lsn
        };
        self.kick_log();
        self.logged(lsn).await?;
        let state = &mut *self.state.borrow_mut();
        let open = state.open_mut(id.chunk, id.tag).ok_or(StoreError::NotFound)?;
        Ok(Some((open.map.sectors(), open.extents.clone())))
    }

    pub(crate) async fn delete(self: Rc<Self>, chunk: ChunkId) -> Result<(), StoreError> {
        match self.what(chunk) {
            What::Tombstone(DELETED) => return Ok(()),
            What::Absent => self.check_tombstones()?,
            What::Open(id) => {
                self.set_closing(id, Closing::Deleting);
                self.drain(chunk, id.tag).await?;
            }
            What::Tombstone(_) | What::Sealed(_) => {}
        }
        if self.config.bugs().has(Planted::DeleteUnlogged) {
            self.remove(chunk);
            return Ok(());
        }
        if self.config.bugs().has(Planted::ReuseEarly) {
            self.remove(chunk);
            return self.record(|| Record::Delete { chunk }).await;
        }
        self.record(|| Record::Delete { chunk }).await?;
        self.remove(chunk);
        Ok(())
    }

    /// Gives the replica's units back, now that its deletion is on record.
    fn remove(&self, chunk: ChunkId) {
        let state = &mut *self.state.borrow_mut();
        if let Some(entry) = state.table.chunks.remove(&chunk) {
            for extent in entry.extents() {
                state.alloc.release(*extent);
            }
            if let Entry::Open(open) = &entry {
                state.open_map_bytes -= open.map.bytes();
                state.open_chunks -= 1;
            }
        }
        state.cache.remove(chunk);
        state.damage.remove(&chunk);
        state.table.tombstones.insert(chunk, DELETED);
        self.signals.ready.notify_waiters();
    }

    pub(crate) async fn forget(self: Rc<Self>, chunk: ChunkId) -> Result<(), StoreError> {
        match self.what(chunk) {
            What::Absent => return Ok(()),
            What::Open(_) | What::Sealed(_) => {
                return Err(StoreError::Invalid("only a tombstone can be forgotten"));
            }
            What::Tombstone(_) => {}
        }
        self.record(|| Record::Forget { chunk }).await?;
        self.state.borrow_mut().table.tombstones.remove(&chunk);
        Ok(())
    }

    pub(crate) fn stat(&self, chunk: ChunkId) -> Result<ReplicaStat, StoreError> {
        let state = self.state.borrow();
        if state.closed {
            return Err(StoreError::Invalid("the store is closed"));
        }
        match state.table.chunks.get(&chunk) {
            Some(entry) => {
                let mut stat = entry.stat();
                if let Some(&damaged) = state.damage.get(&chunk) {
                    stat.len = stat.len.min(damaged);
                }
                Ok(stat)
            }
            None => {
                let fence = state.table.tombstones.get(&chunk).ok_or(StoreError::NotFound)?;
                Ok(tombstone_stat(*fence))
            }
        }
    }
}

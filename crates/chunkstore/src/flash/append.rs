//! The life of an append: accepted in offset order, given its units, written (together with
//! others that wait), acknowledged in offset order.

use std::collections::VecDeque;
use std::rc::Rc;

use base::limits::SECTOR;
use base::{ChunkId, Epoch};
use futures_util::future::join_all;
use metrics::{Fact, Step};
use runtime::sync::oneshot;
use runtime::{Buf, Class};
use wire::data::Purpose;
use wire::row::Layout;
use wire::sector::{ServerPart, chain, client_crc, set_server_part};

use super::layout::Super;
use super::log::Room;
use super::planted::{Bugs, Planted};
use super::record::{Extent, Identity, Record};
use super::store::{FlashStoreInner, FlashStoreState};
use super::table::{Closing, Entry, Open, Queued, place};
use crate::check::check_append;
use crate::contract::{Append, Appended, DELETED, StoreError};
use crate::limits::{
    AHEAD_MIN_SECTORS, APPEND_BYTES_INFLIGHT_MAX, APPENDS_INFLIGHT_MAX, BATCH_SECTORS_MAX,
    CHUNK_SECTORS_INFLIGHT_MAX, CHUNK_WRITES_MAX, EXTENT_BYTES_MAX, OPEN_CHUNKS_MAX,
    copy_map_bytes,
};
use crate::map::RUN_BYTES;

type Waiter = oneshot::Receiver<Result<u32, StoreError>>;

enum Accepted {
    /// Written by its chunk's flusher, which must be started when the flag says so.
    Queued(Waiter, bool),
    /// Perhaps a repeat of stored bytes: compare.
    Compare { tag: u32, sectors: Buf },
}

/// The next device write of a chunk.
struct Batch {
    tag: u32,
    /// Appends in it.
    count: usize,
    /// Number of the record that makes its units the chunk's.
    lsn: u64,
    /// Device offsets with the buffers for them.
    writes: Vec<(u64, Vec<Buf>)>,
    /// True when more waits behind it.
    more: bool,
}

enum Next {
    Write(Batch),
    /// No ready unit is free for appends of this purpose.
    NeedUnits(Purpose),
    NeedLog,
    Idle,
}

impl FlashStoreInner {
    /// See [`crate::ChunkStore::append`].
    pub(crate) async fn append(self: &Rc<Self>, append: Append) -> Result<Appended, StoreError> {
        self.check_open()?;
        let len = check_append(&append)?;
        self.env.note(Step::Verified, Fact::None);
        let (chunk, offset, repair) = (append.chunk, append.offset, append.repair);
        let layout = Layout::of(&append.sectors);
        if layout != Layout::Plain {
            self.admit_rows().await?;
        }
        if repair {
            self.uncap(chunk).await?;
            self.check_open()?; // No append is ended for a failure that came before it.
        }
        match self.accept(append, len, layout)? {
            Accepted::Queued(waiter, start) => {
                if start {
                    self.start_flush(chunk);
                }
                let len = waiter.await.map_err(|_| StoreError::Failed)??;
                Ok(Appended { len })
            }
            Accepted::Compare { tag, sectors } => {
                if self.is_stored(chunk, tag, offset, &sectors).await? {
                    self.env.mark("chunkstore: repeat of a stored append");
                    let state = &mut *self.state.borrow_mut();
                    let open = state.open_mut(chunk, tag).ok_or(StoreError::NotFound)?;
                    refusal(open, repair)?;
                    Ok(Appended { len: open.map.len() })
                } else {
                    Err(StoreError::Conflict)
                }
            }
        }
    }

    pub(crate) fn check_open(&self) -> Result<(), StoreError> {
        let state = self.state.borrow();
        if state.closed {
            return Err(StoreError::Invalid("the store is closed"));
        }
        if state.failed { Err(StoreError::Failed) } else { Ok(()) }
    }

    fn accept(&self, append: Append, len: u32, layout: Layout) -> Result<Accepted, StoreError> {
        let state = &mut *self.state.borrow_mut();
        let (chunk, offset) = (append.chunk, append.offset);
        if !state.table.chunks.contains_key(&chunk) {
            self.check_creation(state, &append)?;
        }
        if let Some(Entry::Sealed(sealed)) = state.table.chunks.get(&chunk) {
            return Err(StoreError::Sealed { len: sealed.len });
        }
        let admin = state.admin.contains_key(&chunk);
        if let Some(Entry::Open(open)) = state.table.chunks.get_mut(&chunk) {
            check_state(open, &append, layout)?;
            // A fence under way has promised its length, which must stay right.
            if append.repair && open.is_fenced() && (admin || open.cap.is_some()) {
                return Err(StoreError::Busy);
            }
            if append.offset > open.next_len {
                return Err(StoreError::Gap { len: open.map.len() });
            }
            if append.offset < open.next_len {
                return repeat(open, append, len);
            }
        }
        let count = (append.sectors.len() / SECTOR) as u32;
        if state.appends_inflight >= APPENDS_INFLIGHT_MAX
            || state.bytes_inflight + append.sectors.len() > APPEND_BYTES_INFLIGHT_MAX
            || !self.has_map_room(state, &append)
        {
            return Err(StoreError::Busy);
        }
        if let Some(Entry::Open(open)) = state.table.chunks.get(&chunk)
            && (open.next_sector - open.map.sectors() + count > CHUNK_SECTORS_INFLIGHT_MAX
                || !append.repair && open.map.runs().len() >= self.config.runs_max)
        {
            return Err(StoreError::Busy);
        }
        let bytes = append.sectors.len();
        let (epoch, base) = (append.epoch, append.base);
        let (repair, purpose) = (append.repair, append.purpose);
        let mut owned = match append.sectors.try_into_mut() {
            Ok(owned) => owned,
            Err(shared) => {
                state.counters.copies += 1;
                let mut copy = self.env.pool().alloc(bytes).map_err(|_| StoreError::Busy)?;
                copy.copy_from_slice(&shared);
                copy
            }
        };
        if !state.table.chunks.contains_key(&chunk) {
            let id = Identity { chunk, epoch, base, tag: self.next_tag(state), layout };
            let bugs = self.config.bugs();
            make_replica(state, id, repair, bugs);
        }
        let Some(Entry::Open(open)) = state.table.chunks.get_mut(&chunk) else {
            unreachable!("found or made above");
        };
        open.next_chain = fill_server_parts(&mut owned, open.id.tag, open.next_chain);
        let (sender, receiver) = oneshot::channel();
        open.queue.push_back(Queued {
            offset,
            len,
            sectors: owned.freeze(),
            repair,
            purpose,
            written: false,
            span: metrics::current(),
            waiter: Some(sender),
            joined: Vec::new(),
        });
        open.next_len += len;
        open.next_sector += count;
        let start = !open.flushing && open.writes < CHUNK_WRITES_MAX;
        open.flushing |= start;
        state.appends_inflight += 1;
        state.bytes_inflight += bytes;
        Ok(Accepted::Queued(receiver, start))
    }

    /// Whether the maps of open chunks may grow by this append. Writers leave a part of the budget
    /// to repair. Of that one replica at a time takes: several that had a share of it each would
    /// all wait for more.
    fn has_map_room(&self, state: &mut FlashStoreState, append: &Append) -> bool {
        let budget = self.sb.open_map_bytes as usize;
        let bytes = state.open_map_bytes + RUN_BYTES;
        if bytes <= budget - copy_map_bytes(budget) {
            return true;
        }
        if !append.repair || bytes > budget {
            return false;
        }
        let is_filled = |chunk| match state.table.chunks.get(&chunk) {
            Some(Entry::Open(open)) => open.repairing || open.is_fenced(),
            _ => false,
        };
        if state.reserve_taker.is_some_and(|chunk| chunk != append.chunk && is_filled(chunk)) {
            return false;
        }
        state.reserve_taker = Some(append.chunk);
        true
    }

    /// Whether an append may make the absent replica it names.
    fn check_creation(&self, state: &FlashStoreState, append: &Append) -> Result<(), StoreError> {
        let fence = state.table.tombstones.get(&append.chunk).copied().unwrap_or(Epoch::NONE);
        // A copy that comes after the deletion of what it was for makes nothing.
        let deleted = fence == DELETED && !self.config.bugs().has(Planted::FillDeleted);
        if append.epoch < fence && (!append.repair || deleted) {
            return Err(StoreError::Fenced { epoch: fence });
        }
        if append.offset != 0 || !(append.create || append.repair) {
            return Err(StoreError::NotFound);
        }
        if state.admin.contains_key(&append.chunk) {
            return Err(StoreError::Busy); // A fence or forgetting is under way.
        }
        if state.chunk_count() >= self.sb.units as usize {
            return Err(StoreError::Full);
        }
        if state.open_chunks >= OPEN_CHUNKS_MAX {
            return Err(StoreError::Busy);
        }
        Ok(())
    }

    fn start_flush(self: &Rc<Self>, chunk: ChunkId) {
        let this = self.clone();
        self.env.spawn(Class::Foreground, "chunkstore append", this.flush(chunk));
    }

    /// Issues the appends that wait in a chunk's queue. One flusher of a chunk issues at a time;
    /// while it awaits its write, another may issue the next.
    async fn flush(self: Rc<Self>, chunk: ChunkId) {
        loop {
            match self.next_batch(chunk) {
                Next::Idle => return,
                Next::NeedLog => {
                    if self.log_room(Room::Allocation).await.is_err() {
                        return;
                    }
                }
                Next::NeedUnits(purpose) => {
                    if let Err(error) = self.wait_ready(purpose).await {
                        self.refuse(chunk, &error);
                        return;
                    }
                }
                Next::Write(batch) => {
                    self.kick_log();
                    if batch.more {
                        self.start_flush(chunk);
                    }
                    if !self.write_batch(chunk, batch).await {
                        return;
                    }
                }
            }
        }
    }

    fn next_batch(&self, chunk: ChunkId) -> Next {
        let state = &mut *self.state.borrow_mut();
        if state.failed {
            return Next::Idle;
        }
        let Some(Entry::Open(open)) = state.table.chunks.get_mut(&chunk) else {
            return Next::Idle;
        };
        if open.issued == open.queue.len() || open.writes >= CHUNK_WRITES_MAX {
            open.flushing = false;
            return Next::Idle;
        }
        let mut sectors = 0;
        let mut count = 0;
        let purpose = open.queue[open.issued].purpose;
        for queued in open.queue.iter().skip(open.issued) {
            let more = (queued.sectors.len() / SECTOR) as u32;
            let apart = queued.purpose != purpose || sectors + more > BATCH_SECTORS_MAX;
            if count > 0 && apart {
                break;
            }
            sectors += more;
            count += 1;
        }
        let unit_sectors = self.sb.unit_sectors();
        let need = (open.issued_sector + sectors).div_ceil(unit_sectors);
        while open.units < need || !open.logged {
            if !state.log.has_room(Room::Allocation) {
                return Next::NeedLog;
            }
            let scarce = state.alloc.free() < self.sb.units / 16;
            let growth = open.units.clamp(1, (EXTENT_BYTES_MAX / self.sb.unit).max(1));
            let missing = need.saturating_sub(open.units).max(1);
            let want = if scarce { missing } else { missing.max(growth) };
            let want = want.min(self.usable(&state.alloc, purpose));
            let near = open.extents.last().map(|last| last.start + last.count);
            let extent = if want > 0 { state.alloc.take(want, near) } else { None };
            let Some(extent) = extent else { return Next::NeedUnits(purpose) };
            add_extent(open, &mut state.log, extent, unit_sectors);
            if self.usable(&state.alloc, Purpose::Data) < state.ready_goal.max(self.ready_low()) {
                self.signals.prepare.notify_one();
            }
        }
        let Some(Entry::Open(open)) = state.table.chunks.get_mut(&chunk) else {
            unreachable!("found above");
        };
        let end = open.issued_sector + sectors;
        let lsn = lsn_of(open, state.log.durable, end);
        let bufs = open.queue.range(open.issued..open.issued + count).map(|q| q.sectors.clone());
        let writes = split_by_units(&self.sb, &open.extents, open.issued_sector, bufs);
        let unready = writes.iter().filter(|(at, _)| {
            *at >= self.sb.unit_at(state.alloc.ready()) || *at < self.sb.data_at()
        });
        state.counters.unready_writes += unready.count() as u64;
        open.issued += count;
        open.issued_sector = end;
        let last = &open.queue[open.issued - 1].sectors;
        open.issued_chain = wire::sector::server_part(&last[last.len() - SECTOR..]).chain;
        open.writes += 1;
        // Units ahead, so that the record of the next extent is durable when it is met.
        let left = open.units * unit_sectors - end;
        let ahead = left < sectors.max(unit_sectors / 4) && end >= AHEAD_MIN_SECTORS;
        if ahead && state.log.has_room(Room::Allocation) && state.alloc.free() > self.sb.units / 16
        {
            let want = open.units.clamp(1, (EXTENT_BYTES_MAX / self.sb.unit).max(1));
            let want = want.min(self.usable(&state.alloc, Purpose::Data));
            let near = open.extents.last().map(|last| last.start + last.count);
            if want > 0
                && let Some(extent) = state.alloc.take(want, near)
            {
                add_extent(open, &mut state.log, extent, unit_sectors);
            }
        }
        let more = open.issued < open.queue.len() && open.writes < CHUNK_WRITES_MAX;
        open.flushing = more;
        Next::Write(Batch { tag: open.id.tag, count, lsn, writes, more })
    }

    /// Writes a batch and acknowledges what it completes; true when the caller goes on with
    /// what waits.
    async fn write_batch(self: &Rc<Self>, chunk: ChunkId, batch: Batch) -> bool {
        let tag = batch.tag;
        let began = self.env.now();
        let range = {
            let state = &mut *self.state.borrow_mut();
            let Some(open) = state.open_mut(chunk, tag) else { return false };
            let issued = open.queue.range(open.issued - batch.count..open.issued);
            let bytes = issued.clone().map(|queued| queued.sectors.len() as u64).sum();
            issued.for_each(|queued| queued.note(Step::Submitted, began, Fact::Bytes(bytes)));
            let end = open.queue[open.issued - 1].offset;
            (open.queue[open.issued - batch.count].offset, end)
        };
        if self.config.bugs().has(Planted::AckEarly) {
            self.complete(chunk, tag, range);
        }
        let mut writes = batch.writes;
        let result = if writes.len() == 1 {
            let (at, bufs) = writes.remove(0);
            self.write_durable_all(at, bufs).await
        } else {
            let all = writes.into_iter().map(|(at, bufs)| self.write_durable_all(at, bufs));
            // All are ended when one has failed: none may land behind the next mount.
            join_all(all).await.into_iter().collect()
        };
        self.state.borrow_mut().counters.append_writes += 1;
        self.latencies.append_write.record((self.env.now() - began).as_nanos() as u64);
        if result.is_err() || self.logged(batch.lsn).await.is_err() {
            return false; // The store has failed, and all waiters are woken.
        }
        self.complete(chunk, tag, range)
    }

    /// Notes that the appends at offsets `range` (first and last) are on the medium, and
    /// acknowledges those that no lower one holds back.
    fn complete(self: &Rc<Self>, chunk: ChunkId, tag: u32, range: (u32, u32)) -> bool {
        let state = &mut *self.state.borrow_mut();
        let Some(open) = state.open_mut(chunk, tag) else { return false };
        let (now, disk) = (self.env.now(), Fact::Disk(self.disk()));
        for queued in &mut open.queue {
            if (range.0..=range.1).contains(&queued.offset) {
                queued.written = true;
                queued.note(Step::DeviceDone, now, disk);
            }
        }
        open.writes = open.writes.saturating_sub(1);
        let map_bytes = open.map.bytes();
        let (mut count, mut bytes, mut data) = (0, 0, 0);
        while open.queue.front().is_some_and(|queued| queued.written) {
            let queued = open.queue.pop_front().expect("seen above");
            open.issued -= 1;
            queued.note_in(&mut open.map, open.id.layout);
            debug_assert_eq!(open.map.len(), queued.offset + queued.len);
            let last = &queued.sectors[queued.sectors.len() - SECTOR..];
            open.chain = wire::sector::server_part(last).chain;
            count += 1;
            bytes += queued.sectors.len();
            data += u64::from(queued.len);
            let result = refusal(open, queued.repair).map(|()| open.map.len());
            queued.end(&result);
        }
        let map_bytes_now = open.map.bytes();
        if count > 0 && !std::mem::replace(&mut open.bound_dirty, true) {
            state.bound_dirty.push(chunk);
            self.signals.bound.notify_one();
        }
        let Some(open) = state.open_mut(chunk, tag) else { return false };
        if open.queue.is_empty() {
            open.drained.drain(..).for_each(|waiter| {
                let _ = waiter.send(());
            });
        }
        let go_on =
            open.issued < open.queue.len() && !open.flushing && open.writes < CHUNK_WRITES_MAX;
        open.flushing |= go_on;
        state.open_map_bytes = state.open_map_bytes + map_bytes_now - map_bytes;
        state.appends_inflight -= count;
        state.bytes_inflight -= bytes;
        state.counters.appends += count as u64;
        state.counters.bytes_in += data;
        go_on
    }

    /// Refuses appends that were accepted and not issued: there is no room for them.
    fn refuse(&self, chunk: ChunkId, error: &StoreError) {
        let state = &mut *self.state.borrow_mut();
        let Some(Entry::Open(open)) = state.table.chunks.get_mut(&chunk) else { return };
        open.flushing = false;
        let refused: VecDeque<Queued> = open.queue.split_off(open.issued);
        open.next_sector = open.issued_sector;
        open.next_chain = open.issued_chain;
        if let Some(first) = refused.front() {
            open.next_len = first.offset;
        }
        if open.queue.is_empty() {
            open.drained.drain(..).for_each(|waiter| {
                let _ = waiter.send(());
            });
        }
        let (logged, replaced) = (open.logged, open.replaced);
        if !logged {
            state.table.chunks.remove(&chunk);
            state.open_chunks -= 1;
            if let Some(fence) = replaced {
                state.table.tombstones.insert(chunk, fence);
            }
        }
        for queued in refused {
            state.appends_inflight -= 1;
            state.bytes_inflight -= queued.sectors.len();
            queued.end(&Err(error.clone()));
        }
    }

    /// The store has failed: wakes all waiters.
    pub(crate) fn fail_appends(&self) {
        let state = &mut *self.state.borrow_mut();
        state.appends_inflight = 0;
        state.bytes_inflight = 0;
        for entry in state.table.chunks.values_mut() {
            let Entry::Open(open) = entry else { continue };
            open.issued = 0;
            open.drained.clear();
            open.queue.drain(..).for_each(|queued| queued.end(&Err(StoreError::Failed)));
        }
    }

    /// Waits until no append of the chunk's incarnation is in flight.
    pub(crate) async fn drain(&self, chunk: ChunkId, tag: u32) -> Result<(), StoreError> {
        let receiver = {
            let state = &mut *self.state.borrow_mut();
            if state.failed {
                return Err(StoreError::Failed);
            }
            match state.open_mut(chunk, tag) {
                Some(open) if !open.queue.is_empty() => {
                    let (sender, receiver) = oneshot::channel();
                    open.drained.push(sender);
                    receiver
                }
                _ => return Ok(()),
            }
        };
        receiver.await.map_err(|_| StoreError::Failed)
    }
}

/// Makes a replica, perhaps in the place of a tombstone. What a copy makes where a fence shuts the
/// chunk's epoch out is a fenced replica, by the record that gives it units: fence and vote stay.
fn make_replica(state: &mut FlashStoreState, id: Identity, repair: bool, bugs: Bugs) {
    let replaced = state.table.tombstones.remove(&id.chunk);
    let fence = replaced.filter(|&fence| fence != DELETED).unwrap_or(Epoch::NONE);
    let repairing = repair && (fence <= id.epoch || bugs.has(Planted::FillRepairing));
    let open = Open { replaced, ..Open::new(id, fence, repairing) };
    state.table.chunks.insert(id.chunk, Entry::Open(Box::new(open)));
    state.open_chunks += 1;
}

/// The answer to an append that has become durable although the chunk was fenced or is going.
fn refusal(open: &Open, repair: bool) -> Result<(), StoreError> {
    if open.closing == Closing::Deleting {
        return Err(StoreError::Fenced { epoch: DELETED });
    }
    if open.is_fenced() && !repair { Err(StoreError::Fenced { epoch: open.fence }) } else { Ok(()) }
}

/// Whether an open replica takes this append at all.
fn check_state(open: &Open, append: &Append, layout: Layout) -> Result<(), StoreError> {
    if open.closing == Closing::Deleting {
        return Err(StoreError::Fenced { epoch: DELETED });
    }
    if append.epoch != open.id.epoch {
        let epoch = open.fence.max(open.id.epoch);
        let older = append.epoch < epoch;
        return Err(if older { StoreError::Fenced { epoch } } else { StoreError::Conflict });
    }
    let by_repair = open.repairing || (append.repair && open.is_fenced());
    if append.base != open.id.base || layout != open.id.layout || append.repair != by_repair {
        return Err(StoreError::Conflict);
    }
    refusal(open, append.repair)?;
    if open.closing == Closing::Sealing {
        return Err(StoreError::Busy);
    }
    if open.damaged {
        return Err(StoreError::Corrupt { offset: open.map.len() });
    }
    Ok(())
}

fn same_sectors(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len()
        && a.chunks(SECTOR).zip(b.chunks(SECTOR)).all(|(a, b)| client_crc(a) == client_crc(b))
}

/// An append below the end: a repeat joins the original, anything else is refused.
fn repeat(open: &mut Open, append: Append, len: u32) -> Result<Accepted, StoreError> {
    let durable = open.map.len();
    if u64::from(append.offset) + u64::from(len) <= u64::from(durable) {
        return Ok(Accepted::Compare { tag: open.id.tag, sectors: append.sectors });
    }
    let found = open.queue.iter_mut().find(|queued| queued.offset == append.offset);
    match found {
        Some(queued) if same_sectors(&queued.sectors, &append.sectors) => {
            let (sender, receiver) = oneshot::channel();
            queued.joined.push(sender);
            Ok(Accepted::Queued(receiver, false))
        }
        _ => Err(StoreError::Conflict),
    }
}

/// Gives the chunk an extent and logs it: with its first, the chunk itself.
fn add_extent(open: &mut Open, log: &mut super::log::Log, extent: Extent, unit_sectors: u32) {
    let before = open.units;
    let record = if open.logged {
        Record::Extend {
            chunk: open.id.chunk,
            tag: open.id.tag,
            bound: open.map.len(),
            units: before,
            extents: vec![extent],
        }
    } else {
        Record::Replica {
            id: open.id,
            fence: open.fence,
            bound: 0,
            cap: None,
            repairing: open.repairing,
            extents: vec![extent],
        }
    };
    let lsn = log.push(&record);
    open.bound = open.bound.max(open.map.len());
    open.logged = true;
    open.add_extents(&[extent]);
    open.extent_lsns.push_back((before * unit_sectors, lsn));
}

/// The number of the last record that sectors below `end` depend on.
fn lsn_of(open: &mut Open, durable: u64, end: u32) -> u64 {
    while open.extent_lsns.front().is_some_and(|&(_, lsn)| lsn <= durable) {
        open.extent_lsns.pop_front();
    }
    let needed = open.extent_lsns.iter().take_while(|&&(first, _)| first < end);
    needed.map(|&(_, lsn)| lsn).last().unwrap_or(0)
}

/// Writes tag and chained check into the server parts; the chained check of the last sector.
fn fill_server_parts(sectors: &mut [u8], tag: u32, previous: u32) -> u32 {
    sectors.chunks_mut(SECTOR).fold(previous, |previous, sector| {
        let chain = chain(previous, client_crc(sector), tag);
        set_server_part(sector, ServerPart { tag, chain });
        chain
    })
}

/// Places of buffers on the medium: one write, except where the chunk's units are apart.
fn split_by_units(
    sb: &Super,
    extents: &[Extent],
    first: u32,
    bufs: impl Iterator<Item = Buf>,
) -> Vec<(u64, Vec<Buf>)> {
    let unit_sectors = sb.unit_sectors();
    let mut writes: Vec<(u64, Vec<Buf>)> = Vec::with_capacity(1);
    let mut sector = first;
    let mut left = 0; // Sectors until the units go on elsewhere.
    for buf in bufs {
        let mut rest = buf;
        while !rest.is_empty() {
            if left == 0 {
                let (unit, inner, run) =
                    place(extents, unit_sectors, sector).expect("the units are allocated");
                writes.push((sb.unit_at(unit) + u64::from(inner) * SECTOR as u64, Vec::new()));
                left = run;
            }
            let count = ((rest.len() / SECTOR) as u32).min(left);
            let bytes = count as usize * SECTOR;
            let (_, parts) = writes.last_mut().expect("pushed above");
            parts.push(rest.slice(0..bytes));
            rest = rest.slice(bytes..rest.len());
            sector += count;
            left -= count;
        }
    }
    writes
}

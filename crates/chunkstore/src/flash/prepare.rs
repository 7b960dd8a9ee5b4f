//! Makes units ready ahead of use: grows the file in steps, writes zeros, syncs. So an append
//! never meets an extent that the file system has yet to convert (`protocols.md` 3.5). Beside
//! it, the task that logs how far replicas are known to be durable.

use std::io;
use std::rc::{Rc, Weak};

use base::limits::reserve_bytes;
use runtime::WriteMode;
use wire::data::Purpose;

use super::alloc::Allocator;
use super::log::Room;
use super::record::Record;
use super::store::{FlashStoreInner, FlashStoreState, Signals, is_passing};
use super::table::Entry;
use crate::contract::StoreError;
use crate::limits::{
    BOUND_INTERVAL, GROW_RETRY, READY_GOAL_KEPT, READY_GOAL_MAX, READY_GOAL_SHARE, READY_LOW_SHARE,
    ZERO_PAUSE, ZERO_WRITE_BYTES,
};

/// Bytes after which waiters are served.
const URGENT_STEP: u64 = 4 << 20;

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl FlashStoreInner {
    /// Ready free units below which more are made while little is appended.
    pub(crate) fn ready_low(&self) -> u32 {
        let step = self.sb.grow_step / u64::from(self.sb.unit);
        (step / READY_LOW_SHARE).max(1) as u32
    }

    /// Ready free units that appends of `purpose` may take. The units that are ready when the
    /// medium or the store ends are its capacity, and the reserve goes by that.
    pub(crate) fn usable(&self, alloc: &Allocator, purpose: Purpose) -> u32 {
        let unit = u64::from(self.sb.unit);
        let reserve = reserve_bytes(u64::from(alloc.ready()) * unit) / unit;
        alloc.free_ready().saturating_sub(purpose.leaves(reserve) as u32)
    }

    /// Waits until a ready unit is free for appends of `purpose`.
    pub(crate) async fn wait_ready(&self, purpose: Purpose) -> Result<(), StoreError> {
        loop {
            let ready = self.signals.ready.notified();
            {
                let state = &mut *self.state.borrow_mut();
                if state.failed {
                    return Err(StoreError::Failed);
                }
                if self.usable(&state.alloc, purpose) > 0 {
                    return Ok(());
                }
                let refused = state.grow_refused && self.env.now() < state.grow_after;
                if !state.alloc.can_grow() || refused {
                    if purpose >= Purpose::Metadata {
                        self.env.mark("chunkstore: the reserve is used up");
                    }
                    return Err(StoreError::Full);
                }
                state.counters.ready_waits += 1;
                state.ready_waiters += 1;
            }
            self.env.mark("chunkstore: append waits for ready units");
            self.signals.prepare.notify_one();
            ready.await;
            self.state.borrow_mut().ready_waiters -= 1;
        }
    }

    fn wants_ready(&self) -> bool {
        let state = self.state.borrow();
        let refused = state.grow_refused && self.env.now() < state.grow_after;
        // After a refusal a step is tried also when units are left: capacity goes by its success.
        let wanted = self.is_low(&state) || state.grow_refused;
        // Appends that were accepted end before the store closes.
        let closes = state.closed && state.ready_waiters == 0;
        wanted && state.alloc.can_grow() && !refused && !state.failed && !closes
    }

    /// Whether fewer units are ready than are to be kept.
    fn is_low(&self, state: &FlashStoreState) -> bool {
        self.usable(&state.alloc, Purpose::Data) < state.ready_goal.max(self.ready_low())
    }

    /// Sets the goal for ready units: doubled when appends used up most of the last round's units
    /// before its end, halved after a quiet time.
    fn set_goal(&self, state: &mut FlashStoreState) {
        let (free, low) = (self.usable(&state.alloc, Purpose::Data), self.ready_low());
        let goal = state.ready_goal.max(low);
        let quiet = self.env.now().since(state.ready_at) > READY_GOAL_KEPT;
        state.ready_goal = if state.ready_waiters > 0 || free < goal / 4 {
            // Never far more than is in use, so that a small store stays small.
            let most =
                (state.alloc.used() / READY_GOAL_SHARE).min(low.saturating_mul(READY_GOAL_MAX));
            goal.saturating_mul(2).min(most).max(low)
        } else if quiet {
            (goal / 2).max(low)
        } else {
            goal
        };
        state.ready_at = self.env.now();
    }

    /// Makes one step's units ready, in pieces: waiters get each piece as soon as it is there.
    async fn make_ready(&self) -> Result<(), StoreError> {
        let (low, ready, mut units) = {
            let state = &mut *self.state.borrow_mut();
            let low = self.is_low(state);
            self.set_goal(state);
            let ready = state.alloc.ready();
            let step = (self.sb.grow_step / u64::from(self.sb.unit)).max(1) as u32;
            (low, ready, step.max(state.ready_goal).min(self.sb.units - ready))
        };
        let file = self.file().map_err(|_| StoreError::Failed)?;
        loop {
            match self.allocate_units(&file, ready, units).await {
                Ok(()) => break,
                Err(error) if is_full(&error) && units > 1 && low => units /= 2,
                Err(error) => return self.not_ready(&error),
            }
        }
        let mut zeros = self.alloc(ZERO_WRITE_BYTES).await;
        zeros.fill(0);
        let zeros = zeros.freeze();
        let piece = (URGENT_STEP / u64::from(self.sb.unit)).max(1) as u32;
        let (end, mut at) = (ready + units, ready);
        while at < end {
            let to = (at + piece).min(end);
            match self.zero_units(&file, &zeros, at, to).await {
                Ok(true) => {}
                Ok(false) => return Err(StoreError::Failed),
                Err(error) => return self.not_ready(&error),
            }
            let waited_for = self.state.borrow().ready_waiters > 0;
            if to == end || waited_for {
                // Final when it fails, also for want of room: it was for others' writes too.
                self.sync().await?;
                self.publish_ready(to);
            }
            at = to;
        }
        Ok(())
    }

    fn publish_ready(&self, units: u32) {
        let state = &mut *self.state.borrow_mut();
        if std::mem::take(&mut state.grow_refused) {
            tracing::info!(disk = %self.sb.disk, "the medium has room again");
        }
        state.alloc.set_ready(units);
        if state.log.has_room(Room::Allocation) {
            state.log.push(&Record::Ready { units });
        }
        self.signals.ready.notify_waiters();
    }

    /// A full medium, or short memory, is retried later; any other error fails the store.
    fn not_ready(&self, error: &io::Error) -> Result<(), StoreError> {
        if !is_passing(error) {
            self.fail(error);
            return Err(StoreError::Failed);
        }
        let state = &mut *self.state.borrow_mut();
        if !std::mem::replace(&mut state.grow_refused, true) {
            tracing::warn!(disk = %self.sb.disk, %error, ready_bytes =
                u64::from(state.alloc.ready()) * u64::from(self.sb.unit), "the medium is full, short of the store's capacity: \
                make room on it; the store looks again every second");
        }
        state.grow_after = self.env.now() + GROW_RETRY;
        self.env.mark("chunkstore: the medium is full");
        self.signals.ready.notify_waiters();
        Ok(())
    }

    async fn allocate_units(&self, file: &runtime::File, ready: u32, units: u32) -> io::Result<()> {
        // First the room for a checkpoint of them: it must not fail on a full medium.
        let area = self.sb.area_blocks(ready + units) * super::layout::BLOCK;
        for index in 0..2 {
            allocate(file, self.sb.area_at(index), area).await?;
        }
        let (start, end) = (self.sb.unit_at(ready), self.sb.unit_at(ready + units));
        allocate(file, start, end - start).await
    }

    /// Writes zeros over units; false when the store was given up before all were written.
    async fn zero_units(
        &self,
        file: &runtime::File,
        zeros: &runtime::Buf,
        from: u32,
        to: u32,
    ) -> io::Result<bool> {
        let (mut at, end) = (self.sb.unit_at(from), self.sb.unit_at(to));
        while at < end {
            // The next mount may have given these units to appends.
            if self.is_given_up() {
                self.env.mark("chunkstore: units of an ended mount are left alone");
                return Ok(false);
            }
            let len = (end - at).min(ZERO_WRITE_BYTES as u64);
            {
                let _counted = self.count_write();
                file.write_at(at, zeros.slice(0..len as usize), WriteMode::Cached).await?;
            }
            {
                let counters = &mut self.state.borrow_mut().counters;
                counters.bytes_out += len;
                counters.bytes_zeroed += len;
            }
            at += len;
            if self.state.borrow().ready_waiters == 0 {
                self.env.sleep(ZERO_PAUSE).await;
            }
        }
        Ok(true)
    }

    /// Whether the store has failed or let go of its file.
    fn is_given_up(&self) -> bool {
        self.state.borrow().failed || self.file.borrow().is_none()
    }
}

/// Reserves space; where the file system cannot, the writes that follow do.
pub(crate) async fn allocate(file: &runtime::File, at: u64, len: u64) -> io::Result<()> {
    match file.allocate(at, len).await {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        result => result,
    }
}

/// Keeps units ready until the store goes.
pub(crate) async fn prepare_task(inner: Weak<FlashStoreInner>, signals: Rc<Signals>) {
    loop {
        loop {
            let Some(inner) = inner.upgrade() else { return };
            if inner.is_given_up() {
                return;
            }
            if !inner.wants_ready() {
                // Waiters are woken: no unit will become ready.
                if inner.state.borrow().ready_waiters > 0 {
                    inner.signals.ready.notify_waiters();
                }
                break;
            }
            if inner.make_ready().await.is_err() {
                return;
            }
        }
        let Some(strong) = inner.upgrade() else { return };
        let refused = strong.state.borrow().grow_refused;
        let env = strong.env.clone();
        drop(strong);
        if refused {
            // No wake-up may come: a cluster that is full allocates nothing here.
            let _ = env.timeout(GROW_RETRY, signals.prepare.notified()).await;
        } else {
            signals.prepare.notified().await;
        }
    }
}

/// Logs known-durable lengths, a little behind the appends, until the store goes.
pub(crate) async fn bound_task(inner: Weak<FlashStoreInner>, signals: Rc<Signals>) {
    loop {
        signals.bound.notified().await;
        let Some(strong) = inner.upgrade() else { return };
        if strong.is_given_up() {
            return;
        }
        let env = strong.env.clone();
        drop(strong);
        env.sleep(BOUND_INTERVAL).await;
        let Some(inner) = inner.upgrade() else { return };
        {
            let state = &mut *inner.state.borrow_mut();
            for chunk in std::mem::take(&mut state.bound_dirty) {
                let Some(Entry::Open(open)) = state.table.chunks.get_mut(&chunk) else { continue };
                open.bound_dirty = false;
                let (tag, len) = (open.id.tag, open.map.len());
                if len > open.bound && open.logged && state.log.has_room(Room::Allocation) {
                    open.bound = len;
                    state.log.push(&Record::Bound { chunk, tag, len });
                }
            }
        }
        inner.kick_log();
    }
}

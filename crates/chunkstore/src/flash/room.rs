//! Recovery from a medium without room for writes to places that the store has already: a thin volume,
//! a file system that writes elsewhere each time, or a copy of a store with holes in it. `GROW_RETRY`
//! is for media that have no room for more units, which every store meets.
//!
//! Such a write has not reached the medium, but what else was in flight is unknown, as after any
//! failure (`protocols.md` 3.6). So the store serves reads until there is room, and is then mounted
//! again, as after a crash: recovery decides what of it is there.

use std::rc::{Rc, Weak};

use base::limits::SECTOR;
use runtime::{Class, Env, File, WriteMode};

use super::layout::{BLOCK, LOG_AT, Super};
use super::log::Room;
use super::planted::Planted;
use super::prepare::{allocate, is_full};
use super::store::FlashStoreInner;
use super::{Handle, MountError, Mounting, mount};
use crate::limits::GROW_RETRY;

/// Why a store without room takes no writes.
pub(super) const REASON: &str = "no space left on its medium, not even for what the store has there: \
     make room; it takes writes again by itself";

/// Why a store without room that may have room again takes no writes yet.
const UNANSWERED: &str = "its medium, which had no space left, has not answered all writes yet: it \
     takes writes again by itself once they are answered; replace the disk if they never are";

const HOLES: &str =
    "the medium has no room for all that the store had: writes will be refused; make room";

/// Mounts the store of `handle` again once its medium has room.
pub(super) fn wait(env: &Env, handle: &Rc<Handle>) {
    tracing::warn!(disk = %handle.inner().disk(), "the store takes no writes: {REASON}");
    env.mark("chunkstore: a store waits for room");
    let wait = wait_for_room(env.clone(), Rc::downgrade(handle));
    env.spawn(Class::Background, "chunkstore room", wait);
}

/// Gives a store whose file has holes, as a restored backup may, the room back that it had: without
/// it, any write may be refused.
pub(super) async fn fill_holes(file: &File, sb: &Super, ready: u32) -> Result<(), MountError> {
    if sb.is_raw() {
        return Ok(());
    }
    let area = sb.area_blocks(ready) * BLOCK;
    let units = sb.unit_at(ready) - sb.unit_at(0);
    let parts = [
        (0, LOG_AT),
        (sb.log_at(0), sb.log_bytes()),
        (sb.log_at(1), sb.log_bytes()),
        (sb.area_at(0), area),
        (sb.area_at(1), area),
        (sb.unit_at(0), units),
    ];
    let has = file.allocated().map_err(|error| MountError::io(&error))?;
    if has >= parts.iter().map(|(_, len)| len).sum() {
        return Ok(());
    }
    tracing::info!(disk = %sb.disk, "the file of the store has holes: its room is reserved again");
    for (at, len) in parts {
        match allocate(file, at, len).await {
            Err(error) if is_full(&error) => {
                tracing::warn!(disk = %sb.disk, "{HOLES}");
                break;
            }
            result => result.map_err(|error| MountError::io(&error))?,
        }
    }
    Ok(())
}

async fn wait_for_room(env: Env, handle: Weak<Handle>) {
    loop {
        env.sleep(GROW_RETRY).await;
        let Some(handle) = handle.upgrade() else { return };
        let without = handle.inner();
        let file = without.file.borrow().clone();
        let Some(file) = file.filter(|_| !without.state.borrow().closed) else { return };
        // A write that landed behind the next mount's back would damage it.
        let early = without.config.bugs().has(Planted::MountEarly);
        if without.writing.get() > 0 && !early {
            without.set_reason(UNANSWERED);
            continue;
        }
        if without.has_no_room(&file).await {
            without.set_reason(REASON);
            continue;
        }
        let mounted = mount(&env, &file, &without.config, Mounting::Whole).await;
        let is_closed = without.state.borrow().closed;
        match mounted {
            Ok(inner) if is_closed => return inner.release(),
            Ok(inner) => {
                inner.state.borrow_mut().counters = without.state.borrow().counters;
                tracing::info!(disk = %inner.disk(), "the store takes writes: its medium has room");
                env.mark("chunkstore: a store has room again");
                return handle.replace(inner);
            }
            // As at the start of a process, it is tried again.
            Err(MountError::Full) => without.set_reason(REASON),
            Err(error @ (MountError::Memory | MountError::Io { .. })) => {
                without.set_reason(&format!("{error}; the store is mounted again once it can be"));
            }
            Err(error) => return without.set_reason(&error.to_string()),
        }
    }
}

impl FlashStoreInner {
    /// Notes why the store takes no writes now.
    fn set_reason(&self, why: &str) {
        let state = &mut *self.state.borrow_mut();
        if state.reason != why {
            tracing::warn!(disk = %self.disk(), "the store takes no writes: {why}");
            state.reason = why.to_owned();
        }
    }

    /// Tries the places of the next block of the log: what is there is needed by no checkpoint.
    async fn has_no_room(&self, file: &File) -> bool {
        if !self.state.borrow().log.has_room(Room::Admin) {
            return false; // Unknown: the mount will show it.
        }
        let place = self.state.borrow().log.next_seq % u64::from(self.sb.log_blocks) * BLOCK;
        let mut zeros = self.alloc(SECTOR).await;
        zeros.fill(0);
        let zeros = zeros.freeze();
        for copy in 0..2 {
            let at = self.sb.log_at(copy) + place;
            let written = file.write_at(at, zeros.clone(), WriteMode::Durable).await;
            if written.as_ref().is_err_and(is_full) {
                return true;
            }
        }
        false
    }
}

//! [`Shared`]: state that the segments of one process share: the blocks of their tables, memory for
//! their indexes, the scrub's rate (B14), and numbers of waiting changes (B12).
//!
//! Index pages are dropped by a clock that goes around through all segments, so that used ones have
//! the memory. Pages that no checkpoint has stored cannot be dropped. When these are half of the
//! memory, segments with an equal part of this half or more store theirs. When they are three
//! quarters, segments with an equal part of these take no further changes until they are less. A
//! segment that cannot store its pages takes its part from the others, and no more.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};

use block_volume::ids::FileNo;
use runtime::sync::Notify;
use runtime::{Duration, Instant};
use table::Cache;

use super::files::Recent;
use super::index::IndexMap;
use super::limits::{FULL_PAUSE, INDEX_MEMORY, WRITE_MEMORY_MIN};

/// The cluster has no room for blocks.
#[derive(Clone, Copy)]
struct Full {
    /// Blocks are refused until then.
    until: Instant,
    /// Time from which on a write tries.
    trial: Option<Instant>,
}

struct SharedInner {
    cache: Cache,
    /// Bytes of changes of tables and of last appends.
    write_memory: usize,
    /// Bytes of the indexes in memory.
    room: usize,
    used: Cell<usize>,
    dirty: Cell<usize>,
    shares: RefCell<Vec<Weak<SegmentShare>>>,
    /// Shares that are alive.
    count: Cell<usize>,
    /// A writer was held back since there was room for changes.
    held: Cell<bool>,
    /// Position of the clock.
    hand: Cell<usize>,
    /// Changes that wait for their append.
    waiting: Cell<usize>,
    /// Earliest time of the next piece of a scrub.
    scrub: Cell<Instant>,
    /// Set once an append of blocks has found no room, until one finds some.
    full: Cell<Option<Full>>,
    recent: RecentSum,
}

/// The last appends of all segments.
struct RecentSum {
    room: usize,
    used: Cell<usize>,
    /// Appends so far: the next one's number among all.
    next: Cell<u64>,
    /// Shares by their oldest append.
    oldest: RefCell<BTreeMap<u64, Weak<SegmentShare>>>,
}

/// Bytes of memory by their use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Index pages.
    pub index: usize,
    /// Blocks of the tables' sorted files.
    pub cache: usize,
    /// Changes of tables that are in no sorted file yet.
    pub changes: usize,
    /// The last appends to DataFiles.
    pub recent: usize,
    /// Bytes of all of them, at most.
    pub budget: usize,
}

/// State that the segments of one process share. Clones are the same.
#[derive(Clone)]
pub struct Shared(Rc<SharedInner>);

impl Shared {
    /// For segments whose tables' blocks share `cache`, and whose indexes share `index_memory`
    /// bytes, 16 KiB to 64 GiB. Memory of requests under way comes on top.
    pub fn new(cache: Cache, index_memory: usize) -> Shared {
        Shared::with(cache, index_memory, (usize::MAX, usize::MAX))
    }

    /// The same with a bound on changes until sorted files of the tables have them, and on the last
    /// appends of all segments together: `write_memory` bytes, from 256 KiB. A quarter is for the
    /// appends.
    pub fn bounded(cache: Cache, index_memory: usize, write_memory: usize) -> Shared {
        let write_memory = write_memory.max(WRITE_MEMORY_MIN);
        let recent = write_memory / 4;
        let cache = cache.with_write_memory(write_memory - recent);
        Shared::with(cache, index_memory, (write_memory, recent))
    }

    fn with(cache: Cache, index_memory: usize, (write_memory, recent): (usize, usize)) -> Shared {
        let (used, next, oldest) = Default::default();
        Shared(Rc::new(SharedInner {
            write_memory,
            recent: RecentSum { room: recent, used, next, oldest },
            cache,
            room: index_memory.clamp(INDEX_MEMORY.0, INDEX_MEMORY.1),
            used: Cell::new(0),
            dirty: Cell::new(0),
            shares: RefCell::default(),
            count: Cell::new(0),
            held: Cell::new(false),
            hand: Cell::new(0),
            waiting: Cell::new(0),
            scrub: Cell::new(Instant::default()),
            full: Cell::new(None),
        }))
    }

    /// An append of blocks has found no room: the next ones are refused for a while. An append that
    /// fails stops its segment, and to open it again takes room for metadata, so that few should try.
    pub(crate) fn note_full(&self, now: Instant) {
        self.0.full.set(Some(Full { until: now + FULL_PAUSE, trial: None }));
    }

    /// True when blocks may be written. On a full cluster one write tries in each [`FULL_PAUSE`], of
    /// all segments; the others are refused until it has found room.
    pub(crate) fn admit_blocks(&self, now: Instant) -> bool {
        match self.0.full.get() {
            None => true,
            Some(full) if now < full.until => false,
            Some(_) => {
                self.0.full.set(Some(Full { until: now + FULL_PAUSE, trial: Some(now) }));
                true
            }
        }
    }

    /// An append of blocks that began at this time has found room.
    pub(crate) fn note_room(&self, began: Instant) {
        let trial = self.0.full.get().and_then(|full| full.trial);
        if trial.is_some_and(|trial| began >= trial) {
            self.0.full.set(None);
        }
    }

    /// Bytes of the indexes in memory.
    pub fn index_bytes(&self) -> usize {
        self.0.used.get()
    }

    /// Memory of the segments at present.
    pub fn memory(&self) -> Memory {
        let SharedInner { cache, used, recent, room, write_memory, .. } = &*self.0;
        Memory {
            index: used.get(),
            cache: cache.bytes(),
            changes: cache.write_bytes(),
            recent: recent.used.get(),
            budget: room.saturating_add(cache.limit()).saturating_add(*write_memory),
        }
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.0.cache
    }

    /// A segment's share.
    pub(crate) fn join(&self, index: IndexMap) -> Rc<SegmentShare> {
        self.0.count.set(self.0.count.get() + 1);
        let share = Rc::new(SegmentShare {
            index: RefCell::new(index),
            wake_checkpoint: Notify::new(),
            wake_log: Notify::new(),
            noted: Cell::new((0, 0)),
            waiting: Cell::new(0),
            recent: RefCell::default(),
            shared: self.clone(),
        });
        let shares = &mut *self.0.shares.borrow_mut();
        shares.retain(|share| share.strong_count() > 0);
        shares.push(Rc::downgrade(&share));
        share
    }

    /// Pause of a scrub that has read some bytes, so that all scrubs together read no more than
    /// `rate` in a second.
    pub(crate) fn scrubbed(&self, now: Instant, bytes: u64, rate: u64) -> Duration {
        let took = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate.max(1));
        let until = self.0.scrub.get().max(now) + took;
        self.0.scrub.set(until);
        until - now
    }

    /// After a change of the sums: has segments with many dirty pages store them, and wakes writers
    /// that were held back.
    fn react(&self) {
        let inner = &*self.0;
        let due = inner.dirty.get() > inner.room / 2;
        let released = inner.held.get() && inner.dirty.get() <= inner.room / 4 * 3;
        if !due && !released {
            return;
        }
        if released {
            self.wake_held();
        }
        for share in inner.shares.borrow().iter().filter_map(Weak::upgrade) {
            if share.is_store_due() {
                share.wake_checkpoint.notify_one();
            }
        }
    }

    /// Wakes writers that were held back.
    fn wake_held(&self) {
        if self.0.held.take() {
            let shares = self.0.shares.borrow();
            shares.iter().filter_map(Weak::upgrade).for_each(|one| one.wake_log.notify_one());
        }
    }

    /// Drops unused pages, until there is room or none is left that could go.
    fn make_room(&self) {
        let inner = &*self.0;
        // Twice around: the first round clears the used marks.
        let mut rounds = 2 * inner.count.get() + 1;
        let has_clean = || inner.used.get() > inner.dirty.get();
        while inner.used.get() > inner.room && has_clean() && rounds > 0 {
            let share = {
                let shares = &mut *inner.shares.borrow_mut();
                let Some(share) = shares.get(inner.hand.get()) else {
                    inner.hand.set(0);
                    if shares.is_empty() {
                        return;
                    }
                    continue;
                };
                let Some(share) = share.upgrade() else {
                    shares.swap_remove(inner.hand.get());
                    continue;
                };
                share
            };
            let ended = share.index.borrow_mut().sweep(inner.used.get() - inner.room);
            share.note();
            if ended {
                inner.hand.set(inner.hand.get() + 1);
                rounds -= 1;
            }
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SharedInner { room, used, dirty, .. } = &*self.0;
        write!(f, "Shared({} of {room} bytes, {} dirty)", used.get(), dirty.get())
    }
}

/// A segment's share of the process's state.
pub(crate) struct SegmentShare {
    pub(crate) index: RefCell<IndexMap>,
    /// The segment's checkpoint may be due.
    pub(crate) wake_checkpoint: Notify,
    /// The task that writes DataFiles may have something to do.
    pub(crate) wake_log: Notify,
    /// Bytes and dirty bytes as the sums have them.
    noted: Cell<(usize, usize)>,
    /// Changes that wait for their append.
    waiting: Cell<usize>,
    recent: RefCell<Recent>,
    shared: Shared,
}

impl SegmentShare {
    /// Reports the index's size to the sums.
    fn note(&self) {
        let (bytes, dirty) = {
            let index = self.index.borrow();
            (index.bytes(), index.dirty_bytes())
        };
        let (used, of_dirty) = (&self.shared.0.used, &self.shared.0.dirty);
        let (had, had_dirty) = self.noted.replace((bytes, dirty));
        used.set(used.get() + bytes - had);
        of_dirty.set(of_dirty.get() + dirty - had_dirty);
    }

    /// After a change of the index: makes room, and starts due checkpoints.
    pub(crate) fn watch(&self) {
        self.note();
        self.shared.make_room();
        self.shared.react();
    }

    /// True when too much is dirty, and this segment has an equal part of the limit, or more.
    pub(crate) fn is_store_due(&self) -> bool {
        self.exceeds(self.shared.0.room / 2)
    }

    /// True when changes have to wait until more is stored. A segment for which this is true stores
    /// its pages, and its writer is woken when it need not wait any more.
    pub(crate) fn is_behind(&self) -> bool {
        let behind = self.exceeds(self.shared.0.room / 4 * 3);
        if behind {
            self.shared.0.held.set(true);
            self.wake_checkpoint.notify_one();
        }
        behind
    }

    /// True when more than `most` bytes are dirty, and an equal part of `most` is this segment's.
    /// At least one of the segments above their part can store it, whatever the others do.
    fn exceeds(&self, most: usize) -> bool {
        let shared = &*self.shared.0;
        let own = self.index.borrow().dirty_bytes();
        let all = shared.dirty.get() + own - self.noted.get().1;
        all > most && own * shared.count.get() >= most
    }

    /// Drops a page of the index, if the table has all of it.
    pub(crate) fn forget(&self, page: u32) {
        self.index.borrow_mut().forget(page);
        self.note();
    }

    /// After a change that made the index larger: starts due checkpoints.
    pub(crate) fn grown(&self) {
        self.note();
        self.shared.react();
    }

    /// Notes an append at a unit of a file, and forgets the segment's oldest ones beyond `most`
    /// bytes, and the oldest of all segments when these have too many.
    pub(crate) fn remember(
        self: &Rc<Self>,
        (file, unit): (FileNo, u32),
        bytes: Rc<Vec<u8>>,
        most: usize,
    ) {
        let sum = &self.shared.0.recent;
        let stamp = sum.next.get();
        sum.next.set(stamp + 1);
        sum.used.set(sum.used.get() + bytes.len());
        self.recent.borrow_mut().insert(file, unit, bytes, stamp);
        if self.recent.borrow().oldest() == Some(stamp) {
            sum.oldest.borrow_mut().insert(stamp, Rc::downgrade(self));
        }
        while self.recent.borrow().bytes() > most {
            self.forget_recent();
        }
        while sum.used.get() > sum.room {
            let first = sum.oldest.borrow().first_key_value().map(|(_, share)| share.clone());
            let first = first.expect("bytes are in appends").upgrade();
            first.expect("it takes its own away").forget_recent();
        }
    }

    /// Forgets the segment's oldest append.
    fn forget_recent(self: &Rc<Self>) {
        let (sum, recent) = (&self.shared.0.recent, &mut *self.recent.borrow_mut());
        let oldest = &mut *sum.oldest.borrow_mut();
        let before = recent.bytes();
        oldest.remove(&recent.oldest().expect("there is one"));
        recent.forget_oldest();
        sum.used.set(sum.used.get() + recent.bytes() - before);
        if let Some(next) = recent.oldest() {
            oldest.insert(next, Rc::downgrade(self));
        }
    }

    /// The recent append that has a unit of a file, and the bytes in front of that unit.
    pub(crate) fn recent(&self, file: FileNo, unit: u32) -> Option<(Rc<Vec<u8>>, usize)> {
        self.recent.borrow().get(file, unit)
    }

    /// Sets the number of the segment's changes that wait for their append.
    pub(crate) fn waits(&self, count: usize) {
        let all = &self.shared.0.waiting;
        all.set(all.get() + count - self.waiting.replace(count));
    }

    /// Changes of this segment that wait for their append, and of all others.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let own = self.waiting.get();
        (own, self.shared.0.waiting.get() - own)
    }

    /// The process's shared state.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for SegmentShare {
    fn drop(&mut self) {
        let (sum, recent) = (&self.shared.0.recent, &*self.recent.borrow());
        sum.used.set(sum.used.get() - recent.bytes());
        if let Some(oldest) = recent.oldest() {
            sum.oldest.borrow_mut().remove(&oldest);
        }
        let (used, dirty) = (&self.shared.0.used, &self.shared.0.dirty);
        let (had, had_dirty) = self.noted.get();
        used.set(used.get() - had);
        dirty.set(dirty.get() - had_dirty);
        self.waits(0);
        self.shared.0.count.set(self.shared.0.count.get() - 1);
        self.shared.react();
        self.shared.wake_held(); // The equal part of each is larger.
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::format::page::decode_page;
    use super::super::limits::PAGE_BLOCKS;
    use super::super::types::{Loc, Update};
    use super::*;

    const ROOM: usize = 64 << 10;

    fn dirty(share: &SegmentShare) -> usize {
        share.index.borrow().dirty_bytes()
    }

    /// Makes pages dirty until a segment has `most` bytes of them.
    fn fill(share: &SegmentShare, most: usize) {
        let file = FileNo::new(1).expect("not 0");
        for page in 0.. {
            if dirty(share) >= most {
                return share.watch();
            }
            for block in 0..PAGE_BLOCKS {
                let at = Loc::new(file, (page * 7919 + block * 131) % 99_991);
                let lba = page * PAGE_BLOCKS + block;
                share.index.borrow_mut().apply(Update::Data { lba, count: 1, at });
            }
        }
    }

    fn store(share: &SegmentShare) {
        let index = &mut *share.index.borrow_mut();
        for page in index.dirty_pages() {
            index.meet(page, &decode_page(&[]).expect("a hole"));
            let (_, _, version) = index.take_page(page);
            index.stored(page, version);
        }
    }

    fn is_woken(notify: &Notify) -> bool {
        notify.notified().now_or_never().is_some()
    }

    #[test]
    fn segment_that_cannot_store_takes_its_part_and_stops_no_other() {
        let shared = Shared::new(Cache::new(1 << 20), ROOM);
        let shares: Vec<Rc<SegmentShare>> = (0..4).map(|_| shared.join(IndexMap::new())).collect();
        let [stuck, other, ..] = &shares[..] else { unreachable!("four") };
        fill(stuck, ROOM);
        assert!(stuck.is_store_due() && stuck.is_behind() && is_woken(&stuck.wake_checkpoint));
        fill(other, 1);
        assert!(!other.is_store_due() && !other.is_behind(), "{shared:?}");
        fill(other, ROOM / 8);
        assert!(other.is_store_due() && is_woken(&other.wake_checkpoint), "{shared:?}");
        fill(other, ROOM * 3 / 16);
        assert!(other.is_behind(), "{shared:?}");
        // Stored pages can go, and go, since there is no room.
        store(other);
        other.watch();
        assert!(!other.is_store_due() && !other.is_behind() && dirty(other) == 0);
        assert_eq!(other.index.borrow().bytes(), 0);
        drop(shares);
        assert_eq!((shared.index_bytes(), shared.0.dirty.get()), (0, 0));
    }

    #[test]
    fn writers_resume_when_other_segments_have_stored_enough() {
        let shared = Shared::new(Cache::new(1 << 20), ROOM);
        let [first, second, third] = [(); 3].map(|()| shared.join(IndexMap::new()));
        fill(&first, ROOM / 2);
        fill(&second, ROOM / 4 + 8192);
        assert!(first.is_behind() && second.is_behind());
        assert!(!is_woken(&second.wake_log));
        store(&first);
        first.watch();
        assert!(is_woken(&second.wake_log) && !second.is_behind());
        fill(&third, ROOM / 2);
        assert!(second.is_behind());
        drop(third);
        assert!(is_woken(&second.wake_log) && !second.is_behind());
        assert_eq!(shared.0.dirty.get(), dirty(&second));
        assert_eq!(shared.index_bytes(), first.index.borrow().bytes() + dirty(&second));
    }
}

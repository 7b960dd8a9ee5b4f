//! [`Shared`]: what the segments of one process share: the blocks of their tables, memory for
//! their indexes, the scrub's rate (B14), and who waits (B12).
//!
//! Index pages are dropped by a clock that goes around through all segments, so memory is with
//! those that are used. What no checkpoint has stored cannot be dropped: when that is half of the
//! memory, segments that have as much of it as others or more store theirs; when it is three
//! quarters, they take no further changes until they have.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};

use runtime::sync::Notify;
use runtime::{Duration, Instant};
use table::Cache;

use super::index::IndexMap;
use super::limits::INDEX_MEMORY;

struct Inner {
    cache: Cache,
    /// Bytes of the indexes in memory.
    room: usize,
    used: Cell<usize>,
    dirty: Cell<usize>,
    members: RefCell<Vec<Weak<Member>>>,
    /// Where the clock is.
    hand: Cell<usize>,
    /// Changes that wait for their append.
    waiting: Cell<usize>,
    /// When the next piece of a scrub may be read.
    scrub: Cell<Instant>,
}

/// What the segments of one process share. Clones are the same.
#[derive(Clone)]
pub struct Shared(Rc<Inner>);

impl Shared {
    /// For segments whose tables' blocks share `cache`, and whose indexes share `index_memory`
    /// bytes, 16 KiB to 64 GiB. What requests under way look at comes beside it.
    pub fn new(cache: Cache, index_memory: usize) -> Shared {
        Shared(Rc::new(Inner {
            cache,
            room: index_memory.clamp(INDEX_MEMORY.0, INDEX_MEMORY.1),
            used: Cell::new(0),
            dirty: Cell::new(0),
            members: RefCell::default(),
            hand: Cell::new(0),
            waiting: Cell::new(0),
            scrub: Cell::new(Instant::default()),
        }))
    }

    /// Bytes of the indexes in memory.
    pub fn index_bytes(&self) -> usize {
        self.0.used.get()
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.0.cache
    }

    /// A segment's part.
    pub(crate) fn join(&self, index: IndexMap) -> Rc<Member> {
        let member = Rc::new(Member {
            index: RefCell::new(index),
            wake: Notify::new(),
            noted: Cell::new((0, 0)),
            waiting: Cell::new(0),
            shared: self.clone(),
        });
        let members = &mut *self.0.members.borrow_mut();
        members.retain(|member| member.strong_count() > 0);
        members.push(Rc::downgrade(&member));
        member
    }

    /// Changes of all segments that wait for their append.
    pub(crate) fn waiting(&self) -> usize {
        self.0.waiting.get()
    }

    /// How long a scrub that has read some bytes rests, so that all together read no more than
    /// `rate` in a second.
    pub(crate) fn scrubbed(&self, now: Instant, bytes: u64, rate: u64) -> Duration {
        let took = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate.max(1));
        let until = self.0.scrub.get().max(now) + took;
        self.0.scrub.set(until);
        until - now
    }

    /// Has members that hold much of what is dirty store it, when that is due.
    fn wake_due(&self) {
        if !self.is_dirty(1, 2) {
            return;
        }
        for member in self.0.members.borrow().iter().filter_map(Weak::upgrade) {
            if member.is_store_due() {
                member.wake.notify_one();
            }
        }
    }

    /// Whether more than a part of the memory is dirty.
    fn is_dirty(&self, part: usize, of: usize) -> bool {
        self.0.dirty.get() > self.0.room / of * part
    }

    /// Drops pages that were not used lately, until there is room or none is left that could go.
    fn make_room(&self) {
        let inner = &*self.0;
        // Twice around: the first time takes the marks of use away.
        let mut rounds = 2 * inner.members.borrow().len() + 1;
        while inner.used.get() > inner.room && rounds > 0 {
            let member = {
                let members = &mut *inner.members.borrow_mut();
                let Some(member) = members.get(inner.hand.get()) else {
                    inner.hand.set(0);
                    if members.is_empty() {
                        return;
                    }
                    continue;
                };
                let Some(member) = member.upgrade() else {
                    members.swap_remove(inner.hand.get());
                    continue;
                };
                member
            };
            let ended = member.index.borrow_mut().sweep(inner.used.get() - inner.room);
            member.note();
            if ended {
                inner.hand.set(inner.hand.get() + 1);
                rounds -= 1;
            }
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { room, used, dirty, .. } = &*self.0;
        write!(f, "Shared({} of {room} bytes, {} dirty)", used.get(), dirty.get())
    }
}

/// A segment's part of what is shared.
pub(crate) struct Member {
    pub(crate) index: RefCell<IndexMap>,
    /// The segment's checkpoint may be due.
    pub(crate) wake: Notify,
    /// Bytes and dirty bytes as the sums have them.
    noted: Cell<(usize, usize)>,
    /// Changes that wait for their append.
    waiting: Cell<usize>,
    shared: Shared,
}

impl Member {
    /// Tells the sums what the index has.
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

    /// After a change of the index: makes room, and has checkpoints begun that are due.
    pub(crate) fn watch(&self) {
        self.note();
        self.shared.make_room();
        self.shared.wake_due();
    }

    /// True when too much is dirty, and this segment has its share of that.
    pub(crate) fn is_store_due(&self) -> bool {
        self.has_part_of(1, 2)
    }

    /// True when changes have to wait until more is stored.
    pub(crate) fn is_behind(&self) -> bool {
        self.has_part_of(3, 4)
    }

    fn has_part_of(&self, part: usize, of: usize) -> bool {
        let shared = &*self.shared.0;
        let own = self.index.borrow().dirty_bytes();
        let (noted, others) = (self.noted.get().1, shared.members.borrow().len());
        let all = shared.dirty.get() + own - noted;
        all > shared.room / of * part && own * others >= all
    }

    /// After a change that made the index larger: has checkpoints begun that are due.
    pub(crate) fn grown(&self) {
        self.note();
        self.shared.wake_due();
    }

    /// So many of the segment's changes wait for their append.
    pub(crate) fn waits(&self, count: usize) {
        let all = &self.shared.0.waiting;
        all.set(all.get() + count - self.waiting.replace(count));
    }

    /// What is shared.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let (used, dirty) = (&self.shared.0.used, &self.shared.0.dirty);
        let (had, had_dirty) = self.noted.get();
        used.set(used.get() - had);
        dirty.set(dirty.get() - had_dirty);
        self.waits(0);
    }
}

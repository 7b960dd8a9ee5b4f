//! [`Writes`]: the memory of changes of all tables of a process, before sorted files have them.
//!
//! A table has a bound of its own, but a process may have thousands of tables. When a third of the
//! room is taken, tables that hold an equal part of that or more are flushed, idle ones too. When
//! half is taken, those that hold an equal part of this or more take no batch until it is less. One
//! that cannot flush takes that from the others and no more, so all of them together stay within
//! the room.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use crate::engine::Engine;

/// Other tables that one table's change checks: enough to reach all in time.
const LOOKED_AT: usize = 8;

/// Memory of a process's tables, and its bound.
pub(crate) struct Writes {
    room: usize,
    used: Cell<usize>,
    /// Tables that are there.
    count: Cell<usize>,
    members: RefCell<Vec<Weak<Engine>>>,
    hand: Cell<usize>,
}

impl Writes {
    pub(crate) fn new(room: usize) -> Writes {
        let (used, count, members, hand) = Default::default();
        Writes { room, used, count, members, hand }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.used.get()
    }

    /// Has a table flushed when others need its memory.
    pub(crate) fn watch(&self, engine: &Rc<Engine>) {
        if self.room == usize::MAX {
            return;
        }
        let members = &mut *self.members.borrow_mut();
        if members.len() > 2 * self.count.get() {
            members.retain(|member| member.strong_count() > 0);
        }
        members.push(Rc::downgrade(engine));
    }

    /// Has tables flushed that hold a large part of the excess: the one that grew, and some others.
    fn relieve(&self, grown: &Engine) {
        let due = self.room / 3;
        if self.used.get() <= due {
            return;
        }
        let is_large = |engine: &Engine| {
            // Half of an equal part: the other half may be on its way already.
            engine.active.borrow().bytes().saturating_mul(2 * self.count.get()) >= due
        };
        if is_large(grown) {
            grown.freeze_soon();
        }
        let members = &mut *self.members.borrow_mut();
        for _ in 0..LOOKED_AT.min(members.len()) {
            let at = self.hand.get() % members.len().max(1);
            match members.get(at).map(Weak::upgrade) {
                Some(Some(engine)) => {
                    self.hand.set(at + 1);
                    if is_large(&engine) {
                        engine.freeze_soon();
                    }
                }
                Some(None) => drop(members.swap_remove(at)),
                None => return,
            }
        }
    }
}

/// A table's part of it.
pub(crate) struct Share {
    writes: Rc<Writes>,
    bytes: Cell<usize>,
}

impl Share {
    pub(crate) fn new(writes: &Rc<Writes>) -> Share {
        writes.count.set(writes.count.get() + 1);
        Share { writes: writes.clone(), bytes: Cell::new(0) }
    }

    /// A table has this much now.
    pub(crate) fn note(&self, engine: &Engine, bytes: usize) {
        let (had, used) = (self.bytes.replace(bytes), &self.writes.used);
        used.set(used.get() + bytes - had);
        if bytes > had {
            self.writes.relieve(engine);
        }
    }

    /// True when the table has to flush before it takes more.
    pub(crate) fn is_exceeded(&self) -> bool {
        let most = self.writes.room / 2;
        self.writes.used.get() > most
            && self.bytes.get().saturating_mul(self.writes.count.get()) >= most
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Writes { used, count, .. } = &*self.writes;
        used.set(used.get() - self.bytes.get());
        count.set(count.get() - 1);
    }
}

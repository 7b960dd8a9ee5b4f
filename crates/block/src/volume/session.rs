//! The client's side of a session: numbers of changes, and which of them are answered.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use runtime::sync::Notify;
use wire::block::Sequence;

use super::Place;
use crate::limits::SESSION_CHANGES_MAX;

/// A session that a server has admitted.
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) grant: u64,
    pub(super) place: Place,
    /// It is not used any more: the server does not have it, or a change of it was given up,
    /// which must not happen later.
    lost: Cell<bool>,
    next: Cell<u64>,
    /// Changes that are not answered.
    open: RefCell<BTreeSet<u64>>,
    /// Told when a change was answered, and when the session is lost.
    moved: Notify,
}

impl Session {
    pub(super) fn new(number: u64, grant: u64, place: Place) -> Rc<Session> {
        Rc::new(Session {
            number,
            grant,
            place,
            lost: Cell::new(false),
            next: Cell::new(1),
            open: RefCell::default(),
            moved: Notify::new(),
        })
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.get()
    }

    pub(super) fn lose(&self) {
        self.lost.set(true);
        self.moved.notify_waiters();
    }

    fn floor(&self) -> u64 {
        self.open.borrow().first().copied().unwrap_or(self.next.get())
    }

    /// A number for a change, as soon as the server has room for it; nothing when the session
    /// is lost.
    pub(super) async fn number(self: &Rc<Session>) -> Option<Ticket> {
        loop {
            let moved = self.moved.notified();
            if self.is_lost() {
                return None;
            }
            let seq = self.next.get();
            if seq - self.floor() < SESSION_CHANGES_MAX as u64 {
                self.next.set(seq + 1);
                self.open.borrow_mut().insert(seq);
                return Some(Ticket { session: self.clone(), seq, answered: Cell::new(false) });
            }
            moved.await;
        }
    }
}

/// A change's number in its session.
pub(super) struct Ticket {
    pub(super) session: Rc<Session>,
    seq: u64,
    answered: Cell<bool>,
}

impl Ticket {
    /// What the change is sent with.
    pub(super) fn sequence(&self) -> Sequence {
        Sequence { seq: self.seq, floor: self.session.floor() }
    }

    /// The change has happened, or never will under this number.
    pub(super) fn settle(&self) {
        self.answered.set(true);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.answered.get() {
            // It may be on its way still. The next session's begin ends this one at the server.
            self.session.lose();
        }
        self.session.open.borrow_mut().remove(&self.seq);
        self.session.moved.notify_waiters();
    }
}

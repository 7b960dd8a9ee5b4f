//! The client's side of sessions: numbers of changes, and which of them are answered.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use block_proto::Sequence;
use block_volume::limits::SESSION_CHANGES_MAX;
use runtime::sync::Notify;

use super::shared::SegmentOwner;

/// A session that a server has admitted.
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) grant: u64,
    pub(super) place: SegmentOwner,
    /// It is not used any more: the server has lost it, or a change of it was given up and must not
    /// happen later.
    lost: Cell<bool>,
}

impl Session {
    pub(super) fn new(number: u64, grant: u64, place: SegmentOwner) -> Rc<Session> {
        Rc::new(Session { number, grant, place, lost: Cell::new(false) })
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.get()
    }

    pub(super) fn lose(&self) {
        self.lost.set(true);
    }
}

/// The changes of an attachment on a segment. A change keeps its number over sessions.
pub(super) struct Changes {
    next: Cell<u64>,
    /// Changes that are not answered.
    open: RefCell<BTreeSet<u64>>,
    /// Notified when a change is answered or given up.
    moved: Notify,
    /// The session in which they are sent.
    session: RefCell<Option<Rc<Session>>>,
}

impl Changes {
    pub(super) fn new() -> Rc<Changes> {
        Rc::new(Changes {
            next: Cell::new(1),
            open: RefCell::default(),
            moved: Notify::new(),
            session: RefCell::default(),
        })
    }

    /// The present session.
    pub(super) fn session(&self) -> Option<Rc<Session>> {
        self.session.borrow().clone()
    }

    /// Switches to another session; none after the last. The server knows of changes up to number
    /// `last`.
    pub(super) fn go_on(&self, session: Option<Rc<Session>>, last: u64) {
        self.next.set(self.next.get().max(last.saturating_add(1)));
        if let Some(old) = self.session.replace(session) {
            old.lose();
        }
    }

    /// True while a change is not answered.
    pub(super) fn are_open(&self) -> bool {
        !self.open.borrow().is_empty()
    }

    fn floor(&self) -> u64 {
        self.open.borrow().first().copied().unwrap_or(self.next.get())
    }

    /// A number for a change, as soon as the segment has room for it.
    pub(super) async fn number(self: &Rc<Changes>) -> Ticket {
        loop {
            let moved = self.moved.notified();
            let seq = self.next.get();
            if seq - self.floor() < SESSION_CHANGES_MAX as u64 {
                self.next.set(seq + 1);
                self.open.borrow_mut().insert(seq);
                return Ticket { changes: self.clone(), seq, answered: Cell::new(false) };
            }
            moved.await;
        }
    }
}

/// A change's number.
pub(super) struct Ticket {
    changes: Rc<Changes>,
    seq: u64,
    answered: Cell<bool>,
}

impl Ticket {
    /// The sequence of the change's request.
    pub(super) fn sequence(&self) -> Sequence {
        Sequence { seq: self.seq, floor: self.changes.floor() }
    }

    /// The change has happened, or never will.
    pub(super) fn settle(&self) {
        self.answered.set(true);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.answered.get()
            && let Some(session) = self.changes.session()
        {
            // It may be on its way still. The next session's begin ends this one at the server.
            session.lose();
        }
        self.changes.open.borrow_mut().remove(&self.seq);
        self.changes.moved.notify_waiters();
    }
}

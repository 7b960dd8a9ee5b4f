//! A session: its changes that have come, and those under way.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use block_proto::{BlockError, Sequence};
use block_volume::limits::SESSION_CHANGES_MAX;
use runtime::sync::Notify;

use super::ownership::Predecessors;

/// A change that has come.
pub(super) struct Change {
    outcome: Cell<Option<Result<(), BlockError>>>,
    ended: Notify,
}

/// Kinds of arriving changes.
pub(super) enum Arrival {
    /// It has to be done.
    First(Begun),
    /// It came before: the answer is that of the first.
    Repeat(Rc<Change>),
}

pub(super) struct Session {
    pub(super) number: u64,
    pub(super) grant: u64,
    /// Its visit, when no other attachment may act beside it ([`super::location_leases`]).
    pub(super) visit: Option<u64>,
    /// Previous owners whose leases its answers wait for.
    pub(super) predecessors: Predecessors,
    closed: Cell<bool>,
    /// Closed by an opening of its attachment, which is not over by that.
    superseded: Cell<bool>,
    under_way: Cell<usize>,
    idle: Notify,
    /// All changes below were answered, and the client has got the answers.
    floor: Cell<u64>,
    /// Changes from the floor on that have come.
    seen: RefCell<BTreeMap<u64, Rc<Change>>>,
}

impl Change {
    /// Its outcome, once there is one.
    pub(super) async fn outcome(&self) -> Result<(), BlockError> {
        loop {
            let ended = self.ended.notified();
            if let Some(outcome) = self.outcome.get() {
                return outcome;
            }
            ended.await;
        }
    }
}

impl Session {
    pub(super) fn new(
        number: u64,
        grant: u64,
        visit: Option<u64>,
        predecessors: Predecessors,
    ) -> Rc<Session> {
        Rc::new(Session {
            number,
            grant,
            visit,
            predecessors,
            closed: Cell::new(false),
            superseded: Cell::new(false),
            under_way: Cell::new(0),
            idle: Notify::new(),
            floor: Cell::new(1),
            seen: RefCell::default(),
        })
    }

    /// Closes it: no change of it begins any more.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.superseded.set(false);
    }

    /// Closes it for a later session of its attachment, which may never be admitted here.
    pub(super) fn supersede(&self) {
        if !self.closed.replace(true) {
            self.superseded.set(true);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// True when its attachment has ended it, or is over.
    pub(super) fn has_ended(&self) -> bool {
        self.closed.get() && !self.superseded.get()
    }

    /// True when [it has ended](Session::has_ended), and nothing of it is under way.
    pub(super) fn is_over(&self) -> bool {
        self.has_ended() && self.under_way.get() == 0
    }

    /// Waits until nothing of it is under way.
    pub(super) async fn drained(&self) {
        loop {
            let idle = self.idle.notified();
            if self.under_way.get() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Takes in a change; an error when it was answered long ago, or there are too many.
    pub(super) fn arrive(self: &Rc<Session>, sequence: Sequence) -> Result<Arrival, BlockError> {
        let Sequence { seq, floor } = sequence;
        let seen = &mut *self.seen.borrow_mut();
        if floor > self.floor.get() {
            self.floor.set(floor);
            *seen = seen.split_off(&floor);
        }
        if seq < self.floor.get() {
            return Err(BlockError::Invalid);
        }
        if let Some(change) = seen.get(&seq) {
            return Ok(Arrival::Repeat(change.clone()));
        }
        if seen.len() >= SESSION_CHANGES_MAX || seq - self.floor.get() >= SESSION_CHANGES_MAX as u64
        {
            return Err(BlockError::Busy);
        }
        let change = Rc::new(Change { outcome: Cell::new(None), ended: Notify::new() });
        seen.insert(seq, change.clone());
        self.under_way.set(self.under_way.get() + 1);
        Ok(Arrival::First(Begun { session: self.clone(), seq, change }))
    }
}

/// A change that is under way: the session is not drained before it is dropped.
pub(super) struct Begun {
    session: Rc<Session>,
    seq: u64,
    change: Rc<Change>,
}

impl Begun {
    /// Its outcome, for repeats of it too. A change without effect may come again, and so may one
    /// with an unknown outcome: then the device knows.
    pub(super) fn end(self, outcome: Result<(), BlockError>) -> Result<(), BlockError> {
        if matches!(outcome, Err(BlockError::Busy | BlockError::Unknown)) {
            self.session.seen.borrow_mut().remove(&self.seq);
        }
        self.change.outcome.set(Some(outcome));
        self.change.ended.notify_waiters();
        outcome
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let session = &self.session;
        session.under_way.set(session.under_way.get() - 1);
        if session.under_way.get() == 0 {
            session.idle.notify_waiters();
        }
    }
}

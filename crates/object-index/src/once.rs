//! [`Once`]: a request that comes again is answered as the first time (`object-protocols.md` 6.3).
//!
//! Answers to changes are rows, in the batch of the change: a new owner finds them. A refusal has
//! changed nothing and is no row; it is remembered here while this owner rules, for a first attempt
//! may come late, behind its repeat that was refused. Requests name the epoch of the owner that they
//! are sent to, so none of them is decided elsewhere.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use object_proto::{Error, SessionId};
use runtime::sync::Notify;

/// A request of a session.
pub(crate) type RequestId = (SessionId, u64);

struct Entry<T> {
    /// The attempt that it is the outcome of.
    attempt: u32,
    outcome: RefCell<Option<Result<T, Error>>>,
    done: Notify,
}

/// Requests of this owner's time that are not over.
pub(crate) struct Once<T> {
    entries: RefCell<BTreeMap<RequestId, Rc<Entry<T>>>>,
}

impl<T> Default for Once<T> {
    fn default() -> Once<T> {
        Once { entries: RefCell::default() }
    }
}

/// A request that has come.
pub(crate) enum Came<T> {
    /// For the first time: its outcome is wanted.
    First(Ticket<T>),
    /// Again: the outcome of the first.
    Again(Ticket<T>),
}

impl<T> Entry<T> {
    /// Its request is decided again by a later attempt.
    fn may_be_asked_again(&self) -> bool {
        let again = |error: &Error| {
            matches!(error, Error::Busy { .. } | Error::Full | Error::Reroute | Error::Unheld)
        };
        self.outcome.borrow().as_ref().is_some_and(|it| it.as_ref().is_err_and(again))
    }
}

/// A request's place for its outcome.
pub(crate) struct Ticket<T>(Rc<Entry<T>>);

impl<T> Clone for Ticket<T> {
    fn clone(&self) -> Ticket<T> {
        Ticket(self.0.clone())
    }
}

impl<T: Clone> Once<T> {
    /// Takes note of an attempt at a request. Behind an answer that says to ask again, a later attempt is
    /// decided afresh; that one itself, or an earlier one, comes late and changes nothing: its gateway
    /// has that answer, and may have given up.
    pub(crate) fn come(&self, id: RequestId, attempt: u32) -> Came<T> {
        let entries = &mut *self.entries.borrow_mut();
        if let Some(entry) = entries.get(&id)
            && !(entry.may_be_asked_again() && attempt > entry.attempt)
        {
            return Came::Again(Ticket(entry.clone()));
        }
        let entry = Rc::new(Entry { attempt, outcome: RefCell::default(), done: Notify::new() });
        entries.insert(id, entry.clone());
        Came::First(Ticket(entry))
    }

    /// Notes that an attempt is to be made again, before it is decided: the same one that comes twice must
    /// not be decided later.
    pub(crate) fn refuse(&self, id: RequestId, attempt: u32) {
        if let Came::First(ticket) = self.come(id, attempt) {
            self.end(&ticket, Err(Error::Reroute));
        }
    }

    /// Notes the outcome of a request.
    pub(crate) fn end(&self, ticket: &Ticket<T>, outcome: Result<T, Error>) {
        ticket.0.outcome.replace(Some(outcome));
        ticket.0.done.notify_waiters();
    }

    /// Forgets a request.
    pub(crate) fn forget(&self, id: RequestId) {
        self.entries.borrow_mut().remove(&id);
    }

    /// Forgets all requests of a session, which is closed.
    pub(crate) fn forget_session(&self, session: SessionId) {
        let entries = &mut *self.entries.borrow_mut();
        entries.retain(|(of, _), _| *of != session);
    }

    /// Forgets the requests of a session below its floor that have ended.
    pub(crate) fn forget_below(&self, session: SessionId, floor: u64) {
        let entries = &mut *self.entries.borrow_mut();
        let over: Vec<RequestId> = entries
            .range((session, 0)..(session, floor))
            .filter(|(_, entry)| entry.outcome.borrow().is_some())
            .map(|(id, _)| *id)
            .collect();
        over.iter().for_each(|id| drop(entries.remove(id)));
    }
}

impl<T: Clone> Ticket<T> {
    /// The outcome, once there is one.
    pub(crate) async fn outcome(&self) -> Result<T, Error> {
        loop {
            let done = self.0.done.notified();
            if let Some(outcome) = &*self.0.outcome.borrow() {
                return outcome.clone();
            }
            done.await;
        }
    }
}

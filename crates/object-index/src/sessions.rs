//! [`Sessions`]: gateways that may change objects, their clocks and floors (`object-protocols.md`
//! 6.3).

use std::cell::RefCell;
use std::collections::BTreeMap;

use object_proto::{Error, RequestHead, SessionId};
use runtime::{Env, Instant};

use crate::limits::{DRIFT, SAMPLE_AGE, SAMPLES_MAX, SESSION_SILENT};
use crate::planted::{Bugs, Planted};

/// A request whose round trip the gateway measures.
#[derive(Clone, Copy)]
struct Sample {
    /// The smallest (own clock - sending time) of it and of requests that rely on it, microseconds.
    offset_us: i128,
    /// When it came.
    came: Instant,
}

/// One gateway's life, as the owner knows it.
struct Session {
    /// Samples of its clock, by their sending times: which of them are good, the session alone knows.
    samples: BTreeMap<u64, Sample>,
    /// Requests below this number are over.
    floor: u64,
    /// When a request came last.
    heard: Instant,
    state: SessionState,
}

/// Whether changes of a session are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SessionState {
    Open,
    /// Not by this owner; a later one may not know.
    Closing,
    /// Never again, by any owner.
    Closed,
}

impl Session {
    /// A new one, or one that another owner has known.
    fn new(heard: Instant, state: SessionState) -> Session {
        Session { samples: BTreeMap::new(), floor: 0, heard, state }
    }

    /// The sample that a request relies on, while it is good at `now`.
    fn sample(&mut self, head: &RequestHead, now: Instant) -> Option<&mut Sample> {
        self.samples.get_mut(&head.sample_us).filter(|sample| now - sample.came < SAMPLE_AGE)
    }

    fn is_open(&self) -> bool {
        self.state == SessionState::Open
    }
}

/// Sessions that are open, and those that are closed.
pub(crate) struct Sessions {
    env: Env,
    known: RefCell<BTreeMap<SessionId, Session>>,
    /// What a session that is not known gets: it is over, or its owner has to ask.
    unknown: Error,
    bugs: Bugs,
}

impl Sessions {
    /// Of an owner, which knows none and asks the manager for each.
    pub(crate) fn of_owner(env: &Env, bugs: Bugs) -> Sessions {
        let (known, unknown) = (RefCell::default(), Error::Reroute);
        Sessions { env: env.clone(), known, unknown, bugs }
    }

    /// Of the manager: those that the catalog has, and no others; each is heard now.
    pub(crate) fn of_manager(
        env: &Env,
        known: impl IntoIterator<Item = (SessionId, bool)>,
        bugs: Bugs,
    ) -> Sessions {
        let heard = env.now();
        let session = |closed| {
            let state = if closed { SessionState::Closed } else { SessionState::Open };
            Session::new(heard, state)
        };
        let known = known.into_iter().map(|(id, closed)| (id, session(closed))).collect();
        let (known, unknown) = (RefCell::new(known), Error::SessionOver);
        Sessions { env: env.clone(), known, unknown, bugs }
    }

    /// A session is open, unless it is known to be closed.
    pub(crate) fn open(&self, id: SessionId) {
        let session = Session::new(self.env.now(), SessionState::Open);
        self.known.borrow_mut().entry(id).or_insert(session);
    }

    /// Whether a session is open, if that is known.
    pub(crate) fn is_open(&self, id: SessionId) -> Option<bool> {
        self.known.borrow().get(&id).map(Session::is_open)
    }

    /// True of a session that is open, or of which something may be left.
    pub(crate) fn is_known(&self, id: SessionId) -> bool {
        self.known.borrow().contains_key(&id)
    }

    /// It is on record that a session is closed. IDs are not used again: it stays so.
    pub(crate) fn shut(&self, id: SessionId) {
        let session = Session::new(self.env.now(), SessionState::Closed);
        self.known.borrow_mut().insert(id, session);
    }

    /// A session takes no changes of this owner's from now on.
    pub(crate) fn close(&self, id: SessionId) {
        self.set(id, SessionState::Closing);
    }

    /// It is on record that a session takes no changes: what it left may be removed. Before, an owner
    /// that was shut out unnoticed would remove what a session does with the next owner.
    pub(crate) fn closed_on_record(&self, id: SessionId) {
        self.set(id, SessionState::Closed);
    }

    fn set(&self, id: SessionId, state: SessionState) {
        if let Some(session) = self.known.borrow_mut().get_mut(&id) {
            session.state = state;
        }
    }

    /// Nothing is left of a session.
    pub(crate) fn forget(&self, id: SessionId) {
        self.known.borrow_mut().remove(&id);
    }

    /// A sign of life.
    pub(crate) fn heard(&self, id: SessionId) -> Result<(), Error> {
        let known = &mut *self.known.borrow_mut();
        let session = known.get_mut(&id).ok_or_else(|| self.unknown.clone())?;
        if !session.is_open() {
            return Err(Error::SessionOver);
        }
        session.heard = self.env.now();
        Ok(())
    }

    /// A request that came `sent_us` after the beginning of the session's clock, and whose round trip
    /// the session measures.
    pub(crate) fn sample(&self, id: SessionId, sent_us: u64) -> Result<(), Error> {
        self.heard(id)?;
        let offset = self.offset(sent_us);
        let known = &mut *self.known.borrow_mut();
        let session = known.get_mut(&id).expect("it was heard");
        let came = self.env.now();
        let sample = session.samples.entry(sent_us).or_insert(Sample { offset_us: offset, came });
        sample.offset_us = sample.offset_us.min(offset);
        while session.samples.len() > SAMPLES_MAX {
            session.samples.pop_first();
        }
        Ok(())
    }

    fn offset(&self, sent_us: u64) -> i128 {
        i128::from(self.now_us()) - i128::from(sent_us)
    }

    fn now_us(&self) -> u64 {
        self.env.now().as_nanos() / 1000
    }

    /// Takes a change, if its session is open and it is not over. A session whose clock is not known,
    /// or not any more, is refused: it asks for the route first.
    pub(crate) fn admit(&self, head: &RequestHead) -> Result<(), Error> {
        self.heard(head.session)?;
        let offset = self.offset(head.sent_us);
        let known = &mut *self.known.borrow_mut();
        let session = known.get_mut(&head.session).expect("it was heard");
        let sample = session.sample(head, self.env.now()).ok_or(Error::Reroute)?;
        sample.offset_us = sample.offset_us.min(offset);
        session.floor = session.floor.max(head.floor);
        match head.number < session.floor && !self.bugs.has(Planted::LateFrame) {
            true => Err(Error::Invalid { message: "the request is over".to_owned() }),
            false => Ok(()),
        }
    }

    /// The requests of a session below this number are over.
    pub(crate) fn floor(&self, id: SessionId) -> u64 {
        self.known.borrow().get(&id).map_or(0, |session| session.floor)
    }

    /// True while a change that came at `came` may be submitted: its session is open, and its deadline
    /// is not reached by either clock.
    pub(crate) fn may_submit(&self, head: &RequestHead, came: Instant) -> bool {
        let known = &mut *self.known.borrow_mut();
        let session = known.get_mut(&head.session).filter(|session| session.is_open());
        let sample = session.and_then(|session| session.sample(head, self.env.now()).copied());
        let Some(Sample { offset_us: offset, .. }) = sample else { return false };
        let budget = head.deadline_us.saturating_sub(head.sent_us);
        let drift = budget * u64::from(DRIFT) / 1000;
        let (start, offset) = match self.bugs.has(Planted::RelativeDeadline) {
            true => (came.as_nanos() / 1000, 0),
            false => (head.sent_us, offset),
        };
        let end = i128::from(start + budget - drift.min(budget)) + offset;
        i128::from(self.now_us()) < end
    }

    /// Sessions that were silent for too long and are not closed on record.
    pub(crate) fn silent(&self) -> Vec<SessionId> {
        let now = self.env.now();
        self.those(|session| {
            session.state != SessionState::Closed && now - session.heard > SESSION_SILENT
        })
    }

    /// Sessions that are closed on record and not forgotten.
    pub(crate) fn closed(&self) -> Vec<SessionId> {
        self.those(|session| session.state == SessionState::Closed)
    }

    fn those(&self, wanted: impl Fn(&Session) -> bool) -> Vec<SessionId> {
        let known = self.known.borrow();
        known.iter().filter(|(_, session)| wanted(session)).map(|(id, _)| *id).collect()
    }
}

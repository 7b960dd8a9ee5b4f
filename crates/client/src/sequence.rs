//! Numbers of a session's changes (`protocols.md` 4.2). Each group of masters has a reply table of its own,
//! which takes changes up to a distance from the oldest one without an answer. So changes are numbered for
//! each group by itself: one that hangs holds up none of another group.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::ClientId;
use runtime::sync::{Notify, Semaphore, SemaphorePermit};
use wire::control::{Group, OpId};

use crate::limits::{CHANGES_INFLIGHT_MAX, CHANGES_WINDOW};

/// The sequences of a session.
pub(crate) struct Sequences {
    client: ClientId,
    groups: RefCell<BTreeMap<Group, Rc<Sequence>>>,
}

impl Sequences {
    /// Those of a session with this identity. None has begun.
    pub(crate) fn new(client: ClientId) -> Sequences {
        Sequences { client, groups: RefCell::default() }
    }

    /// The session's identity.
    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    /// The sequence of a group.
    pub(crate) fn of(&self, group: Group) -> Rc<Sequence> {
        let groups = &mut *self.groups.borrow_mut();
        let begin = || Rc::new(Sequence::new(identity(self.client, group)));
        groups.entry(group).or_insert_with(begin).clone()
    }
}

/// A session's identity in a group. It is another one in each: no two changes have both identity and number
/// in common, whichever group a master takes them to.
fn identity(client: ClientId, group: Group) -> ClientId {
    ClientId::new(client.get() ^ (u64::from(group.number()) << 32))
}

/// The changes of one group.
pub(crate) struct Sequence {
    client: ClientId,
    inflight: Semaphore,
    numbers: RefCell<Numbers>,
    /// Notified when a change has ended.
    ended: Notify,
}

struct Numbers {
    next: u64,
    /// Of changes without an answer yet.
    open: BTreeSet<u64>,
}

impl Sequence {
    fn new(client: ClientId) -> Sequence {
        Sequence {
            client,
            inflight: Semaphore::new(CHANGES_INFLIGHT_MAX),
            numbers: RefCell::new(Numbers { next: 1, open: BTreeSet::new() }),
            ended: Notify::new(),
        }
    }

    /// Room among the changes in flight.
    pub(crate) async fn room(&self) -> SemaphorePermit<'_> {
        self.inflight.acquire().await.expect("never closed")
    }

    /// The next change; none while the oldest one without an answer is so far behind that masters take no
    /// further ones.
    pub(crate) fn try_begin(&self) -> Option<OpenChange<'_>> {
        let numbers = &mut *self.numbers.borrow_mut();
        let seq = numbers.next;
        let acked_below = numbers.open.first().copied().unwrap_or(seq);
        if seq >= acked_below + CHANGES_WINDOW {
            return None;
        }
        numbers.next += 1;
        numbers.open.insert(seq);
        let op = OpId { client: self.client, seq, acked_below };
        Some(OpenChange { sequence: self, op })
    }

    /// As [`Sequence::try_begin`], as soon as the oldest ones have ended.
    pub(crate) async fn begin(&self) -> OpenChange<'_> {
        loop {
            let ended = self.ended.notified();
            if let Some(open) = self.try_begin() {
                return open;
            }
            ended.await;
        }
    }
}

/// A change without an answer. Its number stays open until it is dropped.
pub(crate) struct OpenChange<'a> {
    sequence: &'a Sequence,
    /// The identity under which it is done once.
    pub(crate) op: OpId,
}

impl Drop for OpenChange<'_> {
    fn drop(&mut self) {
        self.sequence.numbers.borrow_mut().open.remove(&self.op.seq);
        self.sequence.ended.notify_waiters();
    }
}

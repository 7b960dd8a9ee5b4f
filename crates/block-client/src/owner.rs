//! Watch over a segment's owner. When it leaves requests without an answer, it is pinged; when it does
//! not answer that either, or for long, the manager is asked to look at it, and whether the segment is
//! another's by now (`protocols-tail.md` 10.2, 10.9).

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use block_proto::{BlockServerRequest, Request as Message};
use block_volume::ids::SegmentId;
use runtime::sync::Notify;
use runtime::{Class, Env, Instant};
use transport::{CallError, Priority, Request, Service, Token};

use super::limits::{DOUBT_PAUSE, MOVED_AFTER, OWN_PAUSE, PING_AFTER, PING_FACTOR, PING_TIMEOUT};
use super::planted::{Planted, planted};
use super::shared::{SegmentOwner, Shared};

/// Requests that wait for a segment's owner. While there are any, a task looks whether it answers.
pub(super) struct OwnerWatch {
    shared: Rc<Shared>,
    segment: SegmentId,
    waiting: Cell<u32>,
    /// The owner that was asked last.
    asked: Cell<Option<SegmentOwner>>,
    /// The latest answer, or since when requests wait.
    answered: Cell<Instant>,
    /// The same, or the latest sign of life.
    heard: Cell<Instant>,
    is_watched: Cell<bool>,
    /// The owner that has lost the segment, by the manager's word.
    lost: Cell<Option<SegmentOwner>>,
    changed: Notify,
}

/// A request that waits.
pub(super) struct Waits<'a>(&'a OwnerWatch);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl OwnerWatch {
    pub(super) fn new(shared: &Rc<Shared>, segment: SegmentId) -> Rc<OwnerWatch> {
        Rc::new(OwnerWatch {
            shared: shared.clone(),
            segment,
            waiting: Cell::default(),
            asked: Cell::default(),
            answered: Cell::default(),
            heard: Cell::default(),
            is_watched: Cell::default(),
            lost: Cell::default(),
            changed: Notify::new(),
        })
    }

    /// A request to `place` begins to wait.
    pub(super) fn wait(self: &Rc<Self>, place: SegmentOwner) -> Waits<'_> {
        let env = &self.shared.env;
        if self.waiting.get() == 0 || self.asked.get() != Some(place) {
            self.note_answer();
        }
        self.asked.set(Some(place));
        self.waiting.set(self.waiting.get() + 1);
        if !self.is_watched.replace(true) {
            let watch = watch(env.clone(), Rc::downgrade(self));
            env.spawn(Class::Foreground, "block client: watch", watch);
        }
        Waits(self)
    }

    /// An answer has come, of whatever kind.
    pub(super) fn note_answer(&self) {
        let now = self.shared.env.now();
        self.answered.set(now);
        self.heard.set(now);
    }

    /// An owner has lost the segment.
    pub(super) fn lose(&self, place: SegmentOwner) {
        self.lost.set(Some(place));
        self.changed.notify_waiters();
    }

    /// Returns when this owner has lost the segment.
    pub(super) async fn lost(&self, place: SegmentOwner) {
        loop {
            let changed = self.changed.notified();
            if self.lost.get() == Some(place) {
                return;
            }
            changed.await;
        }
    }

    /// The owner that requests wait for, and that has the segment as far as is known.
    fn waited_for(&self) -> Option<SegmentOwner> {
        self.asked.get().filter(|&owner| self.lost.get() != Some(owner))
    }

    /// True when the owner's process lives and is reached. The time in which this process itself stood
    /// still does not count.
    async fn answers_ping(&self, place: SegmentOwner) -> bool {
        let (env, times) = (&self.shared.env, &self.shared.answer_times);
        let sent = env.now();
        let timeout = times.borrow_mut().timeout(sent, PING_FACTOR, PING_TIMEOUT);
        let ping = Request {
            service: Service::CONTROL,
            op: 0,                       // The body says what is asked.
            priority: Priority::Control, // It overtakes what waits to be sent.
            flow: 0,
            trace: env.trace(),
            token: Token::NONE,
            body: Message::BlockServer(BlockServerRequest::Ping).encode(),
            payload: None,
        };
        let answer = self.shared.endpoint.call(place.addr, ping, timeout).await;
        let now = env.now();
        match answer {
            // One of an older version refuses what it does not know.
            Ok(_) | Err(CallError::Busy | CallError::Refused(_)) => {
                times.borrow_mut().note(now, now - sent);
                true
            }
            Err(_) if now - sent > timeout + OWN_PAUSE => true,
            Err(_) => self.heard.get() > sent,
        }
    }

    /// Whether the manager has given the segment to a later owner, now that it is doubted.
    async fn has_moved(&self, place: SegmentOwner) -> bool {
        let answer = self.shared.route.place(self.segment, Some(place)).await;
        answer.is_ok_and(|owner| {
            owner.epoch > place.epoch || (planted(Planted::EarlierOwner) && owner != place)
        })
    }

    /// Looks at an owner that is silent.
    async fn look_at(&self, place: SegmentOwner) -> Duration {
        let env = &self.shared.env;
        let waits = |now: Instant| now - self.answered.get();
        if waits(env.now()) < MOVED_AFTER && self.answers_ping(place).await {
            self.heard.set(env.now());
            return PING_AFTER;
        }
        env.mark("block: owner doubted");
        if self.has_moved(place).await {
            self.lose(place);
        }
        env.jitter(if waits(env.now()) < DOUBT_PAUSE.1 { DOUBT_PAUSE.0 } else { DOUBT_PAUSE.1 })
    }
}

/// Looks at an owner that does not answer, until nothing waits any more.
async fn watch(env: Env, owner: Weak<OwnerWatch>) {
    let mut not_before = env.now() + PING_AFTER;
    loop {
        let Some(heard) = owner.upgrade().map(|owner| owner.heard.get()) else { return };
        let due = not_before.max(heard + PING_AFTER);
        env.sleep_until(due).await;
        let Some(owner) = owner.upgrade() else { return };
        if owner.waiting.get() == 0 {
            owner.is_watched.set(false);
            return;
        }
        let now = env.now();
        not_before = now + PING_AFTER;
        if now - due > OWN_PAUSE {
            owner.heard.set(now);
        }
        if now - owner.heard.get() >= PING_AFTER
            && let Some(place) = owner.waited_for()
        {
            let pause = owner.look_at(place).await;
            not_before = env.now() + pause;
        }
    }
}

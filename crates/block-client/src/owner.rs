//! Watch over a segment's owner: when it leaves requests without an answer, the manager is asked
//! whether the segment is another's by now.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use block_volume::ids::SegmentId;
use runtime::sync::Notify;
use runtime::{Class, Env, Instant};

use super::limits::{MOVED_AFTER, MOVED_PAUSE};
use super::shared::{SegmentOwner, Shared};

/// Requests that wait for a segment's owner. While there are any, a task looks whether it answers.
pub(super) struct OwnerWatch {
    shared: Rc<Shared>,
    segment: SegmentId,
    waiting: Cell<u32>,
    /// The owner that was asked last.
    asked: Cell<Option<SegmentOwner>>,
    /// The latest answer, or since when requests wait.
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
            self.heard.set(env.now());
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
        self.heard.set(self.shared.env.now());
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

    /// Whether the manager has given the segment to another.
    async fn has_moved(&self, place: SegmentOwner) -> bool {
        let answer = self.shared.route.place(self.segment, Some(place)).await;
        answer.is_ok_and(|owner| owner != place)
    }

    /// Time until the next look.
    fn pause(&self, now: Instant) -> Duration {
        if now - self.heard.get() < MOVED_PAUSE.1 { MOVED_PAUSE.0 } else { MOVED_PAUSE.1 }
    }

    /// The owner that has left requests without an answer for long.
    fn silent(&self, now: Instant) -> Option<SegmentOwner> {
        let owner = self.asked.get().filter(|&owner| self.lost.get() != Some(owner));
        owner.filter(|_| now - self.heard.get() >= MOVED_AFTER)
    }
}

/// Asks the manager about an owner that does not answer, until nothing waits any more.
async fn watch(env: Env, owner: Weak<OwnerWatch>) {
    loop {
        let Some(pause) = owner.upgrade().map(|owner| owner.pause(env.now())) else { return };
        env.sleep(env.jitter(pause)).await;
        let Some(owner) = owner.upgrade() else { return };
        if owner.waiting.get() == 0 {
            owner.is_watched.set(false);
            return;
        }
        if let Some(place) = owner.silent(env.now())
            && owner.has_moved(place).await
        {
            owner.lose(place);
        }
    }
}

//! Admission to a congested block server (B12): promised requests begin at once. The others share
//! what is free, and have a share of their own where nothing is.

use std::cell::Cell;
use std::sync::Arc;

use runtime::sync::{Mutex, Notify, OwnedSemaphorePermit, Semaphore};
use runtime::{Env, Instant};
use transport::Priority;

use crate::limits::{
    FREE_REQUESTS_MAX, FREE_REQUESTS_YIELDING, FREE_WAIT_MAX, PROMISE_MEMORY, PROMISED_PER_FREE,
};

/// Counts requests under way.
pub(super) struct Admission {
    env: Env,
    under_way: Cell<usize>,
    /// Time of the last promised request.
    promised: Cell<Option<Instant>>,
    /// Promised requests that began since the last one that was not promised.
    ahead: Cell<u32>,
    /// Requests that were not promised wait here, in order.
    turn: Mutex<()>,
    ended: Notify,
}

/// A request under way.
pub(super) struct Admitted<'a> {
    admission: &'a Admission,
    /// Its segment's part, if the request was not promised.
    _part: Option<OwnedSemaphorePermit>,
}

/// What a request holds and has begun, for the code that performs it and for its task.
#[derive(Default)]
pub(super) struct UnderWay<'a> {
    place: Cell<Option<Admitted<'a>>>,
    begun: Cell<bool>,
}

impl<'a> UnderWay<'a> {
    /// It holds a place from now on.
    pub(super) fn hold(&self, place: Admitted<'a>) {
        self.place.set(Some(place));
    }

    /// It works no more on the segment's device, or its client waits no more.
    pub(super) fn give_back(&self) {
        self.place.take();
    }

    /// From now on it goes on to its end, whether its client waits or not.
    pub(super) fn begin(&self) {
        self.begun.set(true);
    }

    /// True when it goes on to its end.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.get()
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let admission = self.admission;
        admission.under_way.set(admission.under_way.get() - 1);
        admission.ended.notify_one();
    }
}

impl Admission {
    pub(super) fn new(env: &Env) -> Admission {
        Admission {
            env: env.clone(),
            under_way: Cell::new(0),
            promised: Cell::new(None),
            ahead: Cell::new(0),
            turn: Mutex::new(()),
            ended: Notify::new(),
        }
    }

    /// Requests under way up to which one that was not promised may begin.
    fn room(&self) -> usize {
        let now = self.env.now();
        match self.promised.get() {
            Some(last) if now - last < PROMISE_MEMORY => FREE_REQUESTS_YIELDING,
            _ => FREE_REQUESTS_MAX,
        }
    }

    /// True when a request that was not promised may begin: there is room, or it has waited for its share.
    fn may_enter(&self) -> bool {
        self.under_way.get() < self.room() || self.ahead.get() >= PROMISED_PER_FREE
    }

    /// Admits a request that was not promised.
    fn enter_free(&self, part: Option<OwnedSemaphorePermit>) -> Admitted<'_> {
        if self.under_way.get() >= self.room() {
            self.env.mark("block: request let in by its share");
        }
        self.ahead.set(0);
        self.enter(part)
    }

    fn enter(&self, part: Option<OwnedSemaphorePermit>) -> Admitted<'_> {
        self.under_way.set(self.under_way.get() + 1);
        Admitted { admission: self, _part: part }
    }

    /// Admits a request; nothing when it has waited for too long: its client asks again. One that was
    /// not promised takes a permit of `part`, its segment's part of the places.
    pub(super) async fn enter_as(
        &self,
        priority: Priority,
        part: Option<Arc<Semaphore>>,
    ) -> Option<Admitted<'_>> {
        if priority != Priority::Background {
            self.promised.set(Some(self.env.now()));
            self.ahead.set(self.ahead.get().saturating_add(1));
            if self.ahead.get() >= PROMISED_PER_FREE {
                self.ended.notify_one();
            }
            return Some(self.enter(None));
        }
        let wait = async {
            // Before the common turn: a segment that stands still does not hold that up.
            let part = match part {
                Some(part) => Some(part.acquire_owned().await.expect("never closed")),
                None => None,
            };
            if self.turn.try_lock().is_ok() && self.may_enter() {
                return self.enter_free(part);
            }
            self.env.mark("block: request gives way");
            let _turn = self.turn.lock().await;
            loop {
                let ended = self.ended.notified();
                if self.may_enter() {
                    return self.enter_free(part);
                }
                ended.await;
            }
        };
        self.env.timeout(FREE_WAIT_MAX, wait).await.ok()
    }
}

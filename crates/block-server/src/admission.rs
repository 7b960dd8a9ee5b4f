//! Admission to a congested block server (B12): promised requests begin at once. The others share
//! what is free, and have a share of their own where nothing is.

use std::cell::Cell;
use std::sync::Arc;

use runtime::sync::{Mutex, Notify, OwnedSemaphorePermit, Semaphore};
use runtime::{Env, Instant};
use transport::Priority;

use crate::limits::{
    FREE_REQUESTS_MAX, FREE_REQUESTS_YIELDING, FREE_WAIT_MAX, PROMISE_MEMORY, PROMISED_PER_FREE,
    SEGMENT_FREE_MAX, SEGMENT_PROMISED_MAX,
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

/// Parts of one segment in the requests under way.
#[derive(Clone)]
pub(super) struct SegmentPlaces {
    /// Requests that were not promised; more wait.
    free: Arc<Semaphore>,
    /// Promised requests that count; more begin, too, and do not.
    promised: Arc<Semaphore>,
}

impl SegmentPlaces {
    pub(super) fn new() -> SegmentPlaces {
        SegmentPlaces {
            free: Arc::new(Semaphore::new(SEGMENT_FREE_MAX)),
            promised: Arc::new(Semaphore::new(SEGMENT_PROMISED_MAX)),
        }
    }
}

/// A request under way.
pub(super) struct Admitted<'a> {
    /// It counts here.
    admission: Option<&'a Admission>,
    /// Its place of its segment's part.
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
        let Some(admission) = self.admission else { return };
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
        Admitted { admission: Some(self), _part: part }
    }

    /// Admits a promised request. Those of one segment count up to its part: when it stands still,
    /// they are no load, and nothing gives way to more of them.
    fn enter_promised(&self, places: Option<SegmentPlaces>) -> Admitted<'_> {
        self.ahead.set(self.ahead.get().saturating_add(1));
        if self.ahead.get() >= PROMISED_PER_FREE {
            self.ended.notify_one();
        }
        let Some(places) = places else { return self.enter_counted(None) };
        match places.promised.try_acquire_owned() {
            Ok(place) => self.enter_counted(Some(place)),
            Err(_) => Admitted { admission: None, _part: None },
        }
    }

    /// Admits a promised request that counts: others give way for a while.
    fn enter_counted(&self, part: Option<OwnedSemaphorePermit>) -> Admitted<'_> {
        self.promised.set(Some(self.env.now()));
        self.enter(part)
    }

    /// Admits a request; nothing when it has waited for too long: its client asks again. `places` are
    /// those of its segment, if it is open.
    pub(super) async fn enter_as(
        &self,
        priority: Priority,
        places: Option<SegmentPlaces>,
    ) -> Option<Admitted<'_>> {
        if priority != Priority::Background {
            return Some(self.enter_promised(places));
        }
        let wait = async {
            // Before the common turn: a segment that stands still does not hold that up.
            let part = match places {
                Some(places) => Some(places.free.acquire_owned().await.expect("never closed")),
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

//! Whose turn it is when a block server is congested (B12): what was promised goes at once, the
//! rest shares what is free.

use std::cell::Cell;

use runtime::sync::{Mutex, Notify};
use runtime::{Env, Instant};
use transport::Priority;

use crate::limits::{FREE_REQUESTS_MAX, FREE_REQUESTS_YIELDING, FREE_WAIT_MAX, PROMISE_MEMORY};

/// Counts requests under way.
pub(super) struct Admission {
    env: Env,
    under_way: Cell<usize>,
    /// When a request that was promised came last.
    promised: Cell<Option<Instant>>,
    /// Requests that were not promised go one after the other, in their order.
    turn: Mutex<()>,
    ended: Notify,
}

/// A request under way.
pub(super) struct Admitted<'a>(&'a Admission);

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        self.0.ended.notify_one();
    }
}

impl Admission {
    pub(super) fn new(env: &Env) -> Admission {
        Admission {
            env: env.clone(),
            under_way: Cell::new(0),
            promised: Cell::new(None),
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

    fn enter(&self) -> Admitted<'_> {
        self.under_way.set(self.under_way.get() + 1);
        Admitted(self)
    }

    /// Lets a request in; nothing when it has waited for too long: its client asks again.
    pub(super) async fn enter_as(&self, priority: Priority) -> Option<Admitted<'_>> {
        if priority != Priority::Background {
            self.promised.set(Some(self.env.now()));
            return Some(self.enter());
        }
        if self.turn.try_lock().is_ok() && self.under_way.get() < self.room() {
            return Some(self.enter());
        }
        self.env.mark("block: request gives way");
        let wait = async {
            let _turn = self.turn.lock().await;
            loop {
                let ended = self.ended.notified();
                if self.under_way.get() < self.room() {
                    return self.enter();
                }
                ended.await;
            }
        };
        self.env.timeout(FREE_WAIT_MAX, wait).await.ok()
    }
}

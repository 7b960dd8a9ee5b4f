//! The group's clock and linearizable reads, for the leader.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use runtime::sync::oneshot;
use runtime::{Class, Env, Instant};

use super::ports::Log;
use master_consensus::ReadError;

/// Milliseconds that the group's leaders have counted. It never runs faster than time passes,
/// whatever the wall clocks say: each leader starts from what the last one has committed.
pub(super) struct GroupClock {
    /// Term, start, and the state's clock at the start.
    base: Cell<Option<(u64, Instant, u64)>>,
}

impl GroupClock {
    pub(super) fn new() -> GroupClock {
        GroupClock { base: Cell::new(None) }
    }

    /// The clock now. Only a leader's count means anything.
    pub(super) fn now_ms(&self, env: &Env, log: &impl Log) -> u64 {
        let state_ms = log.with_state(|state| state.clock_ms());
        let Some(term) = log.leading() else { return state_ms };
        let now = env.now();
        let fresh = (term, now, state_ms);
        let base = self.base.get().filter(|base| base.0 == term).unwrap_or(fresh);
        let now_ms = base.2 + now.since(base.1).as_millis() as u64;
        // Commands of the last leader that were applied since count too.
        if now_ms < state_ms {
            self.base.set(Some(fresh));
            return state_ms;
        }
        self.base.set(Some(base));
        now_ms
    }
}

/// Lets reads that wait together share one confirmation by the quorum: a read that comes while
/// one is under way waits for the next.
pub(super) struct ReadGate<L> {
    env: Env,
    log: L,
    waiting: RefCell<Vec<oneshot::Sender<Result<(), ReadError>>>>,
    running: Cell<bool>,
}

impl<L: Log> ReadGate<L> {
    pub(super) fn new(env: &Env, log: &L) -> Rc<ReadGate<L>> {
        Rc::new(ReadGate {
            env: env.clone(),
            log: log.clone(),
            waiting: RefCell::default(),
            running: Cell::new(false),
        })
    }

    /// Returns when the state holds all that was committed before the call. As many wait as the
    /// service admits requests and runs drivers.
    pub(super) async fn pass(self: &Rc<Self>) -> Result<(), ReadError> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.borrow_mut().push(sender);
        if !self.running.replace(true) {
            let gate = self.clone();
            self.env.spawn(Class::Foreground, "stream read index", async move {
                gate.run().await;
            });
        }
        receiver.await.unwrap_or(Err(ReadError::Stopped))
    }

    async fn run(&self) {
        loop {
            let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
            if waiting.is_empty() {
                self.running.set(false);
                return;
            }
            let result = self.log.read_index().await;
            for waiter in waiting {
                let _ = waiter.send(result);
            }
        }
    }
}

//! State that only a group's leader has: its clock, and linearizable reads that share their quorum.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use runtime::sync::oneshot;
use runtime::{Class, Env, Instant};

use crate::ReadError;

/// Milliseconds that the group's leaders have counted. It never runs faster than time passes, for
/// any wall clocks: each leader starts from the clock that the last one has committed.
#[derive(Default)]
pub struct GroupClock(Cell<Option<Anchor>>);

/// Base of a leader's clock.
#[derive(Clone, Copy)]
struct Anchor {
    term: u64,
    at: Instant,
    /// The group's clock at `at`.
    clock_ms: u64,
}

impl GroupClock {
    /// The clock at `now`. `term` is the one in which this member leads, if it does, `state_ms` the
    /// clock of the last command in its state. Only a leader's count means anything.
    pub fn at(&self, now: Instant, term: Option<u64>, state_ms: u64) -> u64 {
        let Some(term) = term else { return state_ms };
        let fresh = Anchor { term, at: now, clock_ms: state_ms };
        let anchor = self.0.get().filter(|anchor| anchor.term == term).unwrap_or(fresh);
        let now_ms = anchor.clock_ms + now.since(anchor.at).as_millis() as u64;
        // Commands of the last leader that were applied since count too.
        let anchor = if now_ms < state_ms { fresh } else { anchor };
        self.0.set(Some(anchor));
        now_ms.max(state_ms)
    }
}

/// Lets reads that wait together share one confirmation by the quorum: a read that comes while
/// one is under way waits for the next.
pub struct ReadGate {
    env: Env,
    waiting: RefCell<Vec<oneshot::Sender<Result<(), ReadError>>>>,
    confirming: Cell<bool>,
}

impl ReadGate {
    /// A gate whose confirmations run on `env`.
    pub fn new(env: &Env) -> Rc<ReadGate> {
        let (waiting, confirming) = (RefCell::default(), Cell::new(false));
        Rc::new(ReadGate { env: env.clone(), waiting, confirming })
    }

    /// Returns when the state holds all that was committed before the call, as `confirm` finds out,
    /// which is called once for each round of reads. As many wait as the caller admits.
    ///
    /// # Errors
    ///
    /// Those of `confirm`; [`ReadError::Stopped`] when the process stops.
    pub async fn pass<F>(
        self: &Rc<Self>,
        confirm: impl Fn() -> F + 'static,
    ) -> Result<(), ReadError>
    where
        F: Future<Output = Result<(), ReadError>>,
    {
        let (sender, receiver) = oneshot::channel();
        self.waiting.borrow_mut().push(sender);
        if !self.confirming.replace(true) {
            let gate = self.clone();
            self.env.spawn(Class::Foreground, "read index", async move {
                gate.run(confirm).await;
            });
        }
        receiver.await.unwrap_or(Err(ReadError::Stopped))
    }

    /// Confirms rounds of reads until none waits.
    async fn run<F>(&self, confirm: impl Fn() -> F)
    where
        F: Future<Output = Result<(), ReadError>>,
    {
        loop {
            let round = self.waiting.take();
            if round.is_empty() {
                self.confirming.set(false);
                return;
            }
            let confirmed = confirm().await;
            for reader in round {
                let _ = reader.send(confirmed); // Fails when the reader has gone.
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn after(ms: u64) -> Instant {
        Instant::default() + Duration::from_millis(ms)
    }

    #[test]
    fn clock_counts_for_its_leader_only() {
        let clock = GroupClock::default();
        assert_eq!(clock.at(after(10), Some(3), 500), 500, "it begins where the state is");
        assert_eq!(clock.at(after(25), Some(3), 500), 515);
        assert_eq!(clock.at(after(30), None, 515), 515, "a follower does not count");
        assert_eq!(clock.at(after(90), Some(4), 515), 515, "each term begins at the state again");
        assert_eq!(clock.at(after(92), Some(4), 515), 517);
    }

    /// A new leader applies the last one's commands after it began to count.
    #[test]
    fn clock_goes_on_from_commands_that_are_applied_late() {
        let clock = GroupClock::default();
        assert_eq!(clock.at(after(0), Some(1), 100), 100);
        assert_eq!(clock.at(after(5), Some(1), 900), 900);
        assert_eq!(clock.at(after(6), Some(1), 900), 901);
    }
}

//! Channels and permits between tasks. They are `tokio`'s, which run on any executor, but for
//! [`watch`]. There is no unbounded channel (`docs/style.md`).
//!
//! [`Budget`] is ours: an amount beyond its bound is refused, and does not wait.

use std::cell::Cell;

pub use tokio::sync::oneshot;
pub use tokio::sync::{
    Mutex, MutexGuard, Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit,
};

pub use crate::watch;

/// Bounded queues with many producers and one consumer.
pub mod mpsc {
    pub use tokio::sync::mpsc::error::{SendError, TryRecvError, TrySendError};
    pub use tokio::sync::mpsc::{Receiver, Sender, channel};
}

/// A bound on what tasks of one executor hold at once, such as bytes of requests under way.
#[derive(Debug)]
pub struct Budget {
    max: usize,
    held: Cell<usize>,
}

impl Budget {
    /// A bound of `max`, of which nothing is held.
    pub const fn new(max: usize) -> Budget {
        Budget { max, held: Cell::new(0) }
    }

    /// Holds `amount` until the permit is dropped. `None` when less is left; then nothing is held.
    pub fn take(&self, amount: usize) -> Option<Permit<'_>> {
        let held = self.held.get();
        if amount > self.max - held {
            return None;
        }
        self.held.set(held + amount);
        Some(Permit { budget: self, amount })
    }

    /// The sum that all permits hold.
    pub fn held(&self) -> usize {
        self.held.get()
    }
}

/// A part of a [`Budget`], which is given back when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Permit<'a> {
    budget: &'a Budget,
    amount: usize,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.budget.held.set(self.budget.held.get() - self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_gives_up_to_its_bound_and_takes_back_what_is_dropped() {
        let budget = Budget::new(10);
        let first = budget.take(6).expect("it fits");
        assert!(budget.take(5).is_none());
        let second = budget.take(4).expect("it fits exactly");
        assert_eq!(budget.held(), 10);
        drop(first);
        assert_eq!(budget.held(), 4);
        let third = budget.take(6).expect("it fits again");
        drop((second, third));
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn amount_that_is_refused_is_not_held() {
        let budget = Budget::new(10);
        assert!(budget.take(11).is_none() && budget.take(usize::MAX).is_none());
        let all = budget.take(10).expect("nothing is held");
        assert!(budget.take(usize::MAX).is_none() && budget.take(1).is_none());
        assert!(budget.take(0).is_some());
        drop(all);
        assert!(Budget::new(0).take(1).is_none());
    }
}

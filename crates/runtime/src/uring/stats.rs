//! Counters of an executor.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A counter that one thread adds to and all may read.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds. Only the executor's thread calls it, so no locked instruction is needed.
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one executor.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) enters: Counter,
    pub(crate) submitted: Counter,
    pub(crate) completed: Counter,
    pub(crate) sleeps: Counter,
    pub(crate) slept_us: Counter,
    pub(crate) spins: Counter,
    pub(crate) spins_paid: Counter,
    pub(crate) spun_us: Counter,
    pub(crate) preempted: Counter,
    pub(crate) overruns: Mutex<BTreeMap<&'static str, Overrun>>,
}

/// Polls of the tasks of one name that outran their slice (C11).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overrun {
    /// Number of polls.
    pub count: u64,
    /// The longest of them.
    pub longest: Duration,
}

/// Counts of one executor's work so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// System calls that submitted or waited.
    pub enters: u64,
    /// Operations given to the kernel.
    pub submitted: u64,
    /// Completions taken in.
    pub completed: u64,
    /// Times the executor slept.
    pub sleeps: u64,
    /// Time asleep in all, in us.
    pub slept_us: u64,
    /// Times it spun before sleeping.
    pub spins: u64,
    /// Spins that met a completion.
    pub spins_paid: u64,
    /// Time spinning in all, in us.
    pub spun_us: u64,
    /// Polls that were long because the CPU was taken away; they are not overruns.
    pub preempted: u64,
    /// Polls that outran their slice, by the name of their task.
    pub overruns: BTreeMap<&'static str, Overrun>,
}

impl Counters {
    pub(crate) fn snapshot(&self) -> Stats {
        Stats {
            enters: self.enters.get(),
            submitted: self.submitted.get(),
            completed: self.completed.get(),
            sleeps: self.sleeps.get(),
            slept_us: self.slept_us.get(),
            spins: self.spins.get(),
            spins_paid: self.spins_paid.get(),
            spun_us: self.spun_us.get(),
            preempted: self.preempted.get(),
            overruns: self.overruns.lock().expect("no panic inside").clone(),
        }
    }
}

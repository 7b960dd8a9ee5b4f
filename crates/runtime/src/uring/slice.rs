//! The slice watch (C11): names the tasks whose polls are too long.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use super::driver::{clock_nanos, now_nanos};
use super::stats::Counters;
use crate::limits::SLICE_MAX;

/// A task's name is logged at most once in this time.
const LOG_NANOS: u64 = 1_000_000_000;

/// Age at which the marks are renewed, in ns: two system calls each time.
const LOOK_NANOS: u64 = 5_000_000;

/// Judges polls that took long. The executor measures each poll with the clock; only those over
/// the limit come here, so all this may cost a few microseconds.
pub(crate) struct SliceWatch {
    counters: Arc<Counters>,
    logged: RefCell<base::Map<&'static str, u64>>,
    /// Involuntary switches of this thread at the last reading.
    switches: Cell<i64>,
    /// This thread's CPU time and the clock, at the last reading.
    mark: Cell<(u64, u64)>,
}

impl SliceWatch {
    pub(crate) fn new(counters: Arc<Counters>) -> SliceWatch {
        SliceWatch {
            counters,
            logged: Default::default(),
            switches: Cell::new(involuntary_switches()),
            mark: Cell::new((clock_nanos(libc::CLOCK_THREAD_CPUTIME_ID), now_nanos())),
        }
    }

    pub(crate) fn overrun(&self, name: &'static str, took: Duration) {
        if self.was_preempted(took) {
            self.counters.preempted.add(1);
            return;
        }
        {
            let mut overruns = self.counters.overruns.lock().expect("no panic inside");
            let kept = overruns.entry(name).or_default();
            kept.count += 1;
            kept.longest = kept.longest.max(took);
        }
        let now = now_nanos();
        let mut logged = self.logged.borrow_mut();
        match logged.get(name) {
            Some(&last) if now - last < LOG_NANOS => {}
            _ => {
                logged.insert(name, now);
                tracing::warn!(
                    task = name,
                    took_us = took.as_micros() as u64,
                    "a task outran its slice and held up all others of its core: move the work \
                     to env.blocking() or add env.yield_now()"
                );
            }
        }
    }

    /// Keeps the marks fresh, so that a poll can be judged by what happened lately.
    pub(crate) fn look(&self, now: u64) {
        if now - self.mark.get().1 > LOOK_NANOS {
            self.mark.set((clock_nanos(libc::CLOCK_THREAD_CPUTIME_ID), now));
            self.switches.set(involuntary_switches());
        }
    }

    /// True when the CPU was taken away and the poll itself need not have been long.
    fn was_preempted(&self, took: Duration) -> bool {
        let (cpu, now) = (clock_nanos(libc::CLOCK_THREAD_CPUTIME_ID), now_nanos());
        let switches = involuntary_switches();
        let (cpu_before, looked) = self.mark.replace((cpu, now));
        if self.switches.replace(switches) == switches {
            return false; // No thread took it: the poll computed, or blocked by itself.
        }
        // The CPU time since the last reading bounds what the poll can have used.
        let elapsed = now - looked;
        let used_by_poll = (cpu - cpu_before).saturating_sub(elapsed - took.as_nanos() as u64);
        used_by_poll <= SLICE_MAX.as_nanos() as u64
    }
}

fn involuntary_switches() -> i64 {
    // SAFETY: all-zero bytes are a valid rusage, and the call fills it in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        match libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) {
            0 => usage.ru_nivcsw,
            _ => 0,
        }
    }
}

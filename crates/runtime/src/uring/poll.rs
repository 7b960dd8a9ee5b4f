//! Adaptive polling (C12): whether to poll for completions for a while before sleeping.
//!
//! A sleeping executor answers after the kernel has woken its core, which costs about 40 us on an
//! idle virtual CPU; one that polls answers at once, and takes the CPU from others. So it polls
//! only when (1) polling has paid: a window of completions with polls took less time by an eighth
//! than the one before without; (2) no other thread wants the core: the poll was not interrupted;
//! (3) the machine runs no more executors than cores.
//!
//! Shortness of waits does not decide. On a busy core sleeping is cheap (a 4 KiB echo takes 6 us
//! asleep), and two that spin there wait for each other (40 us). With 32 requests in flight polls
//! are short, but each finds one completion where a sleep finds many, and throughput falls by a
//! fifth.

use std::cell::Cell;
use std::time::Duration;

use super::executor_count::ExecutorCount;

/// Waiting of an executor that has nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PollPolicy {
    /// Sleeps at once.
    Never,
    /// Polls for completions for at most `max_us`, while that has paid.
    Adaptive {
        /// The longest poll, in us.
        max_us: u32,
    },
    /// Never sleeps: for cores that belong to this executor alone.
    Always,
}

impl Default for PollPolicy {
    fn default() -> PollPolicy {
        PollPolicy::Adaptive { max_us: 50 }
    }
}

/// Completions that are judged together.
const WINDOW: u64 = 256;
/// Time that a wake from sleep adds to a wait at most, in ns. When a completion takes longer than
/// `max_us` and this, no poll of `max_us` would have met it.
const WAKE_NANOS: u64 = 60_000;
/// The time between two waits counts as at most this many times the longest poll: one that the
/// machine stretched must not decide for all.
const CLIP: u64 = 3;
/// Looking pays when it takes an eighth off the time per completion; else the CPU time is wasted.
const PAYS: (u64, u64) = (7, 8);
/// A window of polls ends early when a completion takes twice as long as asleep.
const HOPELESS: (u64, u64) = (WINDOW / 8, 2);
/// Completions per sleep beyond which there is enough in flight that sleeping costs nothing.
const PER_SLEEP_MAX: u64 = 2;
/// Windows of looking, until sleeping is tried again.
const SPIN_WINDOWS: u32 = 64;
/// Windows of sleeping after a poll that did not pay: first, and at most. Doubled each time.
const SLEEP_WINDOWS: (u32, u32) = (4, 1024);
/// A gap this long between two polls means that another thread had the core, in ns.
const GAP_NANOS: u64 = 100_000;
/// No spin for this long after such a gap, in ns: first, and at most. Doubled each time.
const MUTE_NANOS: (u64, u64) = (20_000_000, 5_000_000_000);
/// Interval of counting the executors, in ns. A count costs a system call.
const COUNT_NANOS: u64 = 100_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Sleeps at once, and learns how long waits are.
    Sleep,
    /// Polls first.
    Spin,
}

/// Tries both ways in turn, a window of completions each, and keeps to the better for a while.
#[derive(Clone, Copy, Debug)]
struct Trial {
    mode: Mode,
    /// End of the last wait, and completions until then.
    last: (u64, u64),
    /// Waits and completions of this window, and the time they took in ns.
    waits: u64,
    count: u64,
    sum: u64,
    /// Time per completion in the last window of sleeping, in ns.
    sleep_mean: u64,
    /// Windows left before the other mode is tried.
    left: u32,
    /// Windows that the next stretch of sleeping takes.
    backoff: u32,
    /// Length of the next mute gap, and the end of the last one, in ns.
    mute: u64,
    muted_until: u64,
}

impl Trial {
    const START: Trial = Trial {
        mode: Mode::Sleep,
        last: (0, 0),
        waits: 0,
        count: 0,
        sum: 0,
        sleep_mean: u64::MAX,
        left: 1,
        backoff: SLEEP_WINDOWS.0,
        mute: MUTE_NANOS.0,
        muted_until: 0,
    };

    /// A wait ended at `now`; there have been `completed` completions so far.
    fn waited(&mut self, now: u64, completed: u64, max_nanos: u64) {
        let (last, before) = std::mem::replace(&mut self.last, (now, completed));
        let worth = max_nanos + WAKE_NANOS;
        self.waits += 1;
        self.count += completed - before;
        self.sum += (now - last).min(CLIP * worth);
        if self.count < WINDOW {
            let hopeless = self.count >= HOPELESS.0
                && self.sum / self.count > self.sleep_mean.saturating_mul(HOPELESS.1);
            if self.mode == Mode::Spin && hopeless {
                self.give_up();
            }
            return;
        }
        let (mean, per_wait) = (self.sum / self.count, self.count / self.waits);
        (self.waits, self.count, self.sum) = (0, 0, 0);
        self.left = self.left.saturating_sub(1);
        match self.mode {
            Mode::Sleep => {
                self.sleep_mean = mean;
                if self.left == 0 && mean <= worth && per_wait <= PER_SLEEP_MAX {
                    (self.mode, self.left) = (Mode::Spin, SPIN_WINDOWS);
                }
            }
            Mode::Spin if mean * PAYS.1 > self.sleep_mean.saturating_mul(PAYS.0) => self.give_up(),
            Mode::Spin if self.left == 0 => {
                // It has paid for long. Is sleeping still the slower way?
                (self.mode, self.left) = (Mode::Sleep, 1);
                (self.backoff, self.mute) = (SLEEP_WINDOWS.0, MUTE_NANOS.0);
            }
            Mode::Spin => {}
        }
    }

    fn give_up(&mut self) {
        let backoff = (self.backoff * 2).min(SLEEP_WINDOWS.1);
        (self.mode, self.left, self.backoff) = (Mode::Sleep, self.backoff, backoff);
        (self.waits, self.count, self.sum) = (0, 0, 0);
    }

    /// Another thread took the core during a poll.
    fn interrupted(&mut self, now: u64) {
        self.give_up();
        self.muted_until = now + self.mute;
        self.mute = (self.mute * 2).min(MUTE_NANOS.1);
    }
}

pub(crate) struct Spinner {
    policy: PollPolicy,
    trial: Cell<Trial>,
    executors: ExecutorCount,
    crowded: Cell<bool>,
    count_due: Cell<u64>,
}

impl Spinner {
    pub(crate) fn new(policy: PollPolicy) -> Spinner {
        Spinner {
            policy,
            trial: Cell::new(Trial::START),
            executors: ExecutorCount::join(),
            crowded: Cell::new(true),
            count_due: Cell::new(0),
        }
    }

    /// Time to poll, in ns; `None` to sleep at once.
    pub(crate) fn budget_nanos(&self, now: u64) -> Option<u64> {
        let max_us = match self.policy {
            PollPolicy::Never => return None,
            PollPolicy::Always => return Some(u64::MAX),
            PollPolicy::Adaptive { max_us } => max_us,
        };
        let trial = self.trial.get();
        if trial.mode == Mode::Sleep || now < trial.muted_until {
            return None;
        }
        if now >= self.count_due.get() {
            self.count_due.set(now + COUNT_NANOS);
            self.crowded.set(self.executors.more_than_cores());
        }
        (!self.crowded.get()).then_some(u64::from(max_us) * 1000)
    }

    /// Time passed between two polls.
    pub(crate) fn saw_gap(&self, now: u64, gap: u64) {
        if gap > GAP_NANOS {
            let mut trial = self.trial.get();
            trial.interrupted(now);
            self.trial.set(trial);
        }
    }

    /// A wait ended at `now`, after a poll or a sleep; `completed` completions came so far.
    pub(crate) fn waited(&self, now: u64, completed: u64) {
        if let PollPolicy::Adaptive { max_us } = self.policy {
            let mut trial = self.trial.get();
            trial.waited(now, completed, u64::from(max_us) * 1000);
            self.trial.set(trial);
        }
    }
}

/// Converts for messages.
impl std::fmt::Display for PollPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PollPolicy::Never => f.write_str("never"),
            PollPolicy::Adaptive { max_us } => {
                write!(f, "adaptive, {:?} at most", Duration::from_micros(u64::from(*max_us)))
            }
            PollPolicy::Always => f.write_str("always"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 50_000;

    /// Feeds waits of a length and yield that depend on the mode; the share spent spinning.
    fn spinning(count: u32, sleep: (u64, u64), spin: (u64, u64)) -> f64 {
        let mut trial = Trial::START;
        let (mut spun, mut now, mut completed) = (0, 0, 0);
        for _ in 0..count {
            let spins = trial.mode == Mode::Spin;
            spun += u32::from(spins);
            let (nanos, found) = if spins { spin } else { sleep };
            (now, completed) = (now + nanos, completed + found);
            trial.waited(now, completed, MAX);
        }
        f64::from(spun) / f64::from(count)
    }

    #[test]
    fn polling_is_used_only_where_it_saves_time() {
        assert!(spinning(1 << 20, (52_000, 1), (9_000, 1)) > 0.95);
        assert!(spinning(1 << 20, (6_000, 1), (40_000, 1)) < 0.05);
        assert!(spinning(1 << 20, (29_000, 1), (26_500, 1)) < 0.05);
        assert!(spinning(1 << 20, (50_000, 16), (4_000, 1)) < 0.05);
        assert!(spinning(1 << 20, (1_000_000, 1), (1_000_000, 1)) == 0.0);
    }
}

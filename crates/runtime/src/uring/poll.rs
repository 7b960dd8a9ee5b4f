//! Adaptive polling (C12): whether to look for completions for a while before sleeping.
//!
//! A sleeping executor answers after the kernel has woken its core, which costs about 40 us on
//! an idle virtual CPU; one that looks answers at once, and takes the CPU from others. So it
//! looks only when (1) it has been seen to pay: a window of waits with looks was shorter by a
//! quarter than the one before without; (2) nobody else wants the core: the look was not
//! interrupted; (3) the machine runs no more executors than cores.
//!
//! Mere shortness of waits does not decide: on a busy core sleeping is cheap (a 4 KiB echo takes
//! 6 us asleep), and two that spin there wait for each other (40 us).

use std::cell::Cell;
use std::time::Duration;

use super::census::Census;

/// How an executor waits when it has nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PollPolicy {
    /// Sleeps at once.
    Never,
    /// Looks for completions for at most `max_us`, while that is seen to pay.
    Adaptive {
        /// The longest look, in us.
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

/// Waits that are judged together.
const WINDOW: u32 = 64;
/// What a wake from sleep adds to a wait at most, in ns. Means above `max_us` plus this are of
/// waits that no look of `max_us` would have met.
const WAKE_NANOS: u64 = 60_000;
/// A wait counts as at most this many times the longest look: one that the machine stretched
/// must not decide for all.
const CLIP: u64 = 3;
/// Looking pays when it takes a quarter off the mean wait; else the CPU time is wasted.
const PAYS: (u64, u64) = (3, 4);
/// Windows of looking, until sleeping is tried again.
const SPIN_WINDOWS: u32 = 64;
/// Windows of sleeping after a look that did not pay: first, and at most. Doubled each time.
const SLEEP_WINDOWS: (u32, u32) = (4, 1024);
/// A gap this long between two looks means that another thread had the core, in ns.
const GAP_NANOS: u64 = 100_000;
/// No spin for this long after such a gap, in ns.
const MUTE_NANOS: u64 = 20_000_000;
/// How often the number of executors is looked up, in ns. A look costs a system call.
const CENSUS_NANOS: u64 = 100_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Sleeps at once, and learns how long waits are.
    Sleep,
    /// Looks first.
    Spin,
}

/// Tries both ways in turn, a window of waits each, and keeps to the better one for a while.
#[derive(Clone, Copy, Debug)]
struct Trial {
    mode: Mode,
    /// Waits of this window, and their sum in ns.
    count: u32,
    sum: u64,
    /// Mean of the last window of sleeping, in ns.
    sleep_mean: u64,
    /// Windows left before the other mode is tried.
    left: u32,
    /// Windows that the next stretch of sleeping takes.
    backoff: u32,
}

impl Trial {
    const START: Trial = Trial {
        mode: Mode::Sleep,
        count: 0,
        sum: 0,
        sleep_mean: u64::MAX,
        left: 1,
        backoff: SLEEP_WINDOWS.0,
    };

    /// A wait ended with a completion.
    fn waited(&mut self, nanos: u64, max_nanos: u64) {
        let worth = max_nanos + WAKE_NANOS;
        self.count += 1;
        self.sum += nanos.min(CLIP * worth);
        if self.count < WINDOW {
            return;
        }
        let mean = self.sum / u64::from(self.count);
        (self.count, self.sum) = (0, 0);
        self.left = self.left.saturating_sub(1);
        match self.mode {
            Mode::Sleep => {
                self.sleep_mean = mean;
                if self.left == 0 && mean <= worth {
                    (self.mode, self.left) = (Mode::Spin, SPIN_WINDOWS);
                }
            }
            Mode::Spin if mean * PAYS.1 > self.sleep_mean.saturating_mul(PAYS.0) => self.give_up(),
            Mode::Spin if self.left == 0 => {
                // It has paid for long. Is sleeping still the slower way?
                (self.mode, self.left) = (Mode::Sleep, 1);
                self.backoff = SLEEP_WINDOWS.0;
            }
            Mode::Spin => {}
        }
    }

    fn give_up(&mut self) {
        let backoff = (self.backoff * 2).min(SLEEP_WINDOWS.1);
        *self = Trial { left: self.backoff, backoff, ..Trial::START };
    }
}

pub(crate) struct Spinner {
    policy: PollPolicy,
    trial: Cell<Trial>,
    muted_until: Cell<u64>,
    census: Census,
    crowded: Cell<bool>,
    census_due: Cell<u64>,
}

impl Spinner {
    pub(crate) fn new(policy: PollPolicy) -> Spinner {
        Spinner {
            policy,
            trial: Cell::new(Trial::START),
            muted_until: Cell::new(0),
            census: Census::join(),
            crowded: Cell::new(true),
            census_due: Cell::new(0),
        }
    }

    /// How long to look, in ns; `None` to sleep at once.
    pub(crate) fn budget_nanos(&self, now: u64) -> Option<u64> {
        let max_us = match self.policy {
            PollPolicy::Never => return None,
            PollPolicy::Always => return Some(u64::MAX),
            PollPolicy::Adaptive { max_us } => max_us,
        };
        if self.trial.get().mode == Mode::Sleep || now < self.muted_until.get() {
            return None;
        }
        if now >= self.census_due.get() {
            self.census_due.set(now + CENSUS_NANOS);
            self.crowded.set(self.census.more_than_cores());
        }
        (!self.crowded.get()).then_some(u64::from(max_us) * 1000)
    }

    /// Time passed between two looks.
    pub(crate) fn saw_gap(&self, now: u64, gap: u64) {
        if gap > GAP_NANOS {
            self.muted_until.set(now + MUTE_NANOS);
        }
    }

    /// A wait ended with a completion, after a look or a sleep or both.
    pub(crate) fn waited(&self, nanos: u64) {
        if let PollPolicy::Adaptive { max_us } = self.policy {
            let mut trial = self.trial.get();
            trial.waited(nanos, u64::from(max_us) * 1000);
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

    /// Feeds waits of a length that depends on the mode; the share of them spent spinning.
    fn spinning(count: u32, sleep: u64, spin: u64) -> f64 {
        let mut trial = Trial::START;
        let mut spun = 0;
        for _ in 0..count {
            let spins = trial.mode == Mode::Spin;
            spun += u32::from(spins);
            trial.waited(if spins { spin } else { sleep }, MAX);
        }
        f64::from(spun) / f64::from(count)
    }

    #[test]
    fn spins_where_it_pays_and_only_there() {
        assert!(spinning(100_000, 52_000, 9_000) > 0.95);
        assert!(spinning(100_000, 6_000, 40_000) < 0.05);
        assert!(spinning(100_000, 50_000, 45_000) < 0.05);
        assert!(spinning(100_000, 1_000_000, 1_000_000) == 0.0);
    }
}

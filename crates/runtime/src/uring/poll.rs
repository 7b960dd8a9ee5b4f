//! Adaptive polling (C12): whether to look for completions for a while before sleeping.
//!
//! A sleeping executor answers after the kernel has woken its core, which costs about 40 us on
//! an idle virtual CPU; one that looks answers at once, and takes the CPU from others. So it
//! looks only when (1) it has been seen to pay: recent waits were short; (2) nobody else wants
//! the core: the loop was not interrupted; (3) the machine runs no more executors than cores.

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

/// Score bounds. Spins happen while the score is positive; a completed short wait adds one, a
/// long one takes one, a spin in vain takes two.
const SCORE_MAX: i32 = 8;
const SCORE_MIN: i32 = -8;
/// What a wake from sleep adds to a wait, in ns: a wait of up to `max_us` + this was short.
const WAKE_NANOS: u64 = 50_000;
/// A gap this long between two looks means that another thread had the core, in ns.
const GAP_NANOS: u64 = 100_000;
/// No spin for this long after such a gap, in ns.
const MUTE_NANOS: u64 = 20_000_000;
/// How often the number of executors is looked up, in ns. A look costs a system call.
const CENSUS_NANOS: u64 = 100_000_000;

pub(crate) struct Spinner {
    policy: PollPolicy,
    score: Cell<i32>,
    muted_until: Cell<u64>,
    census: Census,
    crowded: Cell<bool>,
    census_due: Cell<u64>,
}

impl Spinner {
    pub(crate) fn new(policy: PollPolicy) -> Spinner {
        Spinner {
            policy,
            score: Cell::new(0),
            muted_until: Cell::new(0),
            census: Census::join(),
            crowded: Cell::new(true),
            census_due: Cell::new(0),
        }
    }

    /// How long to look, in ns; `None` to sleep at once.
    pub(crate) fn budget_nanos(&self, now: u64) -> Option<u64> {
        match self.policy {
            PollPolicy::Never => None,
            PollPolicy::Always => Some(u64::MAX),
            PollPolicy::Adaptive { max_us } => {
                if self.score.get() <= 0 || now < self.muted_until.get() {
                    return None;
                }
                if now >= self.census_due.get() {
                    self.census_due.set(now + CENSUS_NANOS);
                    self.crowded.set(self.census.more_than_cores());
                }
                (!self.crowded.get()).then_some(u64::from(max_us) * 1000)
            }
        }
    }

    /// Time passed between two looks.
    pub(crate) fn saw_gap(&self, now: u64, gap: u64) {
        if gap > GAP_NANOS {
            self.muted_until.set(now + MUTE_NANOS);
        }
    }

    /// A look ended, with a completion or in vain.
    pub(crate) fn spun(&self, paid: bool) {
        self.adjust(if paid { 1 } else { -2 });
    }

    /// A sleep ended.
    pub(crate) fn slept(&self, nanos: u64) {
        if let PollPolicy::Adaptive { max_us } = self.policy {
            let short = nanos <= u64::from(max_us) * 1000 + WAKE_NANOS;
            self.adjust(if short { 1 } else { -1 });
        }
    }

    fn adjust(&self, by: i32) {
        self.score.set((self.score.get() + by).clamp(SCORE_MIN, SCORE_MAX));
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

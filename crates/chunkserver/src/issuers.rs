//! Clocks of masters as issuers of rights (D11, decision 113). A token and an order end by the clock of
//! the master that gave them; answers to heartbeats show that clock, and it is carried on from there by
//! this host's own, which drifts from it by little. No clock on the wall takes part.
//!
//! What is known of a clock is never behind it, but for drift: a right that has ended is refused, and
//! one that has not may be, for as long as a heartbeat took.

use std::time::Duration;

use runtime::Instant;
use wire::control::IssuerClock;
use wire::token::{Issuer, IssuerClocks};

use crate::limits::ISSUERS_MAX;

/// One part in so many by which two clocks may differ in rate.
const DRIFT_PART: u32 = 50;

/// What is known of one clock.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// It showed so much at `at`, or less.
    clock: Duration,
    at: Instant,
    heard: Instant,
}

impl Known {
    fn now(&self, now: Instant) -> Duration {
        self.clock + now.since(self.at)
    }
}

/// The issuers that answers to heartbeats have named.
#[derive(Clone, Debug, Default)]
pub(crate) struct Issuers {
    /// Changes since the start.
    pub(crate) version: u64,
    issuers: Vec<Issuer>,
    /// In the same order.
    clocks: Vec<Known>,
}

impl Issuers {
    /// An answer shows a clock; it came at `now` to a question that was sent at `asked`.
    pub(crate) fn note(&mut self, shown: IssuerClock, asked: Instant, now: Instant) {
        self.version += 1;
        // It was read after the question, and cut to a millisecond.
        let clock = Duration::from_millis(shown.clock_ms.saturating_add(1));
        let new = Known { clock, at: asked, heard: now };
        if let Some(at) = self.issuers.iter().position(|&issuer| issuer == shown.issuer) {
            let old = &mut self.clocks[at];
            old.heard = now;
            // A quick answer of a while ago may say more than a slow one of now.
            if new.now(now) <= old.now(now) + now.since(old.at) / DRIFT_PART {
                *old = new;
            }
            return;
        }
        if self.issuers.len() == ISSUERS_MAX {
            let silent = (0..ISSUERS_MAX).min_by_key(|&at| self.clocks[at].heard);
            let silent = silent.expect("there are several");
            self.issuers.swap_remove(silent);
            self.clocks.swap_remove(silent);
        }
        self.issuers.push(shown.issuer);
        self.clocks.push(new);
    }

    /// As they are at `now`, when clocks on the wall show `wall_s`.
    pub(crate) fn at(&self, now: Instant, wall_s: u64) -> IssuersNow<'_> {
        IssuersNow { issuers: self, now, wall_s }
    }
}

/// Clocks of issuers at one moment.
pub(crate) struct IssuersNow<'a> {
    issuers: &'a Issuers,
    now: Instant,
    wall_s: u64,
}

impl IssuerClocks for IssuersNow<'_> {
    fn issuers(&self) -> &[Issuer] {
        &self.issuers.issuers
    }

    fn now_s(&self, issuer: Issuer) -> Option<u64> {
        if issuer == Issuer::WALL {
            return Some(self.wall_s);
        }
        let at = self.issuers.issuers.iter().position(|&known| known == issuer)?;
        Some(self.issuers.clocks[at].now(self.now).as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn shown(issuer: u64, clock_ms: u64) -> IssuerClock {
        IssuerClock { issuer: Issuer::new(issuer), clock_ms }
    }

    fn at_ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_clock_is_never_behind_that_of_its_issuer() {
        let mut issuers = Issuers::default();
        let of = |issuers: &Issuers, ms| issuers.at(at_ms(ms), 7).now_s(Issuer::new(1));
        assert_eq!(of(&issuers, 1000), None);
        // The clock was read between 1000 and 3000: it is at most 12.001 s at 3000.
        issuers.note(shown(1, 10_000), at_ms(1000), at_ms(3000));
        assert_eq!(of(&issuers, 3000), Some(12));
        // A quick answer says more.
        issuers.note(shown(1, 11_000), at_ms(4000), at_ms(4001));
        assert_eq!(of(&issuers, 4001), Some(11));
        // A slow one says nothing new, until drift may have grown to as much.
        issuers.note(shown(1, 12_000), at_ms(5000), at_ms(5990));
        assert_eq!(of(&issuers, 5990), Some(12));
        issuers.note(shown(1, 112_000), at_ms(105_000), at_ms(106_000));
        assert_eq!(of(&issuers, 106_000), Some(113));
        assert_eq!(issuers.at(at_ms(0), 7).now_s(Issuer::WALL), Some(7));
        assert_eq!(issuers.version, 4);
    }

    #[test]
    fn those_that_were_silent_longest_are_forgotten() {
        let mut issuers = Issuers::default();
        for number in 1..=ISSUERS_MAX as u64 {
            issuers.note(shown(number, 0), at_ms(number), at_ms(number));
        }
        issuers.note(shown(1, 500), at_ms(500), at_ms(500));
        issuers.note(shown(1000, 0), at_ms(501), at_ms(501));
        let known = issuers.at(at_ms(0) + SECOND, 0);
        assert_eq!(known.issuers().len(), ISSUERS_MAX);
        assert_eq!(known.now_s(Issuer::new(2)), None);
        assert!(known.now_s(Issuer::new(1)).is_some() && known.now_s(Issuer::new(1000)).is_some());
    }
}

//! When an append waits a little for company.
//!
//! A client asks again a little after it was answered. So of eight requests that are always under
//! way, an append that starts as soon as the one before it has ended meets the four that waited
//! meanwhile, and the next one the other four: five sectors and a device write on each replica
//! for four records. One that waits until those that were just answered have come back takes all
//! eight: nine sectors, and half as many writes and messages.
//!
//! How long it waits at most depends on what appends take, beside the quickest of late. While they
//! take as long, nobody stands in their way: fewer of them would get none done sooner, and half
//! of such a time is enough. Where they take longer, they wait for each other, for processors and
//! for disks: then each that is left out helps all others, and the wait grows by twice what is
//! lost, to twice an append's time. Where waits have not paid, they are left out for a while.

use runtime::{Duration, Instant};

use super::limits::{
    APPEND_BYTES_PACKED, GROUP_COMMIT_FULL, GROUP_COMMIT_MIN, GROUP_COMMIT_SKIPS_MAX,
    GROUP_COMMIT_WAIT_MAX,
};

/// Learns from the appends of one log. What it counts are requests: a large one is no company.
#[derive(Debug)]
pub(crate) struct GroupCommitPolicy {
    /// Requests under way as far as they are known here, at the ends of the last appends.
    company: usize,
    /// What the next append waits for, and until when; 0: for nothing.
    want: usize,
    until: Instant,
    /// What waited when the wait began.
    had: usize,
    /// How long appends take: an average over about the last eight.
    took: Duration,
    /// What the quickest of late took: about one of a hundred is quicker.
    quick: Duration,
    /// Ends of appends at which there is no wait, and how many the next vain wait brings.
    skips: u32,
    penalty: u32,
}

impl Default for GroupCommitPolicy {
    fn default() -> GroupCommitPolicy {
        let (until, took, quick) = (Instant::default(), Duration::ZERO, Duration::MAX);
        GroupCommitPolicy { company: 0, want: 0, until, had: 0, took, quick, skips: 0, penalty: 1 }
    }
}

impl GroupCommitPolicy {
    /// An append of `bytes` with the last of `count` requests has ended, which took `took`;
    /// `inflight` others are in appends, and `waiting` wait.
    pub(crate) fn ended(
        &mut self,
        now: Instant,
        (bytes, took): (usize, Duration),
        count: usize,
        (inflight, waiting): (usize, usize),
    ) {
        // What a large one takes says nothing of those that may wait.
        if bytes <= 2 * APPEND_BYTES_PACKED {
            self.took = (self.took * 7 + took) / 8;
            self.quick = took.min(self.quick.saturating_add(self.quick / 256));
        }
        // Where fewer are under way than before, that is believed little by little.
        self.company = (count + inflight + waiting).max(self.company - self.company.div_ceil(8));
        self.want = 0;
        if inflight > 0 || !self.is_shared() {
            return;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return;
        }
        self.want = self.company.min(GROUP_COMMIT_FULL);
        self.had = waiting;
        self.until = now + self.timeout();
    }

    /// How long a wait may last.
    fn timeout(&self) -> Duration {
        let lost = self.took.saturating_sub(self.quick);
        (self.took / 2 + 2 * lost).min(2 * self.took).min(GROUP_COMMIT_WAIT_MAX)
    }

    /// True when so many ask at a time that packing counts for more than to start at once.
    pub(crate) fn is_shared(&self) -> bool {
        self.company >= GROUP_COMMIT_MIN
    }

    /// Until when an append should not start yet with what waits.
    pub(crate) fn holds(&self, now: Instant, waiting: usize) -> Option<Instant> {
        (waiting < self.want && now < self.until).then_some(self.until)
    }

    /// An append starts with what waits.
    pub(crate) fn started(&mut self, waiting: usize) {
        let want = std::mem::take(&mut self.want);
        if want <= self.had {
            return; // There was no wait.
        }
        let came = waiting.saturating_sub(self.had);
        if 2 * came >= want - self.had {
            self.penalty = 1;
        } else {
            self.skips = self.penalty;
            self.penalty = (self.penalty * 2).min(GROUP_COMMIT_SKIPS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_volume::record::RECORD;

    fn at(us: u64) -> Instant {
        Instant::default() + Duration::from_micros(us)
    }

    const TOOK: Duration = Duration::from_micros(800);

    /// A pace that knows how long appends take.
    fn warm() -> GroupCommitPolicy {
        let mut pace = GroupCommitPolicy::default();
        (0..64).for_each(|_| pace.ended(at(0), (RECORD, TOOK), 1, (0, 0)));
        pace
    }

    #[test]
    fn a_lone_request_never_waits() {
        let mut pace = warm();
        for _ in 0..100 {
            pace.ended(at(0), (RECORD, TOOK), 1, (0, 0));
            assert!(!pace.is_shared());
            assert_eq!(pace.holds(at(0), 1), None);
            pace.started(1);
        }
    }

    #[test]
    fn eight_requests_come_into_one_append() {
        let mut pace = warm();
        // Four were answered, four wait: the four that come back are waited for.
        pace.ended(at(1000), (RECORD, TOOK), 4, (0, 4));
        assert!(pace.is_shared());
        let until = pace.holds(at(1000), 4).expect("worth a wait");
        assert!(until > at(1300) && until <= at(1400), "half an append's time: {until:?}");
        assert!(pace.holds(at(1100), 7).is_some());
        assert_eq!(pace.holds(at(1100), 8), None);
        pace.started(8);
        // All of them were in one append: none waits when it has ended.
        pace.ended(at(2000), (RECORD, TOOK), 8, (0, 0));
        assert!(pace.holds(at(2000), 1).is_some());
        // What is enough for a full one starts at once.
        pace.ended(at(3000), (RECORD, TOOK), 8, (0, 8));
        assert_eq!(pace.holds(at(3000), 8), None);
        // Behind one that is under way there is no wait: its end comes.
        pace.ended(at(4000), (RECORD, TOOK), 8, (8, 1));
        assert_eq!(pace.holds(at(4000), 1), None);
        // When they have gone, the rest is alone again.
        (0..32).for_each(|_| pace.ended(at(5000), (RECORD, TOOK), 1, (0, 0)));
        assert!(!pace.is_shared());
    }

    #[test]
    fn a_wait_is_longer_where_appends_stand_in_each_others_way() {
        let mut pace = warm();
        assert_eq!(pace.timeout(), pace.took / 2, "all of them are as quick");
        // Every other one meets others.
        (0..64).for_each(|n| pace.ended(at(0), (RECORD, TOOK * (1 + n % 2)), 6, (0, 1)));
        assert!(pace.took > TOOK && pace.timeout() > pace.took, "{pace:?}");
        // Much longer ones bring no wait without end.
        (0..8).for_each(|_| pace.ended(at(0), (RECORD, TOOK * 4), 6, (0, 1)));
        assert!(pace.timeout() <= 2 * pace.took && pace.timeout() <= GROUP_COMMIT_WAIT_MAX);
        // One of a megabyte is none of them.
        let timeout = pace.timeout();
        pace.ended(at(0), (1 << 20, TOOK * 100), 6, (0, 1));
        assert_eq!(pace.timeout(), timeout);
        // When all take that long for good, that is how it is here.
        (0..1000).for_each(|_| pace.ended(at(0), (RECORD, TOOK * 2), 6, (0, 1)));
        assert!(pace.timeout() <= pace.took * 51 / 100, "{pace:?}");
    }

    #[test]
    fn a_vain_wait_makes_waits_rare() {
        let mut pace = warm();
        let mut waits = 0;
        for n in 0..1000 {
            let now = at(2000 * n);
            pace.ended(now, (RECORD, TOOK), 6, (0, 1));
            waits += u32::from(pace.holds(now, 1).is_some());
            pace.started(1); // Nobody came.
        }
        assert!((2..60).contains(&waits), "{waits} of 1000");
        // It is tried again, and kept when it pays.
        let mut kept = 0;
        for n in 1000..2000 {
            let now = at(2000 * n);
            pace.ended(now, (RECORD, TOOK), 6, (0, 1));
            kept += u32::from(pace.holds(now, 1).is_some());
            pace.started(7);
        }
        assert!(kept > 900, "{kept} of 1000");
    }
}

//! Group commit: the wait of an append for more requests.
//!
//! A client asks again a little after it was answered. So of eight requests that are always under
//! way, an append that starts as soon as the one before it has ended has the four that waited, and
//! the next one the other four: five sectors and a device write on each replica for four records.
//! An append that waits until the answered four have come back takes all eight: nine sectors, and
//! half as many writes and messages.
//!
//! The longest wait depends on the time of appends, compared with the quickest recent one. While
//! appends take as long as that, they do not delay each other: fewer of them would end no sooner,
//! and half of such a time is enough. When they take longer, they wait for each other, for
//! processors and for disks. Then each append that is saved helps all others: the wait grows by
//! twice the delay, to twice an append's time. After waits without success, some are skipped.

use runtime::{Duration, Instant};

use crate::limits::{
    GROUP_COMMIT_BYTES_MAX, GROUP_COMMIT_FULL, GROUP_COMMIT_MIN, GROUP_COMMIT_SKIPS_MAX,
    GROUP_COMMIT_WAIT_MAX,
};

/// Policy of one log, from its past appends. It counts requests, without large ones.
#[derive(Debug)]
pub struct GroupCommitPolicy {
    /// Requests under way, as known here, at the ends of the last appends.
    active: usize,
    /// Number of requests that the next append waits for, and until when; 0: none.
    want: usize,
    until: Instant,
    /// Requests that waited when the wait began.
    had: usize,
    /// Time of an append: an average over about the last eight.
    took: Duration,
    /// Time of the quickest recent append: about one of a hundred is quicker.
    quick: Duration,
    /// Ends of appends without a wait, and how many of these the next wait without success brings.
    skips: u32,
    penalty: u32,
}

impl Default for GroupCommitPolicy {
    fn default() -> GroupCommitPolicy {
        let (until, took, quick) = (Instant::default(), Duration::ZERO, Duration::MAX);
        GroupCommitPolicy { active: 0, want: 0, until, had: 0, took, quick, skips: 0, penalty: 1 }
    }
}

impl GroupCommitPolicy {
    /// An append of `bytes` with the last of `count` requests has ended, which took `took`;
    /// `inflight` others are in appends, and `waiting` wait.
    pub fn ended(
        &mut self,
        now: Instant,
        (bytes, took): (usize, Duration),
        count: usize,
        (inflight, waiting): (usize, usize),
    ) {
        // The time of a large append does not apply to the requests that may wait.
        if bytes <= GROUP_COMMIT_BYTES_MAX {
            self.took = (self.took * 7 + took) / 8;
            self.quick = took.min(self.quick.saturating_add(self.quick / 256));
        }
        // A decrease of requests under way is taken over little by little.
        self.active = (count + inflight + waiting).max(self.active - self.active.div_ceil(8));
        self.want = 0;
        if inflight > 0 || !self.is_shared() {
            return;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return;
        }
        self.want = self.active.min(GROUP_COMMIT_FULL);
        self.had = waiting;
        self.until = now + self.timeout();
    }

    /// The longest wait.
    fn timeout(&self) -> Duration {
        let lost = self.took.saturating_sub(self.quick);
        (self.took / 2 + 2 * lost).min(2 * self.took).min(GROUP_COMMIT_WAIT_MAX)
    }

    /// True when so many requests come at a time that packing saves more than an immediate start.
    pub fn is_shared(&self) -> bool {
        self.active >= GROUP_COMMIT_MIN
    }

    /// The time until which an append with the waiting requests should not start yet.
    pub fn holds(&self, now: Instant, waiting: usize) -> Option<Instant> {
        (waiting < self.want && now < self.until).then_some(self.until)
    }

    /// An append starts with the waiting requests.
    pub fn started(&mut self, waiting: usize) {
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

    fn at(us: u64) -> Instant {
        Instant::default() + Duration::from_micros(us)
    }

    /// Bytes of a small append.
    const RECORD: usize = 4096;
    const TOOK: Duration = Duration::from_micros(800);

    /// A policy with a known time of appends.
    fn warm() -> GroupCommitPolicy {
        let mut pace = GroupCommitPolicy::default();
        (0..64).for_each(|_| pace.ended(at(0), (RECORD, TOOK), 1, (0, 0)));
        pace
    }

    #[test]
    fn lone_request_never_waits() {
        let mut pace = warm();
        for _ in 0..100 {
            pace.ended(at(0), (RECORD, TOOK), 1, (0, 0));
            assert!(!pace.is_shared());
            assert_eq!(pace.holds(at(0), 1), None);
            pace.started(1);
        }
    }

    #[test]
    fn eight_concurrent_requests_share_one_append() {
        let mut pace = warm();
        // Four were answered, four wait: the append waits for the four that come back.
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
        // A full append starts at once.
        pace.ended(at(3000), (RECORD, TOOK), 8, (0, 8));
        assert_eq!(pace.holds(at(3000), 8), None);
        // Behind an append under way there is no wait: its end comes.
        pace.ended(at(4000), (RECORD, TOOK), 8, (8, 1));
        assert_eq!(pace.holds(at(4000), 1), None);
        // When the others have gone, the last client is alone again.
        (0..32).for_each(|_| pace.ended(at(5000), (RECORD, TOOK), 1, (0, 0)));
        assert!(!pace.is_shared());
    }

    #[test]
    fn wait_is_longer_when_appends_delay_each_other() {
        let mut pace = warm();
        assert_eq!(pace.timeout(), pace.took / 2, "all of them are as quick");
        // Every other one meets others.
        (0..64).for_each(|n| pace.ended(at(0), (RECORD, TOOK * (1 + n % 2)), 6, (0, 1)));
        assert!(pace.took > TOOK && pace.timeout() > pace.took, "{pace:?}");
        // Much longer appends bring no unbounded wait.
        (0..8).for_each(|_| pace.ended(at(0), (RECORD, TOOK * 4), 6, (0, 1)));
        assert!(pace.timeout() <= 2 * pace.took && pace.timeout() <= GROUP_COMMIT_WAIT_MAX);
        // A large append of a megabyte does not count.
        let timeout = pace.timeout();
        pace.ended(at(0), (1 << 20, TOOK * 100), 6, (0, 1));
        assert_eq!(pace.timeout(), timeout);
        // When all take that long for good, that is the new normal.
        (0..1000).for_each(|_| pace.ended(at(0), (RECORD, TOOK * 2), 6, (0, 1)));
        assert!(pace.timeout() <= pace.took * 51 / 100, "{pace:?}");
    }

    #[test]
    fn wait_without_success_makes_waits_rare() {
        let mut pace = warm();
        let mut waits = 0;
        for n in 0..1000 {
            let now = at(2000 * n);
            pace.ended(now, (RECORD, TOOK), 6, (0, 1));
            waits += u32::from(pace.holds(now, 1).is_some());
            pace.started(1); // No other request came.
        }
        assert!((2..60).contains(&waits), "{waits} of 1000");
        // Waits are tried again, and kept when they pay.
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

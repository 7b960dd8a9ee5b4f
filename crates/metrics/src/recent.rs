//! [`RecentLatencies`]: latencies of which the last ones count most, in 144 bytes.

use std::time::Duration;

/// Buckets: four to each doubling from 16 us on, so that a bucket's end is at most a quarter above its
/// beginning. The last one begins at 0.8 s and has no end.
pub const RECENT_BUCKETS: usize = 64;
/// Latencies below 2^14 ns are in the first bucket.
const FIRST_POWER: u32 = 14;

/// Counts of latencies, halved periodically: the last ones count most. Times are nanoseconds of the caller's
/// `Env`, and do not go back.
#[derive(Clone, Debug)]
pub struct RecentLatencies {
    counts: [u16; RECENT_BUCKETS],
    halving_ns: u64,
    /// Number of the period in which it was halved last.
    period: u64,
}

impl RecentLatencies {
    /// Empty, halved once in `halving`, which is longer than zero.
    pub fn new(halving: Duration, now_ns: u64) -> RecentLatencies {
        let halving_ns = nanos(halving).max(1);
        let counts = [0; RECENT_BUCKETS];
        RecentLatencies { counts, halving_ns, period: now_ns / halving_ns }
    }

    /// Halves it once for each period that has passed.
    fn halve(&mut self, now_ns: u64) {
        let passed = (now_ns / self.halving_ns).saturating_sub(self.period);
        if passed == 0 {
            return;
        }
        self.period += passed;
        let shift = u32::try_from(passed).unwrap_or(u32::MAX);
        self.counts.iter_mut().for_each(|count| *count = count.checked_shr(shift).unwrap_or(0));
    }

    /// Counts one that has ended now.
    pub fn add(&mut self, latency: Duration, now_ns: u64) {
        self.halve(now_ns);
        let at = recent_bucket(latency);
        if self.counts[at] == u16::MAX {
            // The shares stay what they are.
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
        self.counts[at] += 1;
    }

    /// Latencies that count now.
    pub fn samples(&mut self, now_ns: u64) -> u64 {
        self.halve(now_ns);
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// The end of the bucket in which the share `per_mille` of the latencies is reached: at most a quarter
    /// above the exact one. `None` without any.
    pub fn quantile(&mut self, per_mille: u32, now_ns: u64) -> Option<Duration> {
        let samples = self.samples(now_ns);
        let wanted = (samples * u64::from(per_mille)).div_ceil(1000).max(1);
        let mut seen = 0;
        let reached = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            seen >= wanted
        });
        reached.map(recent_bucket_end)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The bucket of a latency.
pub fn recent_bucket(latency: Duration) -> usize {
    let nanos = nanos(latency);
    if nanos < 1 << FIRST_POWER {
        return 0;
    }
    let power = nanos.ilog2();
    let quarter = (nanos >> (power - 2)) & 3;
    let index = 1 + 4 * u64::from(power - FIRST_POWER) + quarter;
    (index as usize).min(RECENT_BUCKETS - 1)
}

/// The end of a bucket; of the last one its beginning.
pub fn recent_bucket_end(bucket: usize) -> Duration {
    let next = bucket.min(RECENT_BUCKETS - 2) as u64;
    let (power, quarter) = (u64::from(FIRST_POWER) + next / 4, next % 4);
    Duration::from_nanos((4 + quarter) << (power - 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_bucket_is_within_a_quarter_of_what_is_in_it() {
        for (nanos, index) in [(0, 0), (16_383, 0), (16_384, 1), (20_480, 2), (32_768, 5)] {
            assert_eq!(recent_bucket(Duration::from_nanos(nanos)), index, "{nanos} ns");
        }
        let mut before = 0;
        let mut nanos = 1 << FIRST_POWER;
        while nanos < 800_000_000 {
            let index = recent_bucket(Duration::from_nanos(nanos));
            assert!(index == before || index == before + 1, "no bucket is left out at {nanos} ns");
            let end = recent_bucket_end(index).as_nanos() as u64;
            assert!(nanos < end && end <= nanos + nanos / 4 + 1, "{nanos} ns end at {end}");
            (before, nanos) = (index, nanos + nanos / 64);
        }
        assert_eq!(recent_bucket(Duration::from_secs(100)), RECENT_BUCKETS - 1);
        assert!(recent_bucket_end(RECENT_BUCKETS - 1) > Duration::from_millis(700));
    }

    #[test]
    fn half_of_the_counts_is_left_after_each_period() {
        let second = Duration::from_secs(1);
        let at = |seconds: u64| seconds * 1_000_000_000;
        let mut recent = RecentLatencies::new(second, at(10));
        assert_eq!(recent.quantile(500, at(10)), None);
        (0..8).for_each(|_| recent.add(Duration::from_millis(1), at(10)));
        assert_eq!(recent.samples(at(10)), 8);
        assert_eq!(recent.samples(at(11)), 4);
        (0..8).for_each(|_| recent.add(Duration::from_millis(100), at(11)));
        assert!(recent.quantile(500, at(11)).is_some_and(|time| time > Duration::from_millis(99)));
        assert!(recent.quantile(300, at(11)).is_some_and(|time| time < Duration::from_millis(2)));
        assert_eq!(recent.samples(at(200)), 0);
    }
}

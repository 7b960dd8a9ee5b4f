//! Backup reads (C16): when another replica is asked too, and how often.
//!
//! State without I/O or clock.

use metrics::{Counter, Registry};
use runtime::{Duration, Instant};
use wire::control::CallClass;

use crate::health::Health;
use crate::limits::{
    BACKUP_BURST, BACKUP_BURST_BYTES, BACKUP_DELAY_MAX, BACKUP_DELAY_MIN, BACKUP_DELAY_UNKNOWN,
    BACKUP_ONE_IN, BACKUP_SAMPLES_MIN, READ_FAILED_MAX, READ_FAILED_MIN,
};

/// When a reader asks another replica too.
#[derive(Clone, Debug)]
pub struct BackupConfig {
    /// Wait for a replica before another is asked too: the class's p98, but not less than this.
    pub delay_min: Duration,
    /// And not more.
    pub delay_max: Duration,
    /// The same while fewer than [`BACKUP_SAMPLES_MIN`] reads of the class count.
    pub delay_unknown: Duration,
    /// Wait after which a replica counts as failed for the read, and another is asked whatever the
    /// budget has: four times the class's p99.9, but not less than this.
    pub failed_min: Duration,
    /// And not more; also while too little is known.
    pub failed_max: Duration,
    /// One read, and one byte, in so many may be a backup read; at least 1.
    pub one_in: u64,
    /// Backup reads that may be sent at once after a time without any.
    pub burst: u64,
    /// Bytes of them.
    pub burst_bytes: u64,
}

impl Default for BackupConfig {
    fn default() -> BackupConfig {
        BackupConfig {
            delay_min: BACKUP_DELAY_MIN,
            delay_max: BACKUP_DELAY_MAX,
            delay_unknown: BACKUP_DELAY_UNKNOWN,
            failed_min: READ_FAILED_MIN,
            failed_max: READ_FAILED_MAX,
            one_in: BACKUP_ONE_IN,
            burst: BACKUP_BURST,
            burst_bytes: BACKUP_BURST_BYTES,
        }
    }
}

/// Waits of one read for one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Delays {
    /// Then another replica is asked too, if the budget has a token.
    pub(crate) backup: Duration,
    /// Then it counts as failed, and another is asked.
    pub(crate) failed: Duration,
}

impl Delays {
    pub(crate) fn of(
        config: &BackupConfig,
        health: &mut Health,
        class: CallClass,
        now: Instant,
    ) -> Delays {
        if health.samples(class, now) < BACKUP_SAMPLES_MIN {
            let backup = config.delay_unknown.min(config.failed_max);
            return Delays { backup, failed: config.failed_max };
        }
        let quantile = |health: &mut Health, per_mille| {
            health.quantile(class, per_mille, now).unwrap_or(Duration::ZERO)
        };
        let backup = quantile(health, 980).min(config.delay_max).max(config.delay_min);
        let failed = (4 * quantile(health, 999)).min(config.failed_max).max(config.failed_min);
        Delays { backup, failed: failed.max(backup) }
    }
}

/// Tokens of backup reads: reads earn them, so that backup reads stay a small part of all.
#[derive(Debug)]
pub(crate) struct BackupBudget {
    one_in: u64,
    /// Earned reads and bytes, each times `one_in`, and the most that is kept of them.
    reads: (u64, u64),
    bytes: (u64, u64),
}

impl BackupBudget {
    pub(crate) fn new(config: &BackupConfig) -> BackupBudget {
        let one_in = config.one_in.max(1);
        let full = |burst: u64| (burst.saturating_mul(one_in), burst.saturating_mul(one_in));
        BackupBudget { one_in, reads: full(config.burst), bytes: full(config.burst_bytes) }
    }

    /// A read of `len` bytes is sent to its first replica.
    pub(crate) fn earn(&mut self, len: u64) {
        self.reads.0 = (self.reads.0 + 1).min(self.reads.1);
        self.bytes.0 = (self.bytes.0 + len).min(self.bytes.1);
    }

    /// Takes a token for a backup read of `len` bytes; false when there is none.
    pub(crate) fn take(&mut self, len: u64) -> bool {
        let (read, bytes) = (self.one_in, len.saturating_mul(self.one_in));
        if self.reads.0 < read || self.bytes.0 < bytes {
            return false;
        }
        self.reads.0 -= read;
        self.bytes.0 -= bytes;
        true
    }
}

/// Backup reads of all clients of a process, for its page of metrics.
pub(crate) struct BackupMetrics {
    pub(crate) sent: Counter,
    pub(crate) won: Counter,
    pub(crate) refused: Counter,
}

impl BackupMetrics {
    pub(crate) fn new(registry: &Registry) -> BackupMetrics {
        let of = |name, help| registry.counter(name, help, &[]);
        BackupMetrics {
            sent: of("craton_backup_reads_total", "Reads sent to another replica too."),
            won: of("craton_backup_reads_won_total", "Those that were answered first."),
            refused: of("craton_backup_reads_refused_total", "Those without a token."),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use base::DiskId;

    use super::*;
    use crate::health::{CallEnd, Target};

    #[test]
    fn backup_reads_are_a_share_of_reads_and_of_bytes_beside_a_burst() {
        // Bytes of a read, how many of 1,000 are refused with a burst of 10, and 100,000 bytes.
        for (len, sent) in [(1, 10 + 50), (1_000, 10 + 50), (10_000, 10 + 50), (50_000, 2 + 50)] {
            let config = BackupConfig { burst: 10, burst_bytes: 100_000, ..Default::default() };
            let mut budget = BackupBudget::new(&config);
            let mut taken = 0;
            for _ in 0..1000 {
                budget.earn(len);
                taken += u64::from(budget.take(len));
            }
            assert!(taken <= sent && taken + 2 >= sent, "{taken} of {sent} of {len} bytes");
            // Unused tokens are kept up to the burst.
            (0..1000).for_each(|_| budget.earn(len));
            let mut at_once = 0;
            while budget.take(len) {
                at_once += 1;
            }
            assert_eq!(at_once, 10.min(100_000 / len));
        }
    }

    #[test]
    fn no_backup_read_is_sent_without_a_burst() {
        let mut budget = BackupBudget::new(&BackupConfig { burst: 0, ..Default::default() });
        (0..1000).for_each(|_| budget.earn(1));
        assert!(!budget.take(1));
    }

    #[test]
    fn delays_follow_the_latencies_within_their_bounds() {
        let micros = Duration::from_micros;
        let class = CallClass::read(4096);
        let target = Target { addr: SocketAddr::from(([10, 0, 0, 1], 1)), disk: DiskId::new(1) };
        // Latency of 97 % of the reads and of the others, and least waits that follow.
        for (most, others, backup, failed) in [
            (100, 100, 500, 10_000),
            (1_000, 4_000, 4_000, 16_000),
            (5_000, 15_000, 15_000, 60_000),
            (100, 200_000, 20_000, 100_000),
        ] {
            let now = Instant::from_nanos(0);
            let mut health = Health::new(now);
            for number in 0..100 {
                let unknown = Delays::of(&BackupConfig::default(), &mut health, class, now);
                if number < 64 {
                    let expected = Delays { backup: micros(5_000), failed: micros(100_000) };
                    assert_eq!(unknown, expected, "after {number} reads");
                }
                let ticket = health.begin(target, class, now);
                let took = if number < 97 { most } else { others };
                health.end(ticket, CallEnd::Timed, now + micros(took));
            }
            let delays = Delays::of(&BackupConfig::default(), &mut health, class, now);
            let around = |found: Duration, least: u64| {
                found >= micros(least) && found <= micros(least + least / 4 + 1)
            };
            let good = around(delays.backup, backup) && around(delays.failed, failed);
            assert!(good, "{most} and {others} us: {delays:?}");
        }
    }
}

//! Latencies, and their columns of a row.

use std::time::Duration;

use super::Row;

/// Latencies of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies(Vec<u64>);

impl Latencies {
    pub(crate) fn add(&mut self, latency: Duration) {
        self.0.push(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn merge(&mut self, other: Latencies) {
        self.0.extend(other.0);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn mean_us(&self) -> f64 {
        let sum: u128 = self.0.iter().map(|&nanos| u128::from(nanos)).sum();
        sum as f64 / 1000.0 / self.0.len().max(1) as f64
    }

    /// Fills in the latency columns of a row.
    pub(crate) fn fill(mut self, row: &mut Row, elapsed: Duration) {
        row.mean_us = self.mean_us();
        self.0.sort_unstable();
        let quantile = |q: f64| match self.0.len() {
            0 => 0.0,
            count => self.0[((count as f64 * q) as usize).min(count - 1)] as f64 / 1000.0,
        };
        row.ops = self.count();
        row.ops_per_s = self.count() as f64 / elapsed.as_secs_f64().max(1e-9);
        row.p50_us = quantile(0.5);
        row.p99_us = quantile(0.99);
        row.p999_us = quantile(0.999);
        row.p9999_us = quantile(0.9999);
        row.max_us = quantile(1.0);
    }
}

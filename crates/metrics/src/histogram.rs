//! Log-linear histograms: 32 buckets an octave, so that a value is known to 3 %.

use std::cell::Cell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a value that are kept below its highest.
const PRECISION: u32 = 5;
/// Buckets of one octave.
const SUB: usize = 1 << PRECISION;
/// Values below `SUB` have a bucket each; each octave above has `SUB`.
const BUCKETS: usize = SUB + (64 - PRECISION as usize) * SUB;

/// The bucket of a value.
fn bucket(value: u64) -> usize {
    if value < SUB as u64 {
        return value as usize;
    }
    let octave = 63 - value.leading_zeros() - PRECISION;
    let within = (value >> octave) as usize - SUB;
    SUB + octave as usize * SUB + within
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let (octave, within) = ((bucket - SUB) / SUB, (bucket - SUB) % SUB);
    let next = (SUB + within + 1) as u128;
    ((next << octave) - 1) as u64
}

/// Cells of a [`Histogram`], written by one thread, or of a [`SharedHistogram`], written by any; read by
/// any.
pub(crate) struct Cells {
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Cells {
    pub(crate) fn new() -> Cells {
        Cells {
            counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }

    /// Counts a value beside other threads.
    fn record_shared(&self, value: u64) {
        self.counts[bucket(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
        self.max.fetch_max(value, Ordering::Relaxed);
    }

    pub(crate) fn add_to(&self, all: &mut Distribution) {
        for (count, cell) in all.counts.iter_mut().zip(&self.counts) {
            *count += cell.load(Ordering::Relaxed);
        }
        all.sum = all.sum.wrapping_add(self.sum.load(Ordering::Relaxed));
        all.max = all.max.max(self.max.load(Ordering::Relaxed));
    }
}

/// A core's handle to a histogram. Recording costs three relaxed loads and stores: the handle
/// stays on its thread, so no locked instruction is needed.
#[derive(Clone)]
pub struct Histogram {
    cells: Arc<Cells>,
    thread: PhantomData<Rc<Cell<()>>>,
}

impl Histogram {
    pub(crate) fn new(cells: Arc<Cells>) -> Histogram {
        Histogram { cells, thread: PhantomData }
    }

    /// A histogram that no registry shows, e.g. of a benchmark.
    pub fn unregistered() -> Histogram {
        Histogram::new(Arc::new(Cells::new()))
    }

    /// Counts a value: nanoseconds, bytes or a number of things.
    pub fn record(&self, value: u64) {
        let cells = &self.cells;
        let count = &cells.counts[bucket(value)];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let sum = cells.sum.load(Ordering::Relaxed).wrapping_add(value);
        cells.sum.store(sum, Ordering::Relaxed);
        if value > cells.max.load(Ordering::Relaxed) {
            cells.max.store(value, Ordering::Relaxed);
        }
    }

    /// Its counts.
    pub fn distribution(&self) -> Distribution {
        let mut all = Distribution::default();
        self.cells.add_to(&mut all);
        all
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Histogram({} values)", self.distribution().count())
    }
}

/// A handle to a histogram for threads that are no cores. Recording costs three locked instructions.
#[derive(Clone)]
pub struct SharedHistogram(Arc<Cells>);

impl SharedHistogram {
    pub(crate) fn new(cells: Arc<Cells>) -> SharedHistogram {
        SharedHistogram(cells)
    }

    /// Counts a value: nanoseconds, bytes or a number of things.
    pub fn record(&self, value: u64) {
        self.0.record_shared(value);
    }
}

impl std::fmt::Debug for SharedHistogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedHistogram")
    }
}

/// Counts of one or several histograms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Distribution {
    counts: Vec<u64>,
    sum: u64,
    max: u64,
}

impl Default for Distribution {
    fn default() -> Distribution {
        Distribution { counts: vec![0; BUCKETS], sum: 0, max: 0 }
    }
}

impl Distribution {
    /// Adds what another has counted.
    pub fn merge(&mut self, other: &Distribution) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the values, modulo 2^64.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest value.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean value; 0 when there is none.
    pub fn mean(&self) -> f64 {
        match self.count() {
            0 => 0.0,
            count => self.sum as f64 / count as f64,
        }
    }

    /// A value that at least the share `q` (0 to 1) of the values do not exceed, at most 3 %
    /// above the smallest such; 0 when there is none.
    pub fn quantile(&self, q: f64) -> u64 {
        let wanted = (self.count() as f64 * q.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper(bucket).min(self.max);
            }
        }
        self.max
    }

    /// Number of values that do not exceed `2^power - 1`.
    pub fn count_below_power(&self, power: u32) -> u64 {
        let limit = if power >= 64 { u64::MAX } else { (1 << power) - 1 };
        self.counts[..=bucket(limit)].iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_cover_all_values_in_order() {
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(upper(BUCKETS - 1), u64::MAX);
        for index in 0..BUCKETS {
            assert_eq!(bucket(upper(index)), index);
            if index + 1 < BUCKETS {
                assert_eq!(bucket(upper(index) + 1), index + 1);
            }
        }
    }

    proptest! {
        #[test]
        fn quantiles_are_near(mut values in prop::collection::vec(0..1u64 << 40, 1..200)) {
            let histogram = Histogram::unregistered();
            values.iter().for_each(|&value| histogram.record(value));
            let all = histogram.distribution();
            values.sort_unstable();
            prop_assert_eq!(all.count(), values.len() as u64);
            prop_assert_eq!(all.sum(), values.iter().sum::<u64>());
            prop_assert_eq!(all.max(), values[values.len() - 1]);
            for q in [0.0, 0.5, 0.9, 0.99, 1.0] {
                let rank = (values.len() as f64 * q).ceil().max(1.0) as usize - 1;
                let (exact, near) = (values[rank], all.quantile(q));
                prop_assert!(near >= exact && near <= exact + exact / 32 + 1, "{q}: {exact} {near}");
            }
            for power in [0, 1, 5, 10, 33, 64] {
                let limit = if power == 64 { u64::MAX } else { (1u64 << power) - 1 };
                let exact = values.iter().filter(|&&value| value <= limit).count() as u64;
                prop_assert_eq!(all.count_below_power(power), exact);
            }
        }

        #[test]
        fn merging_adds(left in prop::collection::vec(any::<u32>(), 0..50),
                        right in prop::collection::vec(any::<u32>(), 0..50)) {
            let of = |values: &[u32]| {
                let histogram = Histogram::unregistered();
                values.iter().for_each(|&value| histogram.record(value.into()));
                histogram.distribution()
            };
            let mut merged = of(&left);
            merged.merge(&of(&right));
            prop_assert_eq!(merged, of(&[left, right].concat()));
        }
    }
}

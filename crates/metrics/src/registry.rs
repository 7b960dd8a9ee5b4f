//! The registry: which series there are, and every core's cells of each.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::histogram::{Cells, Distribution, Histogram, SharedHistogram};
use crate::limits::SERIES_MAX;
use crate::text::{Exposition, Unit};

/// A process's metrics. Clones share them.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<Families>>);

#[derive(Default)]
struct Families {
    by_name: BTreeMap<&'static str, Family>,
    series: usize,
    refused: u64,
}

struct Family {
    help: &'static str,
    kind: Kind,
    series: BTreeMap<Labels, Series>,
}

type Labels = Vec<(&'static str, String)>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Counter,
    Gauge,
    Histogram(Unit),
}

#[derive(Default)]
struct Series {
    numbers: Vec<Arc<AtomicU64>>,
    histograms: Vec<Arc<Cells>>,
}

/// A core's handle to a counter. Adding costs a relaxed load and store: the handle stays on its
/// thread, so no locked instruction is needed.
#[derive(Clone, Debug)]
pub struct Counter {
    cell: Arc<AtomicU64>,
    thread: PhantomData<Rc<Cell<()>>>,
}

impl Counter {
    /// Counts `count` more.
    pub fn add(&self, count: u64) {
        let sum = self.cell.load(Ordering::Relaxed).wrapping_add(count);
        self.cell.store(sum, Ordering::Relaxed);
    }

    /// Counts one more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// The count of this handle and its clones.
    pub fn get(&self) -> u64 {
        self.cell.load(Ordering::Relaxed)
    }
}

/// A handle to a counter for threads that are no cores. Adding costs a locked instruction.
#[derive(Clone, Debug)]
pub struct SharedCounter(Arc<AtomicU64>);

impl SharedCounter {
    /// Counts `count` more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts one more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// The count of this handle and its clones.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A core's handle to a gauge, whose value is the sum over the handles. It leaves the sum when
/// its last clone is dropped.
#[derive(Clone, Debug)]
pub struct Gauge {
    cell: Arc<AtomicU64>,
    thread: PhantomData<Rc<Cell<()>>>,
}

impl Gauge {
    /// Sets this core's part.
    pub fn set(&self, value: i64) {
        self.cell.store(value as u64, Ordering::Relaxed);
    }

    /// Adds to this core's part, or takes from it.
    pub fn add(&self, change: i64) {
        self.set(self.get().wrapping_add(change));
    }

    /// This core's part.
    pub fn get(&self) -> i64 {
        self.cell.load(Ordering::Relaxed) as i64
    }
}

impl Registry {
    /// No series yet.
    pub fn new() -> Registry {
        Registry::default()
    }

    /// This core's cell of a counter. `name` ends in `_total`.
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Counter {
        let cell = self.number(name, help, Kind::Counter, labels);
        Counter { cell, thread: PhantomData }
    }

    /// This core's cell of a gauge.
    pub fn gauge(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Gauge {
        let cell = self.number(name, help, Kind::Gauge, labels);
        Gauge { cell, thread: PhantomData }
    }

    /// The cell of a counter that several threads share. `name` ends in `_total`.
    pub fn shared_counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> SharedCounter {
        SharedCounter(self.number(name, help, Kind::Counter, labels))
    }

    /// This core's cells of a histogram.
    pub fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        unit: Unit,
        labels: &[(&'static str, &str)],
    ) -> Histogram {
        Histogram::new(self.cells(name, help, unit, labels))
    }

    /// The cells of a histogram that several threads share.
    pub fn shared_histogram(
        &self,
        name: &'static str,
        help: &'static str,
        unit: Unit,
        labels: &[(&'static str, &str)],
    ) -> SharedHistogram {
        SharedHistogram::new(self.cells(name, help, unit, labels))
    }

    fn cells(
        &self,
        name: &'static str,
        help: &'static str,
        unit: Unit,
        labels: &[(&'static str, &str)],
    ) -> Arc<Cells> {
        let cells = Arc::new(Cells::new());
        self.with_series(name, help, Kind::Histogram(unit), labels, |series| {
            // Cells that no handle writes any more are used for the next.
            if let Some(free) = series.histograms.iter().find(|old| Arc::strong_count(old) == 1) {
                return free.clone();
            }
            series.histograms.push(cells.clone());
            cells.clone()
        })
        .unwrap_or(cells.clone())
    }

    /// The text of all series in Prometheus form.
    pub fn expose(&self) -> String {
        let mut text = Exposition::new();
        self.expose_into(&mut text);
        text.finish()
    }

    /// Adds all series to a text.
    pub fn expose_into(&self, text: &mut Exposition) {
        let families = self.families();
        for (name, family) in &families.by_name {
            let mut out = match family.kind {
                Kind::Counter => text.counters(name, family.help),
                Kind::Gauge => text.gauges(name, family.help),
                Kind::Histogram(_) => text.histograms(name, family.help),
            };
            for (labels, series) in &family.series {
                let labels: Vec<_> = labels.iter().map(|(name, text)| (*name, &**text)).collect();
                match family.kind {
                    Kind::Counter => out.sample(&labels, series.sum() as f64),
                    Kind::Gauge => match series.live_sum() {
                        Some(sum) => out.sample(&labels, sum as f64),
                        None => &mut out,
                    },
                    Kind::Histogram(unit) => {
                        let mut all = Distribution::default();
                        series.histograms.iter().for_each(|cells| cells.add_to(&mut all));
                        out.distribution(&labels, unit, &all)
                    }
                };
            }
        }
        let (name, help) = ("craton_metrics_series_refused_total", "Series beyond the limit.");
        text.counters(name, help).sample(&[], families.refused as f64);
    }

    fn families(&self) -> MutexGuard<'_, Families> {
        // A panic under the lock leaves whole series behind: they can be read on.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn number(
        &self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        labels: &[(&'static str, &str)],
    ) -> Arc<AtomicU64> {
        self.with_series(name, help, kind, labels, |series| {
            if let Some(free) = series.numbers.iter().find(|old| Arc::strong_count(old) == 1) {
                if kind == Kind::Gauge {
                    free.store(0, Ordering::Relaxed);
                }
                return free.clone();
            }
            let cell = Arc::new(AtomicU64::new(0));
            series.numbers.push(cell.clone());
            cell
        })
        .unwrap_or_default()
    }

    /// Works on a series, made when it is new; `None` when there are too many.
    fn with_series<T>(
        &self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        labels: &[(&'static str, &str)],
        work: impl FnOnce(&mut Series) -> T,
    ) -> Option<T> {
        let mut families = self.families();
        let families = &mut *families;
        let full = families.series >= SERIES_MAX;
        let labels: Labels = labels.iter().map(|(name, text)| (*name, (*text).into())).collect();
        let known = families.by_name.get(name).is_some_and(|one| one.series.contains_key(&labels));
        if !known && full {
            families.refused += 1;
            return None;
        }
        families.series += usize::from(!known);
        let family = families.by_name.entry(name);
        let family = family.or_insert_with(|| Family { help, kind, series: BTreeMap::new() });
        assert_eq!(family.kind, kind, "{name} was registered as something else");
        Some(work(family.series.entry(labels).or_default()))
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registry({} series)", self.families().series)
    }
}

impl Series {
    fn sum(&self) -> u64 {
        let cells = self.numbers.iter().map(|cell| cell.load(Ordering::Relaxed));
        cells.fold(0, u64::wrapping_add)
    }

    /// The sum over the gauges that a handle holds, `None` when none does.
    fn live_sum(&self) -> Option<i64> {
        let live = self.numbers.iter().filter(|cell| Arc::strong_count(cell) > 1);
        live.map(|cell| cell.load(Ordering::Relaxed) as i64).reduce(i64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(registry: &Registry, line: &str) -> bool {
        registry.expose().lines().any(|one| one == line)
    }

    #[test]
    #[allow(clippy::disallowed_methods)] // Two cores are two threads.
    fn cores_add_up() {
        let registry = Registry::new();
        let here = registry.counter("a_total", "A.", &[("kind", "x")]);
        here.add(2);
        let elsewhere = registry.clone();
        std::thread::spawn(move || {
            elsewhere.counter("a_total", "A.", &[("kind", "x")]).add(40);
            elsewhere.counter("a_total", "A.", &[("kind", "y")]).inc();
        })
        .join()
        .expect("it counts");
        assert!(has(&registry, "a_total{kind=\"x\"} 42"));
        assert!(has(&registry, "a_total{kind=\"y\"} 1"));
        assert_eq!(here.get(), 2);
    }

    #[test]
    #[allow(clippy::disallowed_methods)] // Threads that are no cores.
    fn threads_share_a_handle() {
        let registry = Registry::new();
        let count = registry.shared_counter("a_total", "A.", &[]);
        let times = registry.shared_histogram("b", "B.", Unit::Count, &[]);
        let work = || {
            let (count, times) = (count.clone(), times.clone());
            std::thread::spawn(move || {
                (0..1000).for_each(|value| {
                    count.inc();
                    times.record(value);
                });
            })
        };
        [work(), work()].into_iter().for_each(|thread| thread.join().expect("it counts"));
        assert!(has(&registry, "a_total 2000"));
        assert!(has(&registry, "b_count 2000"));
        assert!(has(&registry, "b_sum 999000"));
    }

    #[test]
    fn counters_outlive_their_handles_and_gauges_do_not() {
        let registry = Registry::new();
        registry.counter("a_total", "A.", &[]).add(5);
        registry.counter("a_total", "A.", &[]).add(5);
        assert!(has(&registry, "a_total 10"));
        let (one, two) = (registry.gauge("b", "B.", &[]), registry.gauge("b", "B.", &[]));
        one.set(7);
        two.add(-3);
        assert!(has(&registry, "b 4"));
        drop(one);
        assert!(has(&registry, "b -3"));
        drop(two);
        assert!(!registry.expose().lines().any(|line| line.starts_with("b ")));
        assert_eq!(registry.gauge("b", "B.", &[]).get(), 0);
    }

    #[test]
    fn series_are_bounded() {
        let registry = Registry::new();
        let label = |index: usize| index.to_string();
        for index in 0..SERIES_MAX + 3 {
            registry.counter("a_total", "A.", &[("index", &label(index))]).inc();
        }
        assert!(has(&registry, "craton_metrics_series_refused_total 3"));
        registry.counter("a_total", "A.", &[("index", &label(0))]).inc();
        assert!(has(&registry, "a_total{index=\"0\"} 2"));
    }

    #[test]
    #[should_panic(expected = "registered as something else")]
    fn a_name_has_one_kind() {
        let registry = Registry::new();
        let _counter = registry.counter("a", "A.", &[]);
        let _gauge = registry.gauge("a", "A.", &[]);
    }
}

//! Latencies of a disk's foreground operations, for heartbeats (`protocols-tail.md` 10.1): masters compare
//! them with those of other disks (C28), operators see them in `craton health`.

use std::cell::RefCell;

use metrics::RecentLatencies;
use runtime::{Duration, Instant};
use wire::control::{CallClass, DiskTimes};

use crate::limits::{DISK_HANG, DISK_TIMES_SAMPLES_MIN};

/// Latencies of one disk, by class.
pub(crate) struct LatencyRecord(RefCell<[RecentLatencies; CallClass::COUNT]>);

impl LatencyRecord {
    /// Without any; one counts half after `halving`.
    pub(crate) fn new(halving: Duration) -> LatencyRecord {
        let class = |_| RecentLatencies::new(halving, 0);
        LatencyRecord(RefCell::new(std::array::from_fn(class)))
    }

    /// An operation of the class has ended now. One that was part of a hang says nothing of the speed
    /// behind it: masters took the disk for missing, and take it back when it answers.
    pub(crate) fn note(&self, class: CallClass, latency: Duration, now: Instant) {
        if latency >= DISK_HANG {
            return;
        }
        self.0.borrow_mut()[class.index()].add(latency, now.as_nanos());
    }

    /// Those of the classes that have enough.
    pub(crate) fn report(&self, now: Instant) -> Vec<DiskTimes> {
        let classes = &mut *self.0.borrow_mut();
        let times = CallClass::all().filter_map(|class| {
            let (recent, now) = (&mut classes[class.index()], now.as_nanos());
            if recent.samples(now) < DISK_TIMES_SAMPLES_MIN {
                return None;
            }
            let mut micros = |per_mille| {
                let time = recent.quantile(per_mille, now)?;
                Some(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
            };
            Some(DiskTimes { class, p50_us: micros(500)?, p99_us: micros(990)? })
        });
        times.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::DISK_TIMES_HALVING;

    #[test]
    fn classes_with_few_operations_are_left_out_and_old_ones_end() {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let record = LatencyRecord::new(DISK_TIMES_HALVING);
        let (small, large) = (CallClass::append(4096), CallClass::read(1 << 20));
        (0..100).for_each(|_| record.note(small, Duration::from_millis(2), at(1)));
        (1..DISK_TIMES_SAMPLES_MIN).for_each(|_| record.note(large, Duration::ZERO, at(1)));
        let report = record.report(at(1));
        assert_eq!(report.iter().map(|it| it.class).collect::<Vec<_>>(), [small]);
        assert!((2000..=2500).contains(&report[0].p50_us) && report[0].p99_us == report[0].p50_us);
        record.note(large, Duration::from_millis(30), at(1));
        assert_eq!(record.report(at(1)).len(), 2);
        assert_eq!(record.report(at(60)), []);
        // A hang that is over is none of its times.
        (0..100).for_each(|_| record.note(small, DISK_HANG, at(61)));
        assert_eq!(record.report(at(61)), []);
    }
}

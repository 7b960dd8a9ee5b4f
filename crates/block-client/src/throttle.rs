//! [`Throttle`]: limits of a volume (B12). Token buckets in the block client: requests wait in
//! order until the volume's limits admit them. A mark says whether their rate was promised; a
//! congested block server does those first.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use block_volume::qos::VolumeLimits;
use runtime::sync::{Mutex, Notify};
use runtime::{Env, Instant};
use transport::Priority;

use crate::limits::LIMIT_BURST;

/// Billionths of a request or byte: what a rate of one a second brings in a nanosecond.
const UNIT: i128 = 1_000_000_000;

/// A token bucket. It holds what [`LIMIT_BURST`] brings, and at least one request.
#[derive(Clone, Copy, Default)]
struct Bucket {
    /// A second; 0: there is no such bound.
    rate: u64,
    /// In [`UNIT`]s; below zero after a request that was larger than the bucket.
    level: i128,
    at: Instant,
}

impl Bucket {
    fn full(rate: u64, now: Instant) -> Bucket {
        let bucket = Bucket { rate, level: 0, at: now };
        Bucket { level: bucket.depth(), ..bucket }
    }

    fn depth(&self) -> i128 {
        (i128::from(self.rate) * LIMIT_BURST.as_nanos() as i128).max(UNIT)
    }

    /// Takes a new rate, and keeps what it has.
    fn set(&mut self, rate: u64, now: Instant) {
        self.refill(now);
        if rate != self.rate {
            let level = if self.rate == 0 { i128::MAX } else { self.level };
            self.rate = rate;
            self.level = level.min(self.depth());
        }
    }

    fn refill(&mut self, now: Instant) {
        let gain = i128::from(self.rate) * (now - self.at).as_nanos() as i128;
        self.level = (self.level + gain).min(self.depth());
        self.at = now;
    }

    /// Delay until a request of `cost` may go: zero when it may now.
    fn wait(&self, cost: u64) -> Duration {
        if self.rate == 0 || cost == 0 {
            return Duration::ZERO;
        }
        // A request larger than the bucket goes when it is full.
        let need = (i128::from(cost) * UNIT).min(self.depth());
        let missing = (need - self.level).max(0);
        let nanos = (missing + i128::from(self.rate) - 1) / i128::from(self.rate);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn take(&mut self, cost: u64) {
        if self.rate > 0 {
            self.level -= i128::from(cost) * UNIT;
        }
    }
}

/// Requests, and bytes.
#[derive(Clone, Copy, Default)]
struct Pair([Bucket; 2]);

impl Pair {
    fn refill(&mut self, now: Instant) {
        self.0.iter_mut().for_each(|bucket| bucket.refill(now));
    }

    fn wait(&self, cost: [u64; 2]) -> Duration {
        let waits = self.0.iter().zip(cost).map(|(bucket, cost)| bucket.wait(cost));
        waits.max().unwrap_or_default()
    }

    fn take(&mut self, cost: [u64; 2]) {
        self.0.iter_mut().zip(cost).for_each(|(bucket, cost)| bucket.take(cost));
    }

    fn is_bound(&self) -> bool {
        self.0.iter().any(|bucket| bucket.rate > 0)
    }
}

/// The bounds of one attachment. Requests pass in the order in which they come.
pub(super) struct Throttle {
    env: Env,
    limits: Cell<VolumeLimits>,
    /// Buckets of the promised and of the allowed rates.
    buckets: RefCell<(Pair, Pair)>,
    turn: Mutex<()>,
    changed: Notify,
}

impl Throttle {
    /// No bounds, and nothing promised.
    pub(super) fn new(env: &Env) -> Throttle {
        let (limits, buckets) = Default::default();
        let (turn, changed) = (Mutex::new(()), Notify::new());
        Throttle { env: env.clone(), limits, buckets, turn, changed }
    }

    /// Takes over new limits, also for requests that wait. Each of `attachments` has its share.
    pub(super) fn set(&self, limits: VolumeLimits, attachments: usize) {
        let share = |rate: u64| rate.div_ceil(attachments.max(1) as u64);
        let VolumeLimits { iops_base, iops_burst, bytes_base, bytes_burst } = limits;
        let limits = VolumeLimits {
            iops_base: share(iops_base),
            iops_burst: share(iops_burst),
            bytes_base: share(bytes_base),
            bytes_burst: share(bytes_burst),
        };
        if self.limits.replace(limits) == limits {
            return;
        }
        let now = self.env.now();
        let (base, burst) = &mut *self.buckets.borrow_mut();
        for (pair, rates) in [
            (base, [limits.iops_base, limits.bytes_base]),
            (burst, [limits.iops_burst, limits.bytes_burst]),
        ] {
            for (bucket, rate) in pair.0.iter_mut().zip(rates) {
                match bucket.rate {
                    0 => *bucket = Bucket::full(rate, now),
                    _ => bucket.set(rate, now),
                }
            }
        }
        self.changed.notify_waiters();
    }

    /// Waits until a request of `bytes` may go; returns its priority.
    pub(super) async fn admit(&self, bytes: u64) -> Priority {
        if self.limits.get() == VolumeLimits::default() {
            return Priority::Background; // Nothing is promised.
        }
        let cost = [1, bytes];
        let _turn = self.turn.lock().await;
        loop {
            let changed = self.changed.notified();
            let now = self.env.now();
            let wait = {
                let (base, burst) = &mut *self.buckets.borrow_mut();
                base.refill(now);
                burst.refill(now);
                let wait = burst.wait(cost);
                if wait.is_zero() {
                    burst.take(cost);
                    let promised = base.is_bound() && base.wait(cost).is_zero();
                    if !promised {
                        return Priority::Background;
                    }
                    base.take(cost);
                    return Priority::Foreground;
                }
                wait
            };
            self.env.mark("block: request waits for its volume's bound");
            let _ = self.env.timeout(wait, changed).await; // Either is a reason to look again.
        }
    }
}

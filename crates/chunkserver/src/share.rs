//! The share of a disk that background work may take (C20, `protocols-tail.md` 10.14): copies of repair,
//! drain and balance, as source and as target, and scrub.
//!
//! One background operation at a time is given to a disk, the most urgent first. One that took a time t
//! is followed by a pause, so that background work has its share of the disk's *time*: a measured rate is
//! not needed, and what the foreground makes slower slows it down as well. The share is small while there
//! is foreground work, smaller while that suffers, and nearly all of the disk while there is none.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use metrics::{Distribution, Histogram};
use runtime::sync::Notify;
use runtime::{Env, Instant};
use wire::control::BackgroundWork;

use crate::limits::{
    SHARE_JUDGED, SHARE_RECENT, SHARE_SAMPLES_MIN, SHARE_SUFFERS_PER_MILLE, SHARE_WAITING_MAX,
    SHARE_WINDOW,
};

/// Shares of a disk's time for background work, in thousandths, and the least that it gets. Without a
/// share it gets the least alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackgroundShare {
    /// While there is foreground work.
    pub busy: u32,
    /// While there is none.
    pub idle: u32,
    /// Of what may not wait: the only replica is copied, or the last fragment that a chunk needs.
    pub urgent: u32,
    /// Bytes a second that background work gets whatever the foreground suffers.
    pub floor_bytes_per_s: u64,
}

impl Default for BackgroundShare {
    fn default() -> BackgroundShare {
        BackgroundShare { busy: 250, idle: 900, urgent: 500, floor_bytes_per_s: 2 << 20 }
    }
}

/// Urgency of background work, the most urgent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Urgency {
    /// A chunk that survives no further loss is copied.
    NoMargin,
    /// Any other copy.
    Copy,
    /// Scrub.
    Scrub,
}

/// So many wait already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyWait;

/// The background work of one disk.
pub(crate) struct DiskShare {
    limits: BackgroundShare,
    foreground: RefCell<Foreground>,
    /// Part of the share that is left to background work while the foreground suffers, in thousandths.
    allowance: Cell<u32>,
    /// Those that wait, in the order in which they go on.
    waiting: RefCell<BTreeSet<(Urgency, u64)>>,
    arrivals: Cell<u64>,
    /// A background operation is under way, or when the last one has ended.
    active: Cell<bool>,
    ended: Cell<Option<Instant>>,
    /// No background operation begins before.
    next: Cell<Option<Instant>>,
    changed: Notify,
}

/// Operations that someone waits for.
struct Foreground {
    under_way: u32,
    ended: Option<Instant>,
    /// Latencies of those beside which there was no background work, in this window and the last ...
    alone: [Histogram; 2],
    window: Option<Instant>,
    /// ... and of those beside which there was, since it was last judged.
    beside: Histogram,
    judged: Option<Instant>,
}

impl DiskShare {
    pub(crate) fn new(limits: BackgroundShare) -> DiskShare {
        let histogram = Histogram::unregistered;
        let foreground = Foreground {
            under_way: 0,
            ended: None,
            alone: [histogram(), histogram()],
            window: None,
            beside: histogram(),
            judged: None,
        };
        DiskShare {
            limits,
            foreground: RefCell::new(foreground),
            allowance: Cell::new(1000),
            waiting: RefCell::default(),
            arrivals: Cell::new(0),
            active: Cell::new(false),
            ended: Cell::new(None),
            next: Cell::new(None),
            changed: Notify::new(),
        }
    }

    /// A foreground operation of the disk, and the time that it took.
    pub(crate) async fn foreground<T>(
        &self,
        env: &Env,
        operation: impl Future<Output = T>,
    ) -> (T, Duration) {
        let start = env.now();
        let beside = self.active.get() || self.ended.get().is_some_and(|at| is_recent(at, start));
        let under_way = UnderWay::begin(&self.foreground);
        let result = operation.await;
        drop(under_way);
        let now = env.now();
        let foreground = &mut *self.foreground.borrow_mut();
        foreground.ended = Some(now);
        let took = now - start;
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if beside || self.active.get() {
            foreground.beside.record(took_ns);
        } else {
            foreground.turn_window(now);
            foreground.alone[0].record(took_ns);
        }
        (result, took)
    }

    /// A background operation of the disk, of `bytes` bytes: when it is its turn.
    pub(crate) async fn background<T>(
        &self,
        env: &Env,
        (urgency, bytes): (Urgency, u64),
        operation: impl Future<Output = T>,
    ) -> Result<T, TooManyWait> {
        let _turn = self.turn(env, urgency).await?;
        let start = env.now();
        let result = operation.await;
        let now = env.now();
        self.judge(now);
        self.ended.set(Some(now));
        self.next.set(Some(now + self.pause(now, now - start, urgency, bytes)));
        Ok(result)
    }

    async fn turn(&self, env: &Env, urgency: Urgency) -> Result<Turn<'_>, TooManyWait> {
        if self.waiting.borrow().len() >= SHARE_WAITING_MAX {
            return Err(TooManyWait);
        }
        let arrival = self.arrivals.replace(self.arrivals.get() + 1);
        let place = (urgency, arrival);
        self.waiting.borrow_mut().insert(place);
        let turn = Turn { share: self, place, active: Cell::new(false) };
        loop {
            let changed = self.changed.notified();
            let is_first = self.waiting.borrow().first() == Some(&place);
            if self.active.get() || !is_first {
                changed.await;
                continue;
            }
            let now = env.now();
            match self.next.get().filter(|&next| next > now) {
                // A more urgent one may come in this time.
                Some(next) => drop(env.timeout(next - now, changed).await),
                None => break,
            }
        }
        self.waiting.borrow_mut().remove(&place);
        self.active.set(true);
        turn.active.set(true);
        Ok(turn)
    }

    /// Pause behind an operation that took so long.
    fn pause(&self, now: Instant, took: Duration, urgency: Urgency, bytes: u64) -> Duration {
        let foreground = self.foreground.borrow();
        let busy =
            foreground.under_way > 0 || foreground.ended.is_some_and(|ended| is_recent(ended, now));
        let BackgroundShare { busy: share, idle, urgent, floor_bytes_per_s } = self.limits;
        let share = match urgency {
            _ if !busy => idle,
            Urgency::NoMargin => urgent.max(share),
            _ => share * self.allowance.get() / 1000,
        };
        let share = u64::from(share.min(1000));
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Without a share there is the floor alone.
        let pause_ns = took_ns.saturating_mul(1000 - share).checked_div(share).unwrap_or(u64::MAX);
        let pause = Duration::from_nanos(pause_ns);
        if floor_bytes_per_s == 0 {
            return pause;
        }
        let least = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / floor_bytes_per_s);
        pause.min(least.saturating_sub(took))
    }

    /// Halves the share while the foreground suffers from background work, and gives a part of it back
    /// with each judgement without that.
    fn judge(&self, now: Instant) {
        let foreground = &mut *self.foreground.borrow_mut();
        if foreground.judged.is_some_and(|at| now - at < SHARE_JUDGED) {
            return;
        }
        foreground.judged = Some(now);
        let beside = foreground.beside.distribution();
        foreground.beside = Histogram::unregistered();
        foreground.turn_window(now);
        let alone = foreground.alone();
        let known = |it: &Distribution| it.count() >= SHARE_SAMPLES_MIN;
        let allowance = self.allowance.get();
        let suffers = known(&beside) && known(&alone) && {
            let bound = alone.quantile(0.99).saturating_mul(SHARE_SUFFERS_PER_MILLE) / 1000;
            beside.quantile(0.99) > bound
        };
        self.allowance.set(match suffers {
            true => allowance / 2,
            false => (allowance + 100).min(1000),
        });
    }

    /// The share that background work has beside foreground work now, in thousandths of the disk's time.
    pub(crate) fn per_mille(&self) -> u32 {
        self.limits.busy * self.allowance.get() / 1000
    }

    /// For heartbeats.
    pub(crate) fn work(&self) -> BackgroundWork {
        BackgroundWork { share: self.per_mille(), waiting: self.waiting.borrow().len() as u32 }
    }
}

impl Foreground {
    fn turn_window(&mut self, now: Instant) {
        let window = *self.window.get_or_insert(now);
        if now - window < SHARE_WINDOW {
            return;
        }
        self.window = Some(now);
        // What is older than two windows says nothing of now; with too few samples it is all there is.
        if self.alone[0].distribution().count() >= SHARE_SAMPLES_MIN {
            self.alone.swap(0, 1);
            self.alone[0] = Histogram::unregistered();
        }
    }

    fn alone(&self) -> Distribution {
        let mut all = self.alone[0].distribution();
        all.merge(&self.alone[1].distribution());
        all
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now - at < SHARE_RECENT
}

/// A foreground operation, counted until it ends or is dropped.
struct UnderWay<'a>(&'a RefCell<Foreground>);

impl<'a> UnderWay<'a> {
    fn begin(foreground: &'a RefCell<Foreground>) -> UnderWay<'a> {
        foreground.borrow_mut().under_way += 1;
        UnderWay(foreground)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().under_way -= 1;
    }
}

/// A place in the order, or the turn; given back when it is dropped.
struct Turn<'a> {
    share: &'a DiskShare,
    place: (Urgency, u64),
    active: Cell<bool>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.active.get() {
            self.share.active.set(false);
        } else {
            self.share.waiting.borrow_mut().remove(&self.place);
        }
        self.share.changed.notify_waiters();
    }
}

#[cfg(test)]
#[path = "share_tests.rs"]
mod tests;

//! The executor's driver: time, turns, sleeping and waking, adaptive polling, the slice watch.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use super::op::Work;
use super::poll::{PollPolicy, Spinner};
use super::ring::{Op, Ring};
use super::slice::SliceWatch;
use super::stats::Counters;
use crate::executor::Driver;
use crate::remote::Remote;
use crate::task::TaskRef;
use crate::time::Instant;

/// Wakes an executor that sleeps. Writing costs a system call, so it is done only then.
pub(crate) struct Signal {
    sleeping: AtomicBool,
    event: File,
}

impl Signal {
    pub(crate) fn new() -> io::Result<Arc<Signal>> {
        // SAFETY: a system call without pointers.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and has no other owner.
        let event = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
        Ok(Arc::new(Signal { sleeping: AtomicBool::new(false), event }))
    }

    /// Wakes the executor if it sleeps. Called after the reason was published.
    ///
    /// No wake is lost: the executor sets that it sleeps and then checks for reasons; we publish
    /// the reason and then check whether it sleeps. Both in one total order (`SeqCst`), so one of
    /// the two sees the other.
    pub(crate) fn notify(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            (&self.event).write_all(&1u64.to_ne_bytes()).expect("a counter far below its bound");
        }
    }
}

/// The clock of leases: it goes on while the host is suspended, as the clocks of other hosts do.
/// Timers that were due during that time are late, as after a pause of the process.
pub(crate) fn now_nanos() -> u64 {
    clock_nanos(libc::CLOCK_BOOTTIME)
}

/// The time of [`crate::Env::now`] on a real host, for threads that have no environment.
pub fn real_now() -> Instant {
    Instant::from_nanos(now_nanos())
}

pub(crate) fn clock_nanos(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a place for the result.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(result, 0, "clock {clock} cannot be read");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) struct RealDriver {
    ring: Rc<Ring>,
    remote: Arc<Remote<Arc<TaskRef>>>,
    signal: Arc<Signal>,
    /// A duplicate of the signal's event, read through the ring.
    event: Rc<OwnedFd>,
    wake: RefCell<Option<Op>>,
    spinner: Spinner,
    slices: SliceWatch,
    counters: Arc<Counters>,
}

impl RealDriver {
    pub(crate) fn new(
        ring: Rc<Ring>,
        remote: Arc<Remote<Arc<TaskRef>>>,
        signal: Arc<Signal>,
        poll: PollPolicy,
        counters: Arc<Counters>,
    ) -> io::Result<RealDriver> {
        let event = Rc::new(OwnedFd::from(signal.event.try_clone()?));
        debug_assert!(event.as_raw_fd() >= 0);
        Ok(RealDriver {
            ring,
            remote,
            signal,
            event,
            wake: RefCell::new(None),
            spinner: Spinner::new(poll),
            slices: SliceWatch::new(counters.clone()),
            counters,
        })
    }

    /// Keeps a read of the wake event in flight.
    fn arm_wake(&self) {
        let wake = &mut *self.wake.borrow_mut();
        if let Some(op) = wake {
            let mut context = Context::from_waker(Waker::noop());
            if Pin::new(op).poll(&mut context).is_pending() {
                return;
            }
        }
        let work = Work::Wake { event: self.event.clone(), count: Box::new(0) };
        *wake = Some(self.ring.start(work));
    }

    /// Polls for completions for a while. True when something came.
    fn spin(&self, started: u64, until: Option<u64>) -> bool {
        let Some(limit) = self.spinner.budget_nanos(started) else { return false };
        if self.ring.turn() > 0 {
            return true;
        }
        let end = started.saturating_add(limit).min(until.unwrap_or(u64::MAX));
        let mut last = started;
        let found = loop {
            if self.ring.has_completions() || self.remote.has_any() {
                break true;
            }
            let now = now_nanos();
            self.spinner.saw_gap(now, now - last);
            last = now;
            if now >= end {
                break false;
            }
            std::hint::spin_loop();
        };
        self.counters.spins.add(1);
        self.counters.spun_us.add((last - started) / 1000);
        if found {
            self.counters.spins_paid.add(1);
            self.ring.turn();
            self.spinner.waited(now_nanos(), self.counters.completed.get());
        }
        found
    }

    /// Submits and sleeps until a completion, a wake or `left`.
    fn sleep(&self, started: u64, left: Option<u64>) {
        self.arm_wake();
        self.signal.sleeping.store(true, Ordering::SeqCst);
        if self.remote.has_any() {
            self.ring.turn();
        } else {
            self.ring.wait(left.map(Duration::from_nanos));
        }
        self.signal.sleeping.store(false, Ordering::SeqCst);
        let now = now_nanos();
        self.slices.look(now);
        self.spinner.waited(now, self.counters.completed.get());
        let waited = now - started;
        self.counters.sleeps.add(1);
        self.counters.slept_us.add(waited / 1000);
    }
}

impl Driver for RealDriver {
    fn now(&self) -> u64 {
        now_nanos()
    }

    fn turn(&self) {
        self.slices.look(now_nanos());
        self.ring.turn();
    }

    fn park(&self, until: Option<u64>) -> bool {
        let started = now_nanos();
        let is_due = |now| until.is_some_and(|until| until <= now);
        if is_due(started) {
            self.ring.turn();
        } else if !self.spin(started, until) {
            // The spin may have lasted until the timer's time.
            let now = now_nanos();
            if is_due(now) {
                self.ring.turn();
            } else {
                self.sleep(now, until.map(|until| until - now));
            }
        }
        true
    }

    fn pick(&self, _ready: usize) -> usize {
        0
    }

    fn before_poll(&self, _node: u32, _slot: u32) -> bool {
        true
    }

    fn overrun(&self, name: &'static str, took: Duration) {
        self.slices.overrun(name, took);
    }

    fn measures_slices(&self) -> bool {
        true
    }
}

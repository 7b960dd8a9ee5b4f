//! The ring: submission, completion, and the slab that owns every operation in flight.
//!
//! Buffers and files are not registered with the ring (`WRITE_FIXED`). Measured on 4 KiB durable
//! writes, 32 in flight, bare ring: 1.9 us of CPU each instead of 2.1, the same op/s, p50 and p99.
//! An append costs more than ten times that, and every ring would pin all slabs, which
//! needs a raised `ulimit -l`. Measure again with `examples/bench.rs` on a device that is bound by
//! the CPU.
//!
//! Invariant: memory and descriptors that the kernel may access belong to the slab until the
//! completion has come, whatever was dropped before.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue};

use super::op::{Step, Work};
use super::stats::Counters;
use crate::limits::{RING_COMPLETIONS, RING_ENTRIES, SHUTDOWN_WAIT_MAX};

/// `user_data` of cancellations, whose completions say nothing.
const CANCEL: u64 = u64::MAX;

const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;

/// The argument of `io_uring_enter` with `IORING_ENTER_EXT_ARG`.
#[repr(C)]
struct EnterArg {
    sigmask: u64,
    sigmask_size: u32,
    min_wait_usec: u32,
    timeout: u64,
}

#[repr(C)]
struct KernelTimespec {
    seconds: i64,
    nanos: i64,
}

/// An `io_uring` instance. Lives on one thread.
pub(crate) struct Ring {
    state: RefCell<RingState>,
    fd: RawFd,
    counters: Arc<Counters>,
    /// No operation starts any more.
    closed: Cell<bool>,
    /// Completions of one poll, kept to be used again.
    batch: RefCell<Vec<(u64, i32)>>,
}

struct RingState {
    uring: IoUring,
    /// Entries in the submission queue that the kernel has not seen.
    queued: u32,
    /// Entries for which the queue had no room. Bounded by the operations in flight.
    overflow: VecDeque<squeue::Entry>,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    inflight: u32,
}

struct Slot {
    generation: u32,
    state: SlotState,
}

enum SlotState {
    Vacant,
    Running {
        work: Work,
        waker: Option<Waker>,
        /// No task waits: the slot is freed at completion.
        orphan: bool,
    },
    Done {
        work: Work,
        result: io::Result<u32>,
    },
}

/// An operation in flight, for the one who waits for it. Dropping it leaves the operation to the
/// ring: it is cancelled if it might wait for ever, and otherwise goes on to its end.
#[must_use]
pub(crate) struct Op {
    ring: Rc<Ring>,
    slot: u32,
    taken: bool,
}

/// A finished operation, and what it ended with.
pub(crate) struct Done {
    pub(crate) work: Work,
    pub(crate) result: io::Result<u32>,
}

fn user_data(slot: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(slot)
}

impl Ring {
    pub(crate) fn new(counters: Arc<Counters>) -> io::Result<Rc<Ring>> {
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize(RING_COMPLETIONS)
            .build(RING_ENTRIES)
            .map_err(unavailable)?;
        let has = uring.params();
        if !(has.is_feature_ext_arg() && has.is_feature_nodrop() && has.is_feature_submit_stable())
        {
            return Err(unavailable(io::Error::from_raw_os_error(libc::EINVAL)));
        }
        let fd = uring.as_raw_fd();
        let state = RingState {
            uring,
            queued: 0,
            overflow: VecDeque::new(),
            slots: Vec::with_capacity(RING_ENTRIES as usize),
            vacant: Vec::new(),
            inflight: 0,
        };
        Ok(Rc::new(Ring {
            state: RefCell::new(state),
            fd,
            counters,
            closed: Cell::new(false),
            batch: RefCell::new(Vec::with_capacity(RING_COMPLETIONS as usize)),
        }))
    }

    /// Queues an operation. It starts at the executor's next turn.
    pub(crate) fn start(self: &Rc<Self>, work: Work) -> Op {
        let slot = self.state.borrow_mut().insert(work, self.closed.get());
        Op { ring: self.clone(), slot, taken: false }
    }

    /// Operations that the kernel has, or will be given at the next turn.
    pub(crate) fn inflight(&self) -> u32 {
        self.state.borrow().inflight
    }

    /// Submits what is queued and takes in what has completed, without waiting. Makes no system
    /// call when there is nothing to submit and the kernel has nothing to say.
    pub(crate) fn turn(&self) -> usize {
        let due = {
            let state = &mut *self.state.borrow_mut();
            state.fill();
            let submission = state.uring.submission();
            state.queued > 0 || submission.taskrun() || submission.cq_overflow()
        };
        if due {
            self.enter(0, None);
        }
        self.reap()
    }

    /// True when a completion waits to be taken in. Two loads; no system call.
    pub(crate) fn has_completions(&self) -> bool {
        let state = &mut *self.state.borrow_mut();
        if state.uring.submission().taskrun() {
            return true;
        }
        !state.uring.completion().is_empty()
    }

    /// Submits what is queued and waits for a completion, for `timeout` at most.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> usize {
        self.state.borrow_mut().fill();
        self.enter(1, timeout);
        self.reap()
    }

    /// One system call: submits, runs deferred work, waits for `want` completions.
    fn enter(&self, want: u32, timeout: Option<Duration>) {
        let mut state = self.state.borrow_mut();
        let to_submit = state.queued;
        let limit = timeout.map(|timeout| KernelTimespec {
            seconds: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            nanos: i64::from(timeout.subsec_nanos()),
        });
        let arg = EnterArg {
            sigmask: 0,
            sigmask_size: 0,
            min_wait_usec: 0,
            timeout: limit.as_ref().map_or(0, |limit| (&raw const *limit) as u64),
        };
        // SAFETY: `arg` and `limit` live across the call; the entries in the submission queue
        // point to memory that the slab owns until their completions.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                self.fd,
                to_submit,
                want,
                ENTER_GETEVENTS | ENTER_EXT_ARG,
                &raw const arg,
                size_of::<EnterArg>(),
            )
        };
        self.counters.enters.add(1);
        if result >= 0 {
            let count = u32::try_from(result).expect("at most `to_submit`").min(to_submit);
            state.queued -= count;
            self.counters.submitted.add(u64::from(count));
            return;
        }
        match io::Error::last_os_error().raw_os_error() {
            // The time is over, a signal came, or the kernel wants completions taken in first:
            // the entries stay queued for the next turn.
            Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {
                // With a timeout the entries may have been consumed before the wait failed.
                state.recount();
            }
            _ => panic!("io_uring_enter failed: {}", io::Error::last_os_error()),
        }
    }

    /// Takes in completions and wakes those who wait for them.
    fn reap(&self) -> usize {
        let mut batch = self.batch.borrow_mut();
        {
            let mut state = self.state.borrow_mut();
            let completions = state.uring.completion();
            batch.extend(
                completions.map(|entry: cqueue::Entry| (entry.user_data(), entry.result())),
            );
        }
        let count = batch.len();
        for (user_data, result) in batch.drain(..) {
            let ended = self.state.borrow_mut().complete(user_data, result, self.closed.get());
            // Wakers and orphaned operations go with no borrow held: they run foreign code.
            match ended {
                OpEnd::Wake(waker) => waker.wake(),
                OpEnd::Orphan(done) => done.work.discard(done.result),
                OpEnd::Nothing => {}
            }
        }
        self.counters.completed.add(count as u64);
        count
    }

    /// Cancels what may wait for ever, waits for what may change a disk, and accepts no more.
    /// True when nothing is in flight; otherwise the ring's memory must never be freed.
    pub(crate) fn shutdown(&self) -> bool {
        self.closed.set(true);
        let running = |finite: bool, state: &RingState| -> Vec<u64> {
            let slots = state.slots.iter().enumerate();
            let of_kind = slots.filter(|(_, slot)| match &slot.state {
                SlotState::Running { work, .. } => work.is_finite() == finite,
                _ => false,
            });
            of_kind.map(|(index, slot)| user_data(index as u32, slot.generation)).collect()
        };
        {
            let state = &mut *self.state.borrow_mut();
            for target in running(false, state) {
                state.push_cancel(target);
            }
        }
        let mut waited = Duration::ZERO;
        let step = Duration::from_millis(100);
        while self.inflight() > 0 && waited < SHUTDOWN_WAIT_MAX {
            if self.wait(Some(step)) == 0 {
                waited += step;
            }
        }
        if self.inflight() > 0 {
            tracing::error!(
                operations = self.inflight(),
                "disk operations did not end while the runtime stopped; their buffers are kept \
                 for ever. Look for a failed disk in the kernel's log"
            );
        }
        self.inflight() == 0
    }
}

/// Says what to do when the kernel has no ring for us.
fn unavailable(error: io::Error) -> io::Error {
    let remedy = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no io_uring: use Linux 6.1 or later",
        Some(libc::EPERM) => {
            "io_uring is forbidden here: set sysctl kernel.io_uring_disabled=0, and allow \
             io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp \
             profile"
        }
        Some(libc::EINVAL) => "this kernel's io_uring is too old: use Linux 6.1 or later",
        Some(libc::ENOMEM) => "no memory for the ring: raise the locked-memory limit (ulimit -l)",
        Some(libc::EMFILE | libc::ENFILE) => "too many open files: raise the limit (ulimit -n)",
        _ => "io_uring cannot be set up",
    };
    io::Error::new(error.kind(), format!("{remedy} ({error})"))
}

enum OpEnd {
    Wake(Waker),
    Orphan(Done),
    Nothing,
}

impl RingState {
    fn insert(&mut self, mut work: Work, closed: bool) -> u32 {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, state: SlotState::Vacant });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 operations")
        });
        if closed {
            let result = Err(io::Error::other("the runtime has stopped"));
            self.slots[slot as usize].state = SlotState::Done { work, result };
            return slot;
        }
        let place = &mut self.slots[slot as usize];
        let entry = work.entry().user_data(user_data(slot, place.generation));
        // The operation moves, what its entry points to does not: that is on the heap.
        place.state = SlotState::Running { work, waker: None, orphan: false };
        self.inflight += 1;
        self.push(entry);
        slot
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.overflow.push_back(entry);
        self.fill();
    }

    /// Moves entries into the submission queue while it has room.
    fn fill(&mut self) {
        if self.overflow.is_empty() {
            return;
        }
        let mut submission = self.uring.submission();
        while let Some(entry) = self.overflow.front() {
            // SAFETY: what the entry points to is owned by its slot until its completion.
            if unsafe { submission.push(entry) }.is_err() {
                return;
            }
            self.overflow.pop_front();
            self.queued += 1;
        }
    }

    /// Learns from the queue itself what the kernel has consumed.
    fn recount(&mut self) {
        self.queued = u32::try_from(self.uring.submission().len()).expect("at most its entries");
    }

    fn push_cancel(&mut self, target: u64) {
        self.push(opcode::AsyncCancel::new(target).build().user_data(CANCEL));
    }

    fn complete(&mut self, user_data: u64, result: i32, stopping: bool) -> OpEnd {
        if user_data == CANCEL {
            return OpEnd::Nothing;
        }
        let slot = user_data as u32;
        let place = &mut self.slots[slot as usize];
        assert_eq!(place.generation, (user_data >> 32) as u32, "a completion without operation");
        let SlotState::Running { work, orphan, .. } = &mut place.state else {
            panic!("a second completion of one operation");
        };
        // A cancelled operation must not start again.
        let last = stopping || (*orphan && work.cancel_on_drop());
        let result = match work.advance(result, last) {
            Step::Again => {
                let entry = work.entry().user_data(user_data);
                self.push(entry);
                return OpEnd::Nothing;
            }
            Step::Ended(result) => result,
        };
        self.inflight -= 1;
        match std::mem::replace(&mut place.state, SlotState::Vacant) {
            SlotState::Running { work, orphan: true, .. } => {
                self.release(slot);
                OpEnd::Orphan(Done { work, result })
            }
            SlotState::Running { work, waker, .. } => {
                place.state = SlotState::Done { work, result };
                waker.map_or(OpEnd::Nothing, OpEnd::Wake)
            }
            _ => unreachable!("running, as seen above"),
        }
    }

    fn release(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        place.state = SlotState::Vacant;
        place.generation = place.generation.wrapping_add(1);
        self.vacant.push(slot);
    }
}

impl Op {
    /// Takes the result, if the operation has ended.
    fn take(&mut self) -> Option<Done> {
        let state = &mut *self.ring.state.borrow_mut();
        let place = &mut state.slots[self.slot as usize];
        match std::mem::replace(&mut place.state, SlotState::Vacant) {
            SlotState::Done { work, result } => {
                state.release(self.slot);
                self.taken = true;
                Some(Done { work, result })
            }
            other => {
                place.state = other;
                None
            }
        }
    }
}

impl Future for Op {
    type Output = Done;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        assert!(!self.taken, "polled after its end");
        if let Some(done) = self.take() {
            return Poll::Ready(done);
        }
        let replaced = {
            let state = &mut *self.ring.state.borrow_mut();
            match &mut state.slots[self.slot as usize].state {
                SlotState::Running { waker: Some(kept), .. } if kept.will_wake(cx.waker()) => None,
                SlotState::Running { waker, .. } => waker.replace(cx.waker().clone()),
                _ => unreachable!("neither ended nor running"),
            }
        };
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        if let Some(done) = self.take() {
            done.work.discard(done.result);
            return;
        }
        let forgotten = {
            let state = &mut *self.ring.state.borrow_mut();
            let place = &mut state.slots[self.slot as usize];
            let target = user_data(self.slot, place.generation);
            let SlotState::Running { work, waker, orphan } = &mut place.state else {
                unreachable!("neither ended nor running");
            };
            *orphan = true;
            let forgotten = waker.take();
            if work.cancel_on_drop() {
                state.push_cancel(target);
            }
            forgotten
        };
        drop(forgotten);
    }
}

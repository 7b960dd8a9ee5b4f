//! [`Tracer`]: records of one core's operations, and the operation that is under way.
//!
//! A [`Span`] follows its operation: code that works for it enters it, and code below notes stages
//! without having it passed through every call. Times come from the caller.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;

use base::TraceId;

use crate::histogram::Histogram;
use crate::limits::{KINDS_MAX, SLOW_LINES_MAX};
use crate::registry::{Counter, Registry};
use crate::text::Unit;
use crate::trace::{Fact, Key, Operation, Outcome, Step, TraceRing};

/// Notes operations: their stages in a ring, their durations in histograms, their failures in
/// counters. One per core; stays on its thread.
pub struct Tracer {
    ring: TraceRing,
    registry: Registry,
    kinds: RefCell<Vec<Kind>>,
    /// Of the next trace that begins here.
    seed: u64,
    drawn: Cell<u64>,
    /// The second in which lines about slow operations were logged last, and how many.
    lines: Cell<(u64, u32)>,
    /// False: nothing is noted. For measurements of what noting costs.
    on: Cell<bool>,
}

/// Counts of the operations of one name.
struct Kind {
    name: &'static str,
    took: Histogram,
    failed: Counter,
}

impl Tracer {
    /// A tracer whose trace IDs follow from `seed`, and that counts in `registry`.
    pub fn new(seed: u64, registry: Registry) -> Rc<Tracer> {
        Rc::new(Tracer {
            ring: TraceRing::new(),
            registry,
            kinds: RefCell::default(),
            seed,
            drawn: Cell::new(0),
            lines: Cell::default(),
            on: Cell::new(true),
        })
    }

    /// The operations.
    pub fn ring(&self) -> &TraceRing {
        &self.ring
    }

    /// Metrics of this core, durations of operations among them.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Turns noting off, or on again.
    pub fn set_on(&self, on: bool) {
        self.on.set(on);
    }

    /// A trace that no other process has.
    pub fn fresh(&self) -> TraceId {
        let drawn = self.drawn.get() + 1;
        self.drawn.set(drawn);
        // SplitMix64: numbers drawn one after the other have no visible relation.
        let mut mixed = self.seed.wrapping_add(drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        TraceId::unasked(mixed ^ (mixed >> 31))
    }

    /// Starts an operation at `now_ns`.
    pub fn begin(
        self: &Rc<Self>,
        trace: TraceId,
        name: &'static str,
        peer: Option<SocketAddr>,
        now_ns: u64,
    ) -> Span {
        let key = self.on.get().then(|| self.ring.begin(trace, name, peer, now_ns));
        Span { tracer: self.clone(), key, trace, name, root: false }
    }

    /// A span without an operation: operations that begin in it are of `trace`. For programs
    /// whose own work is of many operations.
    pub fn root(self: &Rc<Self>, trace: TraceId) -> Span {
        Span { tracer: self.clone(), key: None, trace, name: "", root: true }
    }

    /// True while a line about another slow operation may be logged.
    fn may_log(&self, now_ns: u64) -> bool {
        let second = now_ns / 1_000_000_000;
        let (last, count) = self.lines.get();
        let count = if last == second { count + 1 } else { 1 };
        self.lines.set((second, count));
        count <= SLOW_LINES_MAX
    }

    fn count(&self, name: &'static str, took_ns: u64, failed: bool) {
        let kinds = &mut *self.kinds.borrow_mut();
        // Names are constants: those of one place are one address.
        let known =
            kinds.iter().position(|kind| std::ptr::eq(kind.name, name) || kind.name == name);
        let index = match known {
            Some(index) => index,
            None if kinds.len() == KINDS_MAX => return,
            None => {
                let labels = [("operation", name)];
                let help = "Time from an operation's arrival to its answer.";
                let seconds = "craton_operation_seconds";
                let took = self.registry.histogram(seconds, help, Unit::Nanoseconds, &labels);
                let help = "Operations answered with an error.";
                let failed =
                    self.registry.counter("craton_operation_failures_total", help, &labels);
                kinds.push(Kind { name, took, failed });
                kinds.len() - 1
            }
        };
        kinds[index].took.record(took_ns);
        if failed {
            kinds[index].failed.inc();
        }
    }
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tracer({:?})", self.ring)
    }
}

/// An operation under way, of this core. Clones are of the same one.
#[derive(Clone, Debug)]
pub struct Span {
    tracer: Rc<Tracer>,
    /// Absent while nothing is noted.
    key: Option<Key>,
    trace: TraceId,
    name: &'static str,
    root: bool,
}

thread_local! {
    static CURRENT: Cell<Option<Span>> = const { Cell::new(None) };
}

/// Restores the operation that was current before.
#[derive(Debug)]
pub struct Entered(Option<Span>);

impl Drop for Entered {
    fn drop(&mut self) {
        drop(CURRENT.replace(self.0.take()));
    }
}

impl Span {
    /// Its trace.
    pub fn trace(&self) -> TraceId {
        self.trace
    }

    /// True when it only carries a trace: see [`Tracer::root`].
    pub fn is_root(&self) -> bool {
        self.root
    }

    /// It has reached a stage at `now_ns`.
    pub fn note(&self, step: Step, now_ns: u64, fact: Fact) {
        if let Some(key) = self.key {
            self.tracer.ring.stage(key, step, now_ns, fact);
        }
    }

    /// It has ended at `now_ns`. Answers the operation when it was slow and a line about it is
    /// to be logged.
    pub fn end(&self, now_ns: u64, outcome: Outcome) -> Option<Operation> {
        let key = self.key?;
        let tracer = &*self.tracer;
        let took_ns = tracer.ring.end(key, now_ns, outcome)?;
        tracer.count(self.name, took_ns, matches!(outcome, Outcome::Failed(_)));
        let slow = took_ns >= tracer.ring.slow_ns();
        if slow && tracer.may_log(now_ns) { tracer.ring.get(key) } else { None }
    }

    /// Makes it the current one of this thread, until the guard is dropped.
    pub fn enter(&self) -> Entered {
        Entered(CURRENT.replace(Some(self.clone())))
    }

    /// Runs `future` for this operation: it is the current one during each of its polls.
    pub async fn follow<F: Future>(self, future: F) -> F::Output {
        let mut future = pin!(future);
        std::future::poll_fn(move |cx| {
            let _entered = self.enter();
            future.as_mut().poll(cx)
        })
        .await
    }
}

/// The operation that this thread works for.
pub fn current() -> Option<Span> {
    let span = CURRENT.take();
    CURRENT.set(span.clone());
    span
}

/// Runs `look` with the operation that this thread works for, if there is one.
pub fn with_current(look: impl FnOnce(&Span)) {
    let span = CURRENT.take();
    if let Some(span) = &span {
        look(span);
    }
    CURRENT.set(span);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SLOW_NS_DEFAULT;

    #[test]
    fn the_current_operation_is_that_of_the_innermost_scope() {
        let tracer = Tracer::new(1, Registry::new());
        let (one, two) = (tracer.fresh(), tracer.fresh());
        assert!(one != two && !one.is_asked());
        let outer = tracer.begin(one, "put", None, 0);
        let inner = tracer.begin(two, "append", None, 1);
        assert!(current().is_none());
        {
            let _outer = outer.enter();
            let work = inner.clone().follow(async {
                with_current(|span| span.note(Step::Sent, 5, Fact::None));
                current().map(|span| span.trace())
            });
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let polled = pin!(work).poll(&mut cx);
            assert_eq!(polled, std::task::Poll::Ready(Some(two)));
            assert_eq!(current().map(|span| span.trace()), Some(one));
        }
        assert!(current().is_none());
        assert!(inner.end(9, Outcome::Done).is_none(), "it was fast");
        assert_eq!(tracer.ring().find(two, 1)[0].stages[0].at_ns, 5);
    }

    #[test]
    fn durations_and_failures_are_counted_by_name() {
        let tracer = Tracer::new(1, Registry::new());
        for outcome in [Outcome::Done, Outcome::Failed(base::Kind::Full)] {
            tracer.begin(tracer.fresh(), "append", None, 0).end(2_000, outcome);
        }
        tracer.set_on(false);
        tracer.begin(tracer.fresh(), "append", None, 0).end(2_000, Outcome::Done);
        let text = tracer.registry().expose();
        let has = |line: &str| assert!(text.lines().any(|one| one == line), "{line}: {text}");
        has("craton_operation_seconds_count{operation=\"append\"} 2");
        has("craton_operation_failures_total{operation=\"append\"} 1");
    }

    #[test]
    fn lines_about_slow_operations_are_bounded() {
        let tracer = Tracer::new(1, Registry::new());
        let slow = |at: u64| {
            let span = tracer.begin(tracer.fresh(), "append", None, at);
            span.end(at + SLOW_NS_DEFAULT, Outcome::Done).is_some()
        };
        let logged = (0..100).filter(|_| slow(0)).count();
        assert_eq!(logged, SLOW_LINES_MAX as usize);
        assert!(slow(3_000_000_000), "the next second has its own");
        assert_eq!(tracer.ring().slowest(1000).len(), 101, "all are kept");
    }
}

//! Runs scenarios: one seed, a range of seeds, a time budget.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use runtime::sim::Sim;

use crate::planted::{self, Acts, Planted};
use crate::scenario::{Scenario, policy};

/// Facts of a run without a violation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Equal for equal seeds of one build.
    pub trace_hash: u64,
    /// Polls, deliveries and disk operations.
    pub events: u64,
    /// The host that polled most tasks in a second of virtual time, and how many.
    pub busiest: (String, u64),
    /// Virtual time that passed.
    pub elapsed: Duration,
    /// Counts of each rare path.
    pub marks: BTreeMap<&'static str, u64>,
}

/// A seed whose run broke an invariant or did not end.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The seed.
    pub seed: u64,
    /// The violation.
    pub violation: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { scenario, seed, violation } = self;
        let first = violation.lines().next().unwrap_or_default();
        write!(
            f,
            "seed {seed}: {first}; replay: craton-sim replay --scenario {scenario} --seed {seed}"
        )
    }
}

impl std::error::Error for Failure {}

thread_local! {
    static RUNNING: RefCell<Option<Sim>> = const { RefCell::new(None) };
}

/// Virtual time of the run on this thread; for the times of log lines.
pub fn elapsed() -> Option<Duration> {
    RUNNING.with_borrow(|sim| sim.as_ref().map(Sim::elapsed))
}

/// Polls of one host's tasks in a second of virtual time, at most. The busiest loads need 90,000; a
/// chunkserver that sent heartbeats for ever needed 270,000.
const POLLS_PER_S_MAX: u64 = 150_000;

/// Runs one seed of a scenario. A panic (an assertion of the code or of a checker), a run in which all
/// tasks wait for ever, and a host that spins are failures.
pub fn run_seed(scenario: &Scenario, seed: u64) -> Result<Outcome, Failure> {
    let failure = |violation| Failure { scenario: scenario.name, seed, violation };
    let sim = Sim::new(seed);
    policy::begin(seed);
    RUNNING.set(Some(sim.clone()));
    codec::planted::plant(0); // The thread may have run another scenario.
    let run = catch_unwind(AssertUnwindSafe(|| sim.run((scenario.run)(sim.clone()))));
    let outcome = Outcome {
        trace_hash: sim.trace_hash(),
        events: sim.events(),
        busiest: sim.busiest(),
        elapsed: sim.elapsed(),
        marks: sim.marks(),
    };
    RUNNING.set(None);
    // The rest of the world goes before the next one starts.
    let closed = catch_unwind(AssertUnwindSafe(move || {
        sim.close();
        sim.left()
    }));
    match run {
        Err(panic) => Err(failure(panic_text(&*panic))),
        Ok(Err(stalled)) => Err(failure(stalled.to_string())),
        Ok(Ok(Err(violation))) => Err(failure(violation)),
        Ok(Ok(Ok(()))) => match closed {
            Err(panic) => Err(failure(format!("while closing: {}", panic_text(&*panic)))),
            Ok(left) if left.is_empty() => match &outcome.busiest {
                (host, polls) if *polls > POLLS_PER_S_MAX => {
                    Err(failure(format!("{host} spins: it polled tasks {polls} times in a second")))
                }
                _ => Ok(outcome),
            },
            Ok(left) => Err(failure(format!("never freed: something of {}", left.join(", ")))),
        },
    }
}

/// Seeds whose outcomes wait for those before them, at most: bounds what a slow seed holds up.
const AHEAD_MAX: u64 = 64;

/// State that the threads of [`run_seeds`] share.
struct Shared {
    next: u64,
    /// No seed from here on is wanted: the end, or one that failed.
    end: u64,
    /// The first seed that was not reported yet.
    reported: u64,
    results: BTreeMap<u64, Result<Outcome, Failure>>,
}

/// Runs a seed with a bug planted that acts one time in `one_in`. Answers also how often it could
/// have acted, and has.
pub fn run_planted(
    scenario: &Scenario,
    seed: u64,
    bug: Planted,
    one_in: u64,
) -> (Result<Outcome, Failure>, Acts) {
    planted::with((bug, one_in), seed, || run_seed(scenario, seed))
}

/// Runs `seeds` on `threads` threads until one fails; calls `each` after every success, in the
/// order of seeds. Answers how many succeeded. Each seed is a world of its own, so what is reported
/// does not depend on the number of threads.
pub fn run_seeds(
    scenario: &Scenario,
    seeds: Range<u64>,
    threads: usize,
    mut each: impl FnMut(u64, &Outcome),
) -> Result<u64, Failure> {
    let start = seeds.start;
    let shared = Mutex::new(Shared {
        next: start,
        end: seeds.end,
        reported: start,
        results: BTreeMap::new(),
    });
    let news = Condvar::new();
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let wait = |guard| news.wait(guard).unwrap_or_else(PoisonError::into_inner);
    let work = || {
        loop {
            let seed = {
                let mut shared = lock();
                while shared.next < shared.end && shared.next >= shared.reported + AHEAD_MAX {
                    shared = wait(shared);
                }
                if shared.next >= shared.end {
                    return;
                }
                shared.next += 1;
                shared.next - 1
            };
            let result = run_seed(scenario, seed);
            let mut shared = lock();
            if result.is_err() {
                shared.end = shared.end.min(seed + 1);
            }
            shared.results.insert(seed, result);
            news.notify_all();
        }
    };
    std::thread::scope(|scope| {
        (0..threads.max(1)).for_each(|_| {
            scope.spawn(work);
        });
        let mut guard = lock();
        while guard.reported < guard.end {
            let seed = guard.reported;
            let Some(result) = guard.results.remove(&seed) else {
                guard = wait(guard);
                continue;
            };
            guard.reported += 1;
            drop(guard);
            news.notify_all();
            each(seed, &result?);
            guard = lock();
        }
        Ok(guard.reported - start)
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

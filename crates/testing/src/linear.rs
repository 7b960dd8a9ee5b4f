//! Linearizability by Wing and Gong's search, with a memory of what was tried: is there one order of
//! all operations, each within its times, that one copy of the state could have gone through?

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

/// When an operation happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// When it began.
    pub start: Duration,
    /// When it ended; of one that need not have happened, the latest time at which it may.
    pub end: Duration,
    /// It happened: its client has an answer.
    pub happened: bool,
}

/// State of the search for an order.
struct Node<S> {
    state: S,
    /// One bit for each operation that has happened.
    done: Vec<u64>,
    /// Answered operations that have happened.
    count: usize,
    /// No operation below is left.
    first: usize,
}

impl<S> Node<S> {
    fn has(&self, index: usize) -> bool {
        self.done[index / 64] >> (index % 64) & 1 == 1
    }
}

/// States of the search at most: a history that needs more has too many operations at a time.
const STATES_MAX: usize = 1 << 20;

/// Operations that are printed around the first that cannot be explained.
const NEAR: usize = 8;

/// An error unless a history that begins with `initial` is linearizable. `next` is the state behind an
/// operation that happens in a state: none if its client saw something else; of one without an answer
/// whatever it does.
pub fn check<O: Debug, S: Clone + Ord + Debug>(
    history: Vec<O>,
    initial: S,
    times: impl Fn(&O) -> Times,
    next: impl Fn(&S, &O) -> Option<S>,
) -> Result<(), String> {
    let mut history: Vec<(Times, O)> = history.into_iter().map(|it| (times(&it), it)).collect();
    history.sort_by_key(|(times, _)| times.start);
    let answered = history.iter().filter(|(times, _)| times.happened).count();
    let done = vec![0; history.len().div_ceil(64)];
    let (mut seen, mut deepest) = (BTreeSet::new(), (0, initial.clone()));
    let mut stack = vec![Node { state: initial, done, count: 0, first: 0 }];
    while let Some(node) = stack.pop() {
        if node.count == answered {
            return Ok(());
        }
        if seen.len() > STATES_MAX {
            return Err("too much at a time to decide".to_owned());
        }
        if node.count > deepest.0 {
            deepest = (node.count, node.state.clone());
        }
        let first = (node.first..).find(|&index| !node.has(index)).expect("one is left");
        let open = || history.iter().enumerate().skip(first).filter(|(at, _)| !node.has(*at));
        // The next operation began before any that must still happen has ended.
        let ends = open().filter(|(_, (times, _))| times.happened).map(|(_, (times, _))| times.end);
        let limit = ends.min().unwrap_or(Duration::MAX);
        let mut candidates: Vec<_> =
            open().take_while(|(_, (times, _))| times.start <= limit).collect();
        // The last one pushed is tried first: what happened before what need not, in order of time.
        candidates
            .sort_by_key(|(index, (times, _))| (times.happened, Reverse((times.end, *index))));
        for (index, (times, operation)) in candidates {
            let Some(after) = next(&node.state, operation) else { continue };
            if !times.happened {
                if after == node.state {
                    continue; // As if it never happened.
                }
                // It happens now, so in its time: what began after its end has not happened.
                let later =
                    |(at, (it, _)): (usize, &(Times, O))| it.start > times.end && node.has(at);
                if history.iter().enumerate().rev().any(later) {
                    continue;
                }
            }
            let mut done = node.done.clone();
            done[index / 64] |= 1 << (index % 64);
            if seen.insert((after.clone(), done.clone())) {
                let count = node.count + usize::from(times.happened);
                stack.push(Node { state: after, done, count, first });
            }
        }
    }
    let near = history.iter().skip(deepest.0.saturating_sub(NEAR)).take(3 * NEAR);
    let near: Vec<String> = near.map(|(_, operation)| format!("{operation:?}")).collect();
    Err(format!(
        "not linearizable: no order explains more than {} of {answered} operations; then it has \
         {:?}; near there:\n{}",
        deepest.0,
        deepest.1,
        near.join("\n")
    ))
}

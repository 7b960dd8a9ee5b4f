//! Judges what clients saw: is there one order of all operations, within their times, that a map
//! from a few names could have gone through?

use std::collections::BTreeSet;
use std::time::Duration;

/// A value of each name: the file is known by the time of its making, which its maker chose.
pub type Names = Vec<Option<u64>>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// Made a file, which must not have been there.
    Create { name: usize, value: u64 },
    /// Removed a name.
    Unlink { name: usize },
    /// Moved a name, replacing what was there.
    Rename { from: usize, to: usize },
    /// Gave the file `value` a further name.
    Link { name: usize, value: u64 },
    /// Looked.
    Lookup { name: usize },
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    Done,
    Exists,
    NotFound,
    /// Of a look-up.
    Saw(Option<u64>),
    /// Nobody knows whether it happened.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub did: Did,
    pub ended: Ended,
    pub start: Duration,
    pub end: Duration,
}

/// The names after `did`, and what it should have told.
fn execute(names: &Names, did: Did) -> (Names, Ended) {
    let mut after = names.clone();
    let ended = match did {
        Did::Create { name, .. } | Did::Link { name, .. } if names[name].is_some() => Ended::Exists,
        Did::Create { name, value } | Did::Link { name, value } => {
            after[name] = Some(value);
            Ended::Done
        }
        Did::Unlink { name } if names[name].is_none() => Ended::NotFound,
        Did::Unlink { name } => {
            after[name] = None;
            Ended::Done
        }
        Did::Rename { from, .. } if names[from].is_none() => Ended::NotFound,
        Did::Rename { from, to } if names[from] == names[to] => Ended::Done,
        Did::Rename { from, to } => {
            after[to] = after[from].take();
            Ended::Done
        }
        Did::Lookup { name } => Ended::Saw(names[name]),
    };
    (after, ended)
}

/// What may follow `names` when the operation happens now.
fn next(names: &Names, operation: &Operation) -> Option<Names> {
    let (after, ended) = execute(names, operation.did);
    match (operation.did, operation.ended) {
        (_, Ended::Unknown) => Some(after),
        // The file of a link may be gone: its names are.
        (Did::Link { value, .. }, Ended::NotFound) => {
            (!names.contains(&Some(value))).then(|| names.clone())
        }
        (_, known) if known == ended => Some(after),
        _ => None,
    }
}

/// Panics unless the history is linearizable. Wing and Gong's search with a memory.
pub fn check(mut history: Vec<Operation>, names: usize) {
    history.sort_by_key(|operation| operation.start);
    let known = |operation: &Operation| operation.ended != Ended::Unknown;
    let answered = history.iter().filter(|operation| known(operation)).count();
    let mut seen = BTreeSet::new();
    let mut deepest = 0;
    let mut stack = vec![(vec![None; names], vec![0u64; history.len().div_ceil(64)], 0, 0)];
    while let Some((state, done, count, first)) = stack.pop() {
        if count == answered {
            return;
        }
        deepest = deepest.max(count);
        let is_done = |index: usize| done[index / 64] >> (index % 64) & 1 == 1;
        let first = (first..).find(|&index| !is_done(index)).expect("one is left");
        let mut limit = Duration::MAX;
        for (index, operation) in history.iter().enumerate().skip(first) {
            if operation.start > limit {
                break;
            }
            if is_done(index) {
                continue;
            }
            if known(operation) {
                limit = limit.min(operation.end);
            }
        }
        // The last one pushed is tried first: what is known before what is not, in order of time.
        let candidates = history.iter().enumerate().skip(first);
        let candidates = candidates.take_while(|(_, operation)| operation.start <= limit);
        let mut candidates: Vec<_> = candidates.filter(|(index, _)| !is_done(*index)).collect();
        candidates.sort_by_key(|(index, it)| (known(it), std::cmp::Reverse((it.end, *index))));
        for (index, operation) in candidates {
            let Some(after) = next(&state, operation) else { continue };
            if !known(operation) && after == state {
                continue; // As if it never happened.
            }
            let mut done = done.clone();
            done[index / 64] |= 1 << (index % 64);
            if seen.insert((after.clone(), done.clone())) {
                stack.push((after, done, count + usize::from(known(operation)), first));
            }
        }
    }
    for operation in history.iter().skip(deepest.saturating_sub(20)).take(60) {
        println!("{operation:?}");
    }
    panic!("the history is not linearizable: stuck after {deepest} of {answered}");
}

#[test]
fn the_checker_sees_a_half_rename() {
    let at = |start, end, did, ended| Operation {
        did,
        ended,
        start: Duration::from_secs(start),
        end: Duration::from_secs(end),
    };
    let (create, rename) = (Did::Create { name: 0, value: 7 }, Did::Rename { from: 0, to: 1 });
    let look = |name| Did::Lookup { name };
    let history = |first, second| {
        vec![
            at(0, 1, create, Ended::Done),
            at(2, 9, rename, Ended::Done),
            at(3, 4, look(0), Ended::Saw(first)),
            at(5, 6, look(1), Ended::Saw(second)),
        ]
    };
    check(history(Some(7), Some(7)), 2);
    check(history(Some(7), None), 2);
    check(history(None, Some(7)), 2);
    assert!(std::panic::catch_unwind(|| check(history(None, None), 2)).is_err());
}

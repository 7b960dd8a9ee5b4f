//! Linearizability of names, judged from outside (invariant 8): is there one order of all
//! operations, within their times, that a map from a few names could have gone through?

use std::collections::BTreeSet;
use std::time::Duration;

/// Target of each name: a file, known by the number that its maker gave it.
pub type Names = Vec<Option<u64>>;

/// Operation of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// Made a file where none was to be.
    Create {
        /// Index of the name.
        name: usize,
        /// The file's number.
        value: u64,
    },
    /// Removed a name.
    Unlink {
        /// Index of the name.
        name: usize,
    },
    /// Moved a name, replacing what was there.
    Rename {
        /// Index of the name moved.
        from: usize,
        /// Index of where it is moved to.
        to: usize,
    },
    /// Gave a file a further name.
    Link {
        /// Index of the new name.
        name: usize,
        /// The file's number.
        value: u64,
    },
    /// Looked.
    Lookup {
        /// Index of the name.
        name: usize,
    },
}

/// End of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperationEnd {
    /// It succeeded.
    Done,
    /// The name is taken.
    Exists,
    /// Nothing has the name; of a link: the file is gone.
    NotFound,
    /// Result of a look-up.
    Saw(Option<u64>),
    /// The client does not know whether it happened.
    Unknown,
}

/// One operation of one client.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The operation.
    pub did: Did,
    /// Its end.
    pub ended: OperationEnd,
    /// When it began.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
}

/// The names after `did`, and the answer that it should have had.
fn execute(names: &Names, did: Did) -> (Names, OperationEnd) {
    let mut after = names.clone();
    let ended = match did {
        Did::Create { name, .. } | Did::Link { name, .. } if names[name].is_some() => {
            OperationEnd::Exists
        }
        Did::Create { name, value } | Did::Link { name, value } => {
            after[name] = Some(value);
            OperationEnd::Done
        }
        Did::Unlink { name } if names[name].is_none() => OperationEnd::NotFound,
        Did::Unlink { name } => {
            after[name] = None;
            OperationEnd::Done
        }
        Did::Rename { from, .. } if names[from].is_none() => OperationEnd::NotFound,
        Did::Rename { from, to } if names[from] == names[to] => OperationEnd::Done,
        Did::Rename { from, to } => {
            after[to] = after[from].take();
            OperationEnd::Done
        }
        Did::Lookup { name } => OperationEnd::Saw(names[name]),
    };
    (after, ended)
}

/// Names after `names` when the operation happens now.
fn next(names: &Names, operation: &Operation) -> Option<Names> {
    let (after, ended) = execute(names, operation.did);
    match (operation.did, operation.ended) {
        (_, OperationEnd::Unknown) => Some(after),
        // The file of a link may be gone: its names are.
        (Did::Link { value, .. }, OperationEnd::NotFound) => {
            (!names.contains(&Some(value))).then(|| names.clone())
        }
        (_, known) if known == ended => Some(after),
        _ => None,
    }
}

/// State of the search for an order.
struct Node {
    names: Names,
    /// One bit for each operation that has happened.
    done: Vec<u64>,
    /// Answered operations that have happened.
    count: usize,
    /// No operation below has not happened.
    first: usize,
}

impl Node {
    fn has(&self, index: usize) -> bool {
        self.done[index / 64] >> (index % 64) & 1 == 1
    }
}

/// An error unless the history of `names` names, all free at first, is linearizable: Wing and
/// Gong's search, with a memory of what was tried.
pub fn check(mut history: Vec<Operation>, names: usize) -> Result<(), String> {
    history.sort_by_key(|operation| operation.start);
    let known = |operation: &Operation| operation.ended != OperationEnd::Unknown;
    let answered = history.iter().filter(|operation| known(operation)).count();
    let done = vec![0; history.len().div_ceil(64)];
    let mut seen = BTreeSet::new();
    let mut deepest = 0;
    let mut stack = vec![Node { names: vec![None; names], done, count: 0, first: 0 }];
    while let Some(node) = stack.pop() {
        if node.count == answered {
            return Ok(());
        }
        deepest = deepest.max(node.count);
        let first = (node.first..).find(|&index| !node.has(index)).expect("one is left");
        let open = || history.iter().enumerate().skip(first).filter(|(at, _)| !node.has(*at));
        // The next operation began before any that has not happened yet has ended.
        let ends = open().filter(|(_, operation)| known(operation)).map(|(_, it)| it.end);
        let limit = ends.min().unwrap_or(Duration::MAX);
        let mut candidates: Vec<_> = open().take_while(|(_, it)| it.start <= limit).collect();
        // The last one pushed is tried first: what is known before what is not, in order of time.
        candidates.sort_by_key(|(index, it)| (known(it), std::cmp::Reverse((it.end, *index))));
        for (index, operation) in candidates {
            let Some(after) = next(&node.names, operation) else { continue };
            if !known(operation) && after == node.names {
                continue; // As if it never happened.
            }
            let mut done = node.done.clone();
            done[index / 64] |= 1 << (index % 64);
            if seen.insert((after.clone(), done.clone())) {
                let count = node.count + usize::from(known(operation));
                stack.push(Node { names: after, done, count, first });
            }
        }
    }
    let near = history.iter().skip(deepest.saturating_sub(6)).take(16);
    let near: Vec<String> = near.map(|operation| format!("{operation:?}")).collect();
    Err(format!(
        "names are not linearizable: no order explains more than {deepest} of {answered} \
         operations; near there:\n{}",
        near.join("\n")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: u64, end: u64, did: Did, ended: OperationEnd) -> Operation {
        let (start, end) = (Duration::from_secs(start), Duration::from_secs(end));
        Operation { did, ended, start, end }
    }

    #[test]
    fn partial_rename_is_found() {
        let (create, rename) = (Did::Create { name: 0, value: 7 }, Did::Rename { from: 0, to: 1 });
        let look = |name| Did::Lookup { name };
        let history = |first, second| {
            vec![
                at(0, 1, create, OperationEnd::Done),
                at(2, 9, rename, OperationEnd::Done),
                at(3, 4, look(0), OperationEnd::Saw(first)),
                at(5, 6, look(1), OperationEnd::Saw(second)),
            ]
        };
        assert_eq!(check(history(Some(7), Some(7)), 2), Ok(()));
        assert_eq!(check(history(Some(7), None), 2), Ok(()));
        assert_eq!(check(history(None, Some(7)), 2), Ok(()));
        assert!(check(history(None, None), 2).is_err());
    }

    #[test]
    fn an_unknown_outcome_may_come_late_or_never() {
        let history = |seen| {
            vec![
                at(0, 1, Did::Create { name: 0, value: 3 }, OperationEnd::Unknown),
                at(2, 3, Did::Lookup { name: 0 }, OperationEnd::Saw(None)),
                at(4, 5, Did::Lookup { name: 0 }, OperationEnd::Saw(seen)),
            ]
        };
        assert_eq!(check(history(None), 1), Ok(()));
        assert_eq!(check(history(Some(3)), 1), Ok(()));
        assert!(check(history(Some(4)), 1).is_err());
    }
}

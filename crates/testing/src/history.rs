//! Linearizability of names, judged from outside (invariant 8): is there one order of all
//! operations, within their times, that a tree of a few names could have gone through?

use std::time::Duration;

use crate::linear::{self, Times};

/// Target of each name: a file or directory, known by the number that its maker gave it.
pub type Names = Vec<Option<u64>>;

/// Numbers from here on are of directories.
pub const DIR: u64 = 1 << 32;

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
    /// Made a directory where none was to be.
    Mkdir {
        /// Index of the name.
        name: usize,
        /// The directory's number.
        value: u64,
    },
    /// Removed a name of a file.
    Unlink {
        /// Index of the name.
        name: usize,
    },
    /// Removed an empty directory.
    Rmdir {
        /// Index of the name.
        name: usize,
    },
    /// Moved a name, replacing a file or an empty directory that was there.
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
    /// Nothing has the name, or its directory is gone; of a link: the file is gone.
    NotFound,
    /// A directory has names, or would be moved into itself, or the other kind of target is there.
    Refused,
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

/// The directory of each name, where it is one that operations make.
type Parents = [Option<u64>];

fn is_dir(target: Option<u64>) -> bool {
    target.is_some_and(|value| value >= DIR)
}

/// Whether the directory of a name is not there.
fn is_gone(names: &Names, parents: &Parents, name: usize) -> bool {
    parents[name].is_some_and(|dir| !names.contains(&Some(dir)))
}

fn is_empty(names: &Names, parents: &Parents, dir: Option<u64>) -> bool {
    !(0..names.len()).any(|name| parents[name] == dir && names[name].is_some())
}

/// Whether a name is in a directory, or in one below it.
fn is_within(names: &Names, parents: &Parents, name: usize, dir: Option<u64>) -> bool {
    let mut parent = parents[name];
    while parent.is_some() && parent != dir {
        let above = names.iter().position(|target| *target == parent);
        parent = above.and_then(|above| parents[above]);
    }
    parent.is_some()
}

/// The names after `did`, and the answer that it should have had.
fn execute(names: &Names, parents: &Parents, did: Did) -> (Names, OperationEnd) {
    let mut after = names.clone();
    let ended = match did {
        Did::Create { name, value } | Did::Link { name, value } | Did::Mkdir { name, value } => {
            if is_gone(names, parents, name) {
                OperationEnd::NotFound
            } else if names[name].is_some() {
                OperationEnd::Exists
            } else {
                after[name] = Some(value);
                OperationEnd::Done
            }
        }
        Did::Unlink { name } | Did::Rmdir { name } if names[name].is_none() => {
            OperationEnd::NotFound
        }
        Did::Unlink { name } if is_dir(names[name]) => OperationEnd::Refused,
        Did::Rmdir { name } if !is_dir(names[name]) || !is_empty(names, parents, names[name]) => {
            OperationEnd::Refused
        }
        Did::Unlink { name } | Did::Rmdir { name } => {
            after[name] = None;
            OperationEnd::Done
        }
        Did::Rename { from, to } => match (names[from], names[to]) {
            (None, _) => OperationEnd::NotFound,
            (moved, there) if moved == there => OperationEnd::Done,
            _ if is_gone(names, parents, to) => OperationEnd::NotFound,
            (moved, Some(there)) if is_dir(moved) != is_dir(Some(there)) => OperationEnd::Refused,
            (_, there) if is_dir(there) && !is_empty(names, parents, there) => {
                OperationEnd::Refused
            }
            (moved, _) if is_dir(moved) && is_within(names, parents, to, moved) => {
                OperationEnd::Refused
            }
            _ => {
                after[to] = after[from].take();
                OperationEnd::Done
            }
        },
        Did::Lookup { name } => OperationEnd::Saw(names[name]),
    };
    (after, ended)
}

/// Names after `names` when the operation happens now.
fn next(names: &Names, parents: &Parents, operation: &Operation) -> Option<Names> {
    let (after, ended) = execute(names, parents, operation.did);
    match (operation.did, operation.ended) {
        (_, OperationEnd::Unknown) => Some(after),
        // The file of a link may be gone: its names are.
        (Did::Link { value, .. }, OperationEnd::NotFound) if !names.contains(&Some(value)) => {
            Some(names.clone())
        }
        (_, known) if known == ended => Some(after),
        _ => None,
    }
}

/// An error unless the history of `names` names, all free at first, in directories that stay, is
/// linearizable.
pub fn check(history: Vec<Operation>, names: usize) -> Result<(), String> {
    check_tree(history, &vec![None; names])
}

/// The same of names of which some are in directories that operations make: the number of each one's.
pub fn check_tree(history: Vec<Operation>, parents: &[Option<u64>]) -> Result<(), String> {
    let times = |operation: &Operation| {
        let happened = operation.ended != OperationEnd::Unknown;
        // What a client does not know may happen at any time.
        let end = if happened { operation.end } else { Duration::MAX };
        Times { start: operation.start, end, happened }
    };
    let all_free = vec![None; parents.len()];
    linear::check(history, all_free, times, |names, operation| next(names, parents, operation))
        .map_err(|what| format!("names: {what}"))
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

    #[test]
    fn a_directory_goes_only_when_it_is_empty_and_takes_its_names_along() {
        let parents = [None, None, Some(DIR), Some(DIR + 1)];
        let (mkdir, create) =
            (Did::Mkdir { name: 0, value: DIR }, Did::Create { name: 2, value: 5 });
        let history = |did, ended, seen| {
            vec![
                at(0, 1, mkdir, OperationEnd::Done),
                at(2, 3, create, OperationEnd::Done),
                at(4, 5, did, ended),
                at(6, 7, Did::Lookup { name: 2 }, OperationEnd::Saw(seen)),
            ]
        };
        let (rmdir, rename) = (Did::Rmdir { name: 0 }, Did::Rename { from: 0, to: 1 });
        let check = |history| check_tree(history, &parents);
        assert_eq!(check(history(rmdir, OperationEnd::Refused, Some(5))), Ok(()));
        assert!(check(history(rmdir, OperationEnd::Done, None)).is_err());
        assert_eq!(check(history(rename, OperationEnd::Done, Some(5))), Ok(()));
        assert!(check(history(rename, OperationEnd::Done, None)).is_err());
        let into_itself = Did::Rename { from: 0, to: 2 };
        assert!(check(history(into_itself, OperationEnd::Done, None)).is_err());
        let elsewhere = Did::Create { name: 3, value: 6 };
        assert_eq!(check(history(elsewhere, OperationEnd::NotFound, Some(5))), Ok(()));
        assert!(check(history(elsewhere, OperationEnd::Done, Some(5))).is_err());
    }
}

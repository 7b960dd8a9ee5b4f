//! The names of a simulated host's files and directories. Making, renaming and removing one is
//! volatile until its directory is synced: a power cut undoes any of the changes since then, each
//! for itself. A rename is atomic.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A change of names that is not durable yet.
enum Change<N> {
    MakeDir(PathBuf),
    Create(PathBuf, Rc<N>),
    Rename(PathBuf, PathBuf, Rc<N>),
    Remove(PathBuf),
}

impl<N> Change<N> {
    /// Whether syncing `dir` makes it durable.
    fn is_in(&self, dir: &Path) -> bool {
        match self {
            Change::MakeDir(path) | Change::Create(path, _) | Change::Remove(path) => {
                path.parent() == Some(dir)
            }
            Change::Rename(from, to, _) => from.parent() == Some(dir) || to.parent() == Some(dir),
        }
    }
}

/// Names as they are at one moment.
struct Set<N> {
    files: BTreeMap<PathBuf, Rc<N>>,
    dirs: BTreeSet<PathBuf>,
}

impl<N> Set<N> {
    fn apply(&mut self, change: &Change<N>) {
        match change {
            Change::MakeDir(path) => drop(self.dirs.insert(path.clone())),
            Change::Create(path, node) => drop(self.files.insert(path.clone(), node.clone())),
            Change::Rename(from, to, node) => {
                self.files.remove(from);
                self.files.insert(to.clone(), node.clone());
            }
            Change::Remove(path) => drop(self.files.remove(path)),
        }
    }
}

/// All names of a host.
pub(super) struct Names<N> {
    /// Names that programs see.
    view: Set<N>,
    /// Names that survive a power cut.
    durable: Set<N>,
    /// Changes from the durable names to the visible ones, in order.
    changes: Vec<Change<N>>,
}

impl<N> Default for Names<N> {
    fn default() -> Names<N> {
        let root = || BTreeSet::from([PathBuf::from("/")]);
        let set = || Set { files: BTreeMap::new(), dirs: root() };
        Names { view: set(), durable: set(), changes: Vec::new() }
    }
}

impl<N> Names<N> {
    fn change(&mut self, change: Change<N>) {
        self.view.apply(&change);
        self.changes.push(change);
    }

    pub(super) fn get(&self, path: &Path) -> Option<Rc<N>> {
        self.view.files.get(path).cloned()
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (&PathBuf, &Rc<N>)> {
        self.view.files.iter()
    }

    pub(super) fn dirs(&self) -> impl Iterator<Item = &PathBuf> {
        self.view.dirs.iter()
    }

    pub(super) fn has_dir(&self, path: &Path) -> bool {
        self.view.dirs.contains(path)
    }

    /// Every file that has a name, or had one that is not durably gone.
    pub(super) fn nodes(&self) -> Vec<Rc<N>> {
        let changed = self.changes.iter().filter_map(|change| match change {
            Change::Create(_, node) | Change::Rename(_, _, node) => Some(node),
            Change::MakeDir(_) | Change::Remove(_) => None,
        });
        let named = self.view.files.values().chain(self.durable.files.values());
        named.chain(changed).cloned().collect()
    }

    /// Makes a directory and its parents; the lowest of them that was there.
    pub(super) fn make_dirs(&mut self, path: &Path) -> PathBuf {
        let mut absent: Vec<_> = path.ancestors().take_while(|dir| !self.has_dir(dir)).collect();
        let there = path.ancestors().nth(absent.len()).unwrap_or(Path::new("/")).to_owned();
        while let Some(dir) = absent.pop() {
            self.change(Change::MakeDir(dir.to_owned()));
        }
        there
    }

    pub(super) fn create(&mut self, path: &Path, node: Rc<N>) {
        self.change(Change::Create(path.to_owned(), node));
    }

    /// The file that was replaced; an error when there is none to rename.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Result<Option<Rc<N>>, ()> {
        let node = self.get(from).ok_or(())?;
        let replaced = if from == to { None } else { self.get(to) };
        self.change(Change::Rename(from.to_owned(), to.to_owned(), node));
        Ok(replaced)
    }

    pub(super) fn remove(&mut self, path: &Path) -> Option<Rc<N>> {
        let node = self.get(path)?;
        self.change(Change::Remove(path.to_owned()));
        Some(node)
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) {
        let changes = std::mem::take(&mut self.changes);
        let (synced, rest): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| change.is_in(dir));
        self.changes = rest;
        synced.iter().for_each(|change| self.durable.apply(change));
    }

    /// A power cut: each change that is not durable stays when `stays` says so. True when one
    /// was undone.
    pub(super) fn power_cut(&mut self, mut stays: impl FnMut() -> bool) -> bool {
        let mut undone = false;
        for change in std::mem::take(&mut self.changes) {
            if stays() {
                self.durable.apply(&change);
            } else {
                undone = true;
            }
        }
        // Entries of a directory that is gone are gone too.
        let dirs = self.durable.dirs.clone();
        let reached = |path: &Path| path.ancestors().skip(1).all(|dir| dirs.contains(dir));
        self.durable.dirs.retain(|dir| reached(dir));
        let dirs = self.durable.dirs.clone();
        let reached = |path: &Path| path.parent().is_some_and(|dir| dirs.contains(dir));
        self.durable.files.retain(|path, _| reached(path));
        self.view.dirs.clone_from(&self.durable.dirs);
        self.view.files.clone_from(&self.durable.files);
        undone
    }

    /// Removes every file below `prefix` from the medium.
    pub(super) fn wipe(&mut self, prefix: &Path) {
        let below = |path: &PathBuf| path.starts_with(prefix);
        self.changes.retain(|change| match change {
            Change::Create(path, _) | Change::Rename(_, path, _) | Change::Remove(path) => {
                !below(path)
            }
            Change::MakeDir(_) => true,
        });
        self.view.files.retain(|path, _| !below(path));
        self.durable.files.retain(|path, _| !below(path));
    }
}

//! [`Layout`]: what a table consists of, as its manifest says. Pure.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::format::edit::{Change, RunInfo};
use crate::types::{FileNo, Name, Seq};

/// Logs and runs of a table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Layout {
    /// The highest owner so far ([`crate::Options::owner`]).
    pub(crate) owner: u64,
    /// The instance that writes; 0 before the first.
    pub(crate) generation: u32,
    pub(crate) logs: BTreeSet<FileNo>,
    /// Newest first; their ranges of sequences are disjoint.
    pub(crate) runs: Vec<Rc<RunInfo>>,
}

impl Layout {
    /// Makes a change; the error names the fact that does not fit.
    pub(crate) fn apply(&mut self, change: Change) -> Result<(), &'static str> {
        match change {
            Change::Owner { generation } => {
                if self.generation != 0 || generation == 0 {
                    return Err("a manifest names two owners");
                }
                self.generation = generation;
            }
            Change::AddLog(file) => {
                if !self.logs.insert(file) {
                    return Err("a log is added twice");
                }
            }
            Change::DropLog(file) => {
                if !self.logs.remove(&file) {
                    return Err("a log is dropped that is not there");
                }
            }
            Change::AddRun(run) => {
                let place = self.runs.partition_point(|other| other.first > run.first);
                let newer = place.checked_sub(1).map(|newer| &self.runs[newer]);
                let older = self.runs.get(place);
                if newer.is_some_and(|newer| newer.first <= run.last)
                    || older.is_some_and(|older| older.last >= run.first)
                {
                    return Err("the sequences of two runs overlap");
                }
                self.runs.insert(place, Rc::new(run));
            }
            Change::DropRun(first) => {
                let place = self.runs.iter().position(|run| run.first == first);
                let place = place.ok_or("a run is dropped that is not there")?;
                self.runs.remove(place);
            }
        }
        Ok(())
    }

    /// The changes that make this layout out of nothing.
    pub(crate) fn snapshot(&self) -> Vec<Change> {
        let owner = Change::Owner { generation: self.generation };
        let logs = self.logs.iter().map(|&file| Change::AddLog(file));
        let runs = self.runs.iter().map(|run| Change::AddRun((**run).clone()));
        std::iter::once(owner).chain(logs).chain(runs).collect()
    }

    /// Sorted files.
    pub(crate) fn files(&self) -> impl Iterator<Item = FileNo> {
        self.runs.iter().flat_map(|run| run.files.iter().map(|file| file.file))
    }

    /// The last change that is in a run.
    pub(crate) fn flushed(&self) -> Seq {
        self.runs.first().map_or(Seq::ZERO, |run| run.last)
    }

    /// Names of all its logs and sorted files.
    pub(crate) fn names(&self) -> BTreeSet<Name> {
        let logs = self.logs.iter().map(|&file| Name::Log(file));
        logs.chain(self.files().map(Name::Sorted)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, last: u64) -> Change {
        Change::AddRun(RunInfo { first: Seq::new(first), last: Seq::new(last), files: vec![] })
    }

    #[test]
    fn runs_stay_in_order_and_apart() {
        let mut layout = Layout::default();
        let log = FileNo::new(1, 1);
        for good in [Change::Owner { generation: 1 }, Change::AddLog(log), run(5, 9), run(1, 4)] {
            layout.apply(good).unwrap();
        }
        assert_eq!(layout.flushed(), Seq::new(9));
        let before = layout.clone();
        for bad in [
            Change::Owner { generation: 2 },
            Change::AddLog(log),
            Change::DropLog(FileNo::new(1, 2)),
            run(9, 10),
            run(4, 4),
            run(5, 5),
            run(1, 20),
            Change::DropRun(Seq::new(2)),
        ] {
            let mut layout = before.clone();
            assert!(layout.apply(bad.clone()).is_err(), "{bad:?}");
        }
        layout.apply(Change::DropRun(Seq::new(5))).unwrap();
        layout.apply(run(10, 11)).unwrap();
        let mut again = Layout::default();
        layout.snapshot().into_iter().for_each(|change| again.apply(change).unwrap());
        assert_eq!(again, layout);
    }
}

//! [`Layout`]: what a table consists of, as its manifest says. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::bounds::{Bounds, BoundsSet};
use crate::format::edit::{Change, DataLog, FileInfo, RunInfo};
use crate::format::frame::{FILE_HEAD, Form};
use crate::types::{FileNo, Name, Seq};

/// Logs and runs of a table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Layout {
    /// The highest owner so far ([`crate::Options::owner`]).
    pub(crate) owner: u64,
    /// The instance that writes; 0 before the first.
    pub(crate) generation: u32,
    /// Whether logs may hold data.
    pub(crate) form: Form,
    /// Logs to be replayed, each up to where its changes are in runs.
    pub(crate) logs: BTreeMap<FileNo, DataLog>,
    /// Logs that are there for their data alone.
    pub(crate) kept: BTreeMap<FileNo, DataLog>,
    /// Newest first; their ranges of sequences are disjoint.
    pub(crate) runs: Vec<Rc<RunInfo>>,
    /// Keys that logs and files show, where these are not all of theirs.
    pub(crate) bounds: BoundsSet,
}

/// A log of which nothing is in runs.
fn whole(file: FileNo) -> DataLog {
    DataLog { file, len: FILE_HEAD as u64, data: 0 }
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
                if self.kept.contains_key(&file) || self.logs.insert(file, whole(file)).is_some() {
                    return Err("a log is added twice");
                }
            }
            Change::DropLog(file) => {
                if self.logs.remove(&file).or_else(|| self.kept.remove(&file)).is_none() {
                    return Err("a log is dropped that is not there");
                }
                self.bounds.forget_log(file);
            }
            Change::ReplayLog { .. } | Change::KeepLog { .. } if self.form == Form::Plain => {
                return Err("a log has data in a table without");
            }
            Change::ReplayLog { log } => match self.logs.get_mut(&log.file) {
                Some(known) if known.len <= log.len && known.data <= log.data => *known = log,
                _ => return Err("a log is replayed that is not there, or was further"),
            },
            Change::KeepLog { log } => {
                let known = self.logs.remove(&log.file).unwrap_or_else(|| whole(log.file));
                let goes_back = known.len > log.len || known.data > log.data;
                if goes_back || self.kept.insert(log.file, log).is_some() {
                    return Err("a log is kept twice, or was longer");
                }
            }
            Change::AddBounds { number, bounds } => self.bounds.add(number, bounds)?,
            Change::BoundLog { file, bounds } => {
                if !self.logs.contains_key(&file) && !self.kept.contains_key(&file) {
                    return Err("a log has bounds that is not there");
                }
                self.bounds.bound_log(file, bounds)?;
            }
            Change::AddRun(run) => {
                if !run.files.iter().all(|file| self.bounds.knows(file.bounds)) {
                    return Err("a file has bounds that are not there");
                }
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
        let used = self.bounds_used();
        let sets = self.bounds.sets().filter(|(number, _)| used.contains(number));
        let sets = sets.map(|(number, set)| Change::AddBounds { number, bounds: (**set).clone() });
        let logs = self.logs.iter().flat_map(|(&file, log)| {
            let replay = (*log != whole(file)).then_some(Change::ReplayLog { log: *log });
            std::iter::once(Change::AddLog(file)).chain(replay)
        });
        let kept = self.kept.values().map(|log| Change::KeepLog { log: *log });
        let bound = self.all_logs().filter_map(|file| {
            let bounds = self.bounds.number_of_log(file);
            (bounds != 0).then_some(Change::BoundLog { file, bounds })
        });
        let runs = self.runs.iter().map(|run| Change::AddRun((**run).clone()));
        let changes = std::iter::once(owner).chain(sets).chain(logs).chain(kept);
        changes.chain(bound).chain(runs).collect()
    }

    /// Numbers of bounds that references name.
    fn bounds_used(&self) -> BTreeSet<u32> {
        let logs = self.all_logs().map(|log| self.bounds.number_of_log(log));
        let files = self.runs.iter().flat_map(|run| run.files.iter().map(|file| file.bounds));
        logs.chain(files).filter(|&number| number != 0).collect()
    }

    /// True when a log or file does not show all of its keys.
    pub(crate) fn is_bounded(&self) -> bool {
        !self.bounds_used().is_empty()
    }

    fn all_logs(&self) -> impl Iterator<Item = FileNo> {
        self.logs.keys().chain(self.kept.keys()).copied()
    }

    /// What a child has of it that shows the keys of `shows`: of the same files, those with such keys.
    /// The error names the bound that it exceeds.
    pub(crate) fn clipped(&self, shows: &Bounds) -> Result<Layout, &'static str> {
        let mut bounds = BoundsSet::default();
        let mut child = Layout { runs: Vec::new(), bounds: BoundsSet::default(), ..self.clone() };
        let both = |number: u32| match self.bounds.get(number) {
            Some(set) => set.intersect(shows),
            None => shows.clone(),
        };
        for log in self.all_logs() {
            let number = bounds.number_for(both(self.bounds.number_of_log(log)))?;
            bounds.bound_log(log, number)?;
        }
        for run in &self.runs {
            let mut files = Vec::new();
            for file in &run.files {
                let FileInfo { first_key, last_key, .. } = file;
                if file.bounds == 0 && shows.covers(first_key, last_key) {
                    files.push(file.clone());
                    continue;
                }
                let shown = both(file.bounds);
                if shown.meets(first_key, last_key) {
                    let bounds = bounds.number_for(shown)?;
                    files.push(FileInfo { bounds, ..file.clone() });
                }
            }
            // A run of which nothing is shown names its sequences still.
            child.runs.push(Rc::new(RunInfo { files, ..**run }));
        }
        child.bounds = bounds;
        Ok(child)
    }

    /// Sorted files.
    pub(crate) fn files(&self) -> impl Iterator<Item = FileNo> {
        self.runs.iter().flat_map(|run| run.files.iter().map(|file| file.file))
    }

    /// The last change that is in a run.
    pub(crate) fn flushed(&self) -> Seq {
        self.runs.first().map_or(Seq::ZERO, |run| run.last)
    }

    /// Names of the files that hold its keys: logs to be replayed, and sorted files.
    pub(crate) fn names(&self) -> BTreeSet<Name> {
        let logs = self.logs.keys().map(|&file| Name::Log(file));
        logs.chain(self.files().map(Name::Sorted)).collect()
    }

    /// Names of logs that are there for their data.
    pub(crate) fn kept_names(&self) -> impl Iterator<Item = Name> {
        self.kept.keys().map(|&file| Name::Log(file))
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

    #[test]
    fn logs_stay_for_their_data_and_are_replayed_from_where_runs_end() {
        let mut layout = Layout { form: Form::WithData, ..Layout::default() };
        let (one, two) = (FileNo::new(1, 1), FileNo::new(1, 2));
        let log = |file, len, data| DataLog { file, len, data };
        for good in [
            Change::Owner { generation: 1 },
            Change::AddLog(one),
            Change::AddLog(two),
            Change::ReplayLog { log: log(one, 900, 800) },
            Change::KeepLog { log: log(one, 1000, 880) },
            Change::ReplayLog { log: log(two, 500, 0) },
        ] {
            layout.apply(good).unwrap();
        }
        for bad in [
            Change::AddLog(one),
            Change::KeepLog { log: log(one, 1000, 880) },
            Change::KeepLog { log: log(two, 499, 0) },
            Change::ReplayLog { log: log(one, 2000, 900) },
            Change::ReplayLog { log: log(two, 499, 0) },
        ] {
            assert!(layout.clone().apply(bad.clone()).is_err(), "{bad:?}");
        }
        let mut again = Layout { form: Form::WithData, ..Layout::default() };
        layout.snapshot().into_iter().for_each(|change| again.apply(change).unwrap());
        assert_eq!(again, layout);
        assert_eq!(layout.names(), BTreeSet::from([Name::Log(two)]));
        layout.apply(Change::DropLog(one)).unwrap();
        assert_eq!(layout.kept_names().count(), 0);
        let mut plain = Layout { generation: 1, ..Layout::default() };
        assert!(plain.apply(Change::KeepLog { log: log(one, 1000, 880) }).is_err());
    }

    #[test]
    fn child_has_what_it_shows_within_the_bounds_of_its_parent() {
        use crate::range::Range;
        let file = |counter: u32, first: &str, last: &str| FileInfo {
            file: FileNo::new(1, counter),
            len: 100,
            top_at: 90,
            versions: 3,
            first_key: first.into(),
            last_key: last.into(),
            bounds: 0,
        };
        let run = |first, last, files| {
            let (first, last) = (Seq::new(first), Seq::new(last));
            Change::AddRun(RunInfo { first, last, files })
        };
        let mut layout = Layout::default();
        let log = FileNo::new(1, 9);
        for good in [
            Change::Owner { generation: 1 },
            Change::AddLog(log),
            run(1, 9, vec![file(1, "a", "c"), file(2, "d", "k"), file(3, "m", "z")]),
            run(10, 12, vec![file(4, "u", "w")]),
        ] {
            layout.apply(good).unwrap();
        }
        assert!(!layout.is_bounded());
        let left = layout.clipped(&Bounds::of(&[Range::between(b"", b"f")])).unwrap();
        let names = |layout: &Layout| layout.files().map(|file| file.counter).collect::<Vec<_>>();
        assert_eq!(names(&left), [1, 2]);
        assert_eq!(left.runs.len(), 2, "sequences without a file");
        assert_eq!(left.flushed(), layout.flushed());
        // All of a file, a part, and a log of which nothing is known.
        let ids: Vec<_> = left.runs[1].files.iter().map(|file| file.bounds != 0).collect();
        assert_eq!(ids, [false, true]);
        assert!(left.bounds.of_log(log).is_some_and(|shows| shows.has(b"e") && !shows.has(b"f")));
        let mut again = Layout { generation: 0, ..Layout::default() };
        left.snapshot().into_iter().for_each(|change| again.apply(change).unwrap());
        assert_eq!(again, left);
        // Of the other side nothing comes back.
        let whole = left.clipped(&Bounds::of(&[Range::all()])).unwrap();
        assert_eq!(whole.bounds.of_log(log), left.bounds.of_log(log));
        let right = left.clipped(&Bounds::of(&[Range::between(b"e", b"x")])).unwrap();
        assert_eq!(names(&right), [2]);
        let shows = right.bounds.of_log(log).unwrap();
        assert!(shows.has(b"e") && !shows.has(b"f") && !shows.has(b"d"));
        for bad in [
            run(20, 21, vec![FileInfo { bounds: 9, ..file(5, "a", "b") }]),
            Change::BoundLog { file: FileNo::new(1, 8), bounds: 1 },
            Change::BoundLog { file: log, bounds: 1 },
            Change::AddBounds { number: 1, bounds: Bounds::default() },
        ] {
            assert!(right.clone().apply(bad.clone()).is_err(), "{bad:?}");
        }
    }
}

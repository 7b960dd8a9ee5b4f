//! Background work: flushes, merges, removals.

use std::collections::BTreeSet;
use std::rc::Rc;

use runtime::Duration;
use wire::data::Purpose;

use crate::build::Builder;
use crate::cursor::{Run, RunCursor};
use crate::engine::Engine;
use crate::error::Error;
use crate::format::block::Version;
use crate::format::edit::{Change, DataLog, FileInfo, RunInfo};
use crate::limits::RUNS_MERGE_MAX;
use crate::memtable::Memtable;
use crate::pick::pick;
use crate::planted::Planted;
use crate::types::{FileNo, Name, Seq};

/// Pause after background work has failed: first and longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Keys that a flush takes from memory at once.
const PAGE: usize = 256;
/// Tries to remove a file before it is left to the next opening's sweep.
const REMOVE_TRIES: u32 = 4;

/// The versions of a key, newest first, that a snapshot or the present sees. At the bottom,
/// where nothing older is, a deletion needs not be said.
pub(crate) fn retain<T>(
    versions: Vec<(Seq, Option<T>)>,
    snapshots: &[Seq],
    bottom: bool,
) -> Vec<(Seq, Option<T>)> {
    let mut kept: Vec<(Seq, Option<T>)> = Vec::new();
    for version in versions {
        // Visible to readers at or above it and below the next newer one that is kept.
        let seen = match kept.last() {
            None => true,
            Some(newer) => {
                let at = snapshots.partition_point(|&snapshot| snapshot < version.0);
                snapshots.get(at).is_some_and(|&snapshot| snapshot < newer.0)
            }
        };
        if seen {
            kept.push(version);
        }
    }
    while bottom && kept.last().is_some_and(|(_, value)| value.is_none()) {
        kept.pop();
    }
    kept
}

/// Files of a run in the making.
struct Output<'a> {
    engine: &'a Engine,
    purpose: Purpose,
    builder: Option<Builder>,
    files: Vec<FileInfo>,
    made: Vec<Name>,
}

impl Output<'_> {
    async fn add<'v>(
        &mut self,
        key: &[u8],
        versions: impl Iterator<Item = Version<'v>>,
    ) -> Result<(), Error> {
        if self.builder.is_none() {
            let file = self.engine.next_file();
            self.made.push(Name::Sorted(file));
            let (files, options) = (&self.engine.table_files, &self.engine.options);
            let builder = Builder::create(files, file, self.purpose, options).await?;
            self.builder = Some(builder);
        }
        let builder = self.builder.as_mut().expect("just made");
        builder.add(key, versions).await?;
        if builder.len() >= self.engine.options.file_bytes {
            self.end_file().await?;
        }
        Ok(())
    }

    async fn end_file(&mut self) -> Result<(), Error> {
        if let Some(builder) = self.builder.take() {
            self.files.push(builder.finish().await?);
        }
        Ok(())
    }
}

impl Engine {
    fn snapshots_now(&self) -> Vec<Seq> {
        self.snapshots.borrow().keys().copied().collect()
    }

    fn output(&self, purpose: Purpose) -> Output<'_> {
        Output { engine: self, purpose, builder: None, files: Vec::new(), made: Vec::new() }
    }

    /// The task that makes logs in time and flushes full memtables.
    pub(crate) async fn flush_always(self: Rc<Self>) {
        let mut pause = RETRY.0;
        loop {
            if self.is_over() {
                return;
            }
            if self.is_log_near()
                && self.next_log.borrow().is_none()
                && self.make_log().await.is_err()
            {
                return; // The instance is over.
            }
            let oldest = self.frozen.borrow().front().cloned();
            let Some(oldest) = oldest else {
                self.wake_flush.notified().await;
                continue;
            };
            match self.flush_one(&oldest).await {
                Ok(()) => pause = RETRY.0,
                Err(error) => {
                    if self.is_over() {
                        return;
                    }
                    tracing::warn!(table = self.name(), %error, "flush failed; trying again");
                    self.env.sleep(self.env.jitter(pause)).await;
                    pause = (2 * pause).min(RETRY.1);
                }
            }
        }
    }

    /// Ends when all that is visible now is in runs.
    pub(crate) async fn flush_now(&self) -> Result<(), Error> {
        let target = self.visible.get();
        loop {
            let changed = self.changed.notified();
            let last = |full: &Rc<Memtable>| full.range().map(|(_, last)| last);
            let flushed = self.runs.borrow().first().map_or(Seq::ZERO, |run| run.info.last);
            let frozen = self.frozen.borrow().back().and_then(last).unwrap_or(flushed);
            if flushed >= target {
                return Ok(());
            }
            if let Some(error) = self.over_error() {
                return Err(error);
            }
            if frozen < target && !self.freeze.replace(true) {
                self.wake_commit.notify_one();
            }
            changed.await;
        }
    }

    async fn flush_one(&self, full: &Rc<Memtable>) -> Result<(), Error> {
        let (first, last) = full.range().expect("only those with changes are frozen");
        let mut logs = full.logs();
        let replayed = if full.goes_on() { logs.pop() } else { None };
        let (kept, dropped): (Vec<_>, Vec<_>) = logs.into_iter().partition(|log| log.data > 0);
        let kept = self.seal_logs(kept).await?;
        let snapshots = self.snapshots_now();
        // With no run below, nothing is left for a deletion to hide.
        let bottom = self.runs.borrow().is_empty();
        let mut output = self.output(Purpose::Recovery);
        let written = async {
            let mut after: Option<Box<[u8]>> = None;
            loop {
                let page = full.page(after.as_deref(), PAGE);
                let Some((last, _)) = page.last() else { return output.end_file().await };
                after = Some(last.clone());
                for (key, mut versions) in page {
                    versions.reverse();
                    let kept = retain(versions, &snapshots, bottom);
                    if !kept.is_empty() {
                        let refs = kept.iter().map(|(seq, value)| (*seq, value.as_deref()));
                        output.add(&key, refs).await?;
                    }
                }
                self.env.yield_now().await;
            }
        };
        let written: Result<(), Error> = written.await;
        let (files, made) = (output.files, output.made);
        if let Err(error) = written {
            made.into_iter().for_each(|name| self.table_files.pending_deletes.add(name));
            return Err(self.explain(error).await);
        }
        let run = RunInfo { first, last, files };
        let mut changes: Vec<_> = dropped.iter().map(|log| Change::DropLog(log.file)).collect();
        changes.extend(kept.iter().map(|&log| Change::KeepLog { log }));
        changes.extend(replayed.map(|log| Change::ReplayLog { log }));
        changes.push(Change::AddRun(run.clone()));
        let install = || {
            self.kept_logs.borrow_mut().extend(kept.iter().map(|log| (log.file, *log)));
            self.set_data_log_len();
            let run = self.make_run(run);
            let mut runs = (**self.runs.borrow()).clone();
            self.count(|counts| {
                counts.flushes += 1;
                counts.flushed_bytes += run.bytes();
            });
            runs.insert(0, run);
            *self.runs.borrow_mut() = Rc::new(runs);
            self.frozen.borrow_mut().pop_front();
            self.note_memory();
        };
        self.commit_edit(changes, install).await?;
        for log in dropped {
            self.table_files.pending_deletes.add(Name::Log(log.file));
        }
        self.env.mark("table: memtable flushed");
        self.wake_commit.notify_one();
        self.wake_compact.notify_one();
        self.changed.notify_waiters();
        Ok(())
    }

    /// Seals logs that stay for their data: no opening does so later.
    async fn seal_logs(&self, mut logs: Vec<DataLog>) -> Result<Vec<DataLog>, Error> {
        for log in &mut logs {
            let name = Name::Log(log.file);
            let sealed = self.table_files.store.seal(&name.to_string()).await;
            let path = || self.table_files.path(name);
            log.len = sealed.map_err(|fault| Error::of_store(fault, "seal", &path()))?;
            self.env.mark("table: log kept for its data");
        }
        Ok(logs)
    }

    /// Removes a log that is kept for its data.
    pub(crate) async fn release_log(&self, file: FileNo) -> Result<(), Error> {
        if self.kept_logs.borrow_mut().remove(&file).is_none() {
            return Ok(());
        }
        self.set_data_log_len();
        self.commit_edit(vec![Change::DropLog(file)], || {}).await?;
        self.table_files.pending_deletes.add(Name::Log(file));
        self.env.mark("table: log released");
        Ok(())
    }

    /// The task that merges runs.
    pub(crate) async fn merge_always(self: Rc<Self>) {
        let mut pause = RETRY.0;
        loop {
            if self.is_over() {
                return;
            }
            match self.merge_step(false).await {
                Ok(true) => pause = RETRY.0,
                Ok(false) => self.wake_compact.notified().await,
                Err(error) => {
                    if self.is_over() {
                        return;
                    }
                    tracing::warn!(table = self.name(), %error, "merge failed; trying again");
                    self.env.sleep(self.env.jitter(pause)).await;
                    pause = (2 * pause).min(RETRY.1);
                }
            }
        }
    }

    /// Merges some runs, or the newest of all with `whole`, which a single one with bounds is too. False when there is nothing to do.
    pub(crate) async fn merge_step(&self, whole: bool) -> Result<bool, Error> {
        let _merging = self.merging.lock().await;
        let runs = self.runs.borrow().clone();
        let range = if whole {
            let count = runs.len().min(RUNS_MERGE_MAX);
            // Of a file that is shown in parts, the table gets one of its own.
            let is_due = count > 1 || runs.first().is_some_and(|run| run.is_bounded);
            is_due.then_some(0..count)
        } else {
            pick(&runs.iter().map(|run| run.bytes()).collect::<Vec<_>>())
        };
        let Some(range) = range else { return Ok(false) };
        let bottom = range.end == runs.len();
        match self.merge(&runs[range], bottom).await {
            Ok(()) => Ok(true),
            Err(error) => Err(self.explain(error).await),
        }
    }

    /// Merges runs that follow one another in age, newest first, into one.
    async fn merge(&self, inputs: &[Rc<Run>], bottom: bool) -> Result<(), Error> {
        let snapshots = self.snapshots_now();
        let mut output = self.output(Purpose::Metadata);
        let written = self.merge_into(inputs, &snapshots, bottom, &mut output).await;
        let (files, made) = (output.files, output.made);
        if let Err(error) = written {
            made.into_iter().for_each(|name| self.table_files.pending_deletes.add(name));
            return Err(error);
        }
        let (newest, oldest) = (&inputs[0].info, &inputs[inputs.len() - 1].info);
        // A run without files still names the changes that it covers.
        let run = RunInfo { first: oldest.first, last: newest.last, files };
        let mut changes: Vec<_> =
            inputs.iter().map(|run| Change::DropRun(run.info.first)).collect();
        changes.push(Change::AddRun(run.clone()));
        let install = || {
            let merged = self.make_run(run);
            let runs = self.runs.borrow().clone();
            let is_input = |run: &Rc<Run>| inputs.iter().any(|input| Rc::ptr_eq(input, run));
            let place = runs.iter().position(is_input).expect("only merges take runs away");
            let mut left: Vec<_> = runs.iter().filter(|run| !is_input(run)).cloned().collect();
            self.count(|counts| {
                counts.merges += 1;
                counts.merged_bytes += merged.bytes();
            });
            left.insert(place, merged);
            *self.runs.borrow_mut() = Rc::new(left);
            // Their bytes go when the last reader has gone.
            inputs.iter().flat_map(|run| &run.files).for_each(|file| file.retire());
        };
        self.commit_edit(changes, install).await?;
        self.env.mark("table: runs merged");
        self.wake_commit.notify_one();
        self.changed.notify_waiters();
        Ok(())
    }

    async fn merge_into(
        &self,
        inputs: &[Rc<Run>],
        snapshots: &[Seq],
        bottom: bool,
        output: &mut Output<'_>,
    ) -> Result<(), Error> {
        let mut cursors: Vec<_> =
            inputs.iter().map(|run| RunCursor::new(run.clone(), true)).collect();
        if self.options.bugs.has(Planted::LooseBounds) {
            cursors.iter_mut().for_each(RunCursor::show_all);
        }
        for cursor in &mut cursors {
            cursor.first().await?;
        }
        let mut count = 0;
        loop {
            let Some(key) = cursors.iter().filter_map(RunCursor::key).min().map(<[u8]>::to_vec)
            else {
                return output.end_file().await;
            };
            let at_key = |cursor: &&RunCursor| cursor.key() == Some(key.as_slice());
            // Newest run first, newest version first: the order of the whole.
            let versions: Vec<_> =
                cursors.iter().filter(at_key).flat_map(RunCursor::versions).collect();
            let kept = retain(versions, snapshots, bottom);
            if !kept.is_empty() {
                output.add(&key, kept.into_iter()).await?;
            }
            for cursor in &mut cursors {
                if cursor.key() == Some(key.as_slice()) {
                    cursor.forward().await?;
                }
            }
            count += 1;
            if count % PAGE == 0 {
                self.env.yield_now().await;
                if let Some(error) = self.over_error() {
                    return Err(error);
                }
            }
        }
    }

    /// The task that removes files.
    pub(crate) async fn remove_always(self: Rc<Self>) {
        while !self.is_over() {
            let Some(name) = self.table_files.pending_deletes.take() else {
                self.table_files.pending_deletes.added.notified().await;
                continue;
            };
            for attempt in 0..REMOVE_TRIES {
                match self.table_files.store.remove(&name.to_string()).await {
                    Err(fault) if fault.kind != base::Kind::NotFound => {
                        let (file, cause) = (self.table_files.path(name), fault.message);
                        tracing::debug!(file, cause, attempt, "an obsolete file is not removed");
                        self.env.sleep(self.env.jitter(RETRY.0 * (1 << attempt))).await;
                    }
                    _ => break,
                }
            }
        }
    }

    /// Checks all names: files that the table needs must be there, and those that earlier instances
    /// left are removed. See [`crate::manifest`] for why that is safe.
    pub(crate) async fn sweep(&self) -> Result<(), Error> {
        let (needed, kept): (_, BTreeSet<Name>) = {
            let manifest = self.manifest.lock().await;
            let layout = manifest.as_ref().map(|manifest| manifest.layout());
            layout.map(|layout| (layout.names(), layout.kept_names().collect())).unwrap_or_default()
        };
        let mut seen = BTreeSet::new();
        for name in crate::open::names(&self.table_files).await? {
            seen.insert(name);
            let older = name.generation() < self.generation;
            if older && !needed.contains(&name) && !kept.contains(&name) {
                self.env.mark("table: orphan collected");
                self.table_files.pending_deletes.add(name);
            }
        }
        // The keys are all there: what is lost is the data of some of them.
        for lost in kept.difference(&seen) {
            let file = self.table_files.path(*lost);
            tracing::error!(file, "a log that is kept for its data is not there");
        }
        match needed.difference(&seen).next() {
            None => Ok(()),
            Some(missing) => {
                let error = Error::Missing { file: self.table_files.path(*missing) };
                Err(self.explain(error).await)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_keeps_versions_that_a_reader_can_see() {
        let versions = |seqs: &[i64]| -> Vec<(Seq, Option<()>)> {
            seqs.iter().map(|&n| (Seq::new(n.unsigned_abs()), (n > 0).then_some(()))).collect()
        };
        let check = |have: &[i64], snapshots: &[u64], bottom: bool, want: &[i64]| {
            let snapshots: Vec<_> = snapshots.iter().map(|&seq| Seq::new(seq)).collect();
            assert_eq!(retain(versions(have), &snapshots, bottom), versions(want), "{have:?}");
        };
        check(&[9, 5, 2], &[], false, &[9]);
        check(&[9, 5, 2], &[5], false, &[9, 5]);
        check(&[9, 5, 2], &[4], false, &[9, 2]);
        check(&[9, 5, 2], &[2, 3, 8, 10], false, &[9, 5, 2]);
        check(&[9, 5, 2], &[1, 9], false, &[9]);
        check(&[-9, 5, 2], &[], false, &[-9]);
        check(&[-9, 5, 2], &[], true, &[]);
        check(&[-9, 5, -2], &[3, 6], true, &[-9, 5]);
        check(&[9, -5], &[6], true, &[9]);
    }
}

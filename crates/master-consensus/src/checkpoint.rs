//! Checkpoints of a group's state, in chunks of the shared store (`protocols.md` 4.1).
//!
//! A checkpoint is a list of runs: sorted rows, of which newer ones cover older ones. A new
//! checkpoint adds a run of the rows that have changed. Runs that have grown alike are merged,
//! in pieces, on a helper thread. A manifest names the runs, and the entry of the log that they
//! reach to; the newest sealed manifest counts.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use codec::crc32c_extend;
use runtime::sync::Mutex;
use runtime::{Class, Env};

use super::error::{DeviceError, LogError};
use super::group_store::{GroupStore, Kind};
use super::limits::{MERGE_MIN_RUNS, PIECE_BYTES, RUN_CHUNK_LEN, RUN_PARTS_MAX};
use super::manifest::{self, RunFacts};
use super::rows::{Merge, Rows, Step};
use super::types::SnapshotMeta;

/// A run. Its chunks go once no checkpoint and no reader has it.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) facts: RunFacts,
}

impl Run {
    fn parts(&self) -> u64 {
        self.facts.len.div_ceil(RUN_CHUNK_LEN)
    }
}

/// Chunk number of a part of a run.
fn part_number(run: u64, part: u64) -> u64 {
    assert!(part < RUN_PARTS_MAX, "a run of {part} chunks");
    run * RUN_PARTS_MAX + part
}

#[derive(Default)]
struct Live {
    /// Number of the manifest; 0 before the first.
    manifest: u64,
    meta: Option<SnapshotMeta>,
    /// From the oldest to the newest.
    runs: Vec<Rc<Run>>,
}

/// The checkpoints of one group. Clones share them.
#[derive(Clone)]
pub struct Checkpoints(Rc<CheckpointsInner>);

struct CheckpointsInner {
    group_store: GroupStore,
    live: RefCell<Live>,
    next_run: Cell<u64>,
    /// Snapshots of other members that have replaced everything.
    installed: Cell<u64>,
    /// Held by the task that changes the list of runs.
    changing: Mutex<()>,
    merging: Cell<bool>,
    closed: Cell<bool>,
    /// Runs that no checkpoint has. The next checkpoint removes those without another holder.
    garbage: RefCell<Vec<Rc<Run>>>,
}

/// The state at an entry of the log, to be read piece by piece. It stays while it is held.
#[derive(Clone)]
pub struct SnapshotData {
    checkpoints: Checkpoints,
    pub(super) runs: Vec<Rc<Run>>,
}

impl std::fmt::Debug for SnapshotData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SnapshotData({} runs, {} bytes)", self.runs.len(), self.len())
    }
}

impl SnapshotData {
    /// Bytes of all runs.
    pub(super) fn len(&self) -> u64 {
        self.runs.iter().map(|run| run.facts.len).sum()
    }

    /// Bytes from `offset` of all runs, taken as one without gaps, `max` at most.
    pub(super) async fn piece(&self, mut offset: u64, max: usize) -> Result<Vec<u8>, LogError> {
        for run in &self.runs {
            if offset < run.facts.len {
                return self.checkpoints.read(run, offset, max).await;
            }
            offset -= run.facts.len;
        }
        Ok(Vec::new())
    }
}

impl Checkpoints {
    /// Reads the newest manifest of the group of `group_store`, and removes the remains of others.
    pub async fn open(group_store: GroupStore) -> Result<Checkpoints, LogError> {
        let manifests = group_store.recover(Kind::Manifest).await?;
        let newest = manifests.iter().rev().find(|held| held.sealed);
        let mut live = Live::default();
        if let Some(held) = newest {
            let bytes = group_store.read(Kind::Manifest, held.number, 0, held.len).await;
            let bytes = bytes.map_err(|error| lost(&group_store, error))?;
            let (meta, runs) = manifest::decode(&bytes).map_err(|_| LogError::SnapshotLost)?;
            let runs = runs.into_iter().map(|facts| Rc::new(Run { facts })).collect();
            live = Live { manifest: held.number, meta: Some(meta), runs };
        }
        let mut wanted = BTreeSet::new();
        for run in &live.runs {
            wanted.extend((0..run.parts()).map(|part| part_number(run.facts.id, part)));
        }
        let held = group_store.recover(Kind::Run).await?;
        let sound = held.iter().filter(|held| held.sealed && wanted.contains(&held.number));
        if sound.count() != wanted.len() {
            return Err(LogError::SnapshotLost);
        }
        let newest = live.manifest;
        for other in manifests.iter().filter(|held| held.number != newest || !held.sealed) {
            group_store.delete(Kind::Manifest, other.number).await?;
        }
        for other in held.iter().filter(|held| !wanted.contains(&held.number)) {
            group_store.env().mark("checkpoint: what an end left is removed");
            group_store.delete(Kind::Run, other.number).await?;
        }
        let highest = held.last().map_or(0, |held| held.number / RUN_PARTS_MAX);
        Ok(Checkpoints(Rc::new(CheckpointsInner {
            group_store,
            live: RefCell::new(live),
            next_run: Cell::new(highest + 1),
            installed: Cell::new(0),
            changing: Mutex::new(()),
            merging: Cell::new(false),
            closed: Cell::new(false),
            garbage: RefCell::default(),
        })))
    }

    pub(super) fn env(&self) -> &Env {
        self.0.group_store.env()
    }

    /// The newest checkpoint.
    pub(super) fn current(&self) -> Option<(SnapshotMeta, SnapshotData)> {
        let live = self.0.live.borrow();
        let data = SnapshotData { checkpoints: self.clone(), runs: live.runs.clone() };
        live.meta.clone().map(|meta| (meta, data))
    }

    /// Index of the last entry that the newest checkpoint covers.
    pub(super) fn covers(&self) -> Option<u64> {
        let live = self.0.live.borrow();
        live.meta.as_ref()?.last_log_id.map(|id| id.index)
    }

    /// Grows with every snapshot that has replaced the state: see [`Checkpoints::add`].
    pub(super) fn installed(&self) -> u64 {
        self.0.installed.get()
    }

    /// A checkpoint at `meta`: the rows that have changed since the last one, which were taken
    /// when [`Checkpoints::installed`] was `installed`. Durable on return. None when a snapshot has
    /// replaced the state since.
    pub(super) async fn add(
        &self,
        meta: SnapshotMeta,
        rows: Rows,
        installed: u64,
    ) -> Result<Option<SnapshotData>, LogError> {
        let inner = &*self.0;
        let bytes = self.env().blocking("checkpoint rows", move || rows.encode()).await;
        let _turn = inner.changing.lock().await;
        self.check_open()?;
        let mut runs = inner.live.borrow().runs.clone();
        if inner.installed.get() != installed {
            self.env().mark("checkpoint: overtaken by a snapshot");
            return Ok(None);
        }
        let mut writer = self.begin();
        writer.push(&bytes).await?;
        runs.extend(writer.finish().await?);
        self.commit(meta, runs.clone()).await?;
        self.merge_soon();
        Ok(Some(SnapshotData { checkpoints: self.clone(), runs }))
    }

    /// Another member's snapshot replaces everything.
    pub(super) async fn replace(
        &self,
        meta: &SnapshotMeta,
        data: &SnapshotData,
    ) -> Result<(), LogError> {
        let inner = &*self.0;
        let _turn = inner.changing.lock().await;
        inner.installed.set(inner.installed.get() + 1);
        self.commit(meta.clone(), data.runs.clone()).await
    }

    /// The same rows in runs of this store.
    pub(super) async fn adopt(&self, data: SnapshotData) -> Result<SnapshotData, LogError> {
        if Rc::ptr_eq(&self.0, &data.checkpoints.0) {
            return Ok(data);
        }
        let (mut runs, mut offset) = (Vec::new(), 0);
        for run in &data.runs {
            let mut writer = self.begin();
            while writer.len() < run.facts.len {
                let piece = data.piece(offset, PIECE_BYTES).await?;
                writer.push(&piece).await?;
                offset += piece.len() as u64;
            }
            runs.extend(writer.finish().await?);
        }
        Ok(self.received(runs))
    }

    /// Begins a run.
    pub(super) fn begin(&self) -> RunWriter {
        let id = self.0.next_run.get();
        self.0.next_run.set(id + 1);
        RunWriter { checkpoints: self.clone(), id, len: 0, crc: 0, finished: false }
    }

    /// Runs that were received, as a snapshot.
    pub(super) fn received(&self, runs: Vec<Rc<Run>>) -> SnapshotData {
        SnapshotData { checkpoints: self.clone(), runs }
    }

    /// Waits for operations under way, and changes nothing any more.
    pub(super) async fn close(&self) {
        self.0.closed.set(true);
        let _turn = self.0.changing.lock().await;
    }

    fn check_open(&self) -> Result<(), LogError> {
        if self.0.closed.get() { Err(LogError::Closed) } else { Ok(()) }
    }

    /// Makes `runs` the checkpoint. The caller holds `changing`.
    async fn commit(&self, meta: SnapshotMeta, runs: Vec<Rc<Run>>) -> Result<(), LogError> {
        let inner = &*self.0;
        self.check_open()?;
        let facts: Vec<RunFacts> = runs.iter().map(|run| run.facts).collect();
        let bytes = manifest::encode(&meta, &facts);
        let old = inner.live.borrow().manifest;
        inner.group_store.append(Kind::Manifest, old + 1, 0, &bytes).await?;
        inner.group_store.seal(Kind::Manifest, old + 1, bytes.len() as u32).await?;
        let live = Live { manifest: old + 1, meta: Some(meta), runs };
        let before = inner.live.replace(live);
        if old > 0 {
            inner.group_store.delete(Kind::Manifest, old).await?;
        }
        inner.garbage.borrow_mut().extend(before.runs);
        self.sweep().await
    }

    /// Removes runs that no checkpoint has.
    async fn sweep(&self) -> Result<(), LogError> {
        loop {
            let unused = {
                let garbage = &mut *self.0.garbage.borrow_mut();
                let unused = garbage.iter().position(|run| Rc::strong_count(run) == 1);
                unused.map(|at| garbage.swap_remove(at))
            };
            let Some(unused) = unused else { break };
            for part in 0..unused.parts() {
                self.0.group_store.delete(Kind::Run, part_number(unused.facts.id, part)).await?;
            }
        }
        // A run in use may be in the list of runs again: it was never out of it.
        let live: BTreeSet<u64> = {
            let live = self.0.live.borrow();
            live.runs.iter().map(|run| run.facts.id).collect()
        };
        self.0.garbage.borrow_mut().retain(|run| !live.contains(&run.facts.id));
        Ok(())
    }

    async fn read(&self, run: &Run, offset: u64, max: usize) -> Result<Vec<u8>, LogError> {
        let (part, within) = (offset / RUN_CHUNK_LEN, offset % RUN_CHUNK_LEN);
        let len = (run.facts.len - offset).min(RUN_CHUNK_LEN - within).min(max as u64);
        let number = part_number(run.facts.id, part);
        let read = self.0.group_store.read(Kind::Run, number, within as u32, len as u32).await;
        read.map_err(|error| lost(&self.0.group_store, error))
    }

    /// Gives all rows of `runs`, merged, to `sink`, in pieces of whole rows.
    pub(super) async fn merged(
        &self,
        runs: &[Rc<Run>],
        keep_gone: bool,
        mut sink: impl AsyncFnMut(Vec<u8>) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        let mut merge = Merge::new(runs.len(), keep_gone);
        let mut read: Vec<(u64, u32)> = runs.iter().map(|_| (0, 0)).collect();
        loop {
            let work = move || {
                let step = merge.run();
                (merge, step)
            };
            let (back, step) = self.env().blocking("checkpoint merge", work).await;
            merge = back;
            match step.map_err(|_| LogError::SnapshotLost)? {
                Step::Feed(input) => {
                    let (run, (at, crc)) = (&runs[input], &mut read[input]);
                    let bytes = self.read(run, *at, PIECE_BYTES).await?;
                    *at += bytes.len() as u64;
                    *crc = crc32c_extend(*crc, &bytes);
                    let ended = *at == run.facts.len;
                    if ended && *crc != run.facts.crc {
                        return Err(LogError::SnapshotLost);
                    }
                    merge.feed(input, &bytes, ended);
                }
                Step::Full => sink(merge.take()).await?,
                Step::Done => return sink(merge.take()).await,
            }
        }
    }

    /// Merges the newest runs when there are several of a size.
    fn merge_soon(&self) {
        let lens: Vec<u64> = self.0.live.borrow().runs.iter().map(|run| run.facts.len).collect();
        if mergeable(&lens) == 0 || self.0.merging.replace(true) {
            return;
        }
        let this = self.clone();
        self.env().spawn(Class::Background, "checkpoint merge", async move {
            let merged = this.merge().await;
            this.0.merging.set(false);
            if let Err(error) = merged {
                // The next checkpoint meets the failure, or tries again.
                tracing::warn!(%error, "runs of a checkpoint are not merged");
            }
        });
    }

    async fn merge(&self) -> Result<(), LogError> {
        let inner = &*self.0;
        let _turn = inner.changing.lock().await;
        self.check_open()?;
        let (meta, mut runs) = {
            let live = inner.live.borrow();
            (live.meta.clone(), live.runs.clone())
        };
        let lens: Vec<u64> = runs.iter().map(|run| run.facts.len).collect();
        let (count, Some(meta)) = (mergeable(&lens), meta) else { return Ok(()) };
        if count == 0 {
            return Ok(());
        }
        self.env().mark("checkpoint: runs merged");
        let inputs = runs.split_off(runs.len() - count);
        let mut writer = self.begin();
        let keep_gone = !runs.is_empty();
        self.merged(&inputs, keep_gone, async |bytes| writer.push(&bytes).await).await?;
        runs.extend(writer.finish().await?);
        drop(inputs);
        self.commit(meta, runs).await
    }
}

/// Number of the newest runs to merge now; 0 for none. A run is taken in when it is less than twice
/// as long as all newer ones together. So the number of times that a row is written again grows as
/// the logarithm of the state, and the runs are few.
fn mergeable(lens: &[u64]) -> usize {
    let mut newer = 0;
    let taken = lens.iter().rev().take_while(|&&len| {
        let take = newer == 0 || len < 2 * newer;
        newer += len;
        take
    });
    let count = taken.count();
    if count >= MERGE_MIN_RUNS { count } else { 0 }
}

/// A chunk of a checkpoint that does not verify, or another failure.
fn lost(group_store: &GroupStore, error: DeviceError) -> LogError {
    match error {
        DeviceError::Damaged { .. } => {
            group_store.env().mark("checkpoint: damage met");
            tracing::warn!(%error, "a checkpoint is damaged");
            LogError::SnapshotLost
        }
        error => error.into(),
    }
}

/// Writes a run. An unfinished one is removed.
pub(super) struct RunWriter {
    checkpoints: Checkpoints,
    id: u64,
    len: u64,
    crc: u32,
    finished: bool,
}

impl RunWriter {
    /// Appends bytes, durably.
    pub(super) async fn push(&mut self, mut bytes: &[u8]) -> Result<(), LogError> {
        let group_store = self.checkpoints.0.group_store.clone();
        while !bytes.is_empty() {
            let within = self.len % RUN_CHUNK_LEN;
            let room = (RUN_CHUNK_LEN - within).min(PIECE_BYTES as u64) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(room));
            let number = part_number(self.id, self.len / RUN_CHUNK_LEN);
            // Counted first: a chunk that may have been made is removed if this fails.
            self.len += now.len() as u64;
            self.crc = crc32c_extend(self.crc, now);
            group_store.append(Kind::Run, number, within as u32, now).await?;
            if self.len.is_multiple_of(RUN_CHUNK_LEN) {
                group_store.seal(Kind::Run, number, RUN_CHUNK_LEN as u32).await?;
            }
            bytes = later;
        }
        Ok(())
    }

    /// Ends the run; none when it is empty. A run that no checkpoint takes in is removed once its
    /// holders have dropped it.
    pub(super) async fn finish(mut self) -> Result<Option<Rc<Run>>, LogError> {
        let (group_store, within) =
            (self.checkpoints.0.group_store.clone(), self.len % RUN_CHUNK_LEN);
        if within > 0 {
            let number = part_number(self.id, self.len / RUN_CHUNK_LEN);
            group_store.seal(Kind::Run, number, within as u32).await?;
        }
        self.finished = true;
        let facts = self.facts();
        if facts.len == 0 {
            return Ok(None);
        }
        let run = Rc::new(Run { facts });
        self.checkpoints.0.garbage.borrow_mut().push(run.clone());
        Ok(Some(run))
    }

    fn facts(&self) -> RunFacts {
        RunFacts { id: self.id, len: self.len, crc: self.crc }
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> u64 {
        self.len
    }
}

impl Drop for RunWriter {
    fn drop(&mut self) {
        if !self.finished && self.len > 0 {
            let run = Rc::new(Run { facts: self.facts() });
            self.checkpoints.0.garbage.borrow_mut().push(run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_stay_few_and_rows_are_rewritten_seldom() {
        let (mut lens, mut written, mut most) = (Vec::new(), 0, 0);
        for _ in 0..1000 {
            lens.push(1u64);
            let count = mergeable(&lens);
            if count > 0 {
                let merged = lens.split_off(lens.len() - count).iter().sum();
                written += merged;
                lens.push(merged);
            }
            most = most.max(lens.len());
        }
        assert!(most <= 24, "{most} runs");
        assert!(written <= 8 * 1000, "{written} written for 1000");
    }
}

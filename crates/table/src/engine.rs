//! [`Engine`]: the state of an open table, and what its tasks share.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use runtime::Env;
use runtime::sync::{Mutex, Notify};
use wire::data::Purpose;

use crate::bounds::BoundsSet;
use crate::commit::Queue;
use crate::cursor::Run;
use crate::error::Error;
use crate::file::{SortedFile, TableFiles};
use crate::format::edit::{Change, DataLog, FileInfo, RunInfo};
use crate::format::filter;
use crate::format::frame::Form;
use crate::layout::Layout;
use crate::limits::{DATA_LOG_SHARE, FROZEN_MAX, LOG_PER_MEMTABLE};
use crate::manifest::{self, Manifest};
use crate::memory::Share;
use crate::memtable::Memtable;
use crate::options::Options;
use crate::snapshot::View;
use crate::store::{Source, Writer};
use crate::types::{FileNo, Name, Seq};

/// Cause for which an instance takes no writes any more.
#[derive(Clone, Debug)]
pub(crate) enum Over {
    /// Another instance has the table.
    Fenced,
    /// A write has failed.
    Failed(String),
    /// It was closed or dropped.
    Closed,
    /// Others have its files now.
    Forked,
}

/// A log that is ready to be written.
pub(crate) struct Log {
    pub(crate) file: FileNo,
    pub(crate) writer: Box<dyn Writer>,
    pub(crate) len: u64,
    /// Bytes of data in it.
    pub(crate) data: u64,
}

impl Log {
    /// As it is now.
    pub(crate) fn upto_here(&self) -> DataLog {
        DataLog { file: self.file, len: self.len, data: self.data }
    }
}

/// Counts of an instance's work so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) groups: u64,
    pub(crate) batches: u64,
    pub(crate) log_bytes: u64,
    pub(crate) flushed_bytes: u64,
    pub(crate) merged_bytes: u64,
    pub(crate) flushes: u64,
    pub(crate) merges: u64,
    pub(crate) refused: u64,
}

/// An open table.
pub(crate) struct Engine {
    pub(crate) env: Env,
    pub(crate) table_files: Rc<TableFiles>,
    pub(crate) options: Options,
    pub(crate) form: Form,
    pub(crate) generation: u32,
    /// Counter of the next file.
    next_file: Cell<u32>,
    /// Number of the live manifest, for those that do not hold it.
    pub(crate) manifest_number: Cell<u32>,
    pub(crate) manifest: Mutex<Option<Manifest>>,
    pub(crate) runs: RefCell<Rc<Vec<Rc<Run>>>>,
    /// The memtable that takes writes.
    pub(crate) active: RefCell<Rc<Memtable>>,
    /// Full ones, oldest first.
    pub(crate) frozen: RefCell<VecDeque<Rc<Memtable>>>,
    /// The last change that reads see: all up to it are durable.
    pub(crate) visible: Cell<Seq>,
    /// Sequences that snapshots see, and how many do.
    pub(crate) snapshots: RefCell<BTreeMap<Seq, usize>>,
    pub(crate) queue: RefCell<Queue>,
    /// The log after the present one, when it is made.
    pub(crate) next_log: RefCell<Option<Log>>,
    /// The present log.
    pub(crate) log_file: Cell<Option<FileNo>>,
    /// Held while a log is made.
    pub(crate) making_log: Mutex<()>,
    /// Length of the present log.
    pub(crate) log_len: Cell<u64>,
    /// Length at which a log with data ends.
    pub(crate) data_log_len: Cell<u64>,
    /// The present log ends with its memtable.
    pub(crate) end_log: Cell<bool>,
    /// Logs that are there for their data alone.
    pub(crate) kept_logs: RefCell<BTreeMap<FileNo, DataLog>>,
    /// Keys that logs and files show which a fork has left: no later one has bounds.
    pub(crate) bounds: BoundsSet,
    /// The log whose data was read last, opened.
    pub(crate) data_source: RefCell<Option<(FileNo, Rc<dyn Source>)>>,
    pub(crate) over: RefCell<Option<Over>>,
    /// What the append of the log was for that found no room.
    pub(crate) out_of_room: Cell<Option<Purpose>>,
    /// The memtable is to be flushed though it is not full.
    pub(crate) freeze: Cell<bool>,
    /// It takes no new batches, since it is about to end.
    pub(crate) closing: Cell<bool>,
    /// The task that writes the log has ended.
    pub(crate) commit_ended: Cell<bool>,
    pub(crate) wake_commit: Notify,
    pub(crate) wake_flush: Notify,
    pub(crate) wake_compact: Notify,
    /// One merge at a time.
    pub(crate) merging: Mutex<()>,
    /// Something has been flushed or merged, or the instance is over.
    pub(crate) changed: Notify,
    pub(crate) counts: Cell<Counts>,
    /// Bytes of batches in groups under way.
    pub(crate) inflight_bytes: Cell<usize>,
    /// Its part of the process's memory for changes.
    pub(crate) share: Share,
}

impl Engine {
    pub(crate) fn new(
        env: &Env,
        table_files: Rc<TableFiles>,
        options: Options,
        manifest: Manifest,
        recovered: Memtable,
        last: Seq,
    ) -> Engine {
        let (layout, number) = (manifest.layout().clone(), manifest.number());
        Engine::of(env, table_files, options, (number, &layout, Some(manifest)), (recovered, last))
    }

    /// Without a manifest it is a view of a table that may have another owner: it shows what is
    /// there, and takes no writes.
    pub(crate) fn of(
        env: &Env,
        table_files: Rc<TableFiles>,
        options: Options,
        (number, layout, manifest): (u32, &Layout, Option<Manifest>),
        (recovered, last): (Memtable, Seq),
    ) -> Engine {
        let generation = layout.generation;
        let over = manifest.is_none().then_some(Over::Closed);
        let make = |info| make_run(&table_files, info, &layout.bounds);
        let runs = layout.runs.iter().map(make).collect();
        let recovered = recovered.range().is_some().then(|| Rc::new(recovered));
        let share = Share::new(table_files.cache.writes());
        let engine = Engine {
            env: env.clone(),
            table_files,
            options,
            form: layout.form,
            generation,
            next_file: Cell::new(1),
            manifest_number: Cell::new(number),
            manifest: Mutex::new(manifest),
            runs: RefCell::new(Rc::new(runs)),
            active: RefCell::new(Rc::new(Memtable::new(Vec::new()))),
            frozen: RefCell::new(recovered.into_iter().collect()),
            visible: Cell::new(last),
            snapshots: RefCell::default(),
            queue: RefCell::default(),
            next_log: RefCell::default(),
            log_file: Cell::new(None),
            making_log: Mutex::new(()),
            log_len: Cell::new(0),
            data_log_len: Cell::new(0),
            end_log: Cell::new(false),
            kept_logs: RefCell::new(layout.kept.clone()),
            bounds: layout.bounds.clone(),
            data_source: RefCell::default(),
            over: RefCell::new(over),
            out_of_room: Cell::new(None),
            freeze: Cell::new(false),
            closing: Cell::new(false),
            commit_ended: Cell::new(false),
            wake_commit: Notify::new(),
            wake_flush: Notify::new(),
            wake_compact: Notify::new(),
            merging: Mutex::new(()),
            changed: Notify::new(),
            counts: Cell::default(),
            inflight_bytes: Cell::new(0),
            share,
        };
        engine.set_data_log_len();
        engine
    }

    /// Bytes of changes in memory: those that wait, are being sent, or are in no sorted file yet.
    pub(crate) fn memory(&self) -> usize {
        let frozen = self.frozen.borrow().iter().map(|full| full.bytes()).sum::<usize>();
        let queued = self.queue.borrow().bytes();
        queued + self.inflight_bytes.get() + self.active.borrow().bytes() + frozen
    }

    /// Reports the memory of its changes to the process's sum.
    pub(crate) fn note_memory(&self) {
        self.share.note(self, self.memory());
    }

    /// The memtable is to be flushed though it is not full.
    pub(crate) fn freeze_soon(&self) {
        let has_changes = self.active.borrow().range().is_some();
        if has_changes && !self.is_over() && !self.freeze.replace(true) {
            self.env.mark("table: flushed for others");
            self.wake_commit.notify_one();
        }
    }

    /// The table, for messages.
    pub(crate) fn name(&self) -> &str {
        self.table_files.store.name()
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// A number for one more file.
    pub(crate) fn next_file(&self) -> FileNo {
        let counter = self.next_file.get();
        self.next_file.set(counter.checked_add(1).expect("fewer than 2^32 files of one instance"));
        FileNo::new(self.generation, counter)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.borrow().is_some()
    }

    /// Ends the instance, if nothing has before.
    pub(crate) fn end(&self, over: Over) {
        if self.is_over() {
            return;
        }
        if let Over::Failed(cause) = &over {
            tracing::warn!(table = self.name(), cause, "the table takes no writes any more");
        }
        *self.over.borrow_mut() = Some(over);
        for notify in [&self.wake_commit, &self.wake_flush, &self.wake_compact] {
            notify.notify_one();
        }
        self.table_files.pending_deletes.added.notify_one();
        self.changed.notify_waiters();
    }

    /// Ends the instance for a failed write.
    pub(crate) fn end_with(&self, error: &Error) {
        self.end(match error {
            Error::Fenced { .. } => Over::Fenced,
            other => Over::Failed(other.to_string()),
        });
    }

    /// The error of an instance that has ended.
    pub(crate) fn over_error(&self) -> Option<Error> {
        let table = self.name().to_owned();
        Some(match self.over.borrow().as_ref()? {
            Over::Fenced => Error::Fenced { table },
            Over::Failed(cause) => Error::Stopped { table, cause: cause.clone() },
            Over::Closed => Error::Stopped { table, cause: "it was closed".to_owned() },
            Over::Forked => Error::Stopped { table, cause: "it was forked".to_owned() },
        })
    }

    /// When a file is missing, another instance may have removed it.
    pub(crate) async fn explain(&self, error: Error) -> Error {
        match error {
            Error::Missing { .. } => {}
            Error::Fenced { .. } => return Error::Fenced { table: self.name().to_owned() },
            other => return other,
        }
        // No roll of our own during this.
        let _manifest = self.manifest.lock().await;
        match manifest::highest(&*self.table_files.store).await {
            Ok(Some(number)) if number > self.manifest_number.get() => {
                self.end(Over::Fenced);
                Error::Fenced { table: self.name().to_owned() }
            }
            Ok(_) => error,
            // Whether the table is damaged or another's cannot be decided now.
            Err(unknown) => {
                let what = format!("look who has {}", self.name());
                Error::Unavailable { what, cause: format!("{error}; {unknown}") }
            }
        }
    }

    /// Makes changes of the table durable, then calls `install` in the same step. A failure
    /// ends the instance: the outcome is not known.
    pub(crate) async fn commit_edit(
        &self,
        changes: Vec<Change>,
        install: impl FnOnce(),
    ) -> Result<(), Error> {
        let mut manifest = self.manifest.lock().await;
        if let Some(error) = self.over_error() {
            return Err(error);
        }
        let open = manifest.as_mut().expect("taken only when it is over");
        let committed = open.commit(changes).await;
        self.manifest_number.set(open.number());
        match committed {
            Ok(()) => {
                install();
                Ok(())
            }
            Err(error) => {
                self.end_with(&error);
                Err(error)
            }
        }
    }

    /// A log to read data from: a service that collects one reads much of it.
    pub(crate) async fn data_source(&self, log: FileNo) -> Result<Rc<dyn Source>, Error> {
        if let Some((_, source)) = self.data_source.borrow().as_ref().filter(|of| of.0 == log) {
            return Ok(source.clone());
        }
        let name = Name::Log(log);
        let source = self.table_files.store.open(&name.to_string()).await;
        let path = || self.table_files.path(name);
        let source = source.map_err(|fault| Error::of_store(fault, "open", &path()))?;
        self.data_source.replace(Some((log, source.clone())));
        Ok(source)
    }

    /// Logs that may be written: the present one, and the one after it, if it is made.
    pub(crate) fn open_logs(&self) -> BTreeSet<FileNo> {
        let next = self.next_log.borrow().as_ref().map(|log| log.file);
        self.log_file.get().into_iter().chain(next).collect()
    }

    /// Ends when the task that writes the log has ended, after the instance.
    pub(crate) async fn commit_is_over(&self) {
        while !self.commit_ended.get() {
            let changed = self.changed.notified();
            if self.commit_ended.get() {
                break;
            }
            changed.await;
        }
    }

    /// Present places of entries.
    pub(crate) fn view(&self) -> View {
        let mut memtables = vec![self.active.borrow().clone()];
        memtables.extend(self.frozen.borrow().iter().rev().cloned());
        View { memtables, runs: self.runs.borrow().clone() }
    }

    /// The value of a key at a sequence that is pinned, or the present one.
    pub(crate) async fn get(&self, key: &[u8], seq: Seq) -> Result<Option<Vec<u8>>, Error> {
        let View { memtables, runs } = self.view();
        for memtable in memtables {
            if let Some((_, value)) = memtable.get(key, seq) {
                return Ok(value.map(|value| value.to_vec()));
            }
        }
        let hash = filter::hash(key);
        for run in runs.iter().filter(|run| run.info.first <= seq) {
            let Some(file) = run.file_of(key).filter(|file| file.shows(key)) else { continue };
            match file.get(key, hash, seq).await {
                Ok(None) => {}
                Ok(Some((_, value))) => return Ok(value),
                Err(error) => return Err(self.explain(error).await),
            }
        }
        Ok(None)
    }

    /// True when no snapshot sees a version of sequence `old` that `new` replaces.
    pub(crate) fn unseen(&self, old: Seq, new: Seq) -> bool {
        self.snapshots.borrow().range(old..new).next().is_none()
    }

    /// True when the memtable or its log has no room.
    pub(crate) fn is_full(&self) -> bool {
        self.active.borrow().bytes() >= self.options.memtable_bytes
            || self.log_len.get() >= self.log_most()
    }

    /// Length at which a log ends.
    pub(crate) fn log_most(&self) -> u64 {
        match self.options.data_log_bytes {
            0 => LOG_PER_MEMTABLE * self.options.memtable_bytes as u64,
            _ => self.data_log_len.get(),
        }
    }

    /// Sets the length at which a log with data ends, which goes by what there is.
    pub(crate) fn set_data_log_len(&self) {
        let data: u64 = self.kept_logs.borrow().values().map(|log| log.data).sum();
        let len = (data / DATA_LOG_SHARE).max(self.options.data_log_least);
        self.data_log_len.set(len.min(self.options.data_log_bytes));
    }

    /// True when the log goes on behind a memtable that is full.
    pub(crate) fn log_goes_on(&self, len: u64) -> bool {
        self.options.data_log_bytes != 0 && len < self.log_most() && !self.end_log.get()
    }

    /// True when the next log will be needed soon.
    pub(crate) fn is_log_near(&self) -> bool {
        match self.options.data_log_bytes {
            0 => self.active.borrow().bytes() >= self.options.memtable_bytes / 2,
            _ => self.log_len.get() >= self.log_most() / 2,
        }
    }

    /// True when a full memtable has to wait for the flush of others.
    pub(crate) fn flush_lags(&self) -> bool {
        self.frozen.borrow().len() >= FROZEN_MAX
    }

    /// The files of runs, for the manifest's view of them.
    pub(crate) fn make_run(&self, info: RunInfo) -> Rc<Run> {
        make_run(&self.table_files, &Rc::new(info), &self.bounds)
    }
}

fn make_run(table_files: &Rc<TableFiles>, info: &Rc<RunInfo>, bounds: &BoundsSet) -> Rc<Run> {
    let file = |file: &FileInfo| {
        let shows = bounds.get(file.bounds).cloned();
        Rc::new(SortedFile::new(table_files, file.clone(), shows))
    };
    let (info, files) = (info.clone(), info.files.iter().map(file).collect());
    Rc::new(Run { is_bounded: info.is_bounded(), info, files })
}

//! [`Table`]: what services see.

use std::fmt;
use std::rc::Rc;

use runtime::{Class, Env};
use wire::data::Purpose;

use crate::batch::Batch;
use crate::cache::Cache;
use crate::commit::Written;
use crate::engine::{Engine, Over};
use crate::error::Error;
use crate::format::edit::DataLog;
use crate::format::frame::Form;
use crate::limits::KEY_MAX;
use crate::options::Options;
use crate::range::Range;
use crate::recover::{self, LogPage};
use crate::scan::Scan;
use crate::snapshot::{Pin, Snapshot};
use crate::store::Store;
use crate::types::{FileNo, Name, Place, Seq};

/// An open table: keys in order, each with a value. Cheap to clone; stays on its thread.
///
/// A table has one owner. Opening takes it over: an instance that was open before is fenced, and
/// nothing of it is acknowledged once the opening has returned. Reads of a fenced instance show its
/// last state. A caller that must not read stale values calls [`Table::barrier`] afterwards, or
/// holds a lease (`protocols.md` 6.5).
///
/// When the last clone is dropped the instance ends; what is not acknowledged may or may not be
/// in the table. [`Table::close`] ends it properly.
#[derive(Clone)]
pub struct Table(Rc<Owner>);

/// Ends the instance with its last handle.
struct Owner(Rc<Engine>);

/// A log that is kept for its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptLog {
    /// Its number, as [`crate::Place::log`] has it.
    pub log: u64,
    /// This instance has written it.
    pub is_own: bool,
    /// A fork has left it here: other tables may have it too, and what it shows of its keys, so of its
    /// data, may be a part.
    pub is_inherited: bool,
    /// Its file's name in the table's directory.
    pub name: String,
    /// Its bytes.
    pub len: u64,
    /// Bytes of data in it.
    pub data: u64,
}

/// Present state of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// The last change that reads see.
    pub seq: Seq,
    /// Number of its present owner: how often it has been opened and its manifest rolled over.
    pub generation: u32,
    /// Sorted runs, and files and bytes in them.
    pub runs: usize,
    /// Sorted files.
    pub files: usize,
    /// Bytes of sorted files.
    pub bytes: u64,
    /// Bytes of changes in memory.
    pub memory: usize,
    /// Full memtables that wait for their flush.
    pub frozen: usize,
    /// Snapshots and scans that hold old versions.
    pub snapshots: usize,
    /// Files that wait to be removed.
    pub pending_deletes: usize,
    /// Appends of the log by this instance.
    pub groups: u64,
    /// Batches in them.
    pub batches: u64,
    /// Bytes of them.
    pub log_bytes: u64,
    /// Memtables flushed by this instance.
    pub flushes: u64,
    /// Bytes of sorted files that flushes wrote.
    pub flushed_bytes: u64,
    /// Merges by this instance.
    pub merges: u64,
    /// Bytes of sorted files that merges wrote.
    pub merged_bytes: u64,
    /// Batches refused as [`Error::Busy`].
    pub refused: u64,
}

impl Table {
    /// Opens the table in a directory and takes it over from its owner, if it has one. Should
    /// another opening overtake this one while its last answer is on its way, the table is fenced
    /// from the start: its first write, or [`Table::barrier`], says so.
    pub async fn open(
        env: &Env,
        store: Rc<dyn Store>,
        cache: &Cache,
        options: Options,
    ) -> Result<Table, Error> {
        Table::open_beside(env, store, cache, options, &|_, _| {}).await
    }

    /// As [`Table::open`], for callers with something to do beside the rest of it: `logged` gets the
    /// keys and values that were changed lately, as soon as no former owner changes any key any more.
    /// An opening that another one overtakes may begin again, and so come to `logged` again.
    pub async fn open_beside(
        env: &Env,
        store: Rc<dyn Store>,
        cache: &Cache,
        options: Options,
        logged: &dyn Fn(&[u8], &[u8]),
    ) -> Result<Table, Error> {
        let engine = crate::open::open(env, store, cache, options, logged).await?;
        Ok(Table(Rc::new(Owner(engine))))
    }

    /// A view of the table in a directory at present, without taking it over: its owner, if it has
    /// one, goes on. All of it when it was closed; otherwise what its owner has made durable
    /// lately may be missing, so that a view is some earlier moment. Nothing is pinned: when a read ends with `Missing` or `Fenced`, the
    /// table has gone on, and a new view helps.
    pub async fn open_view(
        env: &Env,
        store: Rc<dyn Store>,
        cache: &Cache,
    ) -> Result<Snapshot, Error> {
        crate::view::open_view(env, store, cache).await
    }

    /// Sets a key's value; ends when that is durable, with the change's sequence.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<Seq, Error> {
        self.write(Batch::new().put(key, value)).await
    }

    /// Deletes a key; fine when it is not there.
    pub async fn delete(&self, key: &[u8]) -> Result<Seq, Error> {
        self.write(Batch::new().delete(key)).await
    }

    /// Makes changes, all or none; ends when they are durable and seen by reads, with the
    /// sequence of the last. Batches of concurrent callers share appends. Batches that one task
    /// starts one after the other are made in that order.
    pub async fn write(&self, batch: &Batch) -> Result<Seq, Error> {
        let engine = &self.0.0;
        if batch.is_empty() && batch.flaw().is_none() {
            return Ok(engine.visible.get());
        }
        self.submit(batch)?.await
    }

    /// Starts to make changes and answers what ends as [`Table::write`] does. An error means
    /// that nothing was started.
    pub fn submit(
        &self,
        batch: &Batch,
    ) -> Result<impl Future<Output = Result<Seq, Error>> + use<>, Error> {
        let outcome = self.submit_placed(batch)?;
        Ok(async move { outcome.await.map(|written| written.seq) })
    }

    /// As [`Table::submit`], for batches with data.
    pub fn submit_placed(
        &self,
        batch: &Batch,
    ) -> Result<impl Future<Output = Result<Written, Error>> + use<>, Error> {
        let engine = self.0.0.clone();
        let outcome = engine.submit(batch)?;
        Ok(async move {
            match outcome.await {
                Ok(done) => done,
                Err(_) => Err(Error::Unknown {
                    what: format!("write to {}", engine.name()),
                    cause: "the instance was dropped".to_owned(),
                }),
            }
        })
    }

    /// Succeeds when this instance still was the owner at some time during the call: all that it
    /// has read before was not stale then. Costs one durable append of the log.
    pub async fn barrier(&self) -> Result<(), Error> {
        self.submit(&Batch::new())?.await.map(drop)
    }

    /// A key's value.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        if key.len() > KEY_MAX {
            return Ok(None);
        }
        self.0.0.get(key, self.0.0.visible.get()).await
    }

    /// The entries of a range as they are now.
    pub fn scan(&self, range: Range) -> Scan {
        Scan::new(Pin::new(&self.0.0), range)
    }

    /// The table as it is now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { pin: Pin::new(&self.0.0) }
    }

    /// Ends when all that was acknowledged before is in sorted files.
    pub async fn flush(&self) -> Result<(), Error> {
        let engine = &self.0.0;
        engine.flush_now().await
    }

    /// Ends the present log, and when all that was acknowledged before is in sorted files: of that log,
    /// nothing but data is kept. For a full cluster, where the next log may be long in coming.
    pub async fn end_log(&self) -> Result<(), Error> {
        let engine = &self.0.0;
        engine.end_log.set(true);
        engine.flush_now().await
    }

    /// Merges all sorted runs into one. When the caller stops waiting, a merge that has begun goes
    /// on to its end.
    pub async fn compact(&self) -> Result<(), Error> {
        loop {
            // A task of its own: its edit of the manifest is committed, or the instance has ended.
            let engine = self.0.0.clone();
            let merge = async move { engine.merge_step(true).await };
            let merge = self.0.0.env.spawn(Class::Background, "table compact", merge);
            match merge.await {
                Ok(merged) => {
                    if !merged? {
                        return Ok(());
                    }
                }
                Err(_) => {
                    return Err(Error::Unknown {
                        what: format!("merge of {}", self.0.0.name()),
                        cause: "the instance was dropped".to_owned(),
                    });
                }
            }
        }
    }

    /// Logs that are there for their data alone: all their changes are in sorted files.
    pub fn data_logs(&self) -> Vec<KeptLog> {
        let kept = self.0.0.kept_logs.borrow();
        let public = |log: &DataLog| KeptLog {
            log: log.file.get(),
            is_own: log.file.generation == self.0.0.generation,
            is_inherited: self.0.0.bounds.of_log(log.file).is_some(),
            name: Name::Log(log.file).to_string(),
            len: log.len,
            data: log.data,
        };
        kept.values().map(public).collect()
    }

    /// Data that came with a batch which is durable: `len` bytes from the place on.
    pub async fn read_data(&self, place: Place, len: usize) -> Result<Vec<u8>, Error> {
        let engine = &self.0.0;
        let read = async {
            let source = engine.data_source(place.log_file()).await?;
            let (path, offset) = (engine.table_files.path(place.name()), place.offset());
            let bytes = source.read_acknowledged(offset, len).await;
            let bytes = bytes.map_err(|fault| Error::of_store(fault, "read", &path))?;
            let what = "it ends within data";
            let is_short = bytes.len() < len;
            if is_short { Err(Error::Corrupt { file: path, offset, what }) } else { Ok(bytes) }
        };
        match read.await {
            Ok(bytes) => Ok(bytes),
            Err(error) => Err(engine.explain(error).await),
        }
    }

    /// When the instance has ended since an append of the log found no room: what that append was for
    /// ([`Batch::set_purpose`]).
    pub fn out_of_room(&self) -> Option<Purpose> {
        self.0.0.out_of_room.get()
    }

    /// True when batches may bring data.
    pub fn takes_data(&self) -> bool {
        self.0.0.form == Form::WithData
    }

    /// Changes that such a log has from an offset on (0 at first), with the places of their data. A log
    /// that was inherited by a fork shows those of keys that it was inherited for.
    /// None when it is not kept any more.
    pub async fn read_log(&self, log: u64, from: u64) -> Result<Option<LogPage>, Error> {
        let engine = &self.0.0;
        let known = engine.kept_logs.borrow().get(&FileNo::from_raw(log)).copied();
        let Some(known) = known else { return Ok(None) };
        let shows = engine.bounds.of_log(known.file).map(|bounds| &**bounds);
        match recover::page(&engine.table_files, (known, shows), from).await {
            Ok(page) => Ok(Some(page)),
            Err(error) => Err(engine.explain(error).await),
        }
    }

    /// Removes such a log: its data is not needed. Fine when it is not there.
    pub async fn release_log(&self, log: u64) -> Result<(), Error> {
        let (engine, file) = (&self.0.0, FileNo::from_raw(log));
        // A task of its own: an edit is not left half-way.
        let released = engine.clone();
        let release = async move { released.release_log(file).await };
        let released = engine.env.spawn(Class::Background, "table release", release).await;
        released.unwrap_or_else(|_| {
            let what = format!("release of a log of {}", engine.name());
            Err(Error::Unknown { what, cause: "the instance was dropped".to_owned() })
        })
    }

    pub(crate) fn engine(&self) -> &Rc<Engine> {
        &self.0.0
    }

    /// Its present state.
    pub fn stats(&self) -> Stats {
        let engine = &self.0.0;
        let (runs, counts) = (engine.runs.borrow(), engine.counts.get());
        let frozen = engine.frozen.borrow();
        let memory = frozen.iter().map(|full| full.bytes()).sum::<usize>();
        Stats {
            seq: engine.visible.get(),
            generation: engine.generation,
            runs: runs.len(),
            files: runs.iter().map(|run| run.files.len()).sum(),
            bytes: runs.iter().map(|run| run.bytes()).sum(),
            memory: memory + engine.active.borrow().bytes(),
            frozen: frozen.len(),
            snapshots: engine.snapshots.borrow().values().sum(),
            pending_deletes: engine.table_files.pending_deletes.len(),
            groups: counts.groups,
            batches: counts.batches,
            log_bytes: counts.log_bytes,
            flushes: counts.flushes,
            flushed_bytes: counts.flushed_bytes,
            merges: counts.merges,
            merged_bytes: counts.merged_bytes,
            refused: counts.refused,
        }
    }

    /// Ends the instance when all that was started is durable. Other clones find it ended.
    pub async fn close(self) -> Result<(), Error> {
        let engine = self.0.0.clone();
        let last = engine.submit(&Batch::new())?;
        engine.closing.set(true);
        let outcome = last.await.map_or(Ok(()), |outcome| outcome.map(drop));
        engine.end(Over::Closed);
        engine.commit_is_over().await;
        let manifest = engine.manifest.lock().await.take();
        if let Some(manifest) = manifest {
            manifest.close().await;
        }
        let spare = engine.next_log.borrow_mut().take();
        if let Some(log) = spare {
            let _ = log.writer.close().await; // Empty: the next opening drops it.
        }
        outcome
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.end(Over::Closed);
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table({} generation {})", self.0.0.name(), self.0.0.generation)
    }
}

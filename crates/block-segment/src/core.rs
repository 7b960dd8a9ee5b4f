//! [`Core`]: the state of an open segment, and what its tasks share.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use base::{Fault, Kind};
use block_volume::dedup::DedupWindows;
use block_volume::ids::{FileNo, Identity, Seq};
use block_volume::record::DecodeError;
use runtime::sync::{Mutex, Notify, Semaphore};
use runtime::{Env, Instant};
use table::{Batch, Store, Table};

use super::aside::Aside;
use super::cuts::Cuts;
use super::files::{DataFile, Open};
use super::format::page::decode_page;
use super::format::state::{SEGMENT_KEY, ScrubState, SegmentState, page_key};
use super::format::txn::Watermark;
use super::index::IndexMap;
use super::limits::QUEUE_BYTES_MAX;
use super::locks::Locks;
use super::options::Options;
use super::queue::Queue;
use super::shared::{SegmentShare, Shared};
use super::types::Update;

/// Updates of one append, which are in the index and not in the TxnFile yet.
pub(crate) struct PendingIndexUpdate {
    pub(crate) seq: Seq,
    pub(crate) mark: Option<Watermark>,
    pub(crate) updates: Vec<Update>,
    pub(crate) since: Instant,
}

/// Counters of an instance.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) appends: u64,
    pub(crate) records: u64,
    pub(crate) log_bytes: u64,
    pub(crate) txns: u64,
    pub(crate) checkpoints: u64,
    pub(crate) pages_stored: u64,
    pub(crate) pages_asked: u64,
    pub(crate) collected: u64,
    pub(crate) collected_blocks: u64,
    pub(crate) collected_bytes: u64,
    pub(crate) collect_read_bytes: u64,
}

/// An open segment.
pub(crate) struct Core {
    pub(crate) env: Env,
    pub(crate) store: Rc<dyn Store>,
    /// The same directory, with the policy of collection's outputs.
    pub(crate) outputs: Rc<dyn Store>,
    pub(crate) table: Table,
    pub(crate) identity: Identity,
    pub(crate) bytes: u64,
    pub(crate) epoch: u64,
    pub(crate) options: Options,
    /// Of the table's instance; in the names of files made by this one.
    pub(crate) generation: u32,
    pub(crate) files: RefCell<BTreeMap<FileNo, Rc<DataFile>>>,
    pub(crate) next_file: Cell<u32>,
    /// The first number that is this instance's.
    pub(crate) first_file: u32,
    /// The index, and this segment's share of the process's state.
    pub(crate) share: Rc<SegmentShare>,
    /// Pages that are being read from the table.
    asked: RefCell<BTreeSet<u32>>,
    answered: Notify,
    pub(crate) locks: Locks,
    /// Windows of clients' changes that have happened.
    pub(crate) dedup: RefCell<DedupWindows>,
    pub(crate) queue: RefCell<Queue>,
    /// Bytes that may wait in the queue.
    pub(crate) room: Arc<Semaphore>,
    /// Counter of the last change.
    pub(crate) counter: Cell<u64>,
    pub(crate) unlogged: RefCell<VecDeque<PendingIndexUpdate>>,
    pub(crate) unlogged_count: Cell<usize>,
    /// Changes of the index, and how many of these the TxnFile has.
    pub(crate) installed: Cell<u64>,
    pub(crate) installed_logged: Cell<u64>,
    /// The TxnFile is to be written though its batch is small.
    pub(crate) log_now: Cell<bool>,
    /// Numbers of the oldest batch that the table has, and of the next.
    pub(crate) first_txn: Cell<u64>,
    pub(crate) next_txn: Cell<u64>,
    /// Number behind the last batch that is durable, and the change up to which they reach.
    pub(crate) logged_txn: Cell<u64>,
    pub(crate) logged: Cell<u64>,
    /// Updates in the TxnFile since the last checkpoint.
    pub(crate) txn_updates: Cell<u64>,
    /// The DataFile after the present one, when it is made.
    pub(crate) spare: RefCell<Option<Open>>,
    pub(crate) making: Mutex<()>,
    /// Held from reading the table's state of files until a batch with it is accepted.
    pub(crate) turn: Mutex<()>,
    pub(crate) over: RefCell<Option<Fault>>,
    pub(crate) closing: Cell<bool>,
    pub(crate) log_ended: Cell<bool>,
    pub(crate) wake_txn: Notify,
    pub(crate) wake_files: Notify,
    pub(crate) wake_collect: Notify,
    /// Something was logged or stored, or the instance is over.
    pub(crate) changed: Notify,
    pub(crate) checkpointing: Mutex<()>,
    pub(crate) cuts: Cuts,
    /// Files that could not be collected.
    pub(crate) aside: RefCell<Aside>,
    pub(crate) counts: Cell<Counts>,
    pub(crate) scrub: Cell<ScrubState>,
    /// Bytes of blocks that the scrub of this instance has read.
    pub(crate) scrub_read: Cell<u64>,
}

/// State from which recovery starts.
pub(crate) struct Start {
    pub(crate) store: Rc<dyn Store>,
    pub(crate) outputs: Rc<dyn Store>,
    pub(crate) table: Table,
    pub(crate) state: SegmentState,
    pub(crate) scrub: ScrubState,
    pub(crate) options: Options,
    pub(crate) shared: Shared,
    pub(crate) files: BTreeMap<FileNo, Rc<DataFile>>,
    pub(crate) index: IndexMap,
    pub(crate) dedup: DedupWindows,
    /// Numbers of the oldest TxnFile batch and of the next, and updates in them.
    pub(crate) txns: (u64, u64),
    pub(crate) txn_updates: u64,
    pub(crate) logged: u64,
}

impl Core {
    pub(crate) fn new(env: &Env, start: Start) -> Core {
        let Start { store, outputs, table, state, options, files, index, dedup, .. } = start;
        let Start { shared, scrub, txns, txn_updates, logged, .. } = start;
        Core {
            env: env.clone(),
            store,
            outputs,
            identity: state.identity,
            bytes: state.bytes,
            epoch: state.epoch,
            options,
            generation: table.stats().generation,
            table,
            files: RefCell::new(files),
            next_file: Cell::new(state.next_file),
            first_file: state.next_file,
            share: shared.join(index),
            asked: RefCell::default(),
            answered: Notify::new(),
            locks: Locks::default(),
            dedup: RefCell::new(dedup),
            queue: RefCell::default(),
            room: Arc::new(Semaphore::new(QUEUE_BYTES_MAX)),
            counter: Cell::new(logged),
            unlogged: RefCell::default(),
            unlogged_count: Cell::new(0),
            installed: Cell::new(0),
            installed_logged: Cell::new(0),
            log_now: Cell::new(false),
            first_txn: Cell::new(txns.0),
            next_txn: Cell::new(txns.1),
            logged_txn: Cell::new(txns.1),
            logged: Cell::new(logged),
            txn_updates: Cell::new(txn_updates),
            spare: RefCell::default(),
            making: Mutex::new(()),
            turn: Mutex::new(()),
            over: RefCell::default(),
            closing: Cell::new(false),
            log_ended: Cell::new(false),
            wake_txn: Notify::new(),
            wake_files: Notify::new(),
            wake_collect: Notify::new(),
            changed: Notify::new(),
            checkpointing: Mutex::new(()),
            cuts: Cuts::default(),
            aside: RefCell::default(),
            counts: Cell::default(),
            scrub: Cell::new(scrub),
            scrub_read: Cell::new(0),
        }
    }

    /// A fault of this segment.
    pub(crate) fn fault(&self, kind: Kind, text: impl std::fmt::Display) -> Fault {
        Fault::new(kind, format!("{} in {}: {text}", self.identity, self.store.name()))
    }

    /// A store's fault, with the operation and the file.
    pub(crate) fn cause(&self, what: &str, file: &str, fault: Fault) -> Fault {
        self.fault(fault.kind, format!("could not {what} {file}: {}", fault.message))
    }

    /// Fault of a damaged file.
    pub(crate) fn damage(&self, file: &str, offset: u64, flaw: DecodeError) -> Fault {
        let (kind, what) = match flaw {
            DecodeError::Damaged(what) => (Kind::Corrupt, what.to_owned()),
            DecodeError::Version(seen) => {
                (Kind::Invalid, format!("format version {seen}; use the program that wrote it"))
            }
        };
        self.fault(kind, format!("{file}, about offset {offset}: {what}"))
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.borrow().is_some()
    }

    /// Ends the instance, if nothing has before. `cause` of kind `Fenced` says that another
    /// owner has the segment; after any other it can be opened again here.
    pub(crate) fn end(&self, cause: Fault) {
        if self.is_over() {
            return;
        }
        let fault = match cause.kind {
            Kind::Fenced => self.fault(
                Kind::Fenced,
                format!("another owner has taken it over ({}); ask for it there", cause.message),
            ),
            kind => {
                let (segment, cause) = (self.identity, &cause.message);
                match self.closing.get() {
                    true => tracing::debug!(%segment, cause, "the segment stops"),
                    false => tracing::warn!(%segment, cause, "the segment stops"),
                }
                let kind = if kind == Kind::Full { Kind::Full } else { Kind::Retry };
                let text = format!("takes no changes since one failed ({cause})");
                self.fault(kind, format!("{text}; open it again"))
            }
        };
        *self.over.borrow_mut() = Some(fault);
        let background = [&self.share.wake_checkpoint, &self.wake_files, &self.wake_collect];
        [&self.share.wake_log, &self.wake_txn]
            .into_iter()
            .chain(background)
            .for_each(Notify::notify_one);
        self.changed.notify_waiters();
        self.answered.notify_waiters();
    }

    /// The error for a caller after the end.
    pub(crate) fn check_open(&self) -> Result<(), Fault> {
        match &*self.over.borrow() {
            Some(fault) => Err(fault.clone()),
            None if self.closing.get() => Err(self.fault(Kind::Retry, "it is being closed")),
            None => Ok(()),
        }
    }

    /// The next change's position in history.
    pub(crate) fn next_seq(&self) -> Seq {
        self.counter.set(self.counter.get() + 1);
        Seq { epoch: self.epoch, counter: self.counter.get() }
    }

    /// Puts the segment's row into a batch.
    pub(crate) fn put_state(&self, batch: &mut Batch) {
        let state = SegmentState {
            identity: self.identity,
            bytes: self.bytes,
            epoch: self.epoch,
            next_file: self.next_file.get(),
            counter: self.logged.get(),
        };
        batch.put(SEGMENT_KEY, &state.encode());
    }

    /// Commits changes to the table; `build` sees files' states in an order that is also that of
    /// the changes. A failure ends the instance: the outcome is not known.
    pub(crate) async fn commit(&self, build: impl FnOnce(&mut Batch)) -> Result<(), Fault> {
        let accepted = {
            let _turn = self.turn.lock().await;
            self.over.borrow().clone().map_or(Ok(()), Err)?;
            let mut batch = Batch::new();
            build(&mut batch);
            loop {
                match self.table.submit(&batch) {
                    Ok(accepted) => break accepted,
                    Err(table::Error::Busy { retry_after, .. }) => {
                        self.env.sleep(retry_after).await;
                    }
                    Err(error) => return Err(self.failed(error)),
                }
            }
        };
        accepted.await.map(drop).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: table::Error) -> Fault {
        let fault = self.of_table(error);
        self.end(fault.clone());
        fault
    }

    /// A table's error as a fault of the segment.
    pub(crate) fn of_table(&self, error: table::Error) -> Fault {
        let kind = match &error {
            // No other owner has caused it.
            table::Error::Stopped { .. } => Kind::Retry,
            other => other.kind(),
        };
        self.fault(kind, error)
    }

    /// Merges a page of the index with the table's page.
    pub(crate) async fn meet(&self, page: u32) -> Result<(), Fault> {
        loop {
            let answered = self.answered.notified();
            if self.share.index.borrow().has_met(page) {
                return Ok(());
            }
            if self.asked.borrow_mut().insert(page) {
                break;
            }
            answered.await;
        }
        // While it is being read, it is neither stored nor dropped.
        let _asking = Asking { core: self, page };
        let stored = self.table.get(&page_key(page)).await;
        let stored = stored.map_err(|error| self.of_table(error))?;
        self.count(|counts| counts.pages_asked += 1);
        let locs = decode_page(stored.as_deref().unwrap_or_default());
        let locs = locs.map_err(|flaw| self.damage(&format!("index page {page}"), 0, flaw))?;
        self.share.watch(); // Before that, so that the caller finds the page.
        self.share.index.borrow_mut().meet(page, &locs);
        self.share.grown();
        Ok(())
    }

    /// Begins checkpoints that are due, and drops pages when there is no room for them.
    pub(crate) fn watch_memory(&self) {
        self.share.watch();
        if self.is_checkpoint_due() {
            self.share.wake_checkpoint.notify_one();
        }
    }

    pub(crate) fn is_checkpoint_due(&self) -> bool {
        self.share.is_store_due() || self.txn_updates.get() >= self.options.checkpoint_updates
    }
}

/// A page that is being read from the table.
struct Asking<'a> {
    core: &'a Core,
    page: u32,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.core.asked.borrow_mut().remove(&self.page);
        self.core.answered.notify_waiters();
    }
}

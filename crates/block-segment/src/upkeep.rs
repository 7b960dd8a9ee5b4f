//! Background work behind reads and writes: the TxnFile, checkpoints of the index, DataFiles ahead.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::ids::{FileNo, Seq};
use futures_util::future::{select, try_join_all};
use runtime::Duration;

use super::core::Core;
use super::files::DataFile;
use super::format::state::{dedup_key, file_key, page_key, txn_key};
use super::format::txn::{Txn, Watermark};
use super::limits::{CHECKPOINT_PAGES, TXN_MARKS_MAX, TXN_UPDATES_MAX};
use super::types::{merge, replay_weight};

/// Pause after background work has failed.
const RETRY: Duration = Duration::from_millis(100);

impl Core {
    /// The task that writes the TxnFile, until the instance is over.
    pub(crate) async fn log_always(self: Rc<Self>) {
        loop {
            let oldest = self.unlogged.borrow().front().map(|unlogged| unlogged.since);
            let Some(oldest) = oldest else {
                if self.is_over() {
                    return;
                }
                self.log_now.set(false);
                self.wake_txn.notified().await;
                continue;
            };
            if self.is_over() {
                return;
            }
            let full = self.unlogged_count.get() >= self.options.txn_updates;
            let due = oldest + self.options.txn_wait;
            if !full && !self.log_now.get() && self.env.now() < due {
                let woken = Box::pin(self.wake_txn.notified());
                select(Box::pin(self.env.sleep_until(due)), woken).await;
                continue;
            }
            if let Err(fault) = self.log_batch().await {
                return self.end(fault);
            }
        }
    }

    /// Writes the oldest updates as a batch of the TxnFile (B2).
    async fn log_batch(&self) -> Result<(), Fault> {
        let (mut seq, mut updates) = (Seq::default(), Vec::new());
        let (mut marks, mut weight) = (BTreeMap::<FileNo, Watermark>::new(), 0);
        let mut installs = 0;
        {
            let waiting = &mut *self.unlogged.borrow_mut();
            while let Some(next) = waiting.front() {
                assert!(next.updates.len() <= TXN_UPDATES_MAX, "each fits into a batch alone");
                if updates.len() + next.updates.len() > TXN_UPDATES_MAX
                    || marks.len() == TXN_MARKS_MAX
                {
                    break;
                }
                let next = waiting.pop_front().expect("just seen");
                weight += next.updates.len().max(1);
                installs += 1;
                seq = seq.max(next.seq);
                marks.extend(next.mark.map(|mark| (mark.file, mark)));
                next.updates.iter().for_each(|update| merge(&mut updates, *update));
            }
        }
        let count = replay_weight(&updates);
        let marks: Vec<Watermark> = marks.into_values().collect();
        let number = self.next_txn.get();
        self.next_txn.set(number + 1);
        let txn = Txn { seq, marks, updates };
        self.commit(|batch| {
            batch.put(&txn_key(number), &txn.encode());
            // The windows have all changes of the batch: those before it in the index.
            for (attachment, window) in self.dedup.borrow_mut().take_changed() {
                match window {
                    Some(window) => batch.put(&dedup_key(attachment), &window),
                    None => batch.delete(&dedup_key(attachment)),
                };
            }
            for mark in &txn.marks {
                let file = self.files.borrow().get(&mark.file).cloned();
                let Some(file) = file.filter(|file| file.closed.get()) else { continue };
                if file.end.get() == mark.end {
                    let (units, blocks) = (mark.end, mark.blocks);
                    file.change(|state| {
                        (state.sealed, state.units, state.blocks) = (true, units, blocks);
                    });
                    batch.put(&file_key(mark.file), &file.state.get().encode());
                }
            }
        })
        .await?;
        for mark in &txn.marks {
            if let Some(file) = self.files.borrow().get(&mark.file) {
                file.change(|state| {
                    // One that is sealed has all of it.
                    if mark.end > state.units {
                        (state.units, state.blocks) = (mark.end, mark.blocks);
                    }
                });
            }
        }
        self.logged_txn.set(number + 1);
        self.logged.set(self.logged.get().max(seq.counter));
        self.installed_logged.set(self.installed_logged.get() + installs);
        self.unlogged_count.set(self.unlogged_count.get() - weight);
        self.txn_updates.set(self.txn_updates.get() + count);
        self.count(|counts| counts.txns += 1);
        self.share.wake_log.notify_one();
        self.wake_collect.notify_one();
        self.changed.notify_waiters();
        self.watch_memory();
        Ok(())
    }

    /// Ends when the TxnFile has all that was answered before.
    pub(crate) async fn log_all(&self) -> Result<(), Fault> {
        let last = self.installed.get();
        loop {
            let changed = self.changed.notified();
            if self.installed_logged.get() >= last {
                return Ok(());
            }
            self.over.borrow().clone().map_or(Ok(()), Err)?;
            self.log_now.set(true);
            self.wake_txn.notify_one();
            changed.await;
        }
    }

    /// The task that stores changed index pages, until the instance is over.
    pub(crate) async fn checkpoint_always(self: Rc<Self>) {
        while !self.is_over() {
            if !self.is_checkpoint_due() {
                self.share.wake_log.notify_one(); // Others may have stored enough.
                self.share.wake_checkpoint.notified().await;
                continue;
            }
            match self.checkpoint().await {
                Ok(()) => {}
                Err(_) if self.is_over() => {}
                Err(fault) => {
                    // A page could not be read: nothing was changed.
                    tracing::warn!(cause = fault.message, "no checkpoint; trying again");
                    self.env.sleep(self.env.jitter(RETRY)).await;
                }
            }
        }
    }

    /// Stores all pages that are dirty now; drops TxnFile batches that these cover.
    pub(crate) async fn checkpoint(&self) -> Result<(), Fault> {
        let _checkpointing = self.checkpointing.lock().await;
        let (first, end) = (self.first_txn.get(), self.logged_txn.get());
        // The batches' updates are in memory, so the pages that these have changed are dirty or stored.
        let counted = self.txn_updates.get();
        let pages = self.share.index.borrow().dirty_pages();
        for pages in pages.chunks(CHECKPOINT_PAGES) {
            self.store_pages(pages).await?;
        }
        // A batch of the table has 65,536 operations at most.
        let all: Vec<u64> = (first..end).collect();
        for (index, numbers) in all.chunks(table::limits::BATCH_OPS_MAX / 2).enumerate() {
            self.commit(|batch| {
                // From here on the files' own rows have the watermarks.
                if index == 0 {
                    self.put_state(batch);
                    self.put_open_files(batch);
                }
                for number in numbers {
                    batch.delete(&txn_key(*number));
                }
            })
            .await?;
        }
        self.first_txn.set(end);
        self.txn_updates.set(self.txn_updates.get() - counted);
        self.count(|counts| counts.checkpoints += 1);
        self.env.mark("segment: checkpoint");
        self.watch_memory();
        self.share.wake_log.notify_one();
        self.wake_collect.notify_one();
        self.changed.notify_waiters();
        Ok(())
    }

    fn put_open_files(&self, batch: &mut table::Batch) {
        for file in self.files.borrow().values().filter(|file| !file.state.get().sealed) {
            batch.put(&file_key(file.number), &file.state.get().encode());
        }
    }

    /// Stores some pages, and in the same batch the files' counts of blocks in them.
    async fn store_pages(&self, pages: &[u32]) -> Result<(), Fault> {
        try_join_all(pages.iter().map(|page| self.meet(*page))).await?;
        let mut versions = Vec::new();
        self.commit(|batch| {
            let index = &mut *self.share.index.borrow_mut();
            let mut touched: BTreeMap<FileNo, Rc<DataFile>> = BTreeMap::new();
            for &page in pages {
                let (bytes, deltas, version) = index.take_page(page);
                match bytes.is_empty() {
                    true => batch.delete(&page_key(page)),
                    false => batch.put(&page_key(page), &bytes),
                };
                versions.push((page, version));
                for (number, change) in deltas {
                    // A file that was collected is gone.
                    let Some(file) = self.files.borrow().get(&number).cloned() else { continue };
                    file.change(|state| {
                        let live = state.live.checked_add_signed(change);
                        state.live = live.expect("no fewer blocks than none");
                    });
                    touched.insert(number, file);
                }
            }
            for file in touched.values() {
                batch.put(&file_key(file.number), &file.state.get().encode());
            }
        })
        .await?;
        {
            let index = &mut *self.share.index.borrow_mut();
            versions.iter().for_each(|(page, version)| index.stored(*page, *version));
        }
        self.count(|counts| counts.pages_stored += versions.len() as u64);
        self.share.watch();
        self.share.wake_log.notify_one();
        Ok(())
    }

    /// The task that makes DataFiles ahead of their use.
    pub(crate) async fn make_files_always(self: Rc<Self>) {
        loop {
            self.wake_files.notified().await;
            if self.is_over() {
                return;
            }
            match self.make_spare().await {
                Err(fault) if fault.kind == Kind::Fenced => return self.end(fault),
                // The writer asks again when it needs it.
                made => drop(made),
            }
        }
    }
}

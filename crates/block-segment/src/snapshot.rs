//! Cuts of a segment, and directories made from them (B10, B11; `protocols.md` 6.6, 6.7).
//!
//! A cut is first fixed in memory. From its begin on no append enters the index: later changes are
//! neither answered nor read, while appends go on. As soon as the TxnFile has all that was answered
//! before, a snapshot of the table is the cut: its pages and batches have the location of each
//! block. Then the hold may end. Files that the cut names stay until it is given up.
//!
//! Later the cut becomes a directory of its own: the DataFiles that it names are closed, sealed
//! in the core and linked; the table's rows are copied. The other directory's owner opens it as
//! any segment. From then on each owner collects for itself, by copying and unlinking.

use std::cell::Cell;
use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::ids::{FileNo, Identity};
use futures_util::future::join_all;
use runtime::{Class, Duration};
use table::{Store, Table};

use super::core::Core;
use super::cuts::{Cut, Linking};
use super::files::DataFile;
use super::format::state::{FileState, Role, SEGMENT_KEY, SegmentState};
use super::limits::{CUT_KEEP, CUT_LOOK, SEALS_INFLIGHT};
use super::link::Filling;
use super::segment::Segment;

/// Bytes of the cache for a table that is only written.
const LINK_CACHE: usize = 64 << 10;

impl Core {
    /// Fixes a cut and holds answers back, until it is released or `most` has passed. When it
    /// succeeds, the cut has all changes answered before the call, and none that begins after its
    /// end.
    pub(crate) async fn cut(self: &Rc<Self>, id: u64, most: Duration) -> Result<(), Fault> {
        self.check_open()?;
        if self.fixed(id).is_some() {
            return Ok(()); // The request came twice.
        }
        let retry = |text: &str| Err(self.fault(Kind::Retry, format!("cut {id:x} {text}")));
        if self.cuts.hold.get().is_some_and(|(held, _)| held == id) {
            return retry("is being fixed");
        }
        self.give_up();
        let hold = Some((id, self.env.now()));
        self.cuts.hold.set(hold);
        let (core, env) = (Rc::downgrade(self), self.env.clone());
        self.env.spawn(Class::Control, "segment: hold", async move {
            env.sleep(most).await;
            if let Some(core) = core.upgrade()
                && core.cuts.hold.get() == hold
            {
                env.mark("segment: a hold has run out");
                core.give_up();
            }
        });
        let fixed = self.fix(id).await;
        if self.cuts.hold.get() != hold {
            return retry("was given up: it took too long");
        }
        match fixed {
            Ok(cut) => {
                self.cuts.fixed.replace(Some(Rc::new(cut)));
                self.env.mark("segment: cut");
                Ok(())
            }
            Err(fault) => {
                self.give_up();
                Err(fault)
            }
        }
    }

    async fn fix(&self, id: u64) -> Result<Cut, Fault> {
        // All that was answered is in the index; the TxnFile gets it too.
        self.log_all().await?;
        // With the turn held and all accepted batches made, table and memory agree.
        let _turn = self.turn.lock().await;
        self.over.borrow().clone().map_or(Ok(()), Err)?;
        while let Err(error) = self.table.barrier().await {
            let table::Error::Busy { retry_after, .. } = error else {
                return Err(self.of_table(error));
            };
            self.env.sleep(retry_after).await;
        }
        let files = self.files.borrow();
        let of_cut = |file: &Rc<DataFile>| {
            let mut state = file.state.get();
            if !state.sealed {
                let (units, blocks) = (file.end.get(), file.blocks.get());
                (state.sealed, state.units, state.blocks) = (true, units, blocks);
            }
            state.clone_source = file.identity(self.identity).volume;
            (state.blocks > 0).then(|| (file.clone(), state))
        };
        Ok(Cut {
            id,
            rows: self.table.snapshot(),
            next_file: self.next_file.get(),
            counter: self.logged.get(),
            files: files.values().filter_map(of_cut).collect(),
            held: Cell::new(None),
            keep_until: Cell::default(),
            linking: Cell::new(0),
        })
    }

    fn fixed(&self, id: u64) -> Option<Rc<Cut>> {
        self.cuts.fixed.borrow().clone().filter(|cut| cut.id == id)
    }

    fn no_cut(&self, id: u64) -> Fault {
        self.fault(Kind::NotFound, format!("cut {id:x} was given up; begin again"))
    }

    /// Ends the hold of a cut; returns its duration. `NotFound` when it was given up before:
    /// changes outside of it may have been answered since.
    pub(crate) fn release(self: &Rc<Self>, id: u64, keep: bool) -> Result<Duration, Fault> {
        self.over.borrow().clone().map_or(Ok(()), Err)?;
        let Some(cut) = self.fixed(id) else {
            if self.cuts.hold.get().is_some_and(|(held, _)| held == id) {
                self.give_up();
            }
            return Err(self.no_cut(id));
        };
        // A repeat of the release needs it still.
        cut.keep_until.set(self.env.now() + CUT_KEEP);
        if let Some((_, since)) = self.cuts.hold.take() {
            cut.held.set(Some(self.env.now() - since));
            self.share.wake_log.notify_one();
            let (core, env, cut) = (Rc::downgrade(self), self.env.clone(), Rc::downgrade(&cut));
            self.env.spawn(Class::Background, "segment: cut", async move {
                loop {
                    let Some(until) = cut.upgrade().map(|cut| cut.keep_until.get()) else { return };
                    let now = env.now();
                    env.sleep((until - now).max(CUT_LOOK)).await;
                    let (Some(core), Some(cut)) = (core.upgrade(), cut.upgrade()) else { return };
                    if !core.fixed(cut.id).is_some_and(|known| Rc::ptr_eq(&known, &cut)) {
                        return;
                    }
                    // It was never linked: its caller is gone.
                    if cut.linking.get() == 0 && cut.keep_until.get() <= env.now() {
                        return core.give_up();
                    }
                }
            });
        }
        let held = cut.held.get().unwrap_or_default();
        if !keep {
            self.give_up();
        }
        Ok(held)
    }

    /// Drops the cut, and ends the waits for it.
    pub(crate) fn give_up(&self) {
        self.cuts.hold.set(None);
        self.cuts.fixed.replace(None);
        self.share.wake_log.notify_one();
        let names = self.cuts.pending_deletes.take();
        if !names.is_empty() {
            let (store, env) = (self.store.clone(), self.env.clone());
            env.spawn(Class::Background, "segment: remove", async move {
                for name in names {
                    remove(&*store, &name).await;
                }
            });
        }
    }

    /// Removes a file that the table does not name any more, as soon as no cut does.
    pub(crate) async fn discard(&self, name: &str) {
        match self.cuts.pins() {
            true => self.cuts.pending_deletes.borrow_mut().push(name.to_owned()),
            false => remove(&*self.store, name).await,
        }
        self.cuts.deleting.take();
    }

    /// Makes the directory `target` a segment with the content of a cut that was released. A repeat
    /// does no harm.
    pub(crate) async fn link(
        &self,
        id: u64,
        target: Rc<dyn Store>,
        to: Identity,
    ) -> Result<(), Fault> {
        let released = |cut: &Rc<Cut>| cut.held.get().is_some();
        let cut = self.fixed(id).filter(released).ok_or_else(|| self.no_cut(id))?;
        let _kept = Linking::begin(&cut, &self.env);
        let _linking = self.cuts.linking.lock().await;
        self.end_files(&cut).await?;
        let names: Vec<String> = cut.files.iter().map(|(file, _)| file.name.clone()).collect();
        let linked = self.store.link(&names, target.name()).await;
        linked.map_err(|fault| self.cause("link files into", target.name(), fault))?;
        self.copy_rows(&cut, target, to).await?;
        self.env.mark("segment: cut linked");
        Ok(())
    }

    /// Makes sure that nothing is appended to a cut's files any more.
    async fn end_files(&self, cut: &Cut) -> Result<(), Fault> {
        let open = |role: Role| {
            let is_open = |(file, state): &(Rc<DataFile>, FileState)| {
                state.role == role && !file.closed.get()
            };
            cut.files.iter().any(is_open)
        };
        if open(Role::Log) {
            self.cuts.roll.set(true);
            self.share.wake_log.notify_one();
        }
        if open(Role::Collected) {
            self.cuts.seal.set(true);
            self.wake_collect.notify_one();
        }
        loop {
            let changed = self.changed.notified();
            self.over.borrow().clone().map_or(Ok(()), Err)?;
            // Collection may have abandoned an output, which is not closed then.
            if !open(Role::Log) && !self.cuts.wants_seal() {
                break;
            }
            changed.await;
        }
        let unsealed: Vec<_> = cut.files.iter().filter(|(file, _)| !file.ended.get()).collect();
        for some in unsealed.chunks(SEALS_INFLIGHT) {
            let seals = some.iter().map(|(file, _)| self.end_file(file));
            join_all(seals).await.into_iter().collect::<Result<(), Fault>>()?;
        }
        Ok(())
    }

    /// Makes the other directory's table: the row that makes it a segment comes last.
    async fn copy_rows(&self, cut: &Cut, target: Rc<dyn Store>, to: Identity) -> Result<(), Fault> {
        let failed = |error: table::Error| self.fault(error.kind(), error);
        let options = table::Options { create: true, ..self.options.table.clone() };
        let cache = self.share.shared().cache().beside(LINK_CACHE);
        let table = Table::open(&self.env, target, &cache, options).await.map_err(failed)?;
        if table.get(SEGMENT_KEY).await.map_err(failed)?.is_none() {
            let files: Vec<_> =
                cut.files.iter().map(|(file, state)| (file.number, *state)).collect();
            let state = SegmentState {
                identity: to,
                bytes: self.bytes,
                epoch: 0,
                next_file: cut.next_file,
                counter: cut.counter,
            };
            let filling = Filling {
                env: &self.env,
                rows: &cut.rows,
                table: &table,
                check: &|| self.over.borrow().clone().map_or(Ok(()), Err),
                of_rows: &failed,
                of_table: &failed,
            };
            filling.run(&files, state).await?;
        }
        table.close().await.map_err(failed)
    }

    /// Blocks in files of another volume, at least one for each file.
    pub(crate) fn shared(&self) -> u64 {
        let (files, index) = (self.files.borrow(), self.share.index.borrow());
        let foreign = files.values().filter(|file| file.state.get().clone_source != 0);
        let live = foreign.map(|file| {
            let live = i64::from(file.state.get().live) + index.pending(file.number);
            live.max(1) as u64
        });
        live.sum()
    }

    /// Begins to copy shared blocks; returns their number.
    pub(crate) fn flatten(&self) -> u64 {
        let shared = self.shared();
        if shared > 0 {
            self.cuts.flatten.set(true);
            self.wake_collect.notify_one();
        }
        shared
    }

    /// A file to collect because it is shared, after a request for that.
    pub(crate) fn pick_shared(&self) -> Option<FileNo> {
        if !self.cuts.flatten.get() {
            return None;
        }
        let files = self.files.borrow();
        let foreign = |file: &&Rc<DataFile>| file.state.get().clone_source != 0;
        self.cuts.flatten.set(files.values().any(|file| foreign(&file)));
        let found = files.values().filter(foreign).find(|file| !self.is_aside(file.number));
        found.map(|file| file.number)
    }
}

async fn remove(store: &dyn Store, name: &str) {
    // If it cannot be removed now, the next opening does.
    if let Err(fault) = store.remove(name).await {
        tracing::debug!(name, cause = fault.message, "DataFile not removed");
    }
}

impl Segment {
    /// Fixes the cut `id`: all that was answered is in it. Later changes are executed, and neither
    /// read nor answered before [`Segment::release`], or before `most` has passed: then the cut is
    /// given up, as it is by the next one. Fixed cuts of several segments that are released only
    /// when all are fixed are consistent (`protocols.md` 6.6).
    pub async fn cut(&self, id: u64, most: Duration) -> Result<(), Fault> {
        self.core().cut(id, most).await
    }

    /// Ends the hold of a cut, and returns its duration; `keep` it for [`Segment::link`], within a
    /// minute. `NotFound` when it was given up before.
    pub fn release(&self, id: u64, keep: bool) -> Result<Duration, Fault> {
        self.core().release(id, keep)
    }

    /// Makes the directory `target` the segment `to`, with the content of a cut that was released,
    /// by links to the DataFiles (B11). It must not be open anywhere, and its name in the core is
    /// that of the store. A repeat does no harm.
    pub async fn link(&self, id: u64, target: Rc<dyn Store>, to: Identity) -> Result<(), Fault> {
        self.core().link(id, target, to).await
    }

    /// Has collection copy, in the background, all blocks in files of another volume; returns their
    /// number, at least one for each such file.
    pub fn flatten(&self) -> u64 {
        self.core().flatten()
    }
}

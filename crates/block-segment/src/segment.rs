//! [`Segment`]: the device that a block server serves.

use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::contract::{AllocationExtent, Answer, BlockLocations, Clear, Device, Owned};
use block_volume::dedup::RequestId;
use block_volume::figures::{SegmentCheck, SegmentScrub};
use block_volume::geometry::Extent;
use block_volume::ids::Identity;
use block_volume::record::UNIT;
use runtime::{Buf, Env};
use table::Store;

use super::core::Core;
use super::limits::SEGMENT_BYTES_MAX;
use super::options::{LinkFrom, Options};
use super::shared::Shared;

/// One segment of a volume in one directory of the core. Cheap to clone; stays on its thread.
///
/// It has one owner. Opening takes it over: an earlier instance acknowledges nothing once the
/// opening has returned. Reads of a fenced instance show its last state; an owner that must not
/// return stale reads holds a lease (`protocols.md` 6.5).
///
/// When a change fails for another reason than a successor, the instance takes no further ones
/// ([`Segment::stopped`]), since the end of its DataFile is not known. It can be opened again at
/// once, under the same epoch too.
///
/// When the last clone is dropped the instance ends; unanswered changes may or may not have taken
/// effect. [`Segment::close`] ends it properly.
#[derive(Clone)]
pub struct Segment(Rc<Owner>);

/// Ends the instance with its last handle.
struct Owner(Rc<Core>);

/// Present state of a segment, and counters of this instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// DataFiles.
    pub files: usize,
    /// Bytes of records in them.
    pub file_bytes: u64,
    /// Bytes that they take on media: all copies or fragments, without sectors' own bytes.
    pub stored_bytes: u64,
    /// Blocks with data in them.
    pub blocks: u64,
    /// Those of them that the index has; the rest is garbage. May be counted too high until a
    /// checkpoint.
    pub live: u64,
    /// Bytes of the index in memory.
    pub index_bytes: usize,
    /// Bytes of it that no checkpoint has stored yet.
    pub index_dirty: usize,
    /// Requests that change something, waiting or under way.
    pub changing: usize,
    /// Changes that wait for their append.
    pub waiting: usize,
    /// Appends to DataFiles.
    pub appends: u64,
    /// Blocks in them.
    pub records: u64,
    /// Bytes of them.
    pub append_bytes: u64,
    /// Batches of the TxnFile.
    pub txns: u64,
    /// Checkpoints of the index.
    pub checkpoints: u64,
    /// Index pages that they stored.
    pub pages_stored: u64,
    /// Index pages read from the table.
    pub pages_read: u64,
    /// DataFiles collected (B3).
    pub collected: u64,
    /// Blocks copied for that.
    pub collected_blocks: u64,
    /// Bytes of the copies.
    pub collected_bytes: u64,
    /// Bytes that collection has read.
    pub collect_read_bytes: u64,
}

impl Segment {
    /// Opens the segment `identity` of `bytes` bytes in a directory, and takes it over from its
    /// previous owner, as the owner of `epoch`. `Fenced` when an owner of a higher epoch has been
    /// there, `Invalid` when the directory holds another segment.
    pub async fn open(
        env: &Env,
        store: Rc<dyn Store>,
        shared: &Shared,
        (identity, bytes, epoch): (Identity, u64, u64),
        options: Options,
    ) -> Result<Segment, Fault> {
        Segment::open_with(env, store.clone(), store, shared, (identity, bytes, epoch), options)
            .await
    }

    /// As [`Segment::open`]; `outputs` is the same directory, for garbage collection's files, with
    /// a policy of its own (B3).
    pub async fn open_with(
        env: &Env,
        store: Rc<dyn Store>,
        outputs: Rc<dyn Store>,
        shared: &Shared,
        (identity, bytes, epoch): (Identity, u64, u64),
        options: Options,
    ) -> Result<Segment, Fault> {
        let what = (identity, bytes, epoch);
        Segment::open_from(env, (store, outputs), shared, what, (options, None)).await
    }

    /// As [`Segment::open_with`]; at the first opening the segment gets the content of the segment
    /// of the same number in the directory that `clone_source` finds, by links to its DataFiles
    /// (B11).
    pub async fn open_from(
        env: &Env,
        stores: (Rc<dyn Store>, Rc<dyn Store>),
        shared: &Shared,
        (identity, bytes, epoch): (Identity, u64, u64),
        (options, clone_source): (Options, Option<LinkFrom>),
    ) -> Result<Segment, Fault> {
        if bytes > SEGMENT_BYTES_MAX {
            let text =
                format!("{identity}: {bytes} bytes; a segment has {SEGMENT_BYTES_MAX} at most");
            return Err(Fault::new(Kind::Invalid, text));
        }
        let what = (identity, bytes, epoch);
        let core = super::open::open(env, stores, shared, what, (options, clone_source)).await?;
        Ok(Segment(Rc::new(Owner(core))))
    }

    pub(super) fn core(&self) -> &Rc<Core> {
        &self.0.0
    }

    /// Its identity.
    pub fn identity(&self) -> Identity {
        self.0.0.identity
    }

    /// The reason why it takes no changes any more, if so.
    pub fn stopped(&self) -> Option<Fault> {
        self.0.0.over.borrow().clone()
    }

    /// Ends with the reason when it takes no changes any more.
    pub async fn until_stopped(&self) -> Fault {
        loop {
            let changed = self.0.0.changed.notified();
            if let Some(fault) = self.stopped() {
                return fault;
            }
            changed.await;
        }
    }

    /// Ends when the index pages in the table have all changes answered before: an opening has
    /// nothing to replay.
    pub async fn checkpoint(&self) -> Result<(), Fault> {
        self.0.0.log_all().await?;
        self.0.0.checkpoint().await
    }

    /// Compares the index with the stored data, from 0 on, then from [`SegmentCheck::next`] of the
    /// piece before, until that is 0. After an error a piece can be tried again; damage is among
    /// the findings.
    pub async fn check(&self, from: u64) -> Result<SegmentCheck, Fault> {
        self.0.0.check(from).await
    }

    /// Files that are made from now on take another form on media: collection looks again at what it
    /// would gain.
    pub fn policy_changed(&self) {
        self.0.0.wake_collect.notify_one();
    }

    /// Progress of its scrub (B14).
    pub fn scrub(&self) -> SegmentScrub {
        self.0.0.scrub_progress()
    }

    /// Its present state.
    pub fn stats(&self) -> Stats {
        let core = &self.0.0;
        let (files, counts, index) =
            (core.files.borrow(), core.counts.get(), core.share.index.borrow());
        let live = files.iter().map(|(number, file)| {
            (i64::from(file.state.get().live) + index.pending(*number)).max(0) as u64
        });
        Stats {
            files: files.len(),
            file_bytes: files.values().map(|file| u64::from(file.end.get()) * UNIT).sum(),
            stored_bytes: files.values().map(|file| core.stored_bytes(file)).sum(),
            blocks: files.values().map(|file| u64::from(file.blocks.get())).sum(),
            live: live.sum(),
            index_bytes: index.bytes(),
            index_dirty: index.dirty_bytes(),
            changing: core.locks.len(),
            waiting: core.queue.borrow().len(),
            appends: counts.appends,
            records: counts.records,
            append_bytes: counts.log_bytes,
            txns: counts.txns,
            checkpoints: counts.checkpoints,
            pages_stored: counts.pages_stored,
            pages_read: counts.pages_asked,
            collected: counts.collected,
            collected_blocks: counts.collected_blocks,
            collected_bytes: counts.collected_bytes,
            collect_read_bytes: counts.collect_read_bytes,
        }
    }

    /// Ends the instance when all changes that were begun are answered, and the TxnFile has them.
    /// Other clones find it ended.
    pub async fn close(self) -> Result<(), Fault> {
        let core = &self.0.0;
        core.closing.set(true);
        core.give_up();
        core.locks.ask(0..u64::MAX).granted().await;
        let logged = core.log_all().await;
        core.end(core.fault(Kind::Retry, "it was closed"));
        loop {
            let changed = core.changed.notified();
            if core.log_ended.get() {
                break;
            }
            changed.await;
        }
        let spare = core.spare.borrow_mut().take();
        if let Some(spare) = spare {
            let _ = spare.writer.close().await; // Empty, and sealed by the next opening.
        }
        logged?;
        core.table.clone().close().await.map_err(|error| core.of_table(error))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.closing.set(true); // The last drop finds it closed.
        self.0.end(self.0.fault(Kind::Retry, "it was dropped"));
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = &self.0.0;
        write!(f, "Segment({} in {}, epoch {})", core.identity, core.store.name(), core.epoch)
    }
}

impl Device for Segment {
    fn bytes(&self) -> u64 {
        self.0.0.bytes
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        Box::pin(self.0.0.read(extent))
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        Box::pin(self.0.0.write(None, offset, data))
    }

    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()> {
        Box::pin(self.0.0.clear(None, extent, how))
    }

    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<AllocationExtent>> {
        Box::pin(self.0.0.pieces(extent, most))
    }
}

impl Owned for Segment {
    fn write_dedup(&self, request: RequestId, offset: u64, data: Buf) -> Answer<'_, ()> {
        Box::pin(self.0.0.write(Some(request), offset, data))
    }

    fn clear_dedup(&self, request: RequestId, extent: Extent, how: Clear) -> Answer<'_, ()> {
        Box::pin(self.0.0.clear(Some(request), extent, how))
    }

    fn last(&self, attachment: u32) -> u64 {
        self.0.0.dedup.borrow().last(attachment)
    }

    fn attachments(&self) -> Vec<u32> {
        self.0.0.dedup.borrow().attachments()
    }

    fn forget(&self, attachments: Range<u32>) {
        self.0.0.dedup.borrow_mut().forget(attachments);
    }

    fn locate(&self, extent: Extent, around: bool) -> Answer<'_, Option<BlockLocations>> {
        Box::pin(self.0.0.locate_range(extent, around))
    }

    fn confirm(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let core = &self.0.0;
            core.check_open()?;
            // A new owner opens the segment's table first, and this one logs nothing any more.
            core.table.barrier().await.map_err(|error| core.of_table(error))
        })
    }
}

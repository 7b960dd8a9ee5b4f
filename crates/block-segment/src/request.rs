//! Requests: ranges of bytes become whole blocks.

use std::ops::Range;
use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::contract::{AllocationExtent, BlockLocations, Clear};
use block_volume::dedup::{Progress, RequestId, without};
use block_volume::geometry::Extent;
use block_volume::ids::FileNo;
use block_volume::limits::BLOCK;
use block_volume::location::{
    LOCATION_RUNS_MAX, RecordLocation, blocks, location_group, part, push_location,
};
use block_volume::record::RECORD_UNITS;
use runtime::sync::oneshot;
use runtime::{Buf, BufMut};

use super::core::Core;
use super::limits::{
    CLEAR_PAGES_MAX, PAGE_BLOCKS, PIECES_PAGES_MAX, QUEUE_BYTES_MIN, REQUEST_BYTES_MAX,
};
use super::locks::Guard;
use super::queue::{Change, Work};
use super::types::Loc;

/// Blocks that a range covers in part: none, one or two.
fn edges(covers: &Range<u64>, whole: &Range<u64>) -> Vec<u64> {
    let outside = |lba: &u64| !whole.contains(lba);
    let mut edges: Vec<u64> = [covers.start, covers.end - 1].into_iter().filter(outside).collect();
    edges.dedup();
    edges
}

/// The rest of a change of which some blocks are done.
fn left_of(works: Vec<(u64, Work)>, done: &[Range<u64>]) -> Vec<(u64, Work)> {
    if done.is_empty() {
        return works;
    }
    let mut left = Vec::new();
    for (lba, work) in works {
        let count = match &work {
            Work::Write(data) => data.len() as u64 / BLOCK,
            Work::Clear { count, .. } => u64::from(*count),
        };
        for blocks in without(lba..lba + count, done) {
            let (from, to) = ((blocks.start - lba) * BLOCK, (blocks.end - lba) * BLOCK);
            let work = match &work {
                Work::Write(data) => Work::Write(data.slice(from as usize..to as usize)),
                Work::Clear { to, .. } => {
                    Work::Clear { count: (blocks.end - blocks.start) as u32, to: *to }
                }
            };
            left.push((blocks.start, work));
        }
    }
    left
}

impl Core {
    fn check_extent(&self, extent: Extent, most: u64) -> Result<(), Fault> {
        let Extent { offset, len } = extent;
        if extent.end().is_none_or(|end| end > self.bytes) {
            let text = format!("{len} bytes at {offset} go past its end at {}", self.bytes);
            return Err(self.fault(Kind::Invalid, text));
        }
        if len > most {
            let text = format!("a request of {len} bytes; split it into pieces of {most}");
            return Err(self.fault(Kind::Invalid, text));
        }
        Ok(())
    }

    /// The error for a change after the end, or of a segment that takes none.
    fn check_writable(&self) -> Result<(), Fault> {
        self.check_open()?;
        if self.options.read_only {
            let text = "it is opened for reading only; clone the snapshot and change the clone";
            return Err(self.fault(Kind::Invalid, text));
        }
        Ok(())
    }

    fn buffer(&self, len: usize) -> Result<BufMut, Fault> {
        let buffer = self.env.pool().alloc_zeroed(len);
        buffer.map_err(|error| self.fault(Kind::Retry, error))
    }

    pub(crate) async fn read(&self, extent: Extent) -> Result<Buf, Fault> {
        self.check_extent(extent, REQUEST_BYTES_MAX)?;
        let out = self.env.pool().alloc(extent.len as usize);
        let mut out = out.map_err(|error| self.fault(Kind::Retry, error))?;
        if extent.len > 0 {
            let (covers, _) = blocks(extent);
            let count = (covers.end - covers.start) as usize;
            let mut found = vec![false; count];
            let take = &mut |n: usize, data: &[u8]| {
                let (to, from) = part(extent, covers.start + n as u64);
                let len = to.len();
                out[to].copy_from_slice(&data[from..from + len]);
                found[n] = true;
            };
            self.read_blocks(covers.start as u32, count, take).await?;
            for hole in (covers.start..covers.end).zip(&found).filter(|(_, found)| !**found) {
                out[part(extent, hole.0).0].fill(0);
            }
        }
        Ok(out.freeze())
    }

    /// Locations of the blocks that a range covers: nothing unless replicas show all of them.
    /// Locations of neighbours as far as replicas show them.
    pub(crate) async fn locate_range(
        &self,
        extent: Extent,
        around: bool,
    ) -> Result<Option<BlockLocations>, Fault> {
        self.check_extent(extent, REQUEST_BYTES_MAX)?;
        let (covers, _) = blocks(extent);
        let near = if around { location_group(&covers) } else { covers.clone() };
        let mut before = Vec::new();
        for lba in (near.start..covers.start).rev() {
            let Some(at) = self.shown_location(lba).await? else { break };
            before.push(at);
        }
        let (first, mut spans) = (covers.start - before.len() as u64, Vec::new());
        before.into_iter().rev().for_each(|at| push_location(&mut spans, at));
        for lba in covers.clone() {
            let Some(at) = self.shown_location(lba).await? else { return Ok(None) };
            push_location(&mut spans, at);
        }
        for lba in covers.end..near.end.min(self.bytes / BLOCK) {
            let Some(at) = self.shown_location(lba).await? else { break };
            push_location(&mut spans, at);
        }
        Ok((spans.len() <= LOCATION_RUNS_MAX).then_some(BlockLocations { first, spans }))
    }

    /// The location of a block, or that it reads as zeroes; nothing when replicas may not show it.
    async fn shown_location(&self, lba: u64) -> Result<Option<Option<RecordLocation>>, Fault> {
        Ok(match self.locate(lba as u32).await?.place() {
            None => Some(None),
            Some((file, unit)) => self.shown_record(file, unit).map(Some),
        })
    }

    /// The location of a record for direct reads. None for the last appends: replicas show those
    /// when they have received the committed length (`protocols.md` 1.6). None at the very end of a
    /// file, where a read of a whole record's length returns less.
    fn shown_record(&self, number: FileNo, unit: u32) -> Option<RecordLocation> {
        if self.share.recent(number, unit).is_some() {
            return None;
        }
        let file = self.files.borrow().get(&number)?.clone();
        if u64::from(unit) + u64::from(RECORD_UNITS) > u64::from(file.end.get()) {
            return None;
        }
        let state = file.state.get();
        let file = (state.generation, number.get());
        Some(RecordLocation { file, clone_source: state.clone_source, unit })
    }

    pub(crate) async fn write(
        &self,
        request: Option<RequestId>,
        offset: u64,
        data: Buf,
    ) -> Result<(), Fault> {
        let extent = Extent { offset, len: data.len() as u64 };
        self.check_extent(extent, REQUEST_BYTES_MAX)?;
        self.check_writable()?;
        if data.is_empty() {
            return Ok(());
        }
        let (covers, whole) = blocks(extent);
        let guard = Rc::new(self.locks.ask(covers.clone()));
        guard.granted().await;
        let Some(done) = self.done_before(request)? else { return Ok(()) };
        let mut works = Vec::new();
        for lba in edges(&covers, &whole) {
            let (bytes, at) = part(extent, lba);
            works.push((lba, Work::Write(self.patched(lba, at, &data[bytes]).await?)));
        }
        if !whole.is_empty() {
            let start = (whole.start * BLOCK - offset) as usize;
            let middle = data.slice(start..start + ((whole.end - whole.start) * BLOCK) as usize);
            works.push((whole.start, Work::Write(middle)));
        }
        self.check_room(&works)?;
        self.change(left_of(works, &done), request, &guard).await
    }

    /// Refuses blocks while the cluster is full. Clears are written to its reserve.
    fn check_room(&self, works: &[(u64, Work)]) -> Result<(), Fault> {
        let writes = works.iter().any(|(_, work)| matches!(work, Work::Write(_)));
        if writes && !self.share.shared().admit_blocks(self.env.now()) {
            self.env.mark("segment: a write is refused on a full cluster");
            return Err(self.fault(
                Kind::Full,
                "the cluster is full: trim or remove volumes, remove files, or add a chunkserver",
            ));
        }
        Ok(())
    }

    pub(crate) async fn clear(
        &self,
        request: Option<RequestId>,
        extent: Extent,
        how: Clear,
    ) -> Result<(), Fault> {
        self.check_extent(extent, u64::MAX)?;
        self.check_writable()?;
        if extent.len == 0 {
            return Ok(());
        }
        let (covers, whole) = blocks(extent);
        let guard = Rc::new(self.locks.ask(covers.clone()));
        guard.granted().await;
        let Some(done) = self.done_before(request)? else { return Ok(()) };
        let mut works = Vec::new();
        for lba in edges(&covers, &whole) {
            let loc = self.locate(lba as u32).await?;
            let (bytes, at) = part(extent, lba);
            match (loc, how) {
                // Zero already; a hole becomes data only on request.
                (Loc::ZERO, _) | (Loc::HOLE, Clear::Trim) => {}
                (Loc::HOLE, Clear::Zero) => {
                    works.push((lba, Work::Clear { count: 1, to: Loc::ZERO }));
                }
                _ => {
                    let zeroes = vec![0; bytes.len()];
                    works.push((lba, Work::Write(self.patched(lba, at, &zeroes).await?)));
                }
            }
        }
        let to = match how {
            Clear::Trim => Loc::HOLE,
            Clear::Zero => Loc::ZERO,
        };
        let step = u64::from(CLEAR_PAGES_MAX) * u64::from(PAGE_BLOCKS);
        let mut lba = whole.start;
        while lba < whole.end {
            let stop = ((lba / step + 1) * step).min(whole.end);
            works.push((lba, Work::Clear { count: (stop - lba) as u32, to }));
            lba = stop;
        }
        self.check_room(&works)?;
        self.change(left_of(works, &done), request, &guard).await
    }

    /// Blocks of a change that a previous owner, or a previous session, has done; nothing when that
    /// is all.
    fn done_before(&self, request: Option<RequestId>) -> Result<Option<Vec<Range<u64>>>, Fault> {
        let Some(request) = request else { return Ok(Some(Vec::new())) };
        match self.dedup.borrow().progress(request) {
            Progress::None => Ok(Some(Vec::new())),
            Progress::Part(done) => {
                self.env.mark("segment: a change is completed");
                Ok(Some(done))
            }
            Progress::Done => {
                self.env.mark("segment: a change has happened before");
                Ok(None)
            }
            Progress::Forgotten => {
                let text = format!(
                    "change {} of attachment {} comes too late: it may have happened",
                    request.seq, request.attachment
                );
                Err(self.fault(Kind::Invalid, text))
            }
        }
    }

    /// A block with some of its bytes replaced.
    async fn patched(&self, lba: u64, at: usize, bytes: &[u8]) -> Result<Buf, Fault> {
        let mut block = self.buffer(BLOCK as usize)?;
        self.read_blocks(lba as u32, 1, &mut |_, data| block.copy_from_slice(data)).await?;
        block[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(block.freeze())
    }

    /// Queues changes of blocks that `guard` holds; returns their outcome.
    async fn change(
        &self,
        works: Vec<(u64, Work)>,
        request: Option<RequestId>,
        guard: &Rc<Guard>,
    ) -> Result<(), Fault> {
        let (several, count) = (works.len() > 1, works.len());
        if let Some(request) = request.filter(|_| count == 0) {
            // The rest of it changes nothing.
            self.dedup.borrow_mut().note(request, 0..0, true);
        }
        let mut parts = Vec::new();
        let mut outcome = Ok(());
        for (n, (lba, work)) in works.into_iter().enumerate() {
            let request = request.map(|request| (request, n + 1 == count));
            match self.submit((lba, work), request, guard).await {
                Ok(part) => parts.push(part),
                Err(fault) => {
                    outcome = Err(fault);
                    break;
                }
            }
        }
        for part in parts {
            let dropped = |_| Err(self.fault(Kind::Unknown, "the instance was dropped"));
            let done = part.await.unwrap_or_else(dropped);
            outcome = outcome.and(done);
        }
        outcome.map_err(|fault| match fault.kind {
            Kind::Fenced => fault,
            // Another part may have been done.
            _ if several => Fault::new(Kind::Unknown, fault.message),
            _ => fault,
        })
    }

    /// Queues a change, once there is room.
    async fn submit(
        &self,
        (lba, work): (u64, Work),
        request: Option<(RequestId, bool)>,
        guard: &Rc<Guard>,
    ) -> Result<oneshot::Receiver<Result<(), Fault>>, Fault> {
        let bytes = match &work {
            Work::Write(data) => data.len(),
            Work::Clear { .. } => QUEUE_BYTES_MIN,
        };
        let permit = self.room.clone().acquire_many_owned(bytes as u32).await;
        let permit = permit.expect("it is never closed");
        self.over.borrow().clone().map_or(Ok(()), Err)?;
        let (done, outcome) = oneshot::channel();
        let (lba, guard) = (lba as u32, guard.clone());
        let change = Change { lba, work, started: 0, request, done, guard, permit };
        let waiting = {
            let queue = &mut *self.queue.borrow_mut();
            queue.push(change);
            queue.len()
        };
        self.share.waits(waiting);
        self.share.wake_log.notify_one();
        Ok(outcome)
    }

    pub(crate) async fn pieces(
        &self,
        extent: Extent,
        most: usize,
    ) -> Result<Vec<AllocationExtent>, Fault> {
        self.check_extent(extent, u64::MAX)?;
        let (covers, _) = blocks(extent);
        let page = u64::from(PAGE_BLOCKS);
        let stop = (covers.start / page + u64::from(PIECES_PAGES_MAX)) * page;
        let mut pieces: Vec<AllocationExtent> = Vec::new();
        for lba in covers.start..covers.end.min(stop) {
            let loc = self.locate(lba as u32).await?;
            let (hole, zero) = (loc == Loc::HOLE, loc.place().is_none());
            let len = part(extent, lba).0.len() as u64;
            let count = pieces.len();
            match pieces.last_mut() {
                Some(piece) if (piece.hole, piece.zero) == (hole, zero) => piece.len += len,
                _ if count == most => break,
                _ => pieces.push(AllocationExtent { len, hole, zero }),
            }
        }
        Ok(pieces)
    }
}

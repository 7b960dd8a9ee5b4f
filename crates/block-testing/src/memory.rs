//! [`MemoryDevice`], a [`Device`] in memory: the front end and the block client are tested against
//! it, and a simulated block server keeps its segments in it across restarts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use base::{Fault, Kind};
use block_volume::contract::{AllocationExtent, Answer, BlockLocations, Clear, Device, Owned};
use block_volume::dedup::{DedupWindows, Progress, RequestId};
use block_volume::geometry::Extent;
use block_volume::ids::SegmentId;
use block_volume::limits::{BLOCK, IO_MAX};
use block_volume::location::location_group;
use futures_util::FutureExt;
use runtime::sync::Mutex;
use runtime::{Buf, Env};

use crate::archive::Archive;

/// Content of a [`MemoryDevice`]: outlives it, as a disk outlives a process. Clones share it.
#[derive(Clone, Default)]
pub struct Memory(Rc<RefCell<Content>>);

/// Blocks, and the changes of clients that have happened.
#[derive(Clone, Default)]
struct Content {
    blocks: BTreeMap<u64, Stored>,
    dedup: DedupWindows,
}

/// A block that is no hole.
#[derive(Clone)]
enum Stored {
    Zeroes,
    Bytes(Box<[u8]>),
}

/// A device whose answers come after random pauses, so that other requests get in between.
pub struct MemoryDevice {
    env: Env,
    bytes: u64,
    memory: Memory,
    pause: Duration,
    /// Changes take effect in the order of their first polls.
    turn: Mutex<()>,
    /// Decides whether changes may still take effect.
    guard: Guard,
    /// DataFiles for direct reads.
    archive: Option<(Archive, SegmentId)>,
}

/// Decides whether a change may take effect, at the moment at which it would.
pub type Guard = Box<dyn Fn() -> Result<(), Fault>>;

impl Memory {
    /// Nothing but a hole.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Another with the same content.
    pub fn copy(&self) -> Memory {
        Memory(Rc::new(RefCell::new(self.0.borrow().clone())))
    }

    /// Attachments whose changes are remembered.
    pub fn attachments(&self) -> Vec<u32> {
        self.0.borrow().dedup.attachments()
    }

    /// True when both are one.
    pub fn is_same(&self, other: &Memory) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    fn read(&self, extent: Extent, into: &mut [u8]) {
        let stored = &self.0.borrow().blocks;
        for (block, within, at) in blocks(extent) {
            let into = &mut into[at..at + within.len()];
            match stored.get(&block) {
                Some(Stored::Bytes(bytes)) => into.copy_from_slice(&bytes[within]),
                Some(Stored::Zeroes) | None => into.fill(0),
            }
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let stored = &mut self.0.borrow_mut().blocks;
        for (block, within, at) in blocks(Extent { offset, len: data.len() as u64 }) {
            let place = stored.entry(block).or_insert(Stored::Zeroes);
            if let Stored::Zeroes = place {
                *place = Stored::Bytes(vec![0; BLOCK as usize].into());
            }
            let Stored::Bytes(bytes) = place else { unreachable!("just made") };
            let len = within.len();
            bytes[within].copy_from_slice(&data[at..at + len]);
        }
    }

    fn clear(&self, extent: Extent, how: Clear) {
        let stored = &mut self.0.borrow_mut().blocks;
        for (block, within, _) in blocks(extent) {
            if within.len() == BLOCK as usize {
                match how {
                    Clear::Trim => stored.remove(&block),
                    Clear::Zero => stored.insert(block, Stored::Zeroes),
                };
            } else if let Some(Stored::Bytes(bytes)) = stored.get_mut(&block) {
                bytes[within].fill(0);
            } else if how == Clear::Zero {
                stored.insert(block, Stored::Zeroes);
            }
        }
    }

    /// Performs a change that has not happened under its request ID.
    fn once(&self, request: RequestId, change: impl FnOnce()) -> Result<(), Fault> {
        let progress = self.0.borrow().dedup.progress(request);
        match progress {
            Progress::Done => Ok(()),
            Progress::None | Progress::Part(_) => {
                change();
                self.0.borrow_mut().dedup.note(request, 0..0, true);
                Ok(())
            }
            Progress::Forgotten => Err(Fault::new(Kind::Invalid, format!("late: {request:?}"))),
        }
    }

    fn pieces(&self, extent: Extent, most: usize) -> Vec<AllocationExtent> {
        let stored = &self.0.borrow().blocks;
        let mut found: Vec<AllocationExtent> = Vec::new();
        for (block, within, _) in blocks(extent) {
            let (hole, zero) = match stored.get(&block) {
                None => (true, true),
                Some(Stored::Zeroes) => (false, true),
                Some(Stored::Bytes(_)) => (false, false),
            };
            let len = within.len() as u64;
            let full = found.len() == most;
            match found.last_mut() {
                Some(last) if (last.hole, last.zero) == (hole, zero) => last.len += len,
                _ if full => break,
                _ => found.push(AllocationExtent { len, hole, zero }),
            }
        }
        found
    }
}

/// The blocks of a range: number, part of the block, and where that is in the range.
fn blocks(extent: Extent) -> impl Iterator<Item = (u64, std::ops::Range<usize>, usize)> {
    let end = extent.offset + extent.len;
    let mut at = extent.offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (block, from) = (at / BLOCK, at % BLOCK);
        let until = (end - block * BLOCK).min(BLOCK);
        let found = (block, from as usize..until as usize, (at - extent.offset) as usize);
        at = block * BLOCK + until;
        Some(found)
    })
}

impl MemoryDevice {
    /// A device of `bytes` bytes over `memory`, whose answers take up to twice `pause`.
    pub fn new(env: &Env, memory: &Memory, bytes: u64, pause: Duration) -> MemoryDevice {
        MemoryDevice::guarded(env, memory, bytes, pause, Box::new(|| Ok(())))
    }

    /// The same, with changes that are refused when `guard` returns an error.
    pub fn guarded(
        env: &Env,
        memory: &Memory,
        bytes: u64,
        pause: Duration,
        guard: Guard,
    ) -> MemoryDevice {
        let (env, memory, turn) = (env.clone(), memory.clone(), Mutex::new(()));
        MemoryDevice { env, bytes, memory, pause, turn, guard, archive: None }
    }

    /// The same, with an archive in which its clients find the locations that it returns.
    pub(crate) fn with_archive(mut self, archive: &Archive, segment: SegmentId) -> MemoryDevice {
        self.archive = Some((archive.clone(), segment));
        self
    }

    fn check(&self, extent: Extent, data: bool) -> Result<(), Fault> {
        if extent.end().is_none_or(|end| end > self.bytes) {
            let Extent { offset, len } = extent;
            let why = format!("{len} bytes at {offset} of a segment of {}", self.bytes);
            return Err(Fault::new(Kind::Invalid, why));
        }
        if data && extent.len > IO_MAX as u64 {
            let why = format!("{} bytes in one request, {IO_MAX} at most", extent.len);
            return Err(Fault::new(Kind::Invalid, why));
        }
        Ok(())
    }

    async fn pause(&self) {
        if !self.pause.is_zero() {
            let nanos = self.env.random_below(self.pause.as_nanos() as u64);
            self.env.sleep(Duration::from_nanos(nanos)).await;
        }
    }

    /// In request order: waits, then does `step`; then waits again, while others may go on.
    async fn in_turn<T>(&self, step: impl FnOnce() -> T) -> T {
        let turn = self.turn.lock().await;
        self.pause().await;
        let done = step();
        drop(turn);
        self.pause().await;
        done
    }
}

impl Device for MemoryDevice {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        async move {
            self.check(extent, true)?;
            let buf = self.env.pool().alloc(extent.len as usize);
            let mut buf = buf.map_err(|error| Fault::new(Kind::Retry, error.to_string()))?;
            self.in_turn(|| self.memory.read(extent, &mut buf)).await;
            Ok(buf.freeze())
        }
        .boxed_local()
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        async move {
            self.check(Extent { offset, len: data.len() as u64 }, true)?;
            self.in_turn(|| (self.guard)().map(|()| self.memory.write(offset, &data))).await
        }
        .boxed_local()
    }

    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()> {
        async move {
            self.check(extent, false)?;
            self.in_turn(|| (self.guard)().map(|()| self.memory.clear(extent, how))).await
        }
        .boxed_local()
    }

    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<AllocationExtent>> {
        async move {
            self.check(extent, false)?;
            Ok(self.in_turn(|| self.memory.pieces(extent, most)).await)
        }
        .boxed_local()
    }
}

impl Owned for MemoryDevice {
    fn write_dedup(&self, request: RequestId, offset: u64, data: Buf) -> Answer<'_, ()> {
        async move {
            self.check(Extent { offset, len: data.len() as u64 }, true)?;
            let write = || self.memory.write(offset, &data);
            self.in_turn(|| (self.guard)().and_then(|()| self.memory.once(request, write))).await
        }
        .boxed_local()
    }

    fn clear_dedup(&self, request: RequestId, extent: Extent, how: Clear) -> Answer<'_, ()> {
        async move {
            self.check(extent, false)?;
            let clear = || self.memory.clear(extent, how);
            self.in_turn(|| (self.guard)().and_then(|()| self.memory.once(request, clear))).await
        }
        .boxed_local()
    }

    fn last(&self, attachment: u32) -> u64 {
        self.memory.0.borrow().dedup.last(attachment)
    }

    fn attachments(&self) -> Vec<u32> {
        self.memory.0.borrow().dedup.attachments()
    }

    fn forget(&self, attachments: Range<u32>) {
        self.memory.0.borrow_mut().dedup.forget(attachments);
    }

    fn locate(&self, extent: Extent, around: bool) -> Answer<'_, Option<BlockLocations>> {
        async move {
            self.check(extent, true)?;
            let Some((archive, segment)) = &self.archive else { return Ok(None) };
            // Recent writes may not be shown to direct reads yet.
            if self.env.random_below(4) == 0 {
                return Ok(None);
            }
            let covers = extent.offset / BLOCK..(extent.offset + extent.len).div_ceil(BLOCK);
            let near = if around { location_group(&covers) } else { covers };
            let near = near.start..near.end.min(self.bytes / BLOCK);
            let spans = || {
                let stored = &self.memory.0.borrow().blocks;
                let content = near.clone().map(|block| match stored.get(&block) {
                    Some(Stored::Bytes(bytes)) => (block as u32, Some(&bytes[..])),
                    Some(Stored::Zeroes) | None => (block as u32, None),
                });
                BlockLocations { first: near.start, spans: archive.keep(*segment, content) }
            };
            Ok(Some(self.in_turn(spans).await))
        }
        .boxed_local()
    }

    fn confirm(&self) -> Answer<'_, ()> {
        async move {
            self.pause().await;
            let confirmed = (self.guard)();
            self.pause().await;
            confirmed
        }
        .boxed_local()
    }
}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryDevice({} bytes)", self.bytes)
    }
}

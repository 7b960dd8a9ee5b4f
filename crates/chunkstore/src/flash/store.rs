//! The state of a mounted flash store, shared by its operations.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::Rc;

use base::limits::SECTOR;
use base::{ChunkId, DiskId, Map};
use codec::crc32c;
use metrics::{Histogram, Unit};
use runtime::sync::{Notify, Semaphore, oneshot};
use runtime::{Buf, BufMut, Class, Env, File, Instant, WriteMode};

use super::alloc::Allocator;
use super::cache::MapCache;
use super::layout::{SUPER_AT, Super};
use super::log::{Log, Room};
use super::prepare::is_full;
use super::record::Record;
use super::table::{Entry, Open, Table};
use super::{Config, Handle, SyncMode, room};
use crate::contract::{StoreError, StoreOwner};
use crate::limits::{BUF_RETRY, WRITE_RETRIES};

/// Counts since the store was opened: amplification adds up from them (C29).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Appends acknowledged.
    pub appends: u64,
    /// Device writes of appends' sectors.
    pub append_writes: u64,
    /// Data bytes of appends acknowledged.
    pub bytes_in: u64,
    /// Bytes written to the medium, of all kinds.
    pub bytes_out: u64,
    /// Zeroes among them, that make units ready: each is written once in the store's life.
    pub bytes_zeroed: u64,
    /// Writes of the log (both copies count as one).
    pub log_writes: u64,
    /// Flushes.
    pub syncs: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Appends that copied their sectors because they did not own them alone.
    pub copies: u64,
    /// Times an append waited for units to be made ready.
    pub ready_waits: u64,
    /// Appends into units that were not ready: always 0.
    pub unready_writes: u64,
    /// Sectors that did not verify when they were read.
    pub corrupt_sectors: u64,
}

/// Wake-ups of background tasks and of waiters.
#[derive(Default)]
pub(crate) struct Signals {
    pub(crate) prepare: Notify,
    pub(crate) ready: Notify,
    pub(crate) checkpoint: Notify,
    pub(crate) checkpointed: Notify,
    pub(crate) log_room: Notify,
    pub(crate) bound: Notify,
}

#[derive(Default)]
pub(crate) struct Syncer {
    running: bool,
    waiters: Vec<oneshot::Sender<bool>>,
}

pub(crate) struct FlashStoreState {
    pub(crate) table: Table,
    pub(crate) alloc: Allocator,
    pub(crate) log: Log,
    pub(crate) cache: MapCache,
    pub(crate) failed: bool,
    /// Cause of the failure.
    pub(crate) reason: String,
    /// The cause is that the medium had no room.
    pub(crate) without_room: bool,
    pub(crate) closed: bool,
    pub(crate) appends_inflight: usize,
    pub(crate) bytes_inflight: usize,
    pub(crate) open_chunks: usize,
    pub(crate) open_map_bytes: usize,
    /// The replica that last took of the part of their budget that only repair may take.
    pub(crate) reserve_taker: Option<ChunkId>,
    /// Chunks with an operation under way, and the tasks that wait for its end.
    pub(crate) admin: Map<ChunkId, VecDeque<oneshot::Sender<()>>>,
    pub(crate) admin_inflight: usize,
    /// Start of replay for the operations under way.
    pub(crate) holds: BTreeMap<u64, u64>,
    pub(crate) next_hold: u64,
    pub(crate) bound_dirty: Vec<ChunkId>,
    /// Sealed replicas whose reads have met damage: its first byte.
    pub(crate) damage: BTreeMap<ChunkId, u32>,
    pub(crate) tags: u32,
    /// Number of the next checkpoint; its area is its parity.
    pub(crate) next_checkpoint: u64,
    /// Checkpoints in a row that did not read back.
    pub(crate) checkpoint_misses: u32,
    pub(crate) checkpoint_requests: u64,
    pub(crate) checkpoints_served: u64,
    /// No growing before this time: the medium was full.
    pub(crate) grow_after: runtime::Instant,
    pub(crate) grow_refused: bool,
    pub(crate) ready_waiters: u32,
    /// Units to keep ready, and when that was set.
    pub(crate) ready_goal: u32,
    pub(crate) ready_at: Instant,
    pub(crate) counters: Counters,
}

impl FlashStoreState {
    pub(crate) fn open_mut(&mut self, chunk: ChunkId, tag: u32) -> Option<&mut Open> {
        match self.table.chunks.get_mut(&chunk) {
            Some(Entry::Open(open)) if open.id.tag == tag => Some(open),
            _ => None,
        }
    }

    /// Entries that the checkpoint area has room for.
    pub(crate) fn chunk_count(&self) -> usize {
        self.table.chunks.len()
    }
}

/// Latencies of the disk.
pub(crate) struct Latencies {
    pub(crate) append_write: Histogram,
    pub(crate) read: Histogram,
}

impl Latencies {
    pub(crate) fn new(env: &Env, disk: DiskId) -> Latencies {
        let disk = disk.to_string();
        let of = |name, help| {
            let registry = env.tracer().registry();
            registry.histogram(name, help, Unit::Nanoseconds, &[("disk", &disk)])
        };
        Latencies {
            append_write: of("craton_disk_append_write_seconds", "Durable writes of appends."),
            read: of("craton_disk_read_seconds", "Reads of chunks' sectors."),
        }
    }
}

pub(crate) struct FlashStoreInner {
    pub(crate) env: Env,
    pub(crate) file: RefCell<Option<Rc<File>>>,
    pub(crate) sb: Super,
    /// The store's owner now: `sb` has that of the mount.
    pub(crate) owner: Cell<StoreOwner>,
    /// Whether the superblock says that there may be rows.
    pub(crate) rows: Cell<bool>,
    /// Held while the superblock is written.
    pub(crate) super_turn: runtime::sync::Mutex<()>,
    /// Appends that wait until there may be rows: in the order in which they came, and how many.
    pub(crate) admit_turn: runtime::sync::Mutex<()>,
    pub(crate) admitting: std::cell::Cell<usize>,
    pub(crate) config: Config,
    pub(crate) mount: u64,
    pub(crate) state: RefCell<FlashStoreState>,
    pub(crate) signals: Rc<Signals>,
    pub(crate) latencies: Latencies,
    /// Places of reads that the device is asked for.
    pub(crate) read_places: Semaphore,
    pub(crate) syncer: RefCell<Syncer>,
    /// Held while a checkpoint is taken.
    pub(crate) checkpointing: runtime::sync::Mutex<()>,
    /// Writes that the medium has not answered.
    pub(crate) writing: Cell<u32>,
    /// What leads users to this mount, once it is theirs.
    pub(crate) handle: RefCell<std::rc::Weak<Handle>>,
    pub(crate) weak: std::rc::Weak<FlashStoreInner>,
}

/// Keeps the log from the time it was taken: see [`FlashStoreInner::hold`].
pub(crate) struct Hold {
    inner: Rc<FlashStoreInner>,
    id: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inner.state.borrow_mut().holds.remove(&self.id);
    }
}

impl FlashStoreInner {
    pub(crate) fn store_low(&self) -> u64 {
        self.sb.disk.get() as u64
    }

    pub(crate) fn disk(&self) -> DiskId {
        self.sb.disk
    }

    pub(crate) fn file(&self) -> Result<Rc<File>, StoreError> {
        self.file.borrow().clone().ok_or(StoreError::Invalid("the store is closed"))
    }

    /// A checkpoint that starts while the hold lives is replayed with the log from here on: for
    /// operations that push a record before they change the table.
    pub(crate) fn hold(self: &Rc<Self>) -> Hold {
        let state = &mut *self.state.borrow_mut();
        let id = state.next_hold;
        state.next_hold += 1;
        state.holds.insert(id, state.log.next_seq);
        Hold { inner: self.clone(), id }
    }

    /// The tag of the next incarnation: never 0, and not met again on this disk but by chance.
    pub(crate) fn next_tag(&self, state: &mut FlashStoreState) -> u32 {
        state.tags += 1;
        let mut bytes = [0; 28];
        bytes[..16].copy_from_slice(&self.sb.disk.get().to_le_bytes());
        bytes[16..24].copy_from_slice(&self.mount.to_le_bytes());
        bytes[24..].copy_from_slice(&state.tags.to_le_bytes());
        crc32c(&bytes).max(1)
    }

    /// A buffer, as soon as the pool has one. For work that must not fail for want of memory;
    /// appends in flight and reads bound the wait.
    pub(crate) async fn alloc(&self, len: usize) -> BufMut {
        alloc(&self.env, len).await
    }

    /// Writes, and returns when it is durable. An error makes the store read-only.
    pub(crate) async fn write_durable(&self, at: u64, buf: Buf) -> Result<(), StoreError> {
        let mode = self.write_mode();
        self.write(at, vec![buf], mode).await?;
        match self.config.sync {
            SyncMode::PerWrite => Ok(()),
            SyncMode::Group => self.group_sync().await,
        }
    }

    /// As [`FlashStoreInner::write_durable`], for several buffers in order, without gaps.
    pub(crate) async fn write_durable_all(
        &self,
        at: u64,
        bufs: Vec<Buf>,
    ) -> Result<(), StoreError> {
        let mode = self.write_mode();
        self.write(at, bufs, mode).await?;
        match self.config.sync {
            SyncMode::PerWrite => Ok(()),
            SyncMode::Group => self.group_sync().await,
        }
    }

    /// Writes; durable with the next [`FlashStoreInner::sync`].
    pub(crate) async fn write_cached(&self, at: u64, buf: Buf) -> Result<(), StoreError> {
        self.write(at, vec![buf], WriteMode::Cached).await
    }

    fn write_mode(&self) -> WriteMode {
        match self.config.sync {
            SyncMode::PerWrite => WriteMode::Durable,
            SyncMode::Group => WriteMode::Cached,
        }
    }

    /// Writes consecutive buffers as one operation. A write that the system refuses for want of
    /// room or memory has not reached the medium, and is written again for a while; any other error
    /// may be that of a flush, and is final.
    async fn write(&self, at: u64, bufs: Vec<Buf>, mode: WriteMode) -> Result<(), StoreError> {
        let file = self.file()?;
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        let mut pauses = WRITE_RETRIES.iter();
        loop {
            // Writes behind a failed flush could be durable, and those before it not.
            if self.state.borrow().failed {
                return Err(StoreError::Failed);
            }
            let mut again = bufs.clone();
            let result = {
                let _counted = self.count_write();
                match again.len() {
                    1 => file.write_at(at, again.remove(0), mode).await,
                    _ => file.write_vectored_at(at, again, mode).await,
                }
            };
            match (result, pauses.next()) {
                (Err(error), Some(&pause)) if is_passing(&error) => {
                    self.env.mark("chunkstore: a refused write is tried again");
                    tracing::info!(disk = %self.sb.disk, at, len, %error, "a write is tried again");
                    self.env.sleep(pause).await;
                }
                (Err(error), _) if is_full(&error) => {
                    self.end_writes(&error, true);
                    return Err(StoreError::Failed);
                }
                (result, _) => return self.written(len, result),
            }
        }
    }

    /// Counts a write as not answered until what is returned is dropped.
    pub(crate) fn count_write(&self) -> impl Drop {
        struct Counted<'a>(&'a Cell<u32>);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() - 1);
            }
        }
        self.writing.set(self.writing.get() + 1);
        Counted(&self.writing)
    }

    /// Makes all writes that have returned durable. An error is final.
    pub(crate) async fn sync(&self) -> Result<(), StoreError> {
        let result = self.file()?.sync().await;
        self.state.borrow_mut().counters.syncs += 1;
        self.written(0, result)
    }

    fn written(&self, len: u64, result: std::io::Result<()>) -> Result<(), StoreError> {
        match result {
            Ok(()) => {
                let state = &mut *self.state.borrow_mut();
                state.counters.bytes_out += len;
                // When a flush of another task has failed, it may have been for this write too.
                if state.failed { Err(StoreError::Failed) } else { Ok(()) }
            }
            Err(error) => {
                self.fail(&error);
                Err(StoreError::Failed)
            }
        }
    }

    /// One flush for all writes that have returned when it starts.
    async fn group_sync(&self) -> Result<(), StoreError> {
        let (sender, receiver) = oneshot::channel();
        let leads = {
            let syncer = &mut *self.syncer.borrow_mut();
            syncer.waiters.push(sender);
            !std::mem::replace(&mut syncer.running, true)
        };
        if leads {
            // A task of its own: the leader's future may be dropped.
            let file = self.file()?;
            let Some(this) = self.this() else { return Err(StoreError::Failed) };
            self.env.spawn(Class::Foreground, "chunkstore sync", async move {
                loop {
                    let waiters = std::mem::take(&mut this.syncer.borrow_mut().waiters);
                    if waiters.is_empty() {
                        this.syncer.borrow_mut().running = false;
                        return;
                    }
                    let result = file.sync().await;
                    this.state.borrow_mut().counters.syncs += 1;
                    let good = this.written(0, result).is_ok();
                    for waiter in waiters {
                        let _ = waiter.send(good);
                    }
                }
            });
        }
        match receiver.await {
            Ok(true) => Ok(()),
            _ => Err(StoreError::Failed),
        }
    }

    fn this(&self) -> Option<Rc<FlashStoreInner>> {
        self.weak.upgrade()
    }

    /// Makes the store read-only for ever: what was in flight is unknown (`protocols.md` 3.6).
    pub(crate) fn fail(&self, why: &dyn fmt::Display) {
        self.end_writes(why, false);
    }

    /// Makes the store read-only. Where that is for want of room only, and it is to wait for it,
    /// another mount takes its place once there is room.
    fn end_writes(&self, why: &dyn fmt::Display, without_room: bool) {
        {
            let state = &mut *self.state.borrow_mut();
            if state.failed {
                return;
            }
            state.failed = true;
            state.reason = why.to_string();
            state.without_room = without_room;
        }
        if without_room && self.config.waits_for_room {
            self.state.borrow_mut().reason = room::REASON.to_owned();
            // None while the store is mounted: that fails.
            if let Some(handle) = self.handle.borrow().upgrade() {
                room::wait(&self.env, &handle);
            }
        } else if !self.env.is_closed() {
            tracing::warn!(disk = %self.sb.disk, "the store takes no more writes: {why}. \
                Replace the disk; its replicas are repaired from others");
        }
        self.fail_log();
        self.fail_appends();
        self.signals.ready.notify_waiters();
        self.signals.log_room.notify_waiters();
        self.signals.checkpointed.notify_waiters();
        self.signals.prepare.notify_one();
        self.signals.checkpoint.notify_one();
        self.signals.bound.notify_one();
    }

    /// Fails the store when its medium has no superblock of it any more, does not answer, or is
    /// shorter than what is in use.
    pub(crate) async fn check_medium(&self) {
        let Ok(file) = self.file() else { return }; // Closed.
        if self.state.borrow().failed {
            return;
        }
        let used = self.sb.unit_at(self.state.borrow().alloc.ready());
        match file.len().await {
            Ok(len) if len < used => {
                return self.fail(&format!("its file has {len} bytes of {used}: it was truncated"));
            }
            Ok(_) => {}
            Err(error) => return self.fail(&error),
        }
        let mut cause = None;
        for at in SUPER_AT {
            let buf = self.alloc(SECTOR).await;
            let read = read_again(&self.env, &file, at, buf).await;
            match read.map(|block| Super::decode(&block)) {
                Ok(Ok(sb)) if sb.disk == self.sb.disk => return,
                Ok(_) => {}
                // It says nothing about the medium: the next look will.
                Err(error) if is_passing(&error) => return,
                Err(error) => cause = Some(error),
            }
        }
        match cause {
            Some(error) => self.fail(&error),
            None => self.fail(&"its superblocks are gone: the medium was overwritten"),
        }
    }

    /// Logs again what the log says already, and reads a superblock.
    pub(crate) async fn probe(self: &Rc<Self>) -> Result<(), StoreError> {
        self.check_open()?;
        let logged = {
            let state = &mut *self.state.borrow_mut();
            if !state.log.has_room(Room::Allocation) {
                return Err(StoreError::Busy);
            }
            state.log.push(&Record::Ready { units: state.alloc.ready() })
        };
        self.kick_log();
        self.logged(logged).await?;
        self.check_medium().await;
        self.check_open()
    }

    /// As [`FlashStoreInner::read_exact`], waiting for memory.
    pub(crate) async fn read_device(&self, at: u64, len: usize) -> Result<BufMut, StoreError> {
        let buf = self.alloc(len).await;
        read_around(&self.env, &*self.file()?, at, buf).await.map_err(|error| of_read(&error))
    }

    /// Reads `len` bytes; bytes behind the file's end read as zeros, and unreadable ones are
    /// [`is_unreadable`].
    pub(crate) async fn read_exact(&self, at: u64, len: usize) -> Result<BufMut, StoreError> {
        debug_assert!(len.is_multiple_of(SECTOR));
        let buf = self.env.pool().alloc(len).map_err(|_| StoreError::Busy)?;
        read_around(&self.env, &*self.file()?, at, buf).await.map_err(|error| of_read(&error))
    }
}

/// A read that failed: one that is refused for want of memory may be tried again.
fn of_read(error: &std::io::Error) -> StoreError {
    if is_passing(error) { StoreError::Busy } else { StoreError::Failed }
}

/// Filling of a sector that the medium cannot give.
const UNREADABLE: u8 = 0xbd;

/// True for a sector in the place of one that the medium cannot give.
pub(crate) fn is_unreadable(sector: &[u8]) -> bool {
    sector.iter().all(|&byte| byte == UNREADABLE)
}

/// As [`read_full`], around sectors that the medium cannot give: those read as bytes that verify
/// as nothing, so they are found and repaired as bit rot is. An error means that the medium does
/// not even give its superblock: it has failed as a whole.
pub(crate) async fn read_around(
    env: &Env,
    file: &File,
    at: u64,
    buf: BufMut,
) -> std::io::Result<BufMut> {
    let len = buf.len();
    let error = match read_again(env, file, at, buf).await {
        Ok(buf) => return Ok(buf),
        Err(error) => error,
    };
    let mut answers = false;
    for at in SUPER_AT {
        answers = answers || read_full(file, at, alloc(env, SECTOR).await).await.is_ok();
    }
    if !answers || is_passing(&error) {
        return Err(error);
    }
    let mut whole = alloc(env, len).await;
    let mut unreadable = 0;
    for (index, sector) in whole.chunks_mut(SECTOR).enumerate() {
        let buf = alloc(env, sector.len()).await;
        match read_full(file, at + (index * SECTOR) as u64, buf).await {
            Ok(buf) => sector.copy_from_slice(&buf),
            Err(_) => {
                sector.fill(UNREADABLE);
                unreadable += 1;
            }
        }
    }
    env.mark("chunkstore: unreadable sectors");
    tracing::warn!(at, len, unreadable, %error, "the medium cannot give some sectors");
    Ok(whole)
}

/// As [`read_full`], again after a pause when the system refused for want of memory.
async fn read_again(env: &Env, file: &File, at: u64, mut buf: BufMut) -> std::io::Result<BufMut> {
    let mut pauses = WRITE_RETRIES.iter();
    loop {
        let (result, back) = file.read_at(at, buf).await;
        buf = back;
        match (result, pauses.next()) {
            (Ok(count), _) => {
                buf[count..].fill(0);
                return Ok(buf);
            }
            (Err(error), Some(&pause)) if is_passing(&error) => env.sleep(pause).await,
            (Err(error), _) => return Err(error),
        }
    }
}

/// True for a refusal that says nothing about the medium: no room, no memory, interrupted.
pub(crate) fn is_passing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, OutOfMemory, WouldBlock};
    is_full(error) || matches!(error.kind(), Interrupted | OutOfMemory | WouldBlock)
}

/// A buffer, waited for while the pool is spent.
async fn alloc(env: &Env, len: usize) -> BufMut {
    loop {
        match env.pool().alloc(len) {
            Ok(buf) => return buf,
            Err(_) => env.sleep(BUF_RETRY).await,
        }
    }
}

/// Reads the whole of `buf`; what lies behind the file's end reads as zeros.
pub(crate) async fn read_full(file: &File, at: u64, buf: BufMut) -> std::io::Result<BufMut> {
    let (result, mut buf) = file.read_at(at, buf).await;
    let count = result?;
    buf[count..].fill(0);
    Ok(buf)
}

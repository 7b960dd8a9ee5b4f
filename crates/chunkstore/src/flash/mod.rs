//! The flash engine: one preallocated file or raw block device per disk (C13).
//!
//! An append is one device write; metadata goes to a log by group commit, and periodically to a
//! checkpoint. `docs/formats/chunkstore.md` has the content of the medium and the order in which
//! recovery reads it.

mod admin;
mod alloc;
mod append;
pub mod block;
mod bytes;
mod cache;
mod checkpoint;
mod format;
mod fsck;
pub mod layout;
mod log;
mod owner;
mod planted;
mod prepare;
mod read;
pub mod record;
mod recover;
mod room;
mod scan;
mod store;
mod table;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::limits::SECTOR;
use base::{ChunkId, ClusterId, Epoch, FormationId, GIB, MIB};
use runtime::{Class, Env, File, OpenOptions};
use wire::data::ReplicaStat;

pub use checkpoint::Header as CheckpointHeader;
pub use format::format;
pub use fsck::{ChunkDump, Dump, FsckReport, Problem, SectorDump, dump, dump_chunk, fsck};
#[cfg(feature = "planted")]
pub use planted::Planted;
pub use read::{decode_index, encode_index};
pub use store::Counters;

use crate::contract::{Append, Appended, ChunkInfo, ChunkStore, Read, StoreError, StoreInfo};
use crate::limits::{
    GROW_STEP_DEFAULT, LOCK_RETRY, LOCK_TIMEOUT, LOG_BYTES_DEFAULT, LOG_BYTES_MIN,
    MAP_CACHE_BYTES_DEFAULT, OPEN_MAP_BYTES_DEFAULT, READS_AT_DEVICE_MAX, RUNS_PER_CHUNK_MAX,
    TOMBSTONES_MAX_DEFAULT, UNIT_DEFAULT, UNIT_SMALL,
};
use cache::MapCache;
use layout::{SUPER_AT, Super};
use log::Log;
use planted::Bugs;
use record::Record;
use recover::{Loaded, Medium, claim_units};
use store::{FlashStoreInner, FlashStoreState, Latencies, Signals, Syncer};
use table::{Entry, tombstone_stat};

/// Options for formatting a store.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Allocation unit, bytes: a power of two from 16 KiB to 16 MiB.
    pub unit: u32,
    /// Bytes of units at most. A file grows up to it; of a raw device it is an upper bound.
    pub capacity: u64,
    /// Bytes of one copy of the log.
    pub log_bytes: u64,
    /// Tombstones at most.
    pub tombstones: u32,
    /// Bytes of offset maps of open chunks at most.
    pub open_map_bytes: u32,
    /// Bytes by which the file grows.
    pub grow_step: u64,
    /// The path is a block device.
    pub raw: bool,
    /// Format even where a store is.
    pub force: bool,
}

impl Default for FormatOptions {
    fn default() -> FormatOptions {
        FormatOptions {
            unit: UNIT_DEFAULT,
            capacity: 1024 * GIB,
            log_bytes: LOG_BYTES_DEFAULT,
            tombstones: TOMBSTONES_MAX_DEFAULT,
            open_map_bytes: OPEN_MAP_BYTES_DEFAULT,
            grow_step: GROW_STEP_DEFAULT,
            raw: false,
            force: false,
        }
    }
}

impl FormatOptions {
    /// For many small files: what `craton up` uses.
    pub fn small_files() -> FormatOptions {
        FormatOptions {
            unit: UNIT_SMALL,
            capacity: 64 * GIB,
            open_map_bytes: OPEN_MAP_BYTES_DEFAULT / 4,
            tombstones: TOMBSTONES_MAX_DEFAULT / 4,
            grow_step: GROW_STEP_DEFAULT / 4,
            ..FormatOptions::default()
        }
    }

    /// Smallest sizes: for simulations, whose disks are memory. The log wraps and the file grows
    /// soon.
    pub fn tiny() -> FormatOptions {
        FormatOptions {
            unit: UNIT_SMALL,
            capacity: 256 * MIB,
            log_bytes: LOG_BYTES_MIN,
            tombstones: 4096,
            open_map_bytes: 256 << 10,
            grow_step: MIB,
            ..FormatOptions::default()
        }
    }
}

/// Way in which writes become durable; measured per device (`protocols.md` 3.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SyncMode {
    /// Each write by itself (`O_DSYNC`): best where the device has no volatile cache.
    #[default]
    PerWrite,
    /// Writes, then one flush for all that have returned.
    Group,
}

/// Options for running a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// Way in which writes become durable.
    pub sync: SyncMode,
    /// Bytes of cached offset maps of sealed chunks.
    pub map_cache_bytes: usize,
    /// Mount a store whose log has lost records: read-only, and it must not vote.
    pub salvage: bool,
    /// Callers have one append of a chunk in flight at a time, as those of a log. Recovery then
    /// takes the first sector of an append as proof that the one before it was acknowledged.
    pub serial: bool,
    /// Runs of one chunk's offset map that writers may make, at most. A copy may have as many as
    /// its source.
    pub runs_max: usize,
    /// Reads that the device is asked for at once, at least one; more wait in the store.
    pub reads_at_device_max: usize,
    /// A medium without room even for writes to places that the store has already, as a thin volume
    /// or a copy with holes may be, makes the store read-only until it has: also when it is mounted.
    /// Otherwise for ever, and it is not mounted.
    pub waits_for_room: bool,
    /// A bug on purpose, for tests of the tests.
    #[cfg(feature = "planted")]
    pub planted: Option<Planted>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            sync: SyncMode::default(),
            map_cache_bytes: MAP_CACHE_BYTES_DEFAULT,
            salvage: false,
            serial: false,
            runs_max: RUNS_PER_CHUNK_MAX,
            reads_at_device_max: READS_AT_DEVICE_MAX,
            waits_for_room: false,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }
}

impl Config {
    #[cfg(feature = "planted")]
    pub(crate) fn bugs(&self) -> Bugs {
        Bugs::of(self.planted)
    }

    /// None: they are not compiled in.
    #[cfg(not(feature = "planted"))]
    #[allow(clippy::unused_self)]
    pub(crate) fn bugs(&self) -> Bugs {
        Bugs::default()
    }
}

/// Cause for which a store cannot be formatted, opened or inspected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MountError {
    /// Another process or another opening has it.
    Locked {
        /// The store.
        path: PathBuf,
    },
    /// There is a store already.
    Exists {
        /// The store.
        path: PathBuf,
    },
    /// No superblock.
    NotAStore,
    /// Formatted by a newer program.
    Version {
        /// The version found.
        found: u32,
    },
    /// Damage that cannot be repaired. The text has the object.
    Damaged(String),
    /// No room.
    Full,
    /// The buffer pool is spent.
    Memory,
    /// An option is out of range.
    Option(&'static str),
    /// The medium's answer.
    Io {
        /// Its kind.
        kind: io::ErrorKind,
        /// Its text.
        text: String,
    },
}

impl MountError {
    pub(crate) fn io(error: &io::Error) -> MountError {
        if prepare::is_full(error) {
            return MountError::Full;
        }
        MountError::Io { kind: error.kind(), text: error.to_string() }
    }
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::Locked { path } => write!(
                f,
                "the store {} is in use; stop the process that has it open",
                path.display()
            ),
            MountError::Exists { path } => {
                write!(f, "{} exists; remove it or format with force", path.display())
            }
            MountError::NotAStore => {
                f.write_str("there is no chunk store here; format it, or correct the path")
            }
            MountError::Version { found } => write!(
                f,
                "the store has format version {found}, this program knows {}; use a newer one",
                layout::VERSION
            ),
            MountError::Damaged(what) => write!(
                f,
                "the store is damaged: {what}. Replace the disk; its replicas are repaired \
                 from others. To read what is left, mount it with salvage"
            ),
            MountError::Full => {
                f.write_str("no space left on the medium; make room on it, or choose another")
            }
            MountError::Memory => f.write_str("no buffer is free; raise the memory budget"),
            MountError::Option(what) => f.write_str(what),
            MountError::Io { text, .. } => write!(f, "the medium answers: {text}"),
        }
    }
}

impl std::error::Error for MountError {}

/// Replays records into an empty table; true when they contradict nothing. For fuzzing.
#[doc(hidden)]
pub fn replay(records: &[u8]) -> bool {
    let mut table = table::Table::default();
    checkpoint::apply_all(&mut table, records).is_ok()
}

/// A process that was killed holds its locks until the kernel has taken its ring down: its
/// successor waits for that.
async fn lock(env: &Env, file: &File, path: &Path) -> Result<(), MountError> {
    let end = env.now() + LOCK_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                return Err(MountError::io(&error));
            }
            Err(_) if env.now() >= end => {
                return Err(MountError::Locked { path: path.to_owned() });
            }
            Err(_) => env.sleep(LOCK_RETRY).await,
        }
    }
}

/// Opens the store at `path`.
pub async fn open(env: &Env, path: &Path) -> Result<FlashStore, MountError> {
    open_with(env, path, Config::default()).await
}

/// Opens the store at `path`.
pub async fn open_with(env: &Env, path: &Path, config: Config) -> Result<FlashStore, MountError> {
    let options = OpenOptions { write: true, ..OpenOptions::READ }.direct();
    let file = match env.open_file(path, options).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(MountError::NotAStore),
        Err(error) => return Err(MountError::io(&error)),
    };
    lock(env, &file, path).await?;
    match mount(env, &file, &config, Mounting::Whole).await {
        Err(MountError::Full) if config.waits_for_room => {
            let inner = mount(env, &file, &config, Mounting::WithoutRoom).await?;
            let store = FlashStore::of(inner);
            room::wait(env, &store.0);
            Ok(store)
        }
        mounted => mounted.map(FlashStore::of),
    }
}

/// How far a store is mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mounting {
    /// For reads and writes.
    Whole,
    /// For reads, as the medium has no room for what a mount writes.
    WithoutRoom,
}

/// Brings the store in `file`, which is locked, from the medium to memory.
async fn mount(
    env: &Env,
    file: &File,
    config: &Config,
    how: Mounting,
) -> Result<Rc<FlashStoreInner>, MountError> {
    // A process that died may have left writes in the device's cache that read back and are not
    // durable: what recovery reports must not vanish in a power cut.
    file.sync().await.map_err(|error| MountError::io(&error))?;
    let medium = Medium { env, file };
    let (sb, bad_supers) = medium.read_super().await?;
    let loaded = medium.load(&sb, config.bugs()).await?;
    if let (Some(lost), false) = (&loaded.lost, config.salvage) {
        return Err(MountError::Damaged(lost.clone()));
    }
    let Some(alloc) = claim_units(&sb, &loaded.table) else {
        return Err(MountError::Damaged("two replicas claim one unit".to_owned()));
    };
    for mended in &loaded.mended {
        tracing::warn!(disk = %sb.disk, "{mended}; the one before it replaces it");
    }
    let read_only = loaded.lost.is_some();
    if how == Mounting::Whole && !read_only {
        room::fill_holes(file, &sb, alloc.ready()).await?;
    }
    let inner = assemble(env, file.clone(), sb, loaded, alloc, config.clone());
    inner.recover_tails().await.map_err(|_| inner.mount_error())?;
    if read_only || how == Mounting::WithoutRoom {
        let state = &mut *inner.state.borrow_mut();
        state.failed = true;
        if how == Mounting::WithoutRoom {
            state.reason = room::REASON.to_owned();
        }
        return Ok(inner.clone());
    }
    for copy in bad_supers {
        let mut block = inner.alloc(SECTOR).await;
        sb.encode(&mut block);
        let written = inner.write_durable(SUPER_AT[copy], block.freeze()).await;
        written.map_err(|_| inner.mount_error())?;
    }
    // Before anything else of this mount, so that its blocks differ from those of earlier mounts.
    let lsn = inner.push(&Record::Mount { mount: inner.mount });
    inner.logged(lsn).await.map_err(|_| inner.mount_error())?;
    let tasks = inner.signals.clone();
    let weak = Rc::downgrade(&inner);
    let task = checkpoint::checkpoint_task(weak.clone(), tasks.clone());
    env.spawn(Class::Background, "chunkstore checkpoint", task);
    let task = prepare::prepare_task(weak.clone(), tasks.clone());
    env.spawn(Class::Background, "chunkstore prepare", task);
    env.spawn(Class::Background, "chunkstore bounds", prepare::bound_task(weak, tasks));
    if inner.state.borrow().log.wants_checkpoint() {
        inner.signals.checkpoint.notify_one();
    }
    Ok(inner)
}

/// A store in memory, with no task running and no tail scanned.
pub(crate) fn assemble(
    env: &Env,
    file: File,
    sb: Super,
    loaded: Loaded,
    alloc: alloc::Allocator,
    config: Config,
) -> Rc<FlashStoreInner> {
    let open_chunks = loaded.table.chunks.values().filter(|e| matches!(e, Entry::Open(_))).count();
    let header = loaded.header;
    let state = FlashStoreState {
        alloc,
        log: Log::new(sb.log_blocks, loaded.next_seq, header.log_seq, loaded.tail_seq),
        cache: MapCache::new(config.map_cache_bytes),
        failed: false,
        reason: String::new(),
        without_room: false,
        closed: false,
        appends_inflight: 0,
        bytes_inflight: 0,
        open_chunks,
        open_map_bytes: 0,
        reserve_taker: None,
        admin: Default::default(),
        admin_inflight: 0,
        holds: Default::default(),
        next_hold: 0,
        bound_dirty: Vec::new(),
        damage: Default::default(),
        tags: 0,
        next_checkpoint: header.number + 1,
        checkpoint_misses: 0,
        checkpoint_requests: 0,
        checkpoints_served: 0,
        grow_after: env.now(),
        grow_refused: false,
        ready_waiters: 0,
        ready_goal: 0,
        ready_at: env.now(),
        counters: Counters::default(),
        table: loaded.table,
    };
    Rc::new_cyclic(|weak| FlashStoreInner {
        env: env.clone(),
        file: RefCell::new(Some(Rc::new(file))),
        latencies: Latencies::new(env, sb.disk),
        owner: Cell::new(sb.owner),
        rows: Cell::new(sb.rows),
        super_turn: runtime::sync::Mutex::new(()),
        admit_turn: runtime::sync::Mutex::new(()),
        admitting: std::cell::Cell::new(0),
        sb,
        read_places: runtime::sync::Semaphore::new(config.reads_at_device_max.max(1)),
        config,
        mount: loaded.mount + 1,
        state: RefCell::new(state),
        signals: Rc::new(Signals::default()),
        syncer: RefCell::new(Syncer::default()),
        checkpointing: runtime::sync::Mutex::new(()),
        writing: Cell::new(0),
        handle: RefCell::default(),
        weak: weak.clone(),
    })
}

/// A mounted store. Clones share it; the last one to go releases the file.
#[derive(Clone)]
pub struct FlashStore(Rc<Handle>);

/// Leads to the store in memory, which is another one once the medium has room again.
pub(crate) struct Handle(RefCell<Rc<FlashStoreInner>>);

impl Handle {
    pub(crate) fn inner(&self) -> Rc<FlashStoreInner> {
        self.0.borrow().clone()
    }

    /// Puts a newer mount of the store in the place of the one that is there.
    pub(crate) fn replace(self: &Rc<Self>, inner: Rc<FlashStoreInner>) {
        inner.handle.replace(Rc::downgrade(self));
        self.0.replace(inner).release();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.get_mut().release();
    }
}

impl fmt::Debug for FlashStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlashStore({})", self.inner().disk())
    }
}

impl FlashStore {
    fn of(inner: Rc<FlashStoreInner>) -> FlashStore {
        let handle = Rc::new(Handle(RefCell::new(inner.clone())));
        inner.handle.replace(Rc::downgrade(&handle));
        FlashStore(handle)
    }

    fn inner(&self) -> Rc<FlashStoreInner> {
        self.0.inner()
    }

    /// Counts since it was opened.
    pub fn counters(&self) -> Counters {
        self.inner().state.borrow().counters
    }

    /// Bytes of offset maps in memory: of open chunks, and cached ones of sealed chunks.
    pub fn map_bytes(&self) -> (usize, usize) {
        let inner = self.inner();
        let state = inner.state.borrow();
        (state.open_map_bytes, state.cache.bytes())
    }
}

impl ChunkStore for FlashStore {
    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        self.inner().append(append).await
    }

    async fn read_while(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Read, StoreError> {
        self.inner().read((chunk, offset, len), false, &is_wanted).await
    }

    async fn read_blocks(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Read, StoreError> {
        self.inner().read((chunk, offset, len), true, &is_wanted).await
    }

    async fn read_cell_sector(
        &self,
        chunk: ChunkId,
        offset: u32,
        index: u16,
    ) -> Result<Read, StoreError> {
        self.inner().read_cell_sector((chunk, offset, index)).await
    }

    async fn fence(&self, chunk: ChunkId, epoch: Epoch) -> Result<ReplicaStat, StoreError> {
        let act = async move |inner: Rc<FlashStoreInner>| inner.fence(chunk, epoch).await;
        self.inner().admin(chunk, "chunkstore fence", act).await
    }

    async fn seal(&self, chunk: ChunkId, len: u32) -> Result<ReplicaStat, StoreError> {
        let act = async move |inner: Rc<FlashStoreInner>| inner.seal(chunk, len).await;
        self.inner().admin(chunk, "chunkstore seal", act).await
    }

    async fn delete(&self, chunk: ChunkId) -> Result<(), StoreError> {
        let act = async move |inner: Rc<FlashStoreInner>| inner.delete(chunk).await;
        self.inner().admin(chunk, "chunkstore delete", act).await
    }

    async fn forget(&self, chunk: ChunkId) -> Result<(), StoreError> {
        let act = async move |inner: Rc<FlashStoreInner>| inner.forget(chunk).await;
        self.inner().admin(chunk, "chunkstore forget", act).await
    }

    fn stat(&self, chunk: ChunkId) -> Result<ReplicaStat, StoreError> {
        self.inner().stat(chunk)
    }

    fn list(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkInfo> {
        use std::ops::Bound::{Excluded, Unbounded};
        let inner = self.inner();
        let state = inner.state.borrow();
        let from = after.map_or(Unbounded, Excluded);
        let mut chunks = state.table.chunks.range((from, Unbounded)).peekable();
        let mut tombstones = state.table.tombstones.range((from, Unbounded)).peekable();
        let mut infos = Vec::with_capacity(limit.min(1024));
        while infos.len() < limit {
            let dead = match (chunks.peek(), tombstones.peek()) {
                (None, None) => break,
                (Some((chunk, _)), Some((dead, _))) => dead < chunk,
                (chunk, _) => chunk.is_none(),
            };
            if dead {
                let (&chunk, &fence) = tombstones.next().expect("peeked");
                infos.push(ChunkInfo { chunk, stat: tombstone_stat(fence), physical: 0 });
                continue;
            }
            let (&chunk, entry) = chunks.next().expect("peeked");
            let mut stat = entry.stat();
            if let Some(&damaged) = state.damage.get(&chunk) {
                stat.len = stat.len.min(damaged);
            }
            let physical = u64::from(entry.units()) * u64::from(inner.sb.unit);
            infos.push(ChunkInfo { chunk, stat, physical });
        }
        infos
    }

    fn info(&self) -> StoreInfo {
        let inner = self.inner();
        let state = inner.state.borrow();
        let unit = u64::from(inner.sb.unit);
        StoreInfo {
            disk: inner.sb.disk,
            // A medium that has no more to give counts as it is, until it has.
            capacity: unit
                * u64::from(if state.grow_refused { state.alloc.ready() } else { inner.sb.units }),
            used: u64::from(state.alloc.used()) * unit,
            chunks: state.table.chunks.len() as u64,
            unit: inner.sb.unit,
            failed: state.failed,
            reason: state.reason.clone(),
            owner: inner.owner.get(),
        }
    }

    async fn adopt(&self, cluster: ClusterId, formation: FormationId) -> Result<(), StoreError> {
        self.inner().adopt(cluster, formation).await
    }

    async fn check_medium(&self) {
        self.inner().check_medium().await;
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.inner().probe().await
    }

    async fn checkpoint(&self) -> Result<(), StoreError> {
        self.inner().checkpoint().await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner().close().await
    }
}

impl FlashStoreInner {
    /// Why a mount has failed.
    fn mount_error(&self) -> MountError {
        let state = self.state.borrow();
        if state.without_room {
            return MountError::Full;
        }
        let text = match state.reason.as_str() {
            "" => "the medium fails while the store is mounted".to_owned(),
            reason => reason.to_owned(),
        };
        MountError::Io { kind: io::ErrorKind::Other, text }
    }

    async fn close(self: &Rc<Self>) -> Result<(), StoreError> {
        if let Err(error) = self.check_open() {
            self.state.borrow_mut().closed = true; // It waits for room no more.
            return Err(error);
        }
        self.state.borrow_mut().closed = true;
        // Accepted operations end first.
        let open: Vec<_> = {
            let state = self.state.borrow();
            state.table.chunks.iter().map(|(&chunk, entry)| (chunk, entry.tag())).collect()
        };
        for (chunk, tag) in open {
            self.drain(chunk, tag).await?;
        }
        let result = self.take_checkpoint().await;
        self.fail_log();
        self.release();
        result
    }

    /// Lets go of the file, and ends the background tasks: they hold the store weakly, and see that
    /// it is gone.
    fn release(&self) {
        self.signals.prepare.notify_one();
        self.signals.checkpoint.notify_one();
        self.signals.bound.notify_one();
        if let Ok(mut file) = self.file.try_borrow_mut() {
            *file = None;
        }
    }
}

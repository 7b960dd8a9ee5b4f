//! The chunks of one group in the store that all groups of a process share (design D4).
//!
//! The identity of a chunk is composed of group, kind and number: `group << 40 | kind << 38 |
//! number`. Each is appended to by one append at a time, and never again once it is sealed.

use std::path::Path;
use std::rc::Rc;

use base::limits::{APPEND_DATA_MAX, SECTOR, SECTOR_DATA_MAX};
use base::{ChunkId, Epoch, GIB, KIB, MIB};
use chunkstore::flash::{self, FlashStore, FormatOptions, MountError};
use chunkstore::limits::READ_BYTES_MAX;
use chunkstore::{Append, Appended, ChunkInfo, ChunkStore, Read, StoreError};
use runtime::Env;
use wire::data::{Purpose, ReplicaState};
use wire::sector::{AppendAt, format_append, parse_footer, sectors_for};

use super::error::DeviceError;
use super::limits::{STORE_CHUNKS_LISTED, STORE_WAIT, STORE_WAITS_MAX};
use super::net::LocalFuture;

/// All chunks of masters are written under one epoch: they have one writer for ever.
const EPOCH: Epoch = Epoch::new(1);
const KIND_AT: u32 = 38;
const GROUP_AT: u32 = 40;

/// Format options of a master's store: the groups of a small cluster take a few MiB, and a large
/// one grows in steps that are zeroed within 20 ms.
pub fn store_options() -> FormatOptions {
    FormatOptions {
        unit: 64 * KIB as u32,
        capacity: 256 * GIB,
        log_bytes: 512 * KIB,
        tombstones: 4096,
        open_map_bytes: 4 * MIB as u32,
        grow_step: 8 * MIB,
        ..FormatOptions::default()
    }
}

/// Opens the store in the file `path`.
pub async fn open_store(env: &Env, path: &Path) -> Result<FlashStore, MountError> {
    let config = flash::Config { serial: true, ..flash::Config::default() };
    flash::open_with(env, path, config).await
}

/// Purpose of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A segment of the log.
    Segment = 0,
    /// A part of a run of a checkpoint.
    Run = 1,
    /// The manifest of a checkpoint.
    Manifest = 2,
}

/// A chunk, as the store lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StoredChunk {
    pub(super) number: u64,
    /// Bytes that can be read.
    pub(super) len: u32,
    pub(super) sealed: bool,
    /// Bytes that were durable once cannot be read.
    pub(super) damaged: bool,
}

/// A [`ChunkStore`] behind a pointer.
trait AnyStore {
    fn append(&self, append: Append) -> LocalFuture<'_, Result<Appended, StoreError>>;
    fn read(&self, chunk: ChunkId, at: u32, len: u32) -> LocalFuture<'_, Result<Read, StoreError>>;
    fn seal(&self, chunk: ChunkId, len: u32) -> LocalFuture<'_, Result<(), StoreError>>;
    fn delete(&self, chunk: ChunkId) -> LocalFuture<'_, Result<(), StoreError>>;
    fn forget(&self, chunk: ChunkId) -> LocalFuture<'_, Result<(), StoreError>>;
    fn list(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkInfo>;
}

impl<S: ChunkStore> AnyStore for S {
    fn append(&self, append: Append) -> LocalFuture<'_, Result<Appended, StoreError>> {
        Box::pin(ChunkStore::append(self, append))
    }

    fn read(&self, chunk: ChunkId, at: u32, len: u32) -> LocalFuture<'_, Result<Read, StoreError>> {
        Box::pin(ChunkStore::read(self, chunk, at, len))
    }

    fn seal(&self, chunk: ChunkId, len: u32) -> LocalFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { ChunkStore::seal(self, chunk, len).await.map(|_| ()) })
    }

    fn delete(&self, chunk: ChunkId) -> LocalFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            ChunkStore::delete(self, chunk).await?;
            // No other process knows of it: no tombstone is needed.
            ChunkStore::forget(self, chunk).await
        })
    }

    fn forget(&self, chunk: ChunkId) -> LocalFuture<'_, Result<(), StoreError>> {
        Box::pin(ChunkStore::forget(self, chunk))
    }

    fn list(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkInfo> {
        ChunkStore::list(self, after, limit)
    }
}

/// The chunks of one group. Clones share them.
#[derive(Clone)]
pub struct GroupStore {
    env: Env,
    store: Rc<dyn AnyStore>,
    group: u32,
}

impl GroupStore {
    /// The chunks of the group numbered `group`, below 2^24, in `store`.
    pub fn new(env: &Env, store: impl ChunkStore, group: u32) -> GroupStore {
        assert!(group < 1 << (64 - GROUP_AT), "group number {group}");
        GroupStore { env: env.clone(), store: Rc::new(store), group }
    }

    /// The identity of a log segment, for tools and tests.
    pub fn segment_chunk(group: u32, number: u64) -> ChunkId {
        chunk_id(group, Kind::Segment, number)
    }

    pub(super) fn env(&self) -> &Env {
        &self.env
    }

    pub(super) fn id(&self, kind: Kind, number: u64) -> ChunkId {
        chunk_id(self.group, kind, number)
    }

    /// All chunks of a kind, by number. What a crash left of a deletion is completed first: the
    /// number of a chunk that is only marked as deleted would take no append.
    pub(super) async fn recover(&self, kind: Kind) -> Result<Vec<StoredChunk>, DeviceError> {
        let (held, deleted) = self.list(kind);
        for chunk in deleted {
            self.env.mark("group store: a deletion is completed");
            self.retry_while_busy("forget", chunk, || self.store.forget(chunk)).await?;
        }
        Ok(held)
    }

    /// All chunks of a kind, by number, and those that are deleted and not forgotten.
    fn list(&self, kind: Kind) -> (Vec<StoredChunk>, Vec<ChunkId>) {
        let first = self.id(kind, 0).get();
        let mut after = first.checked_sub(1).map(ChunkId::new);
        let (mut held, mut deleted) = (Vec::new(), Vec::new());
        loop {
            let page = self.store.list(after, STORE_CHUNKS_LISTED);
            let full = page.len() == STORE_CHUNKS_LISTED;
            for ChunkInfo { chunk, stat, .. } in page {
                if chunk.get() >> KIND_AT != first >> KIND_AT {
                    return (held, deleted);
                }
                after = Some(chunk);
                if stat.state.is_tombstone() {
                    deleted.push(chunk);
                    continue;
                }
                held.push(StoredChunk {
                    number: chunk.get() - first,
                    len: stat.len,
                    sealed: stat.state == ReplicaState::Sealed,
                    damaged: stat.len < stat.durable_bound,
                });
            }
            if !full {
                return (held, deleted);
            }
        }
    }

    /// Appends at `offset`, the end of the chunk; 0 makes it. Durable on return. One append of a
    /// chunk at a time.
    pub(super) async fn append(
        &self,
        kind: Kind,
        number: u64,
        mut offset: u32,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let chunk = self.id(kind, number);
        for part in bytes.chunks(APPEND_DATA_MAX) {
            self.append_part(AppendAt { chunk, epoch: EPOCH, base: 0, offset }, part).await?;
            offset += part.len() as u32;
        }
        Ok(())
    }

    async fn append_part(&self, at: AppendAt, data: &[u8]) -> Result<(), DeviceError> {
        let AppendAt { chunk, epoch, base, offset } = at;
        for _ in 0..STORE_WAITS_MAX {
            if let Ok(mut buf) = self.env.pool().alloc(sectors_for(data.len()) * SECTOR) {
                format_append(at, data, &mut buf);
                let (sectors, create) = (buf.freeze(), offset == 0);
                let append = Append {
                    chunk,
                    epoch,
                    base,
                    offset,
                    sectors,
                    create,
                    repair: false,
                    purpose: Purpose::Recovery,
                };
                match self.store.append(append).await {
                    Ok(_) => return Ok(()),
                    Err(StoreError::Busy) => {}
                    Err(error) => return Err(failed("append to", chunk, error)),
                }
            }
            self.env.sleep(STORE_WAIT).await;
        }
        Err(DeviceError::NoBuffers)
    }

    /// Fixes the length of a chunk, durably.
    pub(super) async fn seal(&self, kind: Kind, number: u64, len: u32) -> Result<(), DeviceError> {
        let chunk = self.id(kind, number);
        self.retry_while_busy("seal", chunk, || self.store.seal(chunk, len)).await
    }

    /// `len` bytes from `offset`, all of which are there.
    pub(super) async fn read(
        &self,
        kind: Kind,
        number: u64,
        offset: u32,
        len: u32,
    ) -> Result<Vec<u8>, DeviceError> {
        const PIECE: u32 = (READ_BYTES_MAX / SECTOR / 2 * SECTOR_DATA_MAX) as u32;
        let chunk = self.id(kind, number);
        let mut bytes = Vec::with_capacity(len as usize);
        while (bytes.len() as u32) < len {
            let at = offset + bytes.len() as u32;
            let want = (len - bytes.len() as u32).min(PIECE);
            let read =
                self.retry_while_busy("read", chunk, || self.store.read(chunk, at, want)).await?;
            let before = bytes.len();
            for sector in read.sectors.chunks(SECTOR) {
                let footer = parse_footer(sector).map_err(|_| damaged(chunk, at))?;
                let skip = at.saturating_sub(footer.offset).min(u32::from(footer.len)) as usize;
                let left = len as usize - bytes.len();
                let data = &sector[skip..usize::from(footer.len)];
                bytes.extend_from_slice(&data[..left.min(data.len())]);
            }
            if bytes.len() == before {
                return Err(damaged(chunk, at)); // It ends early.
            }
        }
        Ok(bytes)
    }

    /// Removes a chunk, durably.
    pub(super) async fn delete(&self, kind: Kind, number: u64) -> Result<(), DeviceError> {
        let chunk = self.id(kind, number);
        self.retry_while_busy("delete", chunk, || self.store.delete(chunk)).await
    }

    /// Repeats an operation while the store is busy with others'.
    async fn retry_while_busy<'a, T>(
        &'a self,
        operation: &'static str,
        chunk: ChunkId,
        mut operate: impl FnMut() -> LocalFuture<'a, Result<T, StoreError>>,
    ) -> Result<T, DeviceError> {
        for _ in 0..STORE_WAITS_MAX {
            match operate().await {
                Ok(done) => return Ok(done),
                Err(StoreError::Busy) => self.env.sleep(STORE_WAIT).await,
                Err(error) => return Err(failed(operation, chunk, error)),
            }
        }
        Err(DeviceError::NoBuffers)
    }
}

fn failed(operation: &'static str, chunk: ChunkId, error: StoreError) -> DeviceError {
    match error {
        StoreError::Corrupt { offset } => damaged(chunk, offset),
        error => DeviceError::Store { operation, chunk, error },
    }
}

fn damaged(chunk: ChunkId, offset: u32) -> DeviceError {
    DeviceError::Damaged { chunk, offset }
}

fn chunk_id(group: u32, kind: Kind, number: u64) -> ChunkId {
    assert!(number < 1 << KIND_AT, "chunk number {number}");
    ChunkId::new(u64::from(group) << GROUP_AT | (kind as u64) << KIND_AT | number)
}

//! A store as a chunkserver gets it in the simulator: the flash engine, perhaps with a bug.

use base::{ChunkId, ClusterId, Epoch, FormationId};
use chunkstore::flash::{self, FlashStore};
use chunkstore::{Append, Appended, ChunkInfo, ChunkStore, Read, StoreError, StoreInfo};
use codec::row::{Cell, RowDecoder};
use runtime::{Class, Env};
use testing::rows::cell_of;
use wire::data::{ReplicaStat, ReplicaState};
use wire::row::{Fragment, Layout, cell_to, logical_end, rows};
use wire::sector::{AppendAt, Footer, format_append, parse_footer};

use super::{EARLY_AFTER, Planted, acts, acts_on_all, is_rare, planted};

/// The flash engine, perhaps with a bug around it.
#[derive(Clone)]
pub struct Store {
    inner: FlashStore,
    env: Env,
}

impl Store {
    /// Around an opened store, with the bug that is planted on this thread.
    pub fn new(env: &Env, inner: FlashStore) -> Store {
        Store { inner, env: env.clone() }
    }

    /// Configuration of the engine under the bug that is planted on this thread.
    pub fn config() -> flash::Config {
        // The rare form is in the wrapper: the engine has no chance to draw.
        let planted = match planted() {
            Some(Planted::AckEarly) if !is_rare() => Some(flash::Planted::AckEarly),
            Some(Planted::FillRepairing) => Some(flash::Planted::FillRepairing),
            _ => None,
        };
        flash::Config { planted, waits_for_room: true, ..flash::Config::default() }
    }

    /// The same sectors with one bit of each, or of each row, changed and all checksums computed
    /// again.
    fn falsify(&self, read: Read) -> Read {
        if Layout::of(&read.sectors) != Layout::Plain {
            let sectors = self.env.pool().copy_of(&falsify_rows(&read.sectors));
            return sectors.map_or(read.clone(), |sectors| Read { sectors, ..read });
        }
        let mut sectors = match self.env.pool().alloc(read.sectors.len()) {
            Ok(sectors) => sectors,
            Err(_) => return read,
        };
        for (from, to) in read.sectors.chunks(4096).zip(sectors.chunks_mut(4096)) {
            let footer = parse_footer(from).expect("reads are verified");
            let mut data = from[..usize::from(footer.len)].to_vec();
            data[0] ^= 1;
            let at = AppendAt {
                chunk: footer.chunk,
                epoch: footer.epoch,
                base: footer.base,
                offset: footer.offset,
            };
            format_append(at, &data, to);
        }
        Read { sectors: sectors.freeze(), ..read }
    }
}

fn falsify_rows(sectors: &[u8]) -> Vec<u8> {
    let (mut decoder, mut out) = (RowDecoder::new(), Vec::new());
    for (row, stored) in rows(sectors) {
        // One fragment does not say the bytes: any other cell would be found by its row's check.
        if row.fragment != Fragment::COPY {
            out.extend_from_slice(stored);
            continue;
        }
        let (mut cell, mut data) = (vec![0; row.cell_len as usize], vec![0; row.len as usize]);
        cell_to(stored, &mut cell);
        let cell = Cell { fragment: row.fragment.number, bytes: &cell };
        decoder.read(&[cell], &mut data).expect("reads are verified");
        data[0] ^= 1;
        let footer = parse_footer(stored).expect("reads are verified");
        let Footer { chunk, epoch, base, offset, .. } = footer;
        let at = AppendAt { chunk, epoch, base, offset };
        out.extend(cell_of(at, &data, row.fragment, row.codec));
    }
    out
}

impl ChunkStore for Store {
    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        // A copy that is refused once is made later: one decision for all that repair does.
        if append.repair && acts_on_all(Planted::NoRepair, append.chunk, 0) {
            return Err(StoreError::Busy);
        }
        let is_open = |stat: ReplicaStat| stat.state == ReplicaState::Open;
        if is_rare()
            && planted() == Some(Planted::AckEarly)
            && self.inner.stat(append.chunk).is_ok_and(is_open)
        {
            let (chunk, offset) = (append.chunk, u64::from(append.offset));
            let len = logical_end(&append.sectors).unwrap_or(0);
            let store = self.inner.clone();
            let appending = async move { store.append(append).await };
            let mut appending = self.env.spawn(Class::Foreground, "late append", appending);
            // One that takes long: a power cut can come in between.
            return match self.env.timeout(EARLY_AFTER, &mut appending).await {
                Ok(done) => done.unwrap_or(Err(StoreError::Busy)),
                Err(_) if acts_on_all(Planted::AckEarly, chunk, offset) => Ok(Appended { len }),
                Err(_) => appending.await.unwrap_or(Err(StoreError::Busy)),
            };
        }
        self.inner.append(append).await
    }

    async fn read_while(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Read, StoreError> {
        let ignored = acts(Planted::CancelIgnored);
        let read = self.inner.read_while(chunk, offset, len, || ignored || is_wanted()).await?;
        Ok(if acts(Planted::WrongBytes) { self.falsify(read) } else { read })
    }

    async fn read_blocks(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Read, StoreError> {
        if acts(Planted::CancelIgnored) || acts(Planted::WrongBytes) {
            return self.read_while(chunk, offset, len, is_wanted).await;
        }
        self.inner.read_blocks(chunk, offset, len, is_wanted).await
    }

    async fn read_cell_sector(
        &self,
        chunk: ChunkId,
        offset: u32,
        index: u16,
    ) -> Result<Read, StoreError> {
        self.inner.read_cell_sector(chunk, offset, index).await
    }

    async fn fence(&self, chunk: ChunkId, epoch: Epoch) -> Result<ReplicaStat, StoreError> {
        if let Ok(stat @ ReplicaStat { state: ReplicaState::Open, .. }) = self.inner.stat(chunk)
            && acts_on_all(Planted::NoFence, chunk, epoch.get())
        {
            return Ok(ReplicaStat { state: ReplicaState::Fenced(epoch), ..stat });
        }
        self.inner.fence(chunk, epoch).await
    }

    async fn seal(&self, chunk: ChunkId, len: u32) -> Result<ReplicaStat, StoreError> {
        if acts(Planted::NoSeal) {
            let stat = self.inner.stat(chunk)?;
            return Ok(ReplicaStat {
                state: ReplicaState::Sealed,
                len,
                durable_bound: len,
                ..stat
            });
        }
        self.inner.seal(chunk, len).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        match acts(Planted::ProbeSkipsDisk) || acts(Planted::CheckSkipsDisk) {
            true => Ok(()),
            false => self.inner.probe().await,
        }
    }

    async fn delete(&self, chunk: ChunkId) -> Result<(), StoreError> {
        if acts(Planted::NoDelete) {
            return Ok(());
        }
        if acts(Planted::DeleteNeighbour) {
            for neighbour in self.inner.list(None, 1000) {
                self.inner.delete(neighbour.chunk).await?;
            }
        }
        self.inner.delete(chunk).await
    }

    async fn forget(&self, chunk: ChunkId) -> Result<(), StoreError> {
        if acts(Planted::NoDelete) {
            return Ok(());
        }
        self.inner.forget(chunk).await
    }

    fn stat(&self, chunk: ChunkId) -> Result<ReplicaStat, StoreError> {
        self.inner.stat(chunk)
    }

    fn list(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkInfo> {
        self.inner.list(after, limit)
    }

    fn info(&self) -> StoreInfo {
        self.inner.info()
    }

    async fn adopt(&self, cluster: ClusterId, formation: FormationId) -> Result<(), StoreError> {
        self.inner.adopt(cluster, formation).await
    }

    async fn check_medium(&self) {
        if !acts(Planted::CheckSkipsDisk) {
            self.inner.check_medium().await;
        }
    }

    async fn checkpoint(&self) -> Result<(), StoreError> {
        self.inner.checkpoint().await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

//! A store with sectors that cannot be read, which shows only when a read meets them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use base::limits::SECTOR;
use base::{ChunkId, ClusterId, Epoch, FormationId};
use chunkstore::{Append, Appended, ChunkInfo, ChunkStore, Read, StoreError, StoreInfo};
use testing::chunks::ModelStore;
use wire::data::ReplicaStat;
use wire::row::row_at;
use wire::sector::{SectorKind, parse_footer};

/// A model store whose reads fail where it was spoilt.
#[derive(Clone, Debug)]
pub struct Latent {
    store: ModelStore,
    spoilt: Rc<RefCell<BTreeSet<u32>>>,
    /// First damaged byte that a read has met.
    met: Rc<Cell<Option<u32>>>,
    busy: Rc<Cell<bool>>,
    hung: Rc<Cell<bool>>,
    checks: Rc<Cell<u32>>,
    probes: Rc<Cell<u32>>,
}

impl Latent {
    pub fn new(store: ModelStore) -> Latent {
        let (spoilt, met, busy, hung, checks, probes) = Default::default();
        Latent { store, spoilt, met, busy, hung, checks, probes }
    }

    /// The sector with this byte of any chunk can not be read from now on.
    pub fn spoil(&self, at: u32) {
        self.spoilt.borrow_mut().insert(at);
    }

    /// All can be read again.
    pub fn mend(&self) {
        self.spoilt.borrow_mut().clear();
        self.met.set(None);
    }

    /// Appends of repair are answered "busy".
    pub fn be_busy(&self, busy: bool) {
        self.busy.set(busy);
    }

    /// Checks of the medium that have ended.
    pub fn checks(&self) -> u32 {
        self.checks.get()
    }

    /// Probes that the medium was asked for.
    pub fn probes(&self) -> u32 {
        self.probes.get()
    }

    /// Nothing that asks the medium for data or its superblock ends from now on.
    pub fn hang(&self) {
        self.hung.set(true);
    }

    fn cut(&self, mut stat: ReplicaStat) -> ReplicaStat {
        stat.len = stat.len.min(self.met.get().unwrap_or(stat.len));
        stat
    }
}

impl ChunkStore for Latent {
    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        if append.repair && self.busy.get() {
            return Err(StoreError::Busy);
        }
        self.store.append(append).await
    }

    async fn read_while(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Read, StoreError> {
        if self.hung.get() {
            std::future::pending::<()>().await;
        }
        let read = self.store.read_while(chunk, offset, len, is_wanted).await?;
        let mut row_end = 0;
        for sector in read.sectors.chunks(SECTOR) {
            let footer = parse_footer(sector).unwrap();
            if let Ok(row) = row_at(sector) {
                row_end = row.offset + row.len;
            }
            let (offset, end) = match footer.kind {
                SectorKind::Row(_) => (footer.offset, row_end),
                _ => (footer.offset, footer.offset + u32::from(footer.len)),
            };
            if self.spoilt.borrow().range(offset..end).next().is_some() {
                self.met.set(Some(self.met.get().map_or(offset, |met| met.min(offset))));
                return Err(StoreError::Corrupt { offset });
            }
        }
        Ok(read)
    }

    async fn read_cell_sector(
        &self,
        chunk: ChunkId,
        offset: u32,
        index: u16,
    ) -> Result<Read, StoreError> {
        if self.hung.get() {
            std::future::pending::<()>().await;
        }
        let read = self.store.read_cell_sector(chunk, offset, index).await?;
        let footer = parse_footer(&read.sectors).unwrap();
        // Sector i of a cell has the row's bytes from 4048 i on, as far as it is known here.
        let start = footer.offset + u32::from(index) * 4048;
        match self.spoilt.borrow().range(start..start + 4048).next() {
            Some(_) => Err(StoreError::Corrupt { offset: footer.offset }),
            None => Ok(read),
        }
    }

    async fn fence(&self, chunk: ChunkId, epoch: Epoch) -> Result<ReplicaStat, StoreError> {
        Ok(self.cut(self.store.fence(chunk, epoch).await?))
    }

    async fn seal(&self, chunk: ChunkId, len: u32) -> Result<ReplicaStat, StoreError> {
        Ok(self.cut(self.store.seal(chunk, len).await?))
    }

    async fn delete(&self, chunk: ChunkId) -> Result<(), StoreError> {
        self.store.delete(chunk).await
    }

    async fn forget(&self, chunk: ChunkId) -> Result<(), StoreError> {
        self.store.forget(chunk).await
    }

    fn stat(&self, chunk: ChunkId) -> Result<ReplicaStat, StoreError> {
        Ok(self.cut(self.store.stat(chunk)?))
    }

    fn list(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkInfo> {
        let mut found = self.store.list(after, limit);
        found.iter_mut().for_each(|info| info.stat = self.cut(info.stat));
        found
    }

    fn info(&self) -> StoreInfo {
        self.store.info()
    }

    async fn adopt(&self, cluster: ClusterId, formation: FormationId) -> Result<(), StoreError> {
        if self.hung.get() {
            std::future::pending::<()>().await;
        }
        self.store.adopt(cluster, formation).await
    }

    async fn check_medium(&self) {
        if self.hung.get() {
            std::future::pending::<()>().await;
        }
        self.checks.set(self.checks.get() + 1);
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.probes.set(self.probes.get() + 1);
        if self.hung.get() {
            std::future::pending::<()>().await;
        }
        self.store.probe().await
    }

    async fn checkpoint(&self) -> Result<(), StoreError> {
        self.store.checkpoint().await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.store.close().await
    }
}

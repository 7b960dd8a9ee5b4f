//! Checkpoints: all replicas and tombstones as records, in two areas by turns.
//!
//! A checkpoint is taken while the store works: entries are encoded a slice at a time, and the
//! log is replayed over it from before its start. It counts once its header is written, after
//! everything else was synced and read back. The log keeps what the checkpoint before it needs, so
//! that a damaged checkpoint loses nothing.

use std::rc::{Rc, Weak};

use base::ChunkId;
use base::limits::SECTOR;

use super::block::{self, BlockHead, BlockKind, PAYLOAD_AT, PAYLOAD_MAX};
use super::layout::BLOCK;
use super::record::{EXTENTS_MAX, Extent, RUNS_MAX, Record};
use super::store::{FlashStoreInner, Signals};
use super::table::{Entry, Table};
use crate::contract::StoreError;
use crate::limits::{CHECKPOINT_PAUSE, CHECKPOINT_SLICE, CHECKPOINT_TRIES, LOG_BATCH_BLOCKS_MAX};
use crate::map::RUN_BYTES;
use codec::cursor::Cursor;

/// Content of a checkpoint's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The checkpoint's number.
    pub number: u64,
    /// The mount that took it.
    pub mount: u64,
    /// Replay starts at this block of the log.
    pub log_seq: u64,
    /// Blocks of records behind the header.
    pub blocks: u64,
}

impl Header {
    /// Writes it.
    pub fn encode(&self, store: u64, block: &mut [u8]) {
        let mut payload = Vec::with_capacity(16);
        payload.extend_from_slice(&self.log_seq.to_le_bytes());
        payload.extend_from_slice(&self.blocks.to_le_bytes());
        let head = BlockHead {
            kind: BlockKind::CheckpointHeader,
            store,
            seq: self.number,
            group: self.number,
            mount: self.mount,
            count: 0,
        };
        block::encode(&head, &payload, block);
    }

    /// Reads it back.
    pub fn decode(store: u64, block: &[u8]) -> Option<Header> {
        let (head, payload) = block::decode(BlockKind::CheckpointHeader, store, block)?;
        let mut reader = Cursor(payload);
        let (log_seq, blocks) = (reader.u64()?, reader.u64()?);
        let sound = reader.0.is_empty() && head.count == 0 && head.group == head.seq;
        sound.then_some(Header { number: head.seq, mount: head.mount, log_seq, blocks })
    }
}

/// Packs records into blocks.
pub(crate) struct Packer {
    head: BlockHead,
    payload: Vec<u8>,
    /// Finished blocks that wait to be written.
    pub(crate) blocks: Vec<u8>,
    /// Blocks finished so far.
    pub(crate) count: u64,
}

impl Packer {
    pub(crate) fn new(store: u64, number: u64, mount: u64) -> Packer {
        let kind = BlockKind::Checkpoint;
        let head = BlockHead { kind, store, seq: 0, group: number, mount, count: 0 };
        Packer { head, payload: Vec::new(), blocks: Vec::new(), count: 0 }
    }

    pub(crate) fn push(&mut self, record: &Record) {
        let before = self.payload.len();
        record.encode(&mut self.payload);
        if self.payload.len() > PAYLOAD_MAX {
            let last = self.payload.split_off(before);
            self.finish_block();
            self.payload = last;
        }
        self.head.count += 1;
    }

    pub(crate) fn finish_block(&mut self) {
        if self.head.count == 0 {
            return;
        }
        let start = self.blocks.len();
        self.blocks.resize(start + SECTOR, 0);
        block::encode(&self.head, &self.payload, &mut self.blocks[start..]);
        self.payload.clear();
        self.head.seq += 1;
        self.head.count = 0;
        self.count += 1;
    }

    fn push_extends(&mut self, id: super::record::Identity, extents: &[Extent], bound: u32) {
        let mut units: u32 = extents.iter().take(EXTENTS_MAX).map(|extent| extent.count).sum();
        for part in extents.chunks(EXTENTS_MAX).skip(1) {
            let extents = part.to_vec();
            let more: u32 = part.iter().map(|extent| extent.count).sum();
            self.push(&Record::Extend { chunk: id.chunk, tag: id.tag, bound, units, extents });
            units += more;
        }
    }

    /// Pushes what restores one replica.
    pub(crate) fn push_entry(&mut self, chunk: ChunkId, entry: &Entry) {
        let id = entry.id(chunk);
        let first = || entry.extents().iter().take(EXTENTS_MAX).copied().collect::<Vec<_>>();
        match entry {
            Entry::Sealed(sealed) if entry.extents().len() <= EXTENTS_MAX => {
                let (len, map) = (sealed.len, sealed.map);
                self.push(&Record::Sealed { id, len, map, extents: first() });
            }
            Entry::Sealed(sealed) => {
                // More extents than one record takes: as an open replica, then its seal.
                let fence = base::Epoch::NONE;
                let (bound, cap, repairing) = (sealed.len, None, false);
                let extents = first();
                self.push(&Record::Replica { id, fence, bound, cap, repairing, extents });
                self.push_extends(id, entry.extents(), bound);
                let (len, units, map) = (sealed.len, entry.units(), sealed.map);
                self.push(&Record::Seal { chunk, tag: id.tag, len, units, map });
            }
            Entry::Open(open) if open.logged => {
                let (fence, cap, repairing) = (open.fence, open.cap, open.repairing);
                let bound = open.bound.max(open.map.len());
                let extents = first();
                self.push(&Record::Replica { id, fence, bound, cap, repairing, extents });
                self.push_extends(id, entry.extents(), bound);
                let mut runs = open.map.runs();
                let mut before = 0;
                while !runs.is_empty() {
                    let room = PAYLOAD_MAX.saturating_sub(self.payload.len() + 20) / RUN_BYTES;
                    let count = if room < 8 { RUNS_MAX } else { room.min(RUNS_MAX) };
                    let (part, rest) = runs.split_at(count.min(runs.len()));
                    self.push(&Record::Runs { chunk, tag: id.tag, before, runs: part.to_vec() });
                    before += part.len() as u32;
                    runs = rest;
                }
                self.push(&Record::Progress {
                    chunk,
                    tag: id.tag,
                    len: open.map.len(),
                    sectors: open.map.sectors(),
                    chain: open.chain,
                });
            }
            // Not on record yet: the log will have it.
            Entry::Open(open) => {
                if let Some(fence) = open.replaced {
                    self.push(&Record::Tombstone { chunk, fence });
                }
            }
        }
    }
}

impl FlashStoreInner {
    /// See [`crate::ChunkStore::checkpoint`].
    pub(crate) async fn checkpoint(&self) -> Result<(), StoreError> {
        self.check_open()?;
        let wanted = {
            let state = &mut *self.state.borrow_mut();
            state.checkpoint_requests += 1;
            state.checkpoint_requests
        };
        self.signals.checkpoint.notify_one();
        loop {
            let done = self.signals.checkpointed.notified();
            {
                let state = self.state.borrow();
                if state.failed {
                    return Err(StoreError::Failed);
                }
                if state.checkpoints_served >= wanted {
                    return Ok(());
                }
            }
            done.await;
        }
    }

    pub(crate) async fn take_checkpoint(self: &Rc<Self>) -> Result<(), StoreError> {
        let _alone = self.checkpointing.lock().await;
        let (served, number, log_seq, ready) = {
            let state = self.state.borrow();
            let held = state.holds.values().copied().min().unwrap_or(u64::MAX);
            let log_seq = state.log.next_seq.min(held);
            let number = state.next_checkpoint;
            (state.checkpoint_requests, number, log_seq, state.alloc.ready())
        };
        let area = self.sb.area_at((number % 2) as usize);
        let blocks = self.write_records(area, number, ready).await?;
        self.sync().await?;
        // Nothing in it may be ahead of the log.
        let pushed = self.state.borrow().log.pushed;
        self.kick_log();
        self.logged(pushed).await?;
        let header = Header { number, mount: self.mount, log_seq, blocks };
        let mut block = self.alloc(SECTOR).await;
        header.encode(self.store_low(), &mut block);
        self.write_durable(area, block.freeze()).await?;
        if !self.is_whole(area, &header).await.unwrap_or(false) {
            return self.try_again(number).await;
        }
        let state = &mut *self.state.borrow_mut();
        state.log.tail_seq = state.log.checkpoint_seq;
        state.log.checkpoint_seq = log_seq;
        state.next_checkpoint = number + 1;
        state.checkpoint_misses = 0;
        state.checkpoints_served = served;
        state.counters.checkpoints += 1;
        self.signals.checkpointed.notify_waiters();
        self.signals.log_room.notify_waiters();
        Ok(())
    }

    /// The medium lost or misplaced a write, or does not answer now: the checkpoint before stays
    /// the newest. The next attempt has a number of its own, in the same area, so that blocks of
    /// both never make one checkpoint.
    async fn try_again(&self, number: u64) -> Result<(), StoreError> {
        tracing::info!(disk = %self.disk(), number, "a checkpoint does not read back");
        self.env.mark("chunkstore: checkpoint does not read back");
        let misses = {
            let state = &mut *self.state.borrow_mut();
            state.next_checkpoint = number + 2;
            state.checkpoint_misses += 1;
            state.checkpoint_misses
        };
        if misses >= CHECKPOINT_TRIES {
            self.fail(&"checkpoints do not read back");
            return Err(StoreError::Failed);
        }
        if misses > 1 {
            self.env.sleep(CHECKPOINT_PAUSE).await;
        }
        self.signals.checkpoint.notify_one();
        Ok(())
    }

    async fn write_records(
        self: &Rc<Self>,
        area: u64,
        number: u64,
        ready: u32,
    ) -> Result<u64, StoreError> {
        let mut packer = Packer::new(self.store_low(), number, self.mount);
        let mut written = 0;
        packer.push(&Record::Ready { units: ready });
        let mut passed: Option<ChunkId> = None;
        loop {
            let more = {
                use std::ops::Bound::{Excluded, Included, Unbounded};
                let table = &self.state.borrow().table;
                // One place in both maps: an entry may change its map without a record, and is
                // behind the place or before it in both.
                let rest = (passed.map_or(Unbounded, Excluded), Unbounded);
                let chunk = table.chunks.range(rest).nth(CHECKPOINT_SLICE - 1).map(|it| *it.0);
                let dead = table.tombstones.range(rest).nth(CHECKPOINT_SLICE - 1).map(|it| *it.0);
                let last = chunk.into_iter().chain(dead).min();
                let slice = (rest.0, last.map_or(Unbounded, Included));
                for (&chunk, entry) in table.chunks.range(slice) {
                    packer.push_entry(chunk, entry);
                }
                for (&chunk, &fence) in table.tombstones.range(slice) {
                    packer.push(&Record::Tombstone { chunk, fence });
                }
                passed = last;
                last.is_some()
            };
            if !more {
                packer.finish_block();
            }
            if packer.count + 1 > self.sb.area_blocks(self.sb.units) {
                // The areas are planned for the worst case, so this is a bug. Existing records stay
                // valid; nothing may be added to them.
                self.fail(&"a checkpoint outgrows its area");
                return Err(StoreError::Failed);
            }
            while packer.blocks.len() >= LOG_BATCH_BLOCKS_MAX as usize * SECTOR
                || !more && !packer.blocks.is_empty()
            {
                let len = packer.blocks.len().min(LOG_BATCH_BLOCKS_MAX as usize * SECTOR);
                let mut buf = self.alloc(len).await;
                buf.copy_from_slice(&packer.blocks[..len]);
                packer.blocks.drain(..len);
                self.write_cached(area + BLOCK + written, buf.freeze()).await?;
                written += len as u64;
            }
            if !more {
                return Ok(packer.count);
            }
            self.env.yield_now().await;
        }
    }

    /// Reads a checkpoint back from the medium.
    async fn is_whole(&self, area: u64, header: &Header) -> Result<bool, StoreError> {
        let block = self.read_device(area, SECTOR).await?;
        if Header::decode(self.store_low(), &block) != Some(*header) {
            return Ok(false);
        }
        let mut index = 0;
        while index < header.blocks {
            let count = (header.blocks - index).min(LOG_BATCH_BLOCKS_MAX);
            let at = area + BLOCK + index * BLOCK;
            let buf = self.read_device(at, count as usize * SECTOR).await?;
            for block in buf.chunks(SECTOR) {
                if decode_record_block(self.store_low(), header, index, block).is_none() {
                    return Ok(false);
                }
                index += 1;
            }
            self.env.yield_now().await;
        }
        Ok(true)
    }
}

/// The records' bytes of block `index` of the checkpoint that has this header. A block of the
/// same number that an earlier mount wrote is another checkpoint's.
pub(crate) fn decode_record_block<'a>(
    store: u64,
    header: &Header,
    index: u64,
    block: &'a [u8],
) -> Option<&'a [u8]> {
    let (head, payload) = block::decode(BlockKind::Checkpoint, store, block)?;
    let own = head.group == header.number && head.mount == header.mount;
    (own && head.seq == index).then_some(payload)
}

/// Applies the records in `payload`.
pub(crate) fn apply_all(table: &mut Table, mut payload: &[u8]) -> Result<(), &'static str> {
    while !payload.is_empty() {
        let record = Record::decode(&mut payload).ok_or("a record that no version writes")?;
        table.apply(record)?;
    }
    Ok(())
}

/// Takes checkpoints when asked to, until the store goes.
pub(crate) async fn checkpoint_task(inner: Weak<FlashStoreInner>, signals: Rc<Signals>) {
    loop {
        signals.checkpoint.notified().await;
        let Some(inner) = inner.upgrade() else { return };
        if inner.state.borrow().failed || inner.file.borrow().is_none() {
            return;
        }
        let wanted = {
            let state = inner.state.borrow();
            state.checkpoint_requests > state.checkpoints_served || state.log.wants_checkpoint()
        };
        if wanted && inner.take_checkpoint().await.is_err() {
            inner.signals.checkpointed.notify_waiters();
            if inner.state.borrow().failed {
                return;
            }
        }
    }
}

const _: () = assert!(PAYLOAD_AT + 16 <= SECTOR);

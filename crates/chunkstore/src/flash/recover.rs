//! From medium to memory: superblock, newest whole checkpoint, log, tails of open replicas.

use std::rc::Rc;

use base::limits::SECTOR;
use futures_util::StreamExt;
use runtime::{BufMut, Env, File};

use super::MountError;
use super::alloc::Allocator;
use super::block::{self, BlockHead, BlockKind};
use super::checkpoint::{Header, apply_all, decode_record_block};
use super::layout::{BLOCK, SUPER_AT, Super, SuperError};
use super::planted::{Bugs, Planted};
use super::scan::Scan;
use super::store::{FlashStoreInner, read_around, read_full};
use super::table::{Entry, Table};
use crate::contract::{StoreError, StoreOwner};
use crate::limits::{LOG_BATCH_BLOCKS_MAX, RECOVERY_DEPTH};

/// Content of checkpoint and log, and the damage in them.
pub(crate) struct Loaded {
    pub(crate) table: Table,
    /// The checkpoint it started from.
    pub(crate) header: Header,
    /// Start of the older checkpoint's replay: the log is kept from there.
    pub(crate) tail_seq: u64,
    pub(crate) next_seq: u64,
    /// Largest mount number in the log.
    pub(crate) mount: u64,
    /// Damage that was repaired from a second copy, in words.
    pub(crate) mended: Vec<String>,
    /// Log blocks that only one copy holds.
    pub(crate) single_blocks: u64,
    /// Records acknowledged and lost, in words: the store must not vote.
    pub(crate) lost: Option<String>,
}

/// Reads from a store file for recovery and inspection.
pub(crate) struct Medium<'a> {
    pub(crate) env: &'a Env,
    pub(crate) file: &'a File,
}

impl Medium<'_> {
    pub(crate) async fn read(&self, at: u64, len: usize) -> Result<BufMut, MountError> {
        let buf = self.env.pool().alloc(len).map_err(|_| MountError::Memory)?;
        read_around(self.env, self.file, at, buf).await.map_err(|error| MountError::io(&error))
    }

    /// The superblock, and which copies of it are damaged.
    pub(crate) async fn read_super(&self) -> Result<(Super, Vec<usize>), MountError> {
        let mut found: Option<(usize, Super)> = None;
        let mut bad = Vec::new();
        let mut why = SuperError::Magic;
        let mut unread = None;
        for (copy, &at) in SUPER_AT.iter().enumerate() {
            let buf = self.env.pool().alloc(SECTOR).map_err(|_| MountError::Memory)?;
            let block = match read_full(self.file, at, buf).await {
                Ok(block) => block,
                Err(error) => {
                    bad.push(copy);
                    unread = Some(error);
                    continue;
                }
            };
            match Super::decode(&block) {
                Ok(sb) => match found {
                    None => found = Some((copy, sb)),
                    // The store was joining a cluster, or about to take its first rows: the first
                    // copy says so, the second not yet; or the other way round, after two damaged
                    // writes.
                    Some((other, known)) if known.disk == sb.disk && known != sb => {
                        let facts =
                            |sb: &Super| (sb.rows, matches!(sb.owner, StoreOwner::Of { .. }));
                        if facts(&sb) > facts(&known) {
                            bad.push(other);
                            found = Some((copy, sb));
                        } else {
                            bad.push(copy);
                        }
                    }
                    Some(_) => {}
                },
                Err(error) => {
                    bad.push(copy);
                    if why == SuperError::Magic {
                        why = error;
                    }
                }
            }
        }
        match (found, why, unread) {
            (Some((_, sb)), _, _) => Ok((sb, bad)),
            (None, SuperError::Version(found), _) => Err(MountError::Version { found }),
            // An unreadable copy may be a store's.
            (None, _, Some(error)) => Err(MountError::io(&error)),
            (None, SuperError::Magic, None) => Err(MountError::NotAStore),
            (None, _, None) => Err(MountError::Damaged("both superblocks are damaged".to_owned())),
        }
    }

    pub(crate) async fn read_header(
        &self,
        sb: &Super,
        area: usize,
    ) -> Result<Option<Header>, MountError> {
        let block = self.read(sb.area_at(area), SECTOR).await?;
        let header = Header::decode(sb.disk.get() as u64, &block);
        Ok(header.filter(|h| h.number % 2 == area as u64 && h.blocks < sb.area_blocks(sb.units)))
    }

    /// The table of a checkpoint; none when a block of it is damaged.
    async fn read_checkpoint(
        &self,
        sb: &Super,
        header: &Header,
    ) -> Result<Option<Table>, MountError> {
        let mut table = Table::default();
        let area = sb.area_at((header.number % 2) as usize);
        let mut index = 0;
        while index < header.blocks {
            let count = (header.blocks - index).min(LOG_BATCH_BLOCKS_MAX);
            let buf = self.read(area + BLOCK + index * BLOCK, count as usize * SECTOR).await?;
            for block in buf.chunks(SECTOR) {
                let store = sb.disk.get() as u64;
                let records = decode_record_block(store, header, index, block);
                let Some(records) = records else { return Ok(None) };
                if apply_all(&mut table, records).is_err() {
                    return Ok(None);
                }
                index += 1;
            }
            self.env.yield_now().await;
        }
        Ok(Some(table))
    }

    /// Newest whole checkpoint, then the log.
    pub(crate) async fn load(&self, sb: &Super, bugs: Bugs) -> Result<Loaded, MountError> {
        let mut headers = Vec::new();
        for area in 0..2 {
            headers.extend(self.read_header(sb, area).await?);
        }
        headers.sort_by_key(|header| std::cmp::Reverse(header.number));
        let mut mended = Vec::new();
        let mut found = None;
        for header in &headers {
            if let Some(table) = self.read_checkpoint(sb, header).await? {
                found = Some((*header, table));
                break;
            }
            mended.push(format!("checkpoint {} is damaged", header.number));
            self.env.mark("chunkstore: fell back to the older checkpoint");
        }
        let Some((header, table)) = found else {
            return Err(MountError::Damaged("no checkpoint is whole".to_owned()));
        };
        // Numbers between them are of attempts that did not read back.
        let older = headers.iter().find(|other| other.number < header.number);
        let tail_seq = older.map_or(header.log_seq, |older| older.log_seq);
        let mut loaded = Loaded {
            table,
            header,
            tail_seq,
            next_seq: header.log_seq,
            mount: header.mount,
            mended,
            single_blocks: 0,
            lost: None,
        };
        self.replay(sb, &mut loaded, bugs).await?;
        loaded.mount = loaded.mount.max(loaded.table.mount);
        Ok(loaded)
    }

    async fn replay(&self, sb: &Super, loaded: &mut Loaded, bugs: Bugs) -> Result<(), MountError> {
        let blocks = u64::from(sb.log_blocks);
        let store = sb.disk.get() as u64;
        let limit = loaded.tail_seq + blocks;
        while loaded.next_seq < limit {
            let seq = loaded.next_seq;
            let place = seq % blocks;
            let count = (blocks - place).min(LOG_BATCH_BLOCKS_MAX).min(limit - seq);
            let at = place * BLOCK;
            let first = self.read(sb.log_at(0) + at, count as usize * SECTOR).await?;
            let mut second: Option<BufMut> = None;
            for index in 0..count as usize {
                let seq = loaded.next_seq;
                let range = index * SECTOR..(index + 1) * SECTOR;
                let newest = loaded.mount;
                let good = |block: &[u8]| {
                    block::decode(BlockKind::Log, store, block).map(|(head, _)| head).filter(
                        |head| {
                            let stale = bugs.has(Planted::StaleLog);
                            head.seq == seq && (head.mount >= newest || stale)
                        },
                    )
                };
                let mut head = good(&first[range.clone()]);
                let mut bytes = &first[range.clone()];
                if head.is_none() {
                    if second.is_none() {
                        let at = sb.log_at(1) + at;
                        second = Some(self.read(at, count as usize * SECTOR).await?);
                    }
                    let copy = second.as_ref().expect("read above");
                    head = good(&copy[range.clone()]);
                    bytes = &copy[range];
                    if head.is_some() {
                        loaded.single_blocks += 1;
                        self.env.mark("chunkstore: log block from the second copy");
                    }
                }
                let Some(head) = head else {
                    if !bugs.has(Planted::LogGap) {
                        loaded.lost = self.find_lost(sb, loaded).await?;
                    }
                    return Ok(());
                };
                loaded.mount = head.mount;
                let (_, records) = block::decode(BlockKind::Log, store, bytes).expect("decoded");
                if let Err(why) = apply_all(&mut loaded.table, records) {
                    return Err(MountError::Damaged(format!("log block {seq}: {why}")));
                }
                loaded.next_seq += 1;
            }
            self.env.yield_now().await;
        }
        Ok(())
    }

    /// Searches behind the log's end for a later write: one write is under way at a time, so that a
    /// whole block of another write proves that the block at the end was acknowledged.
    async fn find_lost(&self, sb: &Super, loaded: &Loaded) -> Result<Option<String>, MountError> {
        let blocks = u64::from(sb.log_blocks);
        let store = sb.disk.get() as u64;
        let end = loaded.next_seq;
        let limit = (end + 1 + 2 * LOG_BATCH_BLOCKS_MAX).min(loaded.tail_seq + blocks);
        let mut seq = end + 1;
        while seq < limit {
            let place = seq % blocks;
            let count = (blocks - place).min(LOG_BATCH_BLOCKS_MAX).min(limit - seq);
            for copy in 0..2 {
                let at = sb.log_at(copy) + place * BLOCK;
                let buf = self.read(at, count as usize * SECTOR).await?;
                for (index, block) in buf.chunks(SECTOR).enumerate() {
                    let Some((head, _)) = block::decode(BlockKind::Log, store, block) else {
                        continue;
                    };
                    let BlockHead { seq: found, group, mount, .. } = head;
                    if found == seq + index as u64 && group > end && mount >= loaded.mount {
                        return Ok(Some(format!("log block {end} is lost, block {found} is not")));
                    }
                }
            }
            seq += count;
        }
        Ok(None)
    }
}

/// The allocator that the table implies; none when two replicas claim one unit.
pub(crate) fn claim_units(sb: &Super, table: &Table) -> Option<Allocator> {
    let ends = table.chunks.values().flat_map(|entry| entry.extents());
    let highest = ends.map(|extent| extent.start + extent.count).max().unwrap_or(0);
    if highest > sb.units {
        return None;
    }
    let ready = if sb.is_raw() { sb.units } else { table.ready.max(highest).min(sb.units) };
    let mut alloc = Allocator::new(sb.units, ready);
    let claimed = table
        .chunks
        .values()
        .all(|entry| entry.extents().iter().all(|extent| alloc.claim(*extent)));
    claimed.then_some(alloc)
}

impl FlashStoreInner {
    /// Scans the tails of open replicas.
    pub(crate) async fn recover_tails(self: &Rc<Self>) -> Result<(), StoreError> {
        let open: Vec<_> = {
            let state = self.state.borrow();
            let open = state.table.chunks.iter().filter(|(_, e)| matches!(e, Entry::Open(_)));
            open.map(|(&chunk, entry)| (chunk, entry.tag())).collect()
        };
        let failure = std::cell::RefCell::new(None);
        futures_util::stream::iter(open)
            .for_each_concurrent(RECOVERY_DEPTH, |(chunk, tag)| {
                let failure = &failure;
                async move {
                    if let Err(error) = self.recover_tail(chunk, tag).await {
                        *failure.borrow_mut() = Some(error);
                    }
                }
            })
            .await;
        failure.into_inner().map_or(Ok(()), Err)
    }

    async fn recover_tail(
        self: &Rc<Self>,
        chunk: base::ChunkId,
        tag: u32,
    ) -> Result<(), StoreError> {
        let (mut scan, extents) = {
            let state = &mut *self.state.borrow_mut();
            let open = state.open_mut(chunk, tag).expect("listed above");
            let map = std::mem::take(&mut open.map);
            (Scan::resume(open.id, open.cap, map, open.chain), open.extents.clone())
        };
        scan.run(self, &extents).await?;
        let state = &mut *self.state.borrow_mut();
        let open = state.open_mut(chunk, tag).expect("recovery runs alone");
        // Repair adds pieces of appends.
        let pieces = open.repairing || open.is_fenced();
        let whole = pieces || scan.sector_len() < open.bound;
        let scanned = if whole { scan.finish_by_sector() } else { scan.finish() };
        open.map = scanned.map;
        open.chain = scanned.chain;
        if scanned.evidence {
            self.env.mark("chunkstore: later sectors prove a loss");
            open.bound = open.bound.max(open.map.len() + 1);
        }
        if self.config.bugs().has(Planted::IgnoreBound) {
            open.bound = open.map.len();
        }
        open.resume();
        if open.damaged {
            self.env.mark("chunkstore: damaged replica recovered");
            let (len, bound) = (open.map.len(), open.bound);
            tracing::info!(%chunk, len, bound, disk = %self.disk(), "a replica is damaged");
        }
        let bytes = open.map.bytes();
        state.open_map_bytes += bytes;
        Ok(())
    }
}

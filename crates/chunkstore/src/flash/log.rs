//! The log: a ring of blocks, in two copies far apart, written by group commit.
//!
//! One write is under way at a time; records that come during it go out together in the next.
//! Blocks are never rewritten in place: each write starts behind the last.

use std::rc::Rc;

use base::limits::SECTOR;
use futures_util::future::join;
use runtime::sync::oneshot;
use runtime::{Buf, Class};

use super::block::{self, BlockHead, BlockKind, PAYLOAD_MAX};
use super::layout::BLOCK;
use super::record::Record;
use super::store::FlashStoreInner;
use crate::contract::StoreError;
use crate::limits::{LOG_BATCH_BLOCKS_MAX, LOG_CHECKPOINT_SHARE, LOG_RESERVE_SHARE};

/// Share of the log that an operation leaves to others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// Allocations leave a reserve.
    Allocation,
    /// Fences, seals, deletions use it.
    Admin,
}

pub(crate) struct Log {
    /// Encoded records that no write has taken yet.
    pending: Vec<u8>,
    /// Records pushed, and records durable: a record's number is the count after it.
    pub(crate) pushed: u64,
    pub(crate) durable: u64,
    active: bool,
    /// The next block's number.
    pub(crate) next_seq: u64,
    /// Blocks from here on are needed by a checkpoint.
    pub(crate) tail_seq: u64,
    /// Start of the newest checkpoint's replay.
    pub(crate) checkpoint_seq: u64,
    blocks: u64,
    waiters: Vec<(u64, oneshot::Sender<()>)>,
}

impl Log {
    pub(crate) fn new(blocks: u32, next_seq: u64, checkpoint_seq: u64, tail_seq: u64) -> Log {
        Log {
            pending: Vec::new(),
            pushed: 0,
            durable: 0,
            active: false,
            next_seq,
            tail_seq,
            checkpoint_seq,
            blocks: u64::from(blocks),
            waiters: Vec::new(),
        }
    }

    /// Queues a record, durable once [`FlashStoreInner::logged`] of its number succeeds. The caller
    /// follows with [`FlashStoreInner::kick_log`], unless the record may wait for another's write.
    pub(crate) fn push(&mut self, record: &Record) -> u64 {
        record.encode(&mut self.pending);
        self.pushed += 1;
        self.pushed
    }

    /// Blocks that are free once what is pending is written.
    fn free(&self) -> u64 {
        // A record is at most a block, so that blocks are more than half full on average.
        let pending = self.pending.len().div_ceil(PAYLOAD_MAX / 2) as u64 + 1;
        self.blocks.saturating_sub(self.next_seq - self.tail_seq + pending)
    }

    pub(crate) fn has_room(&self, room: Room) -> bool {
        match room {
            Room::Allocation => self.free() > self.blocks / LOG_RESERVE_SHARE,
            Room::Admin => self.free() > self.blocks / LOG_RESERVE_SHARE / 4,
        }
    }

    pub(crate) fn wants_checkpoint(&self) -> bool {
        let is_long = self.next_seq - self.checkpoint_seq > self.blocks / LOG_CHECKPOINT_SHARE;
        // The log keeps what the last two checkpoints begin with. When an operation has held the one before the
        // last back, only one more gives its part of the log back.
        let is_held_back = self.tail_seq < self.checkpoint_seq && !self.has_room(Room::Allocation);
        is_long || is_held_back
    }

    /// Takes what fits in one write: blocks' payloads with their record counts.
    fn take(&mut self) -> Vec<(Vec<u8>, u16)> {
        let to_end = self.blocks - self.next_seq % self.blocks;
        let blocks_max = to_end.min(LOG_BATCH_BLOCKS_MAX) as usize;
        let mut blocks: Vec<(Vec<u8>, u16)> = Vec::new();
        let mut taken = 0;
        while taken < self.pending.len() {
            let head = &self.pending[taken..];
            let count = usize::from(u16::from_le_bytes([head[2], head[3]]));
            let fits =
                blocks.last().is_some_and(|(payload, _)| payload.len() + count <= PAYLOAD_MAX);
            if !fits {
                if blocks.len() == blocks_max {
                    break;
                }
                blocks.push((Vec::with_capacity(PAYLOAD_MAX), 0));
            }
            let (payload, records) = blocks.last_mut().expect("pushed above");
            payload.extend_from_slice(&head[..count]);
            *records += 1;
            taken += count;
        }
        self.pending.drain(..taken);
        blocks
    }
}

impl FlashStoreInner {
    /// Starts the log's writer when records wait and it does not run.
    pub(crate) fn kick_log(self: &Rc<Self>) {
        {
            let log = &mut self.state.borrow_mut().log;
            if log.active || log.pending.is_empty() {
                return;
            }
            log.active = true;
        }
        let this = self.clone();
        self.env.spawn(Class::Foreground, "chunkstore log", this.write_log());
    }

    /// Queues a record and starts its write; its number.
    pub(crate) fn push(self: &Rc<Self>, record: &Record) -> u64 {
        let lsn = self.state.borrow_mut().log.push(record);
        self.kick_log();
        lsn
    }

    /// Waits until record `lsn` and all before it are durable.
    pub(crate) async fn logged(&self, lsn: u64) -> Result<(), StoreError> {
        let receiver = {
            let state = &mut *self.state.borrow_mut();
            if state.log.durable >= lsn {
                return Ok(());
            }
            if state.failed {
                return Err(StoreError::Failed);
            }
            let (sender, receiver) = oneshot::channel();
            state.log.waiters.push((lsn, sender));
            receiver
        };
        receiver.await.map_err(|_| StoreError::Failed)
    }

    /// Waits until the log has room. The caller pushes before it awaits anything else.
    pub(crate) async fn log_room(&self, room: Room) -> Result<(), StoreError> {
        loop {
            let freed = self.signals.log_room.notified();
            {
                let state = &mut *self.state.borrow_mut();
                if state.failed {
                    return Err(StoreError::Failed);
                }
                if state.log.has_room(room) {
                    return Ok(());
                }
            }
            self.env.mark("chunkstore: log without room");
            self.signals.checkpoint.notify_one();
            freed.await;
        }
    }

    async fn write_log(self: Rc<Self>) {
        loop {
            let (blocks, seq, lsn) = {
                let log = &mut self.state.borrow_mut().log;
                let blocks = log.take();
                if blocks.is_empty() {
                    log.active = false;
                    return;
                }
                let seq = log.next_seq;
                log.next_seq += blocks.len() as u64;
                assert!(log.next_seq - log.tail_seq <= log.blocks, "the log overruns its tail");
                let taken: u64 = blocks.iter().map(|(_, records)| u64::from(*records)).sum();
                (blocks, seq, taken)
            };
            let buf = self.encode_log(&blocks, seq).await;
            if self.write_copies(seq, buf).await.is_err() {
                self.fail_log(); // The store has failed, or is closed.
                return;
            }
            let state = &mut *self.state.borrow_mut();
            state.counters.log_writes += 1;
            state.log.durable += lsn;
            let durable = state.log.durable;
            for (wanted, sender) in std::mem::take(&mut state.log.waiters) {
                if wanted <= durable {
                    let _ = sender.send(());
                } else {
                    state.log.waiters.push((wanted, sender));
                }
            }
            if state.log.wants_checkpoint() {
                self.signals.checkpoint.notify_one();
            }
        }
    }

    async fn encode_log(&self, blocks: &[(Vec<u8>, u16)], seq: u64) -> Buf {
        let mut buf = self.alloc(blocks.len() * SECTOR).await;
        for (index, (payload, records)) in blocks.iter().enumerate() {
            let head = BlockHead {
                kind: BlockKind::Log,
                store: self.store_low(),
                seq: seq + index as u64,
                group: seq,
                mount: self.mount,
                count: *records,
            };
            block::encode(&head, payload, &mut buf[index * SECTOR..(index + 1) * SECTOR]);
        }
        buf.freeze()
    }

    async fn write_copies(&self, seq: u64, buf: Buf) -> Result<(), StoreError> {
        let place = seq % u64::from(self.sb.log_blocks) * BLOCK;
        let first = self.write_durable(self.sb.log_at(0) + place, buf.clone());
        let second = self.write_durable(self.sb.log_at(1) + place, buf);
        // Both are ended when the store has failed: none may land later.
        let (first, second) = join(first, second).await;
        first.and(second)
    }

    /// Drops the log's waiters: the store has failed.
    pub(crate) fn fail_log(&self) {
        let waiters = std::mem::take(&mut self.state.borrow_mut().log.waiters);
        drop(waiters);
    }
}

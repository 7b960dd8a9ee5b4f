//! The Raft log and vote (`protocols.md` 4.1): in memory, and as records on a [`LogDevice`].
//!
//! Appends, truncations, votes and purges enter one queue; one writer task writes all that wait as
//! one durable batch, in order. So a truncation is durable before a later append is acknowledged,
//! and a vote before `save_vote` returns. After a device error nothing is acknowledged any more.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;

use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use runtime::sync::{Notify, oneshot};
use runtime::{Class, Env};

use super::device::LogDevice;
use super::error::LogError;
use super::limits::{APPEND_BYTES, LOG_BATCH_BYTES, LOG_MARK_AFTER, LOG_QUEUE_BYTES_MAX};
use super::record::{
    self, PurgePayload, RecordKind, Replayed, Stamp, encode, pad, record_len, remove_to,
};
use super::types::{Entry, LogId, Types, Vote};

/// The log of one group. Clones share it.
#[derive(Clone)]
pub struct RaftLog(Rc<Shared>);

struct Shared {
    env: Env,
    state: RefCell<RaftLogState>,
    /// The writer has something to do.
    work: Notify,
    /// The queue has room again.
    room: Notify,
}

struct RaftLogState {
    entries: VecDeque<Entry>,
    purged: Option<LogId>,
    /// The vote that is durable.
    vote: Option<Vote>,
    /// The vote of the last record that entered the queue.
    vote_queued: Option<Vote>,
    committed: Option<LogId>,
    queue: VecDeque<Item>,
    queue_bytes: usize,
    /// Cause for which nothing is acknowledged any more.
    failed: Option<LogError>,
    closing: bool,
    closed: bool,
}

/// A record that waits for the writer.
struct Item {
    kind: RecordKind,
    payload: Vec<u8>,
    /// Index of the entry, for entries.
    index: Option<u64>,
    done: Done,
}

/// The waiter for a record's durability.
enum Done {
    NoWaiter,
    Raft(IOFlushed<Types>),
    Task(oneshot::Sender<Result<(), LogError>>),
}

impl Done {
    fn tell(self, result: Result<(), LogError>) {
        match self {
            Done::NoWaiter => {}
            Done::Raft(flushed) => flushed.io_completed(result.map_err(io::Error::from)),
            // The task may have stopped waiting; the record stays.
            Done::Task(sender) => drop(sender.send(result)),
        }
    }
}

fn to_bytes(value: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("a vector grows as needed")
}

impl RaftLog {
    /// Replays the log on `device` and starts its writer on `env`.
    pub async fn open<D: LogDevice>(env: &Env, mut device: D) -> Result<RaftLog, LogError> {
        let image = device.read_all().await?;
        let segment_len = device.segment_len();
        let block_len = device.block_len();
        let replayed = record::replay(&image, block_len as u64)?;
        drop(image);
        if replayed.torn {
            env.mark("raft log: torn tail cut");
        }
        let end = device.resume_at(replayed.end);
        let mut writer = Writer {
            env: env.clone(),
            device,
            segment_len,
            // With a command of half a segment on top, a batch fits one segment.
            batch_bytes: LOG_BATCH_BYTES
                .min(usize::try_from(segment_len / 4).unwrap_or(usize::MAX)),
            end,
            block_len,
            next_seq: replayed.next_seq,
            durable: replayed.next_seq,
            generation: replayed.generation + 1,
            segments: replayed.segments.clone(),
            purge_at: replayed.purge_at,
            marked: false,
        };
        // Remains of a torn batch belong to an older generation from here on.
        writer.write(vec![(RecordKind::Open, Vec::new(), None)]).await?;
        let Replayed { entries, purged, vote, committed, .. } = replayed;
        let state = RaftLogState {
            entries,
            purged,
            vote,
            vote_queued: vote,
            committed,
            queue: VecDeque::new(),
            queue_bytes: 0,
            failed: None,
            closing: false,
            closed: false,
        };
        let shared = Rc::new(Shared {
            env: env.clone(),
            state: RefCell::new(state),
            work: Notify::new(),
            room: Notify::new(),
        });
        let log = RaftLog(shared.clone());
        env.spawn(Class::Control, "raft log writer", writer.run(shared));
        Ok(log)
    }

    /// Waits until the queue is written, and stops the writer.
    pub async fn close(&self) {
        self.0.state.borrow_mut().closing = true;
        self.0.work.notify_one();
        while !self.0.state.borrow().closed {
            self.0.room.notified().await;
        }
    }

    /// Cause for which the log no longer acknowledges anything.
    pub fn failure(&self) -> Option<LogError> {
        self.0.state.borrow().failed.clone()
    }

    /// Index of the last entry that was purged.
    pub fn purged(&self) -> Option<u64> {
        self.0.state.borrow().purged.map(|id| id.index)
    }

    /// The kept entries, as (index, term, bytes). For checkers.
    pub fn entries(&self) -> Vec<(u64, u64, Vec<u8>)> {
        let state = self.0.state.borrow();
        let entries = state.entries.iter();
        entries
            .map(|entry| (entry.index(), entry.log_id().leader_id.term, to_bytes(entry)))
            .collect()
    }

    /// True when the log has entries behind `id`, has `id` itself, and `vote` is its vote.
    pub(super) fn extends(&self, vote: &Vote, id: Option<LogId>) -> bool {
        let state = self.0.state.borrow();
        let Some(id) = id else { return false };
        let ahead = state.next_index().is_some_and(|next| next > id.index + 1);
        let holds = || state.range(id.index, id.index + 1).any(|entry| entry.log_id() == id);
        state.vote.as_ref() == Some(vote) && ahead && (state.purged >= Some(id) || holds())
    }

    /// Returns when everything that has entered the log is durable.
    pub(super) async fn flush(&self) -> Result<(), LogError> {
        let committed = self.0.state.borrow().committed;
        self.push_durable(RecordKind::Mark, to_bytes(&committed)).await
    }

    async fn wait_for_room(&self) {
        loop {
            let room = self.0.room.notified();
            {
                let state = self.0.state.borrow();
                if state.queue_bytes < LOG_QUEUE_BYTES_MAX || state.failed.is_some() {
                    return;
                }
            }
            room.await;
        }
    }

    fn push(&self, item: Item) {
        let mut state = self.0.state.borrow_mut();
        if let Some(error) = state.failed.clone() {
            drop(state);
            item.done.tell(Err(error));
            return;
        }
        state.queue_bytes += record_len(item.payload.len());
        state.queue.push_back(item);
        drop(state);
        self.0.work.notify_one();
    }

    async fn push_durable(&self, kind: RecordKind, payload: Vec<u8>) -> Result<(), LogError> {
        let (sender, receiver) = oneshot::channel();
        self.push(Item { kind, payload, index: None, done: Done::Task(sender) });
        receiver.await.unwrap_or(Err(LogError::Closed))
    }
}

impl RaftLogReader<Types> for RaftLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let start = match range.start_bound() {
            Bound::Included(&index) => index,
            Bound::Excluded(&index) => index + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&index) => index + 1,
            Bound::Excluded(&index) => index,
            Bound::Unbounded => u64::MAX,
        };
        Ok(self.0.state.borrow().range(start, end).cloned().collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.0.state.borrow().vote)
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, io::Error> {
        let state = self.0.state.borrow();
        let mut bytes = 0;
        let entries = state.range(start, end).take_while(|entry| {
            let more = bytes < APPEND_BYTES;
            bytes += entry_len(entry);
            more
        });
        Ok(entries.cloned().collect())
    }
}

/// Bytes of an entry in a message, roughly.
fn entry_len(entry: &Entry) -> usize {
    match &entry.payload {
        openraft::EntryPayload::Normal(command) => 32 + command.0.len(),
        _ => 256,
    }
}

impl RaftLogStorage<Types> for RaftLog {
    type LogReader = RaftLog;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let state = self.0.state.borrow();
        let last = state.entries.back().map(|entry| entry.log_id()).or(state.purged);
        Ok(LogState { last_purged_log_id: state.purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> RaftLog {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.0.state.borrow_mut().vote_queued = Some(*vote);
        self.push_durable(RecordKind::Vote, to_bytes(vote)).await?;
        self.0.state.borrow_mut().vote = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        // Written with the next batch, or when idle: losing it costs a later reapplication.
        self.0.state.borrow_mut().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.0.state.borrow().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry>,
    {
        self.wait_for_room().await;
        let mut items: Vec<Item> = Vec::new();
        for entry in entries {
            let index = entry.index();
            let payload = to_bytes(&entry);
            items.push(Item {
                kind: RecordKind::Entry,
                payload,
                index: Some(index),
                done: Done::NoWaiter,
            });
            let mut state = self.0.state.borrow_mut();
            let next = state.next_index();
            assert!(
                next.is_none_or(|next| next == index),
                "hole in the log: {index} after {next:?}"
            );
            state.entries.push_back(entry);
        }
        match items.last_mut() {
            Some(last) => last.done = Done::Raft(callback),
            None => callback.io_completed(Ok(())),
        }
        items.into_iter().for_each(|item| self.push(item));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        self.0.env.mark("raft log: truncated");
        record::truncate(&mut self.0.state.borrow_mut().entries, last);
        self.push_durable(RecordKind::Truncate, to_bytes(&last)).await?;
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        let payload = {
            let mut state = self.0.state.borrow_mut();
            assert!(state.purged.is_none_or(|purged| purged <= upto), "purge goes back");
            state.purged = Some(upto);
            remove_to(&mut state.entries, upto.index);
            PurgePayload { purged: upto, vote: state.vote_queued, committed: state.committed }
        };
        self.push(Item {
            kind: RecordKind::Purge,
            payload: to_bytes(&payload),
            index: Some(upto.index),
            done: Done::NoWaiter,
        });
        Ok(())
    }
}

impl RaftLogState {
    fn next_index(&self) -> Option<u64> {
        let last = self.entries.back().map(|entry| entry.index());
        last.or(self.purged.map(|id| id.index)).map(|index| index + 1)
    }

    fn range(&self, start: u64, end: u64) -> impl Iterator<Item = &Entry> {
        let first = self.entries.front().map_or(0, |entry| entry.index());
        let skip = start.saturating_sub(first) as usize;
        let from = self.entries.range(skip.min(self.entries.len())..);
        from.take_while(move |entry| entry.index() < end)
    }
}

type RecordPart = (RecordKind, Vec<u8>, Option<u64>);

/// Owns the device.
struct Writer<D> {
    env: Env,
    device: D,
    segment_len: u64,
    block_len: usize,
    batch_bytes: usize,
    /// Position of the next batch.
    end: u64,
    next_seq: u64,
    /// Every record with a lower sequence is durable.
    durable: u64,
    generation: u32,
    /// Start of each segment, with the highest entry index in it.
    segments: VecDeque<(u64, u64)>,
    purge_at: Option<u64>,
    /// The known-durable bound covers every record but the one that says so.
    marked: bool,
}

impl<D: LogDevice> Writer<D> {
    async fn run(mut self, shared: Rc<Shared>) {
        let mut saved = shared.state.borrow().committed;
        loop {
            let (mut parts, waiting) = take_batch(&shared, self.batch_bytes);
            shared.room.notify_waiters();
            let committed = shared.state.borrow().committed;
            if parts.is_empty() {
                if shared.state.borrow().closing {
                    break;
                }
                let work = shared.work.notified();
                if self.marked && committed == saved {
                    work.await;
                    continue;
                }
                if self.env.timeout(LOG_MARK_AFTER, work).await.is_ok() {
                    continue;
                }
            }
            if committed != saved || parts.is_empty() {
                parts.push((RecordKind::Mark, to_bytes(&committed), None));
                saved = committed;
            }
            self.marked = parts.len() == 1 && parts[0].0 == RecordKind::Mark;
            let purges = parts.iter().filter(|part| part.0 == RecordKind::Purge);
            let purged = purges.filter_map(|part| part.2).max();
            let mut result = self.write(parts).await;
            waiting.into_iter().for_each(|done| done.tell(result.clone()));
            if let (Ok(()), Some(purged)) = (&result, purged) {
                result = self.drop_segments(purged).await;
            }
            if let Err(error) = result {
                fail(&shared, error);
                break;
            }
        }
        let mut state = shared.state.borrow_mut();
        state.failed.get_or_insert(LogError::Closed);
        state.closed = true;
        drop(state);
        shared.room.notify_waiters();
    }

    /// Writes `parts` as one durable batch.
    async fn write(&mut self, parts: Vec<RecordPart>) -> Result<(), LogError> {
        let lens = parts.iter().map(|part| record_len(part.1.len()));
        let len = (lens.sum::<usize>()).next_multiple_of(self.block_len) as u64;
        assert!(len <= self.segment_len, "a batch of {len} bytes does not fit a segment");
        let segment = self.end / self.segment_len * self.segment_len;
        let at = if self.end + len > segment + self.segment_len {
            segment + self.segment_len
        } else {
            self.end
        };
        let mut batch = Vec::with_capacity(len as usize);
        for (kind, payload, index) in &parts {
            let (seq, durable, generation) = (self.next_seq, self.durable, self.generation);
            encode(&mut batch, *kind, Stamp { seq, durable, generation }, payload);
            self.next_seq += 1;
            let segment = at / self.segment_len * self.segment_len;
            if self.segments.back().is_none_or(|&(start, _)| start != segment) {
                self.segments.push_back((segment, 0));
            }
            match kind {
                RecordKind::Purge => self.purge_at = Some(at),
                _ => {
                    let (_, highest) = self.segments.back_mut().expect("pushed above");
                    *highest = index.unwrap_or(0).max(*highest);
                }
            }
        }
        pad(&mut batch, self.block_len);
        self.device.append(at, &batch).await?;
        self.end = at + batch.len() as u64;
        self.durable = self.next_seq;
        Ok(())
    }

    /// Drops the segments in front of the last purge record that hold purged entries only.
    async fn drop_segments(&mut self, purged: u64) -> Result<(), LogError> {
        let Some(purge_at) = self.purge_at else { return Ok(()) };
        let mut below = None;
        while let Some(&(start, highest)) = self.segments.front() {
            if highest > purged || start + self.segment_len > purge_at {
                break;
            }
            below = Some(start + self.segment_len);
            self.segments.pop_front();
        }
        let Some(below) = below else { return Ok(()) };
        self.env.mark("raft log: prefix dropped");
        Ok(self.device.drop_prefix(below).await?)
    }
}

/// Takes records for one batch of `batch_bytes`, and one on top, from the queue.
fn take_batch(shared: &Shared, batch_bytes: usize) -> (Vec<RecordPart>, Vec<Done>) {
    let mut state = shared.state.borrow_mut();
    let (mut parts, mut waiting, mut bytes) = (Vec::new(), Vec::new(), 0);
    while bytes < batch_bytes {
        let Some(item) = state.queue.pop_front() else { break };
        bytes += record_len(item.payload.len());
        parts.push((item.kind, item.payload, item.index));
        waiting.push(item.done);
    }
    state.queue_bytes -= bytes;
    (parts, waiting)
}

/// Fails everything that waits, and all that comes later.
fn fail(shared: &Shared, error: LogError) {
    tracing::error!(%error, "the Raft log failed; this replica stops");
    let mut state = shared.state.borrow_mut();
    state.failed = Some(error.clone());
    state.queue_bytes = 0;
    let queue = std::mem::take(&mut state.queue);
    drop(state);
    queue.into_iter().for_each(|item| item.done.tell(Err(error.clone())));
}

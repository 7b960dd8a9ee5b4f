//! Framing of the Raft log's records on a log device, and its replay (`protocols.md` 4.1).
//!
//! A batch of records starts at a block of the device and is padded with zeros to the next one.
//! It does not cross a segment: when it does not fit, it starts the next segment.
//!
//! The byte table of a record is in `docs/formats/raft.md`.

use std::collections::VecDeque;

use codec::crc32c;
use openraft::entry::RaftEntry;
use serde::{Deserialize, Serialize};

use super::device::LogImage;
use super::error::LogError;
use super::types::{Entry, LogId, Vote};

/// Bytes in front of a payload.
pub const RECORD_HEADER: usize = 40;
const MAGIC: [u8; 4] = *b"CRrl";

/// Effect of a record on the log that is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordKind {
    /// The log was opened; begins a generation.
    Open = 1,
    /// Adds an entry behind the last.
    Entry = 2,
    /// Removes the entries behind an index.
    Truncate = 3,
    /// Replaces the vote.
    Vote = 4,
    /// Removes the entries up to an index, and repeats vote and commit so that what is in front
    /// of this record can go.
    Purge = 5,
    /// The commit is known, or only the known-durable bound is noted.
    Mark = 6,
}

impl RecordKind {
    fn from_byte(byte: u8) -> Option<RecordKind> {
        use RecordKind::*;
        [Open, Entry, Truncate, Vote, Purge, Mark].into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// Payload of a [`RecordKind::Purge`].
#[derive(Serialize, Deserialize)]
pub struct PurgePayload {
    /// The last entry that is gone.
    pub purged: LogId,
    /// The vote.
    pub vote: Option<Vote>,
    /// The last entry known to be committed.
    pub committed: Option<LogId>,
}

/// Order and age of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Sequence of the record.
    pub seq: u64,
    /// Every record with a lower sequence is durable.
    pub durable: u64,
    /// The opening of the log that wrote it.
    pub generation: u32,
}

/// Bytes on the device of `payload_len` bytes of payload, before padding.
pub const fn record_len(payload_len: usize) -> usize {
    RECORD_HEADER + payload_len
}

/// Appends a record to `batch`.
pub fn encode(batch: &mut Vec<u8>, kind: RecordKind, stamp: Stamp, payload: &[u8]) {
    let start = batch.len();
    let len = u32::try_from(payload.len()).expect("payloads are bounded by COMMAND_LEN_MAX");
    batch.extend_from_slice(&MAGIC);
    batch.extend_from_slice(&len.to_le_bytes());
    batch.extend_from_slice(&stamp.seq.to_le_bytes());
    batch.extend_from_slice(&stamp.durable.to_le_bytes());
    batch.extend_from_slice(&stamp.generation.to_le_bytes());
    batch.extend_from_slice(&[kind as u8, 0, 0, 0]);
    let header_crc = crc32c(&batch[start..]);
    batch.extend_from_slice(&header_crc.to_le_bytes());
    batch.extend_from_slice(&crc32c(payload).to_le_bytes());
    batch.extend_from_slice(payload);
}

/// Pads `batch` to whole blocks.
pub fn pad(batch: &mut Vec<u8>, block_len: usize) {
    batch.resize(batch.len().next_multiple_of(block_len), 0);
}

struct Record<'a> {
    kind: RecordKind,
    stamp: Stamp,
    payload: &'a [u8],
}

/// The record at the start of `bytes`, if a whole one is there and its CRCs hold.
fn decode(bytes: &[u8]) -> Option<Record<'_>> {
    let header = bytes.get(..RECORD_HEADER)?;
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
    if header[..4] != MAGIC || word(32) != crc32c(&header[..32]) || header[29..32] != [0; 3] {
        return None;
    }
    let kind = RecordKind::from_byte(header[28])?;
    let payload = bytes.get(RECORD_HEADER..RECORD_HEADER.checked_add(word(4) as usize)?)?;
    if word(36) != crc32c(payload) {
        return None;
    }
    let stamp = Stamp { seq: long(8), durable: long(16), generation: word(24) };
    Some(Record { kind, stamp, payload })
}

/// The log as its records left it.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Entries behind `purged`, without gaps.
    pub entries: VecDeque<Entry>,
    /// The last entry that was purged.
    pub purged: Option<LogId>,
    /// The vote.
    pub vote: Option<Vote>,
    /// The last entry known to be committed.
    pub committed: Option<LogId>,
    /// Index of the next entry; not known in front of the first entry of a log whose front was
    /// dropped.
    next_index: Option<u64>,
    /// Position of the next batch.
    pub end: u64,
    /// Sequence of the next record.
    pub next_seq: u64,
    /// The last generation.
    pub generation: u32,
    /// Position of each segment, with the highest entry index that was written into it.
    pub segments: VecDeque<(u64, u64)>,
    /// Position of the last [`RecordKind::Purge`].
    pub purge_at: Option<u64>,
    /// True when bytes of an unacknowledged batch were found behind the end.
    pub torn: bool,
}

/// Replays the records of `image`. An invalid record ends the log, unless a later record proves
/// that it was durable: then the log is corrupt.
pub fn replay(image: &LogImage, block_len: u64) -> Result<Replayed, LogError> {
    let segment_len = image.segment_len;
    let mut log = Replayed { next_seq: 1, end: image.first, ..Replayed::default() };
    let mut cursor = Cursor { image, block_len, anchored: image.first == 0 };
    let mut at = image.first;
    while let Some(next) = cursor.find(at, &log)? {
        at = next;
        let record = decode(image.from(at)).expect("found");
        log.apply(at, segment_len, &record)?;
        cursor.anchored = true;
        at += record_len(record.payload.len()) as u64;
        log.end = next_block(at, segment_len, block_len);
    }
    log.torn = rest(image, log.end).flat_map(|(_, bytes)| bytes).any(|&byte| byte != 0);
    log.committed = log.committed.min(log.last());
    let first = log.purged.map_or(0, |id| id.index + 1);
    if log.entries.front().is_some_and(|entry| entry.index() != first) {
        return Err(LogError::Corrupt { position: image.first, seq: 0 });
    }
    Ok(log)
}

/// The block at `at` or behind it; blocks are counted from the start of each segment.
fn next_block(at: u64, segment_len: u64, block_len: u64) -> u64 {
    let start = at / segment_len * segment_len;
    start + (at - start).next_multiple_of(block_len)
}

/// Content from `position` on, segment by segment, each with its start.
fn rest(image: &LogImage, position: u64) -> impl Iterator<Item = (u64, &[u8])> {
    let next = (position / image.segment_len + 1) * image.segment_len;
    let starts = (next..image.end()).step_by(image.segment_len as usize);
    std::iter::once(position).chain(starts).map(|at| (at, image.from(at)))
}

struct Cursor<'a> {
    image: &'a LogImage,
    block_len: u64,
    /// The sequence of the next record is known. It is not at the start of a log whose front
    /// was dropped.
    anchored: bool,
}

impl Cursor<'_> {
    /// Position of the next record, which is at `at`, behind the padding there, or at the start
    /// of the next segment. `None` at the end of the log.
    fn find(&self, at: u64, log: &Replayed) -> Result<Option<u64>, LogError> {
        let segment_len = self.image.segment_len;
        let block = next_block(at, segment_len, self.block_len);
        let segment = (at / segment_len + 1) * segment_len;
        for candidate in [at, block, segment] {
            if self.fits(candidate, log) {
                return Ok(Some(candidate));
            }
            if !self.anchored {
                // The front was dropped after later records were durable: it was readable.
                return Err(LogError::Corrupt { position: at, seq: 0 });
            }
        }
        self.check_tail(at, log.next_seq)?;
        Ok(None)
    }

    fn fits(&self, at: u64, log: &Replayed) -> bool {
        let Some(record) = decode(self.image.from(at)) else { return false };
        let opens = record.kind == RecordKind::Open;
        !self.anchored
            || record.stamp.seq == log.next_seq
                && record.stamp.generation == log.generation + u32::from(opens)
    }

    /// Fails when a block behind `at` proves that the record with sequence `seq` was durable.
    fn check_tail(&self, at: u64, seq: u64) -> Result<(), LogError> {
        let from = next_block(at, self.image.segment_len, self.block_len);
        for (_, bytes) in rest(self.image, from) {
            for block in (0..bytes.len()).step_by(self.block_len as usize) {
                let proof = decode(&bytes[block..]);
                if proof.is_some_and(|record| record.stamp.durable > seq) {
                    return Err(LogError::Corrupt { position: at, seq });
                }
            }
        }
        Ok(())
    }
}

impl Replayed {
    /// The last entry, or the last purged one.
    pub fn last(&self) -> Option<LogId> {
        self.entries.back().map(|entry| entry.log_id()).or(self.purged)
    }

    fn apply(&mut self, at: u64, segment_len: u64, record: &Record<'_>) -> Result<(), LogError> {
        let bad = || LogError::Corrupt { position: at, seq: record.stamp.seq };
        let segment = at / segment_len * segment_len;
        if self.segments.back().is_none_or(|&(start, _)| start != segment) {
            self.segments.push_back((segment, 0));
        }
        self.next_seq = record.stamp.seq + 1;
        self.generation = record.stamp.generation;
        match record.kind {
            RecordKind::Open => {}
            RecordKind::Entry => {
                let entry: Entry = postcard::from_bytes(record.payload).map_err(|_| bad())?;
                let index = entry.index();
                if self.next_index.is_some_and(|next| index != next) {
                    return Err(bad());
                }
                self.next_index = Some(index + 1);
                let (_, highest) = self.segments.back_mut().expect("pushed above");
                *highest = index.max(*highest);
                self.entries.push_back(entry);
            }
            RecordKind::Truncate => {
                let after: Option<LogId> =
                    postcard::from_bytes(record.payload).map_err(|_| bad())?;
                truncate(&mut self.entries, after);
                self.next_index = Some(after.map_or(0, |id| id.index + 1));
            }
            RecordKind::Vote => {
                self.vote = Some(postcard::from_bytes(record.payload).map_err(|_| bad())?);
            }
            RecordKind::Purge => {
                let purge: PurgePayload =
                    postcard::from_bytes(record.payload).map_err(|_| bad())?;
                self.vote = purge.vote;
                self.committed = purge.committed;
                self.purged = Some(purge.purged);
                self.purge_at = Some(at);
                remove_to(&mut self.entries, purge.purged.index);
                // A snapshot of the leader can reach beyond the last entry.
                let behind = purge.purged.index + 1;
                self.next_index = self.next_index.map(|next| next.max(behind));
            }
            RecordKind::Mark => {
                self.committed = postcard::from_bytes(record.payload).map_err(|_| bad())?;
            }
        }
        Ok(())
    }
}

/// Removes the entries behind `after`.
pub fn truncate(entries: &mut VecDeque<Entry>, after: Option<LogId>) {
    let keep = after.map(|id| id.index);
    while entries.back().is_some_and(|entry| Some(entry.index()) > keep) {
        entries.pop_back();
    }
}

/// Removes the entries up to `index`.
pub fn remove_to(entries: &mut VecDeque<Entry>, index: u64) {
    while entries.front().is_some_and(|entry| entry.index() <= index) {
        entries.pop_front();
    }
}

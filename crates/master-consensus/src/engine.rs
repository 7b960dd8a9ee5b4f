//! A Raft log in chunks of the store that the groups of a process share (design D4).
//!
//! A segment is a chunk. Each opening of the log begins a new one, as a new writer of a file does
//! (`protocols.md` 1.1): the rest of a torn append is never written over, and every older chunk is
//! sealed, so that its length is on record.

use base::limits::SECTOR_DATA_MAX;
use runtime::Class;

use super::device::{LogDevice, LogImage};
use super::error::DeviceError;
use super::group_store::{GroupStore, Kind, StoredChunk};

/// A [`LogDevice`] on a [`GroupStore`].
pub struct EngineDevice {
    group_store: GroupStore,
    segment_len: u64,
    /// Number of the first segment that is kept.
    first: u64,
    /// The segment that takes appends, with its length.
    tail: Option<(u64, u32)>,
}

impl EngineDevice {
    /// The log of a group. `segment_len` is rounded down to whole sectors' data, and must be what
    /// the log was made with.
    pub fn new(group_store: GroupStore, segment_len: u64) -> EngineDevice {
        let segment_len = segment_len / SECTOR_DATA_MAX as u64 * SECTOR_DATA_MAX as u64;
        assert!(segment_len > 0 && segment_len < u64::from(u32::MAX));
        EngineDevice { group_store, segment_len, first: 0, tail: None }
    }

    async fn read_segment(&self, held: StoredChunk) -> Result<Vec<u8>, DeviceError> {
        let StoredChunk { number, len, sealed, damaged } = held;
        if damaged || u64::from(len) > self.segment_len {
            let chunk = self.group_store.id(Kind::Segment, number);
            return Err(DeviceError::Damaged { chunk, offset: len });
        }
        let bytes = self.group_store.read(Kind::Segment, number, 0, len).await?;
        if !sealed {
            self.group_store.seal(Kind::Segment, number, len).await?;
        }
        Ok(bytes)
    }
}

impl LogDevice for EngineDevice {
    fn segment_len(&self) -> u64 {
        self.segment_len
    }

    fn block_len(&self) -> usize {
        SECTOR_DATA_MAX
    }

    async fn read_all(&mut self) -> Result<LogImage, DeviceError> {
        let mut held = self.group_store.recover(Kind::Segment).await?;
        if let Some(&StoredChunk { number, len: 0, damaged: false, .. }) = held.last() {
            // The first append of an opening was torn.
            self.group_store.delete(Kind::Segment, number).await?;
            held.pop();
        }
        self.first = held.first().map_or(0, |held| held.number);
        let mut segments = Vec::with_capacity(held.len());
        for (held, number) in held.into_iter().zip(self.first..) {
            if held.number != number {
                let chunk = self.group_store.id(Kind::Segment, number);
                return Err(DeviceError::Damaged { chunk, offset: 0 });
            }
            segments.push(self.read_segment(held).await?);
        }
        let first = self.first * self.segment_len;
        Ok(LogImage { first, segment_len: self.segment_len, segments })
    }

    fn resume_at(&self, end: u64) -> u64 {
        end.next_multiple_of(self.segment_len)
    }

    async fn append(&mut self, at: u64, batch: &[u8]) -> Result<(), DeviceError> {
        let (number, offset) = (at / self.segment_len, (at % self.segment_len) as u32);
        if offset == 0
            && let Some((full, len)) = self.tail.take()
        {
            // No caller waits for it: a segment that is not sealed is when the log is next opened.
            let group_store = self.group_store.clone();
            self.group_store.env().spawn(Class::Background, "raft log seal", async move {
                if let Err(error) = group_store.seal(Kind::Segment, full, len).await {
                    tracing::debug!(%error, "a full log segment is not sealed");
                }
            });
        }
        self.group_store.append(Kind::Segment, number, offset, batch).await?;
        self.tail = Some((number, offset + batch.len() as u32));
        Ok(())
    }

    async fn drop_prefix(&mut self, below: u64) -> Result<(), DeviceError> {
        // Oldest first, so that a crash leaves no gap.
        for number in self.first..below / self.segment_len {
            self.group_store.delete(Kind::Segment, number).await?;
            self.first = number + 1;
        }
        Ok(())
    }
}

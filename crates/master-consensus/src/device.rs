//! Storage of a Raft log: durable appends at the end, in order, and a front that can be dropped.
//! Narrow: the chunk store implements it, and files do for measurements (design D4).

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use super::error::DeviceError;
use super::limits::LOG_BLOCK;

/// All that a device holds, from the first kept segment on. Behind the last durable append there
/// may be anything: zeros, parts of an append that was under way, remains of older ones.
#[derive(Clone, Debug, Default)]
pub struct LogImage {
    /// Position of the first byte: the start of a segment.
    pub first: u64,
    /// Bytes of a segment.
    pub segment_len: u64,
    /// The segments, in order. One may end early: there is nothing behind what it has.
    pub segments: Vec<Vec<u8>>,
}

impl LogImage {
    /// The bytes from `position` to the end of its segment; none behind the end.
    pub fn from(&self, position: u64) -> &[u8] {
        let Some(skip) = position.checked_sub(self.first) else { return &[] };
        let number = usize::try_from(skip / self.segment_len).unwrap_or(usize::MAX);
        let within = (skip % self.segment_len) as usize;
        self.segments.get(number).and_then(|segment| segment.get(within..)).unwrap_or(&[])
    }

    /// Position behind the last segment.
    pub fn end(&self) -> u64 {
        self.first + self.segments.len() as u64 * self.segment_len
    }
}

/// One log's storage: bytes by position, in segments of equal length.
pub trait LogDevice: 'static {
    /// Bytes of a segment: a multiple of [`LogDevice::block_len`]. An append stays in one.
    fn segment_len(&self) -> u64;

    /// Unit of appends, in bytes.
    fn block_len(&self) -> usize;

    /// Everything that is kept. All that it returns is durable: bytes that are only cached are made
    /// durable first, so that a later power failure loses nothing that was read.
    fn read_all(&mut self) -> impl Future<Output = Result<LogImage, DeviceError>>;

    /// Position of this opening's first append, when the log that was read ends at `end`.
    fn resume_at(&self, end: u64) -> u64 {
        end
    }

    /// Writes whole blocks at `at`: the end of the last append, or the start of the next segment.
    /// Durable on return. After an error the device is not used again.
    fn append(&mut self, at: u64, batch: &[u8]) -> impl Future<Output = Result<(), DeviceError>>;

    /// Forgets the segments below `below`, the start of a segment. They may come back until it
    /// returns.
    fn drop_prefix(&mut self, below: u64) -> impl Future<Output = Result<(), DeviceError>>;
}

/// A log in memory, which clones share. For tests of the layers above, which may also damage it.
#[derive(Clone, Debug)]
pub struct MemoryDevice {
    segment_len: u64,
    image: Rc<RefCell<MemoryLog>>,
}

/// Content of a [`MemoryDevice`].
#[derive(Clone, Debug, Default)]
pub struct MemoryLog {
    /// Position of the first byte: the start of a segment.
    pub first: u64,
    /// The bytes from there on.
    pub bytes: Vec<u8>,
}

impl MemoryDevice {
    /// An empty log.
    pub fn new(segment_len: u64) -> MemoryDevice {
        MemoryDevice { segment_len, image: Rc::default() }
    }

    /// Changes what is stored.
    pub fn damage(&self, change: impl FnOnce(&mut MemoryLog)) {
        change(&mut self.image.borrow_mut());
    }
}

impl LogDevice for MemoryDevice {
    fn segment_len(&self) -> u64 {
        self.segment_len
    }

    fn block_len(&self) -> usize {
        LOG_BLOCK
    }

    async fn read_all(&mut self) -> Result<LogImage, DeviceError> {
        let MemoryLog { first, ref bytes } = *self.image.borrow();
        let segments = bytes.chunks(self.segment_len as usize).map(<[u8]>::to_vec).collect();
        Ok(LogImage { first, segment_len: self.segment_len, segments })
    }

    async fn append(&mut self, at: u64, batch: &[u8]) -> Result<(), DeviceError> {
        let mut image = self.image.borrow_mut();
        let start = (at - image.first) as usize;
        let end = start + batch.len();
        if image.bytes.len() < end {
            image.bytes.resize(end, 0);
        }
        image.bytes[start..end].copy_from_slice(batch);
        Ok(())
    }

    async fn drop_prefix(&mut self, below: u64) -> Result<(), DeviceError> {
        let mut image = self.image.borrow_mut();
        let gone = (below - image.first) as usize;
        image.bytes.drain(..gone);
        image.first = below;
        Ok(())
    }
}

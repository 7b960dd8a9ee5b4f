//! The contract that every engine keeps (design D7). One conformance suite runs against all of
//! them and against a model in memory, in which a dirty reboot is one more operation.

use std::fmt;
use std::future::Future;

use base::{ChunkId, ClusterId, DiskId, Epoch, FormationId};
use runtime::Buf;
use wire::data::{Purpose, ReplicaStat};

/// The fence of a deleted chunk: no epoch may act.
pub(crate) const DELETED: Epoch = Epoch::new(u64::MAX);

/// One append, see [`ChunkStore::append`].
#[derive(Clone, Debug)]
pub struct Append {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its epoch: a chunk is written under exactly one (`protocols.md` 1.1).
    pub epoch: Epoch,
    /// Offset in the file of the chunk's first byte.
    pub base: u64,
    /// Offset in the chunk of the first byte.
    pub offset: u32,
    /// Formatted sectors ([`wire::sector`]), verified by the engine before it writes: plain ones, or
    /// the cell of one row ([`wire::row`]), by repair of several. A replica has one kind for all its
    /// life; another is a [`StoreError::Conflict`]. The engine fills in the server parts in place when it is the only owner, else in a copy.
    pub sectors: Buf,
    /// Make the chunk when it is absent. Only with `offset` 0.
    pub create: bool,
    /// By the repair worker: makes or extends a replica in state `Repairing`, which takes no other
    /// appends; or completes a fenced one, which stays fenced and shuts out all others as before.
    /// In the place of a fence's tombstone it makes a fenced one, with that fence. A deleted
    /// replica is refused with [`StoreError::Fenced`] until it is forgotten.
    pub repair: bool,
    /// Its purpose: a store that is nearly full refuses users' bytes first.
    pub purpose: Purpose,
}

/// State of a replica after an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// All bytes up to here are durable.
    pub len: u32,
}

/// Sectors read.
#[derive(Clone, Debug)]
pub struct Read {
    /// Whole verified sectors as stored, of rows whole cells; the first, or its row, contains the
    /// byte asked for.
    pub sectors: Buf,
    /// Verified bytes of the replica.
    pub len: u32,
    /// True when `len` is final.
    pub sealed: bool,
}

/// One replica, as [`ChunkStore::list`] answers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkInfo {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its facts.
    pub stat: ReplicaStat,
    /// Bytes it takes on the medium.
    pub physical: u64,
}

/// The owner of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreOwner {
    /// It was formatted by a version that did not note it.
    Unmarked,
    /// It was formatted and has not joined a cluster.
    Fresh,
    /// It has joined this cluster and holds replicas of no other.
    Of {
        /// The cluster.
        cluster: ClusterId,
        /// The formation of it.
        formation: FormationId,
    },
}

/// Facts of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreInfo {
    /// The disk's incarnation, drawn when it was formatted.
    pub disk: DiskId,
    /// Bytes the store can take on its medium.
    pub capacity: u64,
    /// Bytes in use on the medium.
    pub used: u64,
    /// Replicas held, tombstones not counted.
    pub chunks: u64,
    /// Allocation unit, bytes.
    pub unit: u32,
    /// True once an I/O error has made the store read-only (a failed flush is final).
    pub failed: bool,
    /// Cause of the failure, for operators; empty while it has not failed.
    pub reason: String,
    /// Its owner.
    pub owner: StoreOwner,
}

/// Failure of a store's operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// Bytes below the append's offset are missing.
    Gap {
        /// Durable length.
        len: u32,
    },
    /// Fenced for this epoch.
    Fenced {
        /// Lowest epoch that may still act.
        epoch: Epoch,
    },
    /// Sealed.
    Sealed {
        /// Final length.
        len: u32,
    },
    /// Other bytes are at this place, or the append overlaps in part.
    Conflict,
    /// No such chunk.
    NotFound,
    /// The medium is full.
    Full,
    /// Stored bytes do not verify.
    Corrupt {
        /// First damaged byte, as offset in the chunk.
        offset: u32,
    },
    /// The sectors given do not verify.
    BadSectors {
        /// Index of the first invalid sector.
        index: u32,
    },
    /// A bound is reached (appends in flight, memory): try again later.
    Busy,
    /// The medium has failed; the store takes no more writes. Appends in flight may be durable.
    Failed,
    /// A read was given up: no caller waits for it any more.
    Unwanted {
        /// The device had been asked for a part of it.
        device_asked: bool,
    },
    /// The request contradicts the contract; the text says how.
    Invalid(&'static str),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for StoreError {}

/// A store of chunk replicas on one disk. Single-threaded; clones share it.
///
/// - An append is durable, with all bytes below it, when its future succeeds; appends to one
///   chunk may be in flight together and end in offset order. Dropping the future does not
///   cancel the write: the append stays "possibly written".
/// - A repeat of an append in flight or done (same offset, length and client CRCs) ends as the
///   original does. Partial overlap is a [`StoreError::Conflict`].
/// - What was acknowledged is there after any crash; beyond it there may be a prefix of what
///   was in flight, in offset order, and nothing else.
/// - Reads verify every sector's CRC, identity, offset and incarnation.
pub trait ChunkStore: Clone + 'static {
    /// Stores sectors behind what is there.
    fn append(&self, append: Append) -> impl Future<Output = Result<Appended, StoreError>>;

    /// Reads the sectors that cover `len` bytes from `offset`, of rows whole cells; short at the
    /// replica's end.
    /// `offset` at or past the end is an empty read. At most 4 MiB of sectors at a time.
    fn read(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
    ) -> impl Future<Output = Result<Read, StoreError>> {
        self.read_while(chunk, offset, len, || true)
    }

    /// As [`ChunkStore::read`], for a caller that may go away (C16): `is_wanted` is asked before
    /// each operation of the device. Once it is false the device is asked no more, and the read
    /// ends with [`StoreError::Unwanted`].
    fn read_while(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
        is_wanted: impl Fn() -> bool,
    ) -> impl Future<Output = Result<Read, StoreError>>;

    /// As [`ChunkStore::read_while`]; where one row holds the whole range, the first sector of its cell
    /// and those of the blocks with the range may be all that comes ([`wire::pieces::CellPieces`]).
    fn read_blocks(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
        is_wanted: impl Fn() -> bool,
    ) -> impl Future<Output = Result<Read, StoreError>> {
        self.read_while(chunk, offset, len, is_wanted)
    }

    /// One sector of the cell of the row that holds the byte at `offset`, by its index: verified by
    /// itself, whatever the cell's others are. [`StoreError::Invalid`] when there is no such sector.
    fn read_cell_sector(
        &self,
        chunk: ChunkId,
        offset: u32,
        index: u16,
    ) -> impl Future<Output = Result<Read, StoreError>>;

    /// Refuses appends of epochs below `epoch` from now on: drains or fails what is in flight,
    /// writes a durable fence record (a tombstone when the chunk is absent), then answers.
    fn fence(
        &self,
        chunk: ChunkId,
        epoch: Epoch,
    ) -> impl Future<Output = Result<ReplicaStat, StoreError>>;

    /// Fixes the length: truncates logically when longer; [`StoreError::Gap`] when shorter, and
    /// [`StoreError::Invalid`] amid a row.
    /// Durable when it ends. Sealing again at the same length is fine, at another a
    /// [`StoreError::Sealed`].
    fn seal(
        &self,
        chunk: ChunkId,
        len: u32,
    ) -> impl Future<Output = Result<ReplicaStat, StoreError>>;

    /// Removes the replica, keeps a tombstone until [`ChunkStore::forget`]. Deleting what is
    /// absent leaves a tombstone too. Works on a full medium.
    fn delete(&self, chunk: ChunkId) -> impl Future<Output = Result<(), StoreError>>;

    /// Drops a tombstone.
    fn forget(&self, chunk: ChunkId) -> impl Future<Output = Result<(), StoreError>>;

    /// Facts of one replica; [`StoreError::NotFound`] when there is neither replica nor tombstone.
    fn stat(&self, chunk: ChunkId) -> Result<ReplicaStat, StoreError>;

    /// Replicas and tombstones with IDs above `after`, in order, `limit` at most.
    fn list(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkInfo>;

    /// Facts of the store.
    fn info(&self) -> StoreInfo;

    /// Notes durably that the store is this cluster's; done when it is already.
    /// [`StoreError::Invalid`] when it is another's, which it stays.
    fn adopt(
        &self,
        cluster: ClusterId,
        formation: FormationId,
    ) -> impl Future<Output = Result<(), StoreError>>;

    /// Checks whether the medium is still this store's, and marks the store failed when it is not.
    /// So an engine on a file or device notices faults that no append and no read of its own would
    /// meet soon (a file that was truncated, a device that answers with errors).
    fn check_medium(&self) -> impl Future<Output = ()>;

    /// Writes a block durably and reads one, without a change of any replica: shows that the medium
    /// serves, and how soon (`protocols-tail.md` 10.5). [`StoreError::Busy`] while there is no room
    /// for the write.
    fn probe(&self) -> impl Future<Output = Result<(), StoreError>>;

    /// Writes a checkpoint, so that the next mount reads less log.
    fn checkpoint(&self) -> impl Future<Output = Result<(), StoreError>>;

    /// Checkpoints and releases the medium. Further operations fail.
    fn close(&self) -> impl Future<Output = Result<(), StoreError>>;
}

//! Data-path messages: raw fixed layouts (C22). Payloads are whole sectors, or nothing.

use base::{ChunkId, DiskId, Epoch};

/// A request to a chunkserver's data path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataRequest {
    /// Store sectors behind what is there; payload: the formatted sectors.
    Append(AppendRequest),
    /// Send the committed length of an idle open chunk (`protocols.md` 1.6).
    Commit(CommitRequest),
    /// Read sectors.
    Read(ReadRequest),
    /// Refuse appends below an epoch from now on (`protocols.md` 2.1).
    Fence(FenceRequest),
    /// Fix the length for ever: by order of the owning stream partition.
    Seal(SealRequest),
    /// State of one replica.
    Stat(ChunkRef),
}

/// One replica of one chunk: on a disk incarnation of the server that is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkRef {
    /// The chunk.
    pub chunk: ChunkId,
    /// The disk incarnation the replica was placed on.
    pub disk: DiskId,
}

/// Purpose of an append: its right to the reserve of a disk that is nearly full
/// ([`base::limits::reserve_bytes`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Purpose {
    /// Users' bytes: none of the reserve.
    #[default]
    Data,
    /// Output of garbage collection, which gives back more than it takes: half of the reserve.
    Collection,
    /// Bytes that a service needs so that its users can delete: three quarters of the reserve.
    Metadata,
    /// Bytes without which a service cannot be opened, or cannot give anything back: all of the reserve.
    /// Users' requests cause none of them, so that they never use it up.
    Recovery,
}

impl Purpose {
    /// All of them, by their numbers on the wire.
    pub const ALL: [Purpose; 4] =
        [Purpose::Data, Purpose::Collection, Purpose::Metadata, Purpose::Recovery];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Purpose::Data => "data",
            Purpose::Collection => "collection",
            Purpose::Metadata => "metadata",
            Purpose::Recovery => "recovery",
        }
    }

    /// The one that has `number` on the wire.
    pub fn from_number(number: u32) -> Option<Purpose> {
        Purpose::ALL.get(number as usize).copied()
    }

    /// Of a reserve of `size` bytes or units, the part that must stay free.
    pub const fn leaves(self, size: u64) -> u64 {
        match self {
            Purpose::Data => size,
            Purpose::Collection => size / 2,
            Purpose::Metadata => size / 4,
            Purpose::Recovery => 0,
        }
    }
}

/// See [`DataRequest::Append`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppendRequest {
    /// The replica.
    pub at: ChunkRef,
    /// The chunk's epoch.
    pub epoch: Epoch,
    /// Offset in the file of the chunk's first byte.
    pub base: u64,
    /// Offset in the chunk of the first byte.
    pub offset: u32,
    /// Data bytes in the sectors.
    pub len: u32,
    /// Length acknowledged to the writer's caller: what open readers may see.
    pub committed: u32,
    /// Make the chunk when it is absent (C9: creation and first data in one request).
    pub create: bool,
    /// Its purpose.
    pub purpose: Purpose,
}

/// See [`DataRequest::Commit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitRequest {
    /// The replica.
    pub at: ChunkRef,
    /// The chunk's epoch.
    pub epoch: Epoch,
    /// Length acknowledged to the writer's caller.
    pub committed: u32,
}

/// See [`DataRequest::Read`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// The replica.
    pub at: ChunkRef,
    /// First byte wanted, as offset in the chunk.
    pub offset: u32,
    /// Bytes wanted, at least 1.
    pub len: u32,
    /// Serve bytes beyond the committed length of an open chunk: for repair and recovery of
    /// fenced chunks only.
    pub uncommitted: bool,
    /// Of the row that holds the first byte this sector of its cell alone, whatever others are
    /// damaged: a row whose replicas are damaged at different places is collected so.
    pub cell_sector: Option<u16>,
    /// Of a row that holds the whole range, the first sector of its cell and those of the blocks with
    /// the range are enough: [`crate::pieces::CellPieces`]. All others may come too.
    pub blocks: bool,
}

/// See [`DataRequest::Fence`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FenceRequest {
    /// The replica.
    pub at: ChunkRef,
    /// Appends of epochs below this one are refused from now on.
    pub epoch: Epoch,
}

/// See [`DataRequest::Seal`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SealRequest {
    /// The replica.
    pub at: ChunkRef,
    /// The committed length.
    pub len: u32,
}

/// State of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplicaState {
    /// Takes appends.
    Open,
    /// Refuses appends of epochs below the one given.
    Fenced(Epoch),
    /// Complete; its length never changes.
    Sealed,
    /// Being filled by repair: no vote, no reads.
    Repairing,
    /// Never held, fenced before it could be made (`protocols.md` 2.1): a vote for length zero. A
    /// copy makes a fenced replica of it.
    Tombstone,
    /// Deleted: no vote, and no copy fills it.
    Deleted,
}

impl ReplicaState {
    /// True when nothing is held: a fence came before the creation, or a deletion after it.
    pub fn is_tombstone(self) -> bool {
        matches!(self, ReplicaState::Tombstone | ReplicaState::Deleted)
    }
}

/// Facts of one replica: the evidence that recovery votes with (`protocols.md` 2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaStat {
    /// Its state.
    pub state: ReplicaState,
    /// Epoch it was made under; [`Epoch::NONE`] for a tombstone.
    pub epoch: Epoch,
    /// Bytes readable and verified from the front.
    pub len: u32,
    /// Bytes known to have been durable once. `len` below it means damage: no vote.
    pub durable_bound: u32,
    /// Length up to which the writer has reported acknowledgement.
    pub committed: u32,
}

/// The successful answers of a chunkserver's data path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataReply {
    /// All bytes up to `len` are durable on this replica.
    Appended {
        /// Durable length of the replica.
        len: u32,
    },
    /// The payload: whole verified sectors that cover the range, as stored. The first holds
    /// the byte asked for; fewer than asked for at the end of what may be read.
    Read {
        /// Readable length of the replica (committed length while open).
        readable: u32,
        /// True when `readable` is final.
        sealed: bool,
    },
    /// Facts after a fence or seal, or as asked.
    Stat(ReplicaStat),
    /// Done.
    Done,
}

/// The error answers of a chunkserver's data path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataError {
    /// Bytes below the append's offset are missing here: `len` are there.
    Gap {
        /// Durable length of the replica.
        len: u32,
    },
    /// The chunk is fenced for this epoch.
    Fenced {
        /// Lowest epoch that may still act.
        epoch: Epoch,
    },
    /// The chunk is sealed.
    Sealed {
        /// Its final length.
        len: u32,
    },
    /// Other bytes are at this place, or the append overlaps in part.
    Conflict,
    /// No such chunk on the disk asked for.
    NotFound,
    /// The server does not have that disk incarnation (wiped, replaced, moved).
    WrongDisk,
    /// The disk has failed.
    DiskFailed,
    /// The disk is full: reads and deletes go on.
    Full,
    /// Stored bytes do not verify.
    Corrupt {
        /// First damaged byte, as offset in the chunk.
        offset: u32,
    },
    /// Received sectors do not verify: the sender's memory or the network is at fault.
    BadSectors {
        /// Index of the first invalid sector.
        index: u32,
    },
    /// A bound of this server is reached: send again later.
    Busy,
    /// The token gives no right to this.
    Denied,
    /// The request is not of its form.
    Invalid,
    /// The write may or may not be durable.
    Unknown,
}

impl DataError {
    /// The receiver's reaction.
    pub fn kind(&self) -> base::Kind {
        use base::Kind;
        match self {
            DataError::Gap { .. } | DataError::Busy => Kind::Retry,
            DataError::Fenced { .. } | DataError::Sealed { .. } => Kind::Fenced,
            DataError::NotFound | DataError::WrongDisk | DataError::DiskFailed => Kind::Reroute,
            DataError::Full => Kind::Full,
            DataError::Corrupt { .. } => Kind::Corrupt,
            DataError::BadSectors { .. } | DataError::Conflict | DataError::Invalid => {
                Kind::Invalid
            }
            DataError::Denied => Kind::Refresh,
            DataError::Unknown => Kind::Unknown,
        }
    }
}

impl std::fmt::Display for DataError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for DataError {}

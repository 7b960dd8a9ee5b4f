//! Requests of masters to chunkservers on the control path.

use base::{ChunkId, DiskId, Epoch};

use super::policy::Policy;
use super::stream::ReplicaPlace;
use crate::data::ReplicaStat;
use crate::row::Fragment;
use crate::token::IssuerTime;

/// A request to a chunkserver.
#[derive(Clone, PartialEq, Debug)]
pub enum ChunkserverRequest {
    /// Make a replica of a sealed chunk, or of a fenced one up to `len`, from another replica.
    /// Answered when the copy is durable and sealed (or fenced, see `seal`).
    Replicate {
        /// The disk to put it on.
        disk: DiskId,
        /// What, from what.
        order: CopyOrder,
    },
    /// Remove replicas: a committed decision of the partition that owns them.
    Delete {
        /// The disk.
        disk: DiskId,
        /// The chunks, up to 1000.
        chunks: Vec<ChunkId>,
        /// When it is refused from: a replica that was made at the same place since then is another
        /// one.
        not_after: Option<IssuerTime>,
    },
    /// Drop tombstones whose tokens have long expired.
    Forget {
        /// The disk.
        disk: DiskId,
        /// The chunks, up to 1000.
        chunks: Vec<ChunkId>,
        /// When it is refused from: a replica that was made at the same place since then is another
        /// one.
        not_after: Option<IssuerTime>,
    },
    /// Replicas on a disk, in order: for the comparison with what a partition knows.
    List {
        /// The disk.
        disk: DiskId,
        /// Chunks above this one.
        after: Option<ChunkId>,
        /// Replicas at most, 1 to 1000.
        limit: u32,
    },
    /// Test only: make a disk fail with EIO, or work again. Refused unless the chunkserver was
    /// started with `--allow-fault-injection`.
    FailDisk {
        /// The disk.
        disk: DiskId,
        /// Fail, or work again.
        failed: bool,
    },
    /// Write a block durably and read one, to show that the disk serves and how soon
    /// (`protocols-tail.md` 10.5). Clients ask for it; those that ask within
    /// [`limits::PROBE_SHARED`](super::limits::PROBE_SHARED) share one.
    Probe {
        /// The disk.
        disk: DiskId,
    },
    /// Make a new store where a disk was that has failed or is away, or holds nothing, and serve it: an
    /// operator's order. Refused where anything lies at its path.
    ReplaceDisk {
        /// The path in the chunkserver's configuration.
        path: String,
    },
    /// How far scrub is on each disk of the executor that is asked.
    Scrub {
        /// Begin the next pass now, where none is under way.
        start: bool,
    },
    /// Lay the bytes of a sealed chunk out in another form, and write them to the replicas of another
    /// chunk, which take appends then: they are not sealed. Sent once for each chunk that is made; any
    /// doubt about the answer, and another one is made.
    Convert {
        /// A disk of the server, on which it has the share for background work.
        disk: DiskId,
        /// What, from what, to where.
        order: Conversion,
    },
    /// Read a sealed replica to its end, and answer its digest: CRC32C of the data in its sectors, one
    /// after the other.
    Digest {
        /// The disk.
        disk: DiskId,
        /// The chunk.
        chunk: ChunkId,
        /// Its length.
        len: u32,
    },
    /// Read some rows of a sealed coded chunk with all their cells, code them again, and answer which
    /// fragments have other cells than those that were coded (`protocols-tail.md` 9.10).
    CheckRows {
        /// A disk of the server, with one of the chunk's fragments.
        disk: DiskId,
        /// Which chunk, and how many of its rows.
        order: RowCheck,
    },
    /// Answer, to show that requests arrive. Masters ask: heartbeats of a server that gets nothing of
    /// what others send come too (`protocols-tail.md` 10.7).
    Ping,
}

impl ChunkserverRequest {
    /// The disk it is about, if it is about one.
    pub fn disk(&self) -> Option<DiskId> {
        match self {
            ChunkserverRequest::Replicate { disk, .. }
            | ChunkserverRequest::Delete { disk, .. }
            | ChunkserverRequest::Forget { disk, .. }
            | ChunkserverRequest::List { disk, .. }
            | ChunkserverRequest::FailDisk { disk, .. }
            | ChunkserverRequest::Convert { disk, .. }
            | ChunkserverRequest::Digest { disk, .. }
            | ChunkserverRequest::CheckRows { disk, .. }
            | ChunkserverRequest::Probe { disk } => Some(*disk),
            ChunkserverRequest::ReplaceDisk { .. }
            | ChunkserverRequest::Scrub { .. }
            | ChunkserverRequest::Ping => None,
        }
    }
}

/// A replica that is made from others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyOrder {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Offset in the file of its first byte.
    pub base: u64,
    /// Bytes to copy.
    pub len: u32,
    /// Replicas to copy from, the best first. Of a coded chunk each says its fragment: any k different
    /// ones give the one that is wanted.
    pub sources: Vec<ReplicaPlace>,
    /// The right to read them.
    pub token: [u8; 16],
    /// Seal the copy at `len`.
    pub seal: bool,
    /// The fragment to make; none where replicas are copies.
    pub fragment: Option<Fragment>,
    /// The chunk survives no further loss: the copy has a larger share of the disks
    /// (`protocols-tail.md` 10.14).
    pub urgent: bool,
}

/// A chunk that is made from the bytes of another (`protocols-tail.md` 9.12).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conversion {
    /// The chunk that has the bytes.
    pub chunk: ChunkId,
    /// Epoch of both.
    pub epoch: Epoch,
    /// Offset in the file of the first byte of both.
    pub base: u64,
    /// Bytes of both.
    pub len: u32,
    /// Replicas to read, the best first; of a coded chunk each with its fragment.
    pub sources: Vec<ReplicaPlace>,
    /// The right to read them.
    pub read_token: [u8; 16],
    /// The code of the chunk, in one of its fragments; none where replicas are copies.
    pub code: Option<Fragment>,
    /// The chunk to make.
    pub made: ChunkId,
    /// Its form.
    pub policy: Policy,
    /// Its replicas, in the order of fragments; none, and nothing is written.
    pub places: Vec<ReplicaPlace>,
    /// The right to write them.
    pub write_token: [u8; 16],
}

/// A look at whole rows of a coded chunk (`protocols-tail.md` 9.10).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowCheck {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Offset in the file of its first byte.
    pub base: u64,
    /// Its length.
    pub len: u32,
    /// Its replicas, each with its fragment.
    pub sources: Vec<ReplicaPlace>,
    /// The right to read them.
    pub token: [u8; 16],
    /// The code of the chunk, in the fragment that the server has.
    pub code: Fragment,
    /// One row in so many is checked, at least 1.
    pub one_in: u32,
}

/// What a look at whole rows found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RowFindings {
    /// Rows that were read with all their cells.
    pub checked: u32,
    /// Fragments, a bit for each number, with a cell that differs from what the row check and all other
    /// cells say: repair makes them again.
    pub wrong: u32,
    /// Rows whose cells are not those of one row, though their bytes can be read: their writer coded them
    /// wrong, and only another chunk has them right.
    pub miscoded: u32,
}

/// A replica, or a tombstone, on a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedReplica {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its facts.
    pub stat: ReplicaStat,
    /// Bytes that it takes on the disk; none from a chunkserver that does not say.
    pub physical: Option<u64>,
}

/// A successful answer of a chunkserver.
#[derive(Clone, PartialEq, Debug)]
pub enum ChunkserverReply {
    /// To `Replicate`: the new replica, and the bytes that were copied.
    Replicated {
        /// Facts of the new replica.
        stat: ReplicaStat,
        /// Bytes copied.
        bytes: u64,
    },
    /// To `List`.
    List {
        /// Replicas in order.
        replicas: Vec<ListedReplica>,
        /// True when more follow.
        more: bool,
    },
    /// To `Probe`: how long the disk took.
    Probed {
        /// Microseconds.
        took_us: u64,
    },
    /// To `ReplaceDisk`: the new store's incarnation. It is served soon.
    Replaced {
        /// The incarnation.
        disk: DiskId,
    },
    /// To `Scrub`.
    Scrubs {
        /// The disks.
        disks: Vec<DiskScrub>,
        /// The configuration lets nothing be scrubbed.
        off: bool,
    },
    /// To `Convert`: the digest of each fragment as it was laid out, of copies one.
    Converted {
        /// As of [`ChunkserverRequest::Digest`].
        digests: Vec<u32>,
    },
    /// To `Digest`.
    Digest {
        /// See [`ChunkserverRequest::Digest`].
        crc: u32,
    },
    /// To `CheckRows`.
    RowsChecked(RowFindings),
    /// Done.
    Done,
}

/// Scrub of a disk (C26).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskScrub {
    /// The disk.
    pub disk: DiskId,
    /// Passes over all its replicas since the process started.
    pub passes: u64,
    /// A pass is under way.
    pub running: bool,
    /// Replicas that it has read, or the last one had.
    pub done: u64,
    /// Replicas on the disk when it began.
    pub replicas: u64,
    /// Of those read, the damaged ones: each is reported for repair.
    pub damaged: u64,
    /// Milliseconds since the last pass ended; absent before.
    pub ended_ms: Option<u64>,
}

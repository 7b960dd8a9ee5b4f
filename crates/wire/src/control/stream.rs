//! The stream service's messages: the chunks of FlatLogFiles (C1, C6-C9, C15).

use std::net::SocketAddr;

use base::{ChunkId, DiskId, Epoch, FileId, ServerId};

use super::OpId;
use super::policy::{Compression, Policy};
use crate::data::Purpose;
use crate::row::Fragment;

/// Location of one replica of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaPlace {
    /// The chunkserver.
    pub server: ServerId,
    /// The disk incarnation it was placed on.
    pub disk: DiskId,
    /// Present address of the chunkserver.
    pub addr: SocketAddr,
    /// Number of the fragment that it has of a coded chunk; 0 where replicas are copies.
    pub fragment: u8,
}

/// A chunk of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkPlace {
    /// The chunk.
    pub chunk: ChunkId,
    /// The epoch it is written under.
    pub epoch: Epoch,
    /// Offset in the file of its first byte.
    pub base: u64,
    /// Its committed final length; absent while open.
    pub sealed: Option<u32>,
    /// Replicas: fewer than the policy's copies when allocation was degraded.
    pub replicas: Vec<ReplicaPlace>,
    /// MinCopy for this chunk.
    pub acks: u8,
    /// The right to use it on the data path (D11).
    pub token: [u8; 16],
    /// MaxCopy for this chunk; 0: unknown (masters before 0.2 leave it out). Fragments of a coded one.
    pub copies: u8,
    /// Data fragments; 1 where replicas are copies.
    pub data: u8,
    /// Compression that its writer is asked for. What sectors hold says itself what it is: rows that
    /// the writer laid out before it knew go into the chunk as they are.
    pub compression: Option<Compression>,
}

impl ChunkPlace {
    /// True when replicas are fragments of a code (C18).
    pub fn is_coded(&self) -> bool {
        self.data > 1
    }

    /// Layout of its replica at a place, or what a writer has to lay out for it; none where replicas are
    /// copies, of either layout.
    pub fn fragment(&self, replica: &ReplicaPlace) -> Option<Fragment> {
        let (k, p) = (self.data, self.copies.saturating_sub(self.data));
        self.is_coded().then_some(Fragment { k, p, number: replica.fragment })
    }
}

/// A request to a stream partition. The partition is [`super::stream_partition`] of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamRequest {
    /// The chunk at an offset and those behind it (C8).
    Locate {
        /// The file.
        file: FileId,
        /// Offset in the file.
        offset: u64,
        /// Chunks at most, 1 to 256.
        limit: u32,
    },
    /// Several files' chunks at once (C7).
    LocateMany {
        /// File and offset of each, up to 64.
        wants: Vec<(FileId, u64)>,
        /// Chunks at most for each.
        limit: u32,
    },
    /// A replica did not serve: the service checks it. For one that was not reached, masters ping its
    /// server (C28).
    ReportBad {
        /// The file.
        file: FileId,
        /// The chunk.
        chunk: ChunkId,
        /// The replica.
        server: ServerId,
        /// The fault.
        fault: ReplicaFault,
    },
    /// A change.
    Change {
        /// Identifies it across retries.
        op: OpId,
        /// The change.
        change: StreamChange,
    },
}

/// Fault for which a replica is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplicaFault {
    /// No answer, or no connection.
    Unreachable,
    /// Stored bytes do not verify.
    Corrupt,
    /// It has no such chunk, or another disk incarnation.
    Missing,
    /// Its disk has failed.
    DiskFailed,
}

/// A mutation of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamChange {
    /// Opens for append (`protocols.md` 1.1): takes the next epoch, fences and seals what older
    /// writers had, and answers only then, with a chunk to write and spares.
    /// [`StreamReply::Epoch`] when the file has another epoch than `follows` by now: nothing is done.
    Open {
        /// The file.
        file: FileId,
        /// Its replication policy, as the namespace has it.
        policy: Policy,
        /// The namespace's grant: the stream is made when it is not there yet.
        grant: [u8; 16],
        /// Spare chunks wanted beside the first, 0 to 4 (C8).
        spares: u8,
        /// Purpose of the bytes: where disks are nearly full, users' bytes get no chunk.
        purpose: Purpose,
        /// The file's epoch as far as the client knows, [`Epoch::NONE`] when it knows none. Absent
        /// from clients before decision 83: whichever it is.
        follows: Option<Epoch>,
        /// Appends are small: chunks are wanted in copies that survive as many losses as the policy's
        /// code, if it has one (`protocols-tail.md` 9.8).
        in_copies: bool,
        /// Servers that the client lists: not chosen for the chunks while others suffice for
        /// acknowledgements.
        avoid: Vec<ServerId>,
    },
    /// Ends chunk `sealed` at its acknowledged length and goes on in `next`, the first of the
    /// recorded spares (`protocols.md` 1.5). The writer acknowledges nothing in `next` before
    /// the answer.
    Advance {
        /// The file.
        file: FileId,
        /// The writer's epoch.
        epoch: Epoch,
        /// The chunk that ends.
        sealed: ChunkId,
        /// Its length: exactly what the writer has acknowledged.
        len: u32,
        /// The chunk that follows.
        next: ChunkId,
        /// Servers that failed the writer: not chosen for the new spares.
        avoid: Vec<ServerId>,
        /// Spare chunks wanted, 0 to 4.
        spares: u8,
        /// Servers of `sealed` that get nothing more of it from the writer: a hint, for a replica
        /// that lacks bytes need not be waited for (C14).
        left: Vec<ServerId>,
        /// As in `Open`.
        in_copies: bool,
    },
    /// Asks for more spares, or fresh tokens, under the writer's epoch.
    Extend {
        /// The file.
        file: FileId,
        /// The writer's epoch.
        epoch: Epoch,
        /// Servers that failed the writer.
        avoid: Vec<ServerId>,
        /// Spare chunks wanted in all, 0 to 4.
        spares: u8,
        /// Purpose of the bytes.
        purpose: Purpose,
        /// As in `Open`.
        in_copies: bool,
    },
    /// Ends the writer: seals its open chunk at its acknowledged length, drops its spares.
    /// The file can be opened for append again unless `finish`.
    Close {
        /// The file.
        file: FileId,
        /// The writer's epoch.
        epoch: Epoch,
        /// The open chunk and its acknowledged length.
        sealed: Option<(ChunkId, u32)>,
        /// The file takes no appends ever again.
        finish: bool,
        /// As in `Advance`.
        left: Vec<ServerId>,
    },
    /// Seals on behalf of a writer that is gone, so that readers see the end of the tail
    /// (`protocols.md` 1.6): fences the present epoch. [`StreamReply::Epoch`] when something is
    /// open under another epoch than `follows`.
    Seal {
        /// The file.
        file: FileId,
        /// Epoch of the writer that is gone. Absent from clients before decision 83: whichever it is.
        follows: Option<Epoch>,
        /// An operator's word (`protocols-tail.md` 8.8 e): where too few replicas for a recovery are
        /// left, and the others are gone for good, the longest that is left is the file's end.
        accept_loss: bool,
    },
    /// The namespace has dropped the file's last name.
    Delete {
        /// The file.
        file: FileId,
    },
    /// Sets the policy of the chunks that the file gets from then on. Those that it has keep what
    /// they were made with. The stream is made when it is not there yet.
    SetPolicy {
        /// The file.
        file: FileId,
        /// The policy.
        policy: Policy,
        /// The namespace's grant.
        grant: [u8; 16],
    },
    /// Gives the sealed chunks that the file has the form that its policy asks for, in the background
    /// (`protocols-tail.md` 9.12), or leaves them as they are by then.
    Convert {
        /// The file.
        file: FileId,
        /// Convert.
        wanted: bool,
    },
}

impl StreamChange {
    /// A seal, whichever writer it follows.
    pub fn seal(file: FileId) -> StreamChange {
        StreamChange::Seal { file, follows: None, accept_loss: false }
    }
}

/// Right and chunks of a writer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriterGrant {
    /// Its epoch.
    pub epoch: Epoch,
    /// Length of the file: all before it is sealed.
    pub len: u64,
    /// The chunk to write now: after `Open` and `Advance` empty, with `base == len`; after
    /// `Extend` with a renewed right (masters before 0.2 leave it out there).
    pub current: Option<ChunkPlace>,
    /// Chunks to go on with, in order; their base is set when they are used.
    pub spares: Vec<ChunkPlace>,
    /// Milliseconds that its tokens are good for from now on; absent from masters that do not say it.
    pub rights_ms: Option<u64>,
}

/// Chunks of one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamView {
    /// The file.
    pub file: FileId,
    /// Chunks from the one that holds the offset asked for.
    pub chunks: Vec<ChunkPlace>,
    /// Sum of the sealed chunks' lengths.
    pub sealed_len: u64,
    /// True while a writer's chunk is open behind them.
    pub open: bool,
    /// Epoch of the latest writer.
    pub epoch: Epoch,
    /// Policy of the chunks that it gets from now on; absent from masters before 0.2, and while
    /// nothing was ever written.
    pub policy: Option<Policy>,
    /// An operator had it sealed without replicas that are gone: acknowledged bytes may be missing.
    pub loss_accepted: bool,
    /// Sealed chunks of it are being given the form that its policy asks for.
    pub converting: bool,
}

/// A successful answer of a stream partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamReply {
    /// To `Open`, `Advance` and `Extend`.
    Writer(WriterGrant),
    /// To `Locate` (one) and `LocateMany` (in the order asked; files not found are left out).
    Views(Vec<StreamView>),
    /// Done, with the file's sealed length.
    Done {
        /// Sum of the sealed chunks' lengths.
        len: u64,
    },
    /// To `Open` and `Seal` that follow another epoch: nothing was done. A client that still wants to
    /// asks again, and names this one.
    Epoch {
        /// The file's epoch.
        epoch: Epoch,
    },
}

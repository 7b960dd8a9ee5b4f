//! The stream service's messages: the chunks of FlatLogFiles (C1, C6-C9, C15).

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use base::{ChunkId, DiskId, Epoch, FileId, ServerId};

use super::OpId;
use crate::data::Purpose;

/// Replication policy of a file: each chunk on `copies` replicas, an append acknowledged when
/// `acks` of them have it durable (MaxCopy and MinCopy; `2 * acks > copies`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// MaxCopy, 1 to 5.
    pub copies: u8,
    /// MinCopy.
    pub acks: u8,
}

impl Policy {
    /// `repN`: N copies, of which more than half acknowledge; the writer chases the others (C14).
    pub const fn rep(copies: u8) -> Policy {
        Policy { copies, acks: copies / 2 + 1 }
    }

    /// `repN-strict`: N copies, all of which acknowledge.
    pub const fn strict(copies: u8) -> Policy {
        Policy { copies, acks: copies }
    }

    /// True when `1 <= acks <= copies <= 5` and `2 * acks > copies`.
    pub const fn is_valid(self) -> bool {
        self.acks >= 1
            && self.acks <= self.copies
            && self.copies <= 5
            && 2 * self.acks > self.copies
    }

    /// Fenced replicas whose answers recovery needs: F = n - m + 1 (`protocols.md`).
    pub const fn recovery_votes(self) -> u8 {
        self.copies - self.acks + 1
    }
}

impl fmt::Display for Policy {
    /// The word that commands take; with the acknowledgements where no word says them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Policy { copies, acks } = *self;
        if *self == Policy::rep(copies) {
            write!(f, "rep{copies}")
        } else if *self == Policy::strict(copies) {
            write!(f, "rep{copies}-strict")
        } else {
            write!(f, "rep{copies} ({acks} acknowledge)")
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        let policy = match text.strip_suffix("-strict") {
            Some(word) => copies(word).map(Policy::strict),
            None => copies(text).map(Policy::rep),
        };
        policy.ok_or_else(|| "a policy is rep1 to rep5, or rep3-strict and the like".to_owned())
    }
}

/// The number in `repN`. It has one digit, so that each policy has one word.
fn copies(word: &str) -> Option<u8> {
    let &[digit] = word.strip_prefix("rep")?.as_bytes() else { return None };
    (b'1'..=b'5').contains(&digit).then(|| digit - b'0')
}

/// Location of one replica of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaPlace {
    /// The chunkserver.
    pub server: ServerId,
    /// The disk incarnation it was placed on.
    pub disk: DiskId,
    /// Present address of the chunkserver.
    pub addr: SocketAddr,
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
    /// MaxCopy for this chunk; 0: unknown (masters before 0.2 leave it out).
    pub copies: u8,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_one_word_each() {
        for copies in 1..=5 {
            for acks in copies / 2 + 1..=copies {
                let policy = Policy { copies, acks };
                assert!(policy.is_valid(), "{policy}");
                let named = policy == Policy::rep(copies) || policy == Policy::strict(copies);
                assert_eq!(policy.to_string().parse() == Ok(policy), named, "{policy}");
            }
        }
        let acks = |text: &str| text.parse::<Policy>().map(|policy| policy.acks);
        assert_eq!(["rep1", "rep2", "rep3", "rep4", "rep5"].map(acks), [1, 2, 2, 3, 3].map(Ok));
        assert_eq!(["rep2-strict", "rep3-strict", "rep5-strict"].map(acks), [2, 3, 5].map(Ok));
        for word in ["rep0", "rep6", "rep03", "rep+3", "3", "rep", "rep3-", "rep3-strict-strict"] {
            assert!(acks(word).is_err(), "{word}");
        }
    }
}

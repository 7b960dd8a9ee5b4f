//! Commands of a stream partition: decisions of its leader. Applying one checks its preconditions
//! again and refuses one that is stale.

use base::{ChunkId, Epoch, FileId};
use wire::control::{OpId, Policy};

use super::chunk::Chunk;
use super::encoding::{decode, encode, encode_enum, encode_struct};
use crate::placement::ReplicaLocation;
use master_consensus::bytes::DecodeError;

/// Version of the encoding of commands.
const COMMAND_VERSION: u8 = 1;
/// Version of the encoding of outcomes.
const OUTCOME_VERSION: u8 = 1;

/// A decision, with the group's clock at its making.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// Milliseconds that the group's leaders have counted.
    pub clock_ms: u64,
    /// The action.
    pub action: Action,
}

encode_struct!(Command { clock_ms, action });

impl Command {
    /// Its form in the log.
    pub fn encode(&self) -> Vec<u8> {
        encode(COMMAND_VERSION, self)
    }

    /// From its form in the log.
    pub fn decode(bytes: &[u8]) -> Result<Command, DecodeError> {
        decode(COMMAND_VERSION, bytes)
    }
}

/// Action of a command. `fresh` are the replicas of new chunks, placed by the leader: the first
/// is for the chunk to write, the others for spares.
#[allow(missing_docs)] // Fields mean what they mean in `wire::control`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Takes the next epoch. Grants at once when nothing of older writers is open; else recovery
    /// follows, and [`Action::Finish`].
    Open { op: OpId, file: FileId, policy: Policy, fresh: Vec<Vec<ReplicaLocation>> },
    /// Takes the next epoch without an owner, when something is open.
    Seal { op: OpId, file: FileId },
    /// Seals the tail of a stream in recovery. Carries its evidence: the fenced replicas that
    /// have a vote with their lengths, and those that hold `len` bytes now.
    SealTail {
        file: FileId,
        epoch: Epoch,
        chunk: ChunkId,
        len: u32,
        votes: Vec<(ReplicaLocation, u32)>,
        holders: Vec<ReplicaLocation>,
        delete_at_ms: u64,
    },
    /// As [`Action::SealTail`], at a length above the order statistic of the votes. A variant of its
    /// own: a member whose version took the statistic for the length would refuse it, and have
    /// another state than the others. It stops instead (`docs/decisions/0049`).
    SealLongerTail {
        file: FileId,
        epoch: Epoch,
        chunk: ChunkId,
        len: u32,
        votes: Vec<(ReplicaLocation, u32)>,
        holders: Vec<ReplicaLocation>,
        delete_at_ms: u64,
    },
    /// Ends a recovery: drops the spares of older writers, all of which are fenced, and grants
    /// when `fresh` has a chunk to write.
    Finish {
        op: Option<OpId>,
        file: FileId,
        epoch: Epoch,
        fenced: Vec<ChunkId>,
        fresh: Vec<Vec<ReplicaLocation>>,
        delete_at_ms: u64,
    },
    /// Ends the writer's chunk and goes on in `next` (C15). `drop` are spares that are no use.
    Advance {
        op: OpId,
        file: FileId,
        epoch: Epoch,
        sealed: ChunkId,
        len: u32,
        next: ChunkId,
        drop: Vec<ChunkId>,
        fresh: Vec<Vec<ReplicaLocation>>,
        delete_at_ms: u64,
    },
    /// More spares; `drop` are spares that are no use.
    Extend {
        op: OpId,
        file: FileId,
        epoch: Epoch,
        drop: Vec<ChunkId>,
        fresh: Vec<Vec<ReplicaLocation>>,
        delete_at_ms: u64,
    },
    /// Ends the writer. Without `sealed` it says no length, and recovery follows.
    Close {
        op: OpId,
        file: FileId,
        epoch: Epoch,
        sealed: Option<(ChunkId, u32)>,
        finish: bool,
        delete_at_ms: u64,
    },
    /// Records replicas that are to be made, before the command to make them goes out
    /// (`protocols.md` 2.4). `epoch` is the recovery's for an open chunk.
    AddReplicas { chunk: ChunkId, epoch: Epoch, places: Vec<ReplicaLocation> },
    /// Replicas that are sealed at the length given.
    SealReplicas { replicas: Vec<(ChunkId, ReplicaLocation, u32)> },
    /// Takes a replica off a sealed chunk; `remaining` are sealed and stay.
    DropReplica {
        chunk: ChunkId,
        place: ReplicaLocation,
        remaining: Vec<ReplicaLocation>,
        delete_at_ms: u64,
    },
    /// Removes a stream for ever.
    Delete { op: OpId, file: FileId, delete_at_ms: u64, file_memory_ms: u64 },
    /// Records replicas that servers hold and no chunk refers to as dead.
    Condemn { replicas: Vec<(ChunkId, ReplicaLocation)>, delete_at_ms: u64 },
    /// Dead replicas that their servers have deleted.
    Deleted { replicas: Vec<(ChunkId, ReplicaLocation)>, forget_at_ms: u64 },
    /// Ends the record of dead replicas: deleted and forgotten by their servers, or on disks that
    /// are gone (`gone`).
    Forget { replicas: Vec<(ChunkId, ReplicaLocation)>, gone: bool },
    /// The leader ends a writer that is gone from `chunk`. Refused when the writer has gone on in
    /// another chunk: it lives. Before it was there, the leader sent a `Close` without a length.
    SealAbandoned { op: OpId, file: FileId, epoch: Epoch, chunk: ChunkId },
    /// Sets the policy of the chunks that a file gets from then on.
    SetPolicy { op: OpId, file: FileId, policy: Policy },
    /// As [`Action::Open`], while the file's epoch is still the one that the client knows. Variants of
    /// their own, as [`Action::SealLongerTail`] is.
    OpenAfter {
        op: OpId,
        file: FileId,
        policy: Policy,
        fresh: Vec<Vec<ReplicaLocation>>,
        follows: Epoch,
    },
    /// As [`Action::Seal`], while what is open is still of the epoch that the client knows.
    SealAfter { op: OpId, file: FileId, follows: Epoch },
    /// As [`Action::AddReplicas`], of a coded chunk: each place with the fragment that it gets.
    AddFragments { chunk: ChunkId, epoch: Epoch, places: Vec<(ReplicaLocation, u8)> },
    /// As [`Action::SealTail`], by an operator's word: `lost` are the replicas that have no vote and are
    /// gone for good (`protocols-tail.md` 8.8 e).
    SealWithLoss {
        file: FileId,
        epoch: Epoch,
        chunk: ChunkId,
        len: u32,
        votes: Vec<(ReplicaLocation, u32)>,
        lost: Vec<ReplicaLocation>,
        holders: Vec<ReplicaLocation>,
        delete_at_ms: u64,
    },
    /// The sealed chunks of a file are to have the form of its policy, or stay as they are.
    Convert { op: OpId, file: FileId, wanted: bool },
    /// Records the chunk that is to take the place of another (`protocols-tail.md` 9.12).
    BeginConversion { chunk: ChunkId, policy: Policy, places: Vec<ReplicaLocation> },
    /// The same for a coded chunk some of whose rows were coded wrong, in its own form (9.10).
    LayOutAgain { chunk: ChunkId, places: Vec<ReplicaLocation> },
    /// Puts it there; `settled` are its replicas, sealed and compared with what they are made of.
    EndConversion {
        chunk: ChunkId,
        shadow: ChunkId,
        settled: Vec<ReplicaLocation>,
        delete_at_ms: u64,
    },
    /// Gives it up.
    AbortConversion { shadow: ChunkId, delete_at_ms: u64 },
}

impl Action {
    /// The command that records replicas of a chunk that are to be made at `places`: of a coded one those
    /// of `fragments`, in this order.
    pub(crate) fn add(
        chunk: &Chunk,
        epoch: Epoch,
        places: &[ReplicaLocation],
        fragments: &[u8],
    ) -> Action {
        let (id, places) = (chunk.id, places.iter().copied());
        if chunk.is_coded() {
            let places = places.zip(fragments.iter().copied()).collect();
            return Action::AddFragments { chunk: id, epoch, places };
        }
        Action::AddReplicas { chunk: id, epoch, places: places.collect() }
    }
}

encode_enum!(Action {
    1 => Open { op, file, policy, fresh },
    2 => Seal { op, file },
    3 => SealTail { file, epoch, chunk, len, votes, holders, delete_at_ms },
    4 => Finish { op, file, epoch, fenced, fresh, delete_at_ms },
    5 => Advance { op, file, epoch, sealed, len, next, drop, fresh, delete_at_ms },
    6 => Extend { op, file, epoch, drop, fresh, delete_at_ms },
    7 => Close { op, file, epoch, sealed, finish, delete_at_ms },
    8 => AddReplicas { chunk, epoch, places },
    9 => SealReplicas { replicas },
    10 => DropReplica { chunk, place, remaining, delete_at_ms },
    11 => Delete { op, file, delete_at_ms, file_memory_ms },
    12 => Condemn { replicas, delete_at_ms },
    13 => Deleted { replicas, forget_at_ms },
    14 => Forget { replicas, gone },
    15 => SealLongerTail { file, epoch, chunk, len, votes, holders, delete_at_ms },
    16 => SealAbandoned { op, file, epoch, chunk },
    17 => SetPolicy { op, file, policy },
    18 => OpenAfter { op, file, policy, fresh, follows },
    19 => SealAfter { op, file, follows },
    20 => AddFragments { chunk, epoch, places },
    21 => SealWithLoss { file, epoch, chunk, len, votes, lost, holders, delete_at_ms },
    22 => Convert { op, file, wanted },
    23 => BeginConversion { chunk, policy, places },
    24 => EndConversion { chunk, shadow, settled, delete_at_ms },
    25 => AbortConversion { shadow, delete_at_ms },
    26 => LayOutAgain { chunk, places },
});

/// Result of a command.
#[allow(missing_docs)] // The file and its epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The file has a writer under this epoch: its grant is read from the state.
    Writer { file: FileId, epoch: Epoch },
    /// Older writers' chunks are to be fenced and sealed under this epoch.
    Recover { epoch: Epoch },
    /// Done; the sum of the sealed chunks' lengths.
    Done { len: u64 },
    /// Nothing was done.
    Refused { why: Refusal },
}

encode_enum!(Outcome {
    1 => Writer { file, epoch },
    2 => Recover { epoch },
    3 => Done { len },
    4 => Refused { why },
});

impl Outcome {
    /// Its form.
    pub fn encode(&self) -> Vec<u8> {
        encode(OUTCOME_VERSION, self)
    }

    /// From its form.
    pub fn decode(bytes: &[u8]) -> Result<Outcome, DecodeError> {
        decode(OUTCOME_VERSION, bytes)
    }
}

/// Cause of a refused command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The partition has no such stream.
    NotFound,
    /// The file was deleted.
    Dead,
    /// A newer epoch exists, or another one than an opening or a seal follows.
    Fenced {
        /// The stream's epoch.
        epoch: Epoch,
    },
    /// The file takes no appends ever again.
    Finished,
    /// The state is not the one on which the decision was made: decide again.
    Stale,
    /// The request contradicts the stream: sending it again gives the same answer.
    Invalid,
    /// A late duplicate of what the client knows to be answered.
    Late,
    /// Too many client sessions, or answers that wait for their acknowledgement.
    Busy,
    /// The command is of a version that this master does not know.
    Unreadable,
    /// The partition has no number left for a new chunk, or the stream no epoch for a writer.
    Full,
}

encode_enum!(Refusal {
    1 => NotFound {},
    2 => Dead {},
    3 => Fenced { epoch },
    4 => Finished {},
    5 => Stale {},
    6 => Invalid {},
    7 => Late {},
    8 => Busy {},
    9 => Unreadable {},
    10 => Full {},
});

/// Decodes arbitrary bytes and checks that what decodes has one form: a fuzz target.
pub fn fuzz_command(bytes: &[u8]) {
    if let Ok(command) = Command::decode(bytes) {
        assert_eq!(command.encode(), bytes, "a command has one form");
    }
    if let Ok(outcome) = Outcome::decode(bytes) {
        assert_eq!(outcome.encode(), bytes, "an outcome has one form");
    }
}

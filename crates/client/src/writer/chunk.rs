//! The chunk being written: its replicas, and the appends placed in it.

use base::ChunkId;
use base::limits::REPLICAS_MAX;
use runtime::Instant;
use wire::control::{ChunkPlace, ReplicaPlace};
use wire::data::{ChunkRef, Purpose};

/// State of one append at one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendState {
    /// Not sent yet.
    Unsent,
    /// Sent; an answer may come.
    InFlight,
    /// To be sent again then.
    RetryAt(Instant),
    /// Refused because lower bytes are missing: sent again when they are there.
    BlockedByGap,
    /// Durable.
    Durable,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Progress {
    pub(super) state: SendState,
    pub(super) attempt: u16,
}

/// An append that some replica may still need.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) len: u32,
    pub(super) purpose: Purpose,
    /// Offset in the current chunk, once placed.
    pub(super) offset: u32,
    pub(super) copies: [Progress; REPLICAS_MAX],
}

impl Slot {
    pub(super) fn new(len: u32, purpose: Purpose) -> Slot {
        let progress = Progress { state: SendState::Unsent, attempt: 0 };
        Slot { len, purpose, offset: 0, copies: [progress; REPLICAS_MAX] }
    }

    pub(super) fn end(&self) -> u32 {
        self.offset + self.len
    }
}

/// A replica of the chunk being written.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) place: ReplicaPlace,
    pub(super) failed: bool,
    /// All bytes below are durable there.
    pub(super) durable: u32,
    /// First append that is not durable there.
    pub(super) next: u64,
    /// First append that was never sent there.
    pub(super) unsent: u64,
    /// Appends in state [`SendState::BlockedByGap`].
    pub(super) gapped: u32,
    /// When `durable` last grew, or waiting began.
    pub(super) progress_at: Instant,
    /// When it last answered anything.
    pub(super) heard_at: Instant,
    /// When its oldest append was last sent again.
    pub(super) resent_at: Instant,
    /// Since when there is no connection.
    pub(super) unreachable_since: Option<Instant>,
    /// Committed length that it is known to know.
    pub(super) notified: u32,
    /// A commit message is under way.
    pub(super) telling: bool,
    /// No commit message before.
    pub(super) tell_after: Instant,
    /// Since when commit messages get no answer.
    pub(super) mute_since: Option<Instant>,
}

impl Replica {
    /// True while something sent is not durable.
    pub(super) fn owes(&self) -> bool {
        self.next < self.unsent
    }

    pub(super) fn silent_since(&self) -> Instant {
        self.progress_at.max(self.heard_at)
    }
}

/// The chunk being written.
#[derive(Clone, Debug)]
pub(super) struct OpenChunk {
    pub(super) place: ChunkPlace,
    pub(super) base: u64,
    /// Acknowledged bytes.
    pub(super) acked: u32,
    /// Bytes placed.
    pub(super) end: u32,
    /// Takes no more appends; ends once all are acknowledged.
    pub(super) full: bool,
    pub(super) replicas: Vec<Replica>,
}

impl OpenChunk {
    /// The chunk, empty, with the next append `seq`.
    pub(super) fn new(place: ChunkPlace, base: u64, seq: u64, now: Instant) -> OpenChunk {
        let replica = |&place: &ReplicaPlace| Replica {
            place,
            failed: false,
            durable: 0,
            next: seq,
            unsent: seq,
            gapped: 0,
            progress_at: now,
            heard_at: now,
            resent_at: now,
            unreachable_since: None,
            notified: 0,
            telling: false,
            tell_after: now,
            mute_since: None,
        };
        let replicas = place.replicas.iter().map(replica).collect();
        OpenChunk { place, base, acked: 0, end: 0, full: false, replicas }
    }

    pub(super) fn id(&self) -> ChunkId {
        self.place.chunk
    }

    pub(super) fn alive(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|replica| !replica.failed)
    }

    pub(super) fn acks(&self) -> usize {
        usize::from(self.place.acks)
    }

    pub(super) fn replica_ref(&self, index: usize) -> ChunkRef {
        ChunkRef { chunk: self.place.chunk, disk: self.replicas[index].place.disk }
    }

    /// Length that `acks` replicas have durable.
    pub(super) fn agreed(&self) -> u32 {
        let mut lengths = [0u32; REPLICAS_MAX];
        let mut count = 0;
        for replica in self.alive() {
            lengths[count] = replica.durable;
            count += 1;
        }
        if count < self.acks() {
            return 0;
        }
        lengths[..count].sort_unstable_by(|a, b| b.cmp(a));
        lengths[self.acks() - 1]
    }
}

/// The chunk that is current at the stream service, with the length at which it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EndedChunk {
    pub(super) chunk: ChunkId,
    pub(super) base: u64,
    pub(super) len: u32,
}

impl EndedChunk {
    /// Offset in the file of the byte behind it.
    pub(super) fn end(&self) -> u64 {
        self.base + u64::from(self.len)
    }
}

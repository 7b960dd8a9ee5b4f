//! The chunk being written: its replicas, and the appends placed in it.

use base::limits::REPLICAS_MAX;
use base::{ChunkId, Epoch, ServerId};
use runtime::{Duration, Instant};
use wire::control::{ChunkPlace, ReplicaPlace};
use wire::data::{ChunkRef, Purpose};

use super::event::WriterError;

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
    /// Bytes of its sectors: what it takes of the chase budget.
    bytes: u32,
    /// Laid out as a row; else in plain sectors.
    pub(super) rows: bool,
    pub(super) purpose: Purpose,
    /// Offset in its chunk, once placed.
    pub(super) offset: u32,
    /// When it was placed there.
    pub(super) placed_at: Instant,
    /// No replica needs it any more; it is in the window until those before it are released too.
    pub(super) released: bool,
    pub(super) copies: [Progress; REPLICAS_MAX],
}

impl Slot {
    /// An append of `len` bytes in sectors of `bytes`, rows or plain ones.
    pub(super) fn new(
        (len, bytes, rows): (u32, u32, bool),
        purpose: Purpose,
        now: Instant,
    ) -> Slot {
        let progress = Progress { state: SendState::Unsent, attempt: 0 };
        let copies = [progress; REPLICAS_MAX];
        Slot { len, bytes, rows, purpose, offset: 0, placed_at: now, released: false, copies }
    }

    pub(super) fn is_blocked_at(&self, index: usize) -> bool {
        self.copies[index].state == SendState::BlockedByGap
    }

    /// Bytes of its sectors: what it takes of the chase budget.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.bytes)
    }

    pub(super) fn end(&self) -> u32 {
        self.offset + self.len
    }
}

/// A replica of a chunk that is written, or that has ended and is still owed bytes.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) place: ReplicaPlace,
    /// Not followed: avoided when the chunk was opened, or left since. Its answers count no more.
    pub(super) left: bool,
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
    /// Its layout, once an append is placed: rows or plain sectors.
    pub(super) rows: bool,
    /// Takes no more appends; ends once all are acknowledged.
    pub(super) full: bool,
    /// The first append placed in it.
    pub(super) from: u64,
    /// Appends from `from` to here are released.
    pub(super) released: u64,
    /// When a chunk with a replica that is not followed is to end, if it is one (C14).
    pub(super) thin: Option<Thin>,
    pub(super) replicas: Vec<Replica>,
}

/// State of a thin chunk: one with a replica that is not followed. Only ended chunks are repaired,
/// so that it ends soon; not at once, for masters may be away with the replica's server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Thin {
    /// It ends then, or later.
    pub(super) end_at: Instant,
    /// The stream service has answered since it became thin.
    pub(super) answered: bool,
    /// All its replicas are followed, and masters do not reach the server of one (C28).
    pub(super) pushed: bool,
}

/// An ended chunk of which followed replicas lack acknowledged bytes.
#[derive(Clone, Debug)]
pub(super) struct Debt {
    pub(super) chunk: OpenChunk,
    /// Appends from here on are not of this chunk.
    pub(super) below: u64,
    pub(super) ended_at: Instant,
}

impl OpenChunk {
    /// Whether the append goes into the chunk. A row and plain sectors never share one.
    pub(super) fn takes(&self, append: &Slot, len_max: u32) -> bool {
        self.end == 0 || (self.rows == append.rows && self.end + append.len <= len_max)
    }

    /// The chunk, empty, with the next append `seq`.
    pub(super) fn new(place: ChunkPlace, base: u64, seq: u64, now: Instant) -> OpenChunk {
        let replica = |&place: &ReplicaPlace| Replica {
            place,
            left: false,
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
        let (acked, end, rows, full, thin) = (0, 0, false, false, None);
        OpenChunk { place, base, acked, end, rows, full, from: seq, released: seq, thin, replicas }
    }

    pub(super) fn id(&self) -> ChunkId {
        self.place.chunk
    }

    pub(super) fn followed(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|replica| !replica.left)
    }

    /// Servers of replicas that are not followed.
    pub(super) fn left(&self) -> Vec<ServerId> {
        let left = self.replicas.iter().filter(|replica| replica.left);
        left.map(|replica| replica.place.server).collect()
    }

    /// True when enough replicas stay followed without this one.
    pub(super) fn can_leave(&self, index: usize) -> bool {
        let others = self.replicas.iter().enumerate().filter(|(at, it)| *at != index && !it.left);
        others.count() >= self.acks()
    }

    /// `least` to five times as long, by the chunk's number: writers that became thin together do
    /// not all end their chunks together.
    pub(super) fn spread(&self, least: Duration) -> Duration {
        let mixed = self.id().get().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
        least + least * 4 * mixed as u32 / 1024
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
        for replica in self.followed() {
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct EndedChunk {
    pub(super) chunk: ChunkId,
    pub(super) base: u64,
    pub(super) len: u32,
    /// Servers of it that get nothing more from this writer.
    pub(super) left: Vec<ServerId>,
}

impl EndedChunk {
    /// Offset in the file of the byte behind it.
    pub(super) fn end(&self) -> u64 {
        self.base + u64::from(self.len)
    }
}

/// A chunk that can be written as it is granted.
pub(super) fn check_place(place: &ChunkPlace, epoch: Epoch) -> Result<(), WriterError> {
    let replicas = place.replicas.len();
    let acks = usize::from(place.acks);
    if place.epoch != epoch || acks == 0 || acks > replicas {
        let text = format!(
            "{} granted with epoch {} for {epoch}, {replicas} replicas, {acks} acknowledgements",
            place.chunk, place.epoch
        );
        return Err(WriterError::Protocol(text));
    }
    if replicas > REPLICAS_MAX || place.sealed.is_some() {
        return Err(WriterError::Protocol(format!("{} can not be written", place.chunk)));
    }
    Ok(())
}

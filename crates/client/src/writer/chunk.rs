//! The chunk being written: its replicas, and the appends placed in it.

use std::ops::{Index, IndexMut};

use base::limits::REPLICAS_MAX;
use base::{ChunkId, Epoch, ServerId};
use codec::block::BlockSize;
use codec::limits::FRAGMENTS_MAX;
use runtime::{Duration, Instant};
use wire::control::{ChunkPlace, ReplicaPlace};
use wire::data::{ChunkRef, Purpose};

use super::event::WriterError;
use super::layout::{Fragments, Laid, bytes_max};
use crate::planted::{Planted, planted};

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

impl Progress {
    pub(super) const NONE: Progress = Progress { state: SendState::Unsent, attempt: 0 };
}

/// State of one append at each replica. Chunks of copies have it inline; memory for more replicas comes
/// when the append is placed in a chunk with more.
#[derive(Clone, Debug)]
pub(super) struct AllProgress {
    first: [Progress; REPLICAS_MAX],
    rest: Option<Box<[Progress; FRAGMENTS_MAX - REPLICAS_MAX]>>,
}

const _: () = assert!(size_of::<AllProgress>() == size_of::<[Progress; REPLICAS_MAX]>() + 8);

impl AllProgress {
    const NONE: AllProgress = AllProgress { first: [Progress::NONE; _], rest: None };

    /// Makes room for so many replicas.
    fn reserve(&mut self, replicas: usize) {
        if replicas > REPLICAS_MAX && self.rest.is_none() {
            self.rest = Some(Box::new([Progress::NONE; _]));
        }
    }

    /// Nothing was sent to any replica.
    pub(super) fn reset(&mut self) {
        *self = AllProgress::NONE;
    }
}

impl Index<usize> for AllProgress {
    type Output = Progress;

    fn index(&self, replica: usize) -> &Progress {
        match replica.checked_sub(REPLICAS_MAX) {
            None => &self.first[replica],
            Some(at) => &self.rest.as_ref().expect("placed where so many replicas are")[at],
        }
    }
}

impl IndexMut<usize> for AllProgress {
    fn index_mut(&mut self, replica: usize) -> &mut Progress {
        match replica.checked_sub(REPLICAS_MAX) {
            None => &mut self.first[replica],
            Some(at) => &mut self.rest.as_mut().expect("placed where so many replicas are")[at],
        }
    }
}

/// An append that some replica may still need.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) len: u32,
    /// Bytes of its sectors: what it takes of the chase budget.
    bytes: u32,
    /// What its sectors are.
    laid: Laid,
    pub(super) purpose: Purpose,
    /// Offset in its chunk, once placed.
    pub(super) offset: u32,
    /// When it was placed there.
    pub(super) placed_at: Instant,
    /// No replica needs it any more; it is in the window until those before it are released too.
    pub(super) released: bool,
    pub(super) copies: AllProgress,
}

impl Slot {
    /// An append of `len` bytes in sectors of `bytes`.
    pub(super) fn new(
        (len, bytes, laid): (u32, u32, Laid),
        purpose: Purpose,
        now: Instant,
    ) -> Slot {
        let copies = AllProgress::NONE;
        Slot { len, bytes, laid, purpose, offset: 0, placed_at: now, released: false, copies }
    }

    /// Notes what its sectors are from now on, in a chunk with so many replicas.
    pub(super) fn lay_out(&mut self, laid: Laid, replicas: usize) {
        self.copies.reserve(replicas);
        if self.laid != laid {
            self.laid = laid;
            // What a compression saves is not known here.
            self.bytes = bytes_max(laid, BlockSize::PAPERS, self.len as usize) as u32;
        }
    }

    /// Only so many of its cells for `n` fragments are needed from now on.
    pub(super) fn keep(&mut self, cells: u32, n: usize) {
        self.bytes = self.bytes / n as u32 * cells;
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
    /// Its server has said that it lost a replica, or a disk: what was durable here may be gone.
    pub(super) lost: bool,
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
    /// What its sectors are, once an append is placed.
    pub(super) laid: Laid,
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
    /// What the sectors of an append are in this chunk: rows of its code, or what they are already.
    pub(super) fn laid_for(&self, append: &Slot) -> Laid {
        match (Fragments::of(&self.place), append.laid) {
            (Some(code), _) => Laid::Coded(code),
            (None, Laid::Coded(_)) => Laid::Plain,
            (None, laid) => laid,
        }
    }

    /// Whether the append goes into the chunk. A row and plain sectors never share one.
    pub(super) fn takes(&self, append: &Slot, len_max: u32) -> bool {
        let fits = self.laid == self.laid_for(append) && self.end + append.len <= len_max;
        self.end == 0 || fits
    }

    /// The chunk, empty, with the next append `seq`.
    pub(super) fn new(place: ChunkPlace, base: u64, seq: u64, now: Instant) -> OpenChunk {
        let replica = |&place: &ReplicaPlace| Replica {
            place,
            left: false,
            lost: false,
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
        let (acked, end, laid, full, thin) = (0, 0, Laid::Plain, false, None);
        OpenChunk { place, base, acked, end, laid, full, from: seq, released: seq, thin, replicas }
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

    /// Number of the fragment that a replica gets; 0 where they are copies.
    pub(super) fn fragment(&self, index: usize) -> u8 {
        self.replicas[index].place.fragment
    }

    /// Fragments of followed replicas that lack an append, a bit each; none where replicas are copies: all
    /// of these need the same sectors.
    pub(super) fn lacking(&self, append: &Slot) -> Option<u32> {
        Fragments::of(&self.place)?;
        let late = self.followed().filter(|replica| replica.durable < append.end());
        Some(late.fold(0, |all, replica| all | 1 << replica.place.fragment))
    }

    /// Length that `acks` replicas have durable.
    pub(super) fn agreed(&self) -> u32 {
        let mut lengths = [0u32; FRAGMENTS_MAX];
        let mut count = 0;
        let counts = |it: &&Replica| !it.left || planted(Planted::LeftCounts);
        for replica in self.replicas.iter().filter(counts) {
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
    let fits = match Fragments::of(place) {
        Some(code) => fits_code(place, code),
        None => {
            replicas <= REPLICAS_MAX && place.replicas.iter().all(|replica| replica.fragment == 0)
        }
    };
    if !fits {
        let text = format!(
            "{} granted with {replicas} replicas, {acks} acknowledgements, {} data fragments of {}: \
             no copies, and not each fragment of a code once",
            place.chunk, place.data, place.copies
        );
        return Err(WriterError::Protocol(text));
    }
    if place.sealed.is_some() {
        return Err(WriterError::Protocol(format!("{} can not be written", place.chunk)));
    }
    Ok(())
}

/// Whether each fragment has its replica, and an acknowledged append survives a loss.
fn fits_code(place: &ChunkPlace, code: Fragments) -> bool {
    let mut seen = 0u32;
    for replica in &place.replicas {
        seen |= 1u32.checked_shl(replica.fragment.into()).unwrap_or(0);
    }
    let n = code.n();
    code.scheme(BlockSize::PAPERS).is_some()
        && n == usize::from(place.copies)
        && place.replicas.len() == n
        && seen == (1 << n) - 1
        && place.acks > place.data
}

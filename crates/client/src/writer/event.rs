//! Events that the writer takes, and actions that it returns.

use std::net::SocketAddr;

use base::{ChunkId, ServerId};
use runtime::Duration;
use wire::control::{Compression, ReplicaFault, ReplicaPlace, WriterGrant};
use wire::data::{AppendRequest, CommitRequest, DataError, Purpose};
use wire::sector::AppendAt;

use super::layout::{Fragments, Laid};

/// Parameters of the protocol.
///
/// A replica that an append needs stalls the writer for a few times what appends to others take (B15,
/// `blocked`), and for the stream service's answer. One that it does not need is left after
/// `unreachable_timeout` or `replica_timeout`.
#[derive(Clone, Debug)]
pub struct WriterConfig {
    /// Copies that the file's policy asked for when it was opened, for chunks that do not say how many
    /// they are to have; 0 when that is not known.
    pub copies: u8,
    /// The code that the file's policy had when it was opened; none: chunks are copies.
    pub code: Option<Fragments>,
    /// The first chunk was asked for in copies, whatever the code.
    pub in_copies: bool,
    /// Bytes of sectors that the form of chunks (the file's code, or copies) has to cost more than the
    /// other, over all replicas, before the writer goes on in the other.
    pub switch_bytes: u32,
    /// Length at which a chunk ends, 1 MiB to 2 GiB (C5).
    pub chunk_len_max: u32,
    /// Spare chunks held (C8), 0 to 4.
    pub spares: u8,
    /// Silence of a replica after which its oldest append is sent again.
    pub resend_after: Duration,
    /// Silence of a replica after which it has failed the writer (C15); also the longest wait of an append
    /// for copies that it needs.
    pub replica_timeout: Duration,
    /// Time without a connection to a replica after which it has failed the writer.
    pub unreachable_timeout: Duration,
    /// Time without progress of a replica that answers (busy, gap), after which it has failed.
    pub stuck_timeout: Duration,
    /// Pause before a refused append is sent again; doubles with each attempt.
    pub retry_pause: Duration,
    /// Idle time after which replicas are sent the committed length (`protocols.md` 1.6).
    pub commit_idle: Duration,
    /// Idle time after which it is sent again: a replica may have restarted and lost it.
    pub commit_repeat: Duration,
    /// Time for which a replica may leave an idle writer without an answer. Then the writer goes
    /// on in another chunk, so that the old one is sealed and repaired.
    pub idle_timeout: Duration,
    /// A chunk that was opened with fewer copies, because servers were missing, is left for one
    /// that has them all: pause between two questions whether there is one. Doubles when such a chunk
    /// fails within two pauses, up to [`WriterConfig::whole_pause_max`]: a server may be there for the
    /// masters and not for this writer.
    pub whole_pause: Duration,
    /// See [`WriterConfig::whole_pause`].
    pub whole_pause_max: Duration,
    /// Bytes of sectors that acknowledged appends may take while some followed replica lacks them
    /// (C14, k). A replica that lacks more is left; no append waits for it.
    pub chase_bytes: u32,
    /// Time for which a followed replica may lack an acknowledged append (C14, t), before it is left.
    pub chase_for: Duration,
    /// Age of the oldest append that a replica lacks when it is left, from which on its server counts
    /// as slow and is avoided.
    pub slow_after: Duration,
    /// Time for which the bytes of an ended chunk are kept for a replica when too few others have
    /// them.
    pub debt_kept: Duration,
    /// Time after which a chunk with a replica that is not followed ends: from this to five times as
    /// long. Doubles with each chunk that is left so and follows another within
    /// [`WriterConfig::whole_pause`], up to [`WriterConfig::whole_pause_max`].
    pub thin_pause: Duration,
    /// Time after which a chunk ends that has a replica on a server which masters do not reach, though
    /// this writer does (C28): from this to five times as long, so that all have ended within 30 s.
    pub pushed_pause: Duration,
    /// Time for which the end of a writer waits for copies that are owed, so that small files are
    /// not left to masters for completion.
    pub close_chase: Duration,
    /// Time without any acknowledgement after which the writer gives up.
    pub stall_budget: Duration,
    /// Time for which a server that failed is not wanted for new chunks.
    pub avoid_for: Duration,
    /// Pause between requests for spares that are not needed at once.
    pub extend_pause: Duration,
    /// Wait of the transport for one answer: longer than all of the above that resend.
    pub call_timeout: Duration,
}

/// One sending of one append to one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendId {
    /// The chunk.
    pub chunk: ChunkId,
    /// Index of the replica in the chunk.
    pub replica: u8,
    /// The append's number.
    pub seq: u64,
    /// Sendings of the append to this replica in this chunk before this one.
    pub attempt: u16,
    /// The committed length that it carries.
    pub committed: u32,
    /// Length that the replica had acknowledged before it was sent.
    pub known: u32,
}

/// Cause of a failed sending.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SendError {
    /// No connection.
    Unreachable,
    /// No answer, or the connection broke: the append may be there.
    Silent,
    /// The replica refused.
    Data(DataError),
}

/// Events of a writer.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The caller appends `len` bytes, 1 to the largest append. Numbered from 0.
    Append {
        /// Data bytes.
        len: u32,
        /// Bytes of the sectors that hold them, all replicas of a code together.
        bytes: u32,
        /// What the sectors are.
        laid: Laid,
    },
    /// A sending has ended; with the durable length of the replica when it succeeded.
    Sent {
        /// The sending.
        id: SendId,
        /// Its result.
        result: Result<u32, SendError>,
    },
    /// A commit message has ended.
    CommittedNotified {
        /// The chunk.
        chunk: ChunkId,
        /// Index of the replica.
        replica: u8,
        /// The length that was sent.
        committed: u32,
        /// Its result.
        result: Result<(), SendError>,
    },
    /// The stream operation asked for has ended, after all its retries.
    Op(Result<OpDone, OpError>),
    /// The caller wants no more appends.
    Close {
        /// Never again, by any writer.
        finish: bool,
    },
    /// The deadline has come.
    Tick,
}

impl Event {
    /// The caller appends `len` bytes, in plain sectors.
    pub fn plain_append(len: u32) -> Event {
        let bytes = wire::sector::sectors_for(len as usize) * base::limits::SECTOR;
        Event::Append { len, bytes: bytes as u32, laid: Laid::Plain }
    }
}

/// A stream operation that succeeded.
#[derive(Clone, PartialEq, Debug)]
pub enum OpDone {
    /// Advance or extend.
    Writer(WriterGrant),
    /// Close, with the file's length.
    Closed {
        /// The file's length.
        len: u64,
    },
}

/// A stream operation that did not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpError {
    /// A newer epoch exists.
    Fenced,
    /// No room for more chunks.
    Full,
    /// The file was removed.
    Gone,
    /// The request does not fit what is recorded.
    Stale,
    /// Anything else, after all retries.
    Failed(String),
}

/// Actions of a writer.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Lay the append out at this place, replacing an earlier layout. Comes before its sendings.
    Place {
        /// The append.
        seq: u64,
        /// Its place.
        at: AppendAt,
        /// What its sectors are there: if they are not, its bytes are laid out again.
        laid: Laid,
        /// Compression for that, where the chunk asks for one.
        compression: Option<Compression>,
    },
    /// Send the append as it is laid out.
    Send {
        /// Identifies the sending.
        id: SendId,
        /// The replica's address.
        to: SocketAddr,
        /// The right to append.
        token: [u8; 16],
        /// Number of the replica's fragment: the cell that is sent. 0 where replicas are copies.
        fragment: u8,
        /// The request.
        request: AppendRequest,
    },
    /// Send the committed length to an idle replica.
    NotifyCommitted {
        /// Index of the replica.
        replica: u8,
        /// The replica's address.
        to: SocketAddr,
        /// The right to append.
        token: [u8; 16],
        /// The request.
        request: CommitRequest,
    },
    /// Do this at the stream service; one at a time.
    Op(StreamOp),
    /// Appends below `below` are acknowledged; the file has `len` bytes.
    Acked {
        /// First append that is not.
        below: u64,
        /// Acknowledged length of the file.
        len: u64,
    },
    /// Of an acknowledged append in a coded chunk the cells of these fragments are needed yet, a bit each,
    /// and no others: what is owed to a late replica is its own cell.
    Trimmed {
        /// The append.
        seq: u64,
        /// Fragments whose replicas lack it.
        keep: u32,
    },
    /// Appends `from..below`, all of one chunk, are not needed any more. Those of an earlier chunk
    /// may be needed for longer.
    Released {
        /// The first of them.
        from: u64,
        /// The first behind them.
        below: u64,
    },
    /// A replica gets nothing more: its calls under way are of no use.
    Left {
        /// The chunk.
        chunk: ChunkId,
        /// Index of the replica in the chunk.
        replica: u8,
    },
    /// A replica failed the writer.
    Report {
        /// The chunk.
        chunk: ChunkId,
        /// The replica's server.
        server: ServerId,
        /// The fault.
        fault: ReplicaFault,
    },
    /// A replica leaves an append without an answer for longer than others: its server may be gone, or its
    /// disk may only be late. Masters are to hear of it if it is gone.
    Doubt {
        /// The chunk.
        chunk: ChunkId,
        /// The replica.
        place: ReplicaPlace,
    },
    /// A chunk has ended because too few replicas answered in time (B15).
    Blocked {
        /// The chunk.
        chunk: ChunkId,
        /// How long its oldest append has waited there.
        waited: Duration,
    },
    /// The writer has closed without an error.
    Closed {
        /// The file's length.
        len: u64,
    },
    /// The writer has ended: no append is acknowledged any more.
    Failed(WriterError),
}

/// Operations of a writer at the stream service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamOp {
    /// End a chunk and go on in the next.
    Advance {
        /// The chunk that ends.
        sealed: ChunkId,
        /// Its acknowledged length.
        len: u32,
        /// The chunk that follows.
        next: ChunkId,
        /// Servers not wanted for new spares.
        avoid: Vec<ServerId>,
        /// Spares wanted.
        spares: u8,
        /// Servers of the chunk that ends to which nothing more of it is sent: a hint.
        left: Vec<ServerId>,
        /// New spares are wanted in copies, whatever the file's code.
        in_copies: bool,
    },
    /// Get spares.
    Extend {
        /// Servers not wanted for new spares.
        avoid: Vec<ServerId>,
        /// Spares wanted in all.
        spares: u8,
        /// Purpose of the bytes to be written to them.
        purpose: Purpose,
        /// As in `Advance`.
        in_copies: bool,
    },
    /// End the writer.
    Close {
        /// The chunk that is current at the stream service, and its acknowledged length.
        sealed: Option<(ChunkId, u32)>,
        /// The file takes no appends ever again.
        finish: bool,
        /// As in `Advance`.
        left: Vec<ServerId>,
    },
}

/// Cause of a writer's end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WriterError {
    /// A newer epoch exists.
    Fenced,
    /// The cluster is full.
    Full,
    /// The file was removed.
    Gone,
    /// Nothing was acknowledged for the stall budget.
    Stalled {
        /// The last failure met.
        cause: String,
    },
    /// A peer broke the protocol.
    Protocol(String),
}

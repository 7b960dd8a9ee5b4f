//! Cluster-wide messages: facts, registration, heartbeats, membership, locks, status.

use std::net::SocketAddr;

use base::{ChunkId, ClusterId, DiskId, FileId, FormationId, ServerId};

use super::OpId;
use super::class::CallClass;
use crate::token::Issuer;

/// A group of replicated state machines. The number identifies it on the wire and in names:
/// `cluster`, `ns0`, `st0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Group {
    /// Servers, membership, locks.
    Cluster,
    /// A namespace partition.
    Namespace(u16),
    /// A stream partition.
    Stream(u16),
}

impl Group {
    /// Its number on the wire.
    pub const fn number(self) -> u32 {
        match self {
            Group::Cluster => 0,
            Group::Namespace(partition) => 0x1_0000 + partition as u32,
            Group::Stream(partition) => 0x2_0000 + partition as u32,
        }
    }

    /// The group of a number.
    pub const fn from_number(number: u32) -> Option<Group> {
        let partition = (number & 0xffff) as u16;
        match number >> 16 {
            0 if partition == 0 => Some(Group::Cluster),
            1 => Some(Group::Namespace(partition)),
            2 => Some(Group::Stream(partition)),
            _ => None,
        }
    }
}

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Group::Cluster => f.write_str("cluster"),
            Group::Namespace(partition) => write!(f, "ns{partition}"),
            Group::Stream(partition) => write!(f, "st{partition}"),
        }
    }
}

/// A master process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MasterInfo {
    /// Its Raft ID, from 1.
    pub id: u64,
    /// Its name, e.g. `m1`.
    pub name: String,
    /// Its address.
    pub addr: SocketAddr,
}

/// A request to any master.
#[derive(Clone, PartialEq, Debug)]
pub enum ClusterRequest {
    /// Identity, masters, partitions and leaders.
    Info,
    /// A chunkserver joins, or comes back. Committed before it is answered.
    Register(Registration),
    /// A chunkserver is alive. Sent to every master, each of which keeps its own view.
    Heartbeat(Heartbeat),
    /// The state of the whole cluster, for operators.
    Status,
    /// Lock service.
    Lock {
        /// Identifies it across retries.
        op: OpId,
        /// The change.
        change: LockChange,
    },
    /// Asks for the holder of a lock.
    LockHolder {
        /// The lock's name.
        name: String,
    },
    /// The sender does not reach the holder of a lock. With others' doubts, or when the leading master
    /// does not reach it either, the lock is renewed no more (`protocols-tail.md` 10.11). Answered by
    /// `Done`, whatever follows.
    LockDoubt {
        /// The lock's name.
        name: String,
        /// The holder's number: doubts of an earlier holder say nothing.
        fencing: u64,
    },
    /// Changes the masters' membership.
    Members {
        /// The change.
        change: MemberChange,
    },
    /// Asks which of these disks any stream has ever used. Sent by a chunkserver for stores that do
    /// not name their owner.
    Identify {
        /// Their incarnations.
        disks: Vec<DiskId>,
    },
    /// Asks the leading master which servers are abnormal (C28). An answer is soft state: it is for
    /// the order in which servers are asked, and no evidence of anything.
    Abnormal {
        /// The asker's version, if it has one.
        known: Option<AbnormalVersion>,
    },
    /// An operator's permission: all that no stream refers to on this disk may be deleted, however
    /// much it is. For the next comparison with that disk of each partition that the master leads.
    Condemn {
        /// Its incarnation.
        disk: DiskId,
    },
    /// An operator's order about a chunkserver, to the leader of the cluster group. It may be
    /// repeated. Answered with what the server holds.
    Order {
        /// The chunkserver's name.
        server: String,
        /// The order.
        order: ServerOrder,
        /// It is checked, and not given.
        dry_run: bool,
    },
    /// What the stream partitions that the master leads have on a chunkserver, by a linearizable
    /// look. Masters ask each other.
    Held {
        /// The chunkserver.
        server: ServerId,
        /// Operators' orders that the answering master must have applied.
        orders: u64,
    },
    /// An operator has chunks moved for balance, or has them stay where they are. To the leader of
    /// the cluster group; it may be repeated.
    PauseBalance {
        /// They stay.
        paused: bool,
    },
}

/// An operator's order about a chunkserver (`protocols-tail.md` 10.15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerOrder {
    /// It gets no new chunks, and those that it has are made elsewhere, then dropped there.
    Drain,
    /// It takes chunks as any other again.
    CancelDrain,
    /// While it is silent its chunks are not made elsewhere, as long as they can be read.
    Maintain {
        /// Duration in milliseconds, 24 hours at most.
        for_ms: u64,
    },
    /// Its chunks are repaired as those of any other.
    EndMaintenance,
    /// It leaves the cluster for ever: only once it is drained.
    Decommission,
    /// The same, although chunks are lost with it: exactly these.
    DecommissionLosing(Losses),
    /// No order: what it holds, and which chunks would be lost without it.
    ListLosses,
}

/// A set of chunks, by its size and a sum over their IDs: an operator who has seen the list of what is lost
/// names it by this, and nothing else is taken for it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Losses {
    /// How many.
    pub chunks: u64,
    /// The sum. It does not depend on their order.
    pub digest: u64,
}

impl Losses {
    /// Takes in a chunk, once.
    pub fn add(&mut self, chunk: ChunkId) {
        // The finalizer of splitmix64: sums of neighbouring IDs differ in all bits.
        let mut mixed = chunk.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.chunks += 1;
        self.digest = self.digest.wrapping_add(mixed ^ (mixed >> 31));
    }
}

/// A chunk of which no server has enough any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LostChunk {
    /// Its file.
    pub file: FileId,
    /// The chunk.
    pub chunk: ChunkId,
    /// Offset of its first byte in the file.
    pub base: u64,
    /// Its bytes.
    pub len: u32,
}

/// What stream partitions have on a chunkserver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holdings {
    /// The chunkserver.
    pub server: ServerId,
    /// The partitions that were asked.
    pub partitions: Vec<u16>,
    /// Copies of the widest policy of any chunk or file of theirs.
    pub widest: u8,
    /// Replicas on it, those of spares and those that are being made included.
    pub replicas: u64,
    /// Of them, of chunks that are written.
    pub open: u64,
    /// Bytes of its replicas of sealed chunks.
    pub bytes: u64,
    /// Of its replicas, those of sealed chunks that have no other sealed replica.
    pub only: u64,
    /// Some of the files: those with `only` first, up to
    /// [`HELD_FILES_MAX`](super::limits::HELD_FILES_MAX).
    pub files: Vec<FileId>,
    /// Sealed chunks with a replica on it that can not be read without it, nor from it: it is silent or
    /// its disk is, and what others have is not enough.
    pub lost: Losses,
    /// Replicas on it of these chunks.
    pub lost_replicas: u64,
    /// The first of these chunks, up to [`LOST_CHUNKS_MAX`](super::limits::LOST_CHUNKS_MAX).
    pub lost_chunks: Vec<LostChunk>,
}

impl Holdings {
    /// Nothing, of no partition.
    pub fn none(server: ServerId) -> Holdings {
        Holdings {
            server,
            partitions: Vec::new(),
            widest: 0,
            replicas: 0,
            open: 0,
            bytes: 0,
            only: 0,
            files: Vec::new(),
            lost: Losses::default(),
            lost_replicas: 0,
            lost_chunks: Vec::new(),
        }
    }

    /// Takes in what other partitions have on the same server.
    pub fn add(&mut self, other: &Holdings) {
        self.partitions.extend(&other.partitions);
        self.widest = self.widest.max(other.widest);
        self.replicas += other.replicas;
        self.open += other.open;
        self.bytes += other.bytes;
        self.only += other.only;
        // Each has its most important ones first.
        let before = if other.only > 0 { 0 } else { self.files.len() };
        self.files.splice(before..before, other.files.iter().copied());
        self.files.truncate(super::limits::HELD_FILES_MAX);
        self.lost.chunks += other.lost.chunks;
        self.lost.digest = self.lost.digest.wrapping_add(other.lost.digest);
        self.lost_replicas += other.lost_replicas;
        let room = super::limits::LOST_CHUNKS_MAX.saturating_sub(self.lost_chunks.len());
        self.lost_chunks.extend(other.lost_chunks.iter().take(room));
    }

    /// Takes in a chunk that is lost without the server, which has so many replicas of it.
    pub fn lose(&mut self, lost: LostChunk, replicas: u64) {
        self.lost.add(lost.chunk);
        self.lost_replicas += replicas;
        if self.lost_chunks.len() < super::limits::LOST_CHUNKS_MAX {
            self.lost_chunks.push(lost);
        }
    }
}

/// A chunkserver as it registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    /// Its name, unique in the cluster, e.g. `cs1`: the same name is the same server.
    pub name: String,
    /// Its address.
    pub addr: SocketAddr,
    /// Its failure domain: replicas of a chunk never share one while others are there.
    pub domain: String,
}

/// One disk of a chunkserver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskReport {
    /// The incarnation; zero for a disk that could not be opened.
    pub disk: DiskId,
    /// Its directory or device, for operators.
    pub path: String,
    /// Bytes it can take.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    /// Replicas on it.
    pub chunks: u64,
    /// True once it has failed.
    pub failed: bool,
    /// Cause of its failure, for operators; empty while it works.
    pub reason: String,
    /// Address of calls for this disk, if not the server's.
    pub addr: Option<SocketAddr>,
    /// Its background work; absent from chunkservers that do not say it, and of disks that do not serve.
    pub background: Option<BackgroundWork>,
    /// Recent foreground operations, of the classes that there were enough of.
    pub times: Vec<DiskTimes>,
}

/// Latencies of a disk's recent foreground operations of one class, as its chunkserver sees them
/// (`protocols-tail.md` 10.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskTimes {
    /// The class.
    pub class: CallClass,
    /// Latency that half of them did not exceed, microseconds.
    pub p50_us: u64,
    /// Latency that 99 of 100 did not exceed.
    pub p99_us: u64,
}

/// Copies and scrub of a disk (C20).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackgroundWork {
    /// Part of the disk's time that they have beside foreground work now, in thousandths.
    pub share: u32,
    /// Operations that wait for their turn.
    pub waiting: u32,
}

/// Sent by a chunkserver every heartbeat interval.
#[derive(Clone, PartialEq, Debug)]
pub struct Heartbeat {
    /// The server, as registered.
    pub server: ServerId,
    /// Its address.
    pub addr: SocketAddr,
    /// Drawn at each start of the process: different after a restart.
    pub boot: u64,
    /// Counts heartbeats of this boot from 1.
    pub seq: u64,
    /// Its disks.
    pub disks: Vec<DiskReport>,
    /// Replicas found damaged or lost since the last heartbeat, up to a bound.
    pub damaged: Vec<(DiskId, ChunkId)>,
    /// Appends under way, for placement by load.
    pub load: u32,
    /// Open replicas whose writers have sent nothing for long, up to a bound. Reported again while
    /// it lasts.
    pub quiet: Vec<(DiskId, ChunkId)>,
    /// Highest layout of replicas that it takes: 2 for rows (C18, C19).
    pub layout: u8,
    /// It judges tokens and orders by the clock of the master that gave them (decision 113).
    pub by_issuer: bool,
}

/// A master as an issuer of tokens, and its clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IssuerClock {
    /// The master's number as an issuer, drawn at each start.
    pub issuer: Issuer,
    /// Milliseconds since that start.
    pub clock_ms: u64,
}

/// Text of a lock's holder: a name and an address.
pub fn holder_text(name: &str, addr: SocketAddr) -> String {
    format!("{name} {addr}")
}

/// The address in a holder's text.
pub fn holder_addr(text: &str) -> Option<SocketAddr> {
    text.rsplit_once(' ').and_then(|(_, addr)| addr.parse().ok())
}

/// A change of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockChange {
    /// Takes the lock when it is free or its lease has run out.
    Acquire {
        /// The lock's name, 1 to 255 bytes.
        name: String,
        /// The process that takes it, for operators.
        owner: String,
        /// Lease, milliseconds, 100 to 600,000.
        ttl_ms: u64,
    },
    /// Extends the lease from the sending of this request.
    Renew {
        /// The lock's name.
        name: String,
        /// The number that `Acquire` answered.
        fencing: u64,
        /// Lease, milliseconds.
        ttl_ms: u64,
    },
    /// Gives the lock up.
    Release {
        /// The lock's name.
        name: String,
        /// The number that `Acquire` answered.
        fencing: u64,
    },
}

/// A change of the masters' membership.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberChange {
    /// A new master joins every group, as a learner first.
    Add(MasterInfo),
    /// A master leaves every group.
    Remove {
        /// Its Raft ID.
        id: u64,
    },
}

/// Facts that clients and chunkservers start from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterInfo {
    /// The cluster.
    pub cluster: ClusterId,
    /// Its masters.
    pub masters: Vec<MasterInfo>,
    /// Number of namespace partitions.
    pub namespace_partitions: u16,
    /// Number of stream partitions.
    pub stream_partitions: u16,
    /// Leaders as this master knows them: group and master ID.
    pub leaders: Vec<(Group, u64)>,
}

/// State of a master's list of abnormal servers. Masters count for themselves: what one has answered
/// says nothing about the versions of another, or of the same one after a restart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AbnormalVersion {
    /// Drawn at each start of the master.
    pub boot: u64,
    /// Changes of the list since then.
    pub changes: u64,
}

/// A chunkserver in such a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AbnormalServer {
    /// The server.
    pub server: ServerId,
    /// The leading master does not reach it, though its heartbeats come. False in a change: it is
    /// not abnormal any more.
    pub unreached: bool,
    /// Its disks take much longer than those of others, by their own times.
    pub slow: bool,
    /// It is to be emptied: writers end their chunks there.
    pub draining: bool,
}

/// Abnormal chunkservers by the leading master's view (C28), or what has changed of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AbnormalServers {
    /// The version that the list has with this answer.
    pub version: AbnormalVersion,
    /// All of them are here. False: the changes since the version that was asked about, none if it is
    /// this one.
    pub full: bool,
    /// More of them are abnormal than [`ABNORMAL_MAX`](super::limits::ABNORMAL_MAX), or than a third
    /// of all: none is named, and clients rely on what they see themselves.
    pub many: bool,
    /// The servers.
    pub servers: Vec<AbnormalServer>,
}

/// A chunkserver as a master sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerStatus {
    /// The server.
    pub server: ServerId,
    /// Its name.
    pub name: String,
    /// Its address.
    pub addr: SocketAddr,
    /// Its failure domain.
    pub domain: String,
    /// True while heartbeats come.
    pub alive: bool,
    /// Time for which the master has not reached it, though its heartbeats come: milliseconds.
    pub unreached_ms: Option<u64>,
    /// Time since its last heartbeat at this master: milliseconds.
    pub heard_ms: Option<u64>,
    /// Its disks.
    pub disks: Vec<DiskReport>,
    /// An operator has it emptied.
    pub draining: bool,
    /// Time for which its maintenance lasts: milliseconds.
    pub maintenance_ms: Option<u64>,
    /// Disks of it that take much longer than those of others, by their own times.
    pub slow_disks: Vec<DiskId>,
}

/// Names in a text about missing servers and disks, at most, so that it stays a sentence.
const MISSING_NAMED: usize = 4;

/// Failures of these chunkservers, for operators: silent ones, and disks that have failed. None
/// when there are none.
pub fn missing(servers: &[ServerStatus]) -> Option<String> {
    let mut found = Vec::new();
    for server in servers {
        let ServerStatus { name, addr, .. } = server;
        if !server.alive {
            let known = match server.maintenance_ms {
                Some(_) => ", which is under maintenance,",
                None => "",
            };
            found.push(format!("chunkserver '{name}' at {addr}{known} does not answer"));
            continue;
        }
        if server.unreached_ms.is_some() {
            found.push(format!(
                "chunkserver '{name}' sends heartbeats, and nothing reaches it at {addr}"
            ));
        }
        for DiskReport { path, reason, .. } in server.disks.iter().filter(|disk| disk.failed) {
            let reason = if reason.is_empty() { "" } else { &format!(" ({reason})") };
            found.push(format!("disk {path} of chunkserver '{name}' has failed{reason}"));
        }
    }
    let others = found.len().saturating_sub(MISSING_NAMED);
    found.truncate(MISSING_NAMED);
    if others > 0 {
        found.push(format!("{others} more are missing"));
    }
    (!found.is_empty()).then(|| found.join("; "))
}

/// Repair in figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RepairStatus {
    /// Chunks waiting.
    pub pending: u64,
    /// Chunks repaired since the leader took over.
    pub done: u64,
    /// Bytes copied since then.
    pub bytes: u64,
}

/// The knowledge of one master; the asker merges those of the masters that lead groups.
#[derive(Clone, PartialEq, Debug)]
pub struct ClusterStatus {
    /// This master.
    pub master: u64,
    /// Groups it leads.
    pub leads: Vec<Group>,
    /// Servers registered.
    pub servers: Vec<ServerStatus>,
    /// Chunks of the stream partitions it leads.
    pub chunks: u64,
    /// Of them, with fewer healthy replicas than their policy asks.
    pub under_replicated: u64,
    /// Of them, with too few healthy replicas to read.
    pub lost: u64,
    /// Of those that can be read, how many survive so many more losses of a replica: none, one, two,
    /// three or more. All 0 from a master that does not count them.
    pub survive: [u64; 4],
    /// Files of the namespace partitions it leads.
    pub files: u64,
    /// Directories of the namespace partitions it leads.
    pub dirs: u64,
    /// Logical bytes in sealed chunks of the stream partitions it leads.
    pub logical_bytes: u64,
    /// Repair by the stream partitions it leads.
    pub repair: RepairStatus,
    /// Bytes of replicas on disks that no stream of the partitions it leads refers to, as of the
    /// last comparison with each disk: they wait for their deletion.
    pub unreferenced_bytes: u64,
    /// Collections that wait for an operator, of the stream partitions it leads.
    pub stopped: Vec<StoppedCollection>,
    /// What the stream partitions that it leads have on the chunkservers that drain, as of the last
    /// look of each.
    pub draining: Vec<Holdings>,
    /// An operator has chunks stay where they are.
    pub balance_paused: bool,
}

/// A partition's collection on a disk that waits for an operator: the disk holds more replicas
/// that no stream refers to than are deleted unasked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoppedCollection {
    /// The stream partition.
    pub partition: u16,
    /// The server.
    pub server: ServerId,
    /// The disk.
    pub disk: DiskId,
    /// Replicas of the partition on it that no stream refers to.
    pub unknown: u64,
    /// Replicas of the partition on it.
    pub reported: u64,
}

/// A successful answer of the cluster service.
#[derive(Clone, PartialEq, Debug)]
pub enum ClusterReply {
    /// To `Info`.
    Info(ClusterInfo),
    /// To `Register`.
    Registered {
        /// The server's ID: the same for the same name.
        server: ServerId,
        /// The cluster, so that a new chunkserver knows where it belongs.
        cluster: ClusterId,
        /// The formation of it; none from masters of a version before formations.
        formation: Option<FormationId>,
    },
    /// To `Heartbeat`: the masters as they are now.
    Beat {
        /// The masters.
        masters: Vec<MasterInfo>,
        /// False when this master does not know the server: register again.
        known: bool,
        /// Its clock as an issuer of tokens; absent from masters that do not say it.
        clock: Option<IssuerClock>,
    },
    /// To `Status`.
    Status(ClusterStatus),
    /// To `Acquire` and `Renew`: the fencing token, larger than all before it.
    Lock {
        /// The fencing token.
        fencing: u64,
    },
    /// To `LockHolder`: owner and fencing token, when held.
    Holder(Option<(String, u64)>),
    /// To `Identify`: those that a stream has used.
    Identified {
        /// Their incarnations.
        known: Vec<DiskId>,
    },
    /// To `Abnormal`.
    Abnormal(AbnormalServers),
    /// To `Order` and `Held`.
    Held(Holdings),
    /// Done.
    Done,
}

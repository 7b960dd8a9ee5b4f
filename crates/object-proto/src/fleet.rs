//! What object servers and the manager say to each other of who owns which range (`object-protocols.md` 3.1,
//! `protocols.md` 6.5), and what the service is made of.

use std::net::SocketAddr;

use crate::ids::{ObjectServerId, RangeId};
use crate::ranges::RangeBound;

/// Changes of a manager that a server has made. Changes of different terms do not compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// The manager's term; 0: nothing seen yet.
    pub term: u64,
    /// Number of the last change.
    pub change: u64,
}

/// Load of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeLoad {
    /// The range.
    pub range: RangeId,
    /// Requests a second.
    pub requests: u32,
    /// Bytes of bodies a second that its owner took or gave.
    pub bytes: u64,
}

/// A range that a server cannot serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unserved {
    /// The range.
    pub range: RangeId,
    /// The epoch under which the server has it.
    pub epoch: u64,
    /// Why.
    pub cause: String,
    /// It was served and will not be again under this epoch: the server needs another one.
    pub ended: bool,
}

/// A server's heartbeat, which asks for a lease of all that it owns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerBeat {
    /// The server.
    pub server: ObjectServerId,
    /// Its process.
    pub boot: u64,
    /// Number of the heartbeat.
    pub seq: u64,
    /// Where it listens.
    pub addr: SocketAddr,
    /// Changes that it has made.
    pub seen: Seen,
    /// It is about to end.
    pub leaving: bool,
    /// Ranges of its own that it does not serve.
    pub unserved: Vec<Unserved>,
    /// Loads that have changed.
    pub loads: Vec<RangeLoad>,
}

/// A range that is a server's, or is not any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeGrant {
    /// The range.
    pub range: RangeId,
    /// Its epoch, and for how many ms from now on its answers are held back: the lease of the owner before
    /// may last. None: it is another server's.
    pub epoch: Option<(u64, u32)>,
}

/// The answer to a heartbeat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerGrant {
    /// The server is on record; else it registers.
    pub known: bool,
    /// Time of the lease from the sending of the heartbeat on, ms; 0: it is not renewed.
    pub lease_ms: u32,
    /// The changes name all that the server owns.
    pub reset: bool,
    /// Changes behind those that it has seen.
    pub changes: Vec<RangeGrant>,
    /// The last of them.
    pub seen: Seen,
    /// Others follow in the next answer.
    pub more: bool,
    /// The manager's wall clock, microseconds since 1970: locks end by it too.
    pub now_us: u64,
}

/// Where a range is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeAt {
    /// The range.
    pub range: RangeId,
    /// Its owner's address; none while it has no owner.
    pub addr: Option<SocketAddr>,
}

/// Request to an object server as such.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerRequest {
    /// Asks whether it hears.
    Ping,
    /// There is news: it sends a heartbeat.
    BeatNow,
}

/// Role of a process that owns nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PeerRole {
    /// A manager, the leading one or another.
    Manager,
    /// A gateway.
    Gateway,
}

/// A sign of life of a process that owns nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Role.
    pub role: PeerRole,
    /// Name.
    pub name: String,
    /// Where it listens.
    pub addr: SocketAddr,
    /// Connections of clients.
    pub connections: u32,
}

/// State of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerState {
    /// It was heard lately.
    Up,
    /// It is silent.
    Down,
    /// Its heartbeats come, and it answers no ping.
    Unreached,
}

/// An object server, as the manager knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerStatus {
    /// Its number.
    pub server: ObjectServerId,
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub addr: SocketAddr,
    /// State.
    pub state: PeerState,
    /// Ranges that it owns.
    pub ranges: u32,
    /// Requests a second.
    pub requests: u64,
    /// Bytes of bodies a second.
    pub bytes: u64,
}

/// A range, as the manager knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeStatus {
    /// The range.
    pub range: RangeId,
    /// Its first key: it has all up to the first of the next.
    pub first: RangeBound,
    /// Its owner.
    pub server: Option<ObjectServerId>,
    /// The owner serves it.
    pub served: bool,
    /// Why not, where that is known.
    pub cause: String,
    /// Requests a second.
    pub requests: u32,
    /// Bytes of small objects in them, a second.
    pub bytes: u64,
}

/// A manager or gateway, as the manager knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    /// What it said last.
    pub peer: Peer,
    /// State.
    pub state: PeerState,
    /// It is the leading manager.
    pub leads: bool,
}

/// The object service.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServiceStatus {
    /// Object servers.
    pub servers: Vec<ServerStatus>,
    /// Ranges, in order of their keys.
    pub ranges: Vec<RangeStatus>,
    /// Ranges that are being split.
    pub splitting: u32,
    /// Managers and gateways.
    pub peers: Vec<PeerStatus>,
}

/// Some of what the object service is made of, where its ranges have no room in one message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatusPage {
    /// The term of the manager that answers.
    pub term: u64,
    /// Ranges of the whole. Each change adds some, so pages of one term and one count are of the same ranges.
    pub count: u32,
    /// The first page has all but some ranges, a later one ranges alone.
    pub status: ServiceStatus,
}

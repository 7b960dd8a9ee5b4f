//! Placement of replicas: a pure function of a view of the cluster and of random numbers.
//!
//! Replicas of a chunk never share a failure domain while others are there. Among the disks that
//! remain, two are drawn with odds by free space, and the one with less load for its space is
//! taken: close to the best choice at the cost of two draws, and new disks are not overloaded.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use base::limits::reserve_bytes;
use base::{DiskId, GIB, MIB, ServerId};
use wire::data::Purpose;

#[cfg(test)]
mod tests;

/// A disk incarnation of a server: where a replica is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReplicaLocation {
    /// The chunkserver.
    pub server: ServerId,
    /// The disk incarnation.
    pub disk: DiskId,
}

/// A chunkserver as the masters see it now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerView {
    /// The server.
    pub server: ServerId,
    /// Its address.
    pub addr: SocketAddr,
    /// Its failure domain.
    pub domain: String,
    /// True while heartbeats come.
    pub alive: bool,
    /// False when it answers no ping, though heartbeats come.
    pub reached: bool,
    /// Appends under way.
    pub load: u32,
    /// It takes rows (layout 2), or has not said yet that it does not.
    pub rows: bool,
    /// It takes and rebuilds fragments of coded chunks, or has not said yet that it does not.
    pub fragments: bool,
    /// It judges rights by the clock of their issuer, or has not said yet that it does not.
    pub by_issuer: bool,
    /// Its disks, as last reported; empty when it has sent no heartbeat since the masters' start.
    pub disks: Vec<DiskView>,
    /// An operator has it emptied: it gets no replica, and what it has is made elsewhere.
    pub draining: bool,
    /// It is under maintenance: while it is silent, what it has is not made elsewhere.
    pub maintained: bool,
}

impl ServerView {
    /// True while heartbeats come and pings are answered.
    pub fn serves(&self) -> bool {
        self.alive && self.reached
    }
}

/// A disk as its server reported it last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskView {
    /// The incarnation.
    pub disk: DiskId,
    /// Bytes it can take.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    /// True once it has failed.
    pub failed: bool,
    /// Address of calls for it, if not the server's.
    pub addr: Option<SocketAddr>,
}

impl DiskView {
    /// Bytes that new chunks may take: what is free, less 1/32 (2 MiB to 1 GiB), so that open
    /// chunks can grow by one append of the largest size, and less the reserve for metadata.
    pub fn room(&self) -> u64 {
        let growth = (self.capacity / 32).clamp(2 * MIB, GIB);
        self.reserved_room(Purpose::Data).saturating_sub(growth)
    }

    /// Bytes that may be written for `purpose`.
    fn reserved_room(&self, purpose: Purpose) -> u64 {
        let free = self.capacity.saturating_sub(self.used);
        free.saturating_sub(purpose.leaves(reserve_bytes(self.capacity)))
    }
}

/// All registered chunkservers, dead ones too, with an index of the disks that take new replicas.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    servers: Vec<ServerView>,
    candidates: Vec<Candidate>,
    domains: u32,
    servers_that_stay: u32,
    disks: u32,
    with_room: Places,
    balance_paused: bool,
    /// Servers that have been decommissioned: none of `servers`.
    left: BTreeSet<ServerId>,
}

/// Places for new replicas on servers that are reached, counted at each level.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    domains: u32,
    servers: u32,
    disks: u32,
}

#[derive(Clone, Debug)]
struct Candidate {
    place: ReplicaLocation,
    room: u64,
    /// Its server answers pings, and is not under maintenance.
    reached: bool,
    /// Appends under way per disk of the server.
    load: u64,
    /// Sum of `room` of this one and those before it.
    room_to_here: u64,
}

/// State of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlaceState {
    /// Server alive, disk there.
    Good(SocketAddr),
    /// The server is silent or not reached, or has sent no heartbeat yet.
    Silent,
    /// The server is alive and says that the disk has failed.
    Failed,
    /// The server is alive and does not have the disk: it may come with the next start, or never. Or
    /// the server has been decommissioned.
    Absent,
}

impl ClusterView {
    /// Of the servers given, in any order.
    pub fn new(mut servers: Vec<ServerView>) -> ClusterView {
        servers.sort_by_key(|server| server.server);
        ClusterView::with_room(servers, &DiskView::room)
    }

    /// The same cluster, with other candidates: by what else than room for users' bytes they have.
    fn with_room(servers: Vec<ServerView>, room: &dyn Fn(&DiskView) -> u64) -> ClusterView {
        // Those that drain leave for good, other than dead ones.
        let stay = || servers.iter().filter(|server| !server.draining);
        let names: BTreeSet<_> = stay().map(|server| server.domain.clone()).collect();
        let mut view = ClusterView {
            domains: names.len() as u32,
            servers_that_stay: stay().count() as u32,
            // A server without a heartbeat yet has one disk at least.
            disks: stay().map(|server| server.disks.len().max(1) as u32).sum(),
            ..ClusterView::default()
        };
        let (mut room_to_here, mut with_room) = (0u64, BTreeSet::new());
        for server in stay().filter(|server| server.alive) {
            let load = u64::from(server.load) / server.disks.len().max(1) as u64;
            for disk in server.disks.iter().filter(|disk| !disk.failed) {
                let room = room(disk);
                if room == 0 {
                    continue;
                }
                room_to_here = room_to_here.saturating_add(room);
                let place = ReplicaLocation { server: server.server, disk: disk.disk };
                let reached = server.reached && !server.maintained;
                view.candidates.push(Candidate { place, room, reached, load, room_to_here });
                if reached {
                    view.with_room.disks += 1;
                    with_room.insert((server.domain.as_str(), server.server));
                }
            }
        }
        view.with_room.servers = with_room.len() as u32;
        let domains: BTreeSet<_> = with_room.into_iter().map(|(domain, _)| domain).collect();
        view.with_room.domains = domains.len() as u32;
        view.servers = servers;
        view
    }

    /// A server.
    pub fn server(&self, server: ServerId) -> Option<&ServerView> {
        let at = self.servers.binary_search_by_key(&server, |server| server.server).ok()?;
        Some(&self.servers[at])
    }

    /// True when chunkservers take rows: no live one has said that it does not.
    pub fn takes_rows(&self) -> bool {
        self.servers.iter().all(|server| server.rows || !server.alive)
    }

    /// True when chunkservers take fragments: no live one has said that it does not. A new chunk, and
    /// its repair, may use any of them.
    pub fn takes_fragments(&self) -> bool {
        self.servers.iter().all(|server| server.fragments || !server.alive)
    }

    /// True when chunkservers judge rights by the clock of their issuer: no live one has said that it
    /// does not.
    pub fn judges_by_issuer(&self) -> bool {
        self.servers.iter().all(|server| server.by_issuer || !server.alive)
    }

    /// Whether a chunkserver makes fragments of coded chunks, or has not said yet that it does not. Another
    /// one would copy the fragment of its first source in place of the one that is ordered.
    pub fn makes_fragments(&self, server: ServerId) -> bool {
        self.server(server).is_none_or(|server| server.fragments)
    }

    /// Disks of chunkservers that make no fragments.
    pub fn without_fragments(&self) -> impl Iterator<Item = ReplicaLocation> + '_ {
        self.servers.iter().filter(|server| !server.fragments).flat_map(|server| {
            let place =
                |disk: &DiskView| ReplicaLocation { server: server.server, disk: disk.disk };
            server.disks.iter().map(place)
        })
    }

    /// Distance of a place on a server from others.
    fn distance(&self, server: ServerId, others: &[ReplicaLocation]) -> Spread {
        let domain = self.domain_of(server);
        if others.iter().any(|other| other.server == server) {
            Spread::Disks
        } else if others.iter().any(|other| self.domain_of(other.server) == domain) {
            Spread::Servers
        } else {
            Spread::Domains
        }
    }

    /// Whether a place on a server is as far from others as replicas of a chunk of so many are to be.
    pub fn is_apart(&self, server: ServerId, others: &[ReplicaLocation], copies: u8) -> bool {
        self.distance(server, others) >= self.spread(copies)
    }

    /// All servers, by ID.
    pub fn servers(&self) -> &[ServerView] {
        &self.servers
    }

    /// Whether a server has been decommissioned: neither it nor its disks come back.
    pub fn has_left(&self, server: ServerId) -> bool {
        self.left.contains(&server)
    }

    /// State of a place.
    pub fn state(&self, place: ReplicaLocation) -> PlaceState {
        if self.has_left(place.server) {
            return PlaceState::Absent;
        }
        let Some(server) = self.server(place.server).filter(|server| server.serves()) else {
            return PlaceState::Silent;
        };
        if server.disks.is_empty() {
            return PlaceState::Silent; // It has sent a heartbeat, but not yet its disks.
        }
        match server.disks.iter().find(|disk| disk.disk == place.disk) {
            Some(disk) if !disk.failed => PlaceState::Good(disk.addr.unwrap_or(server.addr)),
            Some(_) => PlaceState::Failed,
            None => PlaceState::Absent,
        }
    }

    /// Address of calls for a place, whether its server is alive or not.
    pub fn addr(&self, place: ReplicaLocation) -> Option<SocketAddr> {
        let server = self.server(place.server)?;
        let disk = server.disks.iter().find(|disk| disk.disk == place.disk);
        Some(disk.and_then(|disk| disk.addr).unwrap_or(server.addr))
    }

    /// The same, with what operators say of moves for balance, and the servers that have been
    /// decommissioned.
    pub fn with_orders(self, balance_paused: bool, left: BTreeSet<ServerId>) -> ClusterView {
        ClusterView { balance_paused, left, ..self }
    }

    /// An operator has chunks stay where they are.
    pub fn is_balance_paused(&self) -> bool {
        self.balance_paused
    }

    /// True for a server that is to be emptied.
    pub fn drains(&self, server: ServerId) -> bool {
        self.server(server).is_some_and(|server| server.draining)
    }

    /// Disks registered, of dead servers too, without those that drain.
    pub fn disks(&self) -> u32 {
        self.disks
    }

    /// The level at which replicas must differ: the coarsest that the whole cluster, dead servers
    /// included and draining ones not, has enough of. So a cluster of three servers with two disks each that loses one
    /// server makes two copies, and one server with three disks makes three.
    fn spread(&self, copies: u8) -> Spread {
        if self.domains >= u32::from(copies) {
            Spread::Domains
        } else if self.servers_that_stay >= u32::from(copies) {
            Spread::Servers
        } else {
            Spread::Disks
        }
    }

    /// True when a chunk of so many copies would get all of them: there are places with room, as far
    /// apart as the cluster allows.
    pub fn has_room_for(&self, copies: u8) -> bool {
        let places = match self.spread(copies) {
            Spread::Domains => self.with_room.domains,
            Spread::Servers => self.with_room.servers,
            Spread::Disks => self.with_room.disks,
        };
        places >= u32::from(copies)
    }

    /// What lacks when `leaving` drains too, for chunks of so many copies: `None` when the places that
    /// stay and are reached are as many, as far apart as they are now.
    pub fn lacks_without(&self, leaving: ServerId, copies: u8) -> Option<Lack> {
        self.lacks(leaving, copies, |server| !server.draining && server.serves())
    }

    /// The same when `leaving` is to be silent for a while, as are others under maintenance.
    pub fn lacks_without_maintained(&self, leaving: ServerId, copies: u8) -> Option<Lack> {
        self.lacks(leaving, copies, |server| !server.maintained && server.serves())
    }

    fn lacks(
        &self,
        leaving: ServerId,
        copies: u8,
        counts: impl Fn(&ServerView) -> bool,
    ) -> Option<Lack> {
        let spread = self.spread(copies);
        let others = || self.servers.iter().filter(|server| server.server != leaving);
        let serving = others().filter(|server| counts(server));
        let (there, unit) = match spread {
            Spread::Domains => {
                let domains: BTreeSet<_> = serving.map(|server| &server.domain).collect();
                (domains.len(), "failure domains")
            }
            Spread::Servers => (serving.count(), "chunkservers"),
            Spread::Disks => {
                let disks = serving.flat_map(|server| &server.disks);
                (disks.filter(|disk| !disk.failed).count(), "disks")
            }
        };
        let out = others().filter(|it| !counts(it)).map(|it| it.server).collect();
        (there < usize::from(copies)).then_some(Lack { there, unit, out })
    }

    fn domain_of(&self, server: ServerId) -> Option<&str> {
        self.server(server).map(|server| server.domain.as_str())
    }
}

/// Places that would be too few.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lack {
    /// Places that stay.
    pub there: usize,
    /// Unit of them.
    pub unit: &'static str,
    /// Other servers that do not count: they drain, are silent, or are not reached.
    pub out: Vec<ServerId>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Spread {
    Disks,
    Servers,
    Domains,
}

/// Replicas that are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Copies the chunk is to have.
    pub copies: u8,
    /// Replicas it has: the new ones are placed apart from them.
    pub have: &'a [ReplicaLocation],
    /// Places that must not be used.
    pub never: &'a [ReplicaLocation],
    /// Servers that failed a writer. Like servers that answer no ping, they are used only where the
    /// floor is not reached without them.
    pub avoid: &'a [ServerId],
    /// Fewest replicas to answer with, those in `have` included; fewer when the cluster has
    /// fewer disks.
    pub floor: u8,
    /// Bytes that a disk must have room for: those of a copy; 0 for a new chunk.
    pub need: u64,
    /// Purpose of the bytes: with all disks full for users' bytes, metadata still gets places.
    pub purpose: Purpose,
}

/// Cause when there are no places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoPlace {
    /// Fewer servers are alive than a chunk needs at least.
    TooFewAlive,
    /// The disks of those that are alive are full.
    Full,
}

/// Chooses places for `wanted.copies - wanted.have.len()` new replicas: fewer when fewer failure
/// domains are alive (degraded allocation, `protocols.md` 1.4), but never below the floor.
/// `random(bound)` draws a number below `bound`.
pub fn choose(
    view: &ClusterView,
    wanted: &Wanted<'_>,
    random: &mut dyn FnMut(u64) -> u64,
) -> Result<Vec<ReplicaLocation>, NoPlace> {
    match choose_among(view, wanted, random) {
        // Rare, so a view of its own costs little.
        Err(NoPlace::Full) if wanted.purpose != Purpose::Data => {
            let room = |disk: &DiskView| disk.reserved_room(wanted.purpose);
            let reserves = ClusterView::with_room(view.servers.clone(), &room);
            choose_among(&reserves, wanted, random)
        }
        chosen => chosen,
    }
}

fn choose_among(
    view: &ClusterView,
    wanted: &Wanted<'_>,
    random: &mut dyn FnMut(u64) -> u64,
) -> Result<Vec<ReplicaLocation>, NoPlace> {
    let mut choice = Choice::new(view, wanted);
    let copies = usize::from(wanted.copies);
    let avoid = wanted.avoid.iter().collect();
    while choice.taken.len() < copies && choice.add(Some(&avoid), random) {}
    let floor = wanted.floor.min(wanted.copies);
    // A cluster whose first disk has yet to come has no chunks without a replica either.
    let floor = usize::from(floor).min(view.disks.max(1) as usize);
    while choice.taken.len() < floor && choice.add(None, random) {}
    if choice.taken.len() < floor {
        let full = view.servers.iter().any(|server| {
            server.alive && server.disks.iter().any(|disk| !disk.failed && disk.room() == 0)
        });
        return Err(if full { NoPlace::Full } else { NoPlace::TooFewAlive });
    }
    Ok(choice.taken.split_off(wanted.have.len()))
}

/// Draws before every candidate is compared.
const DRAWS_MAX: usize = 12;

struct Choice<'a> {
    view: &'a ClusterView,
    wanted: &'a Wanted<'a>,
    spread: Spread,
    /// Replicas that are there and those chosen.
    taken: Vec<ReplicaLocation>,
}

impl<'a> Choice<'a> {
    fn new(view: &'a ClusterView, wanted: &'a Wanted<'a>) -> Choice<'a> {
        let spread = view.spread(wanted.copies);
        Choice { view, wanted, spread, taken: wanted.have.to_vec() }
    }

    /// Distance of a candidate from the replicas chosen; `None` when it is not far enough.
    fn apart(&self, candidate: &Candidate) -> Option<Spread> {
        let place = candidate.place;
        let unfit = candidate.room < self.wanted.need || self.wanted.never.contains(&place);
        if unfit || self.taken.contains(&place) {
            return None;
        }
        let spread = self.view.distance(place.server, &self.taken);
        (spread >= self.spread).then_some(spread)
    }

    /// Adds the better of two candidates, of those that are farthest apart from what is taken.
    /// Those of `avoid` and those that are not reached are none of them, unless `avoid` is `None`.
    fn add(
        &mut self,
        avoid: Option<&BTreeSet<&ServerId>>,
        random: &mut dyn FnMut(u64) -> u64,
    ) -> bool {
        let fits = |candidate: &Candidate| match avoid {
            Some(avoid) if !candidate.reached || avoid.contains(&candidate.place.server) => None,
            _ => self.apart(candidate),
        };
        let mut found: Vec<&Candidate> = Vec::with_capacity(2);
        for _ in 0..DRAWS_MAX {
            let Some(drawn) = draw(&self.view.candidates, random) else { return false };
            if fits(drawn) == Some(Spread::Domains) {
                found.push(drawn);
                if found.len() == 2 {
                    break;
                }
            }
        }
        if found.is_empty() {
            let best = self.view.candidates.iter().filter_map(fits).max();
            let rest: Vec<_> = self
                .view
                .candidates
                .iter()
                .filter(|candidate| best.is_some() && fits(candidate) == best)
                .collect();
            let total: u64 = rest.iter().fold(0, |sum, disk| disk.room.saturating_add(sum));
            let pick = |mut at: u64| {
                rest.iter().find(|disk| {
                    let here = at < disk.room;
                    at = at.saturating_sub(disk.room);
                    here
                })
            };
            found.extend([random(total), random(total)].into_iter().filter_map(pick));
        }
        let better = |a: &&Candidate, b: &&Candidate| cost(a, b).cmp(&cost(b, a));
        let Some(best) = found.into_iter().min_by(better) else { return false };
        self.taken.push(best.place);
        true
    }
}

/// The load of `a` weighed with the room of `b`: the lower side has less load for its room.
fn cost(a: &Candidate, b: &Candidate) -> u128 {
    u128::from(a.load + 1) * u128::from(b.room)
}

/// A candidate, with odds by its room.
fn draw<'a>(
    candidates: &'a [Candidate],
    random: &mut dyn FnMut(u64) -> u64,
) -> Option<&'a Candidate> {
    let at = random(candidates.last()?.room_to_here);
    candidates.get(candidates.partition_point(|candidate| candidate.room_to_here <= at))
}

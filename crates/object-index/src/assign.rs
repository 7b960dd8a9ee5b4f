//! [`Assignments`]: which object server owns which range, as the leading manager decides it
//! (`object-protocols.md` 3.1, `protocols.md` 6.5, decisions 12, 22, 25). Heartbeats, answers to pings and
//! time go in; leases, rows to be stored and servers with news come out. It does no I/O.
//!
//! An answer may be given when all rows of the time are durable.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use object_proto::{
    Error, ObjectServerId, Peer, PeerRole, PeerState, PeerStatus, RangeAt, RangeGrant, RangeId,
    RangeStatus, Seen, ServerBeat, ServerGrant, ServerStatus, ServiceStatus,
};
use runtime::{Duration, Instant};
use tenancy::fleet::{Beat, Heard, Member, Owners, Times};
use tenancy::limits::{PAUSED, RENEW};
use tenancy::{Fleet, fleet};

use crate::keys::{RANGE, SERVER, number_key};
use crate::limits::{
    BALANCE, BYTES_PER_REQUEST, CHANGES_PAGE, LEASE, PEER_DEAD, PEER_FORGOTTEN, PEERS_MAX,
    RANGE_COST, REBALANCE_COOLDOWN, SERVER_DEAD, SERVERS_MAX, TICK, UNREACHED,
};
use crate::orders::no_range;
use crate::server_row::{RangeRow, ServerRow, SplitRow};

/// What is on record of servers and ranges.
#[derive(Clone, Default, Debug)]
pub(crate) struct Record {
    pub(crate) servers: BTreeMap<ObjectServerId, ServerRow>,
    pub(crate) ranges: BTreeMap<RangeId, RangeRow>,
}

impl Owners<ObjectServerId, RangeId> for Record {
    fn owner(&self, range: RangeId) -> Option<ObjectServerId> {
        self.ranges.get(&range).and_then(|row| row.owner)
    }

    fn owned_count(&self, server: ObjectServerId) -> usize {
        self.owned(server).count()
    }
}

impl Record {
    fn owned(&self, server: ObjectServerId) -> impl Iterator<Item = RangeId> {
        let owned = self.ranges.iter().filter(move |(_, row)| row.owner == Some(server));
        owned.map(|(&range, _)| range)
    }
}

/// Key and value of a row that is to be stored; no value of one that goes.
pub(crate) type StoredRow = (Vec<u8>, Option<Vec<u8>>);

/// Owners of ranges under one manager.
#[derive(Debug)]
pub(crate) struct Assignments {
    term: u64,
    record: Record,
    fleet: Fleet<ObjectServerId, RangeId>,
    /// Managers and gateways, and when each was heard last.
    peers: BTreeMap<(PeerRole, String), (Peer, Instant)>,
    /// Ranges that were moved for balance, and when.
    moved: BTreeMap<RangeId, Instant>,
    balanced: Instant,
    tick_due: Instant,
    rows: Vec<StoredRow>,
}

/// Times of owners' leases.
const TIMES: Times = Times { lease: LEASE, dead: SERVER_DEAD, unreached: UNREACHED };

/// Loads in requests a second.
fn requests((requests, bytes): (u64, u64)) -> u64 {
    requests + bytes / BYTES_PER_REQUEST
}

fn cost_of(member: &Member<RangeId>, range: RangeId) -> u64 {
    let (of_range, bytes) = member.load_of(range);
    RANGE_COST + requests((of_range.into(), bytes))
}

impl Assignments {
    /// Of a manager whose term begins now. Leases granted before are honoured for a full term.
    pub(crate) fn new(term: u64, record: Record, now: Instant) -> Assignments {
        let servers = record.servers.keys().copied();
        let owned = record.ranges.iter().filter_map(|(&range, row)| Some((row.owner?, range)));
        Assignments {
            term,
            fleet: Fleet::new(TIMES, now, servers, owned),
            record,
            peers: BTreeMap::new(),
            moved: BTreeMap::new(),
            balanced: now,
            tick_due: now,
            rows: Vec::new(),
        }
    }

    /// The manager's term.
    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    /// Rows to be stored, in order.
    pub(crate) fn take_rows(&mut self) -> Vec<StoredRow> {
        std::mem::take(&mut self.rows)
    }

    /// Servers that should send a heartbeat now.
    pub(crate) fn take_news(&mut self) -> Vec<SocketAddr> {
        let news: BTreeSet<ObjectServerId> = self.fleet.take_news();
        news.into_iter().filter_map(|id| Some(self.record.servers.get(&id)?.addr)).collect()
    }

    /// Epoch and address of a range's owner; none while it has no owner.
    pub(crate) fn owner(&self, range: RangeId) -> Option<(u64, SocketAddr)> {
        let row = self.record.ranges.get(&range)?;
        Some((row.epoch, self.record.servers.get(&row.owner?)?.addr))
    }

    /// The epoch of a range; none when there is no such range.
    pub(crate) fn epoch(&self, range: RangeId) -> Option<u64> {
        self.record.ranges.get(&range).map(|row| row.epoch)
    }

    /// Two ranges come in the place of one, with its owner. Returns their rows, which are stored together with
    /// the end of the other.
    pub(crate) fn split(
        &mut self,
        now: Instant,
        range: RangeId,
        split: &SplitRow,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let Some(row) = self.record.ranges.remove(&range) else { return Vec::new() };
        let firsts = [(split.low, row.first), (split.high, split.at.clone())];
        let rows = firsts.into_iter().map(|(half, first)| {
            let half_row = RangeRow { first, epoch: row.epoch + 1, owner: row.owner };
            let stored = (number_key(RANGE, half.get()), half_row.encode());
            self.record.ranges.insert(half, half_row);
            stored
        });
        let rows = rows.collect();
        if let Some(owner) = row.owner {
            self.fleet.take(now, range, (owner, row.epoch));
        }
        for half in [split.low, split.high] {
            self.fleet.give(now, half, None, row.owner, &self.record);
        }
        rows
    }

    /// The owner of a range that was not split after all gets it again, under another epoch.
    pub(crate) fn give_again(&mut self, now: Instant, range: RangeId) {
        let owner = self.record.owner(range);
        self.give(now, range, owner);
    }

    /// Where ranges are served.
    pub(crate) fn places(&self) -> Vec<RangeAt> {
        let at = |&range: &RangeId| RangeAt { range, addr: self.owner(range).map(|it| it.1) };
        self.record.ranges.keys().map(at).collect()
    }

    fn put_server(&mut self, id: ObjectServerId, row: ServerRow) {
        self.rows.push((number_key(SERVER, id.get().into()), Some(row.encode())));
        self.record.servers.insert(id, row);
    }

    /// A process begins as the server of a name. Its number distinguishes it from late messages of
    /// previous processes.
    pub(crate) fn register(
        &mut self,
        now: Instant,
        name: &str,
        addr: SocketAddr,
    ) -> Result<(ObjectServerId, u64), Error> {
        let known = self.record.servers.iter().find(|(_, row)| row.name == name);
        let (id, row) = match known.map(|(&id, row)| (id, row.clone())) {
            Some((id, row)) => {
                // A name is one live process: another one elsewhere waits until that one is silent.
                let lives =
                    |member: &Member<RangeId>| member.has_heartbeat() && member.is_staying();
                if row.addr != addr && self.fleet.get(id).is_some_and(lives) {
                    return Err(Error::NameTaken);
                }
                self.fleet.note_registration(now, id);
                (id, row)
            }
            None => {
                self.make_room(now)?;
                let last = self.record.servers.keys().next_back().map_or(0, |id| id.get());
                let id = ObjectServerId::new(last + 1);
                self.fleet.add(now, id);
                (id, ServerRow { name: name.to_owned(), addr, given: 0, heard: 0 })
            }
        };
        let given = row.given.max(row.heard).max(self.before_first_boot(id)) + 1;
        self.put_server(id, ServerRow { given, ..row });
        Ok((id, given))
    }

    /// Makes room for one more server: the one that is gone for longest goes, if that was long ago.
    ///
    /// Its number is never given again, so that a process which comes back is not known, and registers.
    fn make_room(&mut self, now: Instant) -> Result<(), Error> {
        if self.record.servers.len() < SERVERS_MAX {
            return Ok(());
        }
        // The next number follows the highest one.
        let highest = self.record.servers.keys().next_back().copied();
        let gone = self.fleet.longest_gone(now, &self.record, |id| Some(id) != highest);
        let Some(server) = gone else {
            let message = format!("{SERVERS_MAX} other object servers were there within a day");
            return Err(Error::Invalid { message });
        };
        tracing::info!(%server, "an object server that was gone for long is forgotten");
        self.fleet.remove(server);
        self.record.servers.remove(&server);
        self.rows.push((number_key(SERVER, server.get().into()), None));
        Ok(())
    }

    fn before_first_boot(&self, id: ObjectServerId) -> u64 {
        let others = self.record.servers.keys().filter(|&&other| other != id).count();
        tenancy::before_first_boot(id.get(), others + 1)
    }

    /// On the first heartbeat of a process it gets what its server owns; processes before it own nothing
    /// any more.
    fn begin_boot(&mut self, now: Instant, id: ObjectServerId, boot: u64) {
        // It knows nothing of what it owns. The one before it may still run, so that ranges given again
        // wait for that one's lease.
        let owned: Vec<RangeId> = self.record.owned(id).collect();
        owned.into_iter().for_each(|range| self.give(now, range, Some(id)));
        let row = self.record.servers[&id].clone();
        self.put_server(id, ServerRow { heard: boot, ..row });
    }

    /// Gives a range to a server, or to none.
    fn give(&mut self, now: Instant, range: RangeId, to: Option<ObjectServerId>) {
        let Some(row) = self.record.ranges.get(&range).cloned() else { return };
        // The first epoch is above the numbers of all that owned the range when one process owned all.
        let epoch = if row.epoch == 0 { self.term } else { row.epoch + 1 };
        let from = row.owner.map(|from| (from, row.epoch));
        let given = RangeRow { epoch, owner: to, ..row };
        self.rows.push((number_key(RANGE, range.get()), Some(given.encode())));
        self.record.ranges.insert(range, given);
        self.fleet.give(now, range, from, to, &self.record);
    }

    /// Answers a heartbeat: what the server owns, and its lease if this manager `leads` for certain.
    pub(crate) fn beat(
        &mut self,
        now: Instant,
        beat: ServerBeat,
        leads: bool,
    ) -> Result<ServerGrant, Error> {
        let mut grant = ServerGrant {
            known: true,
            lease_ms: 0,
            reset: false,
            changes: Vec::new(),
            seen: beat.seen,
            more: false,
            now_us: 0,
        };
        let id = beat.server;
        let heard = self.fleet.hear(now, id, (beat.boot, beat.seq));
        match heard {
            Heard::Unknown => return Ok(ServerGrant { known: false, ..grant }),
            Heard::Late => return Ok(grant),
            Heard::Begins | Heard::GoesOn => {}
        }
        let latest = self.record.servers[&id].heard;
        if beat.boot < latest {
            return Err(Error::Replaced);
        }
        if heard == Heard::Begins {
            if beat.boot > latest {
                self.begin_boot(now, id, beat.boot);
            }
            self.fleet.begin(now, id, beat.boot);
        }
        // One that was forgotten, and is another server now, owns nothing of what it has.
        let has_seen_none = self.fleet.has_seen_none(id, beat.seen.change);
        grant.reset = beat.seen.term != self.term || has_seen_none;
        let seen = if grant.reset { 0 } else { beat.seen.change };
        let unopened = beat.unserved.iter().map(|it| (it.range, it.cause.clone())).collect();
        let loads = beat.loads.iter().map(|load| (load.range, (load.requests, load.bytes)));
        let taken = Beat {
            leaving: beat.leaving,
            asks_admission: false,
            seen,
            unopened,
            unopened_count: beat.unserved.len() as u32,
            loads: loads.collect(),
        };
        let woke = self.fleet.beat(now, id, beat.seq, taken, &self.record);
        if self.record.servers[&id].addr != beat.addr {
            let row = self.record.servers[&id].clone();
            self.put_server(id, ServerRow { addr: beat.addr, ..row });
        }
        for ended in beat.unserved.iter().filter(|it| it.ended) {
            let is_its = |row: &RangeRow| row.owner == Some(id) && row.epoch == ended.epoch;
            if self.record.ranges.get(&ended.range).is_some_and(is_its) {
                self.give(now, ended.range, Some(id));
            }
        }
        if beat.leaving {
            self.evacuate(now, id);
        }
        if woke {
            self.adopt(now);
        }
        let changes = self.fleet.changes(id, seen, CHANGES_PAGE);
        grant.seen = Seen { term: self.term, change: changes.upto };
        grant.more = changes.more;
        for range in changes.units {
            let row = self.record.ranges.get(&range).filter(|row| row.owner == Some(id));
            let epoch = row.map(|row| (row.epoch, self.fleet.hold_ms(now, range, row.epoch).0));
            grant.changes.push(RangeGrant { range, epoch });
        }
        if !grant.more && leads && self.fleet.grant(now, id) {
            grant.lease_ms = LEASE.as_millis() as u32;
        }
        Ok(grant)
    }

    /// Time has passed. Returns when to call it again.
    pub(crate) fn tick(&mut self, now: Instant) -> Instant {
        if now - self.tick_due > PAUSED {
            // This manager stood still: heartbeats may wait to be read.
            self.fleet.excuse_silence(now);
        }
        for server in self.fleet.condemn(now, &self.record) {
            tracing::warn!(%server, "object server is silent: others take its ranges");
        }
        self.adopt(now);
        self.fleet.end_holds(now);
        self.balance(now);
        let next = self.fleet.next_death(&self.record);
        let latest = now + if self.fleet.has_heard() { SERVER_DEAD } else { RENEW };
        let judged = self.fleet.judges_at().filter(|&at| at > now);
        let next = next.into_iter().chain(judged).min().unwrap_or(latest);
        self.tick_due = next.clamp(now + TICK, latest.max(now + TICK));
        self.tick_due
    }

    /// Judges the answers to the pings so far, and returns the servers that are to be pinged now.
    pub(crate) fn ping_round(&mut self, now: Instant) -> Vec<(ObjectServerId, SocketAddr)> {
        let fleet::Judged { lost, back } = self.fleet.begin_round(now, &self.record);
        for server in &back {
            tracing::info!(%server, "object server answers pings again");
        }
        for server in &lost {
            tracing::warn!(
                %server,
                "object server answers no ping, though its heartbeats come: others take its ranges"
            );
        }
        if !lost.is_empty() {
            self.adopt(now);
        }
        let due = self.fleet.due_pings(&self.record);
        due.into_iter().filter_map(|id| Some((id, self.record.servers.get(&id)?.addr))).collect()
    }

    /// What is sent to this manager is lost: another one is to lead.
    pub(crate) fn is_cut_off(&self, now: Instant) -> bool {
        self.fleet.is_cut_off(now, &self.record)
    }

    /// Time from the latest round of pings to the next.
    pub(crate) fn ping_pause(&self) -> Duration {
        self.fleet.ping_pause()
    }

    /// True once after a server has got its first range: a round of pings is due now.
    pub(crate) fn take_ping_soon(&mut self) -> bool {
        self.fleet.take_ping_soon()
    }

    /// A server has answered the ping that was sent at `sent`.
    pub(crate) fn answered(&mut self, server: ObjectServerId, sent: Instant) {
        self.fleet.answered(server, sent);
    }

    /// Costs of the servers that this manager has heard of and that stay; when there are none, of all that
    /// may live.
    fn costs(&self) -> BTreeMap<ObjectServerId, u64> {
        let staying = || self.fleet.iter().filter(|(_, member)| member.is_staying());
        let heard = staying().any(|(_, member)| member.has_heartbeat());
        let alive = staying().filter(|(_, member)| member.has_heartbeat() || !heard);
        let cost = |(id, member): (ObjectServerId, &Member<RangeId>)| {
            let ranges = self.record.owned_count(id) as u64;
            (id, requests(member.load()) + ranges * RANGE_COST)
        };
        alive.map(cost).collect()
    }

    fn give_to_cheapest(
        &mut self,
        now: Instant,
        range: RangeId,
        costs: &mut BTreeMap<ObjectServerId, u64>,
    ) {
        let cheapest = costs.iter().min_by_key(|&(&id, &cost)| (cost, id)).map(|(&id, _)| id);
        if let Some(id) = cheapest {
            *costs.entry(id).or_default() += RANGE_COST;
        }
        self.give(now, range, cheapest);
    }

    /// Gives ranges without a living owner to those that live.
    fn adopt(&mut self, now: Instant) {
        let mut costs = self.costs();
        if costs.is_empty() {
            return;
        }
        let judges = self.fleet.judges_at().is_some_and(|at| now >= at);
        let is_orphan = |owner: Option<ObjectServerId>| match owner {
            None => true,
            Some(id) => judges && !self.fleet.get(id).is_some_and(Member::is_staying),
        };
        let orphans = self.record.ranges.iter().filter(|(_, row)| is_orphan(row.owner));
        let orphans: Vec<RangeId> = orphans.map(|(&range, _)| range).collect();
        orphans.into_iter().for_each(|range| self.give_to_cheapest(now, range, &mut costs));
    }

    /// Takes all ranges from a server that is about to end: others open them at once.
    fn evacuate(&mut self, now: Instant, server: ObjectServerId) {
        let (owned, mut costs) = (self.record.owned(server).collect::<Vec<_>>(), self.costs());
        owned.into_iter().for_each(|range| self.give_to_cheapest(now, range, &mut costs));
    }

    /// Moves one range from the busiest server to the idlest, when that is worth it.
    fn balance(&mut self, now: Instant) {
        if now - self.balanced < BALANCE {
            return;
        }
        self.balanced = now;
        self.moved.retain(|_, at| now - *at < REBALANCE_COOLDOWN);
        let costs = self.costs();
        let busiest = costs.iter().max_by_key(|&(&id, &cost)| (cost, id));
        let idlest = costs.iter().min_by_key(|&(&id, &cost)| (cost, id));
        let (Some((&from, &most)), Some((&to, &least))) = (busiest, idlest) else { return };
        let mean = costs.values().sum::<u64>() / costs.len() as u64;
        let gap = most - least;
        let Some(member) = self.fleet.get(from).filter(|_| gap > mean / 4) else { return };
        // The move leaves both nearer to each other: the costliest range within the gap.
        let fits = |range: &RangeId| {
            let is_calm = self.fleet.serves(*range, Some(from)) && !self.fleet.is_held(*range);
            is_calm && cost_of(member, *range) < gap * 3 / 4 && !self.moved.contains_key(range)
        };
        let owned = self.record.owned(from).filter(fits);
        let Some(range) = owned.max_by_key(|&range| (cost_of(member, range), range)) else {
            return;
        };
        tracing::info!(%range, %from, %to, gap, "moves for balance");
        self.moved.insert(range, now);
        self.give(now, range, Some(to));
    }

    /// Gives a range to the server that an operator names. It stays there for a while: balance does not take
    /// it back at once. Again, it changes nothing.
    pub(crate) fn move_range(
        &mut self,
        now: Instant,
        range: RangeId,
        to: ObjectServerId,
    ) -> Result<(), Error> {
        let invalid = |message: String| Err(Error::Invalid { message });
        let Some(row) = self.record.ranges.get(&range) else {
            return Err(no_range(range));
        };
        let owner = row.owner;
        let Some(name) = self.record.servers.get(&to).map(|row| &row.name) else {
            return invalid(format!("there is no object server {to}"));
        };
        let stays = |member: &Member<RangeId>| member.has_heartbeat() && member.is_staying();
        if !self.fleet.get(to).is_some_and(stays) {
            return invalid(format!(
                "object server {name} is silent, or about to end: name one that is up"
            ));
        }
        self.moved.insert(range, now);
        if owner != Some(to) {
            tracing::info!(%range, %to, "moves, as an operator asked");
            self.give(now, range, Some(to));
        }
        Ok(())
    }

    /// A manager or gateway is there.
    pub(crate) fn here(&mut self, now: Instant, peer: Peer) {
        let key = (peer.role, peer.name.clone());
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&key) {
            self.peers.retain(|_, (_, heard)| now - *heard < PEER_DEAD);
            if self.peers.len() >= PEERS_MAX {
                return; // There is room for those that live; one more than that is not shown.
            }
        }
        self.peers.insert(key, (peer, now));
    }

    /// What the service is made of; `leader` is this manager's address.
    pub(crate) fn status(&mut self, now: Instant, leader: SocketAddr) -> ServiceStatus {
        self.peers.retain(|_, (_, heard)| now - *heard < PEER_FORGOTTEN);
        let state = |member: &Member<RangeId>| match () {
            () if !member.is_alive() || !member.has_heartbeat() => PeerState::Down,
            () if member.is_unreached() => PeerState::Unreached,
            () => PeerState::Up,
        };
        let servers = self.fleet.iter().filter_map(|(id, member)| {
            let row = self.record.servers.get(&id)?;
            let (requests, bytes) = member.load();
            let ranges = self.record.owned_count(id) as u32;
            let (name, addr, state) = (row.name.clone(), row.addr, state(member));
            Some(ServerStatus { server: id, name, addr, state, ranges, requests, bytes })
        });
        let of_range = |(&range, row): (&RangeId, &RangeRow)| {
            let (first, server) = (row.first.clone(), row.owner);
            let served = self.fleet.serves(range, server);
            let cause = if served { String::new() } else { self.cause(range, server) };
            let owner = server.and_then(|server| self.fleet.get(server));
            let (requests, bytes) = owner.map_or((0, 0), |owner| owner.load_of(range));
            RangeStatus { range, first, server, served, cause, requests, bytes }
        };
        let mut ranges: Vec<RangeStatus> = self.record.ranges.iter().map(of_range).collect();
        ranges.sort_by(|one, other| one.first.cmp(&other.first));
        let peer = |(peer, heard): &(Peer, Instant)| {
            let state = if now - *heard < PEER_DEAD { PeerState::Up } else { PeerState::Down };
            let leads = peer.role == PeerRole::Manager && peer.addr == leader;
            PeerStatus { peer: peer.clone(), state, leads }
        };
        ServiceStatus {
            servers: servers.collect(),
            ranges,
            splitting: 0,
            peers: self.peers.values().map(peer).collect(),
        }
    }

    /// The reason why a range's owner does not serve it yet, as far as it has reported one.
    fn cause(&self, range: RangeId, owner: Option<ObjectServerId>) -> String {
        let Some(owner) = owner else {
            return "no object server is there for it: start one".to_owned();
        };
        match self.fleet.get(owner) {
            Some(member) if member.is_alive() => {
                member.cause(range).unwrap_or("its object server has not opened it yet").to_owned()
            }
            _ => "its object server is silent".to_owned(),
        }
    }
}

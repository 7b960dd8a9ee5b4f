//! [`Fleet`]: the servers of a service as its leading manager knows them: which live, which are reached,
//! what each has to hear of its units, and until when the leases of previous owners last (`protocols.md` 6.5,
//! `protocols-tail.md` 10.7; decisions 12, 14, 22, 25).
//!
//! A *unit* is what has one owner at a time: a segment of a volume, a range of an index. Who owns it
//! under which epoch is in rows of the service, which asks here nothing that must be durable: a leader
//! that takes over begins with [`Fleet::new`], and honours leases granted before for a full term.
//!
//! Heartbeats, answers to pings and time go in; who is lost, and who should be asked for a heartbeat, come out. It does
//! no I/O.

mod hold;
mod member;
mod pings;
mod reach;

use std::collections::{BTreeMap, BTreeSet};

use runtime::{Duration, Instant};

use crate::limits::{IDLE, PING, RENEW, SERVER_GONE, drifted};
use hold::{Hold, Wait};
pub use member::Member;
pub use pings::Judged;
use reach::Reach;

/// Who owns what, as the service has it stored.
pub trait Owners<S, U> {
    /// The owner of a unit.
    fn owner(&self, unit: U) -> Option<S>;

    /// Number of units that a server owns.
    fn owned_count(&self, server: S) -> usize;
}

/// Times of a service's leases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// A lease, from the sending of the renewal on.
    pub lease: Duration,
    /// A server without a heartbeat for this long is dead.
    pub dead: Duration,
    /// A server whose heartbeats come, and that answers no ping for this long, is not reached.
    pub unreached: Duration,
}

/// What a heartbeat says, beside whose it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beat<U> {
    /// The server is about to end.
    pub leaving: bool,
    /// It asks about each client that it admits to a unit.
    pub asks_admission: bool,
    /// The last change that its process has made.
    pub seen: u64,
    /// Units that it does not serve yet: the first of them, with causes.
    pub unopened: BTreeMap<U, String>,
    /// Number of all that it does not serve yet.
    pub unopened_count: u32,
    /// Requests and bytes a second of units whose load has changed.
    pub loads: Vec<(U, (u32, u64))>,
}

/// How a heartbeat is to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// No server has this number.
    Unknown,
    /// It was overtaken by a later one, or has come twice.
    Late,
    /// The first one of a process that this leader hears of.
    Begins,
    /// A further one.
    GoesOn,
}

/// A page of changes for a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changes<U> {
    /// Units whose ownership has changed, in order.
    pub units: Vec<U>,
    /// The last change that is in the page or before.
    pub upto: u64,
    /// Others follow.
    pub more: bool,
}

/// Servers and the leases they have.
#[derive(Debug)]
pub struct Fleet<S, U> {
    times: Times,
    servers: BTreeMap<S, Member<U>>,
    /// Time of the first heartbeat that this leader has received.
    first_heard: Option<Instant>,
    /// Units whose owners must not acknowledge changes yet.
    holds: BTreeMap<U, Hold<S>>,
    /// Leases that a previous leader granted are over by then.
    former_leases_end: Instant,
    /// This manager has not stood still since then.
    awake_since: Instant,
    /// Until then it doubts itself rather than servers.
    condemns_at: Option<Instant>,
    /// Time of the latest round of pings, number of rounds, and time to the next round.
    pinged: Instant,
    pings: u64,
    ping_pause: Duration,
    /// The next round is due at once.
    ping_soon: bool,
    /// Servers that should send a heartbeat now.
    news: BTreeSet<S>,
    /// Above all numbers of changes of servers that were removed.
    removed_changes: u64,
}

impl<S: Copy + Ord, U: Copy + Ord> Fleet<S, U> {
    /// Of a leader that begins now. `owned` are the units with their owners.
    pub fn new(
        times: Times,
        now: Instant,
        servers: impl Iterator<Item = S>,
        owned: impl Iterator<Item = (S, U)>,
    ) -> Fleet<S, U> {
        let former_leases_end = now + drifted(times.lease);
        let mut fleet = Fleet {
            times,
            servers: servers.map(|id| (id, Member::silent(now, former_leases_end))).collect(),
            first_heard: None,
            holds: BTreeMap::new(),
            former_leases_end,
            condemns_at: None,
            awake_since: now,
            pinged: now,
            pings: 0,
            ping_pause: PING,
            ping_soon: false,
            news: BTreeSet::new(),
            removed_changes: 0,
        };
        for (server, unit) in owned {
            fleet.note(server, unit);
        }
        fleet
    }

    /// A server that has had no lease yet.
    pub fn add(&mut self, now: Instant, server: S) {
        let before_changes = self.removed_changes;
        let member = Member {
            alive: false,
            before_changes,
            next_change: before_changes + 1,
            ..Member::silent(now, now)
        };
        self.servers.insert(server, member);
    }

    /// A process registers as a server that is known: its first heartbeat is about to come.
    pub fn note_registration(&mut self, now: Instant, server: S) {
        if let Some(member) = self.servers.get_mut(&server) {
            member.heard = now;
        }
    }

    /// The server that was not heard of for longest, if that is [`SERVER_GONE`] and it owns no unit: where there
    /// is no room for another one, it makes room. Only those that `may_go` are considered.
    pub fn longest_gone(
        &self,
        now: Instant,
        owners: &impl Owners<S, U>,
        may_go: impl Fn(S) -> bool,
    ) -> Option<S> {
        let dead = self.servers.iter().filter(|(_, member)| !member.alive);
        let gone = dead.filter(|(_, member)| now - member.heard >= SERVER_GONE);
        let gone = gone.filter(|&(&id, _)| may_go(id) && owners.owned_count(id) == 0);
        gone.map(|(&id, member)| (member.heard, id)).min().map(|(_, id)| id)
    }

    /// Forgets a server that owns no unit, and whose leases are over. A process of it may come back under this
    /// leader, as another server, with all that it had seen: [`Fleet::has_seen_none`].
    pub fn remove(&mut self, server: S) {
        if let Some(member) = self.servers.remove(&server) {
            self.removed_changes = self.removed_changes.max(member.next_change);
        }
        self.news.remove(&server);
    }

    /// True when a process of a server has seen none of its changes, though it has seen some under this leader,
    /// up to number `seen`: it was another server then, which was removed. It is to forget all that it has.
    pub fn has_seen_none(&self, server: S, seen: u64) -> bool {
        self.servers.get(&server).is_some_and(|member| seen < member.before_changes)
    }

    /// A server.
    pub fn get(&self, server: S) -> Option<&Member<U>> {
        self.servers.get(&server)
    }

    /// All servers.
    pub fn iter(&self) -> impl Iterator<Item = (S, &Member<U>)> {
        self.servers.iter().map(|(&id, member)| (id, member))
    }

    /// A heartbeat has come, number `seq` of a process. A process with a smaller number than another one
    /// that the service has on record is refused by the service; one that [`Heard::Begins`] is named with
    /// [`Fleet::begin`] before its [`Fleet::beat`].
    pub fn hear(&mut self, now: Instant, server: S, (boot, seq): (u64, u64)) -> Heard {
        let Some(member) = self.servers.get(&server) else { return Heard::Unknown };
        let goes_on = member.boot == Some(boot);
        if goes_on && seq <= member.seq {
            return Heard::Late;
        }
        self.first_heard.get_or_insert(now);
        if goes_on { Heard::GoesOn } else { Heard::Begins }
    }

    /// A process begins as a server. It has made no change yet.
    pub fn begin(&mut self, now: Instant, server: S, boot: u64) {
        if let Some(member) = self.servers.get_mut(&server) {
            member.boot = Some(boot);
            member.reach = Reach::new(now);
            (member.seen, member.seq) = (0, 0);
            member.loads.clear();
        }
    }

    /// Takes a heartbeat. True when the server can be given units from now on, and could not before.
    pub fn beat(
        &mut self,
        now: Instant,
        server: S,
        seq: u64,
        beat: Beat<U>,
        owners: &impl Owners<S, U>,
    ) -> bool {
        let slower = slower(owners, server);
        let Some(member) = self.servers.get_mut(&server) else { return false };
        let stayed = member.is_staying();
        if !std::mem::replace(&mut member.alive, true) {
            member.reach.excuse(now); // It was not pinged.
        }
        (member.last_heartbeat, member.seq, member.seen) = (now, seq, beat.seen);
        member.heard = now;
        member.leaving = beat.leaving;
        member.asks_admission = beat.asks_admission;
        member.reach.note_heartbeat(now, slower);
        let woke = !stayed && member.is_staying();
        member.unopened = beat.unopened;
        member.unopened_count = beat.unopened_count;
        for (unit, load) in beat.loads {
            match load {
                (0, 0) => member.loads.remove(&unit),
                load => member.loads.insert(unit, load),
            };
        }
        let boot = member.boot;
        self.settle_holds((server, boot), beat.seen, owners);
        self.forget_changes(server, beat.seen, owners);
        woke
    }

    /// A server's changes after `seen`, `page` at most.
    pub fn changes(&self, server: S, seen: u64, page: usize) -> Changes<U> {
        let Some(member) = self.servers.get(&server) else {
            return Changes { units: Vec::new(), upto: seen, more: false };
        };
        let mut after = member.changes.range(seen + 1..);
        let units = after.by_ref().take(page).map(|(_, &unit)| unit).collect();
        match after.next() {
            Some((&next, _)) => Changes { units, upto: next - 1, more: true },
            None => Changes { units, upto: member.next_change - 1, more: false },
        }
    }

    /// Grants a lease from `now` on; false when the server is not reached, and gets none.
    pub fn grant(&mut self, now: Instant, server: S) -> bool {
        let until = now + drifted(self.times.lease);
        match self.servers.get_mut(&server) {
            Some(member) if !member.reach.is_lost() => {
                member.lease_end = member.lease_end.max(until);
                true
            }
            _ => false,
        }
    }

    /// The ownership of a unit has changed for a server: the answer to its next heartbeat says so.
    /// Returns the number of the change; 0 for a server that is not known.
    pub fn note(&mut self, server: S, unit: U) -> u64 {
        let Some(member) = self.servers.get_mut(&server) else { return 0 };
        let number = member.next_change;
        member.next_change += 1;
        if let Some(before) = member.numbers.insert(unit, number) {
            member.changes.remove(&before);
            member.taken.remove(&before);
        }
        member.changes.insert(number, unit);
        number
    }

    /// A server should send a heartbeat now, unless it is dead.
    pub fn tell(&mut self, server: S) {
        if self.servers.get(&server).is_some_and(|member| member.alive) {
            self.news.insert(server);
        }
    }

    /// Servers that should send a heartbeat now.
    pub fn take_news(&mut self) -> BTreeSet<S> {
        std::mem::take(&mut self.news)
    }

    /// The rows have a new owner for a unit: `to`, or none. `from` had it, under its epoch.
    pub fn give(
        &mut self,
        now: Instant,
        unit: U,
        from: Option<(S, u64)>,
        to: Option<S>,
        owners: &impl Owners<S, U>,
    ) {
        if let Some((server, epoch)) = from {
            self.take(now, unit, (server, epoch));
        }
        let Some(to) = to else { return };
        if owners.owned_count(to) == 1
            && let Some(member) = self.servers.get_mut(&to)
        {
            // It sent heartbeats rarely so far, and is asked for one now; pings likewise.
            member.last_heartbeat = member.last_heartbeat.max(now);
            member.reach.excuse(now);
            self.ping_soon = true;
        }
        if from.is_none_or(|(server, _)| server != to) {
            self.note(to, unit);
        }
        self.tell(to);
    }

    /// A unit is not a server's any more, which had it under an epoch. Its next owner waits until the
    /// server has made the change, or its lease is over.
    pub fn take(&mut self, now: Instant, unit: U, (server, epoch): (S, u64)) {
        let change = self.note(server, unit);
        let mut hold = self.holds.remove(&unit).unwrap_or_default();
        if let Some(member) = self.servers.get_mut(&server) {
            member.taken.insert(change);
            let (boot, until) = (member.boot, member.lease_end);
            let asks_admission = member.asks_admission;
            hold.0.push(Wait { server, boot, epoch, asks_admission, change, until });
        }
        hold.0.retain(|wait| wait.until > now);
        if !hold.0.is_empty() {
            self.holds.insert(unit, hold);
        }
        self.tell(server);
    }

    /// Time for which a unit's owner of `epoch` must hold back acknowledgements of changes, ms, and what
    /// of that is for its predecessor only.
    pub fn hold_ms(&self, now: Instant, unit: U, epoch: u64) -> (u32, u32) {
        let hold = self.holds.get(&unit);
        let (all, alone) =
            hold.map_or_else(Default::default, |hold| (hold.until(), hold.until_alone(epoch)));
        // Owners under a previous leader are not known here.
        let millis = |until: Instant| {
            let left = drifted(until.max(self.former_leases_end) - now);
            left.as_micros().div_ceil(1000) as u32
        };
        (millis(all), millis(all) - millis(alone))
    }

    /// True when a unit's owner waits for a previous owner's lease.
    pub fn is_held(&self, unit: U) -> bool {
        self.holds.contains_key(&unit)
    }

    /// A previous owner has released its units.
    fn settle_holds(
        &mut self,
        (server, boot): (S, Option<u64>),
        seen: u64,
        owners: &impl Owners<S, U>,
    ) {
        let mut free = Vec::new();
        for (&unit, hold) in &mut self.holds {
            let over =
                |wait: &Wait<S>| (wait.server, wait.boot) == (server, boot) && wait.change <= seen;
            let before = hold.0.len();
            hold.0.retain(|wait| !over(wait));
            if hold.0.is_empty() && before > 0 {
                free.push(unit);
            }
        }
        for unit in free {
            self.holds.remove(&unit);
            if let Some(owner) = owners.owner(unit) {
                self.note(owner, unit);
                self.tell(owner);
            }
        }
    }

    /// Drops changes that a server has confirmed: units that it lost and knows to have lost. Those of units
    /// that it has stay, and are not visited: there is one for each, and each heartbeat comes here.
    fn forget_changes(&mut self, server: S, seen: u64, owners: &impl Owners<S, U>) {
        let Some(member) = self.servers.get_mut(&server) else { return };
        while let Some(number) = member.taken.first().copied().filter(|&number| number <= seen) {
            member.taken.remove(&number);
            let Some(&unit) = member.changes.get(&number) else { continue };
            // It may have been given to the same server again.
            if owners.owner(unit) != Some(server) {
                member.changes.remove(&number);
                member.numbers.remove(&unit);
                member.loads.remove(&unit);
            }
        }
    }

    /// True when a unit's owner has reported that it serves it.
    pub fn serves(&self, unit: U, owner: Option<S>) -> bool {
        owner.and_then(|owner| self.servers.get(&owner)).is_some_and(|member| member.serves(unit))
    }

    /// This manager stood still: heartbeats may wait to be read.
    pub fn excuse_silence(&mut self, now: Instant) {
        self.servers.values_mut().for_each(|member| member.last_heartbeat = now);
    }

    /// Marks silent servers as dead, and names them. None while all are silent and some answer pings: it
    /// may be this manager that hears nothing, and then it is to yield, and not to move a unit.
    pub fn condemn(&mut self, now: Instant, owners: &impl Owners<S, U>) -> Vec<S> {
        self.condemns_at = self.doubts_itself_until(now, owners);
        if self.condemns_at.is_some() {
            return Vec::new();
        }
        let dead = self.times.dead;
        let silent = self.servers.iter_mut().filter(|(id, member)| {
            member.alive && now - member.last_heartbeat >= dead * slower(owners, **id)
        });
        let condemn = |(&id, member): (&S, &mut Member<U>)| {
            member.alive = false;
            member.loads.clear();
            id
        };
        silent.map(condemn).collect()
    }

    /// When the next server is dead, unless a heartbeat comes.
    pub fn next_death(&self, owners: &impl Owners<S, U>) -> Option<Instant> {
        let alive = self.servers.iter().filter(|(_, member)| member.alive);
        let dead = |(&id, member): (&S, &Member<U>)| {
            member.last_heartbeat + self.times.dead * slower(owners, id)
        };
        let death = alive.map(dead).min()?;
        Some(self.condemns_at.map_or(death, |at| death.max(at)))
    }

    /// Forgets leases of previous owners that are over.
    pub fn end_holds(&mut self, now: Instant) {
        self.holds.retain(|_, hold| hold.until() > now);
    }

    /// True once this leader has received a heartbeat.
    pub fn has_heard(&self) -> bool {
        self.first_heard.is_some()
    }

    /// From when on the silence of a server says something about that server: one renewal after the
    /// first heartbeat since the takeover. Until then it may be this leader that is out of reach: one
    /// fault leaves all links to it dead, until the transport of each server gives its own up. Nothing is
    /// lost by the wait, as no server is known to live that could serve the units.
    pub fn judges_at(&self) -> Option<Instant> {
        self.first_heard.map(|first| first + RENEW)
    }
}

/// A server without units sends heartbeats less often by this factor, and is pinged less often.
fn slower<S, U>(owners: &impl Owners<S, U>, server: S) -> u32 {
    if owners.owned_count(server) == 0 { IDLE } else { 1 }
}

/// The number above which a server's processes are numbered, of a server with a number among so many. Once a server
/// was forgotten, a name may have had another number before, and a process of then keeps its own. It must come
/// before all processes of the name's present number, which have the server's number in their upper half.
pub fn before_first_boot(server: u32, servers: usize) -> u64 {
    // Servers are numbered from 1, without gaps until one is forgotten.
    if server as usize > servers { u64::from(server) << 32 } else { 0 }
}

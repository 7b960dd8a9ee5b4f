//! Block servers: which are alive, what each owns, and the ends of leases (`protocols.md` 6.5).

use std::net::SocketAddr;

use block_proto::lease::drifted;
use block_proto::limits::{BLOCK_SERVERS_MAX, SEGMENTS_PAGE};
use block_proto::{
    Assignment, BlockGrant, BlockHeartbeat, BlockReply, BlockServerId, OwnershipGrant,
};
use block_volume::ids::SegmentId;
use runtime::Instant;

use super::entity::{Boots, Segment, Server};
use super::error::Refusal;
use super::machine::Machine;
use super::owners::{Hold, ServerEntry, Wait};
use super::reach::Reach;
use super::rows::{Key, Value};

impl Machine {
    /// A process begins as the server of a name. Its number distinguishes it from late messages of
    /// previous processes.
    pub(super) fn register(
        &mut self,
        now: Instant,
        name: &str,
        addr: SocketAddr,
    ) -> Result<BlockReply, Refusal> {
        let server = match self.state.server_of(name) {
            Some(server) => {
                self.refuse_second(server, name, addr)?;
                server
            }
            None => {
                if self.state.servers().count() >= BLOCK_SERVERS_MAX {
                    return Err(Refusal::Full { what: "block servers", max: BLOCK_SERVERS_MAX });
                }
                let server = BlockServerId::new(self.state.counters().server);
                self.count(|counters| counters.server += 1);
                let value = Value::Server(Server { name: name.to_owned(), addr });
                self.put(Key::Server(server), value);
                // It has had no lease.
                let fresh = ServerEntry { alive: false, ..ServerEntry::silent(now, now) };
                self.servers.insert(server, fresh);
                server
            }
        };
        let Boots { given, heard } = self.state.boots(server);
        let boot = given.max(heard) + 1;
        self.put(Key::Boots(server), Value::Boots(Boots { given: boot, heard }));
        Ok(BlockReply::Registered { server, boot })
    }

    /// A name is one live process: another one elsewhere waits until that one is silent.
    fn refuse_second(
        &self,
        server: BlockServerId,
        name: &str,
        addr: SocketAddr,
    ) -> Result<(), Refusal> {
        let lives = self
            .servers
            .get(&server)
            .is_some_and(|entry| entry.has_heartbeat() && entry.is_staying());
        match self.state.server(server).filter(|known| lives && known.addr != addr) {
            Some(known) => Err(Refusal::Second { name: name.to_owned(), first: known.addr, addr }),
            None => Ok(()),
        }
    }

    /// On the first heartbeat of a process it gets what its server owns; processes before it own
    /// nothing any more.
    fn begin_boot(&mut self, now: Instant, server: BlockServerId, boot: u64) {
        // It knows nothing of what it owns. The one before it may still run, so that segments given
        // again wait for that one's lease.
        let owned: Vec<SegmentId> = self.state.owned(server).collect();
        owned.into_iter().for_each(|id| self.give(now, id, Some(server)));
        // Stored after the grants: a leader that does not find all of them gives them again.
        let boots = self.state.boots(server);
        self.next_change();
        self.put(Key::Boots(server), Value::Boots(Boots { heard: boot, ..boots }));
    }

    /// Notes that a segment's ownership changed for a server: it will be notified.
    pub(super) fn note(&mut self, server: BlockServerId, id: SegmentId) -> u64 {
        let Some(entry) = self.servers.get_mut(&server) else { return 0 };
        let number = entry.next_change;
        entry.next_change += 1;
        if let Some(before) = entry.numbers.insert(id, number) {
            entry.changes.remove(&before);
        }
        entry.changes.insert(number, id);
        number
    }

    /// Gives a segment to a server, or to none. To none when its epochs are used up: the next owner
    /// could not be distinguished from the one before.
    pub(super) fn give(&mut self, now: Instant, id: SegmentId, to: Option<BlockServerId>) {
        let Some(segment) = self.state.segment(id) else { return };
        let (to, epoch) = match segment.epoch.checked_add(1) {
            Some(epoch) => (to, epoch),
            None if segment.owner.is_none() => return,
            None => {
                tracing::error!(segment = %id, "its epochs are used up, no server can have it: copy the volume");
                (None, segment.epoch)
            }
        };
        self.next_change();
        self.put(Key::Segment(id), Value::Segment(Segment { epoch, owner: to }));
        if let Some(from) = segment.owner {
            self.take_from(now, (id, segment.epoch), from);
        }
        if let Some(to) = to {
            if self.state.owned_count(to) == 1
                && let Some(entry) = self.servers.get_mut(&to)
            {
                // It sent heartbeats rarely so far, and is asked for one now; pings likewise.
                entry.last_heartbeat = entry.last_heartbeat.max(now);
                entry.reach.excuse(now);
                self.ping_soon = true;
            }
            if segment.owner != Some(to) {
                self.note(to, id);
            }
            self.tell(to);
        }
    }

    /// A segment is not a server's any more. Its next owner waits until the server has made the
    /// change, or its lease is over.
    pub(super) fn take_from(
        &mut self,
        now: Instant,
        (id, epoch): (SegmentId, u64),
        from: BlockServerId,
    ) {
        let change = self.note(from, id);
        let mut hold = self.holds.remove(&id).unwrap_or_default();
        if let Some(entry) = self.servers.get(&from) {
            let (boot, until, asks_admission) = (entry.boot, entry.lease_end, entry.asks_admission);
            hold.0.push(Wait { server: from, boot, epoch, asks_admission, change, until });
        }
        hold.0.retain(|wait| wait.until > now);
        if !hold.0.is_empty() {
            self.holds.insert(id, hold);
        }
        self.tell(from);
    }

    /// Time for which a segment's owner of `epoch` must hold back acknowledgements of writes, ms, and what
    /// of that is for its predecessor only.
    fn hold_ms(&self, now: Instant, id: SegmentId, epoch: u64) -> (u32, u32) {
        let hold = self.holds.get(&id);
        let (all, alone) = hold
            .map_or_else(Default::default, |hold: &Hold| (hold.until(), hold.until_alone(epoch)));
        // Owners under a previous leader are not known here.
        let millis = |until: Instant| {
            let left = drifted(until.max(self.former_leases_end) - now);
            left.as_micros().div_ceil(1000) as u32
        };
        (millis(all), millis(all) - millis(alone))
    }

    /// Answers a heartbeat: what the server owns, and its lease.
    pub(super) fn heartbeat(
        &mut self,
        now: Instant,
        heartbeat: BlockHeartbeat,
    ) -> Result<BlockGrant, Refusal> {
        let term = self.config.term;
        let mut grant = BlockGrant {
            lease_ms: 0,
            reset: false,
            changes: Vec::new(),
            seen: heartbeat.seen,
            more: false,
            known: true,
        };
        let server = heartbeat.server;
        let Some(entry) = self.servers.get_mut(&server) else {
            return Ok(BlockGrant { known: false, ..grant });
        };
        if entry.boot == Some(heartbeat.boot) && heartbeat.seq <= entry.seq {
            return Ok(grant); // Overtaken by a later one, or come twice.
        }
        self.first_heard.get_or_insert(now);
        let heard = self.state.boots(server).heard;
        if heartbeat.boot < heard {
            let name = self.state.server(server).map(|known| known.name.clone());
            return Err(Refusal::Former { name: name.unwrap_or_default() });
        }
        if entry.boot != Some(heartbeat.boot) {
            if heartbeat.boot > heard {
                self.begin_boot(now, server, heartbeat.boot);
            }
            let entry = self.servers.get_mut(&server).expect("found above");
            entry.boot = Some(heartbeat.boot);
            entry.reach = Reach::new(now);
            (entry.seen, entry.seq) = (0, 0);
            entry.loads.clear();
        }
        let reset = heartbeat.seen.term != term;
        let seen = if reset { 0 } else { heartbeat.seen.change };
        let slower = self.slower(server);
        let entry = self.servers.get_mut(&server).expect("found above");
        let stayed = entry.is_staying();
        if !std::mem::replace(&mut entry.alive, true) {
            entry.reach.excuse(now); // It was not pinged.
        }
        (entry.last_heartbeat, entry.seq, entry.seen) = (now, heartbeat.seq, seen);
        entry.leaving = heartbeat.leaving;
        entry.asks_admission = heartbeat.asks_admission;
        entry.reach.note_heartbeat(now, slower);
        let woke = !stayed && entry.is_staying();
        entry.unopened = heartbeat.unopened.into_iter().collect();
        entry.unopened_count = heartbeat.unopened_count;
        let boot = heartbeat.boot;
        for load in heartbeat.loads {
            match (load.iops, load.bytes) {
                (0, 0) => entry.loads.remove(&load.segment),
                load_now => entry.loads.insert(load.segment, load_now),
            };
        }
        self.settle_holds(server, boot, seen);
        self.forget_changes(server, seen);
        if self.state.server(server).is_some_and(|known| known.addr != heartbeat.addr) {
            let name = self.state.server(server).expect("just seen").name.clone();
            self.put(Key::Server(server), Value::Server(Server { name, addr: heartbeat.addr }));
        }
        if heartbeat.leaving {
            self.evacuate(now, server);
        }
        if woke {
            self.adopt(now);
        }
        self.fill(now, server, seen, &mut grant);
        grant.reset = reset;
        grant.seen.term = term;
        let reached = !self.servers[&server].reach.is_lost();
        if !grant.more && reached && self.leads(now) {
            grant.lease_ms = self.config.lease.as_millis() as u32;
            let until = now + drifted(self.config.lease);
            let entry = self.servers.get_mut(&server).expect("found above");
            entry.lease_end = entry.lease_end.max(until);
        }
        Ok(grant)
    }

    /// The changes after `seen`.
    fn fill(&self, now: Instant, server: BlockServerId, seen: u64, grant: &mut BlockGrant) {
        let entry = &self.servers[&server];
        let page = SEGMENTS_PAGE as usize;
        grant.seen.change = entry.next_change - 1;
        for (&number, &segment) in entry.changes.range(seen + 1..) {
            if grant.changes.len() == page {
                grant.seen.change = number - 1;
                grant.more = true;
                break;
            }
            let owned = self.state.segment(segment).filter(|known| known.owner == Some(server));
            let ownership = owned.map(|known| {
                let (hold_ms, predecessor_ms) = self.hold_ms(now, segment, known.epoch);
                let volume = self.state.volume(segment.volume).expect("it has one");
                OwnershipGrant {
                    epoch: known.epoch,
                    bytes: self.state.segment_bytes(segment),
                    policy: volume.spec.policy,
                    hold_ms,
                    predecessor_ms,
                    read_only: volume.family.parent.is_some(),
                    clone_source: self.state.clone_source_of(segment),
                }
            });
            grant.changes.push(Assignment { segment, ownership });
        }
    }

    /// A previous owner has released its segments.
    fn settle_holds(&mut self, server: BlockServerId, boot: u64, seen: u64) {
        let mut free = Vec::new();
        for (&id, hold) in &mut self.holds {
            let over = |wait: &Wait| {
                (wait.server, wait.boot) == (server, Some(boot)) && wait.change <= seen
            };
            let before = hold.0.len();
            hold.0.retain(|wait| !over(wait));
            if hold.0.is_empty() && before > 0 {
                free.push(id);
            }
        }
        for id in free {
            self.holds.remove(&id);
            if let Some(owner) = self.state.segment(id).and_then(|segment| segment.owner) {
                self.note(owner, id);
                self.tell(owner);
            }
        }
    }

    /// Drops changes that a server has confirmed: segments that it lost and knows to have lost.
    fn forget_changes(&mut self, server: BlockServerId, seen: u64) {
        let Some(entry) = self.servers.get_mut(&server) else { return };
        let state = &self.state;
        let lost = entry.changes.range(..=seen).filter(|&(_, &id)| {
            state.segment(id).and_then(|segment| segment.owner) != Some(server)
        });
        let lost: Vec<(u64, SegmentId)> = lost.map(|(&number, &id)| (number, id)).collect();
        for (number, id) in lost {
            entry.changes.remove(&number);
            entry.numbers.remove(&id);
            entry.loads.remove(&id);
        }
    }

    /// True when a segment's owner has reported that it serves it.
    pub(super) fn serves(&self, id: SegmentId, owner: Option<BlockServerId>) -> bool {
        let Some(entry) = owner.and_then(|owner| self.servers.get(&owner)) else { return false };
        let seen = entry.numbers.get(&id).is_some_and(|&number| number <= entry.seen);
        let listed = entry.unopened.len() as u32 >= entry.unopened_count;
        let beyond = !listed && entry.unopened.last_key_value().is_some_and(|(&last, _)| id > last);
        entry.alive && seen && !beyond && !entry.unopened.contains_key(&id)
    }

    /// The reason why a segment's owner does not serve it yet, as far as it has reported one.
    pub(super) fn cause(&self, id: SegmentId, owner: Option<BlockServerId>) -> String {
        let Some(owner) = owner else {
            return "no block server is there for it: start one".to_owned();
        };
        match self.servers.get(&owner) {
            Some(entry) if entry.alive => entry.unopened.get(&id).cloned().unwrap_or_default(),
            _ => "its block server is silent".to_owned(),
        }
    }

    /// Marks silent servers as dead.
    pub(super) fn condemn(&mut self, now: Instant) {
        let silent = self.servers.iter().filter(|&(&id, entry)| {
            entry.alive && now - entry.last_heartbeat >= self.dead_after(id)
        });
        let silent: Vec<BlockServerId> = silent.map(|(&id, _)| id).collect();
        for id in silent {
            let entry = self.servers.get_mut(&id).expect("just seen");
            entry.alive = false;
            entry.loads.clear();
            tracing::warn!(server = %id, "block server is silent: others take its segments");
        }
    }
}

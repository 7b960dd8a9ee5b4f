//! Block servers: which are alive, what each owns, and the ends of leases (`protocols.md` 6.5).

use std::net::SocketAddr;

use block_proto::limits::{BLOCK_SERVERS_MAX, SEGMENTS_PAGE};
use block_proto::{
    Assignment, BlockGrant, BlockHeartbeat, BlockReply, BlockServerId, OwnershipGrant,
};
use block_volume::ids::SegmentId;
use runtime::Instant;
use tenancy::fleet::{Beat, Heard, Owners};

use super::entity::{Boots, Counters, Segment, Server};
use super::error::Refusal;
use super::machine::Machine;
use super::rows::{Key, Row, Value};
use super::state::ManagerState;

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
                self.fleet.note_registration(now, server);
                server
            }
            None => {
                let counters = self.state.counters();
                let next = counters.server.checked_add(1);
                let next = next.ok_or(Refusal::NoNumbers { what: "block servers" })?;
                self.make_room(now)?;
                let server = BlockServerId::new(counters.server);
                let counters = Counters { server: next, ..counters };
                self.put(Key::Counters, Value::Counters(counters));
                let value = Value::Server(Server { name: name.to_owned(), addr });
                self.put(Key::Server(server), value);
                self.fleet.add(now, server);
                server
            }
        };
        let Boots { given, heard } = self.state.boots(server);
        let boot = given.max(heard).max(self.before_first_boot(server)) + 1;
        self.put(Key::Boots(server), Value::Boots(Boots { given: boot, heard }));
        Ok(BlockReply::Registered { server, boot })
    }

    /// Makes room for one more server: the one that is gone for longest goes, if that was long ago.
    ///
    /// Its number is never given again, so that a process which comes back is not known, and registers.
    fn make_room(&mut self, now: Instant) -> Result<(), Refusal> {
        if self.state.servers().count() < BLOCK_SERVERS_MAX {
            return Ok(());
        }
        let server = self
            .fleet
            .longest_gone(now, &self.state, |_| true)
            .ok_or(Refusal::Full { what: "block servers", max: BLOCK_SERVERS_MAX })?;
        tracing::info!(%server, "a block server that was gone for long is forgotten");
        self.fleet.remove(server);
        self.change(Row::delete(Key::Server(server)));
        self.change(Row::delete(Key::Boots(server)));
        Ok(())
    }

    fn before_first_boot(&self, server: BlockServerId) -> u64 {
        tenancy::before_first_boot(server.get(), self.state.servers().count())
    }

    /// A name is one live process: another one elsewhere waits until that one is silent.
    fn refuse_second(
        &self,
        server: BlockServerId,
        name: &str,
        addr: SocketAddr,
    ) -> Result<(), Refusal> {
        let member = self.fleet.get(server);
        let lives = member.is_some_and(|member| member.has_heartbeat() && member.is_staying());
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
        let from = segment.owner.map(|from| (from, segment.epoch));
        self.fleet.give(now, id, from, to, &self.state);
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
        let heard = self.fleet.hear(now, server, (heartbeat.boot, heartbeat.seq));
        match heard {
            Heard::Unknown => return Ok(BlockGrant { known: false, ..grant }),
            Heard::Late => return Ok(grant),
            Heard::Begins | Heard::GoesOn => {}
        }
        let latest = self.state.boots(server).heard;
        if heartbeat.boot < latest {
            let name = self.state.server(server).map(|known| known.name.clone());
            return Err(Refusal::Former { name: name.unwrap_or_default() });
        }
        if heard == Heard::Begins {
            if heartbeat.boot > latest {
                self.begin_boot(now, server, heartbeat.boot);
            }
            self.fleet.begin(now, server, heartbeat.boot);
        }
        let (of_term, change) = (heartbeat.seen.term, heartbeat.seen.change);
        // One that was forgotten, and is another server now, owns nothing of what it has.
        let reset = of_term != term || self.fleet.has_seen_none(server, change);
        let seen = if reset { 0 } else { change };
        let beat = Beat {
            leaving: heartbeat.leaving,
            asks_admission: heartbeat.asks_admission,
            seen,
            unopened: heartbeat.unopened.into_iter().collect(),
            unopened_count: heartbeat.unopened_count,
            loads: heartbeat
                .loads
                .into_iter()
                .map(|load| (load.segment, (load.iops, load.bytes)))
                .collect(),
        };
        let woke = self.fleet.beat(now, server, heartbeat.seq, beat, &self.state);
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
        if !grant.more && self.leads(now) && self.fleet.grant(now, server) {
            grant.lease_ms = self.config.lease.as_millis() as u32;
        }
        Ok(grant)
    }

    /// The changes after `seen`.
    fn fill(&self, now: Instant, server: BlockServerId, seen: u64, grant: &mut BlockGrant) {
        let changes = self.fleet.changes(server, seen, SEGMENTS_PAGE as usize);
        (grant.seen.change, grant.more) = (changes.upto, changes.more);
        for segment in changes.units {
            let owned = self.state.segment(segment).filter(|known| known.owner == Some(server));
            let ownership = owned.map(|known| {
                let (hold_ms, predecessor_ms) = self.fleet.hold_ms(now, segment, known.epoch);
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

    /// The reason why a segment's owner does not serve it yet, as far as it has reported one.
    pub(super) fn cause(&self, id: SegmentId, owner: Option<BlockServerId>) -> String {
        let Some(owner) = owner else {
            return "no block server is there for it: start one".to_owned();
        };
        match self.fleet.get(owner) {
            Some(member) if member.is_alive() => member.cause(id).unwrap_or_default().to_owned(),
            _ => "its block server is silent".to_owned(),
        }
    }
}

impl Owners<BlockServerId, SegmentId> for ManagerState {
    fn owner(&self, unit: SegmentId) -> Option<BlockServerId> {
        self.segment(unit).and_then(|segment| segment.owner)
    }

    fn owned_count(&self, server: BlockServerId) -> usize {
        ManagerState::owned_count(self, server)
    }
}

//! Leases under drifting clocks, lost and late messages, restarts and changes of leader. Of all
//! servers that believe in their lease on a segment, at most one acknowledges writes: the one with
//! the lowest epoch. Later owners wait for it (`protocols.md` 6.5).

use base::GIB;
use block_manager::limits::TICK;
use block_manager::{Config, Machine, ManagerState};
use block_proto::lease::{LEASE, RENEW};
use block_proto::{BlockGrant, BlockHeartbeat, BlockReply, BlockRequest, BlockServerId, Seen};
use block_server::ownership::grant_of;
use block_server::{LeaseState, OwnershipLease, Predecessors};
use runtime::{Duration, Instant, Rng};

use super::spec;

/// A clock that is wrong by up to 1 %, in parts per million.
#[derive(Clone, Copy)]
struct Clock {
    ppm: i64,
    offset: u64,
}

impl Clock {
    fn draw(rng: &mut Rng) -> Clock {
        let ppm = *[-10_000, 10_000, rng.below(20_000) as i64 - 10_000]
            .get(rng.below(3) as usize)
            .expect("three");
        Clock { ppm, offset: rng.below(1 << 40) }
    }

    fn at(self, micros: u64) -> Instant {
        let drifted = micros as i64 + micros as i64 * self.ppm / 1_000_000;
        Instant::from_nanos(self.offset + drifted as u64 * 1000)
    }
}

/// Mistakes that the checker must find.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Planted {
    Nothing,
    /// The lease is counted from the receipt of the grant.
    LeaseFromReceipt,
    /// A new owner acknowledges at once.
    NoHold,
    /// A new leader forgets the leases of the previous one.
    NoHonour,
    /// One that is alone waits for no previous owner at all.
    SparesAll,
}

struct Server {
    name: String,
    id: BlockServerId,
    clock: Clock,
    boot: u64,
    seq: u64,
    ownership: OwnershipLease,
    /// Time of its next heartbeat, and the heartbeat it waits for with its sending.
    next: u64,
    waits: Option<(u64, u64)>,
    /// A process that was replaced goes on for a while without notice.
    ghosts: Vec<(Clock, OwnershipLease)>,
}

enum Message {
    Heartbeat(usize, BlockHeartbeat),
    Grant(usize, u64, u64, BlockGrant),
}

struct World {
    rng: Rng,
    planted: Planted,
    now: u64,
    messages: Vec<(u64, Message)>,
    servers: Vec<Server>,
    leader: Option<(Machine, Clock)>,
    stored: ManagerState,
    term: u64,
    leads_until: u64,
    takeovers: u64,
    /// Moments in which a session that is alone does not wait, and others do.
    spared: u64,
}

impl World {
    fn new(seed: u64, planted: Planted) -> World {
        let mut rng = Rng::new(seed);
        let servers = (0..3).map(|n| Server {
            name: format!("bs{n}"),
            id: BlockServerId::default(),
            clock: Clock::draw(&mut rng),
            boot: 1,
            seq: 0,
            ownership: OwnershipLease::new(),
            next: 0,
            waits: None,
            ghosts: Vec::new(),
        });
        let servers = servers.collect();
        World {
            rng,
            planted,
            now: 0,
            messages: Vec::new(),
            servers,
            leader: None,
            stored: ManagerState::default(),
            term: 0,
            leads_until: 0,
            takeovers: 0,
            spared: 0,
        }
    }

    fn elect(&mut self) {
        self.term += 1;
        let clock = Clock::draw(&mut self.rng);
        let mut config = Config::new("bm", self.term);
        if self.planted == Planted::NoHonour {
            config.lease = Duration::ZERO;
        }
        let mut machine = Machine::new(config, self.stored.clone(), clock.at(self.now));
        let lead = self.rng.between(1_000_000, 6_000_000);
        self.leads_until = self.now + lead;
        // A leader's own bound is before the time when another can be elected.
        machine.lead_until(clock.at(self.now + lead * 97 / 100));
        if self.term == 1 {
            for server in &mut self.servers {
                let addr = "127.0.0.1:7000".parse().expect("an address");
                let request = BlockRequest::Register { name: server.name.clone(), addr };
                let reply = machine.handle(clock.at(self.now), request);
                let Ok(BlockReply::Registered { server: id, .. }) = reply else { panic!() };
                server.id = id;
            }
            let request = BlockRequest::Create { nonce: 1, spec: spec("a", 2 * GIB) };
            machine.handle(clock.at(self.now), request).expect("it is made");
        }
        self.leader = Some((machine, clock));
    }

    fn store(&mut self) {
        if let Some((machine, _)) = &mut self.leader {
            machine.take_rows().into_iter().for_each(|row| self.stored.apply(row));
        }
    }

    fn delay(&mut self) -> Option<u64> {
        if self.rng.one_in(12) {
            return None;
        }
        let most = if self.rng.one_in(6) { 900_000 } else { 20_000 };
        Some(self.now + self.rng.below(most))
    }

    fn step(&mut self) {
        self.now += self.rng.between(500, 4000);
        if self.leader.is_none() && self.now >= self.leads_until {
            if self.rng.one_in(30) {
                self.elect();
            }
        } else if self.leader.is_some() && (self.now >= self.leads_until || self.rng.one_in(4000)) {
            // The next one is elected when the lock's lease is over.
            self.leader = None;
        }
        if let Some((machine, clock)) = &mut self.leader
            && self.now % (TICK.as_micros() as u64) < 4000
        {
            machine.tick(clock.at(self.now));
        }
        self.store();
        for index in 0..self.servers.len() {
            self.drive(index);
        }
        let mut due = Vec::new();
        let mut kept = Vec::new();
        for (at, message) in std::mem::take(&mut self.messages) {
            if at <= self.now { due.push(message) } else { kept.push((at, message)) }
        }
        self.messages = kept;
        due.into_iter().for_each(|message| self.deliver(message));
    }

    /// A server sends its heartbeat, or is restarted.
    fn drive(&mut self, index: usize) {
        let (fresh, timeout) = (self.rng.one_in(6000), self.rng.between(120_000, 300_000));
        let clock = Clock::draw(&mut self.rng);
        let now = self.now;
        let server = &mut self.servers[index];
        if fresh {
            // The previous process goes on for a while, cut off.
            let old = std::mem::replace(&mut server.ownership, OwnershipLease::new());
            server.ghosts.push((server.clock, old));
            (server.clock, server.boot, server.seq) = (clock, server.boot + 1, 0);
            (server.next, server.waits) = (now, None);
        }
        if server.waits.is_some_and(|(_, sent)| now > sent + timeout) {
            server.waits = None;
        }
        if server.waits.is_some() || now < server.next {
            return;
        }
        server.seq += 1;
        (server.next, server.waits) = (now + RENEW.as_micros() as u64, Some((server.seq, now)));
        let heartbeat = BlockHeartbeat {
            server: server.id,
            addr: "127.0.0.1:7000".parse().expect("an address"),
            boot: server.boot,
            seq: server.seq,
            seen: server.ownership.seen(),
            unopened: Vec::new(),
            unopened_count: 0,
            loads: Vec::new(),
            leaving: false,
            asks_admission: true,
        };
        // Now and then a server is cut off for longer.
        if self.rng.one_in(60) {
            self.servers[index].next += self.rng.below(1_500_000);
        }
        if let Some(at) = self.delay() {
            self.messages.push((at, Message::Heartbeat(index, heartbeat.clone())));
            if self.rng.one_in(20) {
                self.messages.push((at + 30_000, Message::Heartbeat(index, heartbeat)));
            }
        }
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Heartbeat(index, heartbeat) => {
                let Some((machine, clock)) = &mut self.leader else { return };
                let (boot, seq) = (heartbeat.boot, heartbeat.seq);
                let reply = machine.handle(clock.at(self.now), BlockRequest::Heartbeat(heartbeat));
                let Ok(BlockReply::Grant(mut grant)) = reply else { return };
                if self.planted == Planted::NoHonour && grant.seen != Seen::default() {
                    grant.lease_ms = LEASE.as_millis() as u32;
                }
                self.store();
                if let Some(at) = self.delay() {
                    self.messages.push((at, Message::Grant(index, boot, seq, grant)));
                }
            }
            Message::Grant(index, boot, seq, mut grant) => {
                let server = &mut self.servers[index];
                let Some((waits, sent)) = server.waits else { return };
                if (server.boot, waits) != (boot, seq) {
                    return; // An answer to a heartbeat that was given up.
                }
                server.waits = None;
                let now = server.clock.at(self.now);
                let sent = match self.planted {
                    Planted::LeaseFromReceipt => now,
                    _ => server.clock.at(sent),
                };
                if self.planted == Planted::NoHold {
                    let ownerships = grant.changes.iter_mut().filter_map(|c| c.ownership.as_mut());
                    ownerships.for_each(|ownership| ownership.hold_ms = 0);
                }
                if self.planted == Planted::SparesAll {
                    let ownerships = grant.changes.iter_mut().filter_map(|c| c.ownership.as_mut());
                    ownerships.for_each(|ownership| ownership.predecessor_ms = ownership.hold_ms);
                }
                server.ownership.granted(sent, now, &grant_of(grant));
            }
        }
    }

    /// The rule, for every segment.
    fn check(&mut self) -> Result<(), String> {
        for (id, _) in self.stored.segments().collect::<Vec<_>>() {
            let mut believers = Vec::new();
            for server in &self.servers {
                let ghosts = server.ghosts.iter().map(|(clock, ownership)| (*clock, ownership));
                for (clock, ownership) in ghosts.chain([(server.clock, &server.ownership)]) {
                    let Some(held) = ownership.owned(id) else { continue };
                    let state = |of| ownership.lease_state(id, held.epoch, of, clock.at(self.now));
                    let alone = matches!(state(Predecessors::AllButLast), LeaseState::Active(_));
                    match state(Predecessors::All) {
                        LeaseState::Active(_) => believers.push((held.epoch, true, alone)),
                        LeaseState::HoldingAcks(_) => believers.push((held.epoch, false, alone)),
                        LeaseState::Expired(_) | LeaseState::Revoked => {}
                    }
                }
            }
            believers.sort_unstable();
            self.takeovers += u64::from(believers.len() > 1);
            if believers.iter().skip(1).any(|&(_, acknowledges, _)| acknowledges) {
                return Err(format!("{id} at {} us: {believers:?}", self.now));
            }
            // For an attachment that is alone, only the owner before may have a lease.
            let mut spares = false;
            for (index, &(epoch, acknowledges, alone)) in believers.iter().enumerate() {
                let former = believers[..index].iter().map(|(former, ..)| *former);
                if alone && former.clone().any(|former| former + 1 != epoch) {
                    return Err(format!("{id} at {} us, alone: {believers:?}", self.now));
                }
                spares |= alone && !acknowledges && former.count() > 0;
            }
            self.spared += u64::from(spares);
        }
        for server in &mut self.servers {
            let now = self.now;
            server.ghosts.retain(|(clock, ownership)| clock.at(now) < ownership.lease_end());
        }
        Ok(())
    }
}

fn run(seed: u64, planted: Planted, steps: u32) -> Result<(u64, u64, u64), String> {
    let mut world = World::new(seed, planted);
    for _ in 0..steps {
        world.step();
        world.check()?;
    }
    Ok((world.takeovers, world.term, world.spared))
}

#[test]
fn one_owner_acknowledges_at_a_time() {
    let (mut takeovers, mut terms, mut spared) = (0, 0, 0);
    for seed in 0..40 {
        let (seen, term, alone) =
            run(seed, Planted::Nothing, 8000).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        takeovers += seen;
        terms += term;
        spared += alone;
    }
    assert!(spared > 500, "only {spared} moments in which one that is alone does not wait");
    assert!(takeovers > 1000, "only {takeovers} moments with two believers");
    assert!(terms > 100, "only {terms} leaders");
}

#[test]
fn planted_mistakes_are_found() {
    for planted in
        [Planted::LeaseFromReceipt, Planted::NoHold, Planted::NoHonour, Planted::SparesAll]
    {
        let found = (0..60).find_map(|seed| run(seed, planted, 8000).err());
        assert!(found.is_some(), "{planted:?} is not found");
    }
}

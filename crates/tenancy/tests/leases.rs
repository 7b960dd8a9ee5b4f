//! Leases under drifting clocks, lost and late messages, restarts, moves and changes of leader. Of all
//! servers that believe in their lease on a unit, at most one acknowledges: the one with the lowest
//! epoch. Later owners wait for it (`protocols.md` 6.5).

use runtime::{Duration, Instant, Rng};
use tenancy::lease::{Grant, LeaseState, OwnershipLease, Predecessors};
use tenancy::limits::RENEW;

use crate::service::{Heartbeat, LEASE, Plain, Rows, Service};

const SERVERS: u16 = 3;
const UNITS: u32 = 7;

/// A clock that is wrong by up to 1 %, in parts per million.
#[derive(Clone, Copy)]
struct Clock {
    ppm: i64,
    offset: u64,
}

impl Clock {
    fn draw(rng: &mut Rng) -> Clock {
        let ppm = [-10_000, 10_000, rng.below(20_000) as i64 - 10_000][rng.below(3) as usize];
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
    /// A server takes one page for the whole answer, and keeps what it does not name.
    LeaseWithMore,
}

struct Server {
    clock: Clock,
    boot: u64,
    seq: u64,
    lease: OwnershipLease<u32, Plain>,
    /// Time of its next heartbeat, and the heartbeat it waits for with its sending.
    next: u64,
    waits: Option<(u64, u64)>,
    /// Processes that were replaced go on for a while without notice.
    ghosts: Vec<(Clock, OwnershipLease<u32, Plain>)>,
}

enum Message {
    Heartbeat(Heartbeat),
    Grant(u16, u64, u64, Grant<u32, Plain>),
}

struct World {
    rng: Rng,
    planted: Planted,
    now: u64,
    messages: Vec<(u64, Message)>,
    servers: Vec<Server>,
    leader: Option<(Service, Clock)>,
    stored: Rows,
    term: u64,
    leads_until: u64,
    seen: Sights,
}

/// What a run must have had.
#[derive(Default)]
struct Sights {
    terms: u64,
    /// Moments with two that believe in a lease of one unit.
    believers: u64,
    /// Moments in which a client that is alone does not wait, and others do.
    spared: u64,
    /// Moments in which a unit is served.
    served: u64,
}

impl World {
    fn new(seed: u64, planted: Planted) -> World {
        let mut rng = Rng::new(seed);
        let server = |_| Server {
            clock: Clock::draw(&mut rng),
            boot: 1,
            seq: 0,
            lease: OwnershipLease::new(),
            next: 0,
            waits: None,
            ghosts: Vec::new(),
        };
        let servers = (0..SERVERS).map(server).collect();
        let stored = Rows {
            units: (0..UNITS).map(|unit| (unit, (0, None))).collect(),
            boots: (0..SERVERS).map(|server| (server, 0)).collect(),
        };
        let (messages, seen) = (Vec::new(), Sights::default());
        let (now, term, leads_until) = (0, 0, 0);
        World {
            rng,
            planted,
            now,
            messages,
            servers,
            leader: None,
            stored,
            term,
            leads_until,
            seen,
        }
    }

    fn elect(&mut self) {
        self.term += 1;
        self.seen.terms += 1;
        let clock = Clock::draw(&mut self.rng);
        let lease = if self.planted == Planted::NoHonour { Duration::ZERO } else { LEASE };
        let now = clock.at(self.now);
        let mut service = Service::new(now, self.stored.clone(), self.term, lease);
        let lead = self.rng.between(1_000_000, 6_000_000);
        self.leads_until = self.now + lead;
        // A leader's own bound is before the time when another can be elected.
        service.leads_until = clock.at(self.now + lead * 97 / 100);
        self.leader = Some((service, clock));
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
        if let Some((service, clock)) = &mut self.leader
            && self.now % 50_000 < 4000
        {
            service.tick(clock.at(self.now), &mut self.rng);
        }
        (0..SERVERS).for_each(|index| self.drive(index));
        let now = self.now;
        let due: Vec<_> = self.messages.extract_if(.., |(at, _)| *at <= now).collect();
        due.into_iter().for_each(|(_, message)| self.deliver(message));
        if let Some((service, _)) = &self.leader {
            self.stored = service.rows.clone();
        }
    }

    /// A server sends its heartbeat, or is restarted.
    fn drive(&mut self, index: u16) {
        let (fresh, timeout) = (self.rng.one_in(6000), self.rng.between(120_000, 300_000));
        let clock = Clock::draw(&mut self.rng);
        let now = self.now;
        let server = &mut self.servers[usize::from(index)];
        if fresh {
            let old = std::mem::take(&mut server.lease);
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
        let (boot, seq, seen) = (server.boot, server.seq, server.lease.seen());
        let leaving = self.rng.one_in(300);
        let heartbeat = Heartbeat { server: index, boot, seq, seen, leaving };
        // Now and then a server is cut off for longer.
        if self.rng.one_in(60) {
            self.servers[usize::from(index)].next += self.rng.below(1_500_000);
        }
        if let Some(at) = self.delay() {
            self.messages.push((at, Message::Heartbeat(heartbeat.clone())));
            if self.rng.one_in(20) {
                self.messages.push((at + 30_000, Message::Heartbeat(heartbeat)));
            }
        }
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Heartbeat(sent) => {
                let Some((service, clock)) = &mut self.leader else { return };
                let Some(mut grant) = service.heartbeat(clock.at(self.now), &sent) else { return };
                let leads = clock.at(self.now) < service.leads_until;
                let forgets = self.planted == Planted::NoHonour;
                if leads && (forgets || grant.more && self.planted == Planted::LeaseWithMore) {
                    grant.lease_ms = LEASE.as_millis() as u32;
                }
                if let Some(at) = self.delay() {
                    self.messages
                        .push((at, Message::Grant(sent.server, sent.boot, sent.seq, grant)));
                }
            }
            Message::Grant(index, boot, seq, mut grant) => {
                let server = &mut self.servers[usize::from(index)];
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
                for (_, ownership) in &mut grant.changes {
                    let Some(ownership) = ownership else { continue };
                    match self.planted {
                        Planted::NoHold => ownership.hold_ms = 0,
                        Planted::SparesAll => ownership.predecessor_ms = ownership.hold_ms,
                        _ => {}
                    }
                }
                if self.planted == Planted::LeaseWithMore {
                    grant.more = false;
                    grant.reset = false;
                }
                server.lease.granted(sent, now, &grant);
            }
        }
    }

    /// The rule, for every unit.
    fn check(&mut self) -> Result<(), String> {
        for unit in 0..UNITS {
            let mut believers = Vec::new();
            for server in &self.servers {
                let ghosts = server.ghosts.iter().map(|(clock, lease)| (*clock, lease));
                for (clock, lease) in ghosts.chain([(server.clock, &server.lease)]) {
                    let Some(owned) = lease.owned(unit) else { continue };
                    let state = |of| lease.lease_state(unit, owned.epoch, of, clock.at(self.now));
                    let alone = matches!(state(Predecessors::AllButLast), LeaseState::Active(_));
                    match state(Predecessors::All) {
                        LeaseState::Active(_) => believers.push((owned.epoch, true, alone)),
                        LeaseState::HoldingAcks(_) => believers.push((owned.epoch, false, alone)),
                        LeaseState::Expired(_) | LeaseState::Revoked => {}
                    }
                }
            }
            believers.sort_unstable();
            self.seen.believers += u64::from(believers.len() > 1);
            self.seen.served +=
                u64::from(believers.iter().any(|&(_, acknowledges, _)| acknowledges));
            if believers.iter().skip(1).any(|&(_, acknowledges, _)| acknowledges) {
                return Err(format!("unit {unit} at {} us: {believers:?}", self.now));
            }
            // For a client that is alone, only the owner before may have a lease.
            let mut spares = false;
            for (index, &(epoch, acknowledges, alone)) in believers.iter().enumerate() {
                let former = believers[..index].iter().map(|(former, ..)| *former);
                if alone && former.clone().any(|former| former + 1 != epoch) {
                    return Err(format!("unit {unit} at {} us, alone: {believers:?}", self.now));
                }
                spares |= alone && !acknowledges && former.count() > 0;
            }
            self.seen.spared += u64::from(spares);
        }
        for server in &mut self.servers {
            let now = self.now;
            server.ghosts.retain(|(clock, lease)| clock.at(now) < lease.lease_end());
        }
        Ok(())
    }
}

fn run(seed: u64, planted: Planted, steps: u32) -> Result<Sights, String> {
    let mut world = World::new(seed, planted);
    for _ in 0..steps {
        world.step();
        world.check()?;
    }
    Ok(world.seen)
}

#[test]
fn one_owner_acknowledges_at_a_time() {
    let (steps, mut all) = (8000, Sights::default());
    for seed in 0..40 {
        let seen = run(seed, Planted::Nothing, steps);
        let seen = seen.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        all.terms += seen.terms;
        all.believers += seen.believers;
        all.spared += seen.spared;
        all.served += seen.served;
    }
    let Sights { terms, believers, spared, served } = all;
    println!(
        "{terms} leaders, moments: {believers} two believers, {spared} spared, {served} served"
    );
    assert!(terms > 100, "only {terms} leaders");
    assert!(believers > 1000, "only {believers} moments with two believers");
    assert!(spared > 500, "only {spared} moments in which one that is alone does not wait");
    let most = u64::from(UNITS) * u64::from(steps) * 40;
    assert!(served > most / 4, "units are served in {served} of {most} moments only");
}

#[test]
fn planted_mistakes_are_found() {
    let mistakes = [
        Planted::LeaseFromReceipt,
        Planted::NoHold,
        Planted::NoHonour,
        Planted::SparesAll,
        Planted::LeaseWithMore,
    ];
    for planted in mistakes {
        let found =
            (0..60).find_map(|seed| run(seed, planted, 8000).err().map(|what| (seed, what)));
        println!("{planted:?}: {found:?}");
        assert!(found.is_some(), "{planted:?} is not found");
    }
}

//! Leases under drifting clocks, lost and late messages, restarts, moves and changes of leader, for the
//! manager of any service that has owners ([`tenancy`]). Of all servers that believe in their lease on a
//! unit, at most one acknowledges: the one with the lowest epoch. Later owners wait for it
//! (`protocols.md` 6.5).

use std::fmt;

use runtime::{Duration, Instant, Rng};
use tenancy::lease::{Grant, LeaseState, OwnershipLease, Predecessors, Seen, Setup};
use tenancy::limits::RENEW;

/// Servers of a world.
pub const SERVERS: u16 = 3;
/// Time of a lease.
pub const LEASE: Duration = Duration::from_millis(600);
/// Between two clock checks of a leader, about, in microseconds.
const TICK: u64 = 50_000;

/// A heartbeat as it is sent.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// Which server sends it.
    pub server: u16,
    /// Number of its process, from 1.
    pub boot: u64,
    /// Its number in that process, from 1.
    pub seq: u64,
    /// Changes that the server has made.
    pub seen: Seen,
}

/// A time for which a manager leads.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// Its number, from 1.
    pub number: u64,
    /// Now, by the leader's clock.
    pub now: Instant,
    /// Until then it leads for certain.
    pub until: Instant,
}

/// A service, and what it has stored. The servers are registered from the start.
pub trait Service {
    /// What has an owner.
    type Unit: Copy + Ord + fmt::Debug;
    /// How it is to be served.
    type Setup: Setup;
    /// A manager while it leads.
    type Leader;

    /// A manager begins to lead.
    fn lead(&mut self, term: Term) -> Self::Leader;

    /// Stores what the leader has changed.
    fn store(&mut self, leader: &mut Self::Leader);

    /// Time has passed for the leader.
    fn tick(&self, leader: &mut Self::Leader, now: Instant, rng: &mut Rng);

    /// The leader's answer to a heartbeat, if it gives one.
    fn heartbeat(
        &self,
        leader: &mut Self::Leader,
        now: Instant,
        heartbeat: &Heartbeat,
    ) -> Option<Grant<Self::Unit, Self::Setup>>;

    /// All units.
    fn units(&self) -> Vec<Self::Unit>;
}

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

/// Mistakes that the judge must find.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Planted {
    /// None.
    Nothing,
    /// The lease is counted from the receipt of the grant.
    LeaseFromReceipt,
    /// A new owner acknowledges at once.
    NoHold,
    /// A new leader forgets the leases of the previous one: in the time of a lease it holds nothing.
    NoHonour,
    /// One that is alone waits for no previous owner at all.
    SparesAll,
}

impl Planted {
    const MISTAKES: [Planted; 4] =
        [Planted::LeaseFromReceipt, Planted::NoHold, Planted::NoHonour, Planted::SparesAll];
}

type LeaseOf<S> = OwnershipLease<<S as Service>::Unit, <S as Service>::Setup>;

struct Server<S: Service> {
    clock: Clock,
    boot: u64,
    seq: u64,
    lease: LeaseOf<S>,
    /// Time of its next heartbeat, and the heartbeat it waits for with its sending.
    next: u64,
    waits: Option<(u64, u64)>,
    /// Processes that were replaced go on for a while without notice.
    ghosts: Vec<(Clock, LeaseOf<S>)>,
}

enum Message<S: Service> {
    Heartbeat(Heartbeat),
    Grant { to: Heartbeat, grant: Grant<S::Unit, S::Setup> },
}

struct World<S: Service> {
    rng: Rng,
    planted: Planted,
    now: u64,
    messages: Vec<(u64, Message<S>)>,
    servers: Vec<Server<S>>,
    service: S,
    leader: Option<(S::Leader, Clock)>,
    term: u64,
    elected: u64,
    leads_until: u64,
    seen: Sights,
}

/// What runs have had.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sights {
    /// Leaders.
    pub terms: u64,
    /// Moments with two that believe in a lease of one unit.
    pub believers: u64,
    /// Moments in which a client that is alone does not wait, and others do.
    pub spared: u64,
    /// Moments in which a unit is served, and all moments of units.
    pub served: (u64, u64),
}

impl<S: Service> World<S> {
    fn new(seed: u64, planted: Planted, service: S) -> World<S> {
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
        let (messages, seen) = (Vec::new(), Sights::default());
        let (leader, now, term, elected, leads_until) = (None, 0, 0, 0, 0);
        World {
            rng,
            planted,
            now,
            messages,
            servers,
            service,
            leader,
            term,
            elected,
            leads_until,
            seen,
        }
    }

    fn elect(&mut self) {
        self.term += 1;
        self.seen.terms += 1;
        let clock = Clock::draw(&mut self.rng);
        let lead = self.rng.between(1_000_000, 6_000_000);
        self.leads_until = self.now + lead;
        let term = Term {
            number: self.term,
            now: clock.at(self.now),
            // A leader's own bound is before the time when another can be elected.
            until: clock.at(self.now + lead * 97 / 100),
        };
        self.elected = self.now;
        self.leader = Some((self.service.lead(term), clock));
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
        if let Some((leader, clock)) = &mut self.leader {
            if self.now % TICK < 4000 {
                self.service.tick(leader, clock.at(self.now), &mut self.rng);
            }
            self.service.store(leader);
        }
        (0..SERVERS).for_each(|index| self.drive(index));
        let now = self.now;
        let due: Vec<_> = self.messages.extract_if(.., |(at, _)| *at <= now).collect();
        due.into_iter().for_each(|(_, message)| self.deliver(message));
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
        let heartbeat = Heartbeat { server: index, boot, seq, seen };
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

    fn deliver(&mut self, message: Message<S>) {
        match message {
            Message::Heartbeat(sent) => {
                let Some((leader, clock)) = &mut self.leader else { return };
                let answer = self.service.heartbeat(leader, clock.at(self.now), &sent);
                let Some(mut grant) = answer else { return };
                let is_new = self.now - self.elected < LEASE.as_micros() as u64;
                if self.planted == Planted::NoHonour && is_new {
                    let ownerships = grant.changes.iter_mut().filter_map(|(_, it)| it.as_mut());
                    ownerships.for_each(|ownership| ownership.hold_ms = 0);
                }
                self.service.store(leader);
                if let Some(at) = self.delay() {
                    self.messages.push((at, Message::Grant { to: sent, grant }));
                }
            }
            Message::Grant { to, mut grant } => {
                let server = &mut self.servers[usize::from(to.server)];
                let Some((waits, sent)) = server.waits else { return };
                if (server.boot, waits) != (to.boot, to.seq) {
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
                server.lease.granted(sent, now, &grant);
            }
        }
    }

    /// The rule, for every unit.
    fn check(&mut self) -> Result<(), String> {
        for unit in self.service.units() {
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
            self.seen.served.0 += u64::from(believers.iter().any(|&(_, serves, _)| serves));
            self.seen.served.1 += 1;
            if believers.iter().skip(1).any(|&(_, acknowledges, _)| acknowledges) {
                return Err(format!("{unit:?} at {} us: {believers:?}", self.now));
            }
            // For a client that is alone, only the owner before may have a lease.
            let mut spares = false;
            for (index, &(epoch, acknowledges, alone)) in believers.iter().enumerate() {
                let former = believers[..index].iter().map(|(former, ..)| *former);
                if alone && former.clone().any(|former| former + 1 != epoch) {
                    return Err(format!("{unit:?} at {} us, alone: {believers:?}", self.now));
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

/// Runs a world for so many steps; an error when two acknowledged.
fn run<S: Service>(seed: u64, planted: Planted, steps: u32, service: S) -> Result<Sights, String> {
    let mut world = World::new(seed, planted, service);
    for _ in 0..steps {
        world.step();
        world.check()?;
    }
    Ok(world.seen)
}

/// Steps of a run: about 18 s.
const STEPS: u32 = 8000;

/// 40 runs in which at most one acknowledges at a time; what they have had, together.
///
/// # Panics
/// When two acknowledge, or when the runs have had too little to say anything.
pub fn check<S: Service>(service: impl Fn() -> S) -> Sights {
    let mut all = Sights::default();
    for seed in 0..40 {
        let seen = run(seed, Planted::Nothing, STEPS, service());
        let seen = seen.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        all.terms += seen.terms;
        all.believers += seen.believers;
        all.spared += seen.spared;
        all.served = (all.served.0 + seen.served.0, all.served.1 + seen.served.1);
    }
    println!("{all:?}");
    assert!(all.terms > 100, "too few leaders: {all:?}");
    assert!(all.believers > 1000, "two believe in a lease in too few moments: {all:?}");
    assert!(all.spared > 500, "one that is alone is spared in too few moments: {all:?}");
    assert!(all.served.0 > all.served.1 / 4, "units are rarely served: {all:?}");
    all
}

/// Each mistake is found in one of 60 runs.
///
/// # Panics
/// When one is not.
pub fn check_mistakes<S: Service>(service: impl Fn() -> S) {
    for planted in Planted::MISTAKES {
        let found = |seed| Some((seed, run(seed, planted, STEPS, service()).err()?));
        let found = (0..60).find_map(found);
        println!("{planted:?}: {found:?}");
        assert!(found.is_some(), "{planted:?} is not found");
    }
}

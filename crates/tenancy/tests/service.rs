//! The least that a service adds to [`Fleet`]: who owns what, stored at once.

use std::collections::BTreeMap;

use runtime::{Duration, Instant, Rng};
use tenancy::Fleet;
use tenancy::fleet::{Beat, Heard, Owners, Times};
use tenancy::lease::{Grant, Ownership, Seen, Setup};
use testing::leases::{Heartbeat, LEASE, SERVERS, Service, Term, check, check_mistakes};

const DEAD: Duration = Duration::from_millis(450);
const UNREACHED: Duration = Duration::from_millis(300);
/// Changes in one answer: few, so that there are pages.
const PAGE: usize = 2;

/// A unit is served in one way only.
impl Setup for Plain {
    fn update(&mut self, _: Plain) -> bool {
        false
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Plain;

/// What is stored.
#[derive(Clone, Debug, Default)]
struct Rows {
    /// Epoch and owner of each unit.
    units: BTreeMap<u32, (u64, Option<u16>)>,
    /// The latest process of each server that has sent a heartbeat.
    boots: BTreeMap<u16, u64>,
}

impl Rows {
    fn owned(&self, server: u16) -> Vec<u32> {
        let owned = self.units.iter().filter(|(_, (_, owner))| *owner == Some(server));
        owned.map(|(&unit, _)| unit).collect()
    }
}

impl Owners<u16, u32> for Rows {
    fn owner(&self, unit: u32) -> Option<u16> {
        self.units.get(&unit).and_then(|(_, owner)| *owner)
    }

    fn owned_count(&self, server: u16) -> usize {
        self.owned(server).len()
    }
}

/// A leading manager.
struct Leader {
    fleet: Fleet<u16, u32>,
    rows: Rows,
    term: Term,
}

impl Leader {
    fn give(&mut self, now: Instant, unit: u32, to: Option<u16>) {
        let (epoch, owner) = self.rows.units[&unit];
        self.rows.units.insert(unit, (epoch + 1, to));
        self.fleet.give(now, unit, owner.map(|owner| (owner, epoch)), to, &self.rows);
    }

    fn staying(&self) -> Vec<u16> {
        self.fleet.iter().filter(|(_, member)| member.is_staying()).map(|(id, _)| id).collect()
    }

    /// Units without a living owner go to those that live.
    fn tick(&mut self, now: Instant, rng: &mut Rng) {
        self.fleet.condemn(now, &self.rows);
        self.fleet.end_holds(now);
        let staying = self.staying();
        if staying.is_empty() {
            return;
        }
        let judges = self.fleet.judges_at().is_some_and(|at| now >= at);
        let units: Vec<(u32, Option<u16>)> =
            self.rows.units.iter().map(|(&unit, &(_, owner))| (unit, owner)).collect();
        for (unit, owner) in units {
            let is_left = owner.is_none_or(|owner| judges && !staying.contains(&owner));
            if is_left || rng.one_in(400) {
                let to = staying[rng.below(staying.len() as u64) as usize];
                self.give(now, unit, Some(to));
            }
        }
    }

    /// Answers a heartbeat; `None` for one that gets no answer.
    fn heartbeat(&mut self, now: Instant, sent: &Heartbeat) -> Option<Grant<u32, Plain>> {
        let &Heartbeat { server, boot, seq, seen } = sent;
        let heard = self.fleet.hear(now, server, (boot, seq));
        let latest = self.rows.boots[&server];
        if matches!(heard, Heard::Unknown | Heard::Late) || boot < latest {
            return None;
        }
        if heard == Heard::Begins {
            if boot > latest {
                self.rows.owned(server).into_iter().for_each(|id| self.give(now, id, Some(server)));
                self.rows.boots.insert(server, boot);
            }
            self.fleet.begin(now, server, boot);
        }
        let reset = seen.term != self.term.number;
        let change = if reset { 0 } else { seen.change };
        let beat = Beat {
            leaving: seq % 300 == 299,
            asks_admission: true,
            seen: change,
            unopened: BTreeMap::new(),
            unopened_count: 0,
            loads: Vec::new(),
        };
        self.fleet.beat(now, server, seq, beat, &self.rows);
        let page = self.fleet.changes(server, change, PAGE);
        let ownership = |unit: u32| {
            let (epoch, owner) = self.rows.units[&unit];
            let (hold_ms, predecessor_ms) = self.fleet.hold_ms(now, unit, epoch);
            let owned = owner == Some(server);
            owned.then_some(Ownership { epoch, hold_ms, predecessor_ms, setup: Plain })
        };
        let changes = page.units.iter().map(|&unit| (unit, ownership(unit))).collect();
        let grants = !page.more && now < self.term.until && self.fleet.grant(now, server);
        Some(Grant {
            lease_ms: if grants { LEASE.as_millis() as u32 } else { 0 },
            reset,
            changes,
            seen: Seen { term: self.term.number, change: page.upto },
            more: page.more,
        })
    }
}

impl Service for Rows {
    type Unit = u32;
    type Setup = Plain;
    type Leader = Leader;

    fn lead(&mut self, term: Term) -> Leader {
        let times = Times { lease: LEASE, dead: DEAD, unreached: UNREACHED };
        let owned = self.units.iter().filter_map(|(&unit, (_, owner))| Some(((*owner)?, unit)));
        let fleet = Fleet::new(times, term.now, self.boots.keys().copied(), owned);
        Leader { fleet, rows: self.clone(), term }
    }

    fn store(&mut self, leader: &mut Leader) {
        self.clone_from(&leader.rows);
    }

    fn tick(&self, leader: &mut Leader, now: Instant, rng: &mut Rng) {
        leader.tick(now, rng);
    }

    fn heartbeat(
        &self,
        leader: &mut Leader,
        now: Instant,
        sent: &Heartbeat,
    ) -> Option<Grant<u32, Plain>> {
        leader.heartbeat(now, sent)
    }

    fn units(&self) -> Vec<u32> {
        self.units.keys().copied().collect()
    }
}

/// Units without owners.
fn rows() -> Rows {
    Rows {
        units: (0..7).map(|unit| (unit, (0, None))).collect(),
        boots: (0..SERVERS).map(|server| (server, 0)).collect(),
    }
}

#[test]
fn one_owner_acknowledges_at_a_time() {
    check(rows);
}

#[test]
fn planted_mistakes_are_found() {
    check_mistakes(rows);
}

//! [`Member`]: a server as a leader knows it.

use std::collections::{BTreeMap, BTreeSet};

use runtime::Instant;

use super::reach::Reach;

/// A server as this leader knows it, and the changes of ownership that it is to hear of.
#[derive(Debug)]
pub struct Member<U> {
    pub(super) alive: bool,
    /// It has reported that it is about to end.
    pub(super) leaving: bool,
    pub(super) reach: Reach,
    /// Time of the last heartbeat.
    pub(super) last_heartbeat: Instant,
    /// The same, or of the last registration; no excuse of silence changes it. At first, since when this leader
    /// knows of the server.
    pub(super) heard: Instant,
    /// The process that sends heartbeats, once this leader has heard of one.
    pub(super) boot: Option<u64>,
    pub(super) seq: u64,
    /// It asks about each client that it admits to a unit.
    pub(super) asks_admission: bool,
    /// No lease that was granted to it lasts longer.
    pub(super) lease_end: Instant,
    /// Changes for it, by number; each unit once, at its last change.
    pub(super) changes: BTreeMap<u64, U>,
    pub(super) numbers: BTreeMap<U, u64>,
    /// Those of the changes that took a unit from it and that it has not confirmed yet.
    pub(super) taken: BTreeSet<u64>,
    pub(super) next_change: u64,
    /// Its changes have numbers above this one. A process that has seen fewer, under this leader, saw those of a
    /// server that was removed.
    pub(super) before_changes: u64,
    /// Changes that its present process has made.
    pub(super) seen: u64,
    /// Units that it does not serve yet: the first of them, with causes, and how many.
    pub(super) unopened: BTreeMap<U, String>,
    pub(super) unopened_count: u32,
    /// Requests and bytes a second of its units but the idle ones.
    pub(super) loads: BTreeMap<U, (u32, u64)>,
}

impl<U: Copy + Ord> Member<U> {
    /// A server that this leader has not heard of, and that may have a lease.
    pub(super) fn silent(now: Instant, lease_end: Instant) -> Member<U> {
        Member {
            // Until it has been silent for long, it is assumed to be as it was.
            alive: true,
            leaving: false,
            reach: Reach::new(now),
            last_heartbeat: now,
            heard: now,
            boot: None,
            seq: 0,
            asks_admission: false,
            lease_end,
            changes: BTreeMap::new(),
            numbers: BTreeMap::new(),
            taken: BTreeSet::new(),
            next_change: 1,
            before_changes: 0,
            seen: 0,
            unopened: BTreeMap::new(),
            unopened_count: 0,
            loads: BTreeMap::new(),
        }
    }

    /// True unless it has been silent for too long.
    pub fn is_alive(&self) -> bool {
        self.alive
    }

    /// True when it has reported that it is about to end.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// True when its heartbeats come and it answers no ping.
    pub fn is_unreached(&self) -> bool {
        self.reach.is_lost()
    }

    /// True once this leader has received a heartbeat of it.
    pub fn has_heartbeat(&self) -> bool {
        self.boot.is_some()
    }

    /// The process that sends its heartbeats.
    pub fn boot(&self) -> Option<u64> {
        self.boot
    }

    /// True when it lives and may be given units.
    pub fn is_staying(&self) -> bool {
        self.alive && !self.leaving && !self.reach.is_lost()
    }

    /// True when it has answered a ping that was sent at `since` or later.
    pub fn has_answered_since(&self, since: Instant) -> bool {
        self.reach.has_answered_since(since)
    }

    /// Requests and bytes a second of all its units.
    pub fn load(&self) -> (u64, u64) {
        let sum = |(requests, bytes): (u64, u64), load: &(u32, u64)| {
            (requests + u64::from(load.0), bytes.saturating_add(load.1))
        };
        self.loads.values().fold((0, 0), sum)
    }

    /// Requests and bytes a second of one of its units.
    pub fn load_of(&self, unit: U) -> (u32, u64) {
        self.loads.get(&unit).copied().unwrap_or_default()
    }

    /// True when it has reported that it serves a unit of its own.
    pub(super) fn serves(&self, unit: U) -> bool {
        let seen = self.numbers.get(&unit).is_some_and(|&number| number <= self.seen);
        let listed = self.unopened.len() as u32 >= self.unopened_count;
        let beyond =
            !listed && self.unopened.last_key_value().is_some_and(|(&last, _)| unit > last);
        self.alive && seen && !beyond && !self.unopened.contains_key(&unit)
    }

    /// The reason why it does not serve a unit yet, as far as it has reported one.
    pub fn cause(&self, unit: U) -> Option<&str> {
        self.unopened.get(&unit).map(String::as_str)
    }
}

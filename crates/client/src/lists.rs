//! Lists of disks that are out of service or slow, as this client sees them (C17,
//! `protocols-tail.md` 10.5).
//!
//! A disk whose latency is several times that of its peers is *slow*: at eight times surely, from
//! three times on with a probability that grows with the square. One that is not reached, or has
//! failed, is *out*. Both are asked last for reads, and not wanted for new chunks; they are used when
//! nothing else is left, and followed by writers that use them (C14 leaves those that are late). Lists decide whom to ask, never what is true. Only probes end a listing:
//! one good probe makes an *out* disk *slow*, three in a row make a *slow* one good. State without
//! I/O or clock: times are passed in, and do not go back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use base::ServerId;
use metrics::{Counter, Gauge, Registry};
use runtime::{Duration, Instant};
use wire::control::CallClass;

use crate::health::{Health, Target};
use crate::limits::{
    LIST_ADDRESSES_MAX, LIST_DOUBT, LIST_DOUBT_SERVERS, LIST_MEMORY, LIST_PROBE_PAUSE,
    LIST_PROBES_GOOD, LIST_RETURNS_MAX, LIST_SERVERS_SHARE, LIST_STAY_MAX, LIST_STAY_MIN,
    SLOW_FROM_PER_MILLE, SLOW_SURELY_PER_MILLE, SUSPECT_AGE, SUSPECTS_MAX,
};

/// The list that a disk is in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ListState {
    /// It is slower than others.
    Slow,
    /// It does not serve.
    Out,
}

/// Cause for which a disk was listed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ListReason {
    /// Its calls take longer than those of others.
    Latency,
    /// Its server refuses connections, or does not answer.
    Unreached,
    /// Its server says that it has failed.
    DiskFailed,
    /// Masters do not reach its server (C28).
    MastersUnreached,
    /// All disks of its server are much slower than those of others, as masters see it (C28).
    MastersSlow,
}

/// A disk in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedDisk {
    /// The disk.
    pub target: Target,
    /// Its server, when it is known.
    pub server: Option<ServerId>,
    /// The list.
    pub state: ListState,
    /// Cause.
    pub reason: ListReason,
    /// When it came into this list.
    pub since: Instant,
}

/// How a probe has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Probed {
    /// The disk has written and read, in this time.
    Served(Duration),
    /// Its server answers, and says that the disk takes long.
    Late,
    /// Its server says that the disk does not serve.
    Failed,
    /// There was no answer.
    Unanswered,
    /// This process stood still in that time.
    Unknown,
}

/// Changes of the lists, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Changes {
    /// Disks that were listed.
    pub(crate) listed: u64,
    /// Disks that are good again.
    pub(crate) returned: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// `None` for a suspect, which is probed and not listed.
    state: Option<(ListState, ListReason)>,
    /// A call has failed there.
    failed: bool,
    since: Instant,
    /// When it was listed, and for how long it stays listed at least.
    listed: (Instant, Duration),
    /// Its latency in thousandths of its peers' when it was listed.
    badness: u64,
    /// Their latency then.
    peers: Duration,
    good_probes: u8,
    probe_at: Instant,
    probing: bool,
}

/// The lists of one client. Clones of a client share them.
#[derive(Debug)]
pub(crate) struct Lists {
    /// Latency below which no disk is slow.
    slow_min: Duration,
    entries: BTreeMap<Target, Entry>,
    /// Disks that came back, when, and how long they had to stay.
    returns: BTreeMap<Target, (Instant, Duration)>,
    /// Disks that served a probe although their calls had been given up, and when.
    cleared: BTreeMap<Target, Instant>,
    /// Servers behind addresses.
    servers: BTreeMap<SocketAddr, ServerId>,
    /// Servers that masters do not reach or find slow, and since when that is known.
    pushed: BTreeMap<ServerId, (ListReason, Instant)>,
    /// Servers that operators have emptied.
    draining: BTreeSet<ServerId>,
    /// Those of `pushed` that are listed here: no more servers than may be listed, with those that are listed
    /// by what this client sees.
    shunned: BTreeSet<ServerId>,
    /// Nothing is listed for its latency until then.
    doubt_until: Instant,
    judged: Instant,
    /// Counts changes of what is listed.
    version: u64,
    changes: Changes,
}

impl Lists {
    /// Empty. No disk is slow below `slow_min`.
    pub(crate) fn new(slow_min: Duration) -> Lists {
        Lists {
            slow_min,
            entries: BTreeMap::new(),
            returns: BTreeMap::new(),
            cleared: BTreeMap::new(),
            servers: BTreeMap::new(),
            pushed: BTreeMap::new(),
            draining: BTreeSet::new(),
            shunned: BTreeSet::new(),
            doubt_until: Instant::default(),
            judged: Instant::default(),
            version: 0,
            changes: Changes::default(),
        }
    }

    /// The server that has an address.
    pub(crate) fn note_server(&mut self, addr: SocketAddr, server: ServerId) {
        if self.servers.get(&addr) != Some(&server) {
            if self.servers.len() >= LIST_ADDRESSES_MAX {
                self.servers.clear(); // Servers that have moved are among them; the next views say where.
            }
            self.servers.insert(addr, server);
            self.changed();
        }
    }

    /// What is listed has changed.
    fn changed(&mut self) {
        self.version += 1;
        if self.pushed.is_empty() && self.shunned.is_empty() {
            return;
        }
        let known: BTreeSet<_> = self.servers.values().copied().collect();
        let own: BTreeSet<_> = self.listed().iter().filter_map(|listed| listed.server).collect();
        let most = (known.len() / LIST_SERVERS_SHARE).max(1).saturating_sub(own.len());
        let mut pushed: Vec<_> =
            self.pushed.iter().map(|(server, (reason, _))| (reason, *server)).collect();
        pushed.sort_unstable(); // Unreached ones first.
        let pushed = pushed.into_iter().map(|(_, server)| server);
        let pushed = pushed.filter(|server| known.contains(server) && !own.contains(server));
        self.shunned = pushed.take(most).collect();
    }

    /// Masters do not reach these servers, or find their disks slow, and reach all others. They are listed
    /// for as long as masters say so, within the bound of what may be: nothing else follows, and no probe
    /// ends it.
    pub(crate) fn set_pushed(&mut self, pushed: BTreeMap<ServerId, (ListReason, Instant)>) {
        self.pushed = pushed;
        self.changed();
    }

    /// Operators have these servers emptied: they are asked as any others, and written to no more.
    pub(crate) fn set_draining(&mut self, draining: BTreeSet<ServerId>) {
        self.draining = draining;
        self.changed();
    }

    /// Servers to which chunks are to end: those that masters do not reach, and that are out here, for
    /// whichever reason, and those that operators have emptied.
    pub(crate) fn pushed_servers(&self) -> Vec<ServerId> {
        if self.pushed.is_empty() {
            return self.draining.iter().copied().collect();
        }
        let is_unreached = |server: &ServerId| {
            self.pushed
                .get(server)
                .is_some_and(|(reason, _)| *reason == ListReason::MastersUnreached)
        };
        let own = self.listed().into_iter().filter_map(|listed| listed.server);
        let unreached = own.chain(self.shunned.iter().copied()).filter(is_unreached);
        let all: BTreeSet<_> = unreached.chain(self.draining.iter().copied()).collect();
        all.into_iter().collect()
    }

    /// Listed disks, and of those in use `targets` the ones whose servers masters do not reach or find slow.
    pub(crate) fn listed_with_pushed(&self, targets: &[Target]) -> Vec<ListedDisk> {
        let mut listed = self.listed();
        let own: BTreeSet<_> = listed.iter().map(|listed| listed.target).collect();
        let of_pushed =
            targets.iter().filter(|target| !own.contains(target)).filter_map(|target| {
                let server =
                    self.server(target.addr).filter(|server| self.shunned.contains(server))?;
                let (reason, since) = *self.pushed.get(&server)?;
                let state = match reason {
                    ListReason::MastersSlow => ListState::Slow,
                    _ => ListState::Out,
                };
                Some(ListedDisk { target: *target, server: Some(server), state, reason, since })
            });
        listed.extend(of_pushed);
        listed
    }

    /// Number of changes of what is listed.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn changes(&self) -> Changes {
        self.changes
    }

    /// True when a disk is to be asked last: it is listed, its server is not reached or slow, or a call has
    /// failed there and its probe has not ended.
    pub(crate) fn is_asked_last(&self, target: Target) -> bool {
        if !self.shunned.is_empty()
            && self.server(target.addr).is_some_and(|server| self.shunned.contains(&server))
        {
            return true;
        }
        if self.entries.is_empty() {
            return false;
        }
        let unreached = Some((ListState::Out, ListReason::Unreached));
        let entry = self.entries.get(&target);
        entry.is_some_and(|entry| entry.state.is_some() || entry.failed)
            || self
                .entries
                .iter()
                .any(|(of, entry)| of.addr == target.addr && entry.state == unreached)
    }

    /// Listed disks.
    pub(crate) fn listed(&self) -> Vec<ListedDisk> {
        let listed = self.entries.iter().filter_map(|(target, entry)| {
            let (state, reason) = entry.state?;
            let server = self.servers.get(&target.addr).copied();
            Some(ListedDisk { target: *target, server, state, reason, since: entry.since })
        });
        listed.collect()
    }

    /// The server that has an address, when it is known.
    pub(crate) fn server(&self, addr: SocketAddr) -> Option<ServerId> {
        self.servers.get(&addr).copied()
    }

    /// When a disk is to be probed.
    pub(crate) fn probe_at(&self, target: Target) -> Option<Instant> {
        self.entries.get(&target).map(|entry| entry.probe_at)
    }

    /// Servers with a listed disk, while `copies` others are known: without them a chunk would have
    /// fewer copies because a disk is slow.
    pub(crate) fn unwanted(&self, copies: usize) -> Vec<ServerId> {
        let known: BTreeSet<_> = self.servers.values().collect();
        let own = self.listed().into_iter().filter_map(|listed| listed.server);
        let listed: BTreeSet<_> = own.chain(self.shunned.iter().copied()).collect();
        match known.len() >= copies + listed.len() {
            true => listed.into_iter().collect(),
            false => Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Which server it is, for the share that may be listed: executors of one server are one.
    fn server_of(&self, addr: SocketAddr) -> (Option<ServerId>, Option<SocketAddr>) {
        match self.servers.get(&addr) {
            Some(server) => (Some(*server), None),
            None => (None, Some(addr)),
        }
    }

    /// A call did not get through to the disk: it is probed at once.
    pub(crate) fn suspect(&mut self, target: Target, now: Instant) {
        self.add_suspect(target, true, now);
    }

    fn add_suspect(&mut self, target: Target, failed: bool, now: Instant) {
        if self.entries.len() < SUSPECTS_MAX {
            let entry = self.entries.entry(target).or_insert(Entry {
                state: None,
                failed,
                since: now,
                listed: (now, Duration::ZERO),
                badness: 0,
                peers: Duration::ZERO,
                good_probes: 0,
                probe_at: now,
                probing: false,
            });
            entry.failed |= failed;
        }
    }

    /// Other disks answer before this one. How long it takes is not known, or whether it answers at all:
    /// a probe finds out, one in [`LIST_PROBE_PAUSE`].
    fn suspect_given_up(&mut self, target: Target, now: Instant) {
        self.cleared.retain(|_, at| now.since(*at) < LIST_PROBE_PAUSE);
        if !self.cleared.contains_key(&target) {
            self.add_suspect(target, false, now);
        }
    }

    /// The server of a disk says that it has failed.
    pub(crate) fn disk_failed(&mut self, target: Target, health: &Health, now: Instant) {
        self.list(target, (ListState::Out, ListReason::DiskFailed), (u64::MAX, None), health, now);
    }

    /// Lists disks that are slower than their peers. `draw` is a random number below its argument.
    pub(crate) fn judge(
        &mut self,
        health: &mut Health,
        now: Instant,
        mut draw: impl FnMut(u64) -> u64,
    ) {
        let passed = now.since(self.judged).min(Duration::from_secs(1));
        self.judged = now;
        if now < self.doubt_until {
            return;
        }
        self.list_late_suspects(health, now);
        for target in health.silent(now) {
            self.suspect_given_up(target, now);
        }
        let mut slow: Vec<(u64, Target, Duration)> = Vec::new();
        for (target, (badness, peers)) in self.badness(health, now) {
            let beyond = badness.min(SLOW_SURELY_PER_MILLE).saturating_sub(SLOW_FROM_PER_MILLE);
            let most = SLOW_SURELY_PER_MILLE - SLOW_FROM_PER_MILLE;
            // In millionths: the square of what it is beyond, for each second.
            let chance = beyond * beyond * passed.as_micros() as u64 / (most * most);
            let surely = badness >= SLOW_SURELY_PER_MILLE;
            if surely || beyond > 0 && draw(1_000_000) < chance {
                slow.push((badness, target, peers));
            }
        }
        slow.retain(|(_, target, _)| {
            let back = self.returns.get(target).map(|(back, _)| *back);
            let stays = back.is_some_and(|back| now.since(back) < LIST_STAY_MIN);
            !stays && self.entries.get(target).is_none_or(|entry| entry.state.is_none())
        });
        if slow.is_empty() {
            return;
        }
        let known = self.known_servers(health);
        let at_once: BTreeSet<_> =
            slow.iter().map(|(_, target, _)| self.server_of(target.addr)).collect();
        if known >= LIST_DOUBT_SERVERS && 2 * at_once.len() >= known {
            self.doubt_until = now + LIST_DOUBT;
            return;
        }
        // The worst ones first.
        slow.sort_by_key(|(badness, target, _)| (std::cmp::Reverse(*badness), *target));
        for (badness, target, peers) in slow {
            let state = (ListState::Slow, ListReason::Latency);
            self.list(target, state, (badness, Some(peers)), health, now);
        }
    }

    /// A suspect whose probe takes long is slow, whatever the probe's end says.
    fn list_late_suspects(&mut self, health: &Health, now: Instant) {
        let is_late = |entry: &Entry| {
            entry.state.is_none() && entry.probing && health.age(entry.since, now) >= SUSPECT_AGE
        };
        let late = self.entries.iter().filter(|(_, entry)| is_late(entry));
        let late: Vec<_> = late.map(|(target, _)| *target).collect();
        for target in late {
            let slow = (ListState::Slow, ListReason::Latency);
            self.list(target, slow, (SLOW_SURELY_PER_MILLE, None), health, now);
        }
    }

    /// True while it may be this process that is slow.
    pub(crate) fn doubts_itself(&self, now: Instant) -> bool {
        now < self.doubt_until
    }

    /// Latency of disks in thousandths of that of their peers, and that one: the worst class counts.
    fn badness(&mut self, health: &mut Health, now: Instant) -> BTreeMap<Target, (u64, Duration)> {
        let mut found: BTreeMap<Target, (u64, Duration)> = BTreeMap::new();
        for class in CallClass::all() {
            let evidence = health.evidence(class, now);
            for one in &evidence {
                if one.given_up {
                    self.suspect_given_up(one.target, now);
                }
                let Some(latency) = one.now.filter(|latency| *latency >= self.slow_min) else {
                    continue;
                };
                let server = self.server_of(one.target.addr);
                let others = evidence.iter().filter(|it| self.server_of(it.target.addr) != server);
                let mut others: Vec<_> = others.filter_map(|it| it.usual).collect();
                others.sort_unstable();
                let Some(peers) = others.get(others.len().saturating_sub(1) / 2) else { continue };
                let ratio = latency.as_nanos() * 1000 / peers.as_nanos().max(1);
                let ratio = u64::try_from(ratio).unwrap_or(u64::MAX - 1);
                let worst = found.entry(one.target).or_default();
                *worst = (*worst).max((ratio, *peers));
            }
        }
        found
    }

    fn known_servers(&self, health: &Health) -> usize {
        let targets = health.targets();
        let known: BTreeSet<_> = targets.iter().map(|it| self.server_of(it.addr)).collect();
        known.len()
    }

    /// Puts a disk in a list, unless too many servers are in them that are worse.
    fn list(
        &mut self,
        target: Target,
        state: (ListState, ListReason),
        (badness, peers): (u64, Option<Duration>),
        health: &Health,
        now: Instant,
    ) {
        if let Some(entry) = self.entries.get_mut(&target).filter(|it| it.state.is_some()) {
            if entry.state != Some(state) {
                (entry.state, entry.since, entry.good_probes) = (Some(state), now, 0);
                entry.badness = badness.max(entry.badness);
                self.changed();
            }
            return;
        }
        let server = self.server_of(target.addr);
        let listed: BTreeMap<_, u64> = {
            let entries = self.entries.iter().filter(|(_, entry)| entry.state.is_some());
            let mut worst = BTreeMap::new();
            for (of, entry) in entries {
                let kept: &mut u64 = worst.entry(self.server_of(of.addr)).or_default();
                *kept = (*kept).max(entry.badness);
            }
            worst
        };
        let most = (self.known_servers(health) / LIST_SERVERS_SHARE).max(1);
        if !listed.contains_key(&server) && listed.len() >= most {
            let least = listed.iter().min_by_key(|(_, badness)| **badness);
            let Some((least, _)) = least.filter(|(_, least)| **least < badness) else { return };
            let dropped: Vec<_> = self
                .entries
                .keys()
                .copied()
                .filter(|it| self.server_of(it.addr) == *least)
                .collect();
            self.entries.retain(|it, _| !dropped.contains(it));
        }
        let probe = self.entries.get(&target).copied();
        let before = self.returns.get(&target).filter(|(at, _)| now.since(*at) < LIST_MEMORY);
        let stay = before.map_or(LIST_STAY_MIN, |(_, stay)| (*stay * 2).min(LIST_STAY_MAX));
        let entry = Entry {
            state: Some(state),
            failed: false,
            since: now,
            listed: (now, stay),
            badness,
            peers: peers.unwrap_or_default(),
            good_probes: 0,
            probe_at: probe.map_or(now, |entry| entry.probe_at),
            probing: probe.is_some_and(|entry| entry.probing),
        };
        self.entries.insert(target, entry);
        self.changed();
        self.changes.listed += 1;
    }

    /// Disks that are to be probed now. Each is [ended](Lists::probed) once.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<Target> {
        let due = self.entries.iter_mut().filter(|(_, it)| !it.probing && it.probe_at <= now);
        due.map(|(target, entry)| {
            entry.probing = true;
            *target
        })
        .collect()
    }

    /// A probe has ended. `peer` is what the same took at a disk that is not listed; the next probe is
    /// at `next`.
    pub(crate) fn probed(
        &mut self,
        target: Target,
        (probed, peer): (Probed, Option<Duration>),
        health: &mut Health,
        (now, next): (Instant, Instant),
    ) {
        health.probed(target);
        let Some(entry) = self.entries.get_mut(&target) else { return };
        (entry.probing, entry.probe_at) = (false, next);
        let Some((state, _)) = entry.state else {
            // A suspect.
            let listed = match probed {
                Probed::Served(took) => {
                    let usual = peer.unwrap_or_default().as_nanos().max(1);
                    let badness = u64::try_from(took.as_nanos() * 1000 / usual).unwrap_or(u64::MAX);
                    let is_slow = peer.is_some() && took >= self.slow_min;
                    if !is_slow || badness < SLOW_SURELY_PER_MILLE {
                        self.entries.remove(&target);
                        self.cleared.insert(target, now);
                        return;
                    }
                    (ListState::Slow, ListReason::Latency)
                }
                Probed::Unknown => {
                    self.entries.remove(&target);
                    return;
                }
                Probed::Late => (ListState::Slow, ListReason::Latency),
                Probed::Failed => (ListState::Out, ListReason::DiskFailed),
                Probed::Unanswered => (ListState::Out, ListReason::Unreached),
            };
            self.list(target, listed, (u64::MAX, peer), health, now);
            // When others are worse, it is not listed, and no suspect any more.
            if self.entries.get(&target).is_some_and(|entry| entry.state.is_none()) {
                self.entries.remove(&target);
            }
            return;
        };
        if !matches!(probed, Probed::Served(_)) && now.since(entry.listed.0) >= LIST_MEMORY {
            // It may have been replaced, or its server removed. If not, the next call lists it again.
            self.entries.remove(&target);
            self.changed();
            return;
        }
        let over = now.since(entry.since) >= LIST_STAY_MIN;
        match (probed, state) {
            (Probed::Served(_), ListState::Out) if over => {
                let slow = (ListState::Slow, ListReason::Latency);
                (entry.state, entry.since, entry.good_probes) = (Some(slow), now, 0);
                entry.badness = SLOW_FROM_PER_MILLE;
                self.changed();
            }
            (Probed::Served(_), ListState::Out) => {}
            (Probed::Served(took), ListState::Slow) => {
                let usual = entry.peers.max(peer.unwrap_or_default());
                let is_good = took < (2 * usual).max(self.slow_min);
                entry.good_probes = if is_good { entry.good_probes.saturating_add(1) } else { 0 };
                let (listed, stay) = entry.listed;
                if entry.good_probes >= LIST_PROBES_GOOD && over && now.since(listed) >= stay {
                    self.entries.remove(&target);
                    self.note_return(target, stay, now);
                }
            }
            (Probed::Late, ListState::Slow) => entry.good_probes = 0,
            (Probed::Late, ListState::Out) | (Probed::Unknown, _) => {}
            (Probed::Failed, _) => self.disk_failed(target, health, now),
            (Probed::Unanswered, _) => {
                let out = (ListState::Out, ListReason::Unreached);
                self.list(target, out, (u64::MAX, None), health, now);
            }
        }
    }

    fn note_return(&mut self, target: Target, stay: Duration, now: Instant) {
        self.returns.retain(|_, (at, _)| now.since(*at) < LIST_MEMORY);
        if self.returns.len() >= LIST_RETURNS_MAX {
            let oldest = self.returns.iter().min_by_key(|(target, (at, _))| (*at, **target));
            let oldest = oldest.map(|(target, _)| *target).expect("not empty");
            self.returns.remove(&oldest);
        }
        self.returns.insert(target, (now, stay));
        self.changed();
        self.changes.returned += 1;
    }
}

/// Lists of all clients of a process, for its page of metrics.
pub(crate) struct ListMetrics {
    pub(crate) listed: Counter,
    pub(crate) returned: Counter,
    pub(crate) now: Gauge,
}

impl ListMetrics {
    pub(crate) fn new(registry: &Registry) -> ListMetrics {
        let of = |name, help| registry.counter(name, help, &[]);
        let text = "Disks that clients of this process list as slow or out of service.";
        ListMetrics {
            listed: of("craton_disks_listed_total", "Disks that clients have listed."),
            returned: of("craton_disks_returned_total", "Disks that were good again."),
            now: registry.gauge("craton_disks_listed", text, &[]),
        }
    }
}

#[cfg(test)]
#[path = "lists_tests.rs"]
mod tests;

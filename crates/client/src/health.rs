//! Latencies of calls to replicas, by disk and size (C16): who is likely to answer soon.
//!
//! Health decides whom to ask and when to ask another, never what is true. A record is a histogram
//! of one disk behind one address, for reads or appends of one size class, and the calls under way
//! there: the age of the oldest counts as latency before it ends, since a server that has stopped
//! gives no other evidence. Beside the records one histogram of each kind and class counts all
//! disks. State without I/O or clock: times are passed in, and do not go back.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use base::DiskId;
use metrics::RecentLatencies;
use runtime::{Duration, Instant};
use wire::control::{CallClass, ReplicaPlace};

use crate::limits::{
    BACKUP_SAMPLES_MIN, HEALTH_CALLS_MAX, HEALTH_HALVING, HEALTH_HALVING_RECENT,
    HEALTH_RECORDS_MAX, LIST_INTERVAL, OWN_PAUSE, SILENT_AGE, SILENT_CALLS,
};

/// Share of calls, in thousandths, whose latency a disk is judged by.
const EVIDENCE_PER_MILLE: u32 = 900;
/// Calls of about the last second on which a disk is judged.
const RECENT_SAMPLES_MIN: u64 = 4;
/// Calls of the last seconds with which others are compared.
const USUAL_SAMPLES_MIN: u64 = 16;

/// A disk as a client reaches it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Target {
    /// Address of the executor that serves the disk.
    pub addr: SocketAddr,
    /// The disk's incarnation.
    pub disk: DiskId,
}

impl Target {
    /// The disk of a replica.
    pub fn of(replica: &ReplicaPlace) -> Target {
        Target { addr: replica.addr, disk: replica.disk }
    }
}

/// How a call has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallEnd {
    /// It was answered, or too late: its age is a latency.
    Timed,
    /// It was given up, for another one was answered first: its age is a lower bound of a latency.
    GivenUp,
    /// It was refused before the disk was asked: its age says nothing.
    Untimed,
}

/// A call that has begun. It is to be [ended](Health::end) once.
#[derive(Debug)]
#[must_use]
pub struct CallTicket {
    target: Target,
    class: CallClass,
    number: u64,
    begun: Instant,
    /// Its disk is listed at its end.
    listed: bool,
}

impl CallTicket {
    /// The call ends while its disk is listed (C17), or not: one that is shows nothing of what is usual.
    pub fn at_listed(self, listed: bool) -> CallTicket {
        CallTicket { listed, ..self }
    }

    /// Where it was sent.
    pub fn target(&self) -> Target {
        self.target
    }

    /// When the call began.
    pub fn begun(&self) -> Instant {
        self.begun
    }
}

/// What is known of a disk's calls of one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Evidence {
    /// The disk.
    pub target: Target,
    /// Latency that a tenth of its calls exceeded in about the last second, or the age of its oldest
    /// call, if that is more. `None` without either.
    pub now: Option<Duration>,
    /// The same share of the calls of the last seconds, when they are enough to compare others with.
    pub usual: Option<Duration>,
    /// Most of its calls were given up lately: what they would have taken is not known.
    pub given_up: bool,
}

/// One disk, one class.
#[derive(Clone, Debug)]
struct Record {
    /// Of calls that ended while the disk was not listed.
    histogram: RecentLatencies,
    /// Of about the last second.
    recent: RecentLatencies,
    /// Those of them that were given up.
    given_up: RecentLatencies,
    /// Calls under way by number and beginning, the oldest first.
    under_way: VecDeque<(u64, Instant)>,
    used: Instant,
}

/// Calls of one disk, of all classes, that were given up with none answered between.
#[derive(Clone, Copy, Debug)]
struct Silence {
    /// When the first of them was given up.
    since: Instant,
    calls: u32,
}

/// The records of one client. Clones of a client share them.
#[derive(Debug)]
pub struct Health {
    records: BTreeMap<(Target, CallClass), Record>,
    /// Disks whose last call was given up. Each has a record.
    silences: BTreeMap<Target, Silence>,
    all: [RecentLatencies; CallClass::COUNT],
    next_call: u64,
    records_max: usize,
    /// This process stood still until then: its calls are no older.
    awake_since: Instant,
    /// When the watch over this process ran last, while there is one.
    ticked: Option<Instant>,
    /// When a call ended last.
    ended: Instant,
}

impl Health {
    /// Without evidence, with room for [`HEALTH_RECORDS_MAX`] records.
    pub fn new(now: Instant) -> Health {
        Health::with_room(HEALTH_RECORDS_MAX, now)
    }

    /// With room for `records_max` records.
    pub fn with_room(records_max: usize, now: Instant) -> Health {
        let all = std::array::from_fn(|_| RecentLatencies::new(HEALTH_HALVING, now.as_nanos()));
        Health {
            records: BTreeMap::new(),
            silences: BTreeMap::new(),
            all,
            next_call: 0,
            records_max,
            awake_since: Instant::default(),
            ticked: None,
            ended: now,
        }
    }

    /// Records that it has.
    pub fn records(&self) -> usize {
        self.records.len()
    }

    /// A call begins. When there is no room for its record, the one without a call under way that
    /// was not used for longest is dropped; when all have calls, this one gets none.
    pub fn begin(&mut self, target: Target, class: CallClass, now: Instant) -> CallTicket {
        let number = self.next_call;
        self.next_call += 1;
        let key = (target, class);
        if !self.records.contains_key(&key) && self.records.len() >= self.records_max {
            self.evict();
        }
        let room = self.records.len() < self.records_max;
        if room || self.records.contains_key(&key) {
            let record = self.records.entry(key).or_insert_with(|| Record {
                histogram: RecentLatencies::new(HEALTH_HALVING, now.as_nanos()),
                recent: RecentLatencies::new(HEALTH_HALVING_RECENT, now.as_nanos()),
                given_up: RecentLatencies::new(HEALTH_HALVING_RECENT, now.as_nanos()),
                under_way: VecDeque::new(),
                used: now,
            });
            record.used = now;
            // Those beyond the bound are younger than the oldest, and their latencies count.
            if record.under_way.len() < HEALTH_CALLS_MAX {
                record.under_way.push_back((number, now));
            }
        }
        CallTicket { target, class, number, begun: now, listed: false }
    }

    fn evict(&mut self) {
        let idle = self.records.iter().filter(|(_, record)| record.under_way.is_empty());
        let oldest = idle.min_by_key(|(key, record)| (record.used, **key)).map(|(key, _)| *key);
        if let Some(key) = oldest {
            self.records.remove(&key);
            if !CallClass::all().any(|class| self.records.contains_key(&(key.0, class))) {
                self.silences.remove(&key.0);
            }
        }
    }

    /// A call has ended.
    pub fn end(&mut self, ticket: CallTicket, end: CallEnd, now: Instant) {
        let CallTicket { target, class, number, begun, listed } = ticket;
        self.note_pause(now);
        let latency = self.age(begun, now);
        self.ended = now;
        if end != CallEnd::Untimed {
            self.all[class.index()].add(latency, now.as_nanos());
        }
        let Some(record) = self.records.get_mut(&(target, class)) else { return };
        record.used = now;
        if let Ok(at) = record.under_way.binary_search_by_key(&number, |(number, _)| *number) {
            record.under_way.remove(at);
        }
        if end != CallEnd::Untimed {
            if !listed {
                record.histogram.add(latency, now.as_nanos());
            }
            record.recent.add(latency, now.as_nanos());
        }
        if end == CallEnd::GivenUp {
            record.given_up.add(latency, now.as_nanos());
            let silence = self.silences.entry(target).or_insert(Silence { since: now, calls: 0 });
            silence.calls = silence.calls.saturating_add(1);
        } else {
            // Answered; or failed, which makes the disk a suspect by itself.
            self.silences.remove(&target);
        }
    }

    /// Disks that have answered none of their last calls, [`SILENT_CALLS`] or more, for
    /// [`SILENT_AGE`] since the first of these was given up. That is also known of a disk with too few
    /// calls to have a latency of the last second.
    pub(crate) fn silent(&self, now: Instant) -> Vec<Target> {
        let silences = self.silences.iter().filter(|(_, silence)| {
            silence.calls >= SILENT_CALLS && self.age(silence.since, now) >= SILENT_AGE
        });
        silences.map(|(target, _)| *target).collect()
    }

    /// A probe of a disk has ended, and says more than its silence until then.
    pub(crate) fn probed(&mut self, target: Target) {
        self.silences.remove(&target);
    }

    /// From now on [`Health::tick`] is called every [`LIST_INTERVAL`].
    pub fn watched(&mut self, now: Instant) {
        self.ticked = Some(now);
    }

    /// The watch ends.
    pub fn unwatched(&mut self) {
        self.ticked = None;
    }

    /// Shows that this process runs; false when it stood still until now.
    pub fn tick(&mut self, now: Instant) -> bool {
        let awake = !self.note_pause(now);
        self.ticked = Some(now);
        awake
    }

    /// When the last tick is too long ago, this process stood still until now: nothing that it has not
    /// heard in that time is held against anyone (`protocols-tail.md` 10.2).
    fn note_pause(&mut self, now: Instant) -> bool {
        let late = LIST_INTERVAL + OWN_PAUSE;
        let stood = self.ticked.is_some_and(|ticked| now.since(ticked) > late);
        if stood {
            (self.awake_since, self.ticked) = (now, Some(now));
        }
        stood
    }

    /// For how long this process has waited for what began at `begun`: time in which it stood still
    /// does not count.
    pub fn age(&self, begun: Instant, now: Instant) -> Duration {
        now.since(begun.max(self.awake_since))
    }

    /// True when no call is under way, and none has ended for `time`.
    pub fn is_idle(&self, time: Duration, now: Instant) -> bool {
        let calls = self.records.values().any(|record| !record.under_way.is_empty());
        !calls && now.since(self.ended) >= time
    }

    /// Disks that have a record, each once.
    pub fn targets(&self) -> Vec<Target> {
        let mut targets: Vec<_> = self.records.keys().map(|(target, _)| *target).collect();
        targets.dedup();
        targets
    }

    /// What is known of each disk in a class.
    pub fn evidence(&mut self, class: CallClass, now: Instant) -> Vec<Evidence> {
        let awake = self.awake_since;
        let of_class = self.records.iter_mut().filter(|((_, of), _)| *of == class);
        let known = of_class.map(|((target, _), record)| {
            let calls = record.recent.samples(now.as_nanos());
            let few = calls < RECENT_SAMPLES_MIN;
            let given_up = !few && 2 * record.given_up.samples(now.as_nanos()) > calls;
            let recent =
                record.recent.quantile(EVIDENCE_PER_MILLE, now.as_nanos()).filter(|_| !few);
            let oldest = record.under_way.front().map(|(_, begun)| now.since(awake.max(*begun)));
            let few = record.histogram.samples(now.as_nanos()) < USUAL_SAMPLES_MIN;
            let usual =
                record.histogram.quantile(EVIDENCE_PER_MILLE, now.as_nanos()).filter(|_| !few);
            Evidence { target: *target, now: recent.max(oldest), usual, given_up }
        });
        known.collect()
    }

    /// Calls under way at a disk that are counted, and the age of the oldest.
    pub fn under_way(&self, target: Target, class: CallClass, now: Instant) -> (usize, Duration) {
        let Some(record) = self.records.get(&(target, class)) else { return (0, Duration::ZERO) };
        let oldest = record.under_way.front();
        let oldest =
            oldest.map_or(Duration::ZERO, |(_, begun)| now.since(self.awake_since.max(*begun)));
        (record.under_way.len(), oldest)
    }

    /// Latency of a disk: what `per_mille` of its calls did not exceed, or the age of its oldest
    /// call, if that is more. `None` without any evidence.
    pub fn latency(
        &mut self,
        target: Target,
        class: CallClass,
        per_mille: u32,
        now: Instant,
    ) -> Option<Duration> {
        let (calls, oldest) = self.under_way(target, class, now);
        let record = self.records.get_mut(&(target, class))?;
        let ended = record.histogram.quantile(per_mille, now.as_nanos());
        match calls {
            0 => ended,
            _ => Some(ended.map_or(oldest, |ended| ended.max(oldest))),
        }
    }

    /// Ended calls of a class, at all disks, that still count.
    pub fn samples(&mut self, class: CallClass, now: Instant) -> u64 {
        self.all[class.index()].samples(now.as_nanos())
    }

    /// Latency that `per_mille` of a healthy disk's calls of a class did not exceed: of the disks with enough
    /// calls the one in the middle counts, so that slow ones show in it only when they are the most. Where
    /// no disk has enough, all of them together count. `None` when that is not enough either.
    pub fn healthy(&mut self, class: CallClass, per_mille: u32, now: Instant) -> Option<Duration> {
        let of_class = self.records.iter_mut().filter(|((_, of), _)| *of == class);
        let mut known: Vec<_> = of_class
            .filter_map(|(_, it)| {
                let few = it.histogram.samples(now.as_nanos()) < USUAL_SAMPLES_MIN;
                it.histogram.quantile(per_mille, now.as_nanos()).filter(|_| !few)
            })
            .collect();
        match known.len().checked_sub(1) {
            Some(last) => Some(*known.select_nth_unstable(last / 2).1),
            None if self.samples(class, now) < BACKUP_SAMPLES_MIN => None,
            None => self.quantile(class, per_mille, now),
        }
    }

    /// Latency that `per_mille` of the class's calls did not exceed, over all disks: 500 is the
    /// p50, 999 the p99.9. At most a quarter above the exact one. `None` when none has ended.
    pub fn quantile(&mut self, class: CallClass, per_mille: u32, now: Instant) -> Option<Duration> {
        self.all[class.index()].quantile(per_mille, now.as_nanos())
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;

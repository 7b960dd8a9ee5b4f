//! Doubts of clients about the holder of a lock (`protocols-tail.md` 10.11). A process that leads a service
//! holds a lock over connections that it has made; clients that do not reach it wait for as long as it
//! holds on. When clients of two hosts doubt it within a second, or one and a ping of the master, its lock is
//! renewed no more: the lease runs out as it always may, and another process leads. Nothing else follows from
//! a doubt, so that false ones cost a change of leaders, and few of them.
//!
//! On the leading master alone. It keeps what it knew when another one leads: old doubts refuse nothing, and what
//! it has ended counts when it leads again. Each master has its own count. State without I/O or clock.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use runtime::Instant;

use super::reports::Reports;
use crate::limits::{
    LOCK_DOUBTED_MAX, LOCK_DOUBTED_PAUSE, LOCK_DOUBTED_SPAN, REPORTED_UNREACHED, REPORTS_TOGETHER,
};

/// What is known of one lock.
#[derive(Debug)]
struct DoubtedLock {
    /// The holder that is doubted.
    fencing: u64,
    reports: Reports,
    /// Enough have doubted it: it is to hold the lock no longer.
    refused: bool,
    /// When a renewal was refused first, to this holder and earlier ones, the latest last. A holder that has
    /// died renews nothing, and its doubts are no change of leaders.
    ended: VecDeque<Instant>,
    /// Of this holder.
    has_ended: bool,
}

impl DoubtedLock {
    fn new(fencing: u64, now: Instant) -> DoubtedLock {
        let (reports, ended) = (Reports::new(now), VecDeque::new());
        DoubtedLock { fencing, reports, refused: false, ended, has_ended: false }
    }

    /// Whether it is renewed no more: while doubts go on, for this master may have led long ago.
    fn is_refused(&self, now: Instant) -> bool {
        self.refused && now.since(self.reports.latest()) < LOCK_DOUBTED_PAUSE
    }

    /// The lock is renewed no more, unless it changed hands by doubts lately.
    fn refuse(&mut self, now: Instant) -> bool {
        let within = |span| self.ended.iter().filter(|&&at| now.since(at) < span).count();
        if self.refused
            || within(LOCK_DOUBTED_PAUSE) > 0
            || within(LOCK_DOUBTED_SPAN) >= LOCK_DOUBTED_MAX
        {
            return false;
        }
        self.refused = true;
        true
    }

    /// A renewal is refused.
    fn note_end(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.ended.push_back(now);
            if self.ended.len() > LOCK_DOUBTED_MAX {
                self.ended.pop_front();
            }
        }
    }
}

/// Doubts about the holders of all locks.
#[derive(Debug)]
pub(super) struct LockDoubts {
    /// Hosts whose clients' doubts are enough without a ping.
    hosts_needed: usize,
    locks: BTreeMap<String, DoubtedLock>,
}

/// What follows from a doubt.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Doubted {
    /// The holder is to be pinged now.
    pub(super) ping: bool,
    /// From now on its lock is not renewed.
    pub(super) refused: bool,
}

impl LockDoubts {
    /// Without doubts.
    pub(super) fn new(hosts_needed: usize) -> LockDoubts {
        LockDoubts { hosts_needed, locks: BTreeMap::new() }
    }

    /// A client on the host `from`, if that is known, does not reach the holder `fencing`, which holds the
    /// lock now.
    pub(super) fn note(
        &mut self,
        (name, fencing): (&str, u64),
        from: Option<IpAddr>,
        now: Instant,
    ) -> Doubted {
        if !self.locks.contains_key(name) {
            self.forget(now);
        }
        let lock = self.locks.entry(name.to_owned());
        let lock = lock.or_insert_with(|| DoubtedLock::new(fencing, now));
        lock.refused = lock.is_refused(now);
        if lock.fencing != fencing {
            let ended = std::mem::take(&mut lock.ended);
            *lock = DoubtedLock { ended, ..DoubtedLock::new(fencing, now) };
        }
        let ping = lock.reports.note(from, now);
        let enough = lock.reports.hosts() >= self.hosts_needed;
        Doubted { ping, refused: enough && lock.refuse(now) }
    }

    /// The ping that a doubt has started has ended. `failed`: without an answer, and not because this
    /// master is cut off. True when the lock is renewed no more for it.
    pub(super) fn pinged(
        &mut self,
        (name, fencing): (&str, u64),
        failed: bool,
        now: Instant,
    ) -> bool {
        let Some(lock) = self.locks.get_mut(name).filter(|lock| lock.fencing == fencing) else {
            return false;
        };
        lock.reports.ping_ended();
        failed && now.since(lock.reports.latest()) < REPORTED_UNREACHED && lock.refuse(now)
    }

    /// Whether a renewal by this holder is refused.
    pub(super) fn refuses(&mut self, name: &str, fencing: u64, now: Instant) -> bool {
        let lock = self.locks.get_mut(name);
        let refusing = lock.filter(|lock| lock.fencing == fencing && lock.is_refused(now));
        refusing.map(|lock| lock.note_end(now)).is_some()
    }

    /// Forgets what is over.
    fn forget(&mut self, now: Instant) {
        self.locks.retain(|_, lock| {
            lock.reports.is_pinging()
                || now.since(lock.reports.latest()) < REPORTS_TOGETHER
                || lock.ended.iter().any(|&at| now.since(at) < LOCK_DOUBTED_SPAN)
        });
    }
}

#[cfg(test)]
mod tests {
    use runtime::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn host(number: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, number]))
    }

    struct Bed {
        doubts: LockDoubts,
        now: Instant,
    }

    impl Bed {
        fn new() -> Bed {
            let now = Instant::default() + Duration::from_secs(1000);
            Bed { doubts: LockDoubts::new(2), now }
        }

        fn pass(&mut self, time: Duration) {
            self.now = self.now + time;
        }

        fn doubt(&mut self, fencing: u64, from: Option<IpAddr>) -> Doubted {
            self.doubts.note(("l", fencing), from, self.now)
        }

        fn pinged(&mut self, fencing: u64, failed: bool) -> bool {
            self.doubts.pinged(("l", fencing), failed, self.now)
        }

        fn refuses(&mut self, name: &str, fencing: u64) -> bool {
            self.doubts.refuses(name, fencing, self.now)
        }
    }

    #[test]
    fn doubts_of_one_host_start_pings_and_end_no_lease() {
        let mut bed = Bed::new();
        for _ in 0..50 {
            assert_eq!(bed.doubt(7, host(1)), Doubted { ping: true, refused: false });
            assert_eq!(bed.doubt(7, host(1)), Doubted::default());
            assert!(!bed.pinged(7, false));
            bed.pass(300 * MS);
        }
        // Relays hide the host of a client.
        for _ in 0..50 {
            assert!(!bed.doubt(7, None).refused);
        }
        assert!(!bed.refuses("l", 7));
    }

    #[test]
    fn doubts_of_two_hosts_within_a_second_end_the_lease_of_that_holder() {
        let mut bed = Bed::new();
        assert!(!bed.doubt(7, host(1)).refused);
        bed.pass(REPORTS_TOGETHER);
        assert!(!bed.doubt(7, host(2)).refused, "a second apart");
        bed.pass(REPORTS_TOGETHER - MS);
        assert!(bed.doubt(7, host(1)).refused);
        assert!(bed.refuses("l", 7));
        assert!(!bed.doubt(7, host(2)).refused, "it is refused already");
        // Of that holder and that lock alone, for as long as it lasts.
        assert!(!bed.refuses("l", 8) && !bed.refuses("k", 7));
        bed.pass(5000 * MS);
        assert!(bed.refuses("l", 7));
        // Unless no doubt comes any more.
        bed.pass(5000 * MS);
        assert!(!bed.refuses("l", 7));
        assert!(!bed.doubt(7, host(1)).refused && !bed.refuses("l", 7));
    }

    #[test]
    fn doubt_of_an_earlier_holder_says_nothing_of_the_next() {
        let mut bed = Bed::new();
        bed.doubt(7, host(1));
        assert!(!bed.doubt(8, host(2)).refused);
        assert!(!bed.pinged(7, true), "a ping to the earlier holder");
        assert!(bed.doubt(8, host(1)).refused);
        assert!(!bed.refuses("l", 7) && bed.refuses("l", 8));
    }

    #[test]
    fn doubt_and_a_failed_ping_end_the_lease() {
        let mut bed = Bed::new();
        bed.doubt(7, None);
        bed.pass(250 * MS);
        assert!(bed.pinged(7, true) && bed.refuses("l", 7));
    }

    #[test]
    fn lock_changes_hands_rarely_by_doubts() {
        let mut bed = Bed::new();
        let mut ended = Vec::new();
        let begin = bed.now;
        for step in 0..4000 {
            // Each holder is doubted at once.
            let fencing = ended.len() as u64;
            let refused = bed.doubt(fencing, host(1)).refused | bed.doubt(fencing, host(2)).refused;
            if refused {
                assert!(bed.refuses("l", fencing));
                ended.push(bed.now.since(begin));
            }
            assert!(step == 0 || !ended.is_empty());
            bed.pass(250 * MS);
        }
        let seconds: Vec<u64> = ended.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [0, 10, 20, 600, 610, 620]);
    }

    #[test]
    fn holders_that_have_died_do_not_count() {
        let mut bed = Bed::new();
        for fencing in 0..10 {
            bed.doubt(fencing, host(1));
            assert!(bed.doubt(fencing, host(2)).refused, "{fencing}");
            bed.pass(2000 * MS);
        }
        assert!(bed.refuses("l", 9));
    }

    #[test]
    fn doubts_that_are_over_take_no_memory() {
        let mut bed = Bed::new();
        for number in 0..1000 {
            bed.doubts.note((&number.to_string(), 1), host(1), bed.now);
            bed.doubts.pinged((&number.to_string(), 1), false, bed.now);
        }
        bed.pass(REPORTS_TOGETHER);
        bed.doubt(1, host(1));
        assert_eq!(bed.doubts.locks.len(), 1);
    }
}

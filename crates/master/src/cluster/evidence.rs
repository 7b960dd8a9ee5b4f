//! Evidence of clients that a chunkserver is not reached (C28, `protocols-tail.md` 10.8). One client's
//! report starts a ping, and nothing else. When the ping fails too, or a client of another host reports
//! the same within a second, the server counts as unreached for two seconds, which further evidence
//! renews. So one client that is cut off moves nothing but its own lists, and few servers are
//! unreached by reports at a time, whatever clients say. State without I/O or clock: times are passed
//! in, and do not go back.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base::ServerId;
use runtime::Instant;

use super::reports::Reports;
use crate::limits::{REPORTED_MAX, REPORTED_SHARE, REPORTED_UNREACHED};

/// What is known of one server.
#[derive(Debug)]
struct ReportedServer {
    reports: Reports,
    /// Since when it counts as unreached, and until when.
    unreached: Option<(Instant, Instant)>,
}

/// What follows from a report.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Reported {
    /// The server is to be pinged now.
    pub ping: bool,
    /// It counts as unreached from now on, or for longer.
    pub unreached: bool,
}

/// Reports of clients about all servers.
#[derive(Debug)]
pub(super) struct Evidence {
    /// Hosts whose clients' reports are enough without a ping.
    hosts_needed: usize,
    servers: BTreeMap<ServerId, ReportedServer>,
}

impl Evidence {
    /// Without reports.
    pub(super) fn new(hosts_needed: usize) -> Evidence {
        Evidence { hosts_needed, servers: BTreeMap::new() }
    }

    /// A client on the host `from`, if that is known, has not reached a server, of which there are
    /// `all`. `judges`: this master is not cut off itself, so that reports may count.
    pub(super) fn note(
        &mut self,
        server: ServerId,
        from: Option<IpAddr>,
        (all, judges): (usize, bool),
        now: Instant,
    ) -> Reported {
        let fresh = || ReportedServer { reports: Reports::new(now), unreached: None };
        let known = self.servers.entry(server).or_insert_with(fresh);
        let ping = known.reports.note(from, now);
        let enough = judges && known.reports.hosts() >= self.hosts_needed;
        Reported { ping, unreached: enough && self.condemn(server, all, now) }
    }

    /// The ping that a report has started has ended. `failed`: without an answer, and not because this
    /// master is cut off. True when the server counts as unreached for it.
    pub(super) fn pinged(
        &mut self,
        server: ServerId,
        failed: bool,
        all: usize,
        now: Instant,
    ) -> bool {
        let Some(ReportedServer { reports, .. }) = self.servers.get_mut(&server) else {
            return false;
        };
        reports.ping_ended();
        failed && now.since(reports.latest()) < REPORTED_UNREACHED && self.condemn(server, all, now)
    }

    /// Counts a server as unreached for a while, unless as many as may be are by reports.
    fn condemn(&mut self, server: ServerId, all: usize, now: Instant) -> bool {
        let others = self.servers.iter().filter(|(other, it)| **other != server && it.is(now));
        if others.count() >= (all / REPORTED_SHARE).clamp(1, REPORTED_MAX) {
            return false;
        }
        let Some(known) = self.servers.get_mut(&server) else { return false };
        let since = known.unreached.filter(|_| known.is(now)).map_or(now, |(since, _)| since);
        known.unreached = Some((since, now + REPORTED_UNREACHED));
        true
    }

    /// Since when a server counts as unreached; `None`: it does not.
    pub(super) fn unreached(&self, server: ServerId, now: Instant) -> Option<Instant> {
        let known = self.servers.get(&server).filter(|known| known.is(now))?;
        known.unreached.map(|(since, _)| since)
    }

    /// Forgets what was said of a server: its process was started again.
    pub(super) fn forget_server(&mut self, server: ServerId) {
        self.servers.remove(&server);
    }

    /// Forgets what is over.
    pub(super) fn forget(&mut self, now: Instant) {
        self.servers.retain(|_, known| {
            let ReportedServer { reports, .. } = known;
            let latest = now.since(reports.latest());
            reports.is_pinging() || known.is(now) || latest < REPORTED_UNREACHED
        });
    }
}

impl ReportedServer {
    /// Whether it counts as unreached.
    fn is(&self, now: Instant) -> bool {
        self.unreached.is_some_and(|(_, until)| now < until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limits::{REPORT_HOSTS_MAX, REPORT_PING_PAUSE, REPORTS_TOGETHER};

    const MS: Duration = Duration::from_millis(1);
    const SERVERS: usize = 20;

    fn host(number: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, number]))
    }

    fn server(number: u32) -> ServerId {
        ServerId::new(number)
    }

    struct Bed {
        evidence: Evidence,
        now: Instant,
    }

    impl Bed {
        fn new() -> Bed {
            let now = Instant::default() + Duration::from_secs(1000);
            Bed { evidence: Evidence::new(2), now }
        }

        fn pass(&mut self, time: Duration) {
            self.now = self.now + time;
            self.evidence.forget(self.now);
        }

        fn report(&mut self, number: u32, from: Option<IpAddr>) -> Reported {
            self.evidence.note(server(number), from, (SERVERS, true), self.now)
        }

        fn pinged(&mut self, number: u32, failed: bool) -> bool {
            self.evidence.pinged(server(number), failed, SERVERS, self.now)
        }

        fn unreached(&self) -> Vec<u32> {
            let is = |number: &u32| self.evidence.unreached(server(*number), self.now).is_some();
            (1..=9).filter(is).collect()
        }
    }

    #[test]
    fn reports_of_one_host_start_pings_and_no_more() {
        let mut bed = Bed::new();
        assert_eq!(bed.report(1, host(1)), Reported { ping: true, unreached: false });
        // One at a time, and with a pause.
        assert_eq!(bed.report(1, host(1)), Reported::default());
        assert!(!bed.pinged(1, false));
        assert_eq!(bed.report(1, host(1)), Reported::default());
        for _ in 0..100 {
            bed.pass(REPORT_PING_PAUSE);
            assert_eq!(bed.report(1, host(1)), Reported { ping: true, unreached: false });
            assert!(!bed.pinged(1, false));
        }
        assert!(bed.unreached().is_empty());
    }

    #[test]
    fn a_report_and_a_failed_ping_count_for_two_seconds() {
        let mut bed = Bed::new();
        bed.report(1, None);
        bed.pass(250 * MS);
        assert!(bed.pinged(1, true));
        assert_eq!(bed.unreached(), [1]);
        bed.pass(REPORTED_UNREACHED - MS);
        assert_eq!(bed.unreached(), [1]);
        bed.pass(MS);
        assert!(bed.unreached().is_empty());
        // A failed ping alone, long after the report, is for the rounds of pings to judge.
        bed.report(1, None);
        bed.pass(REPORTED_UNREACHED);
        assert!(!bed.pinged(1, true) && bed.unreached().is_empty());
    }

    #[test]
    fn reports_of_two_hosts_within_a_second_count_and_renew() {
        let mut bed = Bed::new();
        bed.report(1, host(1));
        bed.pass(REPORTS_TOGETHER);
        assert!(!bed.report(1, host(2)).unreached, "a second apart");
        bed.pass(REPORTS_TOGETHER - MS);
        assert!(bed.report(1, host(1)).unreached);
        let since = bed.evidence.unreached(server(1), bed.now);
        for _ in 0..5 {
            bed.pass(REPORTED_UNREACHED - 500 * MS);
            // The same host again is no further evidence.
            assert!(!bed.report(1, host(1)).unreached);
            assert!(bed.report(1, host(2)).unreached);
        }
        assert_eq!(bed.evidence.unreached(server(1), bed.now), since);
        // Reports without a known host count for none.
        bed.pass(2 * REPORTED_UNREACHED);
        assert!(!bed.report(1, None).unreached && !bed.report(1, None).unreached);
        assert!(!bed.report(1, host(1)).unreached);
    }

    #[test]
    fn master_that_is_cut_off_believes_no_reports() {
        let mut bed = Bed::new();
        for number in 0..9 {
            let reported = bed.evidence.note(server(1), host(number), (SERVERS, false), bed.now);
            assert_eq!(reported, Reported { ping: number == 0, unreached: false });
        }
    }

    #[test]
    fn few_servers_are_unreached_by_reports_at_a_time() {
        for (all, most) in [(2, 1), (9, 1), (20, 2), (29, 2), (30, 3), (1000, 3)] {
            let mut bed = Bed::new();
            for _ in 0..20 {
                for number in 1..=9 {
                    bed.evidence.note(server(number), host(1), (all, true), bed.now);
                    bed.evidence.note(server(number), host(2), (all, true), bed.now);
                }
                assert_eq!(bed.unreached().len(), most, "of {all}");
                bed.pass(200 * MS);
            }
        }
    }

    #[test]
    fn hostile_reports_take_bounded_memory() {
        let mut bed = Bed::new();
        for number in 0..=u8::MAX {
            bed.report(1, host(number));
        }
        assert_eq!(bed.evidence.servers[&server(1)].reports.hosts(), REPORT_HOSTS_MAX);
        bed.pinged(1, false);
        bed.pass(2 * REPORTED_UNREACHED);
        assert!(bed.evidence.servers.is_empty());
    }
}

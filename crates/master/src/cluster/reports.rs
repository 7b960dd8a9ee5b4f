//! Reports of clients about one process that they do not reach: those of different hosts within a second
//! count together, and a report starts a ping, for one host may be cut off itself.

use std::net::IpAddr;

use runtime::Instant;

use crate::limits::{REPORT_HOSTS_MAX, REPORT_PING_PAUSE, REPORTS_TOGETHER};

/// Reports about one process.
#[derive(Debug)]
pub(super) struct Reports {
    /// Hosts of those of the last second, each once.
    hosts: Vec<(IpAddr, Instant)>,
    /// The last one, also of a client whose host is not known.
    latest: Instant,
    /// When it was pinged last because of one.
    pinged: Option<Instant>,
    /// That ping has not ended.
    pinging: bool,
}

impl Reports {
    /// None yet.
    pub(super) fn new(now: Instant) -> Reports {
        Reports { hosts: Vec::new(), latest: now, pinged: None, pinging: false }
    }

    /// A client on the host `from`, if that is known, reports. True when a ping is to start.
    pub(super) fn note(&mut self, from: Option<IpAddr>, now: Instant) -> bool {
        self.latest = now;
        self.hosts.retain(|(host, at)| {
            now.since(*at) < REPORTS_TOGETHER && from.is_none_or(|from| from != *host)
        });
        if let Some(from) = from {
            if self.hosts.len() == REPORT_HOSTS_MAX {
                self.hosts.remove(0);
            }
            self.hosts.push((from, now));
        }
        let paused = self.pinged.is_none_or(|at| now.since(at) >= REPORT_PING_PAUSE);
        let ping = paused && !self.pinging;
        if ping {
            (self.pinged, self.pinging) = (Some(now), true);
        }
        ping
    }

    /// Hosts that have reported within a second of the last report.
    pub(super) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// When the last report came.
    pub(super) fn latest(&self) -> Instant {
        self.latest
    }

    /// The ping that a report has started has ended.
    pub(super) fn ping_ended(&mut self) {
        self.pinging = false;
    }

    /// Such a ping is under way.
    pub(super) fn is_pinging(&self) -> bool {
        self.pinging
    }
}

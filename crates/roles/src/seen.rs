//! What a process with a client sees of chunkservers' disks: the page `/seen`, in JSON, which
//! `craton health --from` reads.

use std::net::SocketAddr;

use client::{Client, ListReason, ListState, SeenCalls, SeenDisk};
use runtime::Duration;
use serde::{Deserialize, Serialize};

/// The page.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// ID of the process.
    pub observer: String,
    /// Disks that it has used lately, or has listed.
    pub disks: Vec<Disk>,
}

/// A disk.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// Address at which it is reached.
    pub addr: SocketAddr,
    /// Its incarnation.
    pub disk: String,
    /// `good`, `slow`, `out`, or `unreached`: out because masters do not reach its server.
    pub state: String,
    /// Cause, unless it is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Seconds for which it has been so, unless it is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_s: Option<u64>,
    /// Seconds until it is probed, if it is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_probe_s: Option<u64>,
    /// Its calls by class.
    pub calls: Vec<Calls>,
}

/// Calls of one class, latencies in microseconds.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Calls {
    /// What they do, and their size: `read, up to 16 KiB`.
    pub class: String,
    /// Latency that half of the last ones did not exceed.
    pub p50_us: u64,
    /// Latency that 99 of 100 did not exceed.
    pub p99_us: u64,
    /// Age of the oldest that waits; 0 without one.
    pub oldest_us: u64,
}

/// The page's text.
pub(crate) fn page(observer: &str, client: &Client) -> String {
    let disks = client.seen_disks().into_iter().map(disk).collect();
    let seen = Seen { observer: observer.to_owned(), disks };
    serde_json::to_string(&seen).unwrap_or_default() + "\n"
}

fn disk(seen: SeenDisk) -> Disk {
    let seconds = |time: Duration| time.as_secs();
    let (state, reason, since_s) = match seen.listed {
        None => ("good", None, None),
        Some((listed, since)) => {
            let state = match (listed.state, listed.reason) {
                (_, ListReason::MastersUnreached) => "unreached",
                (ListState::Slow, _) => "slow",
                (ListState::Out, _) => "out",
            };
            let reason = match listed.reason {
                ListReason::Latency => "its calls take longer than those of other disks",
                ListReason::Unreached => "its server does not answer",
                ListReason::DiskFailed => "its server says that it has failed",
                ListReason::MastersUnreached => "masters: unreached",
                ListReason::MastersSlow => "masters: its disks take longer than those of others",
            };
            (state, Some(reason.to_owned()), Some(seconds(since)))
        }
    };
    Disk {
        addr: seen.target.addr,
        disk: seen.target.disk.to_string(),
        state: state.to_owned(),
        reason,
        since_s,
        next_probe_s: seen.next_probe.map(seconds),
        calls: seen.calls.into_iter().map(calls).collect(),
    }
}

fn calls(seen: SeenCalls) -> Calls {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    Calls {
        class: seen.class.to_string(),
        p50_us: micros(seen.p50),
        p99_us: micros(seen.p99),
        oldest_us: micros(seen.oldest),
    }
}

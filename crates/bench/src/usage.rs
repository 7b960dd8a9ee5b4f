//! CPU and device bytes of the measured work: differences of the processes' counters, less the part
//! that their metrics assign to other work.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use client::Client;

use super::Processes;

/// Counters of processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    /// CPU microseconds, user and system, by role.
    cpu_us: BTreeMap<String, f64>,
}

/// Bytes that the chunkservers have caused to be written to devices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceBytes {
    written: u64,
    /// Zeroes among them: a store writes its space once before it is used (`protocols.md` 3.5), so they
    /// belong to the store's age and not to the work. Nothing when a process did not report it.
    zeroed: Option<u64>,
}

/// Age of metrics, at most: processes collect them once a second, and later on a busy machine.
pub(crate) const METRICS_AGE: Duration = Duration::from_secs(2);
/// Wait for a process's metrics.
const METRICS_TIMEOUT: Duration = Duration::from_secs(2);
/// Zeroes that a store has written.
const ZEROED: &str = "craton_disk_zeroed_bytes_total";

impl DeviceBytes {
    /// Counters of `processes`. Metrics are up to a second old: the difference is valid over a long
    /// time that ends [`METRICS_AGE`] after the work.
    pub(crate) fn now(processes: &dyn Processes) -> DeviceBytes {
        let servers = processes.metrics().into_iter();
        let zeroed = servers.map(|metrics| metrics.and_then(zeroed_bytes)).sum();
        DeviceBytes { written: processes.written_bytes(), zeroed }
    }

    /// Written since `before`, without the zeroes if they are known.
    pub(crate) fn since(self, before: DeviceBytes) -> u64 {
        let known = self.zeroed.zip(before.zeroed);
        let zeroed = known.map_or(0, |(now, before)| now.saturating_sub(before));
        self.written.saturating_sub(before.written).saturating_sub(zeroed)
    }
}

/// Zeroes written, by a chunkserver's metrics, over all its disks.
fn zeroed_bytes(addr: SocketAddr) -> Option<u64> {
    let mut stream = TcpStream::connect_timeout(&addr, METRICS_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(METRICS_TIMEOUT)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\n\r\n").ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    zeroed_in(&page)
}

fn zeroed_in(page: &str) -> Option<u64> {
    let disks = page
        .lines()
        .filter(|line| line.strip_prefix(ZEROED).is_some_and(|rest| rest.starts_with(['{', ' '])));
    let values = disks.map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.map(|value| value.map(|value| value as u64)).sum()
}

impl Usage {
    /// Of `processes`, and of this process.
    pub(crate) fn now(processes: &dyn Processes) -> Usage {
        Usage { cpu_us: processes.cpu_us() }
    }

    /// CPU per operation since `before`.
    pub(crate) fn cpu_per_op(&self, before: &Usage, ops: u64) -> BTreeMap<String, f64> {
        let ops = ops.max(1) as f64;
        let used = |role: &str, now: f64| now - before.cpu_us.get(role).copied().unwrap_or(0.0);
        self.cpu_us.iter().map(|(role, now)| (role.clone(), used(role, *now) / ops)).collect()
    }
}

/// Sector bytes that a client has sent to and received from chunkservers.
pub(crate) fn net_bytes(client: &Client) -> u64 {
    let totals = client.totals();
    totals.sent_bytes + totals.received_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_are_left_out() {
        let page = "HTTP/1.1 200 OK\r\n\r\n# HELP craton_disk_zeroed_bytes_total Zeroes.\n\
            craton_disk_zeroed_bytes_total{disk=\"a\"} 4096\n\
            craton_disk_zeroed_bytes_total{disk=\"b\"} 1e6\ncraton_disk_zeroed_bytes_totals 7\n";
        assert_eq!(zeroed_in(page), Some(1_004_096));
        assert_eq!(zeroed_in("craton_disk_zeroed_bytes_total x"), None);
        let bytes = |written, zeroed| DeviceBytes { written, zeroed };
        let before = bytes(100, Some(50));
        assert_eq!(bytes(400, Some(150)).since(before), 200);
        assert_eq!(bytes(120, Some(150)).since(before), 0);
        assert_eq!(bytes(400, Some(150)).since(bytes(100, None)), 300);
    }
}

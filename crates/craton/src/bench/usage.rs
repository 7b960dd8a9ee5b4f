//! CPU and device bytes of processes, from `/proc`; and what of the bytes is not of the work that
//! is measured, from their metrics.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::THIS_PROCESS;

/// A process whose use is counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its role: the key of the figures.
    pub role: String,
    /// Its process ID.
    pub pid: u32,
    /// Where it serves its metrics.
    pub metrics: Option<SocketAddr>,
}

/// What processes have used so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    /// CPU microseconds, user and system, by role.
    cpu_us: BTreeMap<String, f64>,
}

/// Bytes that the chunkservers have caused to be written to devices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceBytes {
    written: u64,
    /// Zeroes among them: a store writes its space once before it is used (`protocols.md` 3.4), so
    /// they belong to the store's age and not to the work. Nothing when a process did not say.
    zeroed: Option<u64>,
}

/// How old metrics may be: processes take them together once a second.
pub(crate) const METRICS_AGE: Duration = Duration::from_millis(1200);
/// How long a process may take to show its metrics.
const METRICS_TIMEOUT: Duration = Duration::from_secs(2);
/// Zeroes that a store has written.
const ZEROED: &str = "craton_disk_zeroed_bytes_total";

impl DeviceBytes {
    /// Of `processes`. Metrics are up to a second old, so this means something over a time that is
    /// long, and that ends [`METRICS_AGE`] after the work.
    pub(crate) fn now(processes: &[Process]) -> DeviceBytes {
        let servers = processes.iter().filter(|process| process.role == "chunkserver");
        let zeroed = servers.map(|process| process.metrics.and_then(zeroed_bytes)).sum();
        DeviceBytes { written: written_bytes(processes), zeroed }
    }

    /// Written since `before`, without the zeroes if they are known.
    pub(crate) fn since(self, before: DeviceBytes) -> u64 {
        let known = self.zeroed.zip(before.zeroed);
        let zeroed = known.map_or(0, |(now, before)| now.saturating_sub(before));
        self.written.saturating_sub(before.written).saturating_sub(zeroed)
    }
}

/// What a chunkserver's metrics say of zeroes, over all its disks.
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

/// Microseconds of a clock tick: `/proc` counts in hundredths of a second on every Linux here.
const TICK_US: f64 = 10_000.0;

impl Usage {
    /// Of `processes`, and of this process.
    pub(crate) fn now(processes: &[Process]) -> Usage {
        let mut usage = Usage::default();
        for process in processes {
            let cpu = cpu_us(&format!("/proc/{}", process.pid));
            *usage.cpu_us.entry(process.role.clone()).or_default() += cpu;
        }
        usage.cpu_us.insert(THIS_PROCESS.to_owned(), cpu_us("/proc/self"));
        usage
    }

    /// CPU per operation since `before`.
    pub(crate) fn cpu_per_op(&self, before: &Usage, ops: u64) -> BTreeMap<String, f64> {
        let ops = ops.max(1) as f64;
        let used = |role: &str, now: f64| now - before.cpu_us.get(role).copied().unwrap_or(0.0);
        self.cpu_us.iter().map(|(role, now)| (role.clone(), used(role, *now) / ops)).collect()
    }
}

/// 0 for a process that is gone.
fn cpu_us(proc_dir: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("{proc_dir}/stat")).unwrap_or_default();
    // The name may hold spaces: fields are counted from the closing parenthesis.
    let fields: Vec<&str> = match stat.rfind(')') {
        Some(end) => stat[end + 1..].split_whitespace().collect(),
        None => return 0.0,
    };
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) * TICK_US
}

/// What chunkservers among `processes` have caused to be written to devices, with the zeroes.
pub(crate) fn written_bytes(processes: &[Process]) -> u64 {
    let servers = processes.iter().filter(|process| process.role == "chunkserver");
    servers.map(|process| written_by(process.pid)).sum()
}

fn written_by(pid: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
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

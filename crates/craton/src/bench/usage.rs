//! CPU and device bytes of processes, from `/proc`.

use std::collections::BTreeMap;

/// A process whose use is counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its role: the key of the figures.
    pub role: String,
    /// Its process ID.
    pub pid: u32,
}

/// What processes have used so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    /// CPU microseconds, user and system, by role.
    cpu_us: BTreeMap<String, f64>,
    /// Bytes the chunkservers caused to be written to devices.
    disk_bytes: u64,
}

/// Microseconds of a clock tick: `/proc` counts in hundredths of a second on every Linux here.
const TICK_US: f64 = 10_000.0;

impl Usage {
    /// Of `processes`, and of this process as `bench`.
    pub(crate) fn now(processes: &[Process]) -> Usage {
        let mut usage = Usage::default();
        for process in processes {
            let cpu = cpu_us(&format!("/proc/{}", process.pid));
            *usage.cpu_us.entry(process.role.clone()).or_default() += cpu;
            if process.role == "chunkserver" {
                usage.disk_bytes += written_bytes(process.pid);
            }
        }
        usage.cpu_us.insert("bench".to_owned(), cpu_us("/proc/self"));
        usage
    }

    /// CPU per operation since `before`.
    pub(crate) fn cpu_per_op(&self, before: &Usage, ops: u64) -> BTreeMap<String, f64> {
        let ops = ops.max(1) as f64;
        let used = |role: &str, now: f64| now - before.cpu_us.get(role).copied().unwrap_or(0.0);
        self.cpu_us.iter().map(|(role, now)| (role.clone(), used(role, *now) / ops)).collect()
    }

    /// Device bytes since `before`.
    pub(crate) fn disk_bytes(&self, before: &Usage) -> u64 {
        self.disk_bytes.saturating_sub(before.disk_bytes)
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

fn written_bytes(pid: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

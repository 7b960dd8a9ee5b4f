//! Rows of `craton bench object`, as `--json` prints them.

use std::collections::BTreeMap;

use serde::Serialize;

/// All rows of the measurement: what `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectReport {
    /// Its name: `object`.
    pub bench: &'static str,
    /// One for each combination, behind the core's own.
    pub results: Vec<ObjectRow>,
}

/// One row. Times are in microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ObjectRow {
    /// `put`, `get`, `list`, `list_prefixes`, or of the core `core_append` and `core_read`.
    pub op: &'static str,
    /// Bytes of one operation; names of a page for `list` and `list_prefixes`.
    pub size: u64,
    /// Operations under way at once.
    pub concurrency: usize,
    /// Operations a second.
    pub ops_s: f64,
    /// User bytes a second, in millions; none for lists.
    pub mb_s: Option<f64>,
    /// Mean latency.
    pub mean_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// CPU (user and system) of each role's processes together, per operation. This process, the
    /// load, is not among them.
    pub cpu_us_per_op: BTreeMap<String, f64>,
    /// CPU of masters and chunkservers for an append (`put`) or a read (others) of the same size by
    /// the core's client, at the same depth in the same run; of 4 KiB for lists. The client's own
    /// CPU, in this process, is not in it.
    pub core_cpu_us: f64,
    /// The sum of `cpu_us_per_op` over `core_cpu_us`.
    pub ratio: f64,
    /// Bytes that the chunkservers wrote to devices per user byte. None for reads and lists, and when
    /// the chunkservers are no processes of their own.
    pub disk_bytes_per_byte: Option<f64>,
}

impl ObjectRow {
    /// CPU of all our processes per operation.
    pub fn cpu_us(&self) -> f64 {
        self.cpu_us_per_op.values().sum()
    }
}

//! Reports: rows of figures, as `--json` prints them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::volume::LeftOut;

/// All rows of one benchmark: what `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its name.
    pub bench: &'static str,
    /// One for each combination asked for.
    pub results: Vec<Row>,
    /// Parts that were not measured, where the benchmark has parts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
}

impl Report {
    /// With these rows.
    pub fn new(bench: &'static str, results: Vec<Row>) -> Report {
        Report { bench, results, left_out: Vec::new() }
    }
}

/// One row. Times are in microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// The operation, where the benchmark has several kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Bytes of one operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Operations in flight.
    pub depth: usize,
    /// Replicas of each append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<usize>,
    /// Policy of the file, as commands take it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Operations measured.
    pub ops: u64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// 99.99th percentile.
    pub p9999_us: f64,
    /// Longest.
    pub max_us: f64,
    /// User bytes a second, for sequential work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mib_per_s: Option<f64>,
    /// The floor of one operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor_us: Option<f64>,
    /// Parts of the floor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<FloorParts>,
    /// `mean_us / floor_us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// `mean_us` over that of the core's own append or read in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_core: Option<f64>,
    /// Bytes that a volume's log and garbage collection wrote, over those of the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_amplification: Option<f64>,
    /// Live blocks over all blocks in a volume's DataFiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_share: Option<f64>,
    /// The longest percentile that so many operations support, where it is compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<&'static str>,
    /// That percentile over the one of the same without garbage collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_tail: Option<f64>,
    /// Longest wait, in ms, of the operations that ended after a block server was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_ms: Option<f64>,
    /// Share of the device's rate, for sequential work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction_of_floor: Option<f64>,
    /// CPU (user and system) of each role's processes together, per operation; this process,
    /// which is the load generator and the client, is listed as `bench`.
    pub cpu_us_per_op: BTreeMap<String, f64>,
    /// The sum of it without this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_op_servers: Option<f64>,
    /// That of this process. It makes the load, but of a volume it is the block client as well,
    /// which through NBD is the front end's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_op_client: Option<f64>,
    /// Bytes that this process sent and received per user byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_bytes_per_byte: Option<f64>,
    /// Bytes that the chunkservers wrote to their devices per user byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes_per_byte: Option<f64>,
}

impl Row {
    /// CPU per operation over slices: operations of each, and their CPU.
    pub(crate) fn average_cpu(&mut self, slices: &[(u64, BTreeMap<String, f64>)]) {
        let ops: u64 = slices.iter().map(|(count, _)| count).sum();
        for (count, used) in slices {
            for (role, per_op) in used {
                let share = *count as f64 / ops.max(1) as f64;
                *self.cpu_us_per_op.entry(role.clone()).or_default() += per_op * share;
            }
        }
        let client = self.cpu_us_per_op.get(THIS_PROCESS).copied();
        self.cpu_us_per_op_client = client;
        let all: f64 = self.cpu_us_per_op.values().sum();
        self.cpu_us_per_op_servers = Some(all - client.unwrap_or_default());
    }

    /// The longest percentile that so many operations support, ten of them above it.
    pub(crate) fn tail(&self) -> (&'static str, f64) {
        match self.ops {
            100_000.. => ("p99.99", self.p9999_us),
            10_000.. => ("p99.9", self.p999_us),
            1_000.. => ("p99", self.p99_us),
            _ => ("p50", self.p50_us),
        }
    }
}

/// This process among the roles.
pub const THIS_PROCESS: &str = "bench";

/// Parts of an append's floor.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct FloorParts {
    /// `replicas` concurrent direct durable writes of the padded size, until the last is done.
    pub disk_us: f64,
    /// One such write alone.
    pub disk_single_us: f64,
    /// A cross-core round trip over TCP with the same wait policy.
    pub rtt_us: f64,
}

//! What an object server and an object manager show of themselves.

use table::Table;

use crate::logs::Logs;

/// An object server, at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerStats {
    /// Ranges that it has been given.
    pub ranges: usize,
    /// Those of them that are open.
    pub served: usize,
    /// Requests of clients for ranges that it has, since it began.
    pub requests: u64,
    /// Bytes of small objects in requests to them.
    pub request_bytes: u64,
    /// Its open ranges together.
    pub tables: TableStats,
}

/// Tables of open ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableStats {
    /// Sorted runs.
    pub runs: usize,
    /// Bytes of sorted files.
    pub index_bytes: u64,
    /// Bytes of changes in memory.
    pub memory: usize,
    /// Logs that are kept for their data, and bytes of it.
    pub logs: usize,
    /// Bytes of data in them.
    pub log_bytes: u64,
    /// Of these, bytes that no object names any more.
    pub dead_bytes: u64,
    /// Batches made durable, by instances that are open.
    pub batches: u64,
    /// Appends that made them so.
    pub appends: u64,
    /// Batches refused for a moment.
    pub refused: u64,
}

impl TableStats {
    pub(crate) fn of(table: &Table, dead: &Logs) -> TableStats {
        let stats = table.stats();
        let kept = table.data_logs();
        TableStats {
            runs: stats.runs,
            index_bytes: stats.bytes,
            memory: stats.memory,
            logs: kept.len(),
            log_bytes: kept.iter().map(|log| log.data).sum(),
            dead_bytes: kept.iter().map(|log| dead.row(log.log).dead).sum(),
            batches: stats.batches,
            appends: stats.groups,
            refused: stats.refused,
        }
    }

    pub(crate) fn add(&mut self, other: TableStats) {
        self.runs += other.runs;
        self.index_bytes += other.index_bytes;
        self.memory += other.memory;
        self.logs += other.logs;
        self.log_bytes += other.log_bytes;
        self.dead_bytes += other.dead_bytes;
        self.batches += other.batches;
        self.appends += other.appends;
        self.refused += other.refused;
    }
}

/// An object manager that leads, at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ManagerStats {
    /// Ranges.
    pub ranges: usize,
    /// Those that no server serves.
    pub unserved: usize,
    /// Object servers that it hears from.
    pub servers: usize,
    /// Gateways that it hears from.
    pub gateways: usize,
}

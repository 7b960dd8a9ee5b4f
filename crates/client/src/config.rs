//! Options of a program's client.

use runtime::Duration;
use wire::control::Compression;

use crate::backup::BackupConfig;
use crate::limits::{
    APPENDS_INFLIGHT_DEFAULT, APPENDS_INFLIGHT_MAX, CACHE_CHUNKS_DEFAULT, CHASE_BYTES_ALL_DEFAULT,
    CHASE_BYTES_DEFAULT, CHUNK_LEN_DEFAULT, CHUNK_LEN_MIN, CONTROL_BUDGET_MAX, HEALTH_RECORDS_MAX,
    PREFETCH_DEFAULT, PREFETCH_MAX, SLOW_MIN, SPARES_DEFAULT, SPARES_MAX, WINDOW_BYTES_DEFAULT,
    WINDOW_BYTES_MIN,
};
use crate::writer::WriterConfig;

/// Behaviour of a [`crate::Client`]. The defaults suit a cluster on one machine and on a LAN.
#[derive(Clone, Debug)]
pub struct Config {
    /// Appends of one writer in flight, 1 to 4096.
    pub appends_inflight_max: u32,
    /// Bytes of sectors of one writer in flight, from 1 MiB.
    pub window_bytes: u32,
    /// The writers' protocol.
    pub writer: WriterConfig,
    /// Compression of appends to files whose policy has none (C19). Chunkservers and readers must know
    /// rows.
    pub compression: Option<Compression>,
    /// Wait for one answer of a master before another is asked.
    pub control_attempt: Duration,
    /// Wait for one answer to `open` and `seal`, which fence replicas that may be gone.
    pub fence_attempt: Duration,
    /// Time after which an operation on the masters fails, up to [`CONTROL_BUDGET_MAX`].
    pub control_budget: Duration,
    /// Wait for one answer of a replica to a read before another is asked.
    pub read_attempt: Duration,
    /// Time after which a read that makes no progress fails.
    pub read_budget: Duration,
    /// Time after which the end of a file that is open for append counts as unknown. Longer than
    /// `writer.commit_repeat`: in it a writer that lives notifies replicas that have restarted.
    pub end_timeout: Duration,
    /// Time for which a replica of a chunk that was damaged, missing or not reached is asked last.
    pub read_penalty: Duration,
    /// Backup reads (C16).
    pub backup: BackupConfig,
    /// Latency below which no disk is listed as slow (C17).
    pub slow_min: Duration,
    /// Records of the latencies of replicas, up to [`HEALTH_RECORDS_MAX`].
    pub health_records: usize,
    /// Chunks in the chunk-information cache (C6).
    pub cache_chunks: usize,
    /// Chunks that one look-up brings (C8), 1 to 256.
    pub prefetch: u32,
    /// Bytes that all writers of this client may owe to late replicas together (C14).
    pub chase_bytes_max: u64,
    /// A name in the root directory that paths may not go through, however they come there, and that
    /// listings do not show.
    pub hidden: Option<&'static str>,
    /// Write the file's length and time to the namespace when a writer closes.
    pub record_len: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            appends_inflight_max: APPENDS_INFLIGHT_DEFAULT,
            window_bytes: WINDOW_BYTES_DEFAULT,
            writer: WriterConfig::default(),
            compression: None,
            control_attempt: Duration::from_millis(600),
            fence_attempt: Duration::from_secs(4),
            control_budget: Duration::from_secs(20),
            read_attempt: Duration::from_millis(500),
            read_budget: Duration::from_secs(20),
            end_timeout: Duration::from_secs(10),
            read_penalty: Duration::from_secs(5),
            backup: BackupConfig::default(),
            slow_min: SLOW_MIN,
            health_records: HEALTH_RECORDS_MAX,
            cache_chunks: CACHE_CHUNKS_DEFAULT,
            prefetch: PREFETCH_DEFAULT,
            chase_bytes_max: CHASE_BYTES_ALL_DEFAULT,
            hidden: None,
            record_len: true,
        }
    }
}

impl Config {
    /// The same with every value within its bounds.
    pub fn clamped(mut self) -> Config {
        self.appends_inflight_max = self.appends_inflight_max.clamp(1, APPENDS_INFLIGHT_MAX);
        self.window_bytes = self.window_bytes.max(WINDOW_BYTES_MIN);
        self.writer.chunk_len_max =
            self.writer.chunk_len_max.clamp(CHUNK_LEN_MIN, base::limits::CHUNK_LEN_MAX as u32);
        self.writer.spares = self.writer.spares.min(SPARES_MAX);
        self.control_budget = self.control_budget.min(CONTROL_BUDGET_MAX);
        self.prefetch = self.prefetch.clamp(1, PREFETCH_MAX);
        self.health_records = self.health_records.clamp(1, HEALTH_RECORDS_MAX);
        self.cache_chunks = self.cache_chunks.max(PREFETCH_MAX as usize);
        self
    }
}

impl Default for WriterConfig {
    fn default() -> WriterConfig {
        WriterConfig {
            code: None,
            in_copies: false,
            switch_bytes: 2 << 20,
            copies: 0,
            chunk_len_max: CHUNK_LEN_DEFAULT,
            spares: SPARES_DEFAULT,
            resend_after: Duration::from_millis(150),
            replica_timeout: Duration::from_millis(500),
            unreachable_timeout: Duration::from_millis(150),
            stuck_timeout: Duration::from_secs(5),
            retry_pause: Duration::from_millis(2),
            commit_idle: Duration::from_millis(5),
            commit_repeat: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(10),
            whole_pause: Duration::from_secs(5),
            whole_pause_max: Duration::from_secs(300),
            chase_bytes: CHASE_BYTES_DEFAULT,
            chase_for: Duration::from_millis(500),
            slow_after: Duration::from_millis(50),
            debt_kept: Duration::from_secs(10),
            thin_pause: Duration::from_millis(200),
            pushed_pause: Duration::from_secs(4),
            close_chase: Duration::from_millis(20),
            stall_budget: Duration::from_secs(30),
            avoid_for: Duration::from_secs(30),
            extend_pause: Duration::from_secs(1),
            call_timeout: Duration::from_secs(5),
        }
    }
}

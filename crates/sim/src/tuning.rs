//! Limits, times and sizes of a simulated cluster: drawn for each seed, so that bounds which no
//! test would think of are met (`docs/style.md`).

use std::time::Duration;

use base::MIB;
use base::limits::SECTOR;
use chunkserver::BackgroundShare;
use chunkstore::limits::READS_AT_DEVICE_MAX;
use client::limits::{APPENDS_INFLIGHT_DEFAULT, CHASE_BYTES_ALL_DEFAULT, CHASE_BYTES_DEFAULT};
use client::limits::{BACKUP_BURST, BACKUP_DELAY_UNKNOWN, HEALTH_RECORDS_MAX, READ_FAILED_MAX};
use client::limits::{CHUNK_LEN_DEFAULT, CHUNK_LEN_MIN};
use client::limits::{PREFETCH_DEFAULT, WINDOW_BYTES_DEFAULT, WINDOW_BYTES_MIN};
use codec::block::Codec;
use master::{FirstNumbers, MasterTiming};
use runtime::Rng;
use runtime::sim::Sim;
use transport::Limits;
use wire::control::Compression;
use wire::frame::{BODY_MAX, HEADER, PAYLOAD_MAX};

/// Configuration of the processes of a cluster.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Masters.
    pub master: MasterTiming,
    /// Clients.
    pub client: client::Config,
    /// Pause between two heartbeats of a chunkserver.
    pub heartbeat: Duration,
    /// Pause between two passes of scrub.
    pub scrub_pause: Duration,
    /// Silence of a writer after which chunkservers report it.
    pub writer_quiet: Duration,
    /// Share of a disk for copies and scrub.
    pub background: BackgroundShare,
    /// Bytes by which the file of a store grows.
    pub grow_step: u64,
    /// Reads that a store asks its device for at once.
    pub reads_at_device: usize,
    /// First values of the masters' counters; none: drawn for each cluster.
    pub first: Option<FirstNumbers>,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            master: MasterTiming::default(),
            client: client::Config::default(),
            heartbeat: Duration::from_millis(250),
            scrub_pause: Duration::from_secs(60),
            writer_quiet: Duration::from_secs(30),
            background: BackgroundShare::default(),
            grow_step: 16 * MIB,
            reads_at_device: READS_AT_DEVICE_MAX,
            first: None,
        }
    }
}

/// Limits of endpoints, of which some are as small as they may be: windows of one part, links that
/// have their queues full with two messages, few requests at a time.
pub(crate) fn transport_limits(sim: &Sim) -> Limits {
    sim.with_rng(|rng| {
        let default = Limits::default();
        let staging_bytes = *rng.pick(&[8 << 10, default.staging_bytes]);
        let requests_inflight_max = *rng.pick(&[4, 64, default.requests_inflight_max]);
        let queue_bytes_least = 2 * (BODY_MAX + PAYLOAD_MAX + HEADER);
        Limits {
            queue_bytes_max: *rng.pick(&[queue_bytes_least, default.queue_bytes_max]),
            queue_frames_max: *rng
                .pick(&[requests_inflight_max * 9 / 8 + 4, default.queue_frames_max]),
            requests_inflight_max,
            staging_bytes,
            staged_tail_max: *rng.pick(&[0, staging_bytes / 4]),
            part_bytes: *rng.pick(&[SECTOR, 64 << 10, default.part_bytes]),
            parts_inflight_max: *rng.pick(&[1, default.parts_inflight_max]),
            batch_bytes: *rng.pick(&[4 << 10, default.batch_bytes]),
            batch_frames: *rng.pick(&[1, default.batch_frames]),
            ..default
        }
    })
}

fn millis(rng: &mut Rng, choices: &[u64]) -> Duration {
    Duration::from_millis(*rng.pick(choices))
}

impl Tuning {
    /// Times that let a run see all of them pass, and limits of which some are tiny. Rights live
    /// shorter than in a real cluster, but ten times as long as a failover.
    pub fn draw(sim: &Sim) -> Tuning {
        sim.with_rng(|rng| {
            let mut tuning = Tuning {
                heartbeat: millis(rng, &[100, 250]),
                scrub_pause: millis(rng, &[4_000, 20_000]),
                grow_step: *rng.pick(&[4 * MIB, 16 * MIB]),
                writer_quiet: millis(rng, &[16_000, 30_000]),
                ..Tuning::default()
            };
            let master = &mut tuning.master;
            master.snapshot_after = *rng.pick(&[60, master.snapshot_after]);
            master.entries_kept = *rng.pick(&[10, master.entries_kept]);
            let stream = &mut master.stream;
            stream.vote_timeout = millis(rng, &[0, 1, 50]);
            stream.scan_interval = millis(rng, &[200, 500]);
            stream.garbage_interval = millis(rng, &[300, 1000]);
            stream.list_interval = millis(rng, &[3_000, 10_000]);
            stream.dead_grace = millis(rng, &[4_000, 10_000]);
            stream.open_grace = millis(rng, &[25_000, 40_000]);
            stream.balance_interval = millis(rng, &[500, 3_000]);
            stream.balance_slack = *rng.pick(&[64 << 10, stream.balance_slack]);
            stream.row_check_one_in = *rng.pick(&[1, stream.row_check_one_in]);
            stream.repair_parallel = 1 + rng.below(4) as usize;
            // As in a large cluster for half of the numbers that were drawn.
            stream.repair_disk_copies = stream.repair_parallel / 2 * 4;
            stream.token_life = Duration::from_secs(20);
            let client = &mut tuning.client;
            client.appends_inflight_max = *rng.pick(&[2, 16, APPENDS_INFLIGHT_DEFAULT]);
            client.window_bytes = *rng.pick(&[WINDOW_BYTES_MIN, WINDOW_BYTES_DEFAULT]);
            client.prefetch = *rng.pick(&[1, 4, PREFETCH_DEFAULT]);
            client.cache_chunks = 256;
            client.read_penalty = millis(rng, &[0, 5_000]);
            client.slow_min = millis(rng, &[1, 5, 3_600_000]);
            client.health_records = *rng.pick(&[3, HEALTH_RECORDS_MAX]);
            let backup = &mut client.backup;
            backup.delay_min = Duration::from_micros(*rng.pick(&[1, 500]));
            backup.delay_unknown = *rng.pick(&[Duration::from_micros(100), BACKUP_DELAY_UNKNOWN]);
            backup.failed_max = *rng.pick(&[Duration::from_millis(10), READ_FAILED_MAX]);
            backup.one_in = *rng.pick(&[1, 20]);
            backup.burst = *rng.pick(&[0, 1, BACKUP_BURST]);
            let writer = &mut client.writer;
            writer.chunk_len_max = *rng.pick(&[CHUNK_LEN_MIN, CHUNK_LEN_DEFAULT]);
            writer.spares = *rng.pick(&[0, 1, 2, 4]);
            writer.resend_after = millis(rng, &[30, 150]);
            writer.idle_timeout = millis(rng, &[2_000, 10_000]);
            // Of a generator of their own: what follows is drawn as before.
            let own = &mut Rng::new(rng.clone().next_u64());
            writer.chase_bytes = *own.pick(&[8 * SECTOR as u32, 64 << 10, CHASE_BYTES_DEFAULT]);
            writer.chase_for = millis(own, &[30, 500]);
            writer.thin_pause = millis(own, &[20, 200]);
            writer.debt_kept = millis(own, &[1_000, 10_000]);
            client.chase_bytes_max = *own.pick(&[16 * SECTOR as u64, CHASE_BYTES_ALL_DEFAULT]);
            // Half of the runs have plain sectors.
            let codecs = [Codec::Lz4, Codec::Lz4, Codec::Zstd, Codec::Plain];
            client.compression = (own.below(2) == 0).then(|| Compression::of(*own.pick(&codecs)));
            let share = BackgroundShare::default();
            tuning.background = BackgroundShare {
                busy: *own.pick(&[20, share.busy, 1000]),
                idle: *own.pick(&[100, share.idle, 1000]),
                ..share
            };
            let switch = &mut tuning.client.writer.switch_bytes;
            *switch = *own.pick(&[16 * SECTOR as u32, 256 << 10, *switch]);
            tuning.reads_at_device = *rng.pick(&[1, READS_AT_DEVICE_MAX]);
            tuning
        })
    }
}

//! Metrics: the counters of a role's parts.

use std::collections::BTreeMap;

use chunkserver::Chunkserver;
use chunkstore::flash::FlashStore;
use metrics::Exposition;
use object_index::{ObjectManager, ObjectServer};
use runtime::{Env, Stats};
use transport::Service;
use wire::data::Purpose;

use crate::Build;
use crate::chunkserver::DiskSample;
use crate::http::Page;

/// The media type of Prometheus's text.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The page of a path.
pub fn page(path: &str, metrics: impl FnOnce() -> String) -> Option<Page> {
    match path {
        "/metrics" => Some(Page { kind: METRICS, text: metrics() }),
        "/health" => Some(Page { kind: "text/plain", text: "ok\n".to_owned() }),
        _ => None,
    }
}

/// The process and its executors.
pub fn process(text: &mut Exposition, (role, id, build): (&str, &str, Build), executors: &[Stats]) {
    let labels = [("role", role), ("id", id), ("version", build.version), ("commit", build.commit)];
    text.gauges("craton_info", "The process.").sample(&labels, 1.0);
    let each = || executors.iter().enumerate().map(|(core, stats)| (core.to_string(), stats));
    type Count = fn(&Stats) -> f64;
    let counts: [(&str, &str, Count); 9] = [
        ("craton_ring_enters_total", "System calls that submitted or waited.", |s| s.enters as f64),
        ("craton_ring_submitted_total", "Operations given to the kernel.", |s| s.submitted as f64),
        ("craton_ring_completed_total", "Completions taken in.", |s| s.completed as f64),
        ("craton_executor_sleeps_total", "Times the executor slept.", |s| s.sleeps as f64),
        ("craton_executor_spins_total", "Times it spun before sleeping.", |s| s.spins as f64),
        ("craton_executor_spins_paid_total", "Spins that met a completion.", |s| {
            s.spins_paid as f64
        }),
        ("craton_executor_preempted_total", "Long polls because the CPU was taken away.", |s| {
            s.preempted as f64
        }),
        ("craton_executor_slept_seconds_total", "Time the executor slept.", |s| {
            s.slept_us as f64 / 1e6
        }),
        ("craton_executor_spun_seconds_total", "Time the executor spun.", |s| {
            s.spun_us as f64 / 1e6
        }),
    ];
    for (name, help, value) in counts {
        let mut family = text.counters(name, help);
        for (core, stats) in each() {
            family.sample(&[("core", &core)], value(stats));
        }
    }
    let help = "Polls of a task that outran their slice (C11).";
    let mut family = text.counters("craton_task_overruns_total", help);
    for (core, stats) in each() {
        for (task, overrun) in &stats.overruns {
            family.sample(&[("core", &core), ("task", task)], overrun.count as f64);
        }
    }
    let help = "The longest poll of a task that outran its slice.";
    let mut family = text.gauges("craton_task_overrun_longest_seconds", help);
    for (core, stats) in each() {
        for (task, overrun) in &stats.overruns {
            let longest = overrun.longest.as_secs_f64();
            family.sample(&[("core", &core), ("task", task)], longest);
        }
    }
}

/// Counters of the process's operations, disks and groups, and its buffers.
pub fn operations(text: &mut Exposition, env: &Env) {
    env.tracer().registry().expose_into(text);
    let pool = env.pool();
    for (name, help, value) in [
        ("craton_buffers_used_bytes", "Bytes of buffers that are held.", pool.used()),
        ("craton_buffers_mapped_bytes", "Bytes of memory taken for buffers.", pool.mapped()),
        ("craton_buffers_budget_bytes", "Bytes of buffers at most.", pool.budget()),
    ] {
        text.gauges(name, help).sample(&[], value as f64);
    }
}

/// Labels of frames: the services of all roles, and the links' own signals.
const SERVICES: [(Option<Service>, &str); 5] = [
    (Some(Service::CONTROL), "control"),
    (Some(Service::DATA), "data"),
    (Some(Service::RAFT), "raft"),
    (Some(block_proto::SERVICE), "block"),
    (None, "link"),
];

/// Links to peers.
pub fn links(text: &mut Exposition, stats: &transport::Stats) {
    type Count = fn(&transport::ServiceStats) -> u64;
    let counts: [(&str, &str, Count); 4] = [
        ("craton_frames_received_total", "Frames received.", |of| of.frames_in),
        ("craton_frames_sent_total", "Frames sent.", |of| of.frames_out),
        ("craton_network_received_bytes_total", "Bytes received.", |of| of.bytes_in),
        ("craton_network_sent_bytes_total", "Bytes sent.", |of| of.bytes_out),
    ];
    for (family, help, count) in counts {
        let mut family = text.counters(family, help);
        for (service, name) in SERVICES {
            let of = &stats.services[service.map_or(0, |service| usize::from(service.number()))];
            family.sample(&[("service", name)], count(of) as f64);
        }
    }
    text.gauges("craton_links", "Links that are up.").sample(&[], stats.links.len() as f64);
    let mut family = text.counters("craton_links_opened_total", "Connections made or accepted.");
    family.sample(&[], stats.links_opened as f64);
    for (name, help, value) in [
        ("craton_links_broken_total", "Links that broke.", stats.links_broken),
        ("craton_connects_failed_total", "Connection attempts that failed.", stats.connects_failed),
        (
            "craton_connects_refused_total",
            "Peers refused for cluster, key or version.",
            stats.refused,
        ),
        ("craton_requests_busy_total", "Requests answered busy by the transport.", stats.busy),
    ] {
        text.counters(name, help).sample(&[], value as f64);
    }
    let calls: usize = stats.links.iter().map(|link| link.calls).sum();
    text.gauges("craton_calls_open", "Calls that wait for answers.").sample(&[], calls as f64);
    let serving: usize = stats.links.iter().map(|link| link.serving).sum();
    text.gauges("craton_requests_open", "Requests being handled.").sample(&[], serving as f64);
    let queued: usize = stats.links.iter().map(|link| link.queued_bytes).sum();
    text.gauges("craton_links_queued_bytes", "Bytes to be sent.").sample(&[], queued as f64);
}

/// Requests of a chunkserver.
pub fn chunkserver(text: &mut Exposition, server: &Chunkserver<FlashStore>) {
    let stats = server.stats();
    for (name, help, value) in [
        ("craton_appends_total", "Appends made durable.", stats.appends),
        ("craton_reads_total", "Reads answered.", stats.reads),
        ("craton_read_bytes_total", "Sector bytes read.", stats.read_bytes),
        (
            "craton_reads_cancelled_before_disk_total",
            "Reads whose callers had gone before the disk was asked.",
            stats.reads_cancelled_before,
        ),
        (
            "craton_reads_cancelled_after_disk_total",
            "Reads whose callers had gone when the disk had been asked.",
            stats.reads_cancelled_after,
        ),
        ("craton_busy_total", "Requests answered busy.", stats.busy),
        ("craton_denied_total", "Requests refused for their token.", stats.denied),
        ("craton_replications_total", "Replicas made by repair.", stats.replications),
        ("craton_replicated_bytes_total", "Bytes copied by repair.", stats.replicated_bytes),
        ("craton_damaged_total", "Damaged replicas found.", stats.damaged),
        ("craton_scrubbed_bytes_total", "Bytes scrubbed.", stats.scrubbed_bytes),
        ("craton_scrub_passes_total", "Passes of scrub over a disk.", stats.scrub_passes),
        ("craton_checked_rows_total", "Rows checked with all their cells.", stats.checked_rows),
        (
            "craton_wrong_cells_total",
            "Fragments found with cells that are not their rows'.",
            stats.wrong_cells,
        ),
        ("craton_miscoded_rows_total", "Rows found that were coded wrong.", stats.miscoded_rows),
        ("craton_forwarded_total", "Requests handed to another executor.", stats.forwarded),
    ] {
        text.counters(name, help).sample(&[], value as f64);
    }
    let mut appended = text.counters("craton_append_bytes_total", "Sector bytes appended.");
    for (purpose, bytes) in Purpose::ALL.into_iter().zip(stats.append_bytes) {
        appended.sample(&[("purpose", purpose.name())], bytes as f64);
    }
    appended.sample(&[("purpose", "conversion")], stats.converted_bytes as f64);
    let help = "Share of a disk's time that copies and scrub have beside foreground work.";
    let mut shares = text.gauges("craton_background_share", help);
    for (disk, per_mille) in server.background_shares() {
        shares.sample(&[("disk", &disk.to_string())], f64::from(per_mille) / 1000.0);
    }
    let help = "1 while a disk answers no operation: masters take it for missing.";
    let mut hanging = text.gauges("craton_disk_hangs", help);
    for (disk, hangs) in server.hanging_disks() {
        hanging.sample(&[("disk", &disk.to_string())], f64::from(hangs));
    }
}

/// Disks: `disk` is the incarnation, `path` its path.
pub fn disks(text: &mut Exposition, disks: &BTreeMap<String, DiskSample>, left_out: usize) {
    let help = "Stores that could not be opened at the start.";
    text.gauges("craton_disks_left_out", help).sample(&[], left_out as f64);
    let mut each = |name: &str, help: &str, value: fn(&DiskSample) -> f64| {
        let mut family = match name.ends_with("_total") {
            true => text.counters(name, help),
            false => text.gauges(name, help),
        };
        for (path, sample) in disks {
            let disk = sample.info.disk.to_string();
            family.sample(&[("disk", &disk), ("path", path)], value(sample));
        }
    };
    type Value = fn(&DiskSample) -> f64;
    let values: [(&str, &str, Value); 16] = [
        ("craton_disk_capacity_bytes", "Bytes the disk can take.", |d| d.info.capacity as f64),
        ("craton_disk_used_bytes", "Bytes in use.", |d| d.info.used as f64),
        ("craton_disk_chunks", "Replicas on the disk.", |d| d.info.chunks as f64),
        ("craton_disk_failed", "1 once the disk has failed.", |d| f64::from(d.info.failed)),
        ("craton_disk_append_writes_total", "Device writes of appends.", |d| {
            d.counters.append_writes as f64
        }),
        ("craton_disk_data_bytes_total", "Data bytes of appends.", |d| d.counters.bytes_in as f64),
        ("craton_disk_written_bytes_total", "Bytes written, of all kinds.", |d| {
            d.counters.bytes_out as f64
        }),
        ("craton_disk_zeroed_bytes_total", "Zeroes among them, for space not used before.", |d| {
            d.counters.bytes_zeroed as f64
        }),
        ("craton_disk_log_writes_total", "Writes of the store's log.", |d| {
            d.counters.log_writes as f64
        }),
        ("craton_disk_syncs_total", "Flushes.", |d| d.counters.syncs as f64),
        ("craton_disk_checkpoints_total", "Checkpoints.", |d| d.counters.checkpoints as f64),
        ("craton_disk_copies_total", "Appends that had to be copied.", |d| {
            d.counters.copies as f64
        }),
        ("craton_disk_ready_waits_total", "Appends that waited for zero-written space.", |d| {
            d.counters.ready_waits as f64
        }),
        (
            "craton_disk_unready_writes_total",
            "Appends that met space which was not zero-written: must stay 0.",
            |d| d.counters.unready_writes as f64,
        ),
        ("craton_disk_corrupt_sectors_total", "Sectors read that did not verify.", |d| {
            d.counters.corrupt_sectors as f64
        }),
        (
            "craton_disk_write_amplification_ratio",
            "Bytes written per data byte of appends since the start (C29).",
            |d| d.counters.bytes_out as f64 / d.counters.bytes_in.max(1) as f64,
        ),
    ];
    for (name, help, value) in values {
        each(name, help, value);
    }
}

/// Counters and memory of a block server.
pub fn block_server(
    text: &mut Exposition,
    host: &block_server::Host,
    memory: block_segment::Memory,
) {
    let stats = host.server().stats();
    for (name, help, value) in [
        ("craton_block_sessions_total", "Sessions admitted.", stats.sessions),
        ("craton_block_reads_total", "Reads answered with bytes.", stats.reads),
        ("craton_block_located_total", "Reads answered with places.", stats.located),
        (
            "craton_block_location_leases_total",
            "Those of them with a location lease.",
            stats.leased,
        ),
        ("craton_block_read_bytes_total", "Bytes read.", stats.read_bytes),
        ("craton_block_writes_total", "Writes made durable.", stats.writes),
        ("craton_block_written_bytes_total", "Bytes written.", stats.written_bytes),
        ("craton_block_clears_total", "Trims and zeroes made durable.", stats.clears),
        ("craton_block_busy_total", "Requests answered busy.", stats.busy),
        ("craton_block_repeats_total", "Changes that came again.", stats.repeats),
        ("craton_block_late_total", "Requests of those who are over.", stats.late),
        ("craton_block_confirmed_total", "Reads confirmed by the core.", stats.confirmed),
    ] {
        text.counters(name, help).sample(&[], value as f64);
    }
    let usage = host.agent().usage_total();
    for (name, help, value) in [
        ("craton_block_data_files", "DataFiles of open segments.", usage.files),
        ("craton_block_data_file_bytes", "Bytes of them, of one copy.", usage.file_bytes),
        ("craton_block_blocks", "Blocks with data in them.", usage.blocks),
        ("craton_block_live_blocks", "Those that are content; others are garbage.", usage.live),
        ("craton_block_index_bytes", "Bytes of index pages in memory.", usage.index_bytes),
        (
            "craton_block_collect_read_bytes",
            "Bytes that collection has read, by the present openings of segments.",
            usage.collect_read_bytes,
        ),
        (
            "craton_block_append_bytes",
            "Bytes that open segments have written to DataFiles for requests.",
            usage.append_bytes,
        ),
        (
            "craton_block_collected_bytes",
            "Bytes that garbage collection of open segments has copied.",
            usage.collected_bytes,
        ),
    ] {
        text.gauges(name, help).sample(&[], value as f64);
    }
    let scrub = host.agent().scrubs();
    for (name, help, value) in [
        ("craton_block_scrubs", "Scrubs of segments that are open.", scrub.passes),
        ("craton_block_scrub_done_bytes", "Bytes of segments scrubbed.", scrub.done_bytes),
        ("craton_block_scrub_total_bytes", "Bytes of segments to scrub.", scrub.total_bytes),
        ("craton_block_scrub_damaged", "Blocks found damaged by scrub.", scrub.damaged),
    ] {
        text.gauges(name, help).sample(&[], value as f64);
    }
    let help = "Bytes of memory that segments share, by what they are for.";
    let mut family = text.gauges("craton_block_memory_bytes", help);
    for (of, bytes) in [
        ("index", memory.index),
        ("cache", memory.cache),
        ("changes", memory.changes),
        ("recent", memory.recent),
    ] {
        family.sample(&[("of", of)], bytes as f64);
    }
    let help = "What they may take together: index_mib, cache_mib and write_mib.";
    text.gauges("craton_block_memory_budget_bytes", help).sample(&[], memory.budget as f64);
    let open = host.agent().open_count() as f64;
    text.gauges("craton_block_segments", "Segments that are open.").sample(&[], open);
}

/// Counters of a front end.
pub fn frontend(
    text: &mut Exposition,
    frontend: &block_nbd::server::Frontend,
    exports: &block_client::VolumeExports,
) {
    let (stats, reads) = (frontend.stats(), exports.reads());
    for (name, help, value) in [
        ("craton_nbd_accepted_total", "Connections taken.", stats.accepted),
        ("craton_nbd_refused_total", "Connections closed: too many were open.", stats.refused),
        ("craton_nbd_broken_total", "Connections that broke the protocol.", stats.broken),
        ("craton_nbd_done_total", "Requests answered well.", stats.done),
        ("craton_nbd_failed_total", "Requests answered with an error.", stats.failed),
        ("craton_nbd_read_bytes_total", "Bytes read.", stats.read_bytes),
        ("craton_nbd_written_bytes_total", "Bytes written.", stats.written_bytes),
        ("craton_volume_direct_reads_total", "Reads from chunkservers.", reads.direct),
        (
            "craton_volume_known_reads_total",
            "Those of them for which no block server was asked.",
            reads.known,
        ),
        (
            "craton_volume_left_reads_total",
            "Reads left to block servers after a try at chunkservers.",
            reads.left,
        ),
    ] {
        text.counters(name, help).sample(&[], value as f64);
    }
    let connections = stats.connections as f64;
    text.gauges("craton_nbd_connections", "Connections open now.").sample(&[], connections);
}

/// State and counters of an object server.
pub fn object_server(text: &mut Exposition, server: &ObjectServer) {
    let stats = server.stats();
    let tables = stats.tables;
    for (name, help, value) in [
        ("craton_object_ranges", "Ranges that it has been given.", stats.ranges as u64),
        ("craton_object_ranges_open", "Those of them that it serves.", stats.served as u64),
        (
            "craton_object_range_requests_total",
            "Requests of clients to its ranges.",
            stats.requests,
        ),
        (
            "craton_object_range_request_bytes_total",
            "Bytes of small objects in them.",
            stats.request_bytes,
        ),
        ("craton_object_index_bytes", "Bytes of sorted files of its ranges.", tables.index_bytes),
        ("craton_object_index_runs", "Sorted runs of its ranges.", tables.runs as u64),
        ("craton_object_memory_bytes", "Bytes of changes in memory.", tables.memory as u64),
        ("craton_object_logs", "Logs that are kept for the data in them.", tables.logs as u64),
        ("craton_object_log_bytes", "Bytes of data in them.", tables.log_bytes),
        (
            "craton_object_log_dead_bytes",
            "Of these, bytes that no object names any more.",
            tables.dead_bytes,
        ),
        (
            "craton_object_batches",
            "Batches of changes made durable since its ranges were opened.",
            tables.batches,
        ),
        ("craton_object_appends", "Appends that made them so.", tables.appends),
        ("craton_object_batches_refused", "Batches refused for a moment.", tables.refused),
    ] {
        let mut family = match name.ends_with("_total") {
            true => text.counters(name, help),
            false => text.gauges(name, help),
        };
        family.sample(&[], value as f64);
    }
}

/// State of an object manager, and what it knows of the service while it leads.
pub fn object_manager(text: &mut Exposition, manager: &ObjectManager) {
    let stats = manager.stats();
    let leads = f64::from(stats.is_some());
    text.gauges("craton_object_manager_leads", "1 while it leads.").sample(&[], leads);
    let Some(stats) = stats else { return };
    for (name, help, value) in [
        ("craton_object_service_ranges", "Ranges of all buckets.", stats.ranges),
        ("craton_object_service_ranges_unserved", "Those that no server serves.", stats.unserved),
        ("craton_object_service_servers", "Object servers that it hears from.", stats.servers),
        ("craton_object_service_gateways", "Gateways that it hears from.", stats.gateways),
    ] {
        text.gauges(name, help).sample(&[], value as f64);
    }
}

/// State and counters of a master.
pub fn master(text: &mut Exposition, master: &master::Master) {
    let ready = f64::from(master.is_ready());
    text.gauges("craton_master_ready", "1 when every group has a leader.").sample(&[], ready);
    let mut family = text.gauges("craton_group_leading", "1 for each group led here.");
    for group in master.leads() {
        family.sample(&[("group", &group.to_string())], 1.0);
    }
    let mut family = text.gauges("craton_group_term", "The group's term: elections so far.");
    for (group, term) in master.terms() {
        family.sample(&[("group", &group.to_string())], term as f64);
    }
    let help =
        "Bytes of chunks that writers have ended, seen by this master since its start (C29).";
    let mut family = text.counters("craton_ended_bytes_total", help);
    for (partition, bytes) in master.ended_bytes() {
        family.sample(&[("partition", &partition.to_string())], bytes as f64);
    }
    let led = master.figures();
    let (chunks, repair) = (led.streams, led.streams.repair);
    for (name, help, value) in [
        ("craton_led_files", "Files of the partitions led here.", led.files),
        ("craton_led_directories", "Directories of the partitions led here.", led.dirs),
        ("craton_led_chunks", "Chunks of the partitions led here.", chunks.chunks),
        (
            "craton_led_chunks_under_replicated",
            "Of them, with fewer good replicas than their policy asks.",
            chunks.under_replicated,
        ),
        ("craton_led_chunks_lost", "Of them, with too few replicas to be read.", chunks.lost),
        ("craton_led_logical_bytes", "Bytes in their sealed chunks.", chunks.logical_bytes),
        (
            "craton_led_sessions",
            "Client sessions in the reply tables of stream partitions led here.",
            led.sessions,
        ),
        (
            "craton_relayed_total",
            "Requests sent on to leaders that clients did not reach.",
            master.relayed(),
        ),
        ("craton_repair_pending", "Chunks that wait for repair.", repair.pending),
        ("craton_repair_done_total", "Chunks repaired by leaders here.", repair.done),
        ("craton_repair_bytes_total", "Bytes copied for them.", repair.bytes),
        ("craton_balance_moved_total", "Chunks moved for balance by leaders here.", chunks.moved),
        ("craton_led_files_converting", "Files with chunks to convert.", chunks.converting),
        ("craton_converted_total", "Chunks converted by leaders here.", chunks.converted),
    ] {
        let mut family = match name.ends_with("_total") {
            true => text.counters(name, help),
            false => text.gauges(name, help),
        };
        family.sample(&[], value as f64);
    }
}

//! The Raft log's device beside bare durable writes, in one run on one disk.
//!
//! `cargo run --release -p master-consensus --example log_bench -- DIR [SECONDS]`
//!
//! Records of 1 KiB, framed as the log frames them: one at a time, in groups of 32, and in groups
//! of 32 from four groups of a process at once. `CPU` counts the whole process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chunkstore::ChunkStore;
use chunkstore::flash::{self, SyncMode};
use master_consensus::{EngineDevice, FileDevice, GroupStore, LogDevice, store_options};
use runtime::{Class, Env, Instant, Runtime, RuntimeConfig};

const RECORD: usize = 1024;
const SEGMENT: u64 = 8 << 20;
type Failure = Box<dyn std::error::Error>;

/// CPU time of this process, all threads, kernel included. Grain: a scheduler tick.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let ticks = |index: usize| fields.get(index).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// Appends batches of `records` until `until`; the latencies in nanoseconds.
async fn fill(
    env: Env,
    mut device: impl LogDevice,
    records: usize,
    until: Instant,
) -> Result<Vec<u32>, master_consensus::DeviceError> {
    device.read_all().await?;
    let (segment, block) = (device.segment_len(), device.block_len());
    let len = (records * (RECORD + 40)).next_multiple_of(block);
    let batch = vec![0x5a; len];
    let mut at = device.resume_at(0);
    let mut latencies = Vec::new();
    while env.now() < until {
        if at % segment + len as u64 > segment {
            at = at.next_multiple_of(segment);
            // As after a checkpoint: a few segments stay.
            device.drop_prefix((at / segment).saturating_sub(3) * segment).await?;
        }
        let started = env.now();
        device.append(at, &batch).await?;
        latencies.push((env.now() - started).as_nanos() as u32);
        at += len as u64;
    }
    Ok(latencies)
}

struct Row {
    what: &'static str,
    groups: usize,
    records: usize,
}

async fn measure<D: LogDevice>(
    env: &Env,
    row: &Row,
    span: Duration,
    devices: Vec<D>,
) -> Result<(), Failure> {
    let (cpu, started) = (cpu_time(), env.now());
    let until = started + span;
    let tasks = devices.into_iter().map(|device| {
        let work = fill(env.clone(), device, row.records, until);
        env.spawn(Class::Control, "fill", work)
    });
    let mut latencies = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        latencies.extend(task.await.map_err(|_| "stopped")??);
    }
    let (took, cpu) = (env.now() - started, cpu_time() - cpu);
    latencies.sort_unstable();
    let count = latencies.len() as f64;
    let at = |share: f64| f64::from(latencies[(count * share) as usize]) / 1000.0;
    let mean = latencies.iter().map(|&ns| f64::from(ns)).sum::<f64>() / count / 1000.0;
    let records = count * row.records as f64;
    println!(
        "{:<22} {:>6} {:>7} {:>9.0} {:>8.1} {:>8.1} {:>8.1} {:>8.2}",
        row.what,
        row.groups,
        row.records,
        records / took.as_secs_f64(),
        mean,
        at(0.5),
        at(0.99),
        cpu.as_secs_f64() * 1e6 / records
    );
    Ok(())
}

async fn engine(
    env: &Env,
    dir: &Path,
    row: &Row,
    span: Duration,
    sync: SyncMode,
) -> Result<(), Failure> {
    let path = dir.join("log-bench-store.tmp");
    flash::format(env, &path, &flash::FormatOptions { force: true, ..store_options() }).await?;
    let config = flash::Config { sync, serial: true, ..flash::Config::default() };
    let store = flash::open_with(env, &path, config).await?;
    let device = |group| EngineDevice::new(GroupStore::new(env, store.clone(), group), SEGMENT);
    let devices = (0..row.groups as u32).map(device).collect();
    measure(env, row, span, devices).await?;
    let counters = store.counters();
    let waits = (counters.ready_waits, counters.copies);
    if waits != (0, 0) {
        println!("    {} waits for space, {} copies", waits.0, waits.1);
    }
    Ok(store.close().await?)
}

async fn files(env: &Env, dir: &Path, row: &Row, span: Duration) -> Result<(), Failure> {
    let mut devices = Vec::new();
    for group in 0..row.groups {
        let dir = dir.join(format!("log-bench-{group}.tmp"));
        if dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        devices.push(FileDevice::open(env, &dir, SEGMENT).await?);
    }
    measure(env, row, span, devices).await
}

async fn run(env: Env, dir: PathBuf, span: Duration) -> Result<(), Failure> {
    println!(
        "{:<22} {:>6} {:>7} {:>9} {:>8} {:>8} {:>8} {:>8}",
        "device", "groups", "records", "records/s", "mean us", "p50", "p99", "CPU us"
    );
    for (groups, records) in [(1, 1), (1, 32), (4, 32), (4, 1)] {
        for _ in 0..2 {
            let row = |what| Row { what, groups, records };
            files(&env, &dir, &row("segment files"), span).await?;
            engine(&env, &dir, &row("engine, each durable"), span, SyncMode::PerWrite).await?;
            engine(&env, &dir, &row("engine, group flush"), span, SyncMode::Group).await?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("name a directory on the disk to measure")?);
    let seconds = args.next().map_or(Ok(2), |text| text.parse())?;
    let runtime = Runtime::new(RuntimeConfig::named("log-bench"))?;
    let env = runtime.env().clone();
    let work = run(env.clone(), dir, Duration::from_secs(seconds));
    let task = env.spawn(Class::Foreground, "bench", async move {
        work.await.map_err(|error| error.to_string())
    });
    Ok(runtime.block_on(task).map_err(|_| "stopped")??)
}

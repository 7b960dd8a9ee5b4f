//! `craton bench append`: durable appends beside the floor.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use client::{Appender, Client};
use futures_util::future::try_join_all;
use runtime::Env;
use wire::control::Policy;

use super::floor::Floor;
use super::usage::{DeviceBytes, METRICS_AGE, Usage, net_bytes};
use super::{Error, Latencies, Processes, Report, Row};

/// Options of `bench append`: every combination of sizes and depths.
#[derive(Clone, Debug)]
pub struct AppendOptions {
    /// User bytes of one append.
    pub sizes: Vec<usize>,
    /// Appends in flight.
    pub depths: Vec<usize>,
    /// Policy of the file.
    pub policy: Policy,
    /// Time for each combination, floor included.
    pub duration: Duration,
    /// Directory of the floor's files, on a disk that the cluster stores on; made when it is absent.
    pub scratch: PathBuf,
}

/// Length of a slice: long against a scheduler's whims, short against a neighbour's.
const SLICE: Duration = Duration::from_millis(500);
/// Appends of this size and more are judged by bandwidth.
const BANDWIDTH_SIZE: usize = 256 << 10;

/// Measures appends to a file of their own, which is removed. An error when an append fails, or the
/// floor's files cannot be written.
pub async fn append(
    client: &Client,
    processes: &dyn Processes,
    options: AppendOptions,
) -> Result<Report, Error> {
    let mut results = Vec::new();
    for &size in &options.sizes {
        for &depth in &options.depths {
            results.push(one(client, processes, &options, size, depth).await?);
        }
    }
    Ok(Report::new("append", results))
}

async fn one(
    client: &Client,
    processes: &dyn Processes,
    options: &AppendOptions,
    size: usize,
    depth: usize,
) -> Result<Row, Error> {
    let env = client.env().clone();
    let path = format!("/.bench-append-{:016x}", env.random_u64());
    let policy = options.policy;
    let file = client.create(&path, policy, 0o644, true).await.map_err(Error::failed)?;
    let appender = file.append_handle().await.map_err(Error::failed)?;
    let copies = usize::from(policy.copies);
    let mut floor = Floor::prepare(&env, &options.scratch, size, copies).await?;
    let data: Vec<u8> = (0..size).map(|i| (i * 31 % 251) as u8).collect();
    // A first slice opens connections and chunks; it is not counted.
    run_slice(&env, &appender, &data, depth, SLICE).await?;
    let (mut latencies, mut busy) = (Latencies::default(), Duration::ZERO);
    let mut cpu = Vec::new();
    env.sleep(METRICS_AGE).await;
    let device = DeviceBytes::now(processes);
    let net_before = net_bytes(client);
    let end = env.now() + options.duration;
    while env.now() < end {
        floor.slice(SLICE / 2).await?;
        let before = Usage::now(processes);
        let started = env.now();
        let slice = run_slice(&env, &appender, &data, depth, SLICE).await?;
        busy += env.now() - started;
        let after = Usage::now(processes);
        cpu.push((slice.count(), after.cpu_per_op(&before, slice.count())));
        latencies.merge(slice);
    }
    let net = net_bytes(client) - net_before;
    env.sleep(METRICS_AGE).await;
    let disk_bytes = DeviceBytes::now(processes).since(device);
    let parts = floor.parts();
    floor.finish().await;
    appender.close().await.map_err(Error::failed)?;
    client.unlink(&path).await.map_err(Error::failed)?;
    let user_bytes = (latencies.count() * size as u64) as f64;
    let mut row = Row {
        size: Some(size as u64),
        depth,
        replicas: Some(copies),
        policy: Some(policy.to_string()),
        floor: Some(parts),
        net_bytes_per_byte: Some(net as f64 / user_bytes),
        disk_bytes_per_byte: Some(disk_bytes as f64 / user_bytes),
        ..Row::default()
    };
    row.average_cpu(&cpu);
    latencies.fill(&mut row, busy);
    let floor_us = parts.disk_us + parts.rtt_us;
    row.floor_us = Some(floor_us);
    row.ratio = Some(row.mean_us / floor_us);
    if size >= BANDWIDTH_SIZE {
        let rate = user_bytes / busy.as_secs_f64();
        // The disk divided by the copies: `copies` concurrent writes of the padded size.
        let disk_rate = size as f64 / (parts.disk_us / 1e6);
        row.mib_per_s = Some(rate / f64::from(1 << 20));
        row.fraction_of_floor = Some(rate / disk_rate);
    }
    Ok(row)
}

/// Keeps `depth` appends in flight for about `duration`.
async fn run_slice(
    env: &Env,
    appender: &Appender,
    data: &[u8],
    depth: usize,
    duration: Duration,
) -> Result<Latencies, Error> {
    let end = env.now() + duration;
    let all = RefCell::new(Latencies::default());
    let workers = (0..depth).map(|_| async {
        while env.now() < end {
            let started = env.now();
            appender.append(data).await.map_err(Error::failed)?;
            all.borrow_mut().add(env.now() - started);
        }
        Ok::<(), Error>(())
    });
    try_join_all(workers).await?;
    Ok(all.take())
}

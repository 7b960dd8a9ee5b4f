//! `craton bench read`: random and sequential reads of a file of mixed appends.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use client::{Client, FlatLogFile};
use runtime::Class;
use wire::control::Policy;

use super::usage::Usage;
use super::{Latencies, Report, Row, Target, net_bytes};

/// What `bench read` measures.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Bytes of one read.
    pub sizes: Vec<usize>,
    /// Reads in flight.
    pub depths: Vec<usize>,
    /// Bytes of the file that is read.
    pub file_bytes: u64,
    /// Copies of the file.
    pub replicas: u8,
    /// Time for each combination.
    pub duration: Duration,
}

/// Sizes of the appends that the file is made of: reads find runs of all kinds.
const APPEND_SIZES: [usize; 6] = [512, 4096, 10_000, 65_536, 4048, 262_144];

/// `craton bench read`.
pub async fn read(
    client: &Client,
    target: &Target,
    options: ReadOptions,
) -> Result<Report, String> {
    let say = |error: client::Error| error.to_string();
    let path = format!("/.bench-read-{:016x}", client.env().random_u64());
    let policy = Policy::rep(options.replicas);
    let file = client.create(&path, policy, 0o644, true).await.map_err(say)?;
    let appender = file.append_handle().await.map_err(say)?;
    let (mut len, mut turn) = (0, 0);
    let bytes: Vec<u8> = (0..APPEND_SIZES[5]).map(|i| (i * 31 % 251) as u8).collect();
    while len < options.file_bytes {
        let size = APPEND_SIZES[turn % APPEND_SIZES.len()];
        drop(appender.submit(&bytes[..size]).await.map_err(say)?);
        len += size as u64;
        turn += 1;
    }
    appender.close().await.map_err(say)?;
    let mut results = Vec::new();
    for &size in &options.sizes {
        for &depth in &options.depths {
            let limit = len.saturating_sub(size as u64).max(1);
            results.push(one(client, target, &file, &options, size, depth, limit).await?);
        }
    }
    client.unlink(&path).await.map_err(say)?;
    Ok(Report { bench: "read", results })
}

async fn one(
    client: &Client,
    target: &Target,
    file: &FlatLogFile,
    options: &ReadOptions,
    size: usize,
    depth: usize,
    limit: u64,
) -> Result<Row, String> {
    let env = client.env().clone();
    let before = Usage::now(&target.processes);
    let net_before = net_bytes(client);
    let started = env.now();
    let end = started + options.duration;
    let all = Rc::new(RefCell::new(Latencies::default()));
    let sequential = Rc::new(std::cell::Cell::new(0u64));
    let large = size >= 128 << 10;
    let workers = (0..depth).map(|_| {
        let (env, reader, all) = (env.clone(), file.reader(), all.clone());
        let sequential = sequential.clone();
        env.clone().spawn(Class::Foreground, "bench read", async move {
            while env.now() < end {
                let offset = if large {
                    let offset = sequential.get();
                    sequential.set((offset + size as u64) % limit);
                    offset
                } else {
                    env.random_below(limit)
                };
                let started = env.now();
                let bytes = reader.read_at(offset, size).await.map_err(|e| e.to_string())?;
                if bytes.len() != size && offset + size as u64 <= limit {
                    return Err(format!("{} of {size} bytes read at {offset}", bytes.len()));
                }
                all.borrow_mut().add(env.now() - started);
            }
            Ok::<(), String>(())
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.map_err(|error| error.to_string())??;
    }
    let elapsed = env.now() - started;
    let after = Usage::now(&target.processes);
    let latencies = all.take();
    let user_bytes = (latencies.count() * size as u64) as f64;
    let mut row = Row {
        kind: Some(if large { "sequential" } else { "random" }.to_owned()),
        size: Some(size as u64),
        depth,
        replicas: Some(usize::from(options.replicas)),
        cpu_us_per_op: after.cpu_per_op(&before, latencies.count()),
        net_bytes_per_byte: Some((net_bytes(client) - net_before) as f64 / user_bytes),
        mib_per_s: Some(user_bytes / elapsed.as_secs_f64() / f64::from(1 << 20)),
        ..Row::default()
    };
    latencies.fill(&mut row, elapsed);
    Ok(row)
}

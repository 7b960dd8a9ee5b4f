//! `craton bench read`: random and sequential reads of a file of mixed appends.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use client::{Client, FlatLogFile};
use runtime::Class;
use wire::control::Policy;

use super::floor::ReadFloor;
use super::usage::{Usage, net_bytes};
use super::{Error, Latencies, Processes, Report, Row};

/// Options of `bench read`.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Bytes of one read.
    pub sizes: Vec<usize>,
    /// Reads in flight.
    pub depths: Vec<usize>,
    /// Bytes of the file that is read.
    pub file_bytes: u64,
    /// Policy of the file.
    pub policy: Policy,
    /// Time for each combination, floor included.
    pub duration: Duration,
    /// Directory of the floor's file, on a disk that the cluster stores on; made when it is absent.
    pub scratch: PathBuf,
}

/// Length of a slice, as for appends.
const SLICE: Duration = Duration::from_millis(500);
/// Reads of this size and more go through the file in order, and are judged by bandwidth.
const SEQUENTIAL_SIZE: usize = 128 << 10;
/// Sizes of the file's appends: reads find runs of all kinds.
const APPEND_SIZES: [usize; 6] = [512, 4096, 10_000, 65_536, 4048, 262_144];

/// Measures reads of a file that is made for them, and removed. An error when an append or a read
/// fails, or the floor's file cannot be written.
pub async fn read(
    client: &Client,
    processes: &dyn Processes,
    options: ReadOptions,
) -> Result<Report, Error> {
    let path = format!("/.bench-read-{:016x}", client.env().random_u64());
    let file = client.create(&path, options.policy, 0o644, true).await.map_err(Error::failed)?;
    let appender = file.append_handle().await.map_err(Error::failed)?;
    let (mut len, mut turn) = (0, 0);
    let bytes: Vec<u8> = (0..APPEND_SIZES[5]).map(|i| (i * 31 % 251) as u8).collect();
    while len < options.file_bytes {
        let size = APPEND_SIZES[turn % APPEND_SIZES.len()];
        drop(appender.submit(&bytes[..size]).await.map_err(Error::failed)?);
        len += size as u64;
        turn += 1;
    }
    appender.close().await.map_err(Error::failed)?;
    let mut results = Vec::new();
    for &size in &options.sizes {
        for &depth in &options.depths {
            let limit = len.saturating_sub(size as u64).max(1);
            results.push(one(client, processes, &file, &options, size, depth, limit).await?);
        }
    }
    client.unlink(&path).await.map_err(Error::failed)?;
    Ok(Report::new("read", results))
}

async fn one(
    client: &Client,
    processes: &dyn Processes,
    file: &FlatLogFile,
    options: &ReadOptions,
    size: usize,
    depth: usize,
    limit: u64,
) -> Result<Row, Error> {
    let env = client.env().clone();
    let random = size < SEQUENTIAL_SIZE;
    let mut floor = ReadFloor::prepare(&env, &options.scratch, size, depth).await?;
    let run = Run { env: env.clone(), file, size, depth, limit, next: Rc::default() };
    let (mut latencies, mut busy, mut cpu) = (Latencies::default(), Duration::ZERO, Vec::new());
    // A first slice opens connections; it is not counted.
    run.slice(SLICE / 2, random).await?;
    let net_before = net_bytes(client);
    let end = env.now() + options.duration;
    while env.now() < end {
        floor.slice(SLICE / 2, random).await?;
        let before = Usage::now(processes);
        let started = env.now();
        let slice = run.slice(SLICE, random).await?;
        busy += env.now() - started;
        let after = Usage::now(processes);
        cpu.push((slice.count(), after.cpu_per_op(&before, slice.count())));
        latencies.merge(slice);
    }
    let net = net_bytes(client) - net_before;
    let (floor_us, floor_rate) = (floor.mean_us(), floor.rate());
    floor.finish().await;
    let user_bytes = (latencies.count() * size as u64) as f64;
    let rate = user_bytes / busy.as_secs_f64();
    let mut row = Row {
        kind: Some(if random { "random" } else { "sequential" }.to_owned()),
        size: Some(size as u64),
        depth,
        replicas: Some(usize::from(options.policy.copies)),
        policy: Some(options.policy.to_string()),
        net_bytes_per_byte: Some(net as f64 / user_bytes),
        mib_per_s: Some(rate / f64::from(1 << 20)),
        floor_us: Some(floor_us),
        ..Row::default()
    };
    row.average_cpu(&cpu);
    latencies.fill(&mut row, busy);
    match random {
        true => row.ratio = Some(row.mean_us / floor_us),
        false => row.fraction_of_floor = Some(rate / floor_rate),
    }
    Ok(row)
}

/// State that the readers of one row share.
struct Run<'a> {
    env: runtime::Env,
    file: &'a FlatLogFile,
    size: usize,
    depth: usize,
    limit: u64,
    next: Rc<Cell<u64>>,
}

impl Run<'_> {
    /// Keeps `depth` reads in flight for about `duration`.
    async fn slice(&self, duration: Duration, random: bool) -> Result<Latencies, Error> {
        let end = self.env.now() + duration;
        let all = Rc::new(RefCell::new(Latencies::default()));
        let workers = (0..self.depth).map(|_| {
            let (env, reader, all) = (self.env.clone(), self.file.reader(), all.clone());
            let (size, limit, next) = (self.size, self.limit, self.next.clone());
            env.clone().spawn(Class::Foreground, "bench read", async move {
                while env.now() < end {
                    let offset = if random {
                        env.random_below(limit)
                    } else {
                        let offset = next.get();
                        next.set((offset + size as u64) % limit);
                        offset
                    };
                    let started = env.now();
                    let bytes = reader.read_at(offset, size).await.map_err(Error::failed)?;
                    if bytes.len() != size && offset + size as u64 <= limit {
                        let short = format!("{} of {size} bytes read at {offset}", bytes.len());
                        return Err(Error::Failed(short));
                    }
                    all.borrow_mut().add(env.now() - started);
                }
                Ok::<(), Error>(())
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.await.map_err(Error::failed)??;
        }
        Ok(all.take())
    }
}

//! Appends of 4 KiB beside raw durable writes of the same padded size, in one run.
//!
//! `cargo run --release -p chunkstore --example append_bench -- DIR [ROUNDS] [CHUNKS]`
//!
//! Prints latency, rate and CPU time for depths 1 and 32, with writes made durable one by one and
//! by group flush; then what CHUNKS small files cost to make, and how long their mount takes
//! after the process lets go of the store without closing it.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use base::limits::SECTOR;
use base::{ChunkId, Epoch, GIB};
use chunkstore::flash::{self, Config, FlashStore, FormatOptions, SyncMode};
use chunkstore::{Append, ChunkStore};
use runtime::{Env, File, Instant, OpenOptions, PollPolicy, Runtime, RuntimeConfig, WriteMode};
use wire::data::Purpose;
use wire::sector::{AppendAt, format_append, sectors_for};

const DATA: usize = 4096;
const PADDED: usize = sectors_for(DATA) * SECTOR;
const SPACE: u64 = 64 << 20;
type Failure = Box<dyn std::error::Error>;

/// CPU time of this process, all threads, kernel included. Grain: a scheduler tick.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let ticks = |index: usize| fields.get(index).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

struct Meter {
    started: Instant,
    cpu: Duration,
    latencies: Vec<u32>,
}

impl Meter {
    fn new(env: &Env) -> Meter {
        Meter { started: env.now(), cpu: cpu_time(), latencies: Vec::new() }
    }

    fn note(&mut self, env: &Env, since: Instant) {
        self.latencies.push((env.now() - since).as_nanos() as u32);
    }

    fn print(&mut self, env: &Env, what: &str, depth: usize) {
        let count = self.latencies.len() as f64;
        let (took, cpu) = (env.now() - self.started, cpu_time() - self.cpu);
        self.latencies.sort_unstable();
        let mean = self.latencies.iter().map(|&ns| f64::from(ns)).sum::<f64>() / count / 1000.0;
        let at = |share: f64| f64::from(self.latencies[(count * share) as usize]) / 1000.0;
        println!(
            "{what:<28} depth {depth:>2}: mean {mean:>7.1} us, p50 {:>7.1}, p99 {:>7.1}; \
             {:>7.0}/s; CPU {:>5.1} us each",
            at(0.5),
            at(0.99),
            count / took.as_secs_f64(),
            cpu.as_secs_f64() * 1e6 / count
        );
    }
}

type Pending<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;

/// Keeps `depth` operations in flight, each started after the one before it.
async fn keep<'a>(
    env: &Env,
    rounds: usize,
    depth: usize,
    what: &str,
    mut start: impl FnMut(usize) -> Pending<'a>,
) -> Result<(), Failure> {
    let mut meter = Meter::new(env);
    let mut flying: VecDeque<(Instant, Pending<'a>)> = VecDeque::new();
    for round in 0..rounds {
        if flying.len() == depth {
            let (since, operation) = flying.pop_front().expect("not empty");
            operation.await?;
            meter.note(env, since);
        }
        let mut operation = start(round);
        let since = env.now();
        // The first poll hands it to the store or the ring.
        match futures_util::poll!(&mut operation) {
            std::task::Poll::Ready(result) => {
                result?;
                meter.note(env, since);
            }
            std::task::Poll::Pending => flying.push_back((since, operation)),
        }
    }
    for (since, operation) in flying {
        operation.await?;
        meter.note(env, since);
    }
    meter.print(env, what, depth);
    Ok(())
}

async fn zero_written(env: &Env, path: &Path) -> io::Result<File> {
    let options = OpenOptions { create_new: true, ..OpenOptions::CREATE.direct() };
    let file = env.open_file(path, options).await?;
    let zeros = env.pool().alloc_zeroed(1 << 20).map_err(io::Error::other)?.freeze();
    for offset in (0..SPACE).step_by(zeros.len()) {
        file.write_at(offset, zeros.clone(), WriteMode::Cached).await?;
    }
    file.sync().await?;
    Ok(file)
}

fn append_of(env: &Env, chunk: ChunkId, offset: u32, data: &[u8]) -> Append {
    let at = AppendAt { chunk, epoch: Epoch::new(1), base: 0, offset };
    let mut sectors = env.pool().alloc(sectors_for(data.len()) * SECTOR).expect("within budget");
    format_append(at, data, &mut sectors);
    let (epoch, base, create) = (at.epoch, at.base, offset == 0);
    Append {
        chunk,
        epoch,
        base,
        offset,
        sectors: sectors.freeze(),
        create,
        repair: false,
        purpose: Purpose::Data,
    }
}

async fn appends(env: &Env, dir: &Path, rounds: usize) -> Result<(), Failure> {
    let raw = dir.join("append-bench-raw.tmp");
    let file = zero_written(env, &raw).await?;
    env.remove_file(&raw).await?;
    let mut buf = env.pool().alloc_zeroed(PADDED)?;
    buf.fill(7);
    let buf = buf.freeze();
    let data = [7u8; DATA];
    for depth in [1, 32] {
        let write = |round: usize| -> Pending<'_> {
            let offset = (round * PADDED) as u64 % SPACE;
            let (file, buf) = (&file, buf.clone());
            Box::pin(async move { Ok(file.write_at(offset, buf, WriteMode::Durable).await?) })
        };
        keep(env, rounds / 10, depth, "(warm up)", write).await?;
        keep(env, rounds, depth, "raw durable writes", write).await?;
        for (sync, name) in [
            (SyncMode::PerWrite, "appends, each durable"),
            (SyncMode::Group, "appends, group flush"),
        ] {
            let store = fresh(env, dir, FormatOptions::default(), sync).await?;
            let mut chunk = 0;
            let mut offset = 0u32;
            let mut next = |round: usize| -> Pending<'_> {
                if round.is_multiple_of(50_000) {
                    (chunk, offset) = (chunk + 1, 0);
                }
                let append = append_of(env, ChunkId::new(chunk), offset, &data);
                offset += DATA as u32;
                let store = store.clone();
                Box::pin(async move {
                    store.append(append).await?;
                    Ok(())
                })
            };
            keep(env, rounds, depth, name, &mut next).await?;
            let counters = store.counters();
            println!(
                "    {} device writes, {} flushes, {} log writes, {} copies, {} waits, {} unready",
                counters.append_writes,
                counters.syncs,
                counters.log_writes,
                counters.copies,
                counters.ready_waits,
                counters.unready_writes
            );
            store.close().await?;
        }
    }
    let started = cpu_time();
    for round in 0..rounds {
        std::hint::black_box(append_of(env, ChunkId::new(1), round as u32, &data));
    }
    let format_us = (cpu_time() - started).as_secs_f64() * 1e6 / rounds as f64;
    println!("of an append's CPU time the client's formatting is {format_us:.2} us");
    Ok(())
}

fn store_path(dir: &Path) -> PathBuf {
    dir.join("append-bench-store.tmp")
}

async fn fresh(
    env: &Env,
    dir: &Path,
    options: FormatOptions,
    sync: SyncMode,
) -> Result<FlashStore, Failure> {
    let path = store_path(dir);
    let _ = env.remove_file(&path).await;
    flash::format(env, &path, &options).await?;
    Ok(flash::open_with(env, &path, Config { sync, ..Config::default() }).await?)
}

async fn mounts(env: &Env, dir: &Path, chunks: u64) -> Result<(), Failure> {
    let options = FormatOptions { capacity: 64 * GIB, ..FormatOptions::small_files() };
    let store = fresh(env, dir, options, SyncMode::PerWrite).await?;
    let data = [7u8; DATA - 100];
    let put = |round: usize| -> Pending<'_> {
        let chunk = ChunkId::new(round as u64 + 1);
        let append = append_of(env, chunk, 0, &data);
        let (store, open) = (store.clone(), round as u64 >= chunks);
        Box::pin(async move {
            let len = store.append(append).await?.len;
            if !open {
                store.seal(chunk, len).await?;
            }
            Ok(())
        })
    };
    keep(env, chunks as usize, 64, "small files, made and sealed", put).await?;
    let counters = store.counters();
    println!(
        "    {} log writes, {} checkpoints, {} waits for units, {:.2} bytes written per byte",
        counters.log_writes,
        counters.checkpoints,
        counters.ready_waits,
        counters.bytes_out as f64 / counters.bytes_in as f64
    );
    drop(store);
    env.sleep(Duration::from_millis(100)).await;
    let (started, cpu) = (env.now(), cpu_time());
    let store = flash::open(env, &store_path(dir)).await?;
    let took = env.now() - started;
    println!("mount of {} chunks: {took:?}, CPU {:?}", store.info().chunks, cpu_time() - cpu);
    let second = flash::open(env, &store_path(dir)).await;
    println!("opened a second time: {}", second.err().map_or("done".into(), |e| e.to_string()));
    store.close().await?;
    env.remove_file(&store_path(dir)).await?;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("append_bench DIR [ROUNDS] [CHUNKS]")?);
    let rounds = args.next().map_or(Ok(20_000), |text| text.parse())?;
    let chunks = args.next().map_or(Ok(100_000), |text| text.parse())?;
    let config =
        RuntimeConfig { poll: PollPolicy::default(), ..RuntimeConfig::named("append_bench") };
    let runtime = Runtime::new(config)?;
    let env = runtime.env().clone();
    runtime.block_on(async {
        if rounds > 0 {
            appends(&env, &dir, rounds).await?;
        }
        if chunks > 0 {
            mounts(&env, &dir, chunks).await?;
        }
        Ok(())
    })
}

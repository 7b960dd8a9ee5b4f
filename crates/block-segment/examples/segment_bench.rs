//! Figures of one segment's device on a running cluster, without sessions or NBD:
//! `segment_bench MASTER[,MASTER...] [SECONDS] [gc]`. With `gc` only garbage collection is
//! measured: random writes at 80 % utilisation with it and without, and what it copies.
//!
//! The core's own append of 4160 bytes stands beside the writes, so that a row can be judged on
//! any machine.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;

use base::ClusterId;
use block_segment::limits::INDEX_MEMORY_DEFAULT;
use block_segment::{Options, Segment, Shared};
use block_volume::contract::Device;
use block_volume::geometry::Extent;
use block_volume::ids::Identity;
use client::Client;
use futures_util::future::join_all;
use runtime::{Buf, Duration, Env, Rng, Runtime, RuntimeConfig};
use table::{Cache, ClientStore};
use transport::{Endpoint, Limits};
use wire::control::Policy;

/// Bytes of the segment: what fits in a minute.
const BYTES: u64 = 1 << 30;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = BYTES / BLOCK;
/// Bytes of a sequential request.
const LARGE: u64 = 128 << 10;
const IDENTITY: Identity = Identity { volume: 1, segment: 0 };

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let masters = args.first().map(|text| text.split(',').map(str::parse).collect());
    let seconds = args.get(1).map_or(Ok(5), |text| text.parse());
    let (Some(Ok(masters)), Ok(seconds)) = (masters, seconds) else {
        eprintln!("usage: segment_bench MASTER[,MASTER...] [SECONDS] [gc]");
        return ExitCode::from(2);
    };
    let collect = args.get(2).is_some_and(|word| word == "gc");
    match run(masters, Duration::from_secs(seconds), collect) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(masters: Vec<SocketAddr>, time: Duration, collect: bool) -> Result<(), Failure> {
    let config = RuntimeConfig { huge_pages: false, ..RuntimeConfig::named("bench") };
    let runtime = Runtime::new(config)?;
    runtime.block_on(async {
        let env = runtime.env().clone();
        let identity =
            transport::Identity { cluster: ClusterId::default(), key: None, name: "bench".into() };
        let endpoint = Endpoint::new(&env, identity, Limits::default());
        let client = Client::connect(&env, endpoint, masters, client::Config::default()).await?;
        let dir = format!("/.bench-segment-{:016x}", env.random_u64());
        let measured = match collect {
            true => collection(&env, &client, &dir, time).await,
            false => measure(&env, &client, &dir, time).await,
        };
        for entry in client.list_all(&dir).await? {
            client.unlink(&format!("{dir}/{}", entry.name)).await?;
        }
        client.rmdir(&dir).await?;
        measured
    })
}

/// Microseconds of each operation.
struct Times(Vec<u64>);

impl Times {
    fn row(mut self, name: &str, busy: Duration, bytes: u64) {
        self.0.sort_unstable();
        let count = self.0.len().max(1);
        let at = |part: usize| self.0.get((count * part / 1000).min(count - 1)).unwrap_or(&0);
        let mean = self.0.iter().sum::<u64>() / count as u64;
        let rate = count as f64 / busy.as_secs_f64();
        println!(
            "{name:<34} {rate:>8.0}/s {:>7.0} MB/s  mean {mean:>6} us  p50 {:>6}  p99 {:>6}  p99.9 {:>6}  p99.99 {:>6}",
            rate * bytes as f64 / 1e6,
            at(500),
            at(990),
            at(999),
            self.0.get((count * 9999 / 10_000).min(count - 1)).unwrap_or(&0),
        );
    }
}

/// Runs `work` again and again, `depth` at once, for a while.
async fn repeat<E: std::fmt::Debug>(
    env: &Env,
    (name, bytes): (&str, u64),
    depth: u64,
    time: Duration,
    work: impl AsyncFn(u64) -> Result<(), E>,
) {
    let start = env.now();
    let lanes = (0..depth).map(|lane| {
        let work = &work;
        async move {
            let mut times = Vec::new();
            let mut turn = 0;
            while env.now() - start < time {
                let began = env.now();
                work(lane + depth * turn).await.expect("the cluster is healthy");
                times.push((env.now() - began).as_nanos() as u64 / 1000);
                turn += 1;
            }
            times
        }
    });
    let times = Times(join_all(lanes).await.concat());
    times.row(&format!("{name}, depth {depth}"), env.now() - start, bytes);
}

fn noise(env: &Env, len: u64) -> Buf {
    let mut bytes = vec![0; len as usize];
    Rng::new(3).fill(&mut bytes);
    env.pool().copy_of(&bytes).expect("room for a buffer")
}

async fn measure(env: &Env, client: &Client, dir: &str, time: Duration) -> Result<(), Failure> {
    let policy = Policy::strict(3);
    let store = Rc::new(ClientStore::new(client, dir, policy).await?);
    let file = client.create(&format!("{dir}/append"), policy, 0o600, true).await?;
    let appender = file.append_handle().await?;
    let (small, large) = (noise(env, BLOCK), noise(env, LARGE));
    let record = vec![7; 4160];
    for depth in [1, 32] {
        let append = async |_| appender.append(&record).await.map(drop);
        repeat(env, ("core: append 4160 B", 4160), depth, time, append).await;
    }
    let append = async |_| appender.append(&large).await.map(drop);
    repeat(env, ("core: append 128 KiB", LARGE), 8, time, append).await;
    appender.close().await?;

    let options = Options { garbage_percent: 90, ..Options::default() };
    let shared = Shared::new(Cache::new(64 << 20), INDEX_MEMORY_DEFAULT);
    let open = |epoch| {
        let (store, shared, options) = (store.clone(), shared.clone(), options.clone());
        async move { Segment::open(env, store, &shared, (IDENTITY, BYTES, epoch), options).await }
    };
    let began = env.now();
    let segment = open(1).await?;
    println!("{:<34} {:>8.1?}", "open, new", env.now() - began);
    let write = async |n: u64| {
        let offset = n * LARGE % BYTES;
        segment.write(offset, large.clone()).await
    };
    repeat(env, ("write 128 KiB in order", LARGE), 8, time, write).await;
    let pick = |n: u64| Rng::new(n).below(BLOCKS) * BLOCK;
    for depth in [1, 32] {
        let before = segment.stats();
        let write = async |n: u64| segment.write(pick(n), small.clone()).await;
        repeat(env, ("write 4 KiB at random", BLOCK), depth, time, write).await;
        let after = segment.stats();
        let (appends, records) = (after.appends - before.appends, after.records - before.records);
        println!("{:<34} {:>8.1} blocks an append", "", records as f64 / appends as f64);
    }
    let mut filled = 0;
    while filled < BYTES {
        let writes = (0..8).map(|n| segment.write(filled + n * LARGE, large.clone()));
        join_all(writes).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        filled += 8 * LARGE;
    }
    for depth in [1, 32] {
        let read =
            async |n: u64| segment.read(Extent { offset: pick(n), len: BLOCK }).await.map(drop);
        repeat(env, ("read 4 KiB at random", BLOCK), depth, time, read).await;
    }
    let read = async |n: u64| {
        segment.read(Extent { offset: n * LARGE % BYTES, len: LARGE }).await.map(drop)
    };
    repeat(env, ("read 128 KiB in order", LARGE), 8, time, read).await;
    println!("{:?}", segment.stats());
    // Taken over with all of that since the last checkpoint.
    let began = env.now();
    let next = open(2).await?;
    println!("{:<34} {:>8.1?}", "takeover", env.now() - began);
    let began = env.now();
    next.checkpoint().await?;
    println!("{:<34} {:>8.1?}", "checkpoint", env.now() - began);
    next.close().await?;
    let began = env.now();
    let last = open(3).await?;
    println!("{:<34} {:>8.1?}", "open behind a checkpoint", env.now() - began);
    last.close().await?;
    Ok(())
}

/// Bytes of the segment under collection: its overwrites have to fit in seconds.
const COLLECTED_BYTES: u64 = 96 << 20;
/// Nine of ten writes go to a tenth of the blocks.
const HOT_PART: u64 = 10;

/// Random writes with garbage collection and without: the same writes on two segments.
async fn collection(env: &Env, client: &Client, dir: &str, time: Duration) -> Result<(), Failure> {
    let shared = Shared::new(Cache::new(64 << 20), INDEX_MEMORY_DEFAULT);
    let blocks = COLLECTED_BYTES / BLOCK;
    let (small, large) = (noise(env, BLOCK), noise(env, LARGE));
    for (name, percent) in [("without collection", 90), ("with collection at 20 %", 20)] {
        let part = format!("{dir}/{percent}");
        let store = Rc::new(ClientStore::new(client, &part, Policy::strict(3)).await?);
        let options =
            Options { garbage_percent: percent, file_bytes: 8 << 20, ..Options::default() };
        let which = (IDENTITY, COLLECTED_BYTES, 1);
        let segment = Segment::open(env, store, &shared, which, options).await?;
        for at in (0..COLLECTED_BYTES).step_by(8 * LARGE as usize) {
            let writes = (0..8).map(|n| segment.write(at + n * LARGE, large.clone()));
            join_all(writes).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        }
        let write = async |n: u64| {
            let mut rng = Rng::new(n);
            let most = if rng.below(10) < 9 { blocks / HOT_PART } else { blocks };
            segment.write(rng.below(most) * BLOCK, small.clone()).await
        };
        // Until there is as much garbage as collection leaves.
        repeat(env, ("overwrite", BLOCK), 8, time, write).await;
        let before = segment.stats();
        repeat(env, (name, BLOCK), 8, time, write).await;
        let after = segment.stats();
        let written = after.append_bytes - before.append_bytes;
        let copied = after.collected_bytes - before.collected_bytes;
        println!(
            "{:<34} amplification {:.2}, {} files collected, {} of {} blocks live",
            "",
            (written + copied) as f64 / written as f64,
            after.collected - before.collected,
            after.live,
            after.blocks
        );
        segment.close().await?;
        for entry in client.list_all(&part).await? {
            client.unlink(&format!("{part}/{}", entry.name)).await?;
        }
        client.rmdir(&part).await?;
    }
    Ok(())
}

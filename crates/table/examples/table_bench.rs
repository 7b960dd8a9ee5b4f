//! Figures of a table on a running cluster: `bench MASTER[,MASTER...] [SECONDS]`.
//!
//! Keys of 16 bytes, values of 100. The core's own 4 KiB append is beside the writes, so that a row
//! can be judged on any machine.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;

use base::ClusterId;
use client::Client;
use futures_util::future::join_all;
use runtime::{Duration, Env, Rng, Runtime, RuntimeConfig};
use table::{Cache, ClientStore, Options, Range, Table};
use transport::{Endpoint, Identity, Limits};
use wire::control::Policy;

/// Entries of the table that is read.
const ENTRIES: u64 = 200_000;
const VALUE: usize = 100;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let masters = args.first().map(|text| text.split(',').map(str::parse).collect());
    let seconds = args.get(1).map_or(Ok(5), |text| text.parse());
    let (Some(Ok(masters)), Ok(seconds)) = (masters, seconds) else {
        eprintln!("usage: bench MASTER[,MASTER...] [SECONDS]");
        return ExitCode::from(2);
    };
    match run(masters, Duration::from_secs(seconds)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(masters: Vec<SocketAddr>, time: Duration) -> Result<(), Failure> {
    let config = RuntimeConfig { huge_pages: false, ..RuntimeConfig::named("bench") };
    let runtime = Runtime::new(config)?;
    runtime.block_on(async {
        let env = runtime.env().clone();
        let identity = Identity { cluster: ClusterId::default(), key: None, name: "bench".into() };
        let endpoint = Endpoint::new(&env, identity, Limits::default());
        let client = Client::connect(&env, endpoint, masters, client::Config::default()).await?;
        let dir = format!("/.bench-table-{:016x}", env.random_u64());
        let measured = measure(&env, &client, &dir, time).await;
        for entry in client.list_all(&dir).await? {
            client.unlink(&format!("{dir}/{}", entry.name)).await?;
        }
        client.rmdir(&dir).await?;
        measured
    })
}

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"volume/0########";
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

fn value(number: u64) -> Vec<u8> {
    // Half of it compresses.
    let mut value = vec![b'.'; VALUE];
    Rng::new(number).fill(&mut value[..VALUE / 2]);
    value
}

/// Microseconds of each operation.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    fn row(mut self, name: &str, busy: Duration) {
        self.0.sort_unstable();
        let count = self.0.len().max(1);
        let at = |part: usize| self.0.get((count * part / 1000).min(count - 1)).unwrap_or(&0);
        let mean = self.0.iter().sum::<u64>() / count as u64;
        let rate = count as f64 / busy.as_secs_f64();
        println!(
            "{name:<28} {rate:>9.0}/s   mean {mean:>6} us   p50 {:>6}   p99 {:>6}   p99.9 {:>6}",
            at(500),
            at(990),
            at(999)
        );
    }
}

/// Runs `work` again and again, `depth` at once, for a while.
async fn repeat<E: std::fmt::Debug>(
    env: &Env,
    name: &str,
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
    times.row(name, env.now() - start);
}

async fn measure(env: &Env, client: &Client, dir: &str, time: Duration) -> Result<(), Failure> {
    let policy = Policy::strict(3);
    let store = Rc::new(ClientStore::new(client, dir, policy).await?);
    let path = format!("{dir}/append");
    let file = client.create(&path, policy, 0o600, true).await?;
    let appender = file.append_handle().await?;
    let block = vec![7; 4048];
    for depth in [1, 32] {
        let name = format!("core: append 4 KiB, depth {depth}");
        repeat(env, &name, depth, time, async |_| appender.append(&block).await.map(drop)).await;
    }
    appender.close().await?;

    let cache = Cache::new(256 << 20);
    let began = env.now();
    let table = Table::open(env, store.clone(), &cache, Options::default()).await?;
    println!("{:<28} {:>9.1?}", "open, new", env.now() - began);
    for depth in [1, 32] {
        let before = table.stats();
        let name = format!("put 16 + {VALUE} B, depth {depth}");
        let put = async |n: u64| table.put(&key(n << 8 | depth), &value(n)).await.map(drop);
        repeat(env, &name, depth, time, put).await;
        let after = table.stats();
        let (groups, batches) = (after.groups - before.groups, after.batches - before.batches);
        println!("{:<28} {:>9.1} batches an append", "", batches as f64 / groups as f64);
    }
    let mut numbers: Vec<u64> = (0..ENTRIES).collect();
    let mut rng = Rng::new(1);
    (1..numbers.len()).rev().for_each(|i| numbers.swap(i, rng.below(i as u64 + 1) as usize));
    let began = env.now();
    for part in numbers.chunks(200) {
        let mut batch = table::Batch::new();
        for &n in part {
            batch.put(&key(n), &value(n));
        }
        while let Err(error) = table.write(&batch).await {
            match error {
                table::Error::Busy { retry_after, .. } => env.sleep(retry_after).await,
                error => return Err(error.into()),
            }
        }
    }
    let took = (env.now() - began).as_secs_f64();
    println!("{:<28} {:>9.0}/s entries", "load, batches of 200", ENTRIES as f64 / took);
    table.flush().await?;
    let began = env.now();
    table.compact().await?;
    let stats = table.stats();
    let rate = stats.bytes as f64 / 1e6 / (env.now() - began).as_secs_f64();
    println!(
        "{:<28} {rate:>9.0} MB/s, {:.1} MB in {} files",
        "compact",
        stats.bytes as f64 / 1e6,
        stats.files
    );
    let written = stats.flushed_bytes + stats.merged_bytes;
    println!(
        "{:<28} {:>9.2} sorted bytes a log byte, {} flushes, {} merges",
        "amplification",
        written as f64 / stats.log_bytes as f64,
        stats.flushes,
        stats.merges
    );

    reads(env, &table, "hot", time).await;
    table.close().await?;
    let began = env.now();
    let cold = Table::open(env, store.clone(), &Cache::new(0), Options::default()).await?;
    println!("{:<28} {:>9.1?}", "open, takeover", env.now() - began);
    reads(env, &cold, "no cache", time).await;
    cold.close().await?;
    Ok(())
}

async fn reads(env: &Env, table: &Table, what: &str, time: Duration) {
    let picks: Vec<u64> = {
        let mut rng = Rng::new(2);
        (0..1 << 16).map(|_| rng.below(ENTRIES)).collect()
    };
    for depth in [1, 32] {
        let name = format!("get, {what}, depth {depth}");
        let get = async |n: u64| {
            let pick = picks[n as usize % picks.len()];
            let found = table.get(&key(pick)).await?;
            assert_eq!(found.as_deref(), Some(&value(pick)[..]));
            Ok::<_, table::Error>(())
        };
        repeat(env, &name, depth, time, get).await;
    }
    let name = format!("get of nothing, {what}");
    // Between two keys that are there: the filter decides.
    let miss = async |n: u64| {
        let pick = picks[n as usize % picks.len()];
        table.get(&[&key(pick)[..], b"-"].concat()).await.map(drop)
    };
    repeat(env, &name, 1, time / 2, miss).await;
    for (name, count) in [("scan of 100", 100), ("scan of 10000", 10_000)] {
        let name = format!("{name}, {what}");
        let scan = async |n: u64| {
            let pick = picks[n as usize % picks.len()] % (ENTRIES - count);
            let range =
                Range { lower: std::ops::Bound::Included(key(pick).to_vec()), ..Range::all() };
            let entries = table.scan(range).take(count as usize).await?;
            assert_eq!(entries.len() as u64, count);
            Ok::<_, table::Error>(())
        };
        repeat(env, &name, 1, time / 2, scan).await;
    }
}

//! What a file costs a master at 10,000, 100,000 and 1,000,000 files: the growth of each figure.
//!
//! `cargo run --release -p master --example cost_per_file -- DIR [MOST_FILES] [CSV]`
//!
//! A namespace partition as a group of one on a real store, in one directory and in 1,000: creates
//! with 64 in flight, each durable and applied, with incremental checkpoints on the way. Rates
//! and CPU are over the last tenth before each size; memory is the process's; the restart loads
//! checkpoint and log and ends when the group leads with all files. The longest slice is that of
//! any task of the executor since the size before.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use base::{ClientId, DirId};
use chunkstore::ChunkStore;
use chunkstore::flash;
use master::consensus::{
    Checkpoints, EngineDevice, Group, GroupConfig, LocalFuture, NetError, PeerSend, Shelf,
    open_store, store_options,
};
use master::namespace::{Command, Namespace, encode_command};
use runtime::{Class, Env, Handle, Runtime, RuntimeConfig};
use wire::control::{Attributes, NamespaceChange, OpId, Place, Policy, dir_id};

const INFLIGHT: u64 = 64;
/// A restart that takes longer has lost something.
const RESTART_MAX: Duration = Duration::from_secs(120);
type Failure = Box<dyn std::error::Error>;

/// A group of one has no peers.
struct Nobody;

impl PeerSend for Nobody {
    fn send(&self, _: u64, _: u32, _: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>, NetError>> {
        Box::pin(std::future::ready(Err(NetError::Unreachable)))
    }
}

fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let ticks = |index: usize| fields.get(index).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// Anonymous memory of this process, bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

async fn open(env: &Env, path: &Path) -> Result<(Group<Namespace>, flash::FlashStore), Failure> {
    let store = open_store(env, path).await?;
    let shelf = Shelf::new(env, store.clone(), 1);
    let checkpoints = Checkpoints::open(shelf.clone()).await?;
    let device = EngineDevice::new(shelf, 8 << 20);
    let (config, state) = (GroupConfig::new(1, 1), Namespace::new(0, 1));
    let group = Group::open(env, config, device, checkpoints, Rc::new(Nobody), state).await?;
    Ok((group, store))
}

async fn propose(group: &Group<Namespace>, seq: u64, change: NamespaceChange) {
    let op = OpId { client: ClientId::new(1), seq, acked_below: seq.saturating_sub(1024) };
    let command = encode_command(1, &Command::Change { op, change });
    group.propose(command).await.expect("a group of one commits");
}

async fn create(group: &Group<Namespace>, dirs: u64, number: u64) {
    let parent = match dirs {
        1 => DirId::ROOT,
        _ => dir_id(DirId::ROOT, &format!("d{}", number % dirs), 0),
    };
    let place = Place { parent, name: format!("file-{number:09}") };
    let attributes = Attributes::default();
    let change =
        NamespaceChange::Create { place, policy: Policy::rep(3), attributes, exclusive: true };
    propose(group, dirs + number, change).await;
}

/// Creates files `from..to`.
async fn fill(env: &Env, group: &Group<Namespace>, dirs: u64, from: u64, to: u64) {
    let next = Rc::new(Cell::new(from));
    let workers = (0..INFLIGHT).map(|_| {
        let (next, group) = (next.clone(), group.clone());
        env.spawn(Class::Foreground, "creates", async move {
            while next.get() < to {
                let number = next.replace(next.get() + 1);
                create(&group, dirs, number).await;
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.expect("not stopped");
    }
}

async fn run(env: Env, handle: Handle, dir: PathBuf, most: u64) -> Result<Vec<String>, Failure> {
    let mut rows = Vec::new();
    println!("  dirs     files  creates/s  CPU us/create  bytes/file  restart ms  longest slice");
    for dirs in [1, 1000] {
        let path = dir.join("cost-per-file.tmp");
        let options = flash::FormatOptions { force: true, ..store_options() };
        flash::format(&env, &path, &options).await?;
        let before = memory();
        let (mut group, mut store) = open(&env, &path).await?;
        group.bootstrap(&[1].into()).await?;
        let mut have = 0;
        for files in [10_000, 100_000, 1_000_000].into_iter().filter(|&files| files <= most) {
            while !group.leadership().leading {
                env.sleep(Duration::from_millis(5)).await;
            }
            if have == 0 && dirs > 1 {
                for number in 0..dirs {
                    let place = Place { parent: DirId::ROOT, name: format!("d{number}") };
                    let attributes = Attributes::default();
                    propose(&group, number, NamespaceChange::Mkdir { place, attributes }).await;
                }
            }
            fill(&env, &group, dirs, have, files - files / 10).await;
            let (started, cpu) = (env.now(), cpu_time());
            fill(&env, &group, dirs, files - files / 10, files).await;
            let (took, cpu) = (env.now() - started, cpu_time() - cpu);
            have = files;
            let memory = memory().saturating_sub(before) / files;
            group.shutdown().await;
            store.close().await?;
            drop((group, store));
            let started = env.now();
            (group, store) = open(&env, &path).await?;
            // Until it serves: the checkpoint, the log behind it, and the election of a group of
            // one.
            while !group.leadership().leading || group.read(Namespace::files) < files {
                let waited = env.now() - started;
                let found = group.read(Namespace::files);
                assert!(waited < RESTART_MAX, "{found} of {files} came back in {waited:?}");
                env.sleep(Duration::from_millis(5)).await;
            }
            let restart = env.now() - started;
            assert_eq!(group.read(Namespace::files), files);
            let overruns = handle.stats().overruns;
            let longest = overruns.iter().max_by_key(|(_, overrun)| overrun.longest);
            let longest = longest.map_or("none over its slice".to_owned(), |(name, overrun)| {
                format!("{:.1} ms, {name}", overrun.longest.as_secs_f64() * 1e3)
            });
            let creates = (files / 10) as f64 / took.as_secs_f64();
            let each = cpu.as_secs_f64() * 1e6 / (files / 10) as f64;
            println!(
                "{dirs:>6} {files:>9} {creates:>10.0} {each:>14.1} {memory:>11} {:>11} {longest:>14}",
                restart.as_millis()
            );
            rows.push(format!(
                "{dirs},{files},{creates:.0},{each:.1},{memory},{}",
                restart.as_millis()
            ));
        }
        group.shutdown().await;
        store.close().await?;
        env.remove_file(&path).await?;
    }
    Ok(rows)
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("name a directory on the disk to measure")?);
    let most = args.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let csv = args.next();
    let runtime = Runtime::new(RuntimeConfig::named("cost-per-file"))?;
    let (env, handle) = (runtime.env().clone(), runtime.handle());
    let work = run(env.clone(), handle, dir, most);
    let task = env.spawn(Class::Foreground, "bench", async move {
        work.await.map_err(|error| error.to_string())
    });
    let rows = runtime.block_on(task).map_err(|_| "stopped")??;
    if let Some(csv) = csv {
        let head = "dirs,files,creates_per_s,cpu_us_per_create,bytes_per_file,restart_ms\n";
        std::fs::write(csv, format!("{head}{}\n", rows.join("\n")))?;
    }
    Ok(())
}

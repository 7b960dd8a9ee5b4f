//! Costs of a file at a master from 10,000 to 1,000,000 files: the growth of each figure.
//!
//! `cargo run --release -p master-namespace --example cost_per_file -- DIR [MOST_FILES] [OUTPUT]`
//!
//! OUTPUT.csv gets the figures, OUTPUT.svg a plot of CPU time per create.
//!
//! A namespace partition as a group of one on a real store, in one directory and in 1,000: creates
//! with 64 in flight, each durable and applied, with incremental checkpoints on the way. Rates
//! and CPU are over the last half of what each size adds; memory is the process's; the restart
//! loads checkpoint and log and ends when the group leads with all files. The longest slice is
//! that of any task of the executor since the size before.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use base::{ClientId, DirId};
use chunkstore::ChunkStore;
use chunkstore::flash;
use master_consensus::limits::SESSION_REPLIES_MAX;
use master_consensus::{
    Checkpoints, EngineDevice, Group, GroupConfig, GroupStore, LocalFuture, NetError, PeerSend,
    open_store, store_options,
};
use master_namespace::{Command, Namespace, decode_outcome, encode_command};
use runtime::{Class, Env, Handle, Runtime, RuntimeConfig};
use wire::control::{Attributes, NameKey, NamespaceChange, OpId, Policy, dir_id};

const INFLIGHT: u64 = 64;
const SIZES: [u64; 5] = [10_000, 30_000, 100_000, 300_000, 1_000_000];
/// A restart that takes longer has lost something.
const RESTART_MAX: Duration = Duration::from_secs(120);
type Failure = Box<dyn std::error::Error>;

/// Figures of one size.
struct Row {
    dirs: u64,
    files: u64,
    /// Creates a second.
    creates: f64,
    /// CPU time of a create, us.
    each: f64,
    /// Bytes a file.
    memory: u64,
    restart: Duration,
}

impl Row {
    fn csv(&self) -> String {
        let Row { dirs, files, creates, each, memory, restart } = self;
        format!("{dirs},{files},{creates:.0},{each:.1},{memory},{}\n", restart.as_millis())
    }
}

/// CPU time per create over the number of files, which grows by powers of ten.
fn plot(rows: &[Row]) -> String {
    const LEFT: f64 = 60.0;
    const BOTTOM: f64 = 240.0;
    let most = rows.iter().map(|row| row.each).fold(1.0, f64::max) * 1.25;
    let x = |files: u64| LEFT + 200.0 * ((files as f64).log10() - 4.0);
    let y = |each: f64| BOTTOM - 220.0 * each / most;
    let mut svg = String::from(
        "<svg xmlns='http://www.w3.org/2000/svg' width='620' height='290' \
         font-family='sans-serif' font-size='12'>\n<rect width='620' height='290' fill='white'/>\n",
    );
    for files in SIZES {
        let at = x(files);
        svg += &format!("<text x='{at}' y='258' text-anchor='middle'>{files}</text>\n");
    }
    for part in 0..=4 {
        let each = most * f64::from(part) / 4.0;
        let at = y(each);
        svg += &format!(
            "<path d='M{LEFT} {at:.1}H500' stroke='#ddd'/>\
             <text x='52' y='{:.1}' text-anchor='end'>{each:.0}</text>\n",
            at + 4.0
        );
    }
    svg += "<text x='60' y='14'>CPU time per durable create, us</text>\
            <text x='280' y='278' text-anchor='middle'>files</text>\n";
    for (dirs, color) in [(1, "#0a58ca"), (1000, "#c2410c")] {
        let of_it: Vec<&Row> = rows.iter().filter(|row| row.dirs == dirs).collect();
        let point = |row: &&Row| format!("{:.1},{:.1}", x(row.files), y(row.each));
        let points: Vec<String> = of_it.iter().map(point).collect();
        svg += &format!(
            "<polyline points='{}' fill='none' stroke='{color}' stroke-width='2'/>\n",
            points.join(" ")
        );
        if let Some(last) = of_it.last() {
            let (x, y) = (x(last.files) + 8.0, y(last.each) + 4.0);
            let name = if dirs == 1 { "one directory" } else { "1,000 directories" };
            svg += &format!("<text x='{x:.1}' y='{y:.1}' fill='{color}'>{name}</text>\n");
        }
    }
    svg + "</svg>\n"
}

/// A group of one has no peers.
struct NoPeers;

impl PeerSend for NoPeers {
    fn send(&self, _: u64, _: u32, _: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>, NetError>> {
        Box::pin(std::future::ready(Err(NetError::Unreachable)))
    }
}

/// Time that the threads of this process have run.
fn cpu_time() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let ran = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(ran.sum())
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
    let group_store = GroupStore::new(env, store.clone(), 1);
    let checkpoints = Checkpoints::open(group_store.clone()).await?;
    let device = EngineDevice::new(group_store, 8 << 20);
    let (config, state) = (GroupConfig::new(1, 1), Namespace::new(0, 1));
    let group = Group::open(env, config, device, checkpoints, Rc::new(NoPeers), state).await?;
    Ok((group, store))
}

async fn propose(group: &Group<Namespace>, seq: u64, change: NamespaceChange) {
    // Far more than are in flight, and less than a session may have without an acknowledgement.
    let acked_below = seq.saturating_sub(SESSION_REPLIES_MAX / 2);
    let op = OpId { client: ClientId::new(1), seq, acked_below };
    let command = encode_command(1, &Command::Change { op, change });
    let answer = group.propose(command).await.expect("a group of one commits");
    let outcome = decode_outcome(&answer).expect("its own format");
    outcome.unwrap_or_else(|refusal| panic!("change {seq}: {refusal:?}"));
}

async fn create(group: &Group<Namespace>, dirs: u64, number: u64) {
    let parent = match dirs {
        1 => DirId::ROOT,
        _ => dir_id(DirId::ROOT, &format!("d{}", number % dirs), 0),
    };
    let place = NameKey { parent, name: format!("file-{number:09}") };
    let attributes = Attributes::default();
    let change = NamespaceChange::Create {
        place,
        policy: Policy::strict(3),
        attributes,
        exclusive: true,
        inherit: false,
    };
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

async fn run(env: Env, handle: Handle, dir: PathBuf, most: u64) -> Result<Vec<Row>, Failure> {
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
        for files in SIZES.into_iter().filter(|&files| files <= most) {
            while !group.leadership().leading {
                env.sleep(Duration::from_millis(5)).await;
            }
            if have == 0 && dirs > 1 {
                for number in 0..dirs {
                    let place = NameKey { parent: DirId::ROOT, name: format!("d{number}") };
                    let attributes = Attributes::default();
                    propose(&group, number, NamespaceChange::Mkdir { place, attributes }).await;
                }
            }
            let measured = (files - have) / 2;
            fill(&env, &group, dirs, have, files - measured).await;
            let (started, cpu) = (env.now(), cpu_time());
            fill(&env, &group, dirs, files - measured, files).await;
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
            let creates = measured as f64 / took.as_secs_f64();
            let each = cpu.as_secs_f64() * 1e6 / measured as f64;
            println!(
                "{dirs:>6} {files:>9} {creates:>10.0} {each:>14.1} {memory:>11} {:>11} {longest:>14}",
                restart.as_millis()
            );
            rows.push(Row { dirs, files, creates, each, memory, restart });
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
    let output = args.next();
    let runtime = Runtime::new(RuntimeConfig::named("cost-per-file"))?;
    let (env, handle) = (runtime.env().clone(), runtime.handle());
    let work = run(env.clone(), handle, dir, most);
    let task = env.spawn(Class::Foreground, "bench", async move {
        work.await.map_err(|error| error.to_string())
    });
    let rows = runtime.block_on(task).map_err(|_| "stopped")??;
    if let Some(output) = output {
        let head = "dirs,files,creates_per_s,cpu_us_per_create,bytes_per_file,restart_ms\n";
        let lines: String = rows.iter().map(Row::csv).collect();
        std::fs::write(format!("{output}.csv"), format!("{head}{lines}"))?;
        std::fs::write(format!("{output}.svg"), plot(&rows))?;
    }
    Ok(())
}

//! The floor of an append (`protocols.md` 7): what the machine itself takes, in the same run.
//!
//! `cargo run --release -p runtime --example floor -- DIR [COPIES] [BYTES] [ROUNDS] [POLL]`
//!
//! Floor = COPIES concurrent direct durable writes of the padded size on zero-written space of
//! one device, plus one round trip between two cores over TCP with the same wait policy. BYTES is
//! the padded size: 4096 bytes of data and 64 of header make two sectors, 8192. POLL is `never`,
//! `always`, or the longest poll of adaptive polling in us.

use std::io;
use std::path::Path;
use std::time::Duration;

use runtime::{
    Buf, Class, Cores, Env, File, OpenOptions, PollPolicy, Runtime, RuntimeConfig, Stream,
    WriteMode,
};

/// The measurement.
#[derive(Clone, Debug)]
struct FloorConfig {
    /// Writes of one append.
    copies: usize,
    /// Bytes of one write: a multiple of 4096.
    bytes: usize,
    /// Appends measured.
    rounds: usize,
    /// Waiting of both ends of the round trip, and of the disk's waiter.
    poll: PollPolicy,
}

/// Means in us.
#[derive(Clone, Copy, Debug)]
struct Floor {
    /// Until the last of the concurrent writes is durable.
    disk_us: f64,
    /// One write alone.
    disk_single_us: f64,
    /// Request of the padded size and a header there, a header back.
    rtt_us: f64,
}

impl Floor {
    fn total_us(&self) -> f64 {
        self.disk_us + self.rtt_us
    }
}

/// Bytes of a frame header, and of a reply.
const HEADER: usize = 64;
/// Rounds before the clock counts: connections, page tables, caches, the polling trial.
const WARM_UP: usize = 500;
/// Zero-written space of each copy: larger than a device's cache line of work, small to write.
const SPACE: usize = 16 << 20;

fn measure(dir: &Path, config: &FloorConfig) -> io::Result<Floor> {
    let runtime_config = || RuntimeConfig { poll: config.poll, ..RuntimeConfig::named("floor") };
    let runtime = Runtime::new(runtime_config())?;
    let env = runtime.env().clone();
    let (disk_us, disk_single_us) = runtime.block_on(async {
        let mut files = Vec::new();
        for copy in 0..config.copies {
            let path = dir.join(format!("floor-{}-{copy}.tmp", std::process::id()));
            files.push(zero_written(&env, &path).await?);
            env.remove_file(&path).await?; // The space stays until the file is closed.
        }
        let all = writes(&env, &files, config).await?;
        let single = writes(&env, &files[..1], config).await?;
        io::Result::Ok((all, single))
    })?;
    drop(runtime);
    let rtt_us = round_trip(&Cores::start(&runtime_config(), 2)?, config)?;
    Ok(Floor { disk_us, disk_single_us, rtt_us })
}

async fn zero_written(env: &Env, path: &Path) -> io::Result<File> {
    let options = OpenOptions { create_new: true, ..OpenOptions::CREATE.direct() };
    let file = env.open_file(path, options).await?;
    let zeros = env.pool().alloc_zeroed(1 << 20).map_err(io::Error::other)?.freeze();
    for offset in (0..SPACE).step_by(zeros.len()) {
        file.write_at(offset as u64, zeros.clone(), WriteMode::Cached).await?;
    }
    file.sync().await?;
    Ok(file)
}

/// Mean time until the slowest of one write per file is durable.
async fn writes(env: &Env, files: &[File], config: &FloorConfig) -> io::Result<f64> {
    let buf = env.pool().alloc_zeroed(config.bytes).map_err(io::Error::other)?.freeze();
    let mut total = Duration::ZERO;
    for round in 0..WARM_UP + config.rounds {
        let offset = (round * config.bytes % (SPACE - config.bytes + 1)) as u64;
        let offset = offset - offset % 4096;
        let started = env.now();
        let writes =
            files.iter().map(|file| file.write_at(offset, buf.clone(), WriteMode::Durable));
        for result in futures_util::future::join_all(writes).await {
            result?;
        }
        if round >= WARM_UP {
            total += env.now() - started;
        }
    }
    Ok(mean_us(total, config.rounds))
}

fn mean_us(total: Duration, rounds: usize) -> f64 {
    total.as_secs_f64() * 1e6 / rounds as f64
}

/// Receives `len` bytes. False at the end.
async fn receive(env: &Env, stream: &mut Stream, len: usize) -> io::Result<bool> {
    let mut buf = env.pool().alloc(len).map_err(io::Error::other)?;
    let mut done = 0;
    while done < len {
        let (count, back) = stream.read.read(buf, done).await;
        buf = back;
        match count? {
            0 => return Ok(false),
            count => done += count,
        }
    }
    Ok(true)
}

fn zeros(env: &Env, len: usize) -> io::Result<Buf> {
    Ok(env.pool().alloc_zeroed(len).map_err(io::Error::other)?.freeze())
}

fn round_trip(cores: &Cores, config: &FloorConfig) -> io::Result<f64> {
    let [client, server] = cores.handles() else { unreachable!("two executors were started") };
    let (request, rounds) = (config.bytes + HEADER, config.rounds);
    let serving = server.spawn(move |env| async move {
        let listener = env.listen("127.0.0.1:0".parse().expect("an address")).await?;
        let addr = listener.local_addr();
        let server = env.clone();
        env.spawn(Class::Foreground, "floor server", async move {
            let mut stream = listener.accept().await?;
            let reply = zeros(&server, HEADER)?;
            while receive(&server, &mut stream, request).await? {
                stream.write.write_all(vec![reply.clone()]).await?;
            }
            io::Result::Ok(())
        });
        io::Result::Ok(addr)
    });
    let addr = serving.wait().map_err(io::Error::other)??;
    let asking = client.spawn(move |env| async move {
        let mut stream = env.connect(addr).await?;
        let bytes = zeros(&env, request)?;
        let mut total = Duration::ZERO;
        for round in 0..WARM_UP + rounds {
            let started = env.now();
            stream.write.write_all(vec![bytes.clone()]).await?;
            if !receive(&env, &mut stream, HEADER).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if round >= WARM_UP {
                total += env.now() - started;
            }
        }
        Ok(mean_us(total, rounds))
    });
    asking.wait().map_err(io::Error::other)?
}

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| {
        args.get(at).map_or(default, |text| text.parse().expect("a number"))
    };
    let dir = args.first().expect("DIR [COPIES] [BYTES] [ROUNDS] [POLL]");
    let poll = match args.get(4).map(String::as_str) {
        None => PollPolicy::default(),
        Some("never") => PollPolicy::Never,
        Some("always") => PollPolicy::Always,
        Some(text) => PollPolicy::Adaptive { max_us: text.parse().expect("us") },
    };
    let config =
        FloorConfig { copies: number(1, 3), bytes: number(2, 8192), rounds: number(3, 5000), poll };
    assert!(config.bytes.is_multiple_of(4096) && config.bytes > 0, "BYTES: multiple of 4096");
    let floor = measure(Path::new(dir), &config)?;
    println!("copies={} bytes={} poll={}", config.copies, config.bytes, config.poll);
    println!("disk_us={:.1}", floor.disk_us);
    println!("disk_single_us={:.1}", floor.disk_single_us);
    println!("rtt_us={:.1}", floor.rtt_us);
    println!("floor_us={:.1}", floor.total_us());
    Ok(())
}

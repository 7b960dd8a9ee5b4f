//! The runtime beside raw system calls, in one run on one machine: 4 KiB echo round trips and
//! 4 KiB durable writes.
//!
//! `cargo run --release -p runtime --example bench -- DIR [ROUNDS] [echo|write]`
//!
//! Expected (two cores of a virtual machine): disk ratios within 1.1; echo within 1.1 asleep and
//! a quarter or less where polling pays.

#![allow(unsafe_code, clippy::disallowed_methods)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use runtime::{
    Class, Cores, Env, File, OpenOptions, PollPolicy, Runtime, RuntimeConfig, Stream, WriteMode,
};

const PAGE: usize = 4096;
const FILE_BYTES: usize = 64 << 20;

struct Row {
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    per_second: f64,
    cpu_us: f64,
}

fn cpu() -> Duration {
    // SAFETY: all-zero bytes are a valid rusage, and the call fills it in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn measure(run: impl FnOnce() -> Vec<f64>) -> Row {
    let (cpu_before, started) = (cpu(), Instant::now());
    let mut us = run();
    let (took, cpu) = (started.elapsed(), cpu() - cpu_before);
    us.sort_by(f64::total_cmp);
    let count = us.len() as f64;
    Row {
        mean_us: us.iter().sum::<f64>() / count,
        p50_us: us[us.len() / 2],
        p99_us: us[us.len() * 99 / 100],
        per_second: count / took.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / count,
    }
}

fn print(name: &str, row: &Row, raw: &Row) {
    println!(
        "{name:36} {:8.1} {:8.1} {:8.1} {:10.0} {:8.1} {:8.2} {:8.2}",
        row.mean_us,
        row.p50_us,
        row.p99_us,
        row.per_second,
        row.cpu_us,
        row.per_second / raw.per_second,
        row.cpu_us / raw.cpu_us,
    );
}

fn us_since(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e6
}

fn raw_echo(clients: usize, rounds: usize) -> Vec<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::scope(|scope| {
                for _ in 0..clients {
                    let (mut stream, _) = listener.accept().unwrap();
                    stream.set_nodelay(true).unwrap();
                    scope.spawn(move || {
                        let mut buf = [0; PAGE];
                        while stream.read_exact(&mut buf).is_ok() {
                            stream.write_all(&buf).unwrap();
                        }
                    });
                }
            });
        });
        let threads: Vec<_> = (0..clients)
            .map(|_| {
                scope.spawn(move || {
                    let mut stream = TcpStream::connect(addr).unwrap();
                    stream.set_nodelay(true).unwrap();
                    let mut buf = [0; PAGE];
                    let each = (0..rounds / clients).map(|_| {
                        let started = Instant::now();
                        stream.write_all(&buf).unwrap();
                        stream.read_exact(&mut buf).unwrap();
                        us_since(started)
                    });
                    each.collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Receives a page; false at the end.
async fn receive(stream: &mut Stream, env: &Env) -> Option<runtime::Buf> {
    let mut buf = env.pool().alloc(PAGE).unwrap();
    let mut done = 0;
    while done < PAGE {
        let (count, back) = stream.read.read(buf, done).await;
        buf = back;
        match count {
            Ok(count @ 1..) => done += count,
            _ => return None,
        }
    }
    Some(buf.freeze())
}

fn ring_echo(cores: &Cores, clients: usize, rounds: usize) -> Vec<f64> {
    let [client, server] = cores.handles() else { panic!("two executors") };
    let listening = server.spawn(|env| async move {
        let listener = env.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let addr = listener.local_addr();
        let server = env.clone();
        env.spawn(Class::Foreground, "accept", async move {
            while let Ok(mut stream) = listener.accept().await {
                let env = server.clone();
                server.spawn(Class::Foreground, "echo", async move {
                    while let Some(page) = receive(&mut stream, &env).await {
                        stream.write.write_all(vec![page]).await.unwrap();
                    }
                });
            }
        });
        addr
    });
    let addr = listening.wait().unwrap();
    let task = client.spawn(move |env| async move {
        let tasks: Vec<_> = (0..clients)
            .map(|_| {
                let env = env.clone();
                env.clone().spawn(Class::Foreground, "client", async move {
                    let mut stream = env.connect(addr).await.unwrap();
                    let page = env.pool().alloc_zeroed(PAGE).unwrap().freeze();
                    let mut us = Vec::with_capacity(rounds / clients);
                    for _ in 0..rounds / clients {
                        let started = Instant::now();
                        stream.write.write_all(vec![page.clone()]).await.unwrap();
                        receive(&mut stream, &env).await.unwrap();
                        us.push(us_since(started));
                    }
                    us
                })
            })
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        all
    });
    task.wait().unwrap()
}

fn zero_written(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    let zeros = vec![0; 1 << 20];
    (0..FILE_BYTES >> 20).for_each(|_| file.write_all(&zeros).unwrap());
    file.sync_all().unwrap();
}

/// Offsets in an order that no device guesses.
fn offset(index: usize) -> u64 {
    ((index * 7919 + 13) % (FILE_BYTES / PAGE) * PAGE) as u64
}

fn raw_writes(path: &Path, depth: usize, rounds: usize) -> Vec<f64> {
    let file =
        std::fs::OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let file = &file;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..depth)
            .map(|thread| {
                scope.spawn(move || {
                    let space = vec![7u8; 2 * PAGE];
                    let start = space.as_ptr().align_offset(PAGE);
                    let iov = libc::iovec {
                        iov_base: space[start..].as_ptr().cast_mut().cast(),
                        iov_len: PAGE,
                    };
                    let each = (0..rounds / depth).map(|round| {
                        let started = Instant::now();
                        let at = offset(round * depth + thread) as i64;
                        // SAFETY: `iov` points to a page that outlives the call.
                        let count = unsafe {
                            libc::pwritev2(file.as_raw_fd(), &raw const iov, 1, at, libc::RWF_DSYNC)
                        };
                        assert_eq!(count, PAGE as isize);
                        us_since(started)
                    });
                    each.collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Limit of the kernel's ring alone: no executor, no tasks.
fn bare_ring_writes(path: &Path, depth: usize, rounds: usize, fixed: bool) -> Vec<f64> {
    use io_uring::{IoUring, opcode, types};
    let file =
        std::fs::OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        .build(256)
        .unwrap();
    let space = vec![7u8; (depth + 1) * PAGE];
    let base = space[space.as_ptr().align_offset(PAGE)..].as_ptr();
    if fixed {
        let iov = libc::iovec { iov_base: base.cast_mut().cast(), iov_len: depth * PAGE };
        // SAFETY: the memory outlives the ring.
        unsafe { ring.submitter().register_buffers(&[iov]).unwrap() };
        ring.submitter().register_files(&[file.as_raw_fd()]).unwrap();
    }
    let mut started = vec![Instant::now(); depth];
    let (mut issued, mut us) = (0, Vec::with_capacity(rounds));
    let issue = |ring: &mut IoUring, slot: usize, issued: usize| {
        // SAFETY: within `space`.
        let page = unsafe { base.add(slot * PAGE) };
        let entry = if fixed {
            opcode::WriteFixed::new(types::Fixed(0), page, PAGE as u32, 0)
                .offset(offset(issued))
                .rw_flags(libc::RWF_DSYNC)
                .build()
        } else {
            opcode::Write::new(types::Fd(file.as_raw_fd()), page, PAGE as u32)
                .offset(offset(issued))
                .rw_flags(libc::RWF_DSYNC)
                .build()
        };
        // SAFETY: the page outlives the operation: all are awaited below.
        unsafe { ring.submission().push(&entry.user_data(slot as u64)).unwrap() };
    };
    for slot in 0..depth {
        issue(&mut ring, slot, issued);
        issued += 1;
    }
    while us.len() < rounds {
        ring.submit_and_wait(1).unwrap();
        let done: Vec<_> = ring.completion().map(|entry| entry.user_data() as usize).collect();
        for slot in done {
            us.push(us_since(started[slot]));
            if issued < rounds {
                started[slot] = Instant::now();
                issue(&mut ring, slot, issued);
                issued += 1;
            }
        }
    }
    us
}

fn ring_writes(runtime: &Runtime, path: &Path, depth: usize, rounds: usize) -> Vec<f64> {
    let env = runtime.env().clone();
    runtime.block_on(async {
        let options = OpenOptions { create: false, ..OpenOptions::CREATE.direct() };
        let file: File = env.open_file(path, options).await.unwrap();
        let tasks: Vec<_> = (0..depth)
            .map(|task| {
                let (file, env) = (file.clone(), env.clone());
                env.clone().spawn(Class::Foreground, "writer", async move {
                    let page = env.pool().alloc_zeroed(PAGE).unwrap().freeze();
                    let mut us = Vec::with_capacity(rounds / depth);
                    for round in 0..rounds / depth {
                        let started = Instant::now();
                        let at = offset(round * depth + task);
                        file.write_at(at, page.clone(), WriteMode::Durable).await.unwrap();
                        us.push(us_since(started));
                    }
                    us
                })
            })
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        all
    })
}

fn policies() -> Vec<(&'static str, PollPolicy)> {
    vec![
        ("never", PollPolicy::Never),
        ("adaptive 20 us", PollPolicy::Adaptive { max_us: 20 }),
        ("adaptive 50 us", PollPolicy::Adaptive { max_us: 50 }),
        ("adaptive 100 us", PollPolicy::Adaptive { max_us: 100 }),
        ("always", PollPolicy::Always),
    ]
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().expect("DIR [ROUNDS] [echo|write]");
    let rounds: usize = args.next().map_or(20_000, |text| text.parse().unwrap());
    let path = Path::new(&dir).join("runtime-bench.tmp");
    println!(
        "{:36} {:>8} {:>8} {:>8} {:>10} {:>8} {:>8} {:>8}",
        "work", "mean us", "p50", "p99", "op/s", "cpu us", "x op/s", "x cpu"
    );
    let config = |poll| RuntimeConfig { poll, ..RuntimeConfig::named("bench") };
    let only = args.next().unwrap_or_default();
    for clients in [1, 32].into_iter().filter(|_| only != "write") {
        let raw = measure(|| raw_echo(clients, rounds));
        print(&format!("echo {clients}: blocking threads"), &raw, &raw);
        for (name, poll) in policies() {
            let cores = Cores::start(&config(poll), 2).unwrap();
            let row = measure(|| ring_echo(&cores, clients, rounds));
            print(&format!("echo {clients}: runtime, {name}"), &row, &raw);
            cores.stop();
        }
    }
    zero_written(&path);
    for depth in [1, 32].into_iter().filter(|_| only != "echo") {
        let raw = measure(|| raw_writes(&path, depth, rounds));
        print(&format!("write {depth}: pwritev2, threads"), &raw, &raw);
        for (name, fixed) in [("plain", false), ("registered", true)] {
            let row = measure(|| bare_ring_writes(&path, depth, rounds, fixed));
            print(&format!("write {depth}: bare ring, {name}"), &row, &raw);
        }
        for (name, poll) in policies() {
            let runtime = Runtime::new(config(poll)).unwrap();
            let row = measure(|| ring_writes(&runtime, &path, depth, rounds));
            print(&format!("write {depth}: runtime, {name}"), &row, &raw);
        }
    }
    std::fs::remove_file(&path).unwrap();
}

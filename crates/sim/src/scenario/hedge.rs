//! Reads while one of five disks takes fifty times as long: no reader waits for it for longer than
//! backup reads allow, they add little to all reads, and the slow disk makes few reads for nothing.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use client::limits::{BACKUP_BURST, BACKUP_ONE_IN, READ_FAILED_MAX};
use client::{BackupConfig, Client, FlatLogFile};
use runtime::Class;
use runtime::sim::Sim;

use super::policy;
use crate::cluster::{Cluster, Shape};
use crate::tuning::Tuning;

pub(super) const FILES: u64 = 8;
pub(super) const FILE_LEN: u64 = 600_000;
/// Clients, and reads that each begins at the same time: several wait at each disk.
const CLIENTS: usize = 2;
const TOGETHER: u64 = 24;
const ROUNDS: u64 = 30;
/// One read asks for up to this many bytes.
const READ_MAX: u64 = 40_000;
/// Time from one round to the next, at least.
const ROUND: Duration = Duration::from_millis(150);
/// Latency of a healthy disk; of the slow one fifty times that.
pub(super) const HEALTHY: (Duration, Duration) =
    (Duration::from_micros(200), Duration::from_micros(400));
const SLOW: u32 = 50;
/// What a read takes at a healthy disk among so many others, with its way there and back, at most.
pub(super) const SERVED: Duration = Duration::from_millis(25);

/// A file's content from one number.
pub(super) fn content(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; FILE_LEN as usize];
    runtime::Rng::new(seed).fill(&mut bytes);
    bytes
}

#[derive(Default)]
struct Seen {
    took: Vec<Duration>,
    wrong: Option<String>,
}

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let mut tuning = Tuning::draw(&sim);
    // What is judged here are the product's own bounds.
    tuning.client.backup = BackupConfig::default();
    tuning.client.health_records = client::Config::default().health_records;
    // One that is listed gets few reads that others could take over.
    tuning.client.slow_min = Duration::from_secs(3600);
    tuning.master.slow_disk_min = Duration::from_secs(3600);
    tuning.reads_at_device = sim.with_rng(|rng| *rng.pick(&[1, 2]));
    let cluster = Cluster::start(&sim, Shape::default(), tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    write(&cluster).await?;
    cluster.until_whole(Duration::from_secs(60)).await?;
    let slow = sim.with_rng(|rng| rng.below(cluster.servers().len() as u64)) as usize;
    for (index, &host) in cluster.servers().iter().enumerate() {
        let factor = if index == slow { SLOW } else { 1 };
        let latency = (HEALTHY.0 * factor, HEALTHY.1 * factor);
        sim.with_disk_faults(host, |disk| disk.latency = latency);
    }
    let seen = Rc::new(RefCell::new(Seen::default()));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
        let task = keep_reading(sim.clone(), client.clone(), seen.clone());
        clients.push((client.env().spawn(Class::Foreground, "reader", task), client));
    }
    for (task, client) in clients {
        task.await.map_err(|_| "a reader's host went down".to_owned())??;
        let totals = client.totals();
        let reads = ROUNDS * TOGETHER;
        let most = BACKUP_BURST + reads / BACKUP_ONE_IN;
        if totals.backup_reads > most {
            return Err(format!(
                "{} backup reads beside {reads} reads, {most} may be",
                totals.backup_reads
            ));
        }
    }
    // What was cancelled is found at the disk's next turn.
    sim.sleep(Duration::from_secs(2)).await;
    judge(&cluster, &mut seen.borrow_mut())
}

pub(super) async fn write(cluster: &Cluster) -> Result<(), String> {
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let env = client.env().clone();
    let writing = async move {
        for number in 0..FILES {
            let path = format!("/{number}");
            let file = client.create(&path, policy::drawn(), 0o644, false).await?;
            let appender = file.append_handle().await?;
            appender.append(&content(number)).await?;
            appender.finish().await?;
        }
        Ok(())
    };
    let written = env.spawn(Class::Foreground, "writer", writing).await;
    written
        .unwrap_or(Ok(()))
        .map_err(|error: client::Error| format!("no file could be written: {error}"))
}

async fn keep_reading(sim: Sim, client: Client, seen: Rc<RefCell<Seen>>) -> Result<(), String> {
    let mut files = Vec::new();
    for number in 0..FILES {
        let file = client.open(&format!("/{number}")).await.map_err(|error| error.to_string())?;
        files.push((file, Rc::new(content(number))));
    }
    for _ in 0..ROUNDS {
        let end = sim.elapsed() + ROUND;
        let reads: Vec<_> = (0..TOGETHER)
            .map(|_| {
                let (number, offset, len) = sim.with_rng(|rng| {
                    let len = rng.between(1, READ_MAX);
                    (rng.below(FILES), rng.below(FILE_LEN - len), len)
                });
                let (file, content) = files[number as usize].clone();
                let read = read_once(sim.clone(), file, content, (offset, len), seen.clone());
                client.env().spawn(Class::Foreground, "read", read)
            })
            .collect();
        for read in reads {
            read.await.map_err(|_| "a reader's host went down".to_owned())?;
        }
        sim.sleep(end.saturating_sub(sim.elapsed())).await;
    }
    Ok(())
}

async fn read_once(
    sim: Sim,
    file: FlatLogFile,
    content: Rc<Vec<u8>>,
    (offset, len): (u64, u64),
    seen: Rc<RefCell<Seen>>,
) {
    let began = sim.elapsed();
    let read = file.reader().read_at(offset, len as usize).await;
    let mut seen = seen.borrow_mut();
    seen.took.push(sim.elapsed() - began);
    let range = offset as usize..(offset + len) as usize;
    match read {
        Ok(bytes) if bytes == content[range] => {}
        Ok(bytes) => {
            let what = format!("{} bytes from {offset} are not those of the file", bytes.len());
            seen.wrong.get_or_insert(what);
        }
        Err(error) => {
            seen.wrong.get_or_insert(format!("a read failed: {error}"));
        }
    }
}

fn judge(cluster: &Cluster, seen: &mut Seen) -> Result<(), String> {
    if let Some(wrong) = seen.wrong.take() {
        return Err(wrong);
    }
    seen.took.sort();
    let at = |per_mille: usize| seen.took[(seen.took.len() - 1) * per_mille / 1000];
    let (half, longest) = (at(500), at(1000));
    let stats: Vec<_> =
        (0..cluster.servers().len()).filter_map(|at| Some(cluster.server(at)?.stats())).collect();
    let before: u64 = stats.iter().map(|stats| stats.reads_cancelled_before).sum();
    let after: u64 = stats.iter().map(|stats| stats.reads_cancelled_after).sum();
    let sim = cluster.sim();
    sim.note(before);
    sim.note(after);
    let most = READ_FAILED_MAX + SERVED;
    if longest > most {
        return Err(format!("the longest read took {longest:?}, not {most:?} at most"));
    }
    if half > SERVED {
        return Err(format!("half of the reads took {half:?} and more: one disk of five is slow"));
    }
    // A disk is at one or two of several reads when their callers go; the others wait. While few wait,
    // nearly all of them are made (47 of 55 in seed 287): one of each client and round at most.
    let at_disk = CLIENTS as u64 * ROUNDS;
    if before + after < 20 || after > at_disk + 2 * before {
        return Err(format!(
            "disks made {after} reads for callers that had gone, and were spared {before}"
        ));
    }
    Ok(())
}

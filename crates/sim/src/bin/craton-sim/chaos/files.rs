//! Files through the core: writers that know what was acknowledged, and readers beside them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::failure::Failure;
use client::{BlockingClient, Error};
use runtime::Rng;
use wire::control::{Compression, Policy};

use super::blocks::fill;
use super::cluster::Cluster;

const WRITERS: u64 = 3;
const READERS: u64 = 2;
/// Bytes of a record.
const RECORD: u64 = 4096;
/// Records of a file: some chunks come to an end in it, by faults.
const RECORDS: u64 = 256;
/// Files that are kept; the oldest is removed then.
const FILES_MAX: usize = 150;
/// Between two records of a writer: the load leaves the machine time for the cluster.
const THINK: Duration = Duration::from_millis(4);
/// Between two files that are to be converted.
const CONVERTED_EACH: Duration = Duration::from_millis(250);
/// What they are converted to: five servers have places for these.
const POLICIES: &[Policy] = &[
    Policy::rep(3),
    Policy::rep(2),
    Policy::ec(2, 1),
    Policy::ec(2, 1).compressed(Some(Compression::LZ4)),
    Policy::rep(3).compressed(Some(Compression::ZSTD)),
];
/// Between two attempts after an error.
const RETRY: Duration = Duration::from_millis(200);

/// State of a file.
struct Known {
    path: String,
    number: u64,
    /// Records acknowledged.
    acked: AtomicU64,
    /// Records sent: those above `acked` may be there or not, as a prefix.
    sent: AtomicU64,
}

#[derive(Default)]
struct Shared {
    files: Mutex<VecDeque<Arc<Known>>>,
    violation: Mutex<Option<String>>,
    records: AtomicU64,
    refused: AtomicU64,
    reads: AtomicU64,
    /// Orders to convert what a file has stored.
    converted: AtomicU64,
    /// Reads that were answered with an error, amid faults.
    unread: AtomicU64,
}

/// Writers and readers at work.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts all of them.
    pub fn start(cluster: &Cluster, mut rng: Rng, stop: &Arc<AtomicBool>) -> Result<Load, Failure> {
        let client = Arc::new(cluster.client()?);
        client.mkdir_all("/chaos", 0o755)?;
        let shared = Arc::new(Shared::default());
        let mut threads = Vec::new();
        for writer in 0..WRITERS {
            let (client, shared, stop) = (client.clone(), shared.clone(), stop.clone());
            threads.push(std::thread::spawn(move || write(&client, &shared, writer, &stop)));
        }
        for _ in 0..READERS {
            // A client of its own, which lives long and keeps what it has learned.
            let (client, shared, stop) = (cluster.client()?, shared.clone(), stop.clone());
            let rng = rng.fork();
            threads.push(std::thread::spawn(move || read(&client, &shared, rng, &stop)));
        }
        let (client, converted, stop) = (cluster.client()?, shared.clone(), stop.clone());
        threads.push(std::thread::spawn(move || convert(&client, &converted, rng, &stop)));
        Ok(Load { shared, threads })
    }

    /// The first violation that readers have seen.
    pub fn violation(&self) -> Option<String> {
        self.shared.violation()
    }

    /// Waits for the threads, which have been asked to stop.
    pub fn end(self) -> Result<Ended, String> {
        for thread in self.threads {
            thread.join().map_err(|_| "a thread of the load has panicked".to_owned())?;
        }
        self.shared.violation().map_or(Ok(Ended(self.shared)), Err)
    }
}

impl Shared {
    fn violation(&self) -> Option<String> {
        self.violation.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_violation(&self, text: String) {
        let mut violation = self.violation.lock().unwrap_or_else(PoisonError::into_inner);
        violation.get_or_insert(text);
    }

    fn files(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Known>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Record `seq` of a file.
fn record(number: u64, seq: u64) -> Vec<u8> {
    let mut bytes = vec![0; RECORD as usize];
    fill(&mut bytes, [number, seq, 0]);
    bytes
}

fn write(client: &BlockingClient, shared: &Shared, writer: u64, stop: &AtomicBool) {
    let mut number = writer;
    while !stop.load(Ordering::Relaxed) {
        number += WRITERS;
        let known = Known {
            path: format!("/chaos/{number}"),
            number,
            acked: AtomicU64::default(),
            sent: AtomicU64::default(),
        };
        if write_one(client, shared, Arc::new(known), stop).is_err() {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(RETRY);
        }
        let old = {
            let mut files = shared.files();
            if files.len() > FILES_MAX { files.pop_front() } else { None }
        };
        if let Some(old) = old {
            let _ = client.unlink(&old.path); // Gone or not, it is not compared any more.
        }
    }
}

fn write_one(
    client: &BlockingClient,
    shared: &Shared,
    known: Arc<Known>,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let file = client.create(&known.path, Policy::strict(3), 0o644, true)?;
    let appender = file.append_handle()?;
    shared.files().push_back(known.clone());
    for seq in 0..RECORDS {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        known.sent.store(seq + 1, Ordering::SeqCst);
        appender.append(&record(known.number, seq))?;
        known.acked.store(seq + 1, Ordering::SeqCst);
        shared.records.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(THINK);
    }
    appender.close().map(drop)
}

fn read(client: &BlockingClient, shared: &Shared, mut rng: Rng, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(THINK);
        let known = {
            let files = shared.files();
            match files.len() as u64 {
                0 => continue,
                count => files[rng.below(count) as usize].clone(),
            }
        };
        let acked = known.acked.load(Ordering::SeqCst);
        if acked == 0 {
            continue;
        }
        let from = rng.below(acked);
        let to = (from + 1 + rng.below(8)).min(acked);
        match compare(client, &known, from..to) {
            // An answer that is shorter than asked for has all that was acknowledged before.
            Ok(Ok(shown)) if shown < to && !removed(shared, &known) => {
                let path = &known.path;
                shared.set_violation(format!(
                    "{path}: a read of records {from}..{to}, which were acknowledged, ends before \
                     record {shown}"
                ));
            }
            Ok(Ok(_)) => {
                shared.reads.fetch_add(1, Ordering::Relaxed);
            }
            // Another task has removed it.
            Ok(Err(_)) if removed(shared, &known) => {}
            Ok(Err(violation)) => shared.set_violation(violation),
            Err(_) => {
                shared.unread.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(RETRY);
            }
        }
    }
}

/// Gives files other policies, and has what is stored converted.
fn convert(client: &BlockingClient, shared: &Shared, mut rng: Rng, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(CONVERTED_EACH);
        let known = {
            let files = shared.files();
            match files.len() as u64 {
                0 => continue,
                count => files[rng.below(count) as usize].clone(),
            }
        };
        let policy = *rng.pick(POLICIES);
        let ordered = client.open(&known.path).and_then(|file| {
            file.set_policy(policy)?;
            file.convert(true)
        });
        if ordered.is_ok() {
            shared.converted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn removed(shared: &Shared, known: &Known) -> bool {
    !shared.files().iter().any(|one| one.number == known.number)
}

/// Compares some records of a file, and answers behind which one the read ended.
fn compare(
    client: &BlockingClient,
    known: &Known,
    seqs: std::ops::Range<u64>,
) -> Result<Result<u64, String>, Error> {
    let len = ((seqs.end - seqs.start) * RECORD) as usize;
    let got = client.open(&known.path)?.read_at(seqs.start * RECORD, len)?;
    let want: Vec<u8> = seqs.clone().flat_map(|seq| record(known.number, seq)).collect();
    let path = &known.path;
    Ok(match got[..] == want[..got.len().min(want.len())] {
        true => Ok(seqs.start + got.len() as u64 / RECORD),
        false => Err(format!("{path}: records {seqs:?} have other bytes")),
    })
}

/// The load when it has ended.
pub struct Ended(Arc<Shared>);

impl Ended {
    /// Compares every file: what was acknowledged, then a prefix of what was sent, nothing else.
    pub fn verify(&self, cluster: &Cluster) -> Result<(), String> {
        let client = cluster.client().map_err(|failure| failure.to_string())?;
        for known in self.0.files().iter() {
            let failed = |error: Error| format!("{}: {error}", known.path);
            let len = client.open(&known.path).and_then(|file| file.len()).map_err(failed)?;
            let acked = known.acked.load(Ordering::SeqCst);
            let sent = known.sent.load(Ordering::SeqCst);
            if !(acked * RECORD..=sent * RECORD).contains(&len) || len % RECORD > 0 {
                let path = &known.path;
                return Err(format!(
                    "{path}: {len} bytes; {acked} records of {sent} were acknowledged"
                ));
            }
            let shown = compare(&client, known, 0..len / RECORD).map_err(failed)??;
            if shown * RECORD < len {
                return Err(format!("{}: {len} bytes, but reads end at {shown}", known.path));
            }
        }
        Ok(())
    }

    /// One line of figures.
    pub fn summary(&self) -> String {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!(
            "files: {} records acknowledged, {} files given up, {} to be converted, {} reads compared, \
             {} refused",
            of(&self.0.records),
            of(&self.0.refused),
            of(&self.0.converted),
            of(&self.0.reads),
            of(&self.0.unread)
        )
    }
}

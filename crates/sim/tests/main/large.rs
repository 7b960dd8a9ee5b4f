//! Large numbers on a whole cluster.

use std::time::Duration;

use base::{Epoch, ID_COUNTER_END, Kind, ServerId};
use client::{Client, Error};
use master::FirstNumbers;
use runtime::Class;
use runtime::sim::{CrashMode, Sim};
use sim::cluster::{Cluster, Shape};
use sim::tuning::Tuning;
use wire::control::{ClusterRequest, Policy, Registration};

const SECOND: Duration = Duration::from_secs(1);
/// Chunks of one file: more than a page of anything.
const CHUNKS: u64 = 3000;
/// Bytes of each.
const BYTES: u64 = 90;

fn content(number: u64) -> Vec<u8> {
    (0..BYTES).map(|at| (number * 31 + at) as u8).collect()
}

/// Each opening for append has an epoch of its own, and each epoch chunks of its own.
async fn write_chunks(client: &Client, path: &str) {
    let file = client.create(path, Policy::strict(3), 0o644, true).await.expect("a new file");
    for number in 0..CHUNKS {
        let appender = file.append_handle().await.expect("the only writer");
        let at = appender.append(&content(number)).await.expect("no faults");
        assert_eq!(at, number * BYTES);
        appender.close().await.expect("no faults");
    }
}

async fn check_chunks(client: &Client, path: &str) {
    let file = client.open(path).await.expect("it is there");
    assert_eq!(file.len().await.expect("sealed"), CHUNKS * BYTES);
    assert_eq!(file.chunks().await.expect("all").chunks.len() as u64, CHUNKS);
    let whole: Vec<u8> = (0..CHUNKS).flat_map(content).collect();
    let reader = file.reader();
    assert!(reader.read_at(0, whole.len() + 1).await.expect("whole") == whole);
    for at in (0..whole.len()).step_by(7919) {
        let read = reader.read_at(at as u64, 200).await.expect("a part");
        assert!(read == whole[at..(at + 200).min(whole.len())], "200 bytes at {at}");
    }
}

#[test]
fn file_of_thousands_of_chunks_is_written_repaired_and_removed() {
    let sim = Sim::new(44);
    let run = async {
        let shape = Shape { masters: 1, servers: 4, ..Shape::default() };
        let mut tuning = Tuning::default();
        let stream = &mut tuning.master.stream;
        (stream.list_interval, stream.garbage_interval) = (SECOND, SECOND);
        (stream.dead_grace, stream.token_life) = (5 * SECOND, 10 * SECOND);
        tuning.master.snapshot_after = 500;
        let cluster = Cluster::start(&sim, shape, tuning);
        cluster.settle(30 * SECOND).await.unwrap();
        let (_, client) = cluster.client(None).await.expect("it connects");
        let env = client.env().clone();
        let writer = client.clone();
        let writing = async move { write_chunks(&writer, "/file").await };
        env.spawn(Class::Foreground, "writer", writing).await.expect("no crash");
        cluster.settle(120 * SECOND).await.unwrap();
        // A server that holds three quarters of them is lost, and comes back empty-handed.
        cluster.crash_server(0, CrashMode::Power);
        sim.sleep(10 * SECOND).await;
        cluster.until_whole(600 * SECOND).await.unwrap();
        cluster.crash_master(0, CrashMode::Power);
        cluster.boot_all();
        cluster.settle(120 * SECOND).await.unwrap();
        let (_, other) = cluster.client(None).await.expect("it connects");
        let env = other.env().clone();
        let checks = async move {
            check_chunks(&other, "/file").await;
            other.unlink("/file").await.expect("it goes");
            let gone = other.open("/file").await.map(drop).expect_err("removed");
            assert_eq!(gone.kind(), Kind::NotFound);
        };
        env.spawn(Class::Foreground, "reader", checks).await.expect("no crash");
        let held = || (0..4).flat_map(|index| cluster.stores(index)).map(held_by).sum::<u64>();
        // Pending deletes are shown apart from data.
        let mut shown = 0;
        let end = sim.elapsed() + 600 * SECOND;
        while held() > 0 && sim.elapsed() < end {
            sim.sleep(SECOND).await;
            shown = shown.max(unreferenced(&client).await);
        }
        assert_eq!(held(), 0, "replicas of the removed file");
        assert!(shown >= 3 * CHUNKS * BYTES, "{shown} unreferenced bytes");
        sim.sleep(5 * SECOND).await;
        assert_eq!(unreferenced(&client).await, 0);
        assert_eq!(cluster.violations(), Vec::<String>::new());
    };
    sim.run(run).expect("a task is always due");
}

async fn unreferenced(client: &Client) -> u64 {
    let statuses = client.status().await.expect("a master answers");
    statuses.iter().map(|(_, status)| status.unreferenced_bytes).sum()
}

fn held_by((_, store): (base::DiskId, sim::planted::Store)) -> u64 {
    use chunkstore::ChunkStore;
    store.info().chunks
}

/// Appends under one epoch after the other until one is refused, each time by a writer that the
/// next one shuts out. Answers what was acknowledged, and the refusal.
async fn append_until_refused(client: &Client, path: &str) -> (Vec<u8>, Error) {
    let file = client.create(path, Policy::strict(3), 0o644, true).await.expect("a new file");
    let mut acked = Vec::new();
    loop {
        let appender = match file.append_handle().await {
            Ok(appender) => appender,
            Err(error) => return (acked, error),
        };
        let data = content(acked.len() as u64);
        assert_eq!(appender.append(&data).await.expect("no faults"), acked.len() as u64);
        acked.extend(data);
    }
}

/// Runs writers to the ends of their numbers: the refusal says so, and after a power cut of all
/// hosts every acknowledged byte is there.
fn hold_at_the_end(seed: u64, first: FirstNumbers, writers: std::ops::Range<usize>) {
    let sim = Sim::new(seed);
    let run = async {
        let mut tuning = Tuning { first: Some(first), ..Tuning::default() };
        tuning.client.writer.spares = 1;
        let cluster = Cluster::start(&sim, Shape::default(), tuning);
        cluster.settle(30 * SECOND).await.unwrap();
        let (host, client) = cluster.client(None).await.expect("it connects");
        let env = client.env().clone();
        let writing = async move { append_until_refused(&client, "/file").await };
        let writing = env.spawn(Class::Foreground, "writer", writing).await;
        let (acked, refusal) = writing.expect("no crash");
        assert_eq!(refusal.kind(), Kind::Full, "{refusal}");
        assert!(writers.contains(&(acked.len() / BYTES as usize)), "{} bytes", acked.len());
        sim.crash(host, CrashMode::Power);
        (0..3).for_each(|index| cluster.crash_master(index, CrashMode::Power));
        (0..5).for_each(|index| cluster.crash_server(index, CrashMode::Power));
        cluster.settle(120 * SECOND).await.unwrap();
        let (_, client) = cluster.client(None).await.expect("it connects");
        let env = client.env().clone();
        let reading = async move {
            let file = client.open("/file").await.expect("it is there");
            assert_eq!(file.seal().await.expect("the last writer is gone"), acked.len() as u64);
            let refused = file.append_handle().await.map(drop).expect_err("still at the end");
            assert_eq!(refused.kind(), Kind::Full, "{refused}");
            let read = file.reader().read_at(0, acked.len() + 1).await.expect("whole");
            assert!(read == acked, "{} bytes of {}", read.len(), acked.len());
        };
        env.spawn(Class::Foreground, "reader", reading).await.expect("no crash");
        assert_eq!(cluster.violations(), Vec::<String>::new());
    };
    sim.run(run).expect("a task is always due");
}

#[test]
fn last_chunk_numbers_are_used_and_nothing_is_lost() {
    let first = FirstNumbers { chunk: ID_COUNTER_END - 9, ..FirstNumbers::default() };
    hold_at_the_end(45, first, 4..10);
}

#[test]
fn last_epochs_are_used_and_nothing_is_lost() {
    let epoch = Epoch::new(Epoch::LAST_WRITER.get() - 6);
    hold_at_the_end(46, FirstNumbers { epoch, ..FirstNumbers::default() }, 6..7);
}

#[test]
fn last_file_numbers_are_used_and_nothing_is_lost() {
    let sim = Sim::new(47);
    let run = async {
        let first = FirstNumbers { file: ID_COUNTER_END - 3, ..FirstNumbers::default() };
        let tuning = Tuning { first: Some(first), ..Tuning::default() };
        let cluster = Cluster::start(&sim, Shape::default(), tuning);
        cluster.settle(30 * SECOND).await.unwrap();
        let (_, client) = cluster.client(None).await.expect("it connects");
        let env = client.env().clone();
        let work = async move {
            for number in 0..3 {
                let path = format!("/{number}");
                let made = client.create(&path, Policy::strict(3), 0o644, true).await;
                made.expect("a number is left");
            }
            let refused = client.create("/3", Policy::strict(3), 0o644, true).await;
            assert_eq!(refused.map(drop).expect_err("none is left").kind(), Kind::Full);
            for number in 0..3 {
                client.open(&format!("/{number}")).await.expect("it is there");
            }
        };
        env.spawn(Class::Foreground, "client", work).await.expect("no crash");
        assert_eq!(cluster.violations(), Vec::<String>::new());
    };
    sim.run(run).expect("a task is always due");
}

/// Numbers of the chunkservers, in order.
async fn server_numbers(client: &Client) -> Vec<u32> {
    let statuses = client.status().await.expect("masters answer");
    let (_, status) = statuses.into_iter().next().expect("one at least");
    let mut numbers: Vec<_> = status.servers.iter().map(|one| one.server.get()).collect();
    numbers.sort_unstable();
    numbers
}

/// All numbers are given, the last one too, and no further chunkserver joins. Those that have one keep it and
/// serve, also behind a power cut of all hosts.
#[test]
fn last_numbers_of_chunkservers_are_used_and_nothing_is_lost() {
    let sim = Sim::new(49);
    let run = async {
        let shape = Shape::default();
        let server = ServerId::new(u32::MAX - shape.servers as u32);
        let given: Vec<_> = (server.get() + 1..=u32::MAX).collect();
        let first = FirstNumbers { server, ..FirstNumbers::default() };
        let tuning = Tuning { first: Some(first), ..Tuning::default() };
        let cluster = Cluster::start(&sim, shape, tuning);
        cluster.settle(30 * SECOND).await.unwrap();
        let (host, client) = cluster.client(None).await.expect("it connects");
        let (env, expected) = (client.env().clone(), given.clone());
        let writing = async move {
            assert_eq!(server_numbers(&client).await, expected);
            // Of as many copies as there are servers: the last one has one, too.
            let policy = Policy::plain(5, 3);
            let file = client.create("/file", policy, 0o644, true).await.expect("a new file");
            for number in 0..10 {
                let appender = file.append_handle().await.expect("the only writer");
                appender.append(&content(number)).await.expect("no faults");
                appender.close().await.expect("no faults");
            }
            for _ in 0..2 {
                let (name, addr) = ("another".to_owned(), ([10, 9, 9, 9], 7101).into());
                let registration = Registration { domain: name.clone(), name, addr };
                let asked = client.cluster_ask(ClusterRequest::Register(registration)).await;
                assert_eq!(asked.map(drop).expect_err("none is left").kind(), Kind::Full);
            }
        };
        env.spawn(Class::Foreground, "writer", writing).await.expect("no crash");
        sim.crash(host, CrashMode::Power);
        (0..3).for_each(|index| cluster.crash_master(index, CrashMode::Power));
        (0..5).for_each(|index| cluster.crash_server(index, CrashMode::Power));
        cluster.settle(120 * SECOND).await.unwrap();
        let (_, client) = cluster.client(None).await.expect("it connects");
        let env = client.env().clone();
        let reading = async move {
            assert_eq!(server_numbers(&client).await, given);
            let file = client.open("/file").await.expect("it is there");
            for chunk in file.chunks().await.expect("all").chunks {
                let mut on: Vec<_> = chunk.replicas.iter().map(|it| it.server.get()).collect();
                on.sort_unstable();
                assert_eq!(on, given);
            }
            let whole: Vec<u8> = (0..10).flat_map(content).collect();
            assert!(file.reader().read_at(0, whole.len() + 1).await.expect("whole") == whole);
        };
        env.spawn(Class::Foreground, "reader", reading).await.expect("no crash");
        assert_eq!(cluster.violations(), Vec::<String>::new());
    };
    sim.run(run).expect("a task is always due");
}

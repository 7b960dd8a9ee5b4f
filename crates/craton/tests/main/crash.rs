//! Everything ends at once, and comes back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::MIB;
use client::Config;

use crate::harness::{Scratch, book, good, kill9, server, text, wait, wait_for_repair};
use crate::load::{self, Load, Shape, Writer};
use crate::stores;

#[test]
fn all_killed_at_once_under_load_keep_what_was_acknowledged() {
    let mut scratch = Scratch::new("cut");
    let dir = scratch.cluster("cluster");
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "3", "--chunkservers", "3"]);
    // The load gives up soon, before the cluster comes back.
    let mut config = Config { control_budget: Duration::from_secs(1), ..Config::default() };
    config.writer.chunk_len_max = MIB as u32;
    config.writer.stall_budget = Duration::from_secs(1);
    let client = Arc::new(load::connect_with(&dir, config));
    let load = Load::start_with(client, Shape { writers: 6, depth: 16, copies: 3, makers: 1 });
    std::thread::sleep(Duration::from_secs(2));

    let book = book(&dir);
    let processes = book["processes"].as_array().expect("processes");
    let ids: Vec<&str> = processes.iter().map(|one| one["id"].as_str().expect("text")).collect();
    kill9(&dir, &ids);
    let writers = load.end();
    for Writer { path, error, .. } in &writers {
        let cut_off = error.as_ref().is_some_and(|why| why.contains("no answer"));
        assert!(cut_off, "{path} was to be cut off, not to end with {error:?}");
    }

    good(&["cluster", "up", "--dir", text(&dir)]);
    let client = load::connect(&dir);
    let mut beyond = Vec::new();
    for writer in &writers {
        if writer.path.starts_with("/load/m") {
            writer.verify_made(&client);
            continue;
        }
        // The next writer ends the one that is gone; then all its data can be read.
        let file = client.open(&writer.path).expect("it is there");
        let sealed = file.seal().expect("it is sealed");
        let len = writer.verify(&client);
        assert_eq!(sealed, len);
        beyond.push(len - writer.acked * load::RECORD as u64);
        let appender = file.append_handle().expect("a writer");
        assert_eq!(appender.append(b"goes on").expect("it appends"), len);
        appender.close().expect("it closes");
        assert_eq!(file.read_at(len, 100).expect("it reads"), b"goes on");
    }
    println!("bytes kept beyond what was acknowledged, of 65536 in flight: {beyond:?}");
    wait_for_repair(&dir, Duration::from_secs(60));
}

#[test]
fn a_chunkserver_with_100_000_chunks_restarts_within_seconds() {
    const CHUNKS: u64 = 100_000;
    const LIMIT: Duration = Duration::from_secs(10);
    let mut scratch = Scratch::alone("many");
    let dir = scratch.cluster("cluster");
    let (local, cluster) = (scratch.path("file"), text(&dir).to_owned());
    std::fs::write(&local, "among many").expect("a file");
    good(&["cluster", "up", "--dir", &cluster, "--masters", "1", "--chunkservers", "1"]);
    good(&["fs", "put", text(&local), "/file", "--cluster", &cluster]);
    good(&["cluster", "down", "--dir", &cluster]);
    let began = Instant::now();
    stores::fill(&dir.join("cs1/store"), CHUNKS);
    let filled = began.elapsed();

    // The store was left without a checkpoint of its last writes, as by a power cut.
    let began = Instant::now();
    good(&["cluster", "up", "--dir", &cluster]);
    let held = || server(&dir, "cs1")["disks"][0]["chunks"].as_u64() >= Some(CHUNKS);
    wait("it reports", LIMIT, held);
    let crashed = began.elapsed();
    assert_eq!(good(&["fs", "cat", "/file", "--cluster", &cluster]), "among many");

    kill9(&dir, &["cs1"]);
    let began = Instant::now();
    good(&["cluster", "restart", "--dir", &cluster, "chunkserver", "cs1"]);
    wait("it reports", LIMIT, || server(&dir, "cs1")["state"] == "up" && held());
    assert_eq!(good(&["fs", "cat", "/file", "--cluster", &cluster]), "among many");
    let killed = began.elapsed();
    println!(
        "{CHUNKS} chunks: made in {filled:.1?}, served {crashed:.1?} after a cut of power, {killed:.1?} after a kill"
    );
    assert!(crashed < LIMIT && killed < LIMIT, "{crashed:?} and {killed:?}, not {LIMIT:?}");
}

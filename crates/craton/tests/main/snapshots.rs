//! Snapshots and clones with real processes: a cut under load, reads from it, and the command's
//! refusals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{self, Scratch, bad, good, json, text, wait};
use crate::nbd::{BLOCK, Nbd, READ, WRITE};
use crate::volumes::up;

/// Blocks that the writer counts up in turn, in order, over all segments.
const BLOCKS: u64 = 64;
/// From one to the next: a data sector and a block.
const STRIDE: u64 = (128 << 10) + BLOCK as u64;

fn counters(nbd: &mut Nbd) -> Vec<u64> {
    let read = |block: u64| {
        let data = nbd.ask(READ, block * STRIDE, BLOCK, &[]);
        assert!(data.chunks(8).all(|word| word == &data[..8]), "half of a write");
        u64::from_le_bytes(data[..8].try_into().expect("8 bytes"))
    };
    (0..BLOCKS).map(read).collect()
}

/// One writer writes 1, 2, 3, ... to the blocks in turn, each when the one before was answered:
/// any consistent cut has all numbers up to one, and none above.
fn check_cut(counters: &[u64]) -> u64 {
    let last = *counters.iter().max().expect("blocks");
    for (block, &has) in counters.iter().enumerate() {
        let block = block as u64;
        // The largest number up to the last one that goes to this block.
        let want = if last == 0 || last - 1 < block {
            0
        } else {
            (last - 1 - block) / BLOCKS * BLOCKS + block + 1
        };
        assert_eq!(has, want, "block {block} of a cut that ends with {last}");
    }
    last
}

#[test]
fn a_snapshot_under_load_is_a_consistent_cut() {
    let mut scratch = Scratch::new("snapshot");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let cluster = text(&dir).to_owned();
    let run = |args: &[&str]| good(&[&["volume"], args, &["--cluster", &cluster]].concat());
    let shown =
        |args: &[&str]| json(&[&["volume"], args, &["--json", "--cluster", &cluster]].concat());
    let refused = |args: &[&str], code: i32, want: &str| {
        bad(&[&["volume"], args, &["--cluster", &cluster]].concat(), code, want);
    };
    let url = shown(&["create", "data", "--size", "1GiB"])["nbd"].as_str().expect("one").to_owned();
    let at = |name: &str| url.replace("/data", &format!("/{name}"));

    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writer = {
        let (url, stop, done) = (url.clone(), stop.clone(), done.clone());
        std::thread::spawn(move || {
            let mut nbd = Nbd::open(&url);
            let mut number = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let block = number % BLOCKS;
                number += 1;
                let data = number.to_le_bytes().repeat(BLOCK / 8);
                nbd.ask(WRITE, block * STRIDE, BLOCK, &data);
                done.store(number, Ordering::SeqCst);
            }
        })
    };
    let mut cuts = Vec::new();
    for number in 1..=3 {
        std::thread::sleep(Duration::from_millis(300));
        let name = format!("s{number}");
        let before = done.load(Ordering::SeqCst);
        let made = shown(&["snapshot", "create", "data", &name]);
        let after = done.load(Ordering::SeqCst) + 1;
        assert_eq!(made["export"], format!("data@{name}"));
        let hold = made["hold_us"].as_u64().expect("a time");
        println!("{name}: {before} to {after}, held {hold} us");
        assert!(hold > 0 && hold < 1_000_000, "{made}");
        cuts.push((name, before, after));
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("the writer ends well");
    // A snapshot that no client has opened yet is checked like any volume.
    let checked = shown(&["check", "data@s3"]);
    assert_eq!(checked["segments"], shown(&["check", "data"])["segments"], "{checked}");
    assert!(checked["blocks"].as_u64() > Some(0), "{checked}");
    for (name, before, after) in &cuts {
        let mut nbd = Nbd::open(&at(&format!("data@{name}")));
        assert_eq!(nbd.bytes, 1 << 30);
        let last = check_cut(&counters(&mut nbd));
        assert!((*before..=*after).contains(&last), "{name}: {last}, not {before} to {after}");
    }
    assert_eq!(shown(&["snapshot", "ls", "data"]).as_array().map(Vec::len), Some(3));
    let info = shown(&["info", "data"]);
    assert_eq!(info["snapshots"][0]["name"], "s1", "{info}");

    // A clone shares content with its snapshot, and nothing that is written later.
    let clone = shown(&["clone", "data@s2", "copy"]);
    let clone_url = clone["nbd"].as_str().expect("an export").to_owned();
    let want = counters(&mut Nbd::open(&at("data@s2")));
    {
        let mut nbd = Nbd::open(&clone_url);
        assert_eq!(counters(&mut nbd), want);
        nbd.ask(WRITE, 0, BLOCK, &[9; BLOCK]);
    }
    assert_eq!(counters(&mut Nbd::open(&at("data@s2"))), want);
    let volumes = shown(&["ls"]);
    let of = |name: &str| -> Value {
        let all = volumes.as_array().expect("a list");
        all.iter().find(|one| one["name"] == name).expect("it is there").clone()
    };
    assert_eq!(volumes.as_array().map(Vec::len), Some(2), "{volumes}");
    assert_eq!(of("copy")["origin"], "data@s2");

    refused(&["snapshot", "create", "data", "s1"], 1, "exists already");
    refused(&["snapshot", "create", "data", "a@b"], 2, "no name");
    refused(&["snapshot", "create", "data@s1", "x"], 1, "is a snapshot, which never changes");
    refused(&["create", "a@b", "--size", "1GiB"], 2, "no name");
    refused(&["clone", "data", "other"], 2, "is no snapshot");
    refused(&["resize", "data@s1", "--size", "2GiB"], 1, "is a snapshot, which never changes");
    refused(&["snapshot", "rm", "data", "s2"], 1, "has clones (copy)");
    refused(&["rm", "data"], 1, "has snapshots (data@s1, data@s2, data@s3)");
    {
        let _open = Nbd::open(&url);
        refused(&["snapshot", "rollback", "data", "s1"], 1, "has it open");
    }
    wait("the export is closed", Duration::from_secs(10), || {
        shown(&["info", "data"])["attachments"].as_array().is_some_and(Vec::is_empty)
    });
    run(&["snapshot", "rollback", "data", "s1"]);
    let first = counters(&mut Nbd::open(&at("data@s1")));
    assert_eq!(counters(&mut Nbd::open(&url)), first);
    assert_eq!(shown(&["snapshot", "ls", "data"]).as_array().map(Vec::len), Some(3));

    // A flattened clone has no snapshot any more, and goes on without it.
    run(&["flatten", "copy"]);
    run(&["snapshot", "rm", "data", "s2"]);
    assert_eq!(shown(&["info", "copy"])["origin"], Value::Null);
    let mut nbd = Nbd::open(&clone_url);
    assert_eq!(nbd.ask(READ, 0, BLOCK, &[]), [9; BLOCK]);
    assert_eq!(counters(&mut nbd)[1..], want[1..]);
    drop(nbd);
    wait("the volumes are removed", Duration::from_secs(20), || {
        let args = ["volume", "rm", "data", "copy", "--snapshots", "--now", "--cluster", &cluster];
        harness::craton(&args).status.success()
    });
    wait("the files are removed", Duration::from_secs(60), || {
        good(&["fs", "ls", "/.craton/block", "--services", "--cluster", &cluster]) == "manager\n"
    });
}

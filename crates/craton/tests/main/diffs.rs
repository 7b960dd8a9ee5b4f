//! Differences of snapshots as files, with real processes.

use std::fs;
use std::time::Duration;

use crate::harness::{Scratch, bad, good, json, text, wait};
use crate::nbd::{BLOCK, Nbd, READ, TRIM, WRITE};
use crate::volumes::up;

/// Blocks that are compared, over all segments.
const BLOCKS: u64 = 48;
/// From one to the next: half a data sector, and a block.
const STRIDE: u64 = (64 << 10) + BLOCK as u64;

/// Each so-manieth is changed between two snapshots.
const CHANGED: usize = 20;

fn put(nbd: &mut Nbd, block: u64, value: u8) {
    nbd.ask(WRITE, block * STRIDE, BLOCK, &[value; BLOCK]);
}

fn content(url: &str) -> Vec<Vec<u8>> {
    let mut nbd = Nbd::open(url);
    (0..BLOCKS).map(|block| nbd.ask(READ, block * STRIDE, BLOCK, &[])).collect()
}

#[test]
fn differences_bring_a_copy_forward() {
    let mut scratch = Scratch::new("diffs");
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
    let path = |name: &str| scratch.path(name).to_str().expect("text").to_owned();
    {
        let mut nbd = Nbd::open(&url);
        (0..BLOCKS).for_each(|block| put(&mut nbd, block, 1));
    }
    run(&["snapshot", "create", "data", "monday"]);
    {
        let mut nbd = Nbd::open(&url);
        // Too few in each segment for collection, which would move the others before the cut.
        (0..BLOCKS).step_by(CHANGED).for_each(|block| put(&mut nbd, block, 2));
        // The same again: found by the index, and left out.
        put(&mut nbd, 1, 1);
        nbd.ask(TRIM, 2 * STRIDE, BLOCK, &[]);
    }
    run(&["snapshot", "create", "data", "tuesday"]);
    let (monday, tuesday) = (content(&at("data@monday")), content(&at("data@tuesday")));
    assert_ne!(monday, tuesday);

    let (all, diff) = (path("all"), path("diff"));
    let whole = shown(&["export-diff", "data@monday", &all]);
    assert_eq!(whole["data_bytes"], BLOCKS * BLOCK as u64, "{whole}");
    let since = shown(&["export-diff", "data@tuesday", &diff, "--since", "monday"]);
    assert_eq!(since["data_bytes"], BLOCKS.div_ceil(CHANGED as u64) * BLOCK as u64, "{since}");
    refused(&["export-diff", "data@monday", &diff, "--since", "monday"], 2, "is not older");
    refused(&["export-diff", "data@monday", &all], 1, "--force replaces it");
    refused(&["export-diff", "data", &path("x")], 2, "is no snapshot");

    // Files that are not whole, or no such files, change nothing.
    let bytes = fs::read(&diff).expect("it is there");
    let mut damaged = bytes.clone();
    let middle = bytes.len() / 2;
    damaged[middle] ^= 4;
    for (name, bytes) in [
        ("damaged", &damaged[..]),
        ("short", &bytes[..bytes.len() - 20]),
        ("head", &bytes[..20]),
        ("empty", &[]),
        ("foreign", b"QFI\xfb is no difference of ours, and so on and so on for a while"),
    ] {
        fs::write(path(name), bytes).expect("it is written");
    }
    refused(&["import-diff", "copy", &diff], 1, "copy");
    refused(&["import-diff", "copy", &path("foreign")], 1, "no difference of snapshots");
    let made = shown(&["import-diff", "copy", &all]);
    assert_eq!((&made["made"], &made["snapshot"]), (&true.into(), &"copy@monday".into()));
    assert_eq!(content(&at("copy")), monday);
    refused(&["import-diff", "copy", &path("damaged")], 5, "it is damaged");
    for name in ["short", "head", "empty"] {
        refused(&["import-diff", "copy", &path(name)], 1, "it ends too early");
    }
    refused(&["import-diff", "copy", &all], 1, "it makes a new volume");
    assert_eq!(content(&at("copy")), monday);
    wait("the export is closed", Duration::from_secs(10), || {
        shown(&["info", "copy"])["attachments"].as_array().is_some_and(Vec::is_empty)
    });
    let done = shown(&["import-diff", "copy", &diff]);
    assert_eq!(done["snapshot"], "copy@tuesday");
    assert_eq!(content(&at("copy")), tuesday);
    assert_eq!(content(&at("copy@tuesday")), tuesday);
    assert_eq!(content(&at("copy@monday")), monday);
    let close = |name: &str| {
        wait("the export is closed", Duration::from_secs(10), || {
            shown(&["info", name])["attachments"].as_array().is_some_and(Vec::is_empty)
        });
    };
    close("copy");
    refused(&["import-diff", "copy", &diff], 1, "is there already");

    // Later writes would be mixed with it.
    run(&["snapshot", "rm", "copy", "tuesday", "--force"]);
    refused(&["import-diff", "copy", &diff], 1, "was written to since");
    run(&["snapshot", "rollback", "copy", "monday"]);
    shown(&["import-diff", "copy", &diff]);
    assert_eq!(content(&at("copy")), tuesday);
    close("copy");
    run(&["snapshot", "rollback", "copy", "monday"]);
    refused(&["import-diff", "data", &diff], 1, "is there already");
    shown(&["create", "other", "--size", "1GiB"]);
    refused(&["import-diff", "other", &diff], 1, "other has no snapshot monday");
    let snapshots = shown(&["snapshot", "ls", "data"]);
    let alone = |n: usize| snapshots[n]["alone_bytes"].as_u64().expect("a number");
    let shared = |n: usize| snapshots[n]["shared_bytes"].as_u64().expect("a number");
    // Alone it has the DataFiles that its own readers' owners began: their heads.
    assert!(shared(0) > BLOCKS * BLOCK as u64 && alone(0) < BLOCK as u64, "{snapshots}");
    let gone = shown(&["snapshot", "rm", "data", "tuesday", "--force"]);
    assert_eq!(gone[0]["export"], "data@tuesday");
}

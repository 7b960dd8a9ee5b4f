//! Two block managers: one leads; when it dies the other continues from its state.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::bystander::Bystander;
use crate::harness::{Scratch, good, json, kill9, status, text, wait};
use crate::nbd::{BLOCK, Nbd, READ, WRITE};

const SOON: Duration = Duration::from_secs(20);
const GIB: u64 = 1 << 30;

/// The block manager that leads, once one does.
fn leader(dir: &Path, other_than: &str) -> String {
    let mut found = None;
    wait("a block manager leads", SOON, || {
        let status = status(dir);
        let managers = status["block_managers"].as_array().expect("a list");
        let leads = managers.iter().find(|one| one["leader"] == true && one["id"] != other_than);
        found = leads.map(|one| one["id"].as_str().expect("text").to_owned());
        found.is_some()
    });
    found.expect("it leads")
}

#[test]
fn second_block_manager_takes_over() {
    let mut scratch = Scratch::new("managers");
    let dir = scratch.cluster("cluster");
    let shape = ["--masters", "1", "--chunkservers", "3", "--block-servers", "2"];
    let two = ["--block-managers", "2"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &shape, &two].concat());
    let cluster = text(&dir).to_owned();
    let volume = |args: &[&str]| -> Value {
        json(&[&["volume"], args, &["--json", "--cluster", &cluster]].concat())
    };
    let made = volume(&["create", "old", "--size", "1GiB"]);
    let url = made["nbd"].as_str().expect("an export").to_owned();
    let at = |name: &str| url.replace("/old", &format!("/{name}"));
    volume(&["snapshot", "create", "old", "before"]);
    // The first files of the block service have all their replicas.
    wait("nothing lacks a replica", SOON, || status(&dir)["chunks"]["under_replicated"] == 0);
    let work = Bystander::start(&url, GIB / 2);
    work.goes_on("nothing");

    let first = leader(&dir, "");
    kill9(&dir, &[&first]);
    work.goes_on("a killed manager");
    // The other one makes, opens, cuts and clones, and has the first one's volumes.
    volume(&["create", "new", "--size", "1GiB"]);
    let second = leader(&dir, &first);
    assert_ne!(second, first);
    let mut nbd = Nbd::open(&at("new"));
    nbd.ask(WRITE, 5 << 20, BLOCK, &[5; BLOCK]);
    volume(&["snapshot", "create", "new", "cut"]);
    volume(&["clone", "new@cut", "copy"]);
    volume(&["clone", "old@before", "empty"]);
    volume(&["resize", "new", "--size", "2GiB"]);
    assert_eq!(Nbd::open(&at("copy")).ask(READ, 5 << 20, BLOCK, &[]), [5; BLOCK]);
    assert_eq!(Nbd::open(&at("empty")).ask(READ, 5 << 20, BLOCK, &[]), [0; BLOCK]);
    work.goes_on("what the second manager does");

    // It also replaces a block server.
    kill9(&dir, &["bs1"]);
    work.goes_on("a killed block server");
    wait("the segments have another server", SOON, || {
        ["old", "new", "copy", "empty"].iter().all(|name| {
            let info = volume(&["info", name]);
            let segments = info["segments"].as_array().expect("segments");
            segments.iter().all(|one| one["server"] == "bs2" && one["serving"] == true)
        })
    });
    assert_eq!(nbd.ask(READ, 5 << 20, BLOCK, &[]), [5; BLOCK]);
    nbd.ask(WRITE, 7 << 20, BLOCK, &[7; BLOCK]);

    // The first one comes back beside it, and is there when the second one goes.
    good(&["cluster", "restart", "--dir", &cluster, "block-manager", &first]);
    wait("both are there", SOON, || {
        let status = status(&dir);
        let managers = status["block_managers"].as_array().expect("a list");
        managers.len() == 2 && managers.iter().all(|one| one["state"] == "up")
    });
    kill9(&dir, &[&second]);
    work.goes_on("another killed manager");
    assert_eq!(leader(&dir, &second), first);
    drop(nbd);
    volume(&["clone", "new@cut", "third"]);
    assert_eq!(Nbd::open(&at("third")).ask(READ, 5 << 20, BLOCK, &[]), [5; BLOCK]);
    assert_eq!(Nbd::open(&at("new")).ask(READ, 7 << 20, BLOCK, &[]), [7; BLOCK]);
    work.end();
    let names: Vec<Value> =
        volume(&["ls"]).as_array().expect("a list").iter().map(|one| one["name"].clone()).collect();
    assert_eq!(names, ["copy", "empty", "new", "old", "third"]);

    // Without any, leases expire: volumes wait, and commands report the cause.
    assert_eq!(status(&dir)["block_service"], "up");
    let mut nbd = Nbd::open(&at("new"));
    let gone = volume(&["info", "third"])["id"].as_str().expect("text").to_owned();
    volume(&["rm", "third", "--now"]);
    let has_files = || {
        good(&["fs", "ls", "/.craton/block", "--services", "--cluster", &cluster]).contains(&gone)
    };
    wait("its files are gone", SOON, || !has_files());
    kill9(&dir, &[&first]);
    // A server that was stopped during the opening of a segment does the same.
    good(&[
        "fs",
        "mkdir",
        "-p",
        &format!("/.craton/block/{gone}/0"),
        "--services",
        "--cluster",
        &cluster,
    ]);
    assert!(has_files());
    wait("no manager leads", SOON, || status(&dir)["block_service"] == "down");
    let status = good(&["status", "--cluster", &cluster]);
    assert!(status.contains("no block manager leads; volumes wait for one"), "{status}");
    let waits = std::thread::spawn(move || {
        nbd.ask(WRITE, 9 << 20, BLOCK, &[9; BLOCK]);
        nbd.ask(READ, 9 << 20, BLOCK, &[])
    });
    std::thread::sleep(Duration::from_secs(1));
    assert!(!waits.is_finished(), "a lease outlives its manager");
    good(&["cluster", "restart", "--dir", &cluster, "block-manager", &first]);
    assert_eq!(waits.join().expect("it goes on"), [9; BLOCK]);
    wait("what came late is gone", SOON, || !has_files());
}

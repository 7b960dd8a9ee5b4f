//! Chunkservers are drained under load and leave; what would lower redundancy is refused by name.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{
    Scratch, bad, craton, good, json, kill9, leader, server, text, wait, wait_for_repair,
};
use crate::load::{self, Load, Shape};

/// Time in which a server with the data of a few seconds is empty: writers leave within half a minute.
const DRAINED: Duration = Duration::from_secs(90);
const REPAIR: Duration = Duration::from_secs(60);

fn order(dir: &Path, words: &[&str]) -> String {
    good(&[words, &["--cluster", text(dir)]].concat())
}

fn refused(dir: &Path, words: &[&str], want: &str) -> String {
    bad(&[words, &["--cluster", text(dir)]].concat(), 1, want)
}

#[test]
fn chunkserver_is_drained_under_load_and_leaves() {
    let mut scratch = Scratch::new("drains");
    scratch.expect_errors("was decommissioned");
    let dir = scratch.cluster("c");
    let flags = ["--masters", "3", "--chunkservers", "5", "--streams", "2"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &flags].concat());
    let load = Load::start(&dir, Shape { writers: 2, depth: 4, copies: 3, makers: 1 });
    std::thread::sleep(Duration::from_secs(2));
    refused(&dir, &["drain", "cs9"], "no chunkserver 'cs9'");
    refused(&dir, &["decommission", "cs1"], "'craton drain cs1'");
    let checked = order(&dir, &["drain", "cs1", "--dry-run"]);
    assert!(checked.contains("nothing was changed"), "{checked}");
    assert_eq!(server(&dir, "cs1")["state"], "up");
    let began = Instant::now();
    order(&dir, &["drain", "cs1"]);
    order(&dir, &["drain", "cs2"]);
    // Three are left: none of them can go.
    let why = refused(&dir, &["drain", "cs3"], "3 copies");
    assert!(why.contains("'cs1' drains, 'cs2' drains"), "{why}");
    order(&dir, &["drain", "cs2", "--cancel"]);
    assert_eq!(server(&dir, "cs1")["state"], "draining");
    let health = json(&["health", "--json", "--cluster", text(&dir)]);
    let shown = health["servers"].as_array().expect("a list").iter().find(|it| it["id"] == "cs1");
    assert_eq!(shown.expect("it is known")["state"], "draining", "{health}");
    // What is ordered outlives the master that took the order.
    let first = leader(&dir, "cluster");
    kill9(&dir, &[&first]);
    std::thread::sleep(Duration::from_secs(2));
    good(&["cluster", "restart", "--dir", text(&dir), "master", &first]);
    wait("cs1 is drained", DRAINED, || {
        let draining = &server(&dir, "cs1")["draining"];
        draining["counted"] == true && draining["replicas"] == 0
    });
    println!("drained under load in {:.1?}", began.elapsed());
    let shown = order(&dir, &["status"]);
    assert!(shown.contains("'craton decommission cs1' lets it leave"), "{shown}");
    order(&dir, &["decommission", "cs1", "--dry-run"]);
    let left = order(&dir, &["decommission", "cs1"]);
    assert!(left.contains("stop its process"), "{left}");
    kill9(&dir, &["cs1"]);
    let writers = load.stop();
    wait_for_repair(&dir, REPAIR);
    let status = json(&["status", "--json", "--cluster", text(&dir)]);
    let servers = status["chunkservers"].as_array().expect("a list");
    assert!(servers.len() == 4 && servers.iter().all(|it| it["id"] != "cs1"), "{status}");
    refused(&dir, &["drain", "cs1"], "was decommissioned");
    let client = load::connect(&dir);
    writers.iter().for_each(|writer| {
        assert_eq!(writer.error, None, "{}", writer.path);
        writer.verify_all(&client);
    });
    // It is not taken back under its name.
    let _ = craton(&["cluster", "restart", "--dir", text(&dir), "chunkserver", "cs1"]);
    std::thread::sleep(Duration::from_secs(3));
    let status = json(&["status", "--json", "--cluster", text(&dir)]);
    assert_eq!(status["chunkservers"].as_array().expect("a list").len(), 4, "{status}");
}

#[test]
fn silent_chunkserver_under_maintenance_is_not_repaired_around() {
    let mut scratch = Scratch::new("maintenance");
    let dir = scratch.cluster("c");
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "1", "--chunkservers", "4"]);
    let load = Load::start(&dir, Shape { writers: 1, depth: 4, copies: 3, makers: 1 });
    std::thread::sleep(Duration::from_secs(2));
    let writers = load.stop();
    wait_for_repair(&dir, REPAIR);
    bad(&["maintenance", "cs1", "--for", "2d", "--cluster", text(&dir)], 2, "such as 90s");
    order(&dir, &["maintenance", "cs1", "--for", "1h"]);
    let done =
        |dir: &Path| json(&["status", "--json", "--cluster", text(dir)])["repair"]["done"].clone();
    let before = done(&dir);
    kill9(&dir, &["cs1"]);
    // A silent server is repaired around after 10 s.
    std::thread::sleep(Duration::from_secs(16));
    assert_eq!(done(&dir), before, "nothing is made elsewhere");
    let shown = order(&dir, &["status"]);
    assert!(shown.contains("cs1 is under maintenance for"), "{shown}");
    order(&dir, &["maintenance", "cs1", "--end"]);
    wait("what cs1 had is made elsewhere", REPAIR, || done(&dir) != before);
    good(&["cluster", "restart", "--dir", text(&dir), "chunkserver", "cs1"]);
    wait_for_repair(&dir, REPAIR);
    let client = load::connect(&dir);
    writers.iter().for_each(|writer| writer.verify_all(&client));
    // Moves are paused, and shown to be.
    order(&dir, &["rebalance", "--pause"]);
    let shown = order(&dir, &["rebalance", "--dry-run"]);
    assert!(shown.contains("moves are paused"), "{shown}");
    order(&dir, &["rebalance"]);
    let shown = order(&dir, &["rebalance", "--dry-run"]);
    assert!(!shown.contains("moves are paused"), "{shown}");
}

#[test]
fn chunkserver_that_is_gone_for_good_leaves_when_the_loss_of_just_its_chunks_is_accepted() {
    let mut scratch = Scratch::new("losses");
    scratch.expect_errors("was decommissioned");
    let dir = scratch.cluster("c");
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "1", "--chunkservers", "4"]);
    let local = scratch.path("local");
    std::fs::write(&local, vec![7; 100_000]).expect("it can be written");
    let put = |policy: &str, path: &str| {
        order(&dir, &["fs", "put", "--redundancy", policy, text(&local), path]);
    };
    put("rep3", "/safe");
    // Files of one copy until one is on cs1.
    let on_first = |path: &str| {
        let stat = json(&["fs", "stat", "--json", path, "--cluster", text(&dir)]);
        stat["chunks"].to_string().contains("\"cs1\"")
    };
    let single = (0..40).map(|number| format!("/single{number}")).find(|path| {
        put("rep1", path);
        on_first(path)
    });
    let single = single.expect("one of 40 is on cs1");
    kill9(&dir, &["cs1"]);
    wait("cs1 is down", REPAIR, || server(&dir, "cs1")["state"] == "down");
    // What may come back is not lost yet, and what drains is not either.
    let none = order(&dir, &["decommission", "cs1", "--losses"]);
    assert!(none.contains("no chunk is lost without cs1"), "{none}");
    order(&dir, &["drain", "cs1"]);
    let listed = || json(&["decommission", "cs1", "--losses", "--json", "--cluster", text(&dir)]);
    wait("only what is lost is left", DRAINED, || {
        let draining = &server(&dir, "cs1")["draining"];
        listed()["chunks"] == 1 && draining["counted"] == true && draining["replicas"] == 1
    });
    refused(&dir, &["decommission", "cs1"], "see 'craton decommission cs1 --losses'");
    let losses = listed();
    assert_eq!(losses["named"][0]["path"], single.as_str(), "{losses}");
    assert_eq!(losses["named"][0]["bytes"], 100_000, "{losses}");
    let shown = order(&dir, &["decommission", "cs1", "--losses"]);
    let accept = losses["losses"].as_str().expect("what accepts them");
    assert!(shown.contains(&format!("--accept-loss {accept}")), "{shown}");
    let other = "1:0000000000000001";
    refused(
        &dir,
        &["decommission", "cs1", "--accept-loss", other],
        "others than those of the list",
    );
    bad(&["decommission", "cs1", "--accept-loss", "1", "--cluster", text(&dir)], 2, "--losses");
    let checked = order(&dir, &["decommission", "cs1", "--accept-loss", accept, "--dry-run"]);
    assert!(checked.contains("lost with it: 1. Nothing was changed"), "{checked}");
    let left = order(&dir, &["decommission", "cs1", "--accept-loss", accept]);
    assert!(left.contains("has left the cluster"), "{left}");
    let status = json(&["status", "--json", "--cluster", text(&dir)]);
    let servers = status["chunkservers"].as_array().expect("a list");
    assert!(servers.len() == 3 && servers.iter().all(|it| it["id"] != "cs1"), "{status}");
    // The file is not whole; the others are, and it can be removed.
    let got = scratch.path("got");
    bad(&["fs", "get", &single, text(&got), "--cluster", text(&dir)], 3, "no replica serves it");
    order(&dir, &["fs", "get", "/safe", text(&got)]);
    assert_eq!(std::fs::read(&got).expect("it is there"), vec![7; 100_000]);
    order(&dir, &["fs", "rm", &single]);
    wait("what was lost is forgotten", REPAIR, || {
        json(&["status", "--json", "--cluster", text(&dir)])["chunks"]["lost"] == 0
    });
    wait_for_repair(&dir, REPAIR);
}

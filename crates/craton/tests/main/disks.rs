//! Disks that fail under running processes.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use base::{ChunkId, DiskId};
use client::{Network, Peers};
use serde_json::Value;
use transport::{Endpoint, Identity, Limits};
use wire::control::{ChunkserverRequest, ControlReply, ControlRequest};

use crate::harness::{
    Scratch, bad, binary, content, craton, good, json, kill9, metric, process, server, status,
    text, wait, wait_for_repair, within,
};
use crate::load::{self, Load, Shape};
use crate::stores;

const SOON: Duration = Duration::from_secs(20);
const REPAIR: Duration = Duration::from_secs(60);

/// A disk in the masters' status, by its directory.
fn disk(dir: &Path, id: &str, store: &str) -> Value {
    let path = dir.join(id).join(store);
    let server = server(dir, id);
    let disks = server["disks"].as_array().expect("disks");
    disks.iter().find(|disk| disk["path"] == text(&path)).expect("it is shown").clone()
}

/// Waits until a disk is shown as failed with a reason, and its neighbour as healthy.
fn wait_failed(dir: &Path, id: &str, reasons: &[&str]) {
    wait("the disk is reported", SOON, || disk(dir, id, "store1")["state"] == "failed");
    let failed = disk(dir, id, "store1");
    let said = failed["reason"].as_str().unwrap_or_default();
    let reason = reasons.iter().find(|reason| said.contains(**reason));
    let reason = reason.unwrap_or_else(|| panic!("another reason: {failed}"));
    let (other, server) = (disk(dir, id, "store2"), server(dir, id));
    assert!(other["state"] == "up" && server["state"] == "up", "{server}");
    let table = good(&["status", "--cluster", text(dir)]);
    assert!(table.contains("2, 1 failed") && table.contains(*reason), "{table}");
}

/// Asks a chunkserver to treat a disk as failed: for tests, see `docs/operations/failures.md`.
fn fail_disk(dir: &Path, id: &str, disk: &Value) -> Result<ControlReply, String> {
    let disk: DiskId = disk["id"].as_str().expect("text").parse().expect("a disk");
    let addr: std::net::SocketAddr =
        process(dir, id)["addr"].as_str().expect("text").parse().expect("an address");
    stores::on_executor(async |env| {
        let (cluster, name) = (Default::default(), "test".to_owned());
        let identity = Identity { cluster, key: load::key(dir), name };
        let network = Network::new(env, Endpoint::new(env, identity, Limits::default()));
        let request = ChunkserverRequest::FailDisk { disk, failed: true };
        let call = network.control(addr.into(), ControlRequest::Chunkserver(request), SOON);
        call.await.map_err(|error| error.to_string())
    })
}

#[test]
fn disks_fail_under_running_processes() {
    let mut scratch = Scratch::new("disks");
    scratch.expect_errors("a disk is left out");
    let dir = scratch.cluster("cluster");
    let flags = ["--masters", "1", "--chunkservers", "4", "--disks", "2"];
    good(
        &[&["cluster", "up", "--dir", text(&dir), "--allow-fault-injection"][..], &flags].concat(),
    );
    flipped_bit(&scratch, &dir);
    under_load(&dir, "the store's file is cut to nothing", || {
        let file = stores::file_of(&dir.join("cs1/store1"));
        let file = std::fs::File::options().write(true).open(file).expect("a store");
        file.set_len(0).expect("it is cut");
        // Cut off, or, when the store has written behind the cut since, without its beginning.
        wait_failed(&dir, "cs1", &["truncated", "superblocks are gone"]);
    });
    under_load(&dir, "a disk answers with errors", || {
        fail_disk(&dir, "cs2", &disk(&dir, "cs2", "store1")).expect("it obeys");
        wait_failed(&dir, "cs2", &["fault injection"]);
    });
    under_load(&dir, "a disk is not there when its process starts", || {
        kill9(&dir, &["cs3"]);
        std::fs::remove_dir_all(dir.join("cs3/store1")).expect("a store");
        let again = craton(&["cluster", "restart", "--dir", text(&dir), "chunkserver", "cs3"]);
        let warned = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(again.status.success() && warned.contains("cs3/store1 is missing"), "{warned}");
        wait_failed(&dir, "cs3", &["is missing"]);
    });
    let refused = fail_disk(&dir, "cs3", &disk(&dir, "cs3", "store2")).expect_err("not allowed");
    assert!(refused.contains("--allow-fault-injection"), "{refused}");
}

/// A new store comes where a disk has failed, or was not there at the start, without a restart.
#[test]
fn disks_are_replaced_under_running_processes() {
    let mut scratch = Scratch::new("replaced");
    scratch.expect_errors("a disk is left out");
    let dir = scratch.cluster("cluster");
    let flags = ["--masters", "1", "--chunkservers", "4", "--disks", "2"];
    let up = ["cluster", "up", "--dir", text(&dir), "--allow-fault-injection"];
    good(&[&up[..], &flags].concat());
    let replace = |id: &str, disk: &str| {
        let output = craton(&["disk", "replace", id, disk, "--cluster", text(&dir)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Some(1) => Err(said),
            _ => panic!("{output:?}"),
        }
    };
    let place = dir.join("cs2/store1");
    let known = disk(&dir, "cs2", "store1")["id"].as_str().expect("text").to_owned();
    under_load(&dir, "a disk that failed is replaced", || {
        wait("it holds replicas", SOON, || disk(&dir, "cs2", "store1")["chunks"] != 0);
        let refused = replace("cs2", text(&place)).expect_err("it is in use");
        assert!(refused.contains("is in use: it has not failed"), "{refused}");
        fail_disk(&dir, "cs2", &disk(&dir, "cs2", "store1")).expect("it obeys");
        wait_failed(&dir, "cs2", &["fault injection"]);
        let refused = replace("cs2", &known).expect_err("the old store is there");
        assert!(refused.contains("holds a store already"), "{refused}");
        assert_eq!(disk(&dir, "cs2", "store1")["reason"], "taken out by fault injection");
        for entry in std::fs::read_dir(&place).expect("it lists") {
            std::fs::remove_file(entry.expect("an entry").path()).expect("the old store goes");
        }
        let said = replace("cs2", &known).expect("it is replaced");
        assert!(said.contains("has a new store"), "{said}");
    });
    let new = disk(&dir, "cs2", "store1");
    assert!(new["state"] == "up" && new["id"] != known.as_str(), "{new}");
    assert_eq!(metric(&dir, "cs2", "craton_disks_left_out"), 0.0);
    for (id, at, why) in [
        ("cs9", known.as_str(), "no chunkserver 'cs9': there are cs1, cs2"),
        ("cs2", known.as_str(), "cs2 has no disk"),
        ("cs2", "/nowhere", "cs2 has no disk '/nowhere': it has"),
    ] {
        let refused = replace(id, at).expect_err("there is none");
        assert!(refused.contains(why), "{refused}");
    }
    // It is the disk that the next start finds.
    good(&["cluster", "restart", "--dir", text(&dir), "chunkserver", "cs2"]);
    wait("it is back", SOON, || disk(&dir, "cs2", "store1")["state"] == "up");
    assert_eq!(disk(&dir, "cs2", "store1")["id"], new["id"]);

    let place = dir.join("cs3/store1");
    kill9(&dir, &["cs3"]);
    std::fs::remove_dir_all(&place).expect("a store");
    let again = craton(&["cluster", "restart", "--dir", text(&dir), "chunkserver", "cs3"]);
    assert!(again.status.success());
    wait_failed(&dir, "cs3", &["is missing"]);
    let refused = replace("cs3", text(&place)).expect_err("there is no directory");
    assert!(refused.contains("cs3/store1: No such file or directory"), "{refused}");
    std::fs::create_dir(&place).expect("a mount point");
    std::fs::write(place.join("notes"), "not a disk").expect("a file");
    let refused = replace("cs3", text(&place)).expect_err("something lies there");
    assert!(refused.contains("is not empty ('notes' lies there)"), "{refused}");
    std::fs::remove_file(place.join("notes")).expect("it goes");
    replace("cs3", text(&place)).expect("it is replaced");
    assert_eq!(disk(&dir, "cs3", "store1")["state"], "up");
    // All disks are read on demand, the new ones too.
    let cluster = ["--cluster", text(&dir)];
    let begun = good(&[&["scrub", "start"], &cluster[..]].concat());
    assert!(begun.contains("a pass begins on") || begun.contains("was under way"), "{begun}");
    let status = [&["scrub", "status", "--json"], &cluster[..]].concat();
    wait("each disk has been read", REPAIR, || {
        let all = json(&status)["disks"].as_array().expect("disks").clone();
        all.len() == 8 && all.iter().all(|disk| disk["passes"] != 0 && disk["damaged"] == 0)
    });
    let table = good(&[&["scrub", "status"], &cluster[..]].concat());
    assert!(table.contains("cs3/store1"), "{table}");
    wait_for_repair(&dir, REPAIR);
}

/// The same with an existing mount point: the directory below an unmounted disk.
#[test]
fn a_disk_that_is_not_mounted_is_failed_until_it_is_back() {
    let mut scratch = Scratch::new("unmounted");
    scratch.expect_errors("a disk is left out");
    let dir = scratch.cluster("cluster");
    let flags = ["--masters", "1", "--chunkservers", "4", "--disks", "2"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &flags].concat());
    let (place, aside) = (dir.join("cs3/store1"), scratch.path("unmounted"));
    let known = disk(&dir, "cs3", "store1")["id"].clone();
    under_load(&dir, "a disk is not mounted when its process starts", || {
        kill9(&dir, &["cs3"]);
        std::fs::rename(&place, &aside).expect("a store");
        std::fs::create_dir(&place).expect("the directory below it");
        let again = craton(&["cluster", "restart", "--dir", text(&dir), "chunkserver", "cs3"]);
        let warned = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(again.status.success() && warned.contains("cs3/store1 is empty"), "{warned}");
        wait_failed(&dir, "cs3", &["is empty: mount the disk"]);
    });
    // Neither that start nor a start of all writes there.
    good(&["cluster", "down", "--dir", text(&dir)]);
    good(&["cluster", "up", "--dir", text(&dir)]);
    wait_failed(&dir, "cs3", &["is empty: mount the disk"]);
    assert_eq!(std::fs::read_dir(&place).expect("it lists").count(), 0, "nothing is written");
    assert!(metric(&dir, "cs3", "craton_disks_left_out") == 1.0);
    // It is back: the server that runs takes it.
    std::fs::remove_dir(&place).expect("it is empty");
    std::fs::rename(&aside, &place).expect("the store");
    wait("the disk serves again", SOON, || disk(&dir, "cs3", "store1")["state"] == "up");
    assert_eq!(disk(&dir, "cs3", "store1")["id"], known, "it is the same disk");
    assert!(metric(&dir, "cs3", "craton_disks_left_out") == 0.0);
    wait_for_repair(&dir, REPAIR);
}

/// Replicas of chunks that no file has there, more than masters delete by themselves: they stay, and the
/// status names the command after which they go. Two to three minutes, nearly all of them idle.
#[test]
#[ignore = "it waits for minutes, since masters compare a disk with their records once a minute: make test-long"]
fn many_replicas_of_no_file_go_when_an_operator_condemns_their_disk() {
    // Masters delete 16 by themselves.
    const UNKNOWN: usize = 20;
    // Masters compare each disk once a minute; rights to what was there last as long.
    const ROUND: Duration = Duration::from_secs(120);
    let mut scratch = Scratch::new("condemned");
    let dir = scratch.cluster("cluster");
    // The more disks, the sooner the first is compared.
    let flags = ["--masters", "1", "--chunkservers", "2", "--disks", "4"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &flags].concat());
    let on = |args: &[&str]| good(&[args, &["--cluster", text(&dir)]].concat());
    let local = scratch.path("file");
    std::fs::write(&local, "kept").expect("a file");
    let place = || disk(&dir, "cs1", "store1");
    let id = place()["id"].as_str().expect("text").to_owned();
    let (mut files, mut elsewhere) = (Vec::new(), Vec::new());
    while elsewhere.len() < UNKNOWN {
        let path = format!("/file-{}", files.len());
        on(&["fs", "put", "--redundancy", "rep1", text(&local), &path]);
        let stat = json(&["fs", "stat", "--json", &path, "--cluster", text(&dir)]);
        let chunk = &stat["chunks"][0];
        if chunk["replicas"][0]["server"] == "cs2" {
            let chunk = chunk["chunk"].as_str().expect("text");
            elsewhere.push(chunk.parse::<ChunkId>().expect("a chunk"));
        }
        files.push(path);
        assert!(files.len() < 5 * UNKNOWN, "one of two servers has most");
    }
    good(&["cluster", "down", "--dir", text(&dir)]);
    stores::fill_with(&dir.join("cs1/store1"), elsewhere);
    good(&["cluster", "up", "--dir", text(&dir)]);

    let seldom = |what: &str, check: &dyn Fn() -> bool| {
        wait(what, ROUND, || {
            std::thread::sleep(Duration::from_secs(1));
            check()
        });
    };
    let stopped = || status(&dir)["stopped"].clone();
    seldom("its collection stops", &|| stopped() != Value::Array(Vec::new()));
    let shown = stopped();
    let command = format!("craton masters condemn {id}");
    let expected = serde_json::json!([{
        "chunkserver": "cs1", "disk": id, "partition": "st0", "unknown": UNKNOWN,
        "reported": shown[0]["reported"], "command": command,
    }]);
    assert_eq!(shown, expected);
    assert_eq!(place()["chunks"], shown[0]["reported"], "none was deleted");
    assert!(on(&["status"]).contains(&command));
    let other = disk(&dir, "cs2", "store1")["id"].as_str().expect("text").to_owned();
    let condemn = ["masters", "condemn", &other, "--cluster", text(&dir)];
    bad(&condemn, 1, "no collection has stopped at");
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    assert!(on(&words).contains(&format!("{UNKNOWN} replicas on {id}")));
    seldom("its collection goes on", &|| stopped() == Value::Array(Vec::new()));
    let left = shown[0]["reported"].as_u64().expect("a number") - UNKNOWN as u64;
    seldom("they are deleted", &|| place()["chunks"] == left);
    for file in &files {
        assert_eq!(on(&["fs", "cat", file]), "kept", "{file}");
    }
}

/// Fails a disk while writers work: none of them fails, all bytes get their copies again.
fn under_load(dir: &Path, what: &str, fail: impl FnOnce()) {
    let load = Load::start(dir, Shape { writers: 2, depth: 4, copies: 3, makers: 1 });
    std::thread::sleep(Duration::from_millis(500));
    fail();
    let writers = load.stop();
    let began = Instant::now();
    wait_for_repair(dir, REPAIR);
    println!("{what}: repaired {:.1?} after the load", began.elapsed());
    let client = load::connect(dir);
    writers.iter().for_each(|writer| writer.verify_all(&client));
    client.remove_tree("/load").expect("it goes");
}

/// A bit turns on one disk: readers get valid bytes, the replica is replaced, and it is reported.
fn flipped_bit(scratch: &Scratch, dir: &Path) {
    let (local, cluster) = (scratch.path("marked"), text(dir));
    let bytes = content(300_000, 77);
    std::fs::write(&local, &bytes).expect("a file");
    good(&["fs", "put", text(&local), "/marked", "--cluster", cluster]);
    let all: Vec<(String, String)> = ["cs1", "cs2", "cs3", "cs4"]
        .iter()
        .flat_map(|id| ["store1", "store2"].map(|store| (id.to_string(), store.to_owned())))
        .collect();
    let damaged = |id: &str| metric(dir, id, "craton_damaged_total");
    let flip = |(id, store): &(String, String)| {
        assert_eq!(damaged(id), 0.0);
        stores::flip_bit(&dir.join(id).join(store), &bytes[..4000])
    };
    let (id, store) = stores::damage_one(&all, flip, |(id, _)| {
        within(SOON, || {
            let read = Command::new(binary())
                .args(["fs", "cat", "/marked", "--cluster", cluster])
                .output()
                .expect("it runs");
            assert!(read.status.success() && read.stdout == bytes, "a reader got other bytes");
            damaged(id) > 0.0
        })
    });
    let log = std::fs::read_to_string(dir.join(id).join("log/craton.jsonl")).expect("a log");
    assert!(log.contains("replica is damaged"), "{log}");
    // A valid copy takes its place.
    wait("the repair", REPAIR, || {
        json(&["status", "--json", "--cluster", cluster])["repair"]["done"] != 0
    });
    wait_for_repair(dir, REPAIR);
    println!("a bit turned in {id}/{store}: read around, reported, replaced");
    good(&["fs", "rm", "/marked", "--cluster", cluster]);
}

/// Commands that ask chunkservers say when some, or all, have not answered.
#[test]
fn scrub_that_does_not_reach_all_servers_is_no_success() {
    let mut scratch = Scratch::new("unreached");
    let dir = scratch.cluster("cluster");
    let flags = ["--masters", "1", "--chunkservers", "2"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &flags].concat());
    let on = |args: &[&'static str]| [args, &["--cluster", text(&dir)]].concat();
    let commands = [&["scrub", "start"][..], &["scrub", "status", "--json"]];
    commands.iter().for_each(|args| drop(good(&on(args))));
    kill9(&dir, &["cs2"]);
    for args in commands {
        assert!(bad(&on(args), 6, "not all chunkservers").contains("cs2"));
    }
    kill9(&dir, &["cs1"]);
    for args in commands {
        bad(&on(args), 3, "no disk has answered");
    }
    wait("both are known to be down", SOON, || server(&dir, "cs1")["state"] == "down");
    bad(&on(&["rebalance", "--dry-run"]), 3, "no chunkserver is up");
}

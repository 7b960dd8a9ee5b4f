//! Volumes over NBD: real processes, standard tools, and a block server that is killed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{self, Scratch, bad, good, json, need, text, tool, wait};
use crate::machine::Hiccups;
use crate::nbd::{BLOCK, Nbd, READ, WRITE};

pub fn up(dir: &Path) {
    let flags = ["--masters", "1", "--chunkservers", "3", "--block-servers", "2"];
    good(&[&["cluster", "up", "--dir", text(dir)][..], &flags].concat());
}

/// Output of 'info' once every segment's server has answered: a busy machine takes its time.
pub fn answered(mut info: impl FnMut() -> Value) -> Value {
    let mut seen = Value::Null;
    wait("all segments say what they hold", Duration::from_secs(20), || {
        seen = info();
        seen["space"]["segments_silent"] == 0
    });
    seen
}

fn segments(info: &Value) -> Vec<(u64, String)> {
    let segments = info["segments"].as_array().expect("segments");
    let segment = |one: &Value| {
        (one["index"].as_u64().expect("a number"), one["server"].as_str().unwrap_or("").to_owned())
    };
    segments.iter().map(segment).collect()
}

#[test]
fn a_volume_is_a_disk_for_standard_tools() {
    need(&["nbdinfo", "nbdcopy"]);
    let mut scratch = Scratch::new("volume");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let cluster = text(&dir).to_owned();
    let on = |args: &[&str]| {
        [&["volume"], args, &["--cluster", &cluster]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let run = |args: &[&str]| {
        let args = on(args);
        good(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let refused = |args: &[&str], code: i32, want: &str| {
        let args = on(args);
        bad(&args.iter().map(String::as_str).collect::<Vec<_>>(), code, want);
    };
    let shown: Value =
        serde_json::from_str(&run(&["create", "data", "--size", "1GiB", "--json"])).expect("JSON");
    let url = shown["nbd"].as_str().expect("an export").to_owned();
    assert!(
        harness::book(&dir)["endpoints"]["nbd"].as_str().is_some_and(|nbd| url.starts_with(nbd))
    );
    // The directory of its files is hidden from users of files, by every path.
    good(&["fs", "mkdir", "/a", "--cluster", &cluster]);
    good(&["fs", "ln", "-s", "/.craton/block", "/shortcut", "--cluster", &cluster]);
    for path in ["/.craton", "/.craton/block", "/a/../.craton/block/manager", "/shortcut/manager"] {
        for command in [&["ls"][..], &["rm", "-r"], &["stat"], &["mkdir", "-p"]] {
            let args = [&["fs"], command, &[path, "--cluster", &cluster]].concat();
            let output = harness::craton(&args);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
            assert!(error.contains("--services lets fs commands in"), "{args:?}: {error}");
        }
    }
    assert_eq!(good(&["fs", "ls", "/", "--cluster", &cluster]), "a\nshortcut\n");
    let copy = scratch.path("copy");
    good(&["fs", "get", "-r", "-q", "/", text(&copy), "--cluster", &cluster]);
    assert!(!copy.join(".craton").exists(), "the services' files are copied with the rest");
    assert!(good(&["fs", "ls", "/", "--services", "--cluster", &cluster]).contains(".craton\n"));
    good(&["fs", "rm", "-r", "/a", "/shortcut", "--cluster", &cluster]);
    // Its segments are with both servers.
    let info: Value = serde_json::from_str(&run(&["info", "data", "--json"])).expect("JSON");
    let owners: std::collections::BTreeSet<String> =
        segments(&info).into_iter().map(|(_, server)| server).collect();
    assert_eq!(owners.len(), 2, "{info}");
    assert!(
        info["segments"].as_array().expect("segments").iter().all(|one| one["serving"] == true)
    );

    wait("all roles are shown", Duration::from_secs(10), || {
        let status = json(&["status", "--json", "--cluster", &cluster]);
        let state = |role: &str| -> Vec<Value> {
            let all = status[role].as_array().expect("a list").iter();
            all.map(|one| one["state"].clone()).collect()
        };
        status["block_managers"][0]["leader"] == true
            && state("block_managers") == ["up"]
            && state("block_servers") == ["up", "up"]
            && state("frontends") == ["up"]
            && status["block_servers"][0]["segments"].as_u64().is_some_and(|count| count > 0)
    });
    assert_eq!(tool("nbdinfo", &["--size", &url]).trim(), (1u64 << 30).to_string());
    let (image, back) = (scratch.path("image"), scratch.path("back"));
    let content: Vec<u8> = (0..24u32 << 20).map(|at| (at ^ at >> 9 ^ at >> 17) as u8).collect();
    std::fs::write(&image, &content).expect("an image");
    tool("nbdcopy", &[text(&image), &url]);
    tool("nbdcopy", &[&url, text(&back)]);
    let back = std::fs::read(&back).expect("the copy");
    assert_eq!(back.len(), 1 << 30);
    assert!(back[..content.len()] == content[..], "nbdcopy read other bytes than it wrote");
    assert!(back[content.len()..].iter().all(|&byte| byte == 0));
    {
        let mut nbd = Nbd::open(&url);
        assert_eq!(nbd.bytes, 1 << 30);
        nbd.ask(WRITE, (1 << 30) - BLOCK as u64, BLOCK, &[7; BLOCK]);
        refused(&["rm", "data"], 1, "has it open");
        run(&["resize", "data", "--size", "2GiB"]);
        // A reconnect shows it.
        let mut again = Nbd::open(&url);
        assert_eq!(again.bytes, 2 << 30);
        again.ask(WRITE, (2 << 30) - BLOCK as u64, BLOCK, &[8; BLOCK]);
        refused(&["resize", "data", "--size", "1GiB"], 1, "has it open");
    }
    wait("the export is closed", Duration::from_secs(10), || {
        let shown: Value = serde_json::from_str(&run(&["info", "data", "--json"])).expect("JSON");
        shown["attachments"].as_array().is_some_and(Vec::is_empty)
    });
    run(&["set", "data", "--iops-base", "100", "--mbps-burst", "50"]);
    refused(&["set", "data", "--iops-burst", "5"], 1, "base above its burst");
    refused(&["set", "data"], 2, "nothing to set");
    let info: Value = serde_json::from_str(&run(&["info", "data", "--json"])).expect("JSON");
    assert_eq!(info["limits"]["bytes_burst"], 50_000_000);
    assert_eq!(info["bytes"], 2u64 << 30);

    // A cut of data must be asked for, and the range reads as zeroes after it comes back.
    refused(&["resize", "data", "--size", "1GiB"], 1, "there is data past");
    run(&["resize", "data", "--size", "1GiB", "--force"]);
    run(&["resize", "data", "--size", "2GiB"]);
    {
        let mut nbd = Nbd::open(&url);
        assert_eq!(nbd.ask(READ, (1 << 30) - BLOCK as u64, BLOCK, &[]), [7; BLOCK]);
        assert_eq!(nbd.ask(READ, (2 << 30) - BLOCK as u64, BLOCK, &[]), [0; BLOCK]);
    }

    // Of a group that is just begun all segments stay, and read as zeroes too.
    run(&["create", "wide", "--size", "256GiB"]);
    let lanes = [0, 1, 3].map(|lane| (128 << 30) + lane * (128 << 10) + 4096);
    let wide = url.replace("/data", "/wide");
    {
        let mut nbd = Nbd::open(&wide);
        lanes.iter().for_each(|&at| drop(nbd.ask(WRITE, at, BLOCK, &[9; BLOCK])));
    }
    let begun = ((128u64 << 30) + 4096).to_string();
    wait("the export is closed", Duration::from_secs(10), || {
        let shown: Value = serde_json::from_str(&run(&["info", "wide", "--json"])).expect("JSON");
        shown["attachments"].as_array().is_some_and(Vec::is_empty)
    });
    refused(&["resize", "wide", "--size", &begun], 1, "there is data past");
    run(&["resize", "wide", "--size", &begun, "--force"]);
    run(&["resize", "wide", "--size", "256GiB"]);
    {
        let mut nbd = Nbd::open(&wide);
        for at in lanes {
            assert_eq!(nbd.ask(READ, at, BLOCK, &[]), [0; BLOCK], "{at}");
        }
    }
    run(&["rm", "wide", "--force", "--now"]);

    refused(&["create", "data", "--size", "1GiB"], 1, "exists already");
    refused(&["create", "a/b", "--size", "1GiB"], 2, "no name of a volume");
    refused(&["create", "tiny", "--size", "1MiB"], 1, "choose a multiple of 4096");
    refused(&["create", "odd", "--size", "1GiB", "--sector-size", "5000"], 1, "data sector");
    refused(&["info", "nothing"], 1, "no such volume");
    assert_eq!(json(&["volume", "ls", "--json", "--cluster", &cluster])[0]["name"], "data");
    // Files of the service are not the user's.
    assert_eq!(good(&["fs", "ls", "/", "--cluster", &cluster]), "");

    // After a restart of everything the written data is there.
    good(&["cluster", "down", "--dir", &cluster]);
    good(&["cluster", "up", "--dir", &cluster, "--block-servers", "2"]);
    let mut nbd = Nbd::open(&url);
    assert_eq!(nbd.ask(READ, (1 << 30) - BLOCK as u64, BLOCK, &[]), [7; BLOCK]);
    assert_eq!(nbd.ask(READ, 5 << 20, BLOCK, &[]), content[5 << 20..][..BLOCK]);
    // A refused removal leaves the snapshots where they are.
    run(&["snapshot", "create", "data", "kept"]);
    refused(&["rm", "data", "--now", "--snapshots"], 1, "has it open");
    assert!(run(&["snapshot", "ls", "data"]).contains("data@kept"));
    run(&["snapshot", "rm", "data", "kept"]);
    drop(nbd);
    // A volume removed by mistake comes back under another name, with its data and its snapshot.
    run(&["snapshot", "create", "data", "s"]);
    refused(&["rm", "data"], 1, "has snapshots (data@s)");
    wait("the export is closed", Duration::from_secs(10), || {
        let args = on(&["rm", "data", "--snapshots", "--json"]);
        let output = harness::craton(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let removed: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        removed[0]["left_s"].as_u64().is_some_and(|left| left > 80_000)
    });
    refused(&["info", "data"], 1, "no such volume");
    let deleted: Value = serde_json::from_str(&run(&["ls", "--deleted", "--json"])).expect("JSON");
    assert_eq!((&deleted[0]["name"], &deleted[0]["snapshots"][0]), (&"data".into(), &"s".into()));
    assert!(deleted[0]["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{deleted}");
    assert!(deleted[0]["left_s"].as_u64().is_some_and(|left| left > 80_000), "{deleted}");
    let id = deleted[0]["id"].as_str().expect("an ID").to_owned();
    assert!(run(&["ls", "--deleted"]).contains(&id));
    refused(&["undelete", "nothing"], 1, "no such deleted volume");
    let back: Value =
        serde_json::from_str(&run(&["undelete", &id, "--as", "back", "--json"])).expect("JSON");
    let mut nbd = Nbd::open(back["nbd"].as_str().expect("an export"));
    assert_eq!(nbd.ask(READ, 5 << 20, BLOCK, &[]), content[5 << 20..][..BLOCK]);
    drop(nbd);
    assert!(run(&["snapshot", "ls", "back"]).contains("back@s"));
    wait("the export is closed again", Duration::from_secs(10), || {
        let args = on(&["rm", "back", "--snapshots"]);
        harness::craton(&args.iter().map(String::as_str).collect::<Vec<_>>()).status.success()
    });
    run(&["undelete", "back", "--as", "data"]);
    run(&["snapshot", "rm", "data", "s"]);
    wait("the volume is deleted", Duration::from_secs(10), || {
        let args = on(&["rm", "data", "--json"]);
        let output = harness::craton(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let removed: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        output.status.success() && removed[0]["name"] == "data"
    });
    refused(&["info", "data"], 1, "no such volume");
    // What is deleted is kept, until its data is to go at once.
    let all_deleted =
        || serde_json::from_str::<Value>(&run(&["ls", "--deleted", "--json"])).expect("JSON");
    let deleted = all_deleted();
    assert_eq!((&deleted[0]["name"], &deleted[0]["id"]), (&"data".into(), &id.as_str().into()));
    assert!(deleted[0]["left_s"].as_u64().is_some_and(|left| left > 80_000), "{deleted}");
    wait("its bytes are counted", Duration::from_secs(10), || {
        all_deleted()[0]["bytes"].as_u64().is_some_and(|bytes| bytes > 0)
    });
    let removed: Value = serde_json::from_str(&run(&["rm", &id, "--now", "--json"])).expect("JSON");
    assert_eq!(removed[0]["name"], "data");
    assert_eq!(all_deleted(), serde_json::json!([]));
    refused(&["rm", &id, "--now"], 1, "no such volume, and none is deleted");
    refused(&["undelete", &id], 1, "no such deleted volume");
    wait("the files are removed", Duration::from_secs(20), || {
        let listed = good(&["fs", "ls", "/.craton/block", "--services", "--cluster", &cluster]);
        listed == "manager\n"
    });
}

/// Where nothing is to be kept, a removed volume is gone with its files.
#[test]
fn a_removed_volume_is_not_kept_where_the_time_for_it_is_zero() {
    let mut scratch = Scratch::new("volume-not-kept");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let cluster = text(&dir).to_owned();
    harness::configure(&dir.join("bm1/block-manager.toml"), "volume_undelete_s", "0");
    good(&["cluster", "restart", "block-manager", "bm1", "--dir", &cluster]);
    let volume =
        |args: &[&str]| json(&[&["volume"], args, &["--json", "--cluster", &cluster]].concat());
    let made = volume(&["create", "v", "--size", "1GiB"]);
    Nbd::open(made["nbd"].as_str().expect("an export")).ask(WRITE, 0, BLOCK, &[7; BLOCK]);
    let mut removed = Value::Null;
    wait("the volume is removed", Duration::from_secs(10), || {
        // Its export may be open for a moment.
        let output = harness::craton(&["volume", "rm", "v", "--json", "--cluster", &cluster]);
        removed = serde_json::from_slice(&output.stdout).unwrap_or_default();
        output.status.success()
    });
    assert!(removed[0]["name"] == "v" && removed[0]["left_s"].is_null(), "{removed}");
    assert_eq!(volume(&["ls", "--deleted"]), serde_json::json!([]));
    bad(&["volume", "undelete", "v", "--cluster", &cluster], 1, "no such deleted volume");
    wait("its files are removed", Duration::from_secs(20), || {
        let listed = good(&["fs", "ls", "/.craton/block", "--services", "--cluster", &cluster]);
        listed == "manager\n"
    });
}

#[test]
fn a_killed_block_server_is_a_short_pause() {
    let mut scratch = Scratch::alone("volume-kill");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let cluster = text(&dir).to_owned();
    let args = ["volume", "create", "v", "--size", "1GiB", "--json", "--cluster", &cluster];
    let url = json(&args)["nbd"].as_str().expect("an export").to_owned();
    let stop = Arc::new(AtomicBool::new(false));
    let hiccups = Hiccups::watch_with_disk();
    // Writers of their own blocks all over the volume, which read back what they wrote.
    let writers: Vec<_> = (0..2u64)
        .map(|writer| {
            let (url, stop) = (url.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut nbd = Nbd::open(&url);
                let (mut rounds, mut count) = (Vec::new(), 0u64);
                while !stop.load(Ordering::Relaxed) {
                    let offset = (count * 37 % 1000 * 2 + writer) * (128 << 10);
                    let value = [(count % 251) as u8; BLOCK];
                    let began = Instant::now();
                    nbd.ask(WRITE, offset, BLOCK, &value);
                    assert_eq!(nbd.ask(READ, offset, BLOCK, &[]), value, "at {offset}");
                    rounds.push((began, began.elapsed()));
                    count += 1;
                }
                rounds
            })
        })
        .collect();
    std::thread::sleep(Duration::from_secs(2));
    harness::kill9(&dir, &["bs1"]);
    std::thread::sleep(Duration::from_secs(4));
    good(&["cluster", "up", "--dir", &cluster, "--block-servers", "2"]);
    std::thread::sleep(Duration::from_secs(2));
    stop.store(true, Ordering::Relaxed);
    let machine = hiccups.end();
    for writer in writers {
        let rounds = writer.join().expect("no request failed");
        let (count, worst) = (rounds.len(), machine.worst(&rounds));
        eprintln!("{count} rounds, the longest took {worst:?}");
        assert!(count > 100, "only {count} rounds in eight seconds");
        assert!(worst < Duration::from_secs(1), "a round took {worst:?}");
    }
    let info = json(&["volume", "info", "v", "--json", "--cluster", &cluster]);
    assert_eq!(segments(&info).len(), 4);
}

#[test]
fn limits_hold_and_change_live() {
    let mut scratch = Scratch::new("volume-limits");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let cluster = text(&dir).to_owned();
    let volume = |args: &[&str]| json(&[&["volume"], args, &["--cluster", &cluster]].concat());
    let create = ["create", "slow", "--size", "1GiB", "--iops-burst", "20", "--json"];
    let url = volume(&create)["nbd"].as_str().expect("an export").to_owned();
    let mut nbd = Nbd::open(&url);
    let mut blocks = 0;
    let mut write = |nbd: &mut Nbd, count: u64| {
        let began = Instant::now();
        for _ in 0..count {
            nbd.ask(WRITE, blocks * BLOCK as u64, BLOCK, &[7; BLOCK]);
            blocks += 1;
        }
        began.elapsed()
    };
    // Two go at once, as many as 100 ms bring.
    let took = write(&mut nbd, 26);
    assert!(took >= Duration::from_millis(1190), "26 requests at 20 a second took {took:?}");
    let set = volume(&["set", "slow", "--iops-burst", "0", "--json"]);
    assert_eq!(set["limits"]["iops_burst"], 0);
    wait("the front end has heard of it", Duration::from_secs(20), || {
        write(&mut nbd, 64) < Duration::from_millis(3000)
    });
    let space = &answered(|| volume(&["info", "slow", "--json"]))["space"];
    let number = |what: &str| space[what].as_f64().unwrap_or_else(|| panic!("{what} in {space}"));
    let content = space["logical_bytes"].as_u64().expect("a number");
    assert!(content >= 90 * BLOCK as u64 && content.is_multiple_of(BLOCK as u64), "{space}");
    assert!(number("physical_bytes") > 3.0 * number("logical_bytes"), "{space}");
    assert_eq!((number("garbage_ratio"), number("write_amplification")), (0.0, 1.0));
}

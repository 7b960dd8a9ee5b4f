//! What files hold already is converted to other policies while it is read, and while processes are killed.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{
    Scratch, bad, content, craton, good, json, kill9, leader, text, wait, wait_for_repair,
};
use crate::load;

/// Time in which all is converted, whatever was killed: a dead server's grace, repair, and retries.
const CONVERTED: Duration = Duration::from_secs(90);
const REPAIR: Duration = Duration::from_secs(60);

fn on(dir: &Path, words: &[&str]) -> String {
    good(&[words, &["--cluster", text(dir)]].concat())
}

fn stat(dir: &Path, path: &str) -> Value {
    json(&["fs", "stat", path, "--json", "--cluster", text(dir)])
}

/// Schemes of a file's chunks.
fn schemes(stat: &Value) -> Vec<String> {
    let chunks = stat["chunks"].as_array().expect("a list").iter();
    chunks.map(|chunk| chunk["scheme"].as_str().expect("a word").to_owned()).collect()
}

#[test]
fn stored_files_are_converted_while_they_are_read_and_processes_are_killed() {
    let mut scratch = Scratch::new("conversions");
    let dir = scratch.cluster("c");
    let flags = ["--masters", "3", "--chunkservers", "7", "--block-servers", "0"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &flags].concat());
    let (large, half, small) = (content(150 << 20, 1), content(20 << 20, 2), content(3000, 3));
    on(&dir, &["fs", "mkdir", "-p", "/d/e"]);
    for (bytes, path) in [(&large, "/d/large"), (&half, "/d/e/half"), (&small, "/d/e/small")] {
        let local = scratch.path("local");
        fs::write(&local, bytes).expect("a file");
        on(&dir, &["fs", "put", text(&local), path]);
    }
    let refused = |words: &[&str], code, want: &str| {
        bad(&[words, &["--cluster", text(&dir)]].concat(), code, want);
    };
    refused(&["convert", "/nothing"], 1, "/nothing: no such file");
    refused(&["convert", "/.craton"], 1, "--services");
    refused(&["convert", "/d", "--cancel", "--no-wait"], 2, "--cancel");
    let shown = on(&dir, &["convert", "/d"]);
    assert!(shown.contains("3 files, 170.0 MiB of 170.0 MiB in the form"), "{shown}");

    on(&dir, &["fs", "policy", "set", "/d/large", "ec4+2"]);
    on(&dir, &["fs", "policy", "set", "/d/e/half", "rep2", "--compression", "lz4"]);
    on(&dir, &["fs", "policy", "set", "/d/e/small", "ec4+2"]);
    // It begins, and is called off: what has been converted stays so.
    on(&dir, &["convert", "/d", "--no-wait"]);
    let shown = on(&dir, &["convert", "/d", "--cancel"]);
    assert!(shown.contains("the rest stays as it is"), "{shown}");
    let called_off = schemes(&stat(&dir, "/d/large"));
    assert!(called_off.iter().any(|scheme| scheme == "rep3"), "{called_off:?}");
    assert_eq!(stat(&dir, "/d/large")["converting"], false);

    // A reader that has the places of before, through all of it.
    let client = load::connect(&dir);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let file = client.open("/d/large").expect("it is there");
            let (mut reads, mut at) = (0u64, 0usize);
            while !over.load(Ordering::Relaxed) {
                at = (at * 31 + 1_000_003) % (large.len() - 100_000);
                let bytes = file.read_at(at as u64, 100_000).expect("a read");
                assert!(bytes == large[at..at + 100_000], "other bytes at {at}");
                reads += 1;
            }
            reads
        });
        let began = Instant::now();
        on(&dir, &["convert", "/d", "--no-wait"]);
        std::thread::sleep(Duration::from_millis(500));
        let first = leader(&dir, "st0");
        kill9(&dir, &[&first, "cs2"]);
        std::thread::sleep(Duration::from_secs(2));
        let id = |id: &'static str| ["cluster", "restart", "--dir", text(&dir), "chunkserver", id];
        good(&["cluster", "restart", "--dir", text(&dir), "master", &first]);
        good(&id("cs2"));
        wait("all is converted", CONVERTED, || {
            let done = craton(&["convert", "/d", "--no-wait", "--json", "--cluster", text(&dir)]);
            let done: Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
            done["converting"] == 0
        });
        over.store(true, Ordering::Relaxed);
        let reads = reading.join().expect("the reader goes on");
        println!("converted in {:.1?}, beside {reads} reads", began.elapsed());
        assert!(reads > 0);
    });
    let shown = stat(&dir, "/d/large");
    assert!(schemes(&shown).iter().all(|scheme| scheme == "ec4+2"), "{shown}");
    let shown = stat(&dir, "/d/e/half");
    assert_eq!(shown["chunks"][0]["compression"], "lz4", "{shown}");
    // A code would take six sectors in place of three.
    assert_eq!(schemes(&stat(&dir, "/d/e/small")), ["rep3"]);
    wait_for_repair(&dir, REPAIR);
    // Without two of the servers, and with a client that knows nothing.
    kill9(&dir, &["cs1", "cs3"]);
    for (bytes, path) in [(&large, "/d/large"), (&half, "/d/e/half"), (&small, "/d/e/small")] {
        let local = scratch.path("back");
        let _ = fs::remove_file(&local);
        if path == "/d/e/half" {
            // Two copies may have been just there.
            good(&["cluster", "restart", "--dir", text(&dir), "chunkserver", "cs1"]);
        }
        on(&dir, &["fs", "get", path, text(&local)]);
        assert!(fs::read(&local).expect("a file") == *bytes, "{path} has other bytes");
    }
}

#[test]
fn chunks_get_another_form_when_they_are_old() {
    let mut scratch = Scratch::new("old");
    let dir = scratch.cluster("c");
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "3", "--chunkservers", "4"]);
    let refused = |words: &[&str], code, want: &str| {
        bad(&[words, &["--cluster", text(&dir)]].concat(), code, want);
    };
    let set =
        |rule: &'static str| ["fs", "policy", "set", "/logs", "rep3", "--convert-after", rule];
    on(&dir, &["fs", "mkdir", "/logs"]);
    refused(&set("7d"), 2, "7d=ec8+3");
    refused(&set("0s=ec2+1"), 2, "such as 7d");
    refused(&set("7d=ec1+1"), 2, "ec1+1");
    refused(&set("7d=rep3"), 2, "would become what they are");
    refused(&set("7d=ec8+3"), 1, "11 failure domains");
    on(&dir, &set("20s=ec2+1"));
    let shown = json(&["fs", "policy", "show", "/logs", "--json", "--cluster", text(&dir)]);
    assert_eq!((&shown["policy"], &shown["convert_after"]), (&"rep3".into(), &"20s=ec2+1".into()));
    let bytes = content(5 << 20, 4);
    let local = scratch.path("local");
    fs::write(&local, &bytes).expect("a file");
    let began = Instant::now();
    on(&dir, &["fs", "put", text(&local), "/logs/a"]);
    let only = |path: &str, scheme: &str| {
        let schemes = schemes(&stat(&dir, path));
        !schemes.is_empty() && schemes.iter().all(|it| it == scheme)
    };
    assert!(only("/logs/a", "rep3"));
    assert_eq!(stat(&dir, "/logs/a")["convert_after"], "20s=ec2+1");
    // Who leads does not matter.
    let first = leader(&dir, "st0");
    kill9(&dir, &[&first]);
    wait("old chunks have the code", CONVERTED, || only("/logs/a", "ec2+1"));
    let age = began.elapsed();
    assert!(age >= Duration::from_secs(19), "converted after {age:.1?}");
    on(&dir, &["fs", "put", text(&local), "/logs/b"]);
    assert!(only("/logs/b", "rep3"), "what is new stays as it is");
    // An operator's word leaves what is old as it is.
    let shown = on(&dir, &["convert", "/logs"]);
    assert!(shown.contains("2 files, 10.0 MiB of 10.0 MiB in the form"), "{shown}");
    assert!(only("/logs/a", "ec2+1"));
    for path in ["/logs/a", "/logs/b"] {
        let got = scratch.path("got");
        on(&dir, &["fs", "get", path, text(&got)]);
        assert_eq!(fs::read(&got).expect("it is there"), bytes, "{path}");
        fs::remove_file(&got).expect("it is there");
    }
}

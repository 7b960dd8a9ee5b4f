//! Commands that need no cluster, and those that look into stores.

use std::process::Stdio;

use crate::harness::{Scratch, bad, command, good, json, text};

#[test]
fn version_has_the_commit() {
    let version = good(&["--version"]);
    assert!(version.starts_with("craton ") && version.contains("(commit "), "{version}");
}

#[test]
fn completions_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(good(&["completions", shell]).contains("chunkserver"));
    }
    assert!(good(&["--help"]).contains("Exit codes:"));
    // A reader that has gone is no failure.
    let mut bash =
        command(&["completions", "bash"]).stdout(Stdio::piped()).spawn().expect("it runs");
    drop(bash.stdout.take());
    assert!(bash.wait().expect("it ends").success());
}

#[test]
fn scenarios_run_and_replay() {
    let list = good(&["sim", "list"]);
    let first = list.split_whitespace().next().expect("a scenario").to_owned();
    good(&["sim", "run", "--scenario", &first, "--seeds", "0..3"]);
    let replay = || good(&["sim", "replay", "--scenario", &first, "--seed", "2"]);
    let (one, two) = (replay(), replay());
    assert_eq!(one, two);
    let hash = one.trim_end().rsplit("trace hash ").next().expect("a hash");
    assert!(hash.len() == 16 && hash.chars().all(|c| c.is_ascii_hexdigit()), "{one}");
}

#[test]
fn stores_are_looked_into() {
    let mut scratch = Scratch::new("fsck");
    let dir = scratch.cluster("cluster");
    let file = scratch.path("file");
    std::fs::write(&file, crate::harness::content(300_000, 1)).expect("a file");
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "1", "--chunkservers", "1"]);
    good(&["fs", "put", text(&file), "/file", "--cluster", text(&dir)]);
    let store = dir.join("cs1/store");
    bad(&["store", "fsck", text(&store)], 4, "in use");
    good(&["cluster", "down", "--dir", text(&dir)]);
    let report = json(&["store", "fsck", "--json", text(&store)]);
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0));
    assert!(report["bytes"].as_u64() >= Some(300_000), "{report}");
    let dump = good(&["store", "dump", text(&store)]);
    let chunk = dump.split_whitespace().find(|word| word.starts_with("chk_")).expect("a chunk");
    assert!(good(&["store", "dump", text(&store), "--chunk", chunk]).contains("verified"));
}

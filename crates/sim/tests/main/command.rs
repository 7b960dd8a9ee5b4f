//! The `craton-sim` binary.

use std::path::Path;
use std::process::{Command, Output};

fn craton_sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_craton-sim")).args(args).output().expect("the binary runs")
}

fn good(args: &[&str]) -> String {
    let output = craton_sim(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "craton-sim {args:?}: {} {error}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

fn bad(args: &[&str], code: i32, want: &str) {
    let output = craton_sim(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "craton-sim {args:?}: {error}");
    assert!(error.contains(want), "craton-sim {args:?}: '{error}' does not say '{want}'");
}

#[test]
fn scenarios_run_and_replay() {
    let list = good(&["list"]);
    let first = list.split_whitespace().next().expect("a scenario").to_owned();
    good(&["run", "--scenario", &first, "--seeds", "0..3"]);
    let replay = || good(&["replay", "--scenario", &first, "--seed", "2"]);
    let (one, two) = (replay(), replay());
    assert_eq!(one, two);
    let hash = one.trim_end().rsplit("trace hash ").next().expect("a hash");
    assert!(hash.len() == 16 && hash.chars().all(|c| c.is_ascii_hexdigit()), "{one}");
}

#[test]
fn commands_have_help() {
    for command in ["list", "run", "replay", "hashes", "soak", "chaos"] {
        assert!(good(&[command, "--help"]).contains("Usage: craton-sim"), "{command}");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    for seeds in ["5", "7..3", "3..3", "a..b", "..5"] {
        bad(&["run", "--scenario", "echo", "--seeds", seeds], 2, "A..B");
    }
    bad(&["replay", "--scenario", "nothing", "--seed", "5"], 2, "craton-sim list");
    bad(&["frobnicate"], 2, "frobnicate");
}

#[test]
fn soak_goes_on_behind_the_seeds_of_its_record() {
    let record = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soak.tsv");
    let _ = std::fs::remove_file(&record);
    let path = record.to_str().expect("text");
    let soak = |commit: &str, until: &str| {
        let args = ["soak", "--scenarios", "echo", "--batch", "4", "--record", path];
        good(&[&args[..], &["--commit", commit, "--until", until]].concat())
    };
    soak("one", "6");
    soak("one", "6");
    soak("two", "3");
    let text = std::fs::read_to_string(&record).expect("the record");
    // A kill has cut off a line, the rest of which does not count.
    std::fs::write(&record, format!("{text}two\tec")).expect("the record");
    soak("two", "4");
    let again = std::fs::read_to_string(&record).expect("the record");
    let added = again.strip_prefix(&format!("{text}two\tec\n")).expect("it is continued");
    let last = text.trim_end().rsplit('\t').nth(1).and_then(|seeds| seeds.split_once(".."));
    let next = last.expect("a range").1.parse::<u64>().expect("a seed");
    assert_eq!(added, format!("two\techo\t{next}..{}\tgood\n", next + 1));
    std::fs::write(&record, "one\techo\tx..y\tgood\n").expect("the record");
    bad(&["soak", "--scenarios", "echo", "--record", path], 4, "line 1 names no seeds");
    let mut next = None;
    let mut counts = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        assert_eq!((words[1], words[3]), ("echo", "good"), "{line}");
        let (from, to) = words[2].split_once("..").expect("a range");
        let (from, to): (u64, u64) = (from.parse().expect("a seed"), to.parse().expect("a seed"));
        assert!(next.is_none_or(|next| next == from), "{text}");
        next = Some(to);
        counts.push((words[0], to - from));
    }
    assert_eq!(counts, [("one", 4), ("one", 2), ("two", 3)]);
    std::fs::remove_file(&record).expect("it goes");
}

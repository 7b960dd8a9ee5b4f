//! The logs of processes: JSON lines in files that are rotated.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Scratch, configure, content, good, kill9, leader, text, wait};

const MASTERS: [&str; 3] = ["m1", "m2", "m3"];

/// The lines of a log file.
fn lines(path: &Path) -> Vec<Value> {
    let log = std::fs::read_to_string(path).expect("a log");
    assert!(log.ends_with('\n'), "{} ends within a line", path.display());
    let line = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
        assert!(
            ["timestamp", "level", "message", "target"].iter().all(|key| value[key].is_string())
        );
        value
    };
    log.lines().map(line).collect()
}

#[test]
fn logs_are_rotated_and_not_flooded() {
    let mut scratch = Scratch::new("logs");
    let dir = scratch.cluster("cluster");
    let (cluster, file) = (text(&dir).to_owned(), scratch.path("file"));
    std::fs::write(&file, content(100_000, 1)).expect("a file");
    good(&["cluster", "up", "--dir", &cluster, "--masters", "3", "--chunkservers", "1"]);

    // A master that is down is logged once, not with each message that it does not get.
    let leads = leader(&dir, "cluster");
    let victim = MASTERS.into_iter().find(|id| *id != leads).expect("another");
    kill9(&dir, &[victim]);
    std::thread::sleep(Duration::from_secs(2));
    let logged = lines(&dir.join(&leads).join("log/craton.jsonl"));
    let number: u64 = victim[1..].parse().expect("a number");
    let of_victim =
        |line: &&Value| line["message"] == "a master does not answer" && line["master"] == number;
    // It may have been slow to start, too.
    let count = logged.iter().filter(of_victim).count();
    assert!((1..=2).contains(&count), "logged {count} times of {victim}: {logged:?}");
    assert!(logged.len() < 100, "{} lines", logged.len());
    good(&["cluster", "down", "--dir", &cluster]);

    // A chatty process fills its files: the oldest goes, and no line is torn or lost in between.
    let config = dir.join("m1/master.toml");
    configure(&config, "level", "\"trace\"");
    configure(&config, "file_mib", "1");
    configure(&config, "files", "2");
    good(&["cluster", "up", "--dir", &cluster]);
    let logs = dir.join("m1/log");
    let mut turn = 0;
    let oldest = || std::fs::metadata(logs.join("craton.jsonl.2")).ok();
    let first = std::cell::OnceCell::new();
    wait("two rotations", Duration::from_secs(60), || {
        good(&["fs", "put", text(&file), &format!("/file-{turn}"), "--cluster", &cluster]);
        turn += 1;
        // The oldest file is another one than the first that was oldest.
        use std::os::unix::fs::MetadataExt;
        oldest().is_some_and(|facts| *first.get_or_init(|| facts.ino()) != facts.ino())
    });
    good(&["cluster", "down", "--dir", &cluster]);

    let mut names: Vec<String> = std::fs::read_dir(&logs)
        .expect("it lists")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert_eq!(names, ["craton.jsonl", "craton.jsonl.1", "craton.jsonl.2", "output.txt"]);
    let mut times = Vec::new();
    for name in ["craton.jsonl.2", "craton.jsonl.1", "craton.jsonl"] {
        let path = logs.join(name);
        let len = std::fs::metadata(&path).expect("a log").len();
        assert!(len <= 1 << 20, "{name} has {len} bytes");
        assert!(name == "craton.jsonl" || len > 1_000_000, "{name} has {len} bytes only");
        times.push(lines(&path)[0]["timestamp"].to_string());
    }
    // Lines beside each other, of two threads, may be a little out of order.
    assert!(times.is_sorted(), "the files are out of order: {times:?}");
}

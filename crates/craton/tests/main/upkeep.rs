//! Upkeep of volumes with real processes: damage that a check names, and life without a manager.

use std::time::{Duration, Instant};

use crate::harness::{self, Scratch, good, json, text, wait};
use crate::machine::Hiccups;
use crate::nbd::{BLOCK, Nbd, READ, WRITE};
use crate::volumes::up;

/// A write and a read take no longer, with any process restarted.
const ROUND_MAX: Duration = Duration::from_secs(3);

#[test]
fn check_finds_a_removed_file() {
    let mut scratch = Scratch::new("volume-check");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let cluster = text(&dir).to_owned();
    let volume = |args: &[&str]| {
        let all = [&["volume"][..], args, &["--json", "--cluster", &cluster]].concat();
        all.into_iter().map(str::to_owned).collect::<Vec<String>>()
    };
    let json = |args: Vec<String>| json(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let made = json(volume(&["create", "v", "--size", "1GiB"]));
    let id = made["id"].as_str().expect("an ID").to_owned();
    let mut nbd = Nbd::open(made["nbd"].as_str().expect("an export"));
    // Something in every segment.
    (0..40u64).for_each(|n| drop(nbd.ask(WRITE, n * (128 << 10), BLOCK, &[n as u8; BLOCK])));
    let good = json(volume(&["check", "v"]));
    assert_eq!((&good["findings_count"], &good["blocks"]), (&0.into(), &40.into()), "{good}");
    assert_eq!(good["segments"], 4);
    // On a busy machine a segment may have moved, and be opened again.
    wait("for the scrub of a segment", Duration::from_secs(20), || {
        json(volume(&["info", "v"]))["segments"][0]["scrub"]["total_bytes"] == 32u64 << 30
    });
    assert_eq!(json(volume(&["ls"]))[0]["state"], "served");
    // A DataFile is taken away behind the volume's back.
    let folder = format!("/.craton/block/{id}/2");
    let names = harness::good(&["fs", "ls", &folder, "--services", "--cluster", &cluster]);
    let file = names.lines().find(|name| name.starts_with("data-")).expect("a DataFile");
    harness::good(&["fs", "rm", &format!("{folder}/{file}"), "--services", "--cluster", &cluster]);
    let args = volume(&["check", "v"]);
    let found = harness::craton(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(found.status.code(), Some(5), "{}", String::from_utf8_lossy(&found.stderr));
    let output = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(
        output.contains(&format!("{file} is missing")) && output.contains("segment 2"),
        "{output}"
    );
}

#[test]
fn dead_block_manager_stalls_no_open_volume() {
    let mut scratch = Scratch::alone("volume-manager");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let cluster = text(&dir).to_owned();
    let args = ["volume", "create", "v", "--size", "1GiB", "--json", "--cluster", &cluster];
    let mut nbd = Nbd::open(json(&args)["nbd"].as_str().expect("an export"));
    let round = |nbd: &mut Nbd, count: u64| {
        let (offset, value) = (count * 37 % 1000 * (128 << 10), [(count % 251) as u8; BLOCK]);
        let began = Instant::now();
        nbd.ask(WRITE, offset, BLOCK, &value);
        assert_eq!(nbd.ask(READ, offset, BLOCK, &[]), value, "at {offset}");
        (began, began.elapsed())
    };
    for count in 0..100 {
        round(&mut nbd, count);
    }
    let hiccups = Hiccups::watch_with_disk();
    harness::kill9(&dir, &["bm1"]);
    let (end, mut rounds) = (Instant::now() + Duration::from_secs(5), Vec::new());
    while Instant::now() < end {
        rounds.push(round(&mut nbd, rounds.len() as u64));
    }
    let worst = hiccups.end().worst(&rounds);
    let count = rounds.len();
    eprintln!("without a manager: {count} rounds in 5 s, the longest took {worst:?}");
    assert!(count > 10 && worst < ROUND_MAX, "{count} rounds, {worst:?} of {ROUND_MAX:?}");
    // A server that is asked to end hands over, once a manager is there again.
    good(&["cluster", "up", "--dir", &cluster, "--block-servers", "2"]);
    wait("a manager leads", Duration::from_secs(20), || {
        let status = json(&["status", "--json", "--cluster", &cluster]);
        status["block_managers"][0]["leader"] == true
    });
    let hiccups = Hiccups::watch_with_disk();
    let restart = {
        let cluster = cluster.clone();
        std::thread::spawn(move || {
            good(&["cluster", "restart", "block-server", "bs1", "--dir", &cluster]);
        })
    };
    let mut rounds = Vec::new();
    while !restart.is_finished() {
        rounds.push(round(&mut nbd, rounds.len() as u64));
    }
    restart.join().expect("it restarts");
    let worst = hiccups.end().worst(&rounds);
    eprintln!("over a restart: {} rounds, the longest took {worst:?}", rounds.len());
    assert!(worst < ROUND_MAX, "{worst:?} of {ROUND_MAX:?}");
}

//! Processes that are killed while writers work.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{Scratch, good, kill9, leader, metric, status, text, wait, wait_for_repair};
use crate::load::{self, Load, Shape, Writer};
use crate::machine::{Hiccups, Noted};

/// Wait of a writer for one append, at most, with any process killed.
const STALL_MAX: Duration = Duration::from_secs(1);
/// A master that the machine holds up for so long may lose the lead: half the shortest time after
/// which a follower stands for election.
const HELD_UP: Duration = Duration::from_millis(75);

/// Load of each round: with nine processes of the cluster, ten.
const SHAPE: Shape = Shape { writers: 6, depth: 1, copies: 3, makers: 2 };
/// Seconds of load after which its files are verified and removed.
const ROUND_S: usize = 30;

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// The longest waits of some time, one per writer.
struct Stalls {
    longest: Duration,
    each: Vec<u128>,
}

impl Stalls {
    fn between(writers: &[Writer], machine: &Noted, from: Instant, to: Instant) -> Stalls {
        let longest = |writer: &Writer| {
            let met = |(at, took): &&(Instant, Duration)| (from..to).contains(&(*at + *took));
            let waits = writer.waits.iter().filter(met);
            waits.map(|&(at, took)| machine.without(at, took)).max().unwrap_or(to - from)
        };
        let each: Vec<Duration> = writers.iter().map(longest).collect();
        let longest = each.iter().max().copied().expect("writers");
        Stalls { longest, each: each.iter().map(Duration::as_millis).collect() }
    }
}

impl fmt::Display for Stalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ms", self.each)
    }
}

/// A load of some seconds with nothing killed, verified and removed; the longest wait.
fn steady_round(dir: &Path, seconds: u64) -> u128 {
    let hiccups = Hiccups::watch_with_disk();
    let began = Instant::now();
    let load = Load::start(dir, SHAPE);
    pause(1000 * seconds);
    let writers = load.stop();
    let client = load::connect(dir);
    writers.iter().for_each(|writer| writer.verify_all(&client));
    client.remove_tree("/load").expect("it goes");
    Stalls::between(&writers, &hiccups.end(), began, Instant::now()).longest.as_millis()
}

#[test]
fn kills_under_load_stall_writers_below_a_second() {
    let mut scratch = Scratch::alone("kills");
    let dir = scratch.cluster("cluster");
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "3", "--chunkservers", "6"]);
    let terms = || ["m1", "m2", "m3"].map(|id| metric(&dir, id, "craton_group_term"));
    let before = terms();
    let load_s = std::env::var("CRATON_LOAD_S").map_or(5, |text| text.parse().expect("seconds"));
    let mut usual = Vec::new();
    let hiccups = Hiccups::watch_with_disk();
    for round in (0..load_s).step_by(ROUND_S) {
        usual.push(steady_round(&dir, (load_s - round).min(ROUND_S as u64)));
    }
    let elections: f64 = terms().iter().zip(before).map(|(after, before)| after - before).sum();
    let machine = hiccups.end();
    println!(
        "{load_s} s of load: longest waits {usual:?} ms, {elections} elections, the machine itself {:?}",
        machine.longest()
    );
    let alone = machine.longest() < HELD_UP;
    assert!(elections == 0.0 || !alone, "{elections} elections in {load_s} s, nothing killed");

    let hiccups = Hiccups::watch_with_disk();
    let load = Load::start(&dir, SHAPE);
    pause(1000);
    let server_killed = Instant::now();
    kill9(&dir, &["cs2"]);
    pause(4000);
    let leader = leader(&dir, "st0");
    let leader_killed = Instant::now();
    kill9(&dir, &[&leader]);
    pause(4000);

    let writers = load.stop();
    let end = Instant::now();
    let machine = hiccups.end();
    let server = Stalls::between(&writers, &machine, server_killed, leader_killed);
    let master = Stalls::between(&writers, &machine, leader_killed, end);
    println!(
        "longest waits: {server} chunkserver killed, {master} leader killed, of {STALL_MAX:?}; the \
         machine itself {:?}",
        machine.longest()
    );
    assert!(server.longest < STALL_MAX, "a chunkserver's end stalls a writer: {server}");
    assert!(master.longest < STALL_MAX, "the leading master's end stalls a writer: {master}");

    // Five chunkservers are left, and two masters: full redundancy without hands.
    wait_for_repair(&dir, Duration::from_secs(60));
    let client = load::connect(&dir);
    writers.iter().for_each(|writer| writer.verify_all(&client));
    good(&["cluster", "restart", "--dir", text(&dir), "master", &leader]);
    wait("the master is back", Duration::from_secs(10), || {
        let masters = status(&dir)["masters"].clone();
        masters.as_array().expect("masters").iter().all(|one| one["state"] == "up")
    });
}

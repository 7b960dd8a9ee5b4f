//! Load moves: of two busy segments on one block server, one goes to the other server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Scratch, json, text, wait};
use crate::nbd::{BLOCK, Nbd, READ, WRITE};
use crate::volumes::up;

const SOON: Duration = Duration::from_secs(20);
/// Bytes of a data sector; the segments have them in turn.
const SECTOR: u64 = 128 << 10;
const SEGMENTS: u64 = 4;
/// Sectors of a segment that are written to.
const PLACES: u64 = 16;

/// Writes to one segment, one request at a time, until `stop` is set; then reads all back.
fn busy(url: &str, segment: u64, stop: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let (url, stop) = (url.to_owned(), stop.clone());
    std::thread::spawn(move || {
        let (mut nbd, mut last, mut count) = (Nbd::open(&url), [0u8; PLACES as usize], 0u64);
        let offset = |place: u64| (place * SEGMENTS + segment) * SECTOR;
        while !stop.load(Ordering::Relaxed) {
            let (place, value) = (count % PLACES, (count % 251) as u8 + 1);
            nbd.ask(WRITE, offset(place), BLOCK, &[value; BLOCK]);
            (last[place as usize], count) = (value, count + 1);
        }
        for (place, value) in (0..).zip(last) {
            assert_eq!(nbd.ask(READ, offset(place), BLOCK, &[]), [value; BLOCK], "place {place}");
        }
        count
    })
}

#[test]
fn a_busy_segment_moves_to_the_idle_server() {
    let mut scratch = Scratch::new("balance");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let volume = |args: &[&str]| -> Value {
        json(&[&["volume"], args, &["--json", "--cluster", text(&dir)]].concat())
    };
    let made = volume(&["create", "v", "--size", "1GiB"]);
    let url = made["nbd"].as_str().expect("an export");
    let owners = || -> BTreeMap<u64, String> {
        let info = volume(&["info", "v"]);
        let segments = info["segments"].as_array().expect("segments");
        let serving = segments.iter().filter(|one| one["serving"] == true);
        let owner = |one: &Value| {
            let server = one["server"].as_str().expect("a name").to_owned();
            (one["index"].as_u64().expect("a number"), server)
        };
        serving.map(owner).collect()
    };
    wait("all segments are served", SOON, || owners().len() as u64 == SEGMENTS);
    let before = owners();
    let of_one = before.iter().filter(|&(_, server)| server == "bs1");
    let crowded: Vec<u64> = of_one.map(|(segment, _)| *segment).collect();
    assert_eq!(crowded.len(), 2, "the segments are spread: {before:?}");

    let stop = Arc::new(AtomicBool::new(false));
    let work: Vec<_> = crowded.iter().map(|&segment| busy(url, segment, &stop)).collect();
    wait("one of the busy segments has moved", SOON, || {
        assert!(!work.iter().any(JoinHandle::is_finished), "a request failed");
        let now = owners();
        let server = |segment: &u64| now.get(segment).map(String::as_str);
        crowded.iter().filter(|segment| server(segment) == Some("bs2")).count() == 1
    });
    stop.store(true, Ordering::Relaxed);
    for work in work {
        assert!(work.join().expect("no request failed") > 0);
    }
}

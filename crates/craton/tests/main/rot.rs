//! A bit that turns on the disk below a volume.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::harness::{Scratch, craton, good, json, metric, text, wait, wait_for_repair, within};
use crate::nbd::{BLOCK, Nbd, READ, WRITE};
use crate::stores;

const SOON: Duration = Duration::from_secs(20);
const REPAIR: Duration = Duration::from_secs(60);

#[test]
fn bit_flip_below_a_volume_is_read_around_and_repaired() {
    const WORD: [u8; 8] = *b"Marked!\x9f";
    const SERVERS: [&str; 4] = ["cs1", "cs2", "cs3", "cs4"];
    let mut scratch = Scratch::new("volume-rot");
    let dir = scratch.cluster("cluster");
    let shape = ["--masters", "1", "--chunkservers", "4", "--block-servers", "2"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &shape].concat());
    let cluster = text(&dir);
    let args = ["volume", "create", "v", "--size", "1GiB", "--json", "--cluster", cluster];
    let url = json(&args)["nbd"].as_str().expect("an export").to_owned();
    let mut nbd = Nbd::open(&url);
    let offset = |block: u64| block * (132 << 10);
    let bytes = |block: u64| match block {
        20 => WORD.repeat(BLOCK / WORD.len()),
        other => vec![other as u8; BLOCK],
    };
    (0..40).for_each(|block| drop(nbd.ask(WRITE, offset(block), BLOCK, &bytes(block))));
    let check = |nbd: &mut Nbd| {
        for block in 0..40 {
            assert!(nbd.ask(READ, offset(block), BLOCK, &[]) == bytes(block), "block {block}");
        }
    };
    check(&mut nbd);

    drop(nbd);
    let store = |id: &str| dir.join(id).join("store");
    let met = |id: &str| metric(&dir, id, "craton_damaged_total");
    let again = |role: &str, id: &str| {
        good(&["cluster", "restart", "--dir", cluster, role, id]);
    };
    let flip = |id: &&str| {
        let flipped = stores::flip_bit_of_word(&store(id), WORD);
        if flipped {
            assert_eq!(met(id), 0.0);
            // The block servers' memory has the right bytes: they have to read again.
            ["bs1", "bs2"].iter().for_each(|id| again("block-server", id));
        }
        flipped
    };
    // A reader asks one replica of three: it takes some reads.
    let damaged = stores::damage_one(&SERVERS, flip, |id| {
        within(2 * SOON, || {
            again("frontend", "f1");
            check(&mut Nbd::open(&url));
            met(id) > 0.0
        })
    });
    let mut nbd = Nbd::open(&url);
    let log = std::fs::read_to_string(dir.join(damaged).join("log/craton.jsonl")).expect("a log");
    assert!(log.contains("replica is damaged"), "{log}");
    // A valid copy takes its place, while the volume goes on.
    wait("the repair", REPAIR, || {
        nbd.ask(WRITE, offset(50), BLOCK, &[50; BLOCK]);
        json(&["status", "--json", "--cluster", cluster])["repair"]["done"] != 0
    });
    wait_for_repair(&dir, REPAIR);
    check(&mut nbd);
    good(&["volume", "check", "v", "--cluster", cluster]);
    drop(nbd);

    // No other damage is on any disk: replaced replicas are deleted when no right to them is alive.
    good(&["cluster", "down", "--dir", cluster]);
    let mut chunks = BTreeSet::new();
    for id in SERVERS {
        // Damaged replicas are kept until they may be deleted: the exit code shows it.
        let output = craton(&["store", "fsck", "--json", text(&store(id))]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
        for problem in report["problems"].as_array().expect("a list") {
            let said = problem["text"].as_str().expect("text");
            chunks.insert(said.split(':').next().unwrap_or_default().to_owned());
        }
    }
    assert!(chunks.len() <= 1, "{chunks:?}");
    good(&["cluster", "up", "--dir", cluster, "--block-servers", "2"]);
    check(&mut Nbd::open(&url));
}

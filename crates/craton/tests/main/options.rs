//! Options of `craton volume`, and its output: options of new volumes, limits that change while a
//! volume is open, the account of its space, the largest volume, output for programs.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{self, Scratch, bad, content, good, text, wait};
use crate::nbd::{BLOCK, Nbd, READ, TRIM, WRITE};
use crate::volumes::{answered, up};

const SOON: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// `craton volume` with `--json`.
fn volume(dir: &Path, args: &[&str]) -> Value {
    harness::json(&[&["volume"], args, &["--json", "--cluster", text(dir)]].concat())
}

/// The same that is refused.
fn refused(dir: &Path, args: &[&str], code: i32, want: &str) {
    bad(&[&["volume"], args, &["--cluster", text(dir)]].concat(), code, want);
}

fn url(volume: &Value) -> String {
    volume["nbd"].as_str().expect("an export").to_owned()
}

/// Waits until no client has a volume open: a front end detaches after its last client.
fn wait_closed(dir: &Path, name: &str) {
    let open = || volume(dir, &["info", name])["attachments"].clone();
    wait("the volume is closed", SOON, || open() == json!([]));
}

#[test]
fn options_of_new_volumes_are_kept_and_shown() {
    let mut scratch = Scratch::new("volume-options");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let of_two = ["create", "v", "--size", "1GiB", "--policy", "rep2", "--sector-size", "64KiB"];
    let of_shape = ["--segments", "2", "--group-size", "512MiB", "--shared"];
    let of_limits = ["--iops-base", "100", "--iops-burst", "20000"];
    let of_bytes = ["--mbps-base", "5", "--mbps-burst", "900"];
    let made = volume(&dir, &[&of_two[..], &of_shape, &of_limits, &of_bytes].concat());
    let info = volume(&dir, &["info", "v"]);
    let limits = json!({
        "iops_base": 100, "iops_burst": 20000, "bytes_base": 5_000_000,
        "bytes_burst": 900_000_000,
    });
    for shown in [&made, &info] {
        assert_eq!(shown["policy"], "rep2", "{shown}");
        assert_eq!(shown["sector_bytes"], 64 << 10, "{shown}");
        assert_eq!(shown["limits"], limits, "{shown}");
        assert_eq!((&shown["bytes"], &shown["shared"]), (&GIB.into(), &true.into()), "{shown}");
        assert_eq!(shown["segments_per_group"], 2, "{shown}");
        assert_eq!(shown["group_bytes"], 512 * MIB, "{shown}");
    }
    assert_eq!(info["segments"].as_array().map(Vec::len), Some(4), "two groups of two: {info}");
    let table = good(&["volume", "info", "v", "--cluster", text(&dir)]);
    for words in [
        "rep2",
        "sectors of 64.0 KiB over 2 segments",
        "100 promised, 20000 at most",
        "5 promised, 900 at most",
    ] {
        assert!(table.contains(words), "{words}: {table}");
    }

    // Two copies are what its files have, and data sectors what its segments get in turn.
    let mut nbd = Nbd::open(&url(&made));
    (0..6).for_each(|sector| drop(nbd.ask(WRITE, sector * (64 << 10), BLOCK, &[6; BLOCK])));
    let id = made["id"].as_str().expect("an ID");
    for (segment, blocks) in [(0, 3), (1, 3), (2, 0), (3, 0)] {
        let info = answered(|| volume(&dir, &["info", "v"]));
        let shown = &info["segments"][segment]["space"]["logical_bytes"];
        assert_eq!(shown.as_u64().unwrap_or(0), blocks * BLOCK as u64, "segment {segment}");
    }
    let folder = format!("/.craton/block/{id}/0");
    let names = good(&["fs", "ls", &folder, "--services", "--cluster", text(&dir)]);
    let file = names.lines().find(|name| name.starts_with("data-")).expect("a DataFile");
    let path = format!("{folder}/{file}");
    let stat =
        harness::json(&["fs", "stat", &path, "--json", "--services", "--cluster", text(&dir)]);
    assert_eq!(stat["chunks"][0]["replicas"].as_array().map(Vec::len), Some(2), "{stat}");

    refused(&dir, &["create", "w", "--size", "1GiB", "--policy", "rep9"], 2, "rep1 to rep5");
    let crossed = ["create", "w", "--size", "1GiB", "--iops-base", "9", "--iops-burst", "8"];
    refused(&dir, &crossed, 1, "base above its burst");
}

#[test]
fn a_bound_in_bytes_holds_and_changes_live() {
    // Seconds whose rate goes at once after a pause: 100 ms.
    const AT_ONCE: f64 = 0.1;
    let mut scratch = Scratch::new("volume-mbps");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let made = volume(&dir, &["create", "v", "--size", "1GiB"]);
    let mut nbd = Nbd::open(&url(&made));
    let bytes = content(MIB as usize, 4);
    let mut at = 0;
    let mut write = |nbd: &mut Nbd, mib: u64| {
        let began = Instant::now();
        for _ in 0..mib {
            nbd.ask(WRITE, at % (512 * MIB), bytes.len(), &bytes);
            at += MIB;
        }
        began.elapsed().as_secs_f64()
    };
    write(&mut nbd, 1);
    // Two MB a second, from now on: MiB are a little more.
    let set = volume(&dir, &["set", "v", "--mbps-burst", "2"]);
    assert_eq!(set["limits"]["bytes_burst"], 2_000_000);
    let at_two = |mib: u64| mib as f64 * 1.048_576 / 2.0 - AT_ONCE;
    wait("the front end has heard of it", SOON, || write(&mut nbd, 2) > at_two(2));
    let took = write(&mut nbd, 6);
    assert!(took > at_two(6), "6 MiB at 2 MB a second took {took:.2} s");
    // Reads count as well.
    let began = Instant::now();
    (0..3).for_each(|mib| drop(nbd.ask(READ, mib * MIB, MIB as usize, &[])));
    let took = began.elapsed().as_secs_f64();
    assert!(took > at_two(3), "reads of 3 MiB at 2 MB a second took {took:.2} s");
    volume(&dir, &["set", "v", "--mbps-burst", "0"]);
    wait("the bound is gone", SOON, || write(&mut nbd, 6) < at_two(6));
}

#[test]
fn garbage_is_shown_and_collected() {
    const COUNT: u64 = 2000;
    let mut scratch = Scratch::new("volume-garbage");
    let dir = scratch.cluster("cluster");
    let shape = ["--masters", "1", "--chunkservers", "1", "--block-servers", "1"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &shape].concat());
    let made = volume(&dir, &["create", "v", "--size", "1GiB"]);
    let url = url(&made);
    // Blocks that cannot be packed, over all segments.
    let offset = |block: u64| block * (36 << 10);
    let of = |block: u64, turn: u64| content(BLOCK, block * 100 + turn);
    let write = |blocks: &mut dyn Iterator<Item = u64>, turn: u64| {
        let mut nbd = Nbd::open(&url);
        blocks.for_each(|block| drop(nbd.ask(WRITE, offset(block), BLOCK, &of(block, turn))));
    };
    write(&mut (0..COUNT), 1);
    // The next owner of the segments closes the files that were written to.
    good(&["cluster", "restart", "--dir", text(&dir), "block-server", "bs1"]);
    wait("the volume is served", SOON, || volume(&dir, &["ls"])[0]["state"] == "served");

    let space = || volume(&dir, &["info", "v"])["space"].clone();
    let number = |space: &Value, what: &str| space[what].as_f64().unwrap_or(-1.0);
    let content_bytes = json!(COUNT * BLOCK as u64);
    // A twelfth of it is no reason to collect yet.
    write(&mut (0..COUNT).step_by(12), 2);
    let garbage = number(&space(), "garbage_ratio");
    assert!((0.05..0.1).contains(&garbage), "a thirteenth of all blocks: {}", space());
    assert_eq!(number(&space(), "write_amplification"), 1.0, "{}", space());
    assert_eq!(space()["logical_bytes"], content_bytes);
    // With more, live blocks of the old files are copied, and the files go. Otherwise garbage would
    // be 37 %; some is in the copies, when they were made before the last blocks were overwritten.
    write(&mut (0..COUNT).skip(1).step_by(2), 3);
    wait("garbage is collected", 3 * SOON, || {
        number(&space(), "write_amplification") > 1.0 && number(&space(), "garbage_ratio") < 0.33
    });
    let shown = space();
    println!("collected: {shown}");
    assert_eq!(shown["logical_bytes"], content_bytes, "{shown}");
    assert!(number(&shown, "collected_bytes") >= BLOCK as f64, "{shown}");
    let table = good(&["volume", "info", "v", "--cluster", text(&dir)]);
    let amplification = format!("amplification {:.2}", number(&shown, "write_amplification"));
    assert!(table.contains(&amplification) && table.contains("garbage"), "{table}");
    let mut nbd = Nbd::open(&url);
    for block in 0..COUNT {
        let turn = match (block % 12, block % 2) {
            (0, _) => 2,
            (_, 1) => 3,
            _ => 1,
        };
        assert!(nbd.ask(READ, offset(block), BLOCK, &[]) == of(block, turn), "block {block}");
    }
    good(&["volume", "check", "v", "--cluster", text(&dir)]);
}

#[test]
fn the_largest_volume_is_made_and_used() {
    let mut scratch = Scratch::new("volume-large");
    let dir = scratch.cluster("cluster");
    up(&dir);
    refused(&dir, &["create", "v", "--size", "65TiB"], 1, &(64 * TIB).to_string());
    let made = volume(&dir, &["create", "v", "--size", "64TiB"]);
    assert_eq!(made["bytes"], 64 * TIB);
    let mut nbd = Nbd::open(&url(&made));
    assert_eq!(nbd.bytes, 64 * TIB);
    let last = 64 * TIB - BLOCK as u64;
    for (offset, value) in [(0, 1), (31 * TIB + 5 * GIB, 2), (last, 3)] {
        nbd.ask(WRITE, offset, BLOCK, &[value; BLOCK]);
        assert_eq!(nbd.ask(READ, offset, BLOCK, &[]), [value; BLOCK]);
    }
    assert_eq!(nbd.ask(READ, last - BLOCK as u64, BLOCK, &[]), [0; BLOCK]);
    assert_eq!(nbd.try_ask(READ, 0, (last, 2 * BLOCK as u32), &[]), Err(22));
    drop(nbd);
    let info = answered(|| volume(&dir, &["info", "v"]));
    assert_eq!(info["segments"].as_array().map(Vec::len), Some(2048), "of 32 GiB each");
    assert_eq!(info["space"]["logical_bytes"], 3 * BLOCK as u64);
    wait_closed(&dir, "v");
    refused(&dir, &["resize", "v", "--size", "65TiB"], 1, &(64 * TIB).to_string());
    // The death of a server loses none of so many.
    harness::kill9(&dir, &["bs2"]);
    let mut nbd = Nbd::open(&url(&made));
    assert_eq!(nbd.ask(READ, last, BLOCK, &[]), [3; BLOCK]);
    assert_eq!(nbd.ask(READ, 31 * TIB + 5 * GIB, BLOCK, &[]), [2; BLOCK]);
    nbd.ask(WRITE, last, BLOCK, &[4; BLOCK]);
    drop(nbd);
    wait_closed(&dir, "v");
    // Nothing is cut off unasked, and a thousand unused segments are no obstacle.
    let shrink = ["resize", "v", "--size", "32TiB"];
    let asked = [&["volume"], &shrink[..], &["--cluster", text(&dir)]].concat();
    // All segments are asked: on a busy machine the answer may come too late.
    wait("an answer in time", Duration::from_secs(60), || {
        harness::craton(&asked).status.code() != Some(3)
    });
    refused(&dir, &shrink, 1, "there is data past");
    let mut nbd = Nbd::open(&url(&made));
    nbd.ask(TRIM, last, BLOCK, &[]);
    drop(nbd);
    wait_closed(&dir, "v");
    assert_eq!(volume(&dir, &shrink)["bytes"], 32 * TIB);
    volume(&dir, &["rm", "v", "--now"]);
    refused(&dir, &["info", "v"], 1, "no such volume");
}

#[test]
fn changes_report_their_effect_as_json() {
    let mut scratch = Scratch::new("volume-json");
    let dir = scratch.cluster("cluster");
    let shape = ["--masters", "1", "--chunkservers", "1", "--block-servers", "1"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &shape].concat());
    let made = volume(&dir, &["create", "v", "--size", "1GiB"]);
    let larger = volume(&dir, &["resize", "v", "--size", "2GiB"]);
    assert_eq!((&larger["name"], &larger["bytes"]), (&"v".into(), &(2 * GIB).into()), "{larger}");
    let smaller = volume(&dir, &["resize", "v", "--size", "1GiB"]);
    assert_eq!((&smaller["id"], &smaller["bytes"]), (&made["id"], &GIB.into()), "{smaller}");

    let write = |block: u64, value: u8| {
        Nbd::open(&url(&made)).ask(WRITE, block * MIB, BLOCK, &[value; BLOCK]);
        wait_closed(&dir, "v");
    };
    let read = |at: &str, block: u64| Nbd::open(at).ask(READ, block * MIB, BLOCK, &[])[0];
    write(1, 1);
    let cut = volume(&dir, &["snapshot", "create", "v", "s"]);
    assert_eq!(cut["export"], "v@s", "{cut}");
    write(1, 2);
    let clone = volume(&dir, &["clone", "v@s", "c"]);
    let back = volume(&dir, &["snapshot", "rollback", "v", "s"]);
    assert_eq!((&back["name"], &back["bytes"]), (&"v".into(), &GIB.into()), "{back}");
    assert_eq!((read(&url(&made), 1), read(&url(&clone), 1)), (1, 1));
    wait_closed(&dir, "v");
    wait_closed(&dir, "c");
    let apart = volume(&dir, &["flatten", "c"]);
    assert_eq!((&apart["name"], &apart["copied_blocks"]), (&"c".into(), &1.into()), "{apart}");
    assert_eq!(volume(&dir, &["info", "c"])["origin"], Value::Null);

    let file = scratch.path("image");
    let exported = volume(&dir, &["export", "v", text(&file), "--quiet"]);
    assert_eq!((&exported["volume"], &exported["bytes"]), (&"v".into(), &GIB.into()), "{exported}");
    assert!(
        exported["data_bytes"].as_u64().is_some_and(|data| (4096..=MIB).contains(&data)),
        "{exported}"
    );
    let image = std::fs::File::open(&file).expect("the image");
    let mut byte = [0; 2];
    std::os::unix::fs::FileExt::read_exact_at(&image, &mut byte, MIB - 1).expect("it reads");
    assert_eq!(byte, [0, 1]);
    let planned = volume(&dir, &["attach", "v", "--print"]);
    assert_eq!(planned["volume"], "v", "{planned}");
    assert!(planned["commands"].as_array().is_some_and(|all| !all.is_empty()), "{planned}");
    let gone = volume(&dir, &["snapshot", "rm", "v", "s"]);
    assert_eq!(gone.as_array().map(Vec::len), Some(1), "{gone}");
}

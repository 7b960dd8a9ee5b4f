//! Policies of directories, files and volumes as a user sets them (decision 78).

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Scratch, bad, content, good, json, kill9, server, text, wait};
use crate::nbd::{BLOCK, Nbd, READ, WRITE};
use crate::volumes::{answered, up};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn files_inherit_the_policy_of_the_nearest_directory_and_keep_it() {
    let mut scratch = Scratch::new("policies");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let cluster = ["--cluster", text(&dir)];
    let on = |args: &[&str]| good(&[&["fs"], args, &cluster].concat());
    let refused = |args: &[&str], code: i32, want: &str| {
        bad(&[&["fs"], args, &cluster].concat(), code, want);
    };
    let shown =
        |path: &str| json(&[&["fs", "policy", "show", path, "--json"], &cluster[..]].concat());
    let stat = |path: &str| json(&[&["fs", "stat", path, "--json"], &cluster[..]].concat());
    let small = scratch.path("small");
    fs::write(&small, content(9000, 3)).expect("a file");
    let put = |path: &str| {
        on(&["put", text(&small), path]);
        stat(path)
    };
    let has = |stat: &Value, policy: &str, copies: u64, acks: u64| {
        assert_eq!((&stat["policy"], &stat["copies"]), (&policy.into(), &copies.into()), "{stat}");
        let chunk = &stat["chunks"][0];
        assert_eq!(chunk["scheme"], policy, "{stat}");
        assert_eq!((&chunk["copies"], &chunk["acks"]), (&copies.into(), &acks.into()), "{stat}");
        assert_eq!(chunk["replicas"].as_array().map(Vec::len), Some(copies as usize), "{stat}");
        assert_eq!(chunk["len"], 9000, "{stat}");
    };

    // Nothing is set: the default.
    on(&["mkdir", "-p", "/a/b"]);
    let none = shown("/a/b");
    assert_eq!((&none["policy"], &none["from"]), (&"rep3".into(), &"default".into()), "{none}");
    assert_eq!(none["set_on"], Value::Null);
    has(&put("/a/b/old"), "rep3", 3, 2);

    on(&["policy", "set", "/a", "rep2"]);
    let inherited = shown("/a/b");
    assert_eq!(inherited["policy"], "rep2", "{inherited}");
    assert_eq!((&inherited["from"], &inherited["set_on"]), (&"directory".into(), &"/a".into()));
    assert_eq!(on(&["policy", "show", "/a/b"]), "rep2: set on /a\n");
    has(&put("/a/b/new"), "rep2", 2, 2);
    has(&stat("/a/b/old"), "rep3", 3, 2);
    on(&["append", text(&small), "/a/b/appended"]);
    has(&stat("/a/b/appended"), "rep2", 2, 2);
    // What writers read back before they send it.
    assert_eq!(inherited["verify"], "sampled", "{inherited}");
    let verified = ["policy", "set", "/a/v", "rep2", "--compression", "lz4", "--verify", "all"];
    on(&["mkdir", "/a/v"]);
    on(&verified);
    assert_eq!(on(&["policy", "show", "/a/v"]), "rep2 lz4, verify all: set on /a/v\n");
    let kept = put("/a/v/kept");
    assert_eq!((&kept["policy"], &kept["verify"]), (&"rep2".into(), &"all".into()), "{kept}");
    refused(&["policy", "set", "/a/v", "rep2", "--verify", "all"], 2, "choose a code, or");
    refused(&["policy", "set", "/a/v", "rep2", "--verify", "some"], 2, "off, sampled, all");
    // Asked for by name, and nearer.
    on(&["put", text(&small), "/a/b/asked", "--redundancy", "rep1"]);
    has(&stat("/a/b/asked"), "rep1", 1, 1);
    on(&["policy", "set", "/a/b", "rep3-strict"]);
    has(&put("/a/b/near"), "rep3-strict", 3, 3);

    // The policy moves with its directory, and the masters keep it over a restart.
    on(&["mv", "/a/b", "/moved"]);
    kill9(&dir, &["m1"]);
    good(&["cluster", "restart", "--dir", text(&dir), "master", "m1"]);
    // A chunk that is made before all of them report has fewer copies at first.
    let is_up = |id: &str| server(&dir, id)["state"] == "up";
    wait("the chunkservers are up", SOON, || ["cs1", "cs2", "cs3"].iter().all(|id| is_up(id)));
    has(&put("/moved/again"), "rep3-strict", 3, 3);
    on(&["policy", "clear", "/moved"]);
    assert_eq!(shown("/moved")["from"], "default");
    on(&["policy", "set", "/", "rep1"]);
    has(&put("/moved/root"), "rep1", 1, 1);
    on(&["policy", "clear", "/"]);

    // A file: what it gets from now on.
    on(&["policy", "set", "/moved/root", "rep3"]);
    assert_eq!(on(&["policy", "show", "/moved/root"]), "rep3: recorded with the file\n");
    on(&["append", text(&small), "/moved/root"]);
    let grown = stat("/moved/root");
    let schemes: Vec<_> = grown["chunks"].as_array().expect("chunks").iter().collect();
    assert_eq!(
        schemes.iter().map(|one| one["scheme"].as_str()).collect::<Vec<_>>(),
        [Some("rep1"), Some("rep3")]
    );
    assert_eq!((&grown["policy"], &grown["copies"]), (&"rep3".into(), &3.into()), "{grown}");
    let listed = json(&[&["fs", "ls", "/moved", "--json"], &cluster[..]].concat());
    let root = listed.as_array().expect("names").iter().find(|one| one["name"] == "root");
    assert_eq!(root.map(|one| &one["policy"]), Some(&"rep3".into()), "{listed}");
    on(&["policy", "set", "/a", "rep2"]);
    on(&["mv", "/moved/root", "/a/file"]);
    on(&["policy", "clear", "/a/file"]);
    assert_eq!(shown("/a/file")["policy"], "rep2");
    let back = scratch.path("back");
    on(&["get", "/a/file", text(&back)]);
    let twice = [content(9000, 3), content(9000, 3)].concat();
    assert!(fs::read(&back).expect("a file") == twice, "it is read back byte for byte");

    // Compressed: of 8 MiB that shrink much, three copies take less than one took.
    let large = scratch.path("large");
    let bytes: Vec<u8> = (0..8u32 << 20).map(|at| (at >> 12) as u8).collect();
    fs::write(&large, &bytes).expect("a file");
    let used = || json(&[&["fs", "df", "--json"], &cluster[..]].concat())["used_bytes"].as_u64();
    on(&["policy", "set", "/a", "rep3", "--compression", "lz4", "--block", "64KiB"]);
    let compressed = shown("/a");
    assert_eq!((&compressed["policy"], &compressed["copies"]), (&"rep3".into(), &3.into()));
    assert_eq!(compressed["compression"], "lz4", "{compressed}");
    assert_eq!(compressed["block_bytes"], 64 << 10, "{compressed}");
    assert_eq!(on(&["policy", "show", "/a"]), "rep3 lz4/64KiB: set on /a\n");
    let before = used();
    on(&["put", text(&large), "/a/large"]);
    let stored = stat("/a/large");
    assert_eq!((&stored["policy"], &stored["compression"]), (&"rep3".into(), &"lz4/64KiB".into()));
    assert_eq!(stored["chunks"][0]["compression"], "lz4/64KiB", "{stored}");
    assert_eq!(stored["len"], 8 << 20, "{stored}");
    wait("heartbeats say what is used", SOON, || used() > before);
    std::thread::sleep(Duration::from_secs(1));
    let taken = used().zip(before).map(|(after, before)| after - before);
    assert!(taken.is_some_and(|taken| taken < 8 << 20), "{taken:?} of {} bytes", 3 * (8 << 20));
    on(&["get", "/a/large", text(&back)]);
    assert!(fs::read(&back).expect("a file") == bytes, "it is read back byte for byte");
    refused(&["policy", "set", "/a", "rep3", "--compression", "gzip"], 2, "zstd");
    refused(&["policy", "set", "/a", "rep3", "--block", "3KiB"], 2, "power of two");

    // What cannot be.
    refused(&["policy", "set", "/a", "rep9"], 2, "rep1 to rep5");
    refused(&["policy", "set", "/a", "ec4+5"], 2, "1 to 4 parity fragments");
    refused(&["policy", "set", "/a", "ec4+2"], 1, "ec4+2 needs 6 failure domains");
    refused(&["policy", "set", "/a", "rep3", "--block", "64KiB"], 2, "--compression lz4 or zstd");
    refused(&["policy", "set", "/a", "rep5"], 1, "rep5 needs 5 disks");
    refused(&["policy", "set", "/none", "rep2"], 1, "/none: no such file or directory");
    refused(&["policy", "clear", "/none"], 1, "/none: no such file or directory");
    refused(&["policy", "show", "/none"], 1, "/none: no such file or directory");
    for path in ["/.craton", "/.craton/block"] {
        refused(&["policy", "set", path, "rep2"], 1, "is kept from this client");
        refused(&["policy", "clear", path], 1, "--services");
    }
    assert_eq!(shown("/a"), compressed, "as it was");
}

/// A file with an erasure code: read while a chunkserver is gone, and whole again without it.
#[test]
fn coded_files_outlive_a_chunkserver() {
    let mut scratch = Scratch::new("codes");
    let dir = scratch.cluster("cluster");
    let flags = ["--masters", "1", "--chunkservers", "4", "--block-servers", "1"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &flags].concat());
    let cluster = ["--cluster", text(&dir)];
    let on = |args: &[&str]| good(&[&["fs"], args, &cluster].concat());
    let (large, back) = (scratch.path("large"), scratch.path("back"));
    let bytes = content(5_000_000, 7);
    fs::write(&large, &bytes).expect("a file");
    on(&["mkdir", "/lake"]);
    on(&["policy", "set", "/lake", "ec2+1", "--compression", "lz4"]);
    assert_eq!(on(&["policy", "show", "/lake"]), "ec2+1 lz4: set on /lake\n");
    on(&["put", text(&large), "/lake/file"]);
    // So few bytes take less in copies.
    let small = scratch.path("small");
    fs::write(&small, content(1500, 8)).expect("a file");
    on(&["put", text(&small), "/lake/small"]);
    let shown = json(&[&["fs", "stat", "/lake/small", "--json"], &cluster[..]].concat());
    let schemes = (&shown["policy"], &shown["chunks"][0]["scheme"]);
    assert_eq!(schemes, (&"ec2+1".into(), &"rep2".into()), "{shown}");
    // A unit of a store is 16 KiB.
    assert_eq!(shown["stored_bytes"], 2 * (16 << 10), "{shown}");
    let stat = || json(&[&["fs", "stat", "/lake/file", "--json"], &cluster[..]].concat());
    // Its fragments, in order.
    let fragments = || {
        let stat = stat();
        let chunk = &stat["chunks"][0];
        assert_eq!(
            (&stat["policy"], &chunk["scheme"]),
            (&"ec2+1".into(), &"ec2+1".into()),
            "{stat}"
        );
        assert_eq!((&stat["copies"], &chunk["copies"]), (&Value::Null, &Value::Null), "{stat}");
        let replicas = chunk["replicas"].as_array().expect("replicas");
        let fragment = |one: &Value| one["fragment"].as_u64().expect("a fragment");
        let server = |one: &Value| one["server"].as_str().expect("a server").to_owned();
        let mut all: Vec<_> = replicas.iter().map(|one| (fragment(one), server(one))).collect();
        all.sort();
        all
    };
    let stored = stat()["stored_bytes"].as_u64().expect("a number");
    assert!((7_500_000..8_000_000).contains(&stored), "half more than the bytes: {}", stat());
    let before = fragments();
    let numbers = |all: &[(u64, String)]| all.iter().map(|one| one.0).collect::<Vec<_>>();
    assert_eq!(numbers(&before), [0, 1, 2]);
    kill9(&dir, &[before[0].1.as_str()]);
    let read_back = || {
        let _ = fs::remove_file(&back); // There is none at first.
        on(&["get", "/lake/file", text(&back)]);
        assert!(fs::read(&back).expect("a file") == bytes, "it is read back byte for byte");
    };
    read_back();
    let without = stat();
    let silent = &without["chunks"][0]["replicas"].as_array().expect("replicas")[0];
    assert_eq!((&silent["fragment"], &silent["stored_bytes"]), (&0.into(), &Value::Null));
    assert!(without["stored_bytes"].as_u64() < Some(stored), "{without}");
    // What one put wrote, the other too; from what clients ended, as masters know it.
    let amplification = json(&[&["amplification", "--json"], &cluster[..]].concat());
    let files = amplification["user"]["files"].as_u64().expect("a number");
    assert!((5_001_500..5_003_000).contains(&files), "{amplification}");
    assert!(!amplification["errors"].as_array().expect("a list").is_empty(), "one is gone");
    // Three places are left.
    on(&["put", text(&large), "/lake/beside"]);
    let elsewhere = || {
        let now = fragments();
        numbers(&now) == [0, 1, 2] && now.iter().all(|one| one.1 != before[0].1)
    };
    wait("its first fragment is made elsewhere", Duration::from_secs(60), elsewhere);
    kill9(&dir, &[before[1].1.as_str()]);
    read_back();
}

/// What is written to a volume with a code is in copies first, and in the code once it is collected, packed:
/// three bytes for each are less than one then. It is read while a chunkserver is gone (B3, C18).
#[test]
fn volumes_are_collected_into_a_code() {
    const COUNT: u64 = 1500;
    let mut scratch = Scratch::new("volume-codes");
    let dir = scratch.cluster("cluster");
    let flags = ["--masters", "1", "--chunkservers", "4", "--block-servers", "1"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &flags].concat());
    let cluster = ["--cluster", text(&dir)];
    let volume = |args: &[&str]| json(&[&["volume"], args, &["--json"], &cluster[..]].concat());
    let create = |policy| {
        let one = ["--size", "1GiB", "--segments", "1", "--policy", policy];
        [&["volume", "create", "v"][..], &one, &cluster].concat()
    };
    bad(&create("ec4+2"), 1, "ec4+2 needs 6 failure domains");
    good(&create("rep3"));
    let made = volume(&["info", "v"]);
    let url = made["nbd"].as_str().expect("an export").to_owned();
    // Half of each block packs.
    let block = |number: u64| [content(BLOCK / 2, number), vec![number as u8; BLOCK / 2]].concat();
    let mut nbd = Nbd::open(&url);
    (0..COUNT).for_each(|at| drop(nbd.ask(WRITE, at * BLOCK as u64, BLOCK, &block(at))));
    drop(nbd);
    // For each byte one to the block server, and two sectors of each copy, as each write is alone.
    let amplification =
        |more: &[&str]| json(&[&["amplification", "--json"], more, &cluster[..]].concat());
    let each = |of: &Value, name: &str| {
        let stages = of["stages"].as_array().expect("stages");
        let stage = stages.iter().find(|stage| stage["stage"] == name).expect("a stage");
        stage["bytes"].as_f64().expect("a number") / (COUNT * BLOCK as u64) as f64
    };
    // Disks show their counters a second later.
    wait("what disks wrote is shown", SOON, || each(&amplification(&[]), "disk writes") >= 6.0);
    let before = amplification(&[]);
    assert_eq!(before["user"]["volumes"], COUNT * BLOCK as u64, "{before}");
    for (stage, range) in [("services", 1.0..1.1), ("data", 5.0..6.5), ("collection", 0.0..0.1)] {
        assert!(range.contains(&each(&before, stage)), "{stage}: {before}");
    }
    let shown = good(&[&["amplification"], &cluster[..]].concat());
    assert!(shown.contains("to volumes") && shown.contains("STAGE"), "{shown}");
    // The next owner closes the file that was written to.
    let restart = || {
        good(&["cluster", "restart", "--dir", text(&dir), "block-server", "bs1"]);
        let served = || volume(&["ls"])[0]["state"] == "served";
        wait("the volume is served", SOON, served);
    };
    restart();
    let space = || answered(|| volume(&["info", "v"]))["space"].clone();
    let per_byte = |space: &Value| {
        let bytes = |what: &str| space[what].as_f64().expect("a number");
        bytes("physical_bytes") / bytes("logical_bytes")
    };
    let copies = space();
    assert!((3.0..3.2).contains(&per_byte(&copies)), "three copies: {copies}");
    let written = copies["collected_bytes"].clone();
    assert_eq!(written, 0, "nothing is gained by collection: {copies}");

    // Without an overwritten block, and without another opening.
    assert_eq!(volume(&["set", "v", "--policy", "ec2+1"])["policy"], "ec2+1");
    wait("it is collected into the code", 3 * SOON, || per_byte(&space()) < 1.0);
    println!("{copies} became {}", space());
    // What is read for it, and what is written: less than one and a half for each byte.
    let after = amplification(&[]);
    for (stage, range) in [("collection reads", 0.9..1.1), ("collection", 0.7..1.3)] {
        assert!(range.contains(&each(&after, stage)), "{stage}: {after}");
    }
    let still = amplification(&["--for", "1s"]);
    assert_eq!(
        (&still["user"]["total"], &still["network_per_user_byte"]),
        (&0.into(), &Value::Null)
    );

    let folder = format!("/.craton/block/{}/0", made["id"].as_str().expect("an ID"));
    let schemes = || {
        let names = good(&[&["fs", "ls", &folder, "--services"], &cluster[..]].concat());
        let names = names.lines().filter(|name| name.starts_with("data-"));
        let policy = |name: &str| {
            let asked = ["fs", "stat", &format!("{folder}/{name}"), "--json", "--services"];
            json(&[&asked[..], &cluster[..]].concat())["policy"].clone()
        };
        names.map(policy).collect::<Vec<_>>()
    };
    let made_with = schemes();
    assert!(made_with.contains(&"ec2+1".into()), "what is collected: {made_with:?}");

    let read_back = |without: &str| {
        let mut nbd = Nbd::open(&url);
        for at in (0..COUNT).step_by(3) {
            let read = nbd.ask(READ, at * BLOCK as u64, BLOCK, &[]);
            assert!(read == block(at), "block {at} without {without}");
        }
    };
    read_back("any loss");
    kill9(&dir, &["cs2"]);
    read_back("cs2");
    restart();
    read_back("cs2, by another owner");
    let check = good(&[&["volume", "check", "v"], &cluster[..]].concat());
    assert!(check.contains(" 0 findings"), "{check}");
}

#[test]
fn a_volumes_policy_is_changed_while_it_is_open() {
    let mut scratch = Scratch::new("volume-policy");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let cluster = ["--cluster", text(&dir)];
    let volume = |args: &[&str]| json(&[&["volume"], args, &["--json"], &cluster[..]].concat());
    let made = volume(&["create", "v", "--size", "1GiB", "--segments", "1", "--policy", "rep2"]);
    assert_eq!(made["policy"], "rep2", "{made}");
    let mut nbd = Nbd::open(made["nbd"].as_str().expect("an export"));
    nbd.ask(WRITE, 0, BLOCK, &[6; BLOCK]);
    let folder = format!("/.craton/block/{}/0", made["id"].as_str().expect("an ID"));
    // Policies of the DataFiles.
    let files = || {
        let names = good(&[&["fs", "ls", &folder, "--services"], &cluster[..]].concat());
        let names = names.lines().filter(|name| name.starts_with("data-"));
        let policy = |name: &str| {
            let path = format!("{folder}/{name}");
            let asked = ["fs", "stat", &path, "--json", "--services"];
            json(&[&asked[..], &cluster[..]].concat())["chunks"][0]["scheme"].clone()
        };
        names.map(policy).collect::<Vec<_>>()
    };
    assert!(!files().is_empty() && files().iter().all(|it| it == "rep2"), "{:?}", files());

    let set = volume(&["set", "v", "--policy", "rep3-strict"]);
    assert_eq!(set["policy"], "rep3-strict", "{set}");
    assert_eq!(volume(&["info", "v"])["policy"], "rep3-strict");
    nbd.ask(WRITE, BLOCK as u64, BLOCK, &[7; BLOCK]);
    // Another owner, with files of its own.
    let owner =
        volume(&["info", "v"])["segments"][0]["server"].as_str().expect("it has one").to_owned();
    kill9(&dir, &[owner.as_str()]);
    nbd.ask(WRITE, 2 * BLOCK as u64, BLOCK, &[8; BLOCK]);
    for (at, byte) in [(0, 6), (1, 7), (2, 8)] {
        let read = nbd.ask(READ, at * BLOCK as u64, BLOCK, &[]);
        assert!(read == [byte; BLOCK], "block {at} is as it was acknowledged");
    }
    wait("a DataFile with the new policy", SOON, || files().iter().any(|it| it == "rep3-strict"));
    assert!(files().iter().any(|it| it == "rep2"), "the old ones stay: {:?}", files());
    let kept = answered(|| volume(&["info", "v"]));
    assert_eq!(kept["policy"], "rep3-strict", "{kept}");

    let refused = |args: &[&str], code: i32, want: &str| {
        bad(&[&["volume"], args, &cluster].concat(), code, want);
    };
    refused(&["set", "v", "--policy", "rep9"], 2, "rep1 to rep5");
    refused(&["set", "v", "--policy", "rep5"], 1, "rep5 needs 5 disks");
    refused(&["set", "v"], 2, "--policy");
    refused(&["set", "none", "--policy", "rep2"], 1, "none");
}

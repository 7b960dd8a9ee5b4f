//! Clusters that are full.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use base::MIB;
use client::{BlockingClient, Config, Error};
use wire::control::Policy;

use crate::harness::{Scratch, content, good, kill9, metric, skip, status, text, wait};
use crate::load;
use crate::machine::Hiccups;
use crate::nbd::{BLOCK, Nbd, READ, TRIM, WRITE};
use crate::stores::{self, Mounted};

const SERVERS: [&str; 3] = ["cs1", "cs2", "cs3"];
/// A writer is refused with `Full` within this time, before its stall budget ends.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);

/// Requests that make room on a full cluster are answered within.
const DELETED_WITHIN: Duration = Duration::from_secs(10);
/// ENOSPC, as NBD has it.
const NO_SPACE: u32 = 28;

/// A cluster of three chunkservers whose stores `replace` has changed before they were used.
fn cluster_with<T>(dir: &Path, roles: &[&str], replace: impl Fn(&Path) -> T) -> Vec<T> {
    let core = ["cluster", "up", "--dir", text(dir), "--masters", "1", "--chunkservers", "3"];
    good(&[&core[..], roles].concat());
    good(&["cluster", "down", "--dir", text(dir)]);
    let stores = SERVERS.map(|id| dir.join(id).join("store"));
    let replaced = stores.iter().map(|store| replace(store)).collect();
    good(&["cluster", "up", "--dir", text(dir)]);
    replaced
}

/// Writes files of 4 MiB until there is no room; returns the number of whole ones, and the error.
fn fill(client: &BlockingClient) -> (u64, Error) {
    for number in 0.. {
        let began = Instant::now();
        if let Err(error) = put(client, number) {
            let took = began.elapsed();
            assert!(took < REFUSED_WITHIN, "a full cluster refuses after {took:?}: {error}");
            return (number, error);
        }
    }
    unreachable!("it is full in the end")
}

fn put(client: &BlockingClient, number: u64) -> Result<(), Error> {
    let file = client.create(&path(number), Policy::strict(3), 0o644, false)?;
    let appender = file.append_handle()?;
    for part in content(4 * MIB as usize, number).chunks(MIB as usize) {
        appender.append(part)?;
    }
    appender.close().map(drop)
}

fn path(number: u64) -> String {
    format!("/file-{number}")
}

fn check(client: &BlockingClient, number: u64) {
    let file = client.open(&path(number)).expect("it is there");
    let got = file.read_at(0, 4 * MIB as usize).expect("a full cluster is read");
    assert!(got == content(4 * MIB as usize, number), "file {number} has other bytes");
}

/// Fills the cluster, and checks its state. `make_room` ends it.
fn full(dir: &Path, make_room: impl FnOnce(&BlockingClient)) {
    let client = load::connect_with(dir, Config::default());
    let (whole, error) = fill(&client);
    assert!(matches!(error, Error::Full { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains(&path(whole)) && said.contains("remove files or add"), "{said}");
    assert!(whole >= 2, "{whole} files only");
    (0..whole).for_each(|number| check(&client, number));
    assert_eq!(status(dir)["chunks"]["lost"], 0);
    client.unlink(&path(whole)).expect("deleting works on a full cluster");
    client.unlink(&path(0)).expect("deleting works on a full cluster");

    make_room(&client);
    let began = Instant::now();
    wait("writes go on", Duration::from_secs(180), || put(&client, 1000).is_ok());
    println!("full after {whole} files of 4 MiB; writes went on {:?} later", began.elapsed());
    check(&client, 1000);
    (2..whole).for_each(|number| check(&client, number));
}

#[test]
fn full_stores_take_writes_again_after_removals() {
    let mut scratch = Scratch::new("full");
    let dir = scratch.cluster("cluster");
    cluster_with(&dir, &[], |store| stores::format(store, 32 * MIB));
    full(&dir, |client| client.unlink(&path(1)).expect("it goes"));
}

#[test]
fn full_medium_is_not_a_failed_disk() {
    let mut scratch = Scratch::new("room");
    let dir = scratch.cluster("cluster");
    let mounts: Result<Vec<Mounted>, String> = cluster_with(&dir, &[], |store| {
        let mounted = Mounted::over(store, 128)?;
        good(&["store", "format", "--unit-kib", "16", text(store)]);
        Ok::<_, String>(mounted)
    })
    .into_iter()
    .collect();
    match mounts {
        Err(why) => skip(&format!("a medium without room: {why}")),
        Ok(mounts) => {
            full(&dir, |_| mounts.iter().for_each(|mounted| mounted.resize(256)));
            good(&["cluster", "down", "--dir", text(&dir)]);
        }
    }
}

/// A store is copied, as from a backup, so that its file has holes; then another file takes all the
/// room, so that the store cannot even write where it was. Its server starts, and serves reads.
#[test]
fn a_server_starts_on_a_disk_without_any_room() {
    const FILES: u64 = 3;
    let mut scratch = Scratch::new("holes");
    let dir = scratch.cluster("cluster");
    let (store, copy) = (dir.join("cs1/store"), dir.join("copy"));
    let mounted = cluster_with(&dir, &[], |path| {
        if path != store {
            return Ok(None);
        }
        let mounted = Mounted::over(path, 128)?;
        good(&["store", "format", "--unit-kib", "16", text(path)]);
        Ok(Some(mounted))
    });
    let _mounted: Vec<_> = match mounted.into_iter().collect::<Result<_, String>>() {
        Ok(mounted) => mounted,
        Err(why) => return skip(&format!("a medium without room: {why}")),
    };
    let client = load::connect_with(&dir, Config::default());
    (0..FILES).for_each(|number| put(&client, number).expect("there is room"));
    drop(client);
    let file = stores::file_of(&store);
    let taken = || std::fs::metadata(&file).expect("a store").blocks() * 512;
    let make_holes = || {
        let (_, before) = (good(&["cluster", "down", "--dir", text(&dir)]), taken());
        run("cp", &["--sparse=always", text(&file), text(&copy)]);
        std::fs::remove_file(&file).expect("it goes");
        run("cp", &["--sparse=always", text(&copy), text(&file)]);
        assert!(taken() < before - MIB, "it has holes");
        before
    };
    let before = make_holes();
    good(&["cluster", "up", "--dir", text(&dir)]);
    assert!(taken() >= before, "{} bytes of {before} are taken: it has holes", taken());

    make_holes();
    let ballast = store.join("ballast");
    let mut other = std::fs::File::create(&ballast).expect("a file");
    while other.write_all(&[7; 4096]).is_ok() {}
    good(&["cluster", "up", "--dir", text(&dir)]);
    let disk = || status(&dir)["chunkservers"][0]["disks"][0].clone();
    wait("the disk is reported", Duration::from_secs(20), || disk()["state"] == "failed");
    let said = disk()["reason"].to_string();
    assert!(said.contains("no space left") && said.contains("make room"), "{said}");
    let client = load::connect_with(&dir, Config::default());
    (0..FILES).for_each(|number| check(&client, number));

    drop(other);
    std::fs::remove_file(&ballast).expect("it goes");
    wait("the disk is healthy", Duration::from_secs(20), || disk()["state"] == "up");
    put(&client, FILES).expect("all disks take writes");
    (0..=FILES).for_each(|number| check(&client, number));
    good(&["cluster", "down", "--dir", text(&dir)]);
}

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status().expect("it runs");
    assert!(status.success(), "{program} {args:?}: {status}");
}

/// Runs, on a full cluster, a request that makes room or needs none.
fn answered<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let (hiccups, began) = (Hiccups::watch(), Instant::now());
    let result = run();
    let took = hiccups.without(began, began.elapsed());
    assert!(took < DELETED_WITHIN, "{what} on a full cluster takes {took:?}");
    println!("{what} on a full cluster: {took:?}");
    result
}

/// Bytes of the block that begins at `offset`.
fn block(offset: u64) -> Vec<u8> {
    content(BLOCK, offset)
}

#[test]
fn volumes_are_trimmed_and_removed_on_a_full_cluster() {
    const DATA: u64 = 24 * MIB;
    let mut scratch = Scratch::new("full-volumes");
    let dir = scratch.cluster("cluster");
    let mounts = cluster_with(
        &dir,
        &["--block-managers", "0", "--block-servers", "0", "--frontends", "0"],
        |store| {
            let mounted = Mounted::over(store, 256)?;
            good(&["store", "format", "--unit-kib", "16", text(store)]);
            Ok::<_, String>(mounted)
        },
    );
    let _mounts: Vec<Mounted> = match mounts.into_iter().collect::<Result<_, _>>() {
        Ok(mounts) => mounts,
        Err(why) => return skip(&format!("a medium without room: {why}")),
    };
    for role in ["block-manager", "block-server", "block-server", "frontend"] {
        good(&["cluster", "add", role, "--dir", text(&dir)]);
    }
    let volume = |args: &[&str]| good(&[&["volume"], args, &["--cluster", text(&dir)]].concat());
    let open = |name: &str| {
        let made = volume(&["create", name, "--size", "1GiB", "--json"]);
        let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
        Nbd::open(made["nbd"].as_str().expect("an address"))
    };
    let (mut kept, mut trimmed) = (open("kept"), open("trimmed"));
    drop(open("removed"));
    for offset in (0..DATA).step_by(BLOCK * 64) {
        let data: Vec<u8> = (0..64).flat_map(|n| block(offset + n * BLOCK as u64)).collect();
        kept.ask(WRITE, offset, data.len(), &data);
        trimmed.ask(WRITE, offset, data.len(), &data);
    }
    volume(&["snapshot", "create", "kept", "s1"]);

    let client = load::connect_with(&dir, Config::default());
    fill(&client);
    // Room in open chunks is used up, too.
    let chunk = content(64 * BLOCK, 7);
    let mut offset = DATA;
    let refused = loop {
        let answer = trimmed.try_ask(WRITE, 0, (offset, chunk.len() as u32), &chunk);
        match answer {
            Ok(_) => offset += chunk.len() as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, NO_SPACE, "a write that has no room");
    // Tries do not use up what deletions need.
    let used = || SERVERS.iter().map(|id| metric(&dir, id, "craton_disk_used_bytes")).sum::<f64>();
    let (began, before, mut tries) = (Instant::now(), used(), 0);
    while began.elapsed() < Duration::from_secs(16) {
        // One in between may still find room.
        match trimmed.try_ask(WRITE, 0, (offset, chunk.len() as u32), &chunk) {
            Ok(_) => offset += chunk.len() as u64,
            Err(error) => assert_eq!(error, NO_SPACE, "try {tries}"),
        }
        tries += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{tries} tries of a full cluster take {} bytes", used() - before);
    // A full cluster does not keep segments from moving.
    kill9(&dir, &["bs1"]);
    assert_eq!(status(&dir)["chunks"]["lost"], 0);

    let is_whole = |nbd: &mut Nbd, offset: u64| {
        assert!(nbd.ask(READ, offset, BLOCK, &[]) == block(offset), "other bytes at {offset}");
    };
    for offset in (0..DATA).step_by(BLOCK * 256) {
        answered("a read", || is_whole(&mut kept, offset));
        answered("a read", || is_whole(&mut trimmed, offset));
    }
    let half = DATA / 2;
    for offset in (0..half).step_by(MIB as usize) {
        answered("a trim", || trimmed.ask(TRIM, offset, MIB as usize, &[]));
    }
    answered("volume ls", || volume(&["ls"]));
    answered("snapshot rm", || volume(&["snapshot", "rm", "kept", "s1"]));
    answered("volume rm", || volume(&["rm", "removed"]));
    is_whole(&mut trimmed, half);
    assert!(trimmed.ask(READ, 0, BLOCK, &[]).iter().all(|byte| *byte == 0), "a trimmed block");
    drop(trimmed);
    answered("volume rm --now", || volume(&["rm", "--now", "trimmed"]));

    let again = block(1);
    wait("writes go on", Duration::from_secs(120), || {
        kept.try_ask(WRITE, 0, (DATA, BLOCK as u32), &again).is_ok()
    });
    for offset in (0..DATA).step_by(BLOCK * 64) {
        is_whole(&mut kept, offset);
    }
    assert_eq!(kept.ask(READ, DATA, BLOCK, &[]), again);
    drop(kept);
    good(&["cluster", "down", "--dir", text(&dir)]);
}

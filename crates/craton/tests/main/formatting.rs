//! Commands that format a store; nothing else does: a seemingly new disk may be the mount point of
//! an unmounted one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::embedded::Up;
use crate::harness::{
    Scratch, bad, command, craton, good, json, kill9, server, status, text, wait,
};
use crate::stores::file_of;

const SOON: Duration = Duration::from_secs(20);
/// In a directory whose formatting was broken off.
const UNFINISHED: &str = ".craton.formatting";

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("it lists");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

fn directory(scratch: &Scratch, name: &str) -> PathBuf {
    let path = scratch.path(name);
    fs::create_dir(&path).expect("a directory");
    path
}

/// A process that ends with the test.
struct Role(Child);

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill(); // It may have ended.
        let _ = self.0.wait();
    }
}

/// A chunkserver's configuration with these stores, of a cluster whose masters do not answer.
fn configuration(scratch: &Scratch, stores: &[&Path]) -> PathBuf {
    let free = |_| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").to_string()
    };
    let [listen, master] = [0, 1].map(free);
    let mut config = format!("id = \"cs1\"\nlisten = \"{listen}\"\nmasters = [\"{master}\"]\n");
    for store in stores {
        config += &format!("[[stores]]\npath = {:?}\n", text(store));
    }
    let path = scratch.path("chunkserver.toml");
    fs::write(&path, config).expect("a configuration");
    path
}

#[test]
fn a_role_from_its_file_formats_nothing() {
    let mut scratch = Scratch::new("role-formats");
    scratch.expect_errors("a disk is left out");
    let (empty, broken) = (directory(&scratch, "empty"), directory(&scratch, "broken"));
    let foreign = directory(&scratch, "foreign");
    fs::write(foreign.join("photo"), "x").expect("a file");
    for path in [broken.join(UNFINISHED), file_of(&broken)] {
        fs::write(path, "").expect("a file");
    }
    let cases = [
        (&empty, "is empty: mount the disk"),
        (&broken, "was broken off: finish it by 'craton store format"),
        (&foreign, "has no store ('photo' lies there)"),
    ];
    for (store, want) in cases {
        let before = names(store);
        let path = configuration(&scratch, &[store]);
        bad(&["chunkserver", "--config", text(&path)], 4, want);
        assert_eq!(names(store), before, "nothing is written");
        assert!(file_of(store).metadata().map_or(0, |facts| facts.len()) == 0);
    }

    // Beside a disk that is there, the others wait for theirs.
    let good_one = directory(&scratch, "good");
    good(&["store", "format", "--unit-kib", "16", text(&good_one)]);
    // One store is in use, as while it is checked.
    let held = directory(&scratch, "held");
    good(&["store", "format", "--unit-kib", "16", text(&held)]);
    let user = fs::File::open(file_of(&held)).expect("a store");
    user.lock().expect("its lock");
    let path = configuration(&scratch, &[&good_one, &empty, &broken, &held]);
    let output = scratch.path("cs1.log");
    let file = fs::File::create(&output).expect("a file");
    let errors = file.try_clone().expect("a file");
    let child = command(&["chunkserver", "--config", text(&path)])
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .spawn();
    let _role = Role(child.expect("it starts"));
    let said = || fs::read_to_string(&output).expect("text");
    wait("it serves", SOON, || said().contains("serves on"));
    assert_eq!(said().matches("warning: cs1: a disk is left out").count(), 3, "{}", said());
    // A store that an operator has formatted is served, and one whose user has ended.
    drop(user);
    for store in [&empty, &broken, &held] {
        if store != &held {
            good(&["store", "format", "--unit-kib", "16", text(store)]);
        }
        let served = format!("\"path\":\"{}\"", store.display());
        wait("it is served", SOON, || {
            let said = said();
            said.lines().any(|line| line.contains("is served") && line.contains(&served))
        });
    }
    bad(&["store", "format", "--force", text(&empty)], 4, "in use");
    assert_eq!(names(&empty), ["store.craton"]);
}

#[test]
fn directories_are_formatted_by_command() {
    let scratch = Scratch::new("store-format");
    let store = directory(&scratch, "store");
    bad(&["store", "format", text(&scratch.path("none"))], 4, "none");
    let said = good(&["store", "format", text(&store)]);
    assert!(said.contains("dsk_") && said.contains("[[stores]]"), "{said}");
    let report = json(&["store", "fsck", "--json", text(&store)]);
    assert_eq!((&report["unit_bytes"], &report["chunks"]), (&(1 << 20).into(), &0.into()));
    bad(&["store", "format", text(&store)], 4, "holds a store already");
    good(&["store", "format", "--unit-kib", "64", "--capacity-gib", "1", "--force", text(&store)]);
    let again = json(&["store", "fsck", "--json", text(&store)]);
    assert_eq!(again["unit_bytes"], 64 << 10);
    assert_ne!(again["disk"], report["disk"], "it is a new disk");
    // Files of other programs stay.
    let foreign = directory(&scratch, "foreign");
    fs::write(foreign.join("photo"), "x").expect("a file");
    bad(&["store", "format", text(&foreign)], 4, "'photo' lies there");
    good(&["store", "format", "--force", text(&foreign)]);
    assert_eq!(names(&foreign), ["photo", "store.craton"]);
    let file = foreign.join("photo");
    bad(&["store", "format", text(&file)], 4, "is no directory and no block device");
    bad(&["store", "format", "--unit-kib", "17", text(&store)], 2, "power of two");
}

#[test]
fn a_formatting_that_was_broken_off_is_finished() {
    let scratch = Scratch::new("broken-off");
    let store = directory(&scratch, "store");
    // Before the superblock: nothing of it counts.
    for path in [store.join(UNFINISHED), file_of(&store)] {
        fs::write(path, [0; 100_000]).expect("a file");
    }
    good(&["store", "format", text(&store)]);
    assert_eq!(names(&store), ["store.craton"]);
    let disk = json(&["store", "fsck", "--json", text(&store)])["disk"].clone();
    // Behind it: the store is whole, and stays.
    fs::write(store.join(UNFINISHED), "").expect("a file");
    let said = good(&["store", "format", text(&store)]);
    assert!(said.contains(disk.as_str().expect("text")), "{said}");
    assert_eq!(names(&store), ["store.craton"]);
    assert_eq!(json(&["store", "fsck", "--json", text(&store)])["disk"], disk);
}

/// The stores that `cluster up` has formatted for a chunkserver.
fn formatted(dir: &Path, id: &str) -> Value {
    let text = fs::read(dir.join(id).join("stores.json")).expect("the list");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn a_cluster_formats_its_stores_once() {
    let mut scratch = Scratch::new("formats-once");
    scratch.expect_errors("a disk is left out");
    let dir = scratch.cluster("cluster");
    // A first start that was broken off while it formatted.
    let store = dir.join("cs1/store");
    fs::create_dir_all(&store).expect("a directory");
    for path in [dir.join(".craton.unfinished"), store.join(UNFINISHED), file_of(&store)] {
        fs::write(path, "").expect("a file");
    }
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "1", "--chunkservers", "2"]);
    for id in ["cs1", "cs2"] {
        let store = dir.join(id).join("store");
        assert_eq!(names(&store), ["store.craton"]);
        let list = formatted(&dir, id)["stores"].clone();
        assert_eq!(list[0]["path"], text(&store), "{list}");
        assert_eq!(list[0]["disk"], server(&dir, id)["disks"][0]["id"], "{list}");
        assert_eq!(list.as_array().map(Vec::len), Some(1));
    }
    good(&["cluster", "add", "chunkserver", "--dir", text(&dir)]);
    assert_eq!(formatted(&dir, "cs3")["stores"][0]["path"], text(&dir.join("cs3/store")));

    // Its only disk is not mounted: the server reports it, and writes nothing there.
    kill9(&dir, &["cs2"]);
    let (place, aside) = (dir.join("cs2/store"), scratch.path("aside"));
    fs::rename(&place, &aside).expect("a store");
    fs::create_dir(&place).expect("a directory");
    for args in [&["cluster", "restart", "--dir", text(&dir), "chunkserver", "cs2"][..], &["x"]] {
        let again = match args {
            ["x"] => {
                good(&["cluster", "down", "--dir", text(&dir)]);
                craton(&["cluster", "up", "--dir", text(&dir)])
            }
            args => craton(args),
        };
        let warned = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(again.status.success() && warned.contains("cs2/store is empty"), "{warned}");
        let disk = || server(&dir, "cs2")["disks"][0].clone();
        wait("the disk is reported", SOON, || disk()["state"] == "failed");
        let reason = disk()["reason"].as_str().expect("text").to_owned();
        assert!(reason.contains("is empty: mount the disk"), "{reason}");
        assert!(names(&place).is_empty());
    }
    fs::remove_dir(&place).expect("it is empty");
    fs::rename(&aside, &place).expect("the store");
    wait("it serves again", SOON, || server(&dir, "cs2")["disks"][0]["state"] == "up");
    assert_eq!(formatted(&dir, "cs2")["stores"].as_array().map(Vec::len), Some(1));
}

#[test]
fn one_process_formats_its_stores_once() {
    let mut scratch = Scratch::new("up-formats");
    scratch.expect_errors("a disk is left out");
    scratch.expect_errors("no store can be opened");
    let dir = scratch.path("data");
    let stores = ["a", "b", "c"].map(|name| directory(&scratch, name));
    let flags: Vec<&str> = stores.iter().flat_map(|path| ["--store", text(path)]).collect();
    let start = || Up::start(&["--dir", text(&dir)]);
    // A first start that was broken off while it formatted.
    for path in [stores[0].join(UNFINISHED), file_of(&stores[0])] {
        fs::write(path, "").expect("a file");
    }
    let (up, _) = Up::start(&[&["--dir", text(&dir)][..], &flags].concat());
    assert_eq!(formatted(&dir, "cs1")["stores"][0]["path"], text(&stores[0]));
    up.interrupt();
    let aside = scratch.path("aside");
    fs::rename(&stores[1], &aside).expect("a store");
    fs::create_dir(&stores[1]).expect("a directory");
    let (up, said) = start();
    assert!(said.contains("with 2 stores;"), "{said}");
    let disk = || {
        let status = status(&dir);
        let servers = status["chunkservers"].as_array().expect("servers").clone();
        servers.iter().find(|one| one["id"] == "cs2").expect("it is known")["disks"][0].clone()
    };
    wait("the disk is reported", SOON, || disk()["state"] == "failed");
    assert!(names(&stores[1]).is_empty(), "nothing is written");
    fs::remove_dir(&stores[1]).expect("it is empty");
    fs::rename(&aside, &stores[1]).expect("the store");
    wait("it serves again", SOON, || disk()["state"] == "up");
    up.interrupt();
    // Without any disk there is nothing to start for.
    for store in &stores {
        fs::remove_file(file_of(store)).expect("a store");
    }
    bad(&["up", "--dir", text(&dir)], 4, "no store can be opened");
    assert!(stores.iter().all(|store| names(store).is_empty()));
}

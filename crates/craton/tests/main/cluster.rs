//! `craton cluster` and clients of the cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::harness::{
    self, Scratch, bad, command_after, configure, content, craton, good, json, kill9, leader,
    make_tree, metric, metrics, need, picture, process, server, status, text, wait,
};

fn up(dir: &Path, masters: &str, chunkservers: &str) -> String {
    let flags = ["--masters", masters, "--chunkservers", chunkservers];
    good(&[&["cluster", "up", "--dir", text(dir)][..], &flags].concat())
}

fn put_and_compare(cluster: &str, src: &Path, back: &Path) {
    good(&["fs", "put", "-r", text(src), "/tree", "--cluster", cluster]);
    good(&["fs", "get", "-r", "/tree", text(back), "--cluster", cluster]);
    assert_eq!(picture(src), picture(back));
}

#[test]
fn a_cluster_keeps_a_tree_over_down_and_up() {
    let mut scratch = Scratch::new("tree");
    let dir = scratch.cluster("cluster");
    let (src, back) = (scratch.path("src"), scratch.path("back"));
    make_tree(&src);
    up(&dir, "3", "3");
    let cluster = text(&dir).to_owned();
    put_and_compare(&cluster, &src, &back);

    let book: serde_json::Value = serde_json::from_slice(
        &std::fs::read(dir.join("cluster.json")).expect("the list of processes"),
    )
    .expect("JSON");
    assert_eq!(book["processes"].as_array().map(Vec::len), Some(6));
    assert_eq!(book["endpoints"]["masters"].as_array().map(Vec::len), Some(3));

    // The same again does nothing, and into an existing directory goes below it.
    good(&["fs", "put", "-r", text(&src), "/", "--cluster", &cluster]);
    let names = good(&["fs", "ls", "/", "--cluster", &cluster]);
    assert_eq!(names, "src\ntree\n");

    good(&["cluster", "down", "--dir", &cluster]);
    let stopped = json(&["cluster", "status", "--json", "--dir", &cluster]);
    let states = stopped["processes"].as_array().expect("processes");
    assert!(states.iter().all(|one| one["state"] == "stopped" && one["pid"].as_u64() > Some(0)));
    bad(&["cluster", "up", "--dir", &cluster, "--chunkservers", "4"], 2, "cluster add");

    good(&["cluster", "up", "--dir", &cluster]);
    let again = scratch.path("again");
    good(&["fs", "get", "-r", "/tree", text(&again), "--cluster", &cluster]);
    assert_eq!(picture(&src), picture(&again));
    let status = json(&["status", "--json", "--cluster", &cluster]);
    assert_eq!(status["chunks"]["lost"], 0);
    assert_eq!(status["chunkservers"][0]["id"], "cs1");
}

#[test]
fn every_command_of_fs_works_by_address() {
    let mut scratch = Scratch::new("fs");
    let dir = scratch.cluster("cluster");
    up(&dir, "1", "3");
    let book = json(&["cluster", "status", "--json", "--dir", text(&dir)]);
    let addr = book["endpoints"]["masters"][0].as_str().expect("an address").to_owned();
    let key = dir.join("cluster.key");
    let by_address = ["fs", "--cluster", &addr, "--key-file", text(&key)];
    let fs = |args: &[&str]| good(&[&by_address[..], args].concat());
    let fails = |args: &[&str], want: &str| bad(&[&by_address[..], args].concat(), 1, want);
    let local = scratch.path("local");
    std::fs::write(&local, "hello ").expect("a file");

    fs(&["mkdir", "/a"]);
    fails(&["mkdir", "/a"], "exists");
    fails(&["mkdir", "/x/y"], "/x");
    fs(&["mkdir", "-p", "/a/b/c"]);
    fs(&["put", text(&local), "/a"]);
    assert_eq!(fs(&["cat", "/a/local"]), "hello ");
    std::fs::write(&local, "world").expect("a file");
    fs(&["append", text(&local), "/a/local"]);
    assert_eq!(fs(&["cat", "/a/local"]), "hello world");
    assert_eq!(fs(&["cat", "--offset", "4", "--length", "3", "/a/local"]), "o w");
    fs(&["append", text(&local), "/a/fresh", "--redundancy", "rep2"]);
    let stat = json(&[&by_address[..], &["stat", "--json", "/a/fresh"]].concat());
    assert_eq!((&stat["len"], &stat["copies"]), (&5.into(), &2.into()));
    assert_eq!(stat["policy"], "rep2");
    fs(&["append", text(&local), "/a/strict", "--redundancy", "rep3-strict"]);
    let policy = |path: &str| json(&[&by_address[..], &["stat", "--json", path]].concat());
    assert_eq!(policy("/a/strict")["policy"], "rep3-strict");
    assert_eq!(policy("/a/local")["policy"], "rep3", "the default, with three servers");
    assert_eq!(stat["chunks"][0]["replicas"].as_array().map(Vec::len), Some(2));
    fs(&["ln", "/a/local", "/a/second"]);
    fs(&["ln", "-s", "local", "/a/soft"]);
    assert_eq!(fs(&["cat", "/a/soft"]), "hello world");
    let rows = json(&[&by_address[..], &["ls", "--json", "/a"]].concat());
    let find = |name: &str| {
        let rows = rows.as_array().expect("an array");
        rows.iter().find(|row| row["name"] == name).cloned().unwrap_or_default()
    };
    assert_eq!((&find("local")["links"], &find("local")["len"]), (&2.into(), &11.into()));
    assert_eq!(
        (&find("soft")["type"], &find("soft")["target"]),
        (&"symlink".into(), &"local".into())
    );
    assert!(fs(&["ls", "-l", "/a"]).contains("soft -> local"));
    fs(&["mv", "/a/local", "/a/b"]);
    assert_eq!(fs(&["cat", "/a/b/local"]), "hello world");
    fails(&["mv", "-n", "/a/second", "/a/fresh"], "exists");
    fails(&["rm", "/a/b"], "rm -r");
    fails(&["rm", "/nothing"], "no such file");
    fs(&["rm", "-f", "/nothing"]);
    fs(&["rm", "/a/b/local"]);
    assert_eq!(fs(&["cat", "/a/second"]), "hello world");
    assert!(
        json(&[&by_address[..], &["df", "--json"]].concat())["capacity_bytes"].as_u64() > Some(0)
    );
    fs(&["rm", "-r", "/a"]);
    assert_eq!(fs(&["ls"]), "");
}

#[test]
fn a_killed_chunkserver_loses_nothing_and_restarts() {
    let mut scratch = Scratch::new("kill");
    let dir = scratch.cluster("cluster");
    let (src, back) = (scratch.path("src"), scratch.path("back"));
    make_tree(&src);
    up(&dir, "1", "4");
    let cluster = text(&dir).to_owned();
    put_and_compare(&cluster, &src, &back);
    let book = json(&["cluster", "status", "--json", "--dir", &cluster]);
    let processes = book["processes"].as_array().expect("processes");
    let victim = processes.iter().find(|one| one["id"] == "cs2").expect("cs2");
    let pid = victim["pid"].to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill").success());

    let again = scratch.path("again");
    good(&["fs", "get", "-r", "/tree", text(&again), "--cluster", &cluster]);
    assert_eq!(picture(&src), picture(&again));
    good(&["fs", "put", "-r", text(&src), "/more", "--cluster", &cluster]);
    let state = |id: &str| {
        let status = json(&["status", "--json", "--cluster", &cluster]);
        let servers = status["chunkservers"].as_array().expect("servers").clone();
        servers.into_iter().find(|one| one["id"] == id).expect("it is known")["state"].clone()
    };
    wait("the dead server is noticed", Duration::from_secs(10), || state("cs2") == "down");

    good(&["cluster", "restart", "--dir", &cluster, "chunkserver", "cs2"]);
    wait("it is back", Duration::from_secs(10), || state("cs2") == "up");
    let added = json(&["cluster", "add", "chunkserver", "--json", "--dir", &cluster]);
    assert_eq!(added["id"], "cs5");
    assert_eq!(state("cs5"), "up");
    bad(&["cluster", "restart", "--dir", &cluster, "chunkserver", "cs9"], 2, "cs9");
}

/// 40 files of 8 MiB on two servers; a third takes from both what makes them even.
#[test]
fn a_server_that_joins_gets_data() {
    let mut scratch = Scratch::new("joins");
    let dir = scratch.cluster("cluster");
    let (src, back) = (scratch.path("src"), scratch.path("back"));
    fs::create_dir(&src).expect("a directory");
    for number in 0..40u8 {
        let name = src.join(format!("file{number}"));
        fs::write(name, vec![number; 8 << 20]).expect("a file");
    }
    up(&dir, "1", "2");
    let cluster = text(&dir).to_owned();
    let put = ["fs", "put", "-r", text(&src), "/tree", "--redundancy", "rep1"];
    good(&[&put[..], &["--cluster", &cluster]].concat());
    good(&["cluster", "add", "chunkserver", "--dir", &cluster]);
    let used = |id: &str| metric(&dir, id, "craton_disk_used_bytes") as u64 >> 20;
    let before = used("cs3");
    // 107 MiB are its share; disks are even when all are less than 64 MiB off theirs.
    wait("the new server has data", Duration::from_secs(60), || used("cs3") >= before + 40);
    assert!(metric(&dir, "m1", "craton_balance_moved_total") >= 5.0);
    assert_eq!(metric(&dir, "m1", "craton_repair_done_total"), 0.0);
    good(&["fs", "get", "-r", "/tree", text(&back), "--cluster", &cluster]);
    assert_eq!(picture(&src), picture(&back));
}

#[test]
fn metrics_are_served() {
    let mut scratch = Scratch::new("metrics");
    let dir = scratch.cluster("cluster");
    up(&dir, "1", "1");
    assert_eq!(metric(&dir, "m1", "craton_master_ready"), 1.0);
    assert!(metric(&dir, "cs1", "craton_disk_capacity_bytes") > 0.0);
}

#[test]
fn a_server_runs_on_several_executors() {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return; // One core: one executor.
    }
    let mut scratch = Scratch::new("executors");
    let dir = scratch.cluster("c");
    good(
        &[
            &["cluster", "up", "--dir", text(&dir)][..],
            &["--masters", "1", "--chunkservers", "1", "--disks", "2"],
        ]
        .concat(),
    );
    good(&["cluster", "down", "--dir", text(&dir)]);
    bad(&["status", "--cluster", text(&dir)], 3, "'craton cluster status --dir");
    let file = dir.join("cs1/chunkserver.toml");
    let config = fs::read_to_string(&file).expect("a file");
    let config = config.lines().map(|line| match line.starts_with("cores ") {
        true => "cores = 2",
        false => line,
    });
    fs::write(&file, config.collect::<Vec<_>>().join("\n")).expect("written");
    good(&["cluster", "up", "--dir", text(&dir)]);
    let src = scratch.path("src");
    fs::create_dir(&src).expect("a directory");
    for index in 0..40 {
        fs::write(src.join(index.to_string()), content(20_000, index)).expect("written");
    }
    put_and_compare(text(&dir), &src, &scratch.path("back"));
    let page = metrics(&dir, "cs1");
    for core in ["0", "1"] {
        assert!(
            page.contains(&format!("craton_executor_sleeps_total{{core=\"{core}\"}}")),
            "{page}"
        );
    }
    // Both disks were written to, each on its own executor and by its own address.
    wait("chunks on both disks", Duration::from_secs(10), || {
        let status = harness::status(&dir);
        let disks = status["chunkservers"][0]["disks"].as_array().expect("disks");
        disks.iter().all(|disk| disk["chunks"] != 0)
    });
    assert_eq!(metric(&dir, "cs1", "craton_forwarded_total"), 0.0);
    good(&["cluster", "restart", "--dir", text(&dir), "chunkserver", "cs1"]);
    good(&["fs", "get", "-r", "--cluster", text(&dir), "/tree", text(&scratch.path("again"))]);
    assert_eq!(picture(&src), picture(&scratch.path("again")));
}

#[test]
fn a_cluster_with_a_key_refuses_others() {
    let mut scratch = Scratch::new("key");
    let dir = scratch.cluster("cluster");
    good(&[
        "cluster",
        "up",
        "--dir",
        text(&dir),
        "--masters",
        "1",
        "--chunkservers",
        "1",
        "--with-key",
    ]);
    let book = json(&["cluster", "status", "--json", "--dir", text(&dir)]);
    let addr = book["endpoints"]["masters"][0].as_str().expect("an address").to_owned();
    good(&["fs", "ls", "--cluster", text(&dir)]);
    good(&["fs", "ls", "--cluster", &addr, "--key-file", text(&dir.join("cluster.key"))]);
    let output = craton(&["fs", "ls", "--cluster", &addr]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("key"), "{error}");
}

#[test]
fn masters_are_added_and_removed() {
    let mut scratch = Scratch::new("masters");
    let dir = scratch.cluster("cluster");
    up(&dir, "3", "1");
    let cluster = text(&dir).to_owned();
    let members = || {
        let members = json(&["masters", "members", "--json", "--cluster", &cluster]);
        let ids = members["masters"].as_array().expect("an array").clone();
        ids.iter().map(|one| one["id"].as_str().expect("an ID").to_owned()).collect::<Vec<_>>()
    };
    let added = json(&["cluster", "add", "master", "--json", "--dir", &cluster]);
    assert_eq!(added["id"], "m4");
    assert_eq!(members(), ["m1", "m2", "m3", "m4"]);
    // All start again, with any leader.
    good(&["cluster", "down", "--dir", &cluster]);
    good(&["cluster", "up", "--dir", &cluster]);
    good(&["fs", "mkdir", "/again", "--cluster", &cluster]);
    let said = good(&["masters", "remove", "4", "--cluster", &cluster]);
    assert!(said.contains("its process is stopped"), "{said}");
    assert_eq!(members(), ["m1", "m2", "m3"]);
    bad(&["masters", "remove", "4", "--cluster", &cluster], 1, "it has 1, 2, 3");
    // Numbers are not used again.
    let added = json(&["cluster", "add", "master", "--json", "--dir", &cluster]);
    assert_eq!(added["id"], "m5");
    good(&["masters", "remove", "5", "--cluster", &cluster]);

    // A vote or an address for a master that is not there would take a vote from the others.
    let add = |number: &str, name: &str, addr: &str, code: i32, want: &str| {
        bad(&["masters", "add", number, name, addr, "--cluster", &cluster], code, want);
    };
    let addr = |id: &str| process(&dir, id)["addr"].as_str().expect("text").to_owned();
    add("1", "m1", "127.0.0.1:1", 3, "no master of this cluster answers at 127.0.0.1:1");
    add("4", "m4", &addr("m2"), 1, "numbers are not used again");
    add("7", "m7", &addr("m2"), 1, "has number 2 in its configuration");
    add("2", "m1", &addr("m2"), 1, "another master has this number, name or address");
    assert_eq!(members(), ["m1", "m2", "m3"]);
    good(&["masters", "add", "2", "m2", &addr("m2"), "--cluster", &cluster]);

    // The leader goes: another takes over.
    let first = leader(&dir, "ns0");
    kill9(&dir, &[&first]);
    good(&["fs", "mkdir", "/after", "--cluster", &cluster]);

    // One of three does nothing, but says so.
    let second = leader(&dir, "ns0");
    kill9(&dir, &[&second]);
    let picture = status(&dir);
    let up = |one: &&serde_json::Value| one["state"] == "up";
    let masters = picture["masters"].as_array().expect("masters");
    assert_eq!(masters.len(), 3);
    assert_eq!(masters.iter().filter(up).count(), 1, "{picture}");
    assert_eq!(picture["block_service"], "unknown");
    good(&["cluster", "restart", "--dir", &cluster, "master", &first]);
    good(&["fs", "mkdir", "/again/after", "--cluster", &cluster]);
    assert_eq!(status(&dir)["block_service"], "none");
}

/// A leader that a chunkserver's configuration does not name, as one that was added later.
#[test]
fn chunkserver_finds_an_unconfigured_leader() {
    let mut scratch = Scratch::new("leader");
    let dir = scratch.cluster("cluster");
    up(&dir, "3", "1");
    let leads = leader(&dir, "cluster");
    let other = ["m1", "m2", "m3"].into_iter().find(|id| *id != leads).expect("another");
    kill9(&dir, &["cs1"]);
    wait("it is missed", Duration::from_secs(10), || server(&dir, "cs1")["state"] == "down");
    let path = dir.join("cs1/chunkserver.toml");
    configure(&path, "masters", &format!("[{}]", process(&dir, other)["addr"]));
    good(&["cluster", "restart", "--dir", text(&dir), "chunkserver", "cs1"]);
    wait("it joins", Duration::from_secs(10), || server(&dir, "cs1")["state"] == "up");
}

#[test]
fn everything_killed_at_once_comes_back() {
    all_come_back("crash", "is missing", |store| {
        fs::remove_dir_all(store).expect("a store");
    });
}

/// The same with an existing mount point: the directory below an unmounted disk.
#[test]
fn everything_killed_at_once_comes_back_without_an_unmounted_disk() {
    let empty = |store: &Path| {
        fs::remove_dir_all(store).expect("a store");
        fs::create_dir(store).expect("the directory below it");
    };
    let (dir, _scratch) = all_come_back("crash-empty", "is empty", empty);
    let store = dir.join("cs2/store1");
    let server = server(&dir, "cs2");
    let disks = server["disks"].as_array().expect("disks");
    let failed = disks.iter().find(|disk| disk["path"] == text(&store)).expect("it is shown");
    assert_eq!(failed["state"], "failed", "{failed}");
    assert!(
        failed["reason"].as_str().is_some_and(|why| why.contains("mount the disk")),
        "{failed}"
    );
    assert_eq!(fs::read_dir(&store).expect("it lists").count(), 0, "nothing is written");
}

/// Kills all of a cluster, takes a disk of cs2 away, and starts what is left.
fn all_come_back(name: &str, warning: &str, take: impl Fn(&Path)) -> (PathBuf, Scratch) {
    let mut scratch = Scratch::new(name);
    scratch.expect_errors("a disk is left out");
    let dir = scratch.cluster("cluster");
    let (src, back) = (scratch.path("src"), scratch.path("back"));
    make_tree(&src);
    let flags = ["--masters", "1", "--chunkservers", "4", "--disks", "2"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &flags].concat());
    let cluster = text(&dir).to_owned();
    put_and_compare(&cluster, &src, &back);
    let book = json(&["cluster", "status", "--json", "--dir", &cluster]);
    for process in book["processes"].as_array().expect("processes") {
        let pid = process["pid"].to_string();
        assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill").success());
    }
    // One disk does not come back.
    take(&dir.join("cs2/store1"));
    let output = craton(&["cluster", "up", "--dir", &cluster]);
    let warned = String::from_utf8_lossy(&output.stderr).into_owned();
    let wanted = format!("cs2/store1 {warning}");
    assert!(output.status.success() && warned.contains(&wanted), "{warned}");
    let again = scratch.path("again");
    good(&["fs", "get", "-r", "/tree", text(&again), "--cluster", &cluster]);
    assert_eq!(picture(&src), picture(&again));
    wait("repair", Duration::from_secs(60), || {
        let status = json(&["status", "--json", "--cluster", &cluster]);
        status["chunks"]["under_replicated"] == 0 && status["repair"]["pending"] == 0
    });
    (dir, scratch)
}

#[test]
fn interrupted_put_resumes() {
    use std::os::unix::net::UnixListener;
    let mut scratch = Scratch::new("interrupted");
    let dir = scratch.cluster("cluster");
    let (src, back) = (scratch.path("src"), scratch.path("back"));
    std::fs::create_dir(&src).expect("a directory");
    for index in 0..300u64 {
        let bytes = crate::harness::content(20_000, index);
        std::fs::write(src.join(format!("file-{index}")), bytes).expect("a file");
    }
    up(&dir, "1", "3");
    let args = ["fs", "put", "-r", text(&src), "/tree", "--parallel", "2", "--cluster", text(&dir)];
    let mut put = crate::harness::command(&args).spawn().expect("it starts");
    wait("the first files", Duration::from_secs(30), || {
        let list = craton(&["fs", "ls", "/tree", "--cluster", text(&dir)]);
        list.stdout.iter().filter(|&&byte| byte == b'\n').count() > 20
    });
    put.kill().expect("it can be killed");
    put.wait().expect("it ends");
    let mark = craton(&["fs", "stat", "/tree/.craton-put-unfinished", "--cluster", text(&dir)]);
    if mark.status.success() {
        good(&args);
    }
    let back_args = ["fs", "get", "-r", "/tree", text(&back), "--cluster", text(&dir)];
    let mut get = crate::harness::command(&back_args).spawn().expect("it starts");
    wait("the first files", Duration::from_secs(30), || {
        std::fs::read_dir(&back).is_ok_and(|names| names.count() > 20)
    });
    let _ = get.kill(); // It may have ended.
    let mut whole = get.wait().expect("it ends").success();
    // The mark goes last: without it nothing is left to do.
    whole |= back.join(".craton-get-unfinished").symlink_metadata().is_err();
    if !whole {
        // The part of a killed run is removed, another's part is not.
        let left = back.join(".file-1.4000000000-0123456789abcdef.craton-part");
        std::fs::write(left, "part").expect("written");
        good(&back_args);
    }
    assert_eq!(picture(&src), picture(&back));

    // A socket is left out with a warning.
    let special = scratch.path("special");
    std::fs::create_dir(&special).expect("a directory");
    let _socket = UnixListener::bind(special.join("socket")).expect("a socket");
    let put = craton(&["fs", "put", "-r", text(&special), "/special", "--cluster", text(&dir)]);
    assert!(put.status.success());
    assert!(String::from_utf8_lossy(&put.stderr).contains("is a socket: skipped"));
}

/// The list of processes cannot become longer, as on a full disk.
#[test]
fn process_that_cannot_be_noted_does_not_run() {
    need(&["prlimit"]);
    let mut scratch = Scratch::new("unnoted");
    let dir = scratch.cluster("cluster");
    let flags = ["--masters", "1", "--chunkservers", "1", "--block-servers", "1"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &flags].concat());
    let list = dir.join("cluster.json");
    let before = std::fs::read(&list).expect("the list");
    let limit = format!("trap '' XFSZ; prlimit --pid $$ --fsize={}", before.len());
    let args = ["cluster", "add", "block-server", "--dir", text(&dir)];
    let added = command_after(&limit, &args).output().expect("it runs");
    let error = String::from_utf8_lossy(&added.stderr).into_owned();
    assert_eq!(added.status.code(), Some(4), "{error}");
    assert!(error.contains("cluster.json"), "{error}");
    assert_eq!(std::fs::read(&list).expect("the list"), before);
    let own = dir.join("bs2");
    let is_own = |line: Vec<u8>| String::from_utf8_lossy(&line).contains(text(&own));
    let processes = std::fs::read_dir("/proc").expect("it lists").flatten();
    let runs: Vec<_> = processes
        .filter(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(is_own))
        .map(|entry| entry.file_name())
        .collect();
    for pid in &runs {
        let _ = Command::new("kill").arg("-9").arg(pid).status(); // The test fails.
    }
    assert!(runs.is_empty(), "a process runs that no command finds: {runs:?}");
    good(&args);
    assert!(crate::harness::book(&dir).to_string().contains("\"bs2\""));
}

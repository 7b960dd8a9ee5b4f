//! `craton up`.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use client::Config;

use crate::harness::{
    Scratch, bad, book, command, command_after, good, json, make_tree, metrics, need, picture,
    text, tool, wait,
};
use crate::load::{self, Load, Shape};
use crate::nbd::{BLOCK, Nbd, READ, WRITE};

/// A running `craton up`, which ends with the test.
pub struct Up(Child);

impl Up {
    pub fn start(args: &[&str]) -> (Up, String) {
        let (up, said, lines) = Up::start_warned(args, Stdio::inherit());
        // Kept open: the process says more when it stops.
        std::thread::spawn(move || lines.for_each(drop));
        (up, said)
    }

    /// The same with the lines behind its start message, and with its warnings elsewhere.
    fn start_warned(args: &[&str], warnings: Stdio) -> (Up, String, Lines<BufReader<ChildStdout>>) {
        let mut child = command(&[&["up"][..], args].concat())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(warnings)
            .spawn()
            .expect("the binary runs");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let up = Up(child);
        let mut said = String::new();
        for line in lines.by_ref() {
            let line = line.expect("text");
            let last = line.starts_with("export CRATON_CLUSTER=");
            said += &line;
            said.push('\n');
            if last {
                break;
            }
        }
        (up, said, lines)
    }

    pub fn interrupt(mut self) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
        let mut status = None;
        wait("a clean stop", Duration::from_secs(20), || {
            status = self.0.try_wait().expect("it can be waited for");
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    }
}

#[test]
fn role_whose_output_is_a_full_disk_serves() {
    let scratch = Scratch::new("full-output");
    let dir = scratch.path("up");
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there");
    let mut child = command(&["up", "--dir", text(&dir)]);
    child.stdin(Stdio::null()).stdout(full()).stderr(full());
    let mut up = Up(child.spawn().expect("the binary runs"));
    let file = scratch.path("file");
    std::fs::write(&file, b"content").expect("a file");
    wait("a served file", Duration::from_secs(30), || {
        let ended = up.0.try_wait().expect("it can be waited for");
        assert!(ended.is_none(), "it ends: {ended:?}");
        let put = ["fs", "put", text(&file), "/file", "--cluster", text(&dir)];
        command(&put).output().expect("the binary runs").status.success()
    });
    assert_eq!(good(&["fs", "cat", "/file", "--cluster", text(&dir)]), "content");
    up.interrupt();
}

/// All files of the process take no more bytes, as a disk does that has failed. A process in which the
/// signal for that is ignored gets errors.
#[test]
fn process_whose_master_has_failed_ends() {
    need(&["prlimit"]);
    let mut scratch = Scratch::new("up-failed");
    scratch.expect_errors("");
    let dir = scratch.path("up");
    let mut child = command_after("trap '' XFSZ", &["up", "--dir", text(&dir)]);
    child.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut up = Up(child.spawn().expect("it runs"));
    let mut lines = BufReader::new(up.0.stdout.take().expect("a pipe")).lines();
    assert!(lines.any(|line| line.expect("text").starts_with("export CRATON_CLUSTER=")));
    std::thread::spawn(move || lines.for_each(drop));
    tool("prlimit", &["--pid", &up.0.id().to_string(), "--fsize=1:unlimited"]);
    // The master has something to write.
    let mut make = command(&["fs", "mkdir", "/a", "--cluster", text(&dir)]);
    let mut make = make.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut ended = None;
    wait("the process ends", Duration::from_secs(60), || {
        ended = up.0.try_wait().expect("it can be waited for");
        ended.is_some()
    });
    let _ = make.kill();
    make.wait().expect("it ends");
    assert_eq!(ended.and_then(|status| status.code()), Some(5), "{ended:?}");
}

impl Up {
    /// Ends it as a power cut does.
    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it can be waited for");
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The addresses of a volume's export: over TCP, and the Unix socket.
fn exports(dir: &Path, name: &str) -> (String, String) {
    let endpoints = book(dir)["endpoints"].clone();
    let nbd = endpoints["nbd"].as_str().expect("an address").to_owned();
    let socket = endpoints["nbd_unix"].as_str().expect("an address");
    let socket = socket.strip_prefix("nbd+unix:///?socket=").expect("a URI").to_owned();
    (format!("{nbd}/{name}"), socket)
}

/// A stop and a kill lose nothing of a volume that was answered, through either socket.
#[test]
fn one_process_keeps_a_volume_over_a_stop_and_a_kill() {
    let scratch = Scratch::new("up-volume");
    let dir = scratch.path("data");
    let (up, said) = Up::start(&["--dir", text(&dir)]);
    assert!(said.contains("nbd://127.0.0.1:"), "{said}");
    let made =
        json(&["volume", "create", "v", "--size", "1GiB", "--json", "--cluster", text(&dir)]);
    let (url, socket) = exports(&dir, "v");
    assert_eq!(made["nbd"], url);
    // Blocks of all segments, written by turns through both sockets.
    let offset = |block: u64| block * (132 << 10);
    let write = |blocks: std::ops::Range<u64>, value: u8| {
        let (url, socket) = exports(&dir, "v");
        let mut clients = [Nbd::open(&url), Nbd::open_unix(&socket, "v")];
        for block in blocks {
            let client = &mut clients[block as usize % 2];
            client.ask(WRITE, offset(block), BLOCK, &[value ^ block as u8; BLOCK]);
        }
        clients
    };
    let check = |values: &[(std::ops::Range<u64>, u8)]| {
        let (url, socket) = exports(&dir, "v");
        let mut clients = [Nbd::open_unix(&socket, "v"), Nbd::open(&url)];
        for (blocks, value) in values {
            for block in blocks.clone() {
                let read = clients[block as usize % 2].ask(READ, offset(block), BLOCK, &[]);
                assert!(read == [value ^ block as u8; BLOCK], "block {block}");
            }
        }
    };
    drop(write(0..200, 0x10));
    check(&[(0..200, 0x10)]);
    up.interrupt();

    let (up, _) = Up::start(&["--dir", text(&dir)]);
    assert_eq!(exports(&dir, "v"), (url, socket), "it is found where it was");
    check(&[(0..200, 0x10)]);
    // Killed while clients have it open and write, right behind an answer.
    let open = write(50..250, 0x77);
    up.kill();
    drop(open);
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    check(&[(0..50, 0x10), (50..250, 0x77)]);
    drop(write(0..250, 0x33));
    up.kill();
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    check(&[(0..250, 0x33)]);
    good(&["volume", "check", "v", "--cluster", text(&dir)]);
    up.interrupt();
}

fn copies(cluster: &Path, path: &str) -> u64 {
    let stat = good(&["fs", "stat", "--json", path, "--cluster", text(cluster)]);
    let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
    stat["chunks"][0]["replicas"].as_array().map_or(0, Vec::len) as u64
}

#[test]
fn one_process_keeps_data_over_a_restart() {
    let scratch = Scratch::new("up");
    let dir = scratch.path("data");
    let src = scratch.path("src");
    make_tree(&src);
    let (up, said) = Up::start(&["--dir", text(&dir)]);
    assert!(said.contains("one copy"), "{said}");
    good(&["fs", "put", "-r", text(&src), "/tree", "--cluster", text(&dir)]);
    assert_eq!(copies(&dir, "/tree/of-100000"), 1);
    for id in ["m1", "cs1", "bm1", "bs1", "f1"] {
        let page = metrics(&dir, id);
        assert!(page.contains(&format!("id=\"{id}\"")), "{page}");
    }
    bad(&["up", "--dir", text(&dir)], 4, "runs on this directory already");
    bad(&["cluster", "down", "--dir", text(&dir)], 4, "craton up");
    // A start that fails leaves nothing behind.
    let other = scratch.path("other");
    let addr = crate::load::masters(&dir)[0].to_string();
    bad(&["up", "--dir", text(&other), "--listen", &addr], 4, &addr);
    let store = dir.join("cs1/store");
    bad(&["up", "--dir", text(&other), "--store", text(&store)], 4, "holds a store already");
    assert!(!other.exists());
    up.interrupt();
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    let back = scratch.path("back");
    good(&["fs", "get", "-r", "/tree", text(&back), "--cluster", text(&dir)]);
    assert_eq!(picture(&src), picture(&back));
    up.interrupt();
}

#[test]
fn an_interrupt_under_load_keeps_what_was_acknowledged() {
    let scratch = Scratch::new("interrupt");
    let dir = scratch.path("data");
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    let mut config = Config { control_budget: Duration::from_secs(1), ..Config::default() };
    config.writer.stall_budget = Duration::from_secs(1);
    let client = Arc::new(load::connect_with(&dir, config));
    let load = Load::start_with(client, Shape { writers: 3, depth: 8, copies: 1, makers: 1 });
    std::thread::sleep(Duration::from_millis(1500));
    up.interrupt();
    let writers = load.stop();
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    let client = load::connect(&dir);
    for writer in &writers {
        if writer.path.starts_with("/load/m") {
            writer.verify_made(&client);
        } else {
            client.open(&writer.path).expect("it is there").seal().expect("it is sealed");
            assert!(writer.verify(&client) > 0);
        }
    }
    up.interrupt();
}

/// Number of times that the threads of a process have gone to sleep so far.
fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let of = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line?.trim().parse::<u64>().ok()
    };
    tasks.filter_map(|task| of(task.ok()?)).sum()
}

/// An idle process wakes rarely: the cost of a wake depends on the machine, their number does not.
/// The CPU time is a figure of `scripts/idle.sh`.
#[test]
fn an_idle_process_sleeps() {
    const WATCHED: Duration = Duration::from_secs(10);
    // A quarter above what it takes: a slower machine, where fewer of them fall together, has 100.
    const PER_SECOND_MAX: u64 = 120;
    let scratch = Scratch::new("idle");
    let (up, _) = Up::start(&["--dir", text(&scratch.path("data"))]);
    std::thread::sleep(Duration::from_secs(4));
    let before = sleeps(up.0.id());
    std::thread::sleep(WATCHED);
    // Threads of the kernel for it come and go.
    let rate = sleeps(up.0.id()).saturating_sub(before) / WATCHED.as_secs();
    println!("idle: wakes {rate} times a second");
    assert!((1..PER_SECOND_MAX).contains(&rate), "an idle 'craton up' wakes {rate} times a second");
    up.interrupt();
}

#[test]
fn several_stores_give_several_copies() {
    let scratch = Scratch::new("stores");
    let dir = scratch.path("data");
    let stores = ["a", "b", "c"].map(|name| scratch.path(name));
    for store in &stores {
        std::fs::create_dir(store).expect("a directory");
    }
    let stores: Vec<&str> = stores.iter().flat_map(|path| ["--store", text(path)]).collect();
    let file = scratch.path("file");
    std::fs::write(&file, "three times").expect("a file");
    let (up, said) = Up::start(&[&["--dir", text(&dir)][..], &stores].concat());
    assert!(said.contains("3 copies"), "{said}");
    good(&["fs", "put", text(&file), "/file", "--cluster", text(&dir)]);
    assert_eq!(copies(&dir, "/file"), 3);
    up.interrupt();
    bad(&["up", "--dir", text(&dir), "--store", text(&scratch.path("a"))], 2, "name all of them");
    let missing = scratch.path("missing");
    bad(&["up", "--dir", text(&scratch.path("new")), "--store", text(&missing)], 4, "missing");
}

/// With one of two stores missing it starts, reports what waits, and serves the rest; volumes are
/// served as soon as the store is back.
#[test]
fn a_start_without_one_of_two_stores_serves_files_then_volumes() {
    let mut scratch = Scratch::new("up-missing");
    // The manager of volumes waits for the store, and gives an attempt up now and then.
    scratch.expect_errors("a disk is left out");
    scratch.expect_errors("block manager cannot lead");
    let dir = scratch.path("data");
    let stores = ["a", "b"].map(|name| scratch.path(name));
    for store in &stores {
        std::fs::create_dir(store).expect("a directory");
    }
    let named: Vec<&str> = stores.iter().flat_map(|path| ["--store", text(path)]).collect();
    let file = scratch.path("file");
    std::fs::write(&file, "twice").expect("a file");
    let (up, _) = Up::start(&[&["--dir", text(&dir)][..], &named].concat());
    good(&["fs", "put", text(&file), "/file", "--cluster", text(&dir)]);
    good(&["volume", "create", "v", "--size", "1GiB", "--cluster", text(&dir)]);
    let (url, _) = exports(&dir, "v");
    Nbd::open(&url).ask(WRITE, 0, BLOCK, &[0x5a; BLOCK]);
    up.interrupt();

    let away = scratch.path("away");
    std::fs::rename(&stores[1], &away).expect("it moves");
    let warnings = scratch.path("warnings");
    let to = File::create(&warnings).expect("a file");
    let (up, said, mut lines) = Up::start_warned(&["--dir", text(&dir)], to.into());
    assert!(said.contains("with 1 store; new files wait for the stores"), "{said}");
    let warned = std::fs::read_to_string(&warnings).expect("text");
    assert!(warned.contains(&format!("{} is missing", text(&stores[1]))), "{warned}");
    assert!(warned.contains("volumes and objects are not served yet"), "{warned}");
    let back = scratch.path("back");
    good(&["fs", "get", "/file", text(&back), "--cluster", text(&dir)]);
    assert_eq!(std::fs::read(&back).expect("a file"), b"twice");
    assert!(!stores[1].exists(), "nothing is made where the store was");

    std::fs::rename(&away, &stores[1]).expect("it moves");
    let line = lines.next().expect("a line").expect("text");
    assert_eq!(line, "volumes and objects are served");
    std::thread::spawn(move || lines.for_each(drop));
    let read = Nbd::open(&url).ask(READ, 0, BLOCK, &[]);
    assert!(read == [0x5a; BLOCK]);
    good(&["fs", "put", text(&file), "/other", "--cluster", text(&dir)]);
    assert_eq!(copies(&dir, "/other"), 2);
    up.interrupt();

    // Again without the store, and asked to end while volumes wait.
    std::fs::rename(&stores[1], &away).expect("it moves");
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    up.interrupt();
}

/// Commands that need what is missing name it: a new file after the client's timeout of 20 s, a
/// volume after the block client's 10 s.
#[test]
fn commands_without_one_of_two_stores_name_what_is_missing() {
    let mut scratch = Scratch::new("up-causes");
    scratch.expect_errors("a disk is left out");
    scratch.expect_errors("block manager cannot lead");
    let dir = scratch.path("data");
    let stores = ["a", "b"].map(|name| scratch.path(name));
    for store in &stores {
        std::fs::create_dir(store).expect("a directory");
    }
    let named: Vec<&str> = stores.iter().flat_map(|path| ["--store", text(path)]).collect();
    let (up, _) = Up::start(&[&["--dir", text(&dir)][..], &named].concat());
    good(&["volume", "create", "v", "--size", "1GiB", "--cluster", text(&dir)]);
    up.interrupt();

    std::fs::rename(&stores[1], scratch.path("away")).expect("it moves");
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    let file = scratch.path("file");
    std::fs::write(&file, "twice").expect("a file");
    let missing = format!("disk {}", text(&stores[1]));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let put = bad(&["fs", "put", text(&file), "/f", "--cluster", text(&dir)], 3, &missing);
            assert!(put.contains("too few chunkservers or disks"), "{put}");
        });
        let list = bad(&["volume", "ls", "--cluster", text(&dir)], 3, &missing);
        assert!(list.contains("no block manager leads: "), "{list}");
    });
    up.interrupt();
}

//! Scratch directories, runs of the binary, and trees to compare.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::machine::Hiccups;

/// A directory that goes with the test, and with it the cluster in it. An ERROR line in a log below it,
/// of whatever process, fails the test unless it is expected.
pub struct Scratch {
    path: PathBuf,
    clusters: Vec<PathBuf>,
    /// Parts of ERROR lines that the test means to provoke.
    expected: Vec<&'static str>,
    _turn: Turn,
}

/// Tests that measure times run alone, the others at the same time.
static TURNS: RwLock<()> = RwLock::new(());

enum Turn {
    Shared(#[allow(dead_code, reason = "held")] RwLockReadGuard<'static, ()>),
    Alone(#[allow(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>),
}

/// The Raft library logs a message as failed that comes while its group ends in good order.
const STOPPED: &str = "recv_msg: error: raft stopped";
/// The same, as its caller says it.
const UNHEARD: &str = "failed to receive from RaftCore";
/// The same, as a leader's heartbeat says it.
const UNSENT: &str = "to RaftCore; when:(send HeartbeatProgress)";

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        // A test that failed has no state here.
        Scratch::with(name, Turn::Shared(TURNS.read().unwrap_or_else(|broken| broken.into_inner())))
    }

    /// For a test that measures times: no other cluster works at the same time.
    pub fn alone(name: &str) -> Scratch {
        Scratch::with(name, Turn::Alone(TURNS.write().unwrap_or_else(|broken| broken.into_inner())))
    }

    fn with(name: &str, turn: Turn) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("craton-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a scratch directory");
        Scratch { path, clusters: Vec::new(), expected: Vec::new(), _turn: turn }
    }

    /// ERROR lines with this text are expected; any other one fails the test.
    pub fn expect_errors(&mut self, text: &'static str) {
        self.expected.push(text);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A cluster's directory, whose processes end with the test.
    pub fn cluster(&mut self, name: &str) -> PathBuf {
        let path = self.path(name);
        self.clusters.push(path.clone());
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for cluster in &self.clusters {
            let down = craton(&["cluster", "down", "--dir", text(cluster)]);
            if std::thread::panicking() {
                eprintln!("{}", String::from_utf8_lossy(&down.stderr));
            }
        }
        let logs = logs_below(&self.path);
        if std::thread::panicking() {
            eprintln!("{}", ends(&logs));
        }
        let always = [STOPPED, UNHEARD, UNSENT];
        let expected =
            |line: &str| self.expected.iter().chain(&always).any(|part| line.contains(part));
        let errors = logs.iter().flat_map(|log| error_lines(log));
        let unexpected: Vec<String> = errors.filter(|line| !expected(line)).collect();
        let _ = fs::remove_dir_all(&self.path);
        if !std::thread::panicking() {
            assert!(unexpected.is_empty(), "unexpected ERROR lines:\n{}", unexpected.join("\n"));
        }
    }
}

/// The logs of all processes below a directory: files in directories named 'log', and those whose names
/// end in '.log', to which a test has sent the output of a process.
fn logs_below(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut todo) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_log = dir.ends_with("log") || path.extension().is_some_and(|end| end == "log");
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => todo.push(path),
                Ok(kind) if kind.is_file() && is_log => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

fn read_log(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
}

/// The ERROR lines of a log, with the name of its file.
fn error_lines(log: &Path) -> Vec<String> {
    let text = read_log(log);
    let errors = text.lines().filter(|line| line.contains("\"level\":\"ERROR\""));
    errors.map(|line| format!("{}: {line}", log.display())).collect()
}

/// The ends of logs, for a test that has failed.
fn ends(logs: &[PathBuf]) -> String {
    let mut all = String::new();
    // Files that were full have a number.
    let is_old = |log: &Path| log.extension().is_some_and(|end| end.len() < 3);
    for log in logs.iter().filter(|log| !is_old(log)) {
        let text = read_log(log);
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(15)..];
        if !tail.is_empty() {
            all += &format!("--- {}\n{}\n", log.display(), tail.join("\n"));
        }
    }
    all
}

#[test]
fn unexpected_error_line_fails_a_test_wherever_it_is_logged() {
    for place in ["cluster/m1/log/craton.jsonl", "data/log/craton.jsonl.1", "data/cs1.log"] {
        let is_failed = |expected: &[&'static str]| {
            let mut scratch = Scratch::new("errors");
            for &text in expected {
                scratch.expect_errors(text);
            }
            let log = scratch.path(place);
            fs::create_dir_all(log.parent().expect("a directory")).expect("it is made");
            let lines = "serves\n{\"level\":\"ERROR\",\"message\":\"planted\"}\n";
            fs::write(&log, lines).expect("a log");
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(scratch))).is_err()
        };
        assert!(is_failed(&[]) && is_failed(&["another"]), "{place}");
        assert!(!is_failed(&["planted"]), "{place}");
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// The binary under test: the shipped one, when the test run has built it apart (`cargo xtask
/// shipped`), else the one of this build.
pub fn binary() -> PathBuf {
    std::env::var_os("CRATON_BINARY")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_craton")), PathBuf::from)
}

/// Ports of this test's clusters alone. The port of a process that was killed is free until it
/// starts again, and no other test's cluster may take it in between.
fn ports() -> String {
    const FIRST: u32 = 10_000;
    const EACH: u32 = 140;
    const BLOCKS: u32 = 22_000 / EACH;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Each test has a thread of its own.
    thread_local!(static BLOCK: u32 = NEXT.fetch_add(1, Ordering::Relaxed) % BLOCKS);
    let first = FIRST + EACH * BLOCK.with(|block| *block);
    format!("{first}-{}", first + EACH - 1)
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.env("CRATON_PORTS", ports());
    command.args(args).env_remove("CRATON_CLUSTER").env_remove("CRATON_KEY_FILE");
    // Tests of the core run the core alone; those of volumes ask for block servers, and those of objects for
    // object servers.
    let says = |flag: &str| args.iter().any(|arg| arg.starts_with(flag));
    if args.starts_with(&["cluster", "up"]) && !says("--block") {
        command.args(["--block-servers", "0", "--block-managers", "0", "--frontends", "0"]);
    }
    if args.starts_with(&["cluster", "up"]) && !says("--object") {
        command.args(["--object-servers", "0", "--object-managers", "0", "--gateways", "0"]);
    }
    command
}

/// The same, run by a shell that does something to itself first.
pub fn command_after(script: &str, args: &[&str]) -> Command {
    let run = command(args);
    let mut shell = Command::new("sh");
    shell.args(["-ec", &format!("{script}; exec \"$0\" \"$@\"")]);
    shell.arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

pub fn craton(args: &[&str]) -> Output {
    command(args).stdin(Stdio::null()).output().expect("the binary runs")
}

/// Standard output of a run that must succeed.
pub fn good(args: &[&str]) -> String {
    let output = craton(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "craton {args:?}: {} {error}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// The one sentence of a run that must fail with `code`.
pub fn bad(args: &[&str], code: i32, want: &str) -> String {
    let output = craton(args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "craton {args:?}: {error}");
    assert!(error.contains(want), "craton {args:?}: '{error}' does not say '{want}'");
    error
}

pub fn json(args: &[&str]) -> Value {
    serde_json::from_str(&good(args)).expect("JSON")
}

/// Content of `cluster.json`.
pub fn book(dir: &Path) -> Value {
    let bytes = fs::read(dir.join("cluster.json")).expect("the list of processes");
    serde_json::from_slice(&bytes).expect("JSON")
}

/// The masters' status.
pub fn status(dir: &Path) -> Value {
    json(&["status", "--json", "--cluster", text(dir)])
}

/// A process as `cluster.json` has it.
pub fn process(dir: &Path, id: &str) -> Value {
    let book = book(dir);
    let processes = book["processes"].as_array().expect("processes");
    processes.iter().find(|one| one["id"] == id).expect("it is known").clone()
}

/// Replaces a line of a role's configuration.
pub fn configure(path: &Path, key: &str, value: &str) {
    let old = fs::read_to_string(path).expect("a configuration");
    let change = |line: &str| match line.split_once(" = ") {
        Some((found, _)) if found == key => format!("{key} = {value}\n"),
        _ => format!("{line}\n"),
    };
    let changed: String = old.lines().map(change).collect();
    assert_ne!(changed, old, "{key} is there");
    fs::write(path, changed).expect("it is written");
}

/// The page of metrics of a process.
pub fn metrics(dir: &Path, id: &str) -> String {
    use std::io::{Read, Write};
    let role = process(dir, id)["role"].as_str().expect("text").to_owned();
    let config = fs::read_to_string(dir.join(id).join(format!("{role}.toml"))).expect("a file");
    let line = config.lines().find_map(|line| line.strip_prefix("metrics = ")).expect("a port");
    let mut stream = std::net::TcpStream::connect(line.trim_matches('"')).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("it takes requests");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("it answers");
    assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");
    page
}

/// The sum over a metric's labels.
pub fn metric(dir: &Path, id: &str, name: &str) -> f64 {
    let page = metrics(dir, id);
    let of = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
    let values: Vec<f64> = page
        .lines()
        .filter(of)
        .map(|line| line.rsplit(' ').next().expect("a value").parse().expect("a number"))
        .collect();
    assert!(!values.is_empty(), "{id} has no metric {name}");
    values.iter().sum()
}

/// Ends processes as a power cut does, all of them in one call.
pub fn kill9(dir: &Path, ids: &[&str]) {
    let pids: Vec<String> = ids.iter().map(|id| process(dir, id)["pid"].to_string()).collect();
    assert!(Command::new("kill").arg("-9").args(&pids).status().expect("kill").success());
    // The kernel frees its sockets a little later: the next start needs its port.
    for id in ids {
        let addr = process(dir, id)["addr"].as_str().expect("an address").to_owned();
        wait("its port is free", Duration::from_secs(10), || TcpListener::bind(&addr).is_ok());
    }
}

/// The master that leads a group, once the group has one.
pub fn leader(dir: &Path, group: &str) -> String {
    let leads =
        |one: &&Value| one["leads"].as_array().is_some_and(|leads| leads.contains(&group.into()));
    let mut found = None;
    wait("a leader", Duration::from_secs(20), || {
        let status = status(dir);
        let leader = status["masters"].as_array().expect("masters").iter().find(leads);
        found = leader.and_then(|leader| leader["id"].as_str()).map(str::to_owned);
        found.is_some()
    });
    found.expect("the wait has ended")
}

/// A chunkserver in the masters' status.
pub fn server(dir: &Path, id: &str) -> Value {
    let status = status(dir);
    let servers = status["chunkservers"].as_array().expect("servers");
    servers.iter().find(|one| one["id"] == id).expect("it is known").clone()
}

/// Waits until every chunk has all its replicas.
pub fn wait_for_repair(dir: &Path, limit: Duration) {
    wait("full redundancy", limit, || {
        let status = status(dir);
        assert_eq!(status["chunks"]["lost"], 0, "{status}");
        status["chunks"]["under_replicated"] == 0 && status["repair"]["pending"] == 0
    });
}

/// Prints why a test cannot run here. The test run counts it as skipped.
pub fn skip(why: &str) {
    println!("skipped: {why}");
}

/// Fails when one of these tools is missing. Some lie where the paths of root alone lead.
pub fn need(tools: &[&str]) {
    for tool in tools {
        let find = format!("PATH=\"$PATH:/usr/sbin:/sbin\" command -v {tool}");
        let found = Command::new("sh").args(["-c", &find]).output();
        let found = found.is_ok_and(|output| output.status.success());
        assert!(found, "{tool} is not installed: run scripts/prepare.sh");
    }
}

/// Output of a tool that must succeed.
pub fn tool(name: &str, args: &[&str]) -> String {
    let output = Command::new(name).args(args).stdin(Stdio::null()).output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {args:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until `check` holds, which takes less than `limit`.
pub fn wait(what: &str, limit: Duration, check: impl FnMut() -> bool) {
    assert!(within(limit, check), "not within {limit:?}: {what}");
}

/// True when `check` holds within `limit`, without the times in which the machine stood still.
pub fn within(limit: Duration, mut check: impl FnMut() -> bool) -> bool {
    let (hiccups, began) = (Hiccups::watch(), Instant::now());
    while !check() {
        if hiccups.without(began, began.elapsed()) >= limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    true
}

/// Content of a tree: kind, mode, time and content of each path.
pub fn picture(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let facts = fs::symlink_metadata(&path).expect("it is there");
        let time = format!("{}.{:09}", facts.mtime(), facts.mtime_nsec());
        let line = if facts.is_dir() {
            todo.extend(fs::read_dir(&path).expect("it lists").map(|one| one.expect("one").path()));
            format!("dir {:o} {time}", facts.mode())
        } else if facts.is_symlink() {
            format!("link {:?} {time}", fs::read_link(&path).expect("a target"))
        } else {
            let content = fs::read(&path).expect("it reads");
            let sum = content.iter().fold(7u64, |sum, &byte| {
                sum.wrapping_mul(0x100_0000_01b3).wrapping_add(u64::from(byte) + 1)
            });
            format!("file {:o} {time} {} {sum:x}", facts.mode(), content.len())
        };
        let name = path.strip_prefix(root).expect("below the root").to_owned();
        found.insert(name, line);
    }
    found
}

/// Bytes that depend on their offset.
pub fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> =
        std::iter::repeat_with(&mut next).take(len / 8 + 1).flatten().collect();
    bytes.truncate(len);
    bytes
}

/// A tree with what trees have: sizes around every boundary, empty things, links, odd names.
pub fn make_tree(root: &Path) {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let write = |name: &str, bytes: &[u8]| fs::write(root.join(name), bytes).expect("a file");
    fs::create_dir_all(root.join("empty")).expect("a directory");
    fs::create_dir_all(root.join("deep/er/still")).expect("a directory");
    write("nothing", b"");
    for (index, len) in [1, 4047, 4048, 4049, 100_000, 3 << 20].into_iter().enumerate() {
        write(&format!("of-{len}"), &content(len, index as u64));
    }
    for index in 0..40 {
        write(&format!("deep/er/small-{index}"), &content(200 + index, index as u64));
    }
    write("deep/er/still/name with spaces, ä and 'quotes'", b"odd");
    write("run.sh", b"#!/bin/sh\n");
    fs::set_permissions(root.join("run.sh"), fs::Permissions::from_mode(0o755)).expect("a mode");
    write("private", b"secret");
    fs::set_permissions(root.join("private"), fs::Permissions::from_mode(0o600)).expect("a mode");
    symlink("of-1", root.join("link")).expect("a link");
    symlink("/nowhere/at/all", root.join("dangling")).expect("a link");
    symlink("deep", root.join("link-to-dir")).expect("a link");
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::new(951_782_400, 123_456_789);
    let file = fs::File::options().write(true).open(root.join("of-4048")).expect("a file");
    file.set_modified(old).expect("a time");
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o700)).expect("a mode");
    fs::File::open(root.join("empty")).expect("a directory").set_modified(old).expect("a time");
}

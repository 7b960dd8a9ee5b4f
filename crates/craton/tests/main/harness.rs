//! Scratch directories, runs of the binary, and trees to compare.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A directory that goes with the test, and with it the cluster in it.
pub struct Scratch {
    path: PathBuf,
    clusters: Vec<PathBuf>,
}

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("craton-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a scratch directory");
        Scratch { path, clusters: Vec::new() }
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
                eprintln!("{}", logs(cluster));
                eprintln!("{}", String::from_utf8_lossy(&down.stderr));
            }
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The ends of all logs, for a test that has failed.
fn logs(cluster: &Path) -> String {
    let mut all = String::new();
    for role in fs::read_dir(cluster).into_iter().flatten().flatten() {
        for name in ["output.txt", "craton.jsonl"] {
            let text = fs::read_to_string(role.path().join("log").join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let tail = &lines[lines.len().saturating_sub(15)..];
            if !tail.is_empty() {
                all += &format!("--- {} {name}\n{}\n", role.path().display(), tail.join("\n"));
            }
        }
    }
    all
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_craton"));
    command.args(args).env_remove("CRATON_CLUSTER").env_remove("CRATON_KEY_FILE");
    command
}

pub fn craton(args: &[&str]) -> Output {
    command(args).stdin(Stdio::null()).output().expect("the binary runs")
}

/// Standard output of a run that must go well.
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

pub fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&good(args)).expect("JSON")
}

/// Waits until `check` holds.
pub fn wait(what: &str, limit: Duration, mut check: impl FnMut() -> bool) {
    let began = Instant::now();
    while !check() {
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What a tree holds: kind, mode, time and content of each path.
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

/// Bytes that tell their place.
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

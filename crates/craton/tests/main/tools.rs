//! Commands that need no cluster, and those that inspect stores.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Scratch, bad, command, configure, good, json, need, skip, text};

#[test]
fn version_has_the_commit() {
    let version = good(&["--version"]);
    assert!(version.starts_with("craton ") && version.contains("(commit "), "{version}");
}

#[test]
fn completions_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(good(&["completions", shell]).contains("chunkserver"));
    }
    assert!(good(&["--help"]).contains("Exit codes:"));
    // A reader that has gone is no failure.
    let mut bash =
        command(&["completions", "bash"]).stdout(Stdio::piped()).spawn().expect("it runs");
    drop(bash.stdout.take());
    assert!(bash.wait().expect("it ends").success());
}

#[test]
fn stores_are_inspected() {
    let mut scratch = Scratch::new("fsck");
    let dir = scratch.cluster("cluster");
    let file = scratch.path("file");
    std::fs::write(&file, crate::harness::content(300_000, 1)).expect("a file");
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "1", "--chunkservers", "1"]);
    good(&["fs", "put", text(&file), "/file", "--cluster", text(&dir)]);
    let store = dir.join("cs1/store");
    bad(&["store", "fsck", text(&store)], 4, "in use");
    good(&["cluster", "down", "--dir", text(&dir)]);
    let report = json(&["store", "fsck", "--json", text(&store)]);
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0));
    assert!(report["bytes"].as_u64() >= Some(300_000), "{report}");
    let dump = good(&["store", "dump", text(&store)]);
    let chunk = dump.split_whitespace().find(|word| word.starts_with("chk_")).expect("a chunk");
    assert!(good(&["store", "dump", text(&store), "--chunk", chunk]).contains("verified"));
}

/// A loop device, gone with the test.
struct Loop(String);

impl Loop {
    fn over(file: &Path) -> Result<Loop, String> {
        let made = Command::new("losetup").args(["-f", "--show", text(file)]).output();
        let made = made.map_err(|error| format!("losetup cannot be run ({error})"))?;
        match made.status.success() {
            true => Ok(Loop(String::from_utf8_lossy(&made.stdout).trim().to_owned())),
            false => Err(String::from_utf8_lossy(&made.stderr).trim().to_owned()),
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status(); // The test is over.
    }
}

#[test]
fn a_raw_device_holds_a_store() {
    need(&["losetup"]);
    let mut scratch = Scratch::new("raw");
    let (image, file) = (scratch.path("image"), scratch.path("file"));
    std::fs::write(&file, crate::harness::content(300_000, 3)).expect("a file");
    bad(&["store", "format", text(&file)], 4, "is no directory and no block device");
    std::fs::File::create(&image).and_then(|made| made.set_len(1 << 30)).expect("an image");
    let device = match Loop::over(&image) {
        Ok(device) => device,
        Err(why) => return skip(&format!("a loop device: {why}")),
    };
    bad(&["store", "fsck", &device.0], 4, "no chunk store");
    good(&["store", "format", &device.0, "--unit-kib", "16"]);
    bad(&["store", "format", &device.0], 4, "--force gives up");
    let dir = scratch.cluster("cluster");
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "1", "--chunkservers", "1"]);
    good(&["cluster", "down", "--dir", text(&dir)]);
    configure(&dir.join("cs1/chunkserver.toml"), "path", &format!("{:?}", device.0));
    for turn in ["/one", "/two"] {
        good(&["cluster", "up", "--dir", text(&dir)]);
        good(&["fs", "put", text(&file), turn, "--cluster", text(&dir)]);
        bad(&["store", "fsck", &device.0], 4, "in use");
        good(&["cluster", "down", "--dir", text(&dir)]);
    }
    let report = json(&["store", "fsck", "--json", &device.0]);
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0));
    assert!(report["bytes"].as_u64() >= Some(600_000), "{report}");
}

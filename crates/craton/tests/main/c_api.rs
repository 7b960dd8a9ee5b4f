//! A program in C on a volume, through `libcraton`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::harness::{Scratch, bad, good, json, text, wait};
use crate::nbd::Nbd;

/// The library, which is built with this test.
fn library_dir() -> PathBuf {
    assert_ne!(craton::craton_version(), std::ptr::null());
    std::env::current_exe().expect("a program").parent().expect("a directory").to_owned()
}

/// The example is the manual's second half: it leaves no function out.
#[test]
fn c_example_uses_every_function() {
    let bindings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/c");
    let read = |name: &str| std::fs::read_to_string(bindings.join(name)).expect("it is there");
    let (header, example) = (read("include/craton.h"), read("examples/volume.c"));
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let declared = header.lines().filter(|line| !line.starts_with([' ', '*', '/', '#']));
    let names: Vec<&str> = declared
        .filter_map(|line| line.split_once('(')?.0.rsplit(|c| !is_name(c)).next())
        .filter(|name| name.starts_with("craton_"))
        .collect();
    assert!(names.len() >= 13, "{names:?}");
    for name in names {
        assert!(example.contains(&format!("{name}(")), "the example does not call {name}");
    }
}

#[test]
fn a_program_in_c_uses_a_volume() {
    let mut scratch = Scratch::new("c-api");
    let dir = scratch.cluster("cluster");
    let bindings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/c");
    let (program, libraries) = (scratch.path("program"), library_dir());
    let built = Command::new("cc")
        .args(["-std=gnu99", "-O1", "-Wall", "-Wextra", "-Werror", "-o", text(&program)])
        .arg(bindings.join("examples/volume.c"))
        .arg("-I")
        .arg(bindings.join("include"))
        .arg("-L")
        .arg(&libraries)
        .args(["-lcraton", "-lpthread"])
        .output()
        .expect("cc is installed: the build needs it");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let flags = ["--masters", "1", "--chunkservers", "1", "--block-servers", "1", "--with-key"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &flags].concat());
    good(&["volume", "create", "v", "--size", "1GiB", "--cluster", text(&dir)]);
    let run = || {
        let mut command = Command::new("timeout");
        command.args(["120", text(&program), text(&dir), "v"]);
        command.env("LD_LIBRARY_PATH", &libraries).output().expect("it runs")
    };
    // While a front end has the volume open for its clients, the program gets its name.
    let open = Nbd::open(
        json(&["volume", "info", "v", "--json", "--cluster", text(&dir)])["nbd"]
            .as_str()
            .expect("an export"),
    );
    let refused = run();
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("f1 has it open"), "{error}");
    drop(open);
    wait("the front end lets go", Duration::from_secs(20), || {
        let info = json(&["volume", "info", "v", "--json", "--cluster", text(&dir)]);
        info["attachments"].as_array().is_some_and(Vec::is_empty)
    });
    let output = run();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("good: libcraton "));
    // It has detached the volume.
    good(&["volume", "rm", "v", "--now", "--cluster", text(&dir)]);
    bad(&["volume", "info", "v", "--cluster", text(&dir)], 1, "no such volume");
    assert!(!run().status.success(), "without a volume it fails");
}

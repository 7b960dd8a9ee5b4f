//! Copies into and out of the cluster beside other commands: what was acknowledged stays.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::harness::{Scratch, command, craton, good, text, wait};

fn up(dir: &Path, masters: &str) {
    let flags = ["--masters", masters, "--chunkservers", "1"];
    good(&[&["cluster", "up", "--dir", text(dir)][..], &flags].concat());
}

/// A command that reads its standard input from the test.
fn fed(args: &[&str]) -> Child {
    command(args).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

fn small(scratch: &Scratch) -> PathBuf {
    let small = scratch.path("small");
    fs::write(&small, "small").expect("a file");
    small
}

#[test]
fn a_file_that_replaced_that_of_a_failing_put_stays() {
    let mut scratch = Scratch::new("replaced");
    let dir = scratch.cluster("cluster");
    let small = small(&scratch);
    up(&dir, "1");
    let on = |args: &[&str]| craton(&[&["fs"], args, &["--cluster", text(&dir)]].concat());
    for (path, input) in [("/x", &[7; 3 << 20][..]), ("/empty", &[])] {
        let mut put = fed(&["fs", "put", "-", path, "--cluster", text(&dir)]);
        wait("the name of the put", Duration::from_secs(20), || {
            on(&["stat", path]).status.success()
        });
        assert!(on(&["put", text(&small), path]).status.success());
        // The stream of the replaced file is deleted.
        std::thread::sleep(Duration::from_secs(1));
        // It may end before it has read everything.
        let _ = put.stdin.take().expect("a pipe").write_all(input);
        let ended = put.wait_with_output().expect("it ends");
        let error = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{path}: {error}");
        assert_eq!(good(&["fs", "cat", path, "--cluster", text(&dir)]), "small", "{error}");
    }
}

#[test]
fn two_replacements_of_one_file_both_succeed() {
    let mut scratch = Scratch::new("two-puts");
    let dir = scratch.cluster("cluster");
    let small = small(&scratch);
    up(&dir, "1");
    let cluster = ["--cluster", text(&dir)];
    let on = |args: &[&str]| good(&[&["fs"], args, &cluster].concat());
    on(&["put", text(&small), "/x"]);
    let mut put = fed(&["fs", "put", "-", "/x", "--cluster", text(&dir)]);
    wait("the part of the put", Duration::from_secs(20), || {
        on(&["ls", "/"]).contains(".craton-put-")
    });
    fs::write(&small, "other").expect("a file");
    on(&["put", text(&small), "/x"]);
    assert_eq!(on(&["cat", "/x"]), "other");
    put.stdin.take().expect("a pipe").write_all(b"last").expect("it reads");
    let ended = put.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(on(&["cat", "/x"]), "last");
    assert_eq!(on(&["ls", "/"]), "x\n");
}

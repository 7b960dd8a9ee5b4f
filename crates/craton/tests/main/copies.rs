//! Copies into and out of the cluster beside other commands: what was acknowledged stays.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use client::Config;
use wire::control::Node;

use crate::harness::{
    Scratch, bad, binary, book, command, content, craton, good, json, kill9, skip, text, wait,
};
use crate::load;

fn up(dir: &Path, masters: &str) {
    let flags = ["--masters", masters, "--chunkservers", "1"];
    good(&[&["cluster", "up", "--dir", text(dir)][..], &flags].concat());
}

/// A command that reads its standard input from the test.
fn fed(args: &[&str]) -> Child {
    command(args).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

fn signal(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(sent.expect("kill").success());
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

#[test]
fn bytes_of_a_killed_append_are_copied() {
    let mut scratch = Scratch::new("sealed");
    let dir = scratch.cluster("cluster");
    let (local, back) = (scratch.path("local"), scratch.path("back"));
    let first = content(1000, 1);
    fs::write(&local, &first).expect("a file");
    up(&dir, "1");
    let on = |args: &[&str]| craton(&[&["fs"], args, &["--cluster", text(&dir)]].concat());
    let done = |args: &[&str]| {
        let output = on(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    done(&["put", text(&local), "/log"]);
    done(&["get", "/log", text(&back)]);
    let more = content(2 << 20, 2);
    let whole = [&first[..], &more].concat();
    let mut append = fed(&["fs", "append", "-", "/log", "--cluster", text(&dir)]);
    append.stdin.as_mut().expect("a pipe").write_all(&more).expect("it reads");
    wait("the bytes are acknowledged", Duration::from_secs(20), || {
        on(&["cat", "/log"]).stdout.len() == whole.len()
    });
    append.kill().expect("it can be killed");
    append.wait().expect("it ends");
    // As long as it is not sealed, and after.
    done(&["get", "/log", text(&back)]);
    assert_eq!(fs::read(&back).expect("a copy").len(), whole.len());
    done(&["seal", "/log"]);
    fs::copy(&local, &back).expect("a copy");
    done(&["get", "/log", text(&back)]);
    assert!(fs::read(&back).expect("a copy") == whole, "the copy is not the file");
    // The local file has not changed since the first put: the one in the cluster has.
    done(&["put", text(&local), "/log"]);
    assert_eq!(done(&["cat", "/log"]).len(), first.len());
}

/// The writer is gone, and all replicas have restarted: none knows what was acknowledged last.
#[test]
fn a_file_whose_end_is_not_known_is_copied_whole_or_not_at_all() {
    let mut scratch = Scratch::new("unknown-end");
    let dir = scratch.cluster("cluster");
    let back = scratch.path("back");
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "1", "--chunkservers", "3"]);
    let on = |args: &[&str]| craton(&[&["fs"], args, &["--cluster", text(&dir)]].concat());
    let bytes = content(2 << 20, 4);
    let mut append = fed(&["fs", "append", "-", "/log", "--cluster", text(&dir)]);
    append.stdin.as_mut().expect("a pipe").write_all(&bytes).expect("it reads");
    wait("the bytes are acknowledged", Duration::from_secs(20), || {
        on(&["cat", "/log"]).stdout.len() == bytes.len()
    });
    append.kill().expect("it can be killed");
    append.wait().expect("it ends");
    kill9(&dir, &["cs1", "cs2", "cs3"]);
    good(&["cluster", "up", "--dir", text(&dir)]);
    let got = on(&["get", "/log", text(&back)]);
    let error = String::from_utf8_lossy(&got.stderr).into_owned();
    match got.status.code() {
        Some(0) => assert!(fs::read(&back).expect("a copy") == bytes, "a copy of other bytes"),
        code => {
            assert_eq!(code, Some(3), "{error}");
            assert!(error.contains("craton fs seal /log"), "{error}");
            assert!(!back.exists(), "a copy of a part");
        }
    }
    let sealed = on(&["seal", "/log"]);
    let error = String::from_utf8_lossy(&sealed.stderr);
    assert_eq!(String::from_utf8_lossy(&sealed.stdout), "/log: 2097152 bytes\n", "{error}");
    assert!(on(&["get", "/log", text(&back)]).status.success());
    assert!(fs::read(&back).expect("a copy") == bytes, "the copy is not the file");
}

/// Two of three chunkservers are lost with the writer: an operator ends the file with what is left.
#[test]
fn what_is_left_of_a_file_is_sealed_by_an_operators_word() {
    let mut scratch = Scratch::new("loss");
    let dir = scratch.cluster("cluster");
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "1", "--chunkservers", "3"]);
    let on = |args: &[&str]| craton(&[&["fs"], args, &["--cluster", text(&dir)]].concat());
    let stat = || {
        let stat = on(&["stat", "/log", "--json"]).stdout;
        serde_json::from_slice::<serde_json::Value>(&stat).expect("JSON")
    };
    let bytes = content(2 << 20, 3);
    let mut append = fed(&["fs", "append", "-", "/log", "--cluster", text(&dir)]);
    append.stdin.as_mut().expect("a pipe").write_all(&bytes).expect("it reads");
    wait("the bytes are acknowledged", Duration::from_secs(20), || {
        on(&["cat", "/log"]).stdout.len() == bytes.len()
    });
    append.kill().expect("it can be killed");
    append.wait().expect("it ends");
    assert_eq!(stat()["loss_accepted"], false);
    kill9(&dir, &["cs2", "cs3"]);
    // It waits until they have been away for so long that they count as gone.
    let sealed = on(&["seal", "--accept-loss", "/log"]);
    let (said, error) = (sealed.stdout, String::from_utf8_lossy(&sealed.stderr));
    let expected =
        "/log: 2097152 bytes; acknowledged bytes may be missing: replicas were given up\n";
    assert_eq!(String::from_utf8_lossy(&said), expected, "{error}");
    assert!(on(&["cat", "/log"]).stdout == bytes, "what is left is what was written");
    let stat = stat();
    wait("its danger is counted", Duration::from_secs(10), || {
        let status = json(&["status", "--json", "--cluster", text(&dir)]);
        status["chunks"]["survive"] == serde_json::json!([1, 0, 0, 0])
    });
    assert_eq!((&stat["loss_accepted"], &stat["len"]), (&true.into(), &2_097_152.into()), "{stat}");
}

#[test]
fn a_file_that_is_emptied_after_the_walk_replaces_nothing() {
    let mut scratch = Scratch::new("emptied");
    let dir = scratch.cluster("cluster");
    let src = scratch.path("src");
    fs::create_dir(&src).expect("a directory");
    let files = [src.join("a"), src.join("b")];
    files.iter().for_each(|file| fs::write(file, "good").expect("a file"));
    up(&dir, "1");
    let cluster = ["--cluster", text(&dir)];
    good(&[&["fs", "put", "-r", text(&src), "/"][..], &cluster].concat());
    for file in &files {
        let file = fs::File::options().write(true).open(file).expect("it is there");
        file.set_len(1 << 30).expect("a hole");
    }
    let args = ["fs", "put", "-r", text(&src), "/", "--parallel", "1", "--cluster", text(&dir)];
    let put = command(&args).stderr(Stdio::piped()).spawn().expect("it starts");
    wait("the first part", Duration::from_secs(20), || {
        good(&[&["fs", "ls", "/src"][..], &cluster].concat()).contains(".craton-put-")
    });
    signal(&put, "-STOP");
    files.iter().for_each(|file| fs::write(file, "").expect("it is emptied"));
    signal(&put, "-CONT");
    let ended = put.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    for name in ["/src/a", "/src/b"] {
        assert_eq!(good(&[&["fs", "cat", name][..], &cluster].concat()), "good", "{error}");
    }
    assert_eq!(ended.status.code(), Some(1), "{error}");
    assert!(error.contains("was changed while it was read"), "{error}");
}

#[test]
fn a_named_link_is_followed_and_a_named_pipe_refused() {
    let mut scratch = Scratch::new("named");
    let dir = scratch.cluster("cluster");
    let (small, link, pipe) = (small(&scratch), scratch.path("link"), scratch.path("pipe"));
    std::os::unix::fs::symlink(&small, &link).expect("a link");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    up(&dir, "1");
    let cluster = ["--cluster", text(&dir)];
    good(&[&["fs", "put", text(&link), "/l"][..], &cluster].concat());
    let stat = json(&[&["fs", "stat", "--json", "/l"][..], &cluster].concat());
    assert_eq!(stat["len"], 5, "{stat}");
    assert_eq!(good(&[&["fs", "cat", "/l"][..], &cluster].concat()), "small");
    // With -r a link is stored, as in a tree.
    good(&[&["fs", "put", "-r", text(&link), "/r"][..], &cluster].concat());
    assert!(good(&[&["fs", "ls", "-l", "/"][..], &cluster].concat()).contains("r -> "));
    bad(&[&["fs", "put", text(&pipe), "/p"][..], &cluster].concat(), 2, "standard input");
    bad(&[&["fs", "put", "/dev/null", "/p"][..], &cluster].concat(), 2, "/dev/null");
}

#[test]
fn a_removal_of_a_master_that_found_the_directory_busy_is_repeated() {
    let mut scratch = Scratch::new("busy");
    let dir = scratch.cluster("cluster");
    up(&dir, "3");
    let remove = ["masters", "remove", "3", "--cluster", text(&dir)];
    let members = || json(&["masters", "members", "--json", "--cluster", text(&dir)]);
    let before = members();
    let lock = fs::File::open(dir.join(".craton.lock")).expect("the lock's file");
    lock.lock().expect("it is free");
    bad(&remove, 4, "another craton command");
    assert_eq!(members(), before, "nothing was changed");
    drop(lock);
    good(&remove);
    let is_known = || book(&dir).to_string().contains("\"m3\"");
    assert!(!is_known());
    bad(&remove, 1, "it has 1, 2");
}

#[test]
fn a_second_export_to_a_path_is_refused() {
    let mut scratch = Scratch::new("exports");
    let dir = scratch.cluster("cluster");
    let (out, part) = (scratch.path("out"), scratch.path("out.craton-part"));
    let flags = ["--masters", "1", "--chunkservers", "1", "--block-servers", "1"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &flags].concat());
    good(&["volume", "create", "v", "--size", "1GiB", "--cluster", text(&dir)]);
    // As an export that is under way has it.
    fs::write(&part, "part").expect("a file");
    let held = fs::File::open(&part).expect("it is there");
    held.lock().expect("it is free");
    let export = ["volume", "export", "v", text(&out), "--cluster", text(&dir)];
    bad(&export, 4, "another export writes");
    assert_eq!(fs::read(&part).expect("it is there"), b"part");
    // What a killed export has left is replaced.
    drop(held);
    good(&export);
    assert_eq!(fs::metadata(&out).expect("the image").len(), 1 << 30);
    assert!(!part.exists());
}

/// What a command prints until its reader goes after the first byte: its exit code and its sentence.
fn broken(args: &[&str], before: impl FnOnce()) -> (Option<i32>, String) {
    let mut run = command(args);
    run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = run.spawn().expect("it starts");
    let mut out = run.stdout.take().expect("a pipe");
    out.read_exact(&mut [0]).expect("a byte");
    before();
    drop(out);
    let ended = run.wait_with_output().expect("it ends");
    (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
}

#[test]
fn data_whose_reader_has_gone_is_no_success() {
    let mut scratch = Scratch::new("broken");
    let dir = scratch.cluster("cluster");
    let local = scratch.path("local");
    fs::write(&local, content(4 << 20, 5)).expect("a file");
    up(&dir, "1");
    good(&["fs", "put", text(&local), "/x", "--cluster", text(&dir)]);
    for args in [&["cat", "/x"][..], &["get", "/x", "-"]] {
        let args = [&["fs"], args, &["--cluster", text(&dir)]].concat();
        let (code, error) = broken(&args, || {});
        assert_eq!(code, Some(1), "{args:?}: {error}");
        assert!(error.contains("the reader of standard output has ended"), "{error}");
    }
}

/// A client that is silent for 5 s is replaced by the next one that opens its volume.
#[test]
fn export_whose_reader_is_slow_keeps_its_volume() {
    let mut scratch = Scratch::new("slow-reader");
    let dir = scratch.cluster("cluster");
    let flags = ["--masters", "1", "--chunkservers", "1", "--block-servers", "1"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &flags].concat());
    good(&["volume", "create", "v", "--size", "1GiB", "--cluster", text(&dir)]);
    let other = scratch.path("other");
    let (code, error) = broken(&["volume", "export", "v", "-", "--cluster", text(&dir)], || {
        std::thread::sleep(Duration::from_secs(8));
        let export = ["volume", "export", "v", text(&other), "--cluster", text(&dir)];
        bad(&export, 1, "has it open");
    });
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("the reader of standard output has ended"), "{error}");
}

/// A run in a container, which has process IDs of its own, into the same directory.
#[test]
fn a_copy_that_is_under_way_is_not_removed_by_another() {
    let unshare = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let works = Command::new("unshare").args(unshare).arg("true").stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return skip("it needs root and namespaces");
    }
    let mut scratch = Scratch::new("two-gets");
    let dir = scratch.cluster("cluster");
    let (local, to) = (scratch.path("local"), scratch.path("to"));
    let bytes = content(64 << 20, 6);
    fs::write(&local, &bytes).expect("a file");
    fs::create_dir(&to).expect("a directory");
    up(&dir, "1");
    good(&["fs", "put", text(&local), "/x", "--cluster", text(&dir)]);
    let target = to.join("x");
    let args = ["fs", "get", "/x", text(&target), "--cluster", text(&dir)];
    let first = command(&args).stderr(Stdio::piped()).spawn().expect("it starts");
    wait("its part", Duration::from_secs(20), || fs::read_dir(&to).expect("it lists").count() > 0);
    signal(&first, "-STOP");
    let second = Command::new("unshare").args(unshare).arg(binary()).args(args).output();
    let second = second.expect("it runs");
    signal(&first, "-CONT");
    let first = first.wait_with_output().expect("it ends");
    for ended in [first, second] {
        let error = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{error}");
    }
    assert!(fs::read(&target).expect("a copy") == bytes, "the copy is not the file");
    assert_eq!(fs::read_dir(&to).expect("it lists").count(), 1);
}

#[test]
fn links_that_others_replace_are_there_all_the_time() {
    const LINKS: usize = 300;
    let mut scratch = Scratch::new("links");
    let dir = scratch.cluster("cluster");
    let src = scratch.path("src");
    fs::create_dir(&src).expect("a directory");
    let links = |target: &str| {
        for number in 0..LINKS {
            let link = src.join(format!("link-{number}"));
            let _ = fs::remove_file(&link); // At first it is not there.
            std::os::unix::fs::symlink(target, &link).expect("a link");
        }
    };
    links("old");
    up(&dir, "1");
    let put = ["fs", "put", "-r", text(&src), "/", "--quiet", "--cluster", text(&dir)];
    good(&put);
    links("new");
    let client = load::connect_with(&dir, Config::default());
    let list = || client.list("/src").expect("it lists");
    let mut again = command(&put).spawn().expect("it starts");
    loop {
        let ended = again.try_wait().expect("it can be waited for");
        let names: Vec<String> = list().into_iter().map(|entry| entry.name).collect();
        let there = names.iter().filter(|name| name.starts_with("link-")).count();
        assert_eq!(there, LINKS, "links are missing");
        if let Some(status) = ended {
            assert!(status.success(), "{status}");
            break;
        }
    }
    let is_new = |node: &Node| matches!(node, Node::Symlink { target, .. } if target == "new");
    let list = list();
    assert!(list.len() == LINKS && list.iter().all(|entry| is_new(&entry.node)), "{list:?}");
}

//! Wrong flags, files and directories: one sentence, and nothing changed.

use crate::harness::{Scratch, bad, good, text};

#[test]
fn flags() {
    bad(&["cluster", "up", "--dir", "/x", "--masters", "2"], 2, "1, 3 or 5 masters");
    bad(&["cluster", "up"], 2, "--dir");
    bad(&["fs", "ls"], 2, "CRATON_CLUSTER");
    bad(&["fs", "put", "a", "/b", "--redundancy", "rep9", "--cluster", "x"], 2, "rep1 to rep5");
    bad(&["sim", "run", "--scenario", "echo", "--seeds", "5"], 2, "A..B");
    bad(&["sim", "replay", "--scenario", "nothing", "--seed", "5"], 2, "sim list");
    bad(&["frobnicate"], 2, "frobnicate");
}

#[test]
fn directories() {
    let scratch = Scratch::new("bad");
    let foreign = scratch.path("foreign");
    std::fs::create_dir(&foreign).expect("a directory");
    std::fs::write(foreign.join("photo"), "x").expect("a file");
    bad(&["cluster", "up", "--dir", text(&foreign)], 4, "photo");
    bad(&["up", "--dir", text(&foreign)], 4, "photo");
    assert_eq!(std::fs::read_dir(&foreign).expect("it lists").count(), 1);
    let missing = scratch.path("missing");
    for args in [
        &["cluster", "down", "--dir", text(&missing)][..],
        &["cluster", "status", "--dir", text(&missing)],
        &["cluster", "add", "chunkserver", "--dir", text(&missing)],
        &["status", "--cluster", text(&missing)],
        &["fs", "ls", "--cluster", text(&missing)],
    ] {
        bad(args, 4, "has no cluster");
    }
    bad(&["store", "fsck", text(&missing)], 4, "is missing");
    assert!(!missing.exists());
    let damaged = scratch.path("damaged");
    std::fs::create_dir(&damaged).expect("a directory");
    std::fs::write(damaged.join("cluster.json"), "{\"processes\": 1}").expect("a file");
    bad(&["cluster", "up", "--dir", text(&damaged)], 4, "is damaged");
    bad(&["fs", "ls", "--cluster", text(&damaged)], 4, "is damaged");
    let file = scratch.path("file");
    std::fs::write(&file, "x").expect("a file");
    bad(&["cluster", "up", "--dir", text(&file)], 4, "file");
    bad(&["store", "fsck", text(&file)], 4, "file");
}

#[test]
fn configurations() {
    let scratch = Scratch::new("config");
    let path = scratch.path("chunkserver.toml");
    let store = scratch.path("store");
    let good_text = format!(
        "id = \"cs1\"\nlisten = \"127.0.0.1:1\"\nmasters = [\"127.0.0.1:2\"]\n[[stores]]\n\
         path = {:?}\n",
        text(&store)
    );
    let check = |content: &str, want: &str| {
        std::fs::write(&path, content).expect("a file");
        bad(&["chunkserver", "--config", text(&path)], 4, want);
    };
    check(&good_text.replace("listen", "lissen"), "line 2: unknown key `lissen`");
    check(&good_text.replace("masters", "#"), "`masters`");
    check(&good_text.replace("127.0.0.1:1\"", "0.0.0.0:1\""), "key_file");
    check(&good_text, "is missing: mount the disk");
    assert!(!store.exists());
    good(&["chunkserver", "--check", "--config", text(&path)]);
    bad(&["master", "--config", text(&scratch.path("none.toml"))], 4, "none.toml");

    // A port in use.
    std::fs::create_dir(&store).expect("a directory");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = taken.local_addr().expect("an address").to_string();
    std::fs::write(&path, good_text.replace("127.0.0.1:1", &addr)).expect("a file");
    bad(&["chunkserver", "--config", text(&path)], 4, &addr);
}

#[test]
fn nobody_answers() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = free.local_addr().expect("an address").to_string();
    drop(free);
    bad(&["fs", "ls", "--cluster", &addr], 3, &addr);
}

//! Wrong flags, files and directories: one sentence, and nothing changed.

use std::path::Path;
use std::process::Stdio;

use crate::harness::{Scratch, bad, command, content, good, text};

#[test]
fn flags() {
    bad(&["cluster", "up", "--dir", "/x", "--masters", "2"], 2, "1, 3 or 5 masters");
    bad(&["cluster", "up"], 2, "--dir");
    bad(&["fs", "ls"], 2, "CRATON_CLUSTER");
    bad(&["fs", "put", "a", "/b", "--redundancy", "rep9", "--cluster", "x"], 2, "rep1 to rep5");
    let elsewhere = "run 'craton-sim run --seeds 0..2'";
    bad(&["sim", "run", "--seeds", "0..2"], 2, elsewhere);
    bad(&["sim", "--help"], 2, "craton-sim");
    bad(&["frobnicate"], 2, "frobnicate");
    bad(&["bench", "append", "--size", "0"], 2, "at least 1 byte");
    bad(&["bench", "append", "--depth", "0"], 2, "1 to 1024");
    bad(&["bench", "meta", "--dirs", "0"], 2, "--dirs");
    bad(&["bench", "floor", "--scratch", "/no/such/directory"], 4, "is no directory");
    assert!(!Path::new("/no").exists());
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
    bad(&["up", "--dir", text(&missing), "--store", text(&missing)], 4, "or make a directory");
    bad(&["up", "--dir", text(&missing), "--listen", "0.0.0.0:0"], 2, "listen on 127.0.0.1");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = taken.local_addr().expect("an address").to_string();
    bad(&["up", "--dir", text(&missing), "--listen", &addr], 4, &addr);
    assert!(!missing.exists());
    bad(&["store", "fsck", text(&foreign)], 4, "has no chunk store");
    bad(&["store", "dump", text(&foreign)], 4, "has no chunk store");
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
    check(&good_text.replace("127.0.0.1:1", &addr), &addr);
    check(
        &format!("metrics = {addr:?}\n{}", good_text.replace("127.0.0.1:1", "127.0.0.1:0")),
        &addr,
    );
    assert_eq!(std::fs::read_dir(&store).expect("it lists").count(), 0, "it is formatted");
    let (path, data) = (scratch.path("master.toml"), scratch.path("data"));
    let master = format!(
        "id = \"m1\"\nraft_id = 1\ncluster = \"clu_1\"\nlisten = {addr:?}\ndata_dir = {:?}\n",
        text(&data)
    );
    std::fs::write(&path, master).expect("a file");
    bad(&["master", "--config", text(&path)], 4, &addr);
    assert!(!data.exists());
}

#[test]
fn unreachable_cluster_is_reported() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = free.local_addr().expect("an address").to_string();
    drop(free);
    let error = bad(&["status", "--cluster", &addr], 3, &addr);
    assert!(error.contains("that the masters run"), "{error}");
}

fn fs<'a>(cluster: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [&["fs", "--cluster", cluster], args].concat()
}

#[test]
fn hostile_names_offsets_and_files() {
    let mut scratch = Scratch::new("hostile");
    let dir = scratch.cluster("cluster");
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "1", "--chunkservers", "1"]);
    let cluster = text(&dir).to_owned();
    let long = format!("/{}", "x".repeat(256));
    bad(&fs(&cluster, &["mkdir", &long]), 1, "more than 255 bytes");
    bad(&fs(&cluster, &["mkdir", "/a/.."]), 1, "not '..'");
    bad(&fs(&cluster, &["mkdir", "a"]), 1, "start with '/'");
    bad(&fs(&cluster, &["rm", "/"]), 1, "root");
    good(&fs(&cluster, &["mkdir", "/two\nlines"]));
    assert_eq!(good(&fs(&cluster, &["ls", "/"])), "two\\nlines\n");

    let small = scratch.path("small");
    std::fs::write(&small, "12345").expect("a file");
    let small = text(&small).to_owned();
    good(&fs(&cluster, &["put", &small, "/small"]));
    bad(&fs(&cluster, &["cat", "/small", "--offset", "100"]), 1, "has 5 bytes");
    bad(&fs(&cluster, &["cat", "/small", "--offset", "18446744073709551615"]), 1, "past its end");
    assert_eq!(good(&fs(&cluster, &["cat", "/small", "--offset", "4"])), "5");
    assert_eq!(good(&fs(&cluster, &["cat", "/small", "--offset", "5"])), "");
    bad(&fs(&cluster, &["put", "/no/such/file", "/other"]), 4, "/no/such/file");
    bad(&fs(&cluster, &["get", "/small", "/proc/nothing/here"]), 4, "/proc/nothing/here");
    bad(&fs(&cluster, &["get", "/small", "/dev/full"]), 4, "is a device");
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a full disk");
    let cat =
        command(&fs(&cluster, &["cat", "/small"])).stdout(full).stderr(Stdio::piped()).output();
    let cat = cat.expect("it runs");
    assert_eq!(cat.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&cat.stderr).contains("standard output"));

    // A file of length 0 that is not empty.
    good(&fs(&cluster, &["put", "/proc/version", "/version"]));
    let version = std::fs::read_to_string("/proc/version").expect("it reads");
    assert_eq!(good(&fs(&cluster, &["cat", "/version"])), version);

    // A file that is written to while it is read.
    let growing = scratch.path("growing");
    std::fs::write(&growing, content(8 << 20, 1)).expect("a file");
    let done = std::sync::atomic::AtomicBool::new(false);
    let name = text(&growing);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use std::io::Write;
            let mut file = std::fs::File::options().append(true).open(&growing).expect("there");
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                file.write_all(b"more").expect("it grows");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        bad(&fs(&cluster, &["put", name, "/growing"]), 1, "changed while it was read");
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    bad(&fs(&cluster, &["stat", "/growing"]), 1, "no such file");

    // The store of a running server, and another cluster behind this one's addresses.
    let config = dir.join("cs1/chunkserver.toml");
    scratch.expect_errors("Address already in use");
    bad(&["chunkserver", "--config", text(&config)], 4, "in use");
    let other = scratch.cluster("other");
    good(&["cluster", "up", "--dir", text(&other), "--masters", "1", "--chunkservers", "1"]);
    let book = |dir: &std::path::Path| -> serde_json::Value {
        let bytes = std::fs::read(dir.join("cluster.json")).expect("it reads");
        serde_json::from_slice(&bytes).expect("JSON")
    };
    let mut mixed = book(&dir);
    mixed["endpoints"] = book(&other)["endpoints"].clone();
    let fake = scratch.path("fake");
    std::fs::create_dir(&fake).expect("a directory");
    std::fs::write(fake.join("cluster.json"), mixed.to_string()).expect("a file");
    bad(&["fs", "ls", "/", "--cluster", text(&fake)], 1, "belongs to cluster");
}

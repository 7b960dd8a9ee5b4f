//! Files that a cluster leaves on its machine, and access to it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::embedded::Up;
use crate::harness::{
    Scratch, bad, book, command, command_after, craton, good, json, need, text, tool, wait,
};

/// All that is below a directory, with its mode.
fn modes(root: &Path) -> Vec<(PathBuf, fs::Metadata)> {
    let (mut found, mut todo) = (Vec::new(), vec![root.to_owned()]);
    while let Some(path) = todo.pop() {
        let facts = fs::symlink_metadata(&path).expect("it is there");
        if facts.is_dir() {
            todo.extend(fs::read_dir(&path).expect("it lists").map(|one| one.expect("one").path()));
        }
        found.push((path, facts));
    }
    found
}

fn check_modes(dir: &Path, of_sockets: u32) {
    use std::os::unix::fs::FileTypeExt;
    for (path, facts) in modes(dir) {
        let wanted = match () {
            () if facts.file_type().is_socket() => of_sockets,
            () if path == dir.join("nbd") => 0o750,
            () if facts.is_dir() => 0o700,
            () => 0o600,
        };
        assert_eq!(format!("{:o}", facts.mode() & 0o7777), format!("{wanted:o}"), "{path:?}");
    }
}

#[test]
fn new_cluster_is_private_to_its_user() {
    let mut scratch = Scratch::new("private");
    let dir = scratch.cluster("cluster");
    let shape = ["--masters", "1", "--chunkservers", "1", "--block-servers", "1"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &shape].concat());
    good(&["volume", "create", "v", "--size", "1GiB", "--cluster", text(&dir)]);
    check_modes(&dir, 0o600);
    // With the directory nothing else is needed, with addresses the key.
    let addr = book(&dir)["endpoints"]["masters"][0].as_str().expect("text").to_owned();
    let key = dir.join("cluster.key");
    good(&["fs", "ls", "--cluster", &addr, "--key-file", text(&key)]);
    bad(&["fs", "ls", "--cluster", &addr], 1, "--key-file");
    let other = scratch.path("other.key");
    fs::write(&other, "5a".repeat(32)).expect("a key");
    bad(&["fs", "ls", "--cluster", &addr, "--key-file", text(&other)], 1, "--key-file");
    good(&["cluster", "down", "--dir", text(&dir)]);
    bad(&["cluster", "up", "--dir", text(&dir), "--no-key"], 2, "leave --no-key out");
    bad(
        &["cluster", "up", "--dir", text(&dir), "--no-nbd-tcp", "--block-servers", "1"],
        2,
        "is said when",
    );
    bad(&["cluster", "up", "--dir", "/x", "--no-key", "--with-key"], 2, "--with-key");
}

/// As units of an init system start roles: with a mask that lets others read what is made.
#[test]
fn role_keeps_its_log_private_whatever_mask_it_is_started_with() {
    let mut scratch = Scratch::new("mask");
    scratch.expect_errors(""); // Nothing that they look for is there.
    for role in ["object-manager", "object-server", "gateway"] {
        let dir = scratch.path(role);
        fs::create_dir(&dir).expect("a directory");
        let keys = if role == "gateway" { "s3_keys = \"s3-keys\"\n" } else { "" };
        let config = format!(
            "id = \"x1\"\nlisten = \"127.0.0.1:2\"\nmasters = [\"127.0.0.1:1\"]\n{keys}[log]\n\
             dir = \"log\"\n"
        );
        let (file, log) = (dir.join("role.toml"), dir.join("log/craton.jsonl"));
        fs::write(&file, config).expect("a file");
        let mut run = command_after("umask 022", &[role, "--config", text(&file)]);
        run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut run = run.spawn().expect("it starts");
        wait("its log", Duration::from_secs(20), || log.exists());
        let _ = run.kill(); // It may have ended.
        run.wait().expect("it ends");
        check_modes(&dir.join("log"), 0o600);
    }
}

#[test]
fn a_cluster_without_a_key_warns_once_a_start() {
    let mut scratch = Scratch::new("keyless");
    let dir = scratch.cluster("cluster");
    let shape = ["--masters", "1", "--chunkservers", "1", "--no-key"];
    let warns = |args: &[&str]| {
        let output = craton(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert_eq!(said.matches("has no key").count(), 1, "{said}");
    };
    warns(&[&["cluster", "up", "--dir", text(&dir)][..], &shape].concat());
    assert!(!dir.join("cluster.key").exists());
    let addr = book(&dir)["endpoints"]["masters"][0].as_str().expect("text").to_owned();
    good(&["fs", "ls", "--cluster", &addr]);
    good(&["cluster", "down", "--dir", text(&dir)]);
    warns(&["cluster", "up", "--dir", text(&dir)]);
    bad(&["cluster", "up", "--dir", text(&dir), "--with-key"], 2, "leave --with-key out");
}

#[test]
fn one_process_is_reached_from_other_machines_with_its_key() {
    need(&["hostname"]);
    let scratch = Scratch::new("up-listen");
    let dir = scratch.path("data");
    let up = |more: &[&'static str]| [&["up", "--dir", text(&dir)][..], more].concat();
    bad(&up(&["--listen", "0.0.0.0:0"]), 2, "no address that others can be given");
    bad(&up(&["--listen", "192.0.2.1:0", "--no-key"]), 2, "leave --no-key out");
    assert!(!dir.exists());
    // An address of this machine that is not loopback, where it has one.
    let out = tool("hostname", &["-I"]);
    let is_v4 = |word: &&str| word.parse::<std::net::Ipv4Addr>().is_ok_and(|ip| !ip.is_loopback());
    let Some(ip) = out.split_whitespace().find(is_v4) else {
        return crate::harness::skip("this machine has no address but loopback");
    };
    let (_up, said) = Up::start(&["--dir", text(&dir), "--listen", &format!("{ip}:0")]);
    assert!(said.contains(&format!("masters: {ip}:")), "{said}");
    check_modes(&dir, 0o600);
    let addr = book(&dir)["endpoints"]["masters"][0].as_str().expect("text").to_owned();
    bad(&["fs", "ls", "--cluster", &addr], 1, "--key-file");
    let key = dir.join("cluster.key");
    let put = ["fs", "put", "/etc/passwd", "/file", "--cluster", &addr, "--key-file", text(&key)];
    good(&put);
    for process in book(&dir)["processes"].as_array().expect("processes") {
        let addr = process["addr"].as_str().expect("text");
        // What has no encryption of its own stays on loopback: NBD and S3.
        let stays = process["role"] == "frontend" || process["role"] == "gateway";
        assert_eq!(addr.starts_with(ip), !stays, "{process}");
    }
}

/// A user who is neither root nor of any group that matters, as a prefix of a command.
const OTHER_USER: [&str; 2] = ["--reuid=65534", "--clear-groups"];

#[test]
fn volumes_are_reached_by_a_group_and_not_over_tcp() {
    need(&["setpriv", "nbdinfo"]);
    if !rustix_is_root() {
        return crate::harness::skip("users can be changed by root only");
    }
    // Others cannot pass through the scratch directory of some machines: this one lies in /tmp.
    let mut scratch = Scratch::new("group");
    fs::set_permissions(scratch.path(""), fs::Permissions::from_mode(0o755)).expect("a mode");
    let dir = scratch.cluster("cluster");
    let shape = ["--masters", "1", "--chunkservers", "1", "--block-servers", "1"];
    let nearby = ["--nbd-group", "4242", "--no-nbd-tcp"];
    bad(&["cluster", "up", "--dir", text(&dir), "--nbd-group", "no-such"], 2, "no group 'no-such'");
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &shape, &nearby].concat());
    let made =
        json(&["volume", "create", "v", "--size", "1GiB", "--json", "--cluster", text(&dir)]);
    let endpoints = book(&dir)["endpoints"].clone();
    assert!(made["nbd"].is_null() && endpoints["nbd"].is_null(), "{endpoints}");
    let socket = endpoints["nbd_unix"].as_str().expect("a socket");
    let path = socket.strip_prefix("nbd+unix:///?socket=").expect("a URI").to_owned();
    let facts = fs::metadata(&path).expect("a socket");
    assert_eq!((facts.mode() & 0o777, facts.gid()), (0o660, 4242));
    let uri = socket.replacen("///", "///v", 1);
    let size = |group: &str| {
        let mut command = Command::new("setpriv");
        command.args(OTHER_USER).arg(format!("--regid={group}")).args(["nbdinfo", "--size", &uri]);
        command.stdin(Stdio::null()).output().expect("it runs").status.success()
    };
    assert!(size("4242"), "a user of the group");
    assert!(!size("65534"), "a user of another");
    // The group sees nothing else.
    let mut list = Command::new("setpriv");
    list.args(OTHER_USER).arg("--regid=4242").args(["ls", text(&dir)]);
    assert!(!list.output().expect("it runs").status.success());
    good(&["cluster", "restart", "--dir", text(&dir), "frontend", "f1"]);
    assert!(size("4242"), "after a restart");
    let added = json(&["cluster", "add", "frontend", "--json", "--dir", text(&dir)]);
    assert!(added["addr"].as_str().is_some_and(|addr| addr.ends_with(":0")), "{added}");
    let table = good(&["status", "--cluster", text(&dir)]);
    assert!(table.contains("unix socket"), "{table}");
}

fn rustix_is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|facts| facts.uid() == 0)
}

#[test]
fn copies_stay_below_their_target() {
    let mut scratch = Scratch::new("get");
    let dir = scratch.cluster("cluster");
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "1", "--chunkservers", "1"]);
    let on = |args: &[&str]| [&["fs", "--cluster", text(&dir)][..], args].concat().join("\n");
    let run = |args: &[&str]| {
        let line = on(args);
        good(&line.split('\n').collect::<Vec<_>>())
    };
    let src = scratch.path("src");
    fs::create_dir_all(src.join("deep/er")).expect("a directory");
    for (name, mode) in [("tool", 0o6755), ("deep/er/file", 0o640)] {
        fs::write(src.join(name), name).expect("a file");
        fs::set_permissions(src.join(name), fs::Permissions::from_mode(mode)).expect("a mode");
    }
    fs::set_permissions(src.join("deep"), fs::Permissions::from_mode(0o3755)).expect("a mode");
    run(&["put", "-r", text(&src), "/tree"]);
    // Set-user-ID, set-group-ID and sticky bits stay behind.
    let back = scratch.path("back");
    run(&["get", "-r", "/tree", text(&back)]);
    let mode = |name: &str| fs::metadata(back.join(name)).expect("there").mode() & 0o7777;
    assert_eq!((mode("tool"), mode("deep"), mode("deep/er/file")), (0o755, 0o755, 0o640));
    let single = scratch.path("single");
    run(&["get", "/tree/tool", text(&single)]);
    assert_eq!(fs::metadata(&single).expect("there").mode() & 0o7777, 0o755);

    // A link below the target is not followed; the target itself may be one.
    let (elsewhere, target) = (scratch.path("elsewhere"), scratch.path("target"));
    for path in [&elsewhere, &target, &target.join("tree")] {
        fs::create_dir(path).expect("a directory");
    }
    symlink(&elsewhere, target.join("tree/deep")).expect("a link");
    let line = on(&["get", "-r", "/tree", text(&target)]);
    bad(&line.split('\n').collect::<Vec<_>>(), 4, "a symbolic link lies on the way");
    assert_eq!(fs::read_dir(&elsewhere).expect("it lists").count(), 0);
    fs::remove_file(target.join("tree/deep")).expect("a link");
    let through = scratch.path("through");
    symlink(&target, &through).expect("a link");
    run(&["get", "-r", "/tree", text(&through)]);
    assert_eq!(fs::read(target.join("tree/deep/er/file")).expect("there"), b"deep/er/file");
    // A file replaces a link, not the link's target.
    let (kept, link) = (scratch.path("kept"), scratch.path("link"));
    fs::write(&kept, "kept").expect("a file");
    symlink(&kept, &link).expect("a link");
    run(&["get", "/tree/tool", text(&link)]);
    assert_eq!(fs::read(&kept).expect("there"), b"kept");
    assert_eq!(fs::read(&link).expect("there"), b"tool");
}

#[test]
fn attach_refuses_directories_others_can_change() {
    let scratch = Scratch::new("attach");
    let detach = |runs: &Path, want: &str| {
        let output = command(&["volume", "detach", "v", "--run-dir", text(runs)]).output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(want), "{said}");
    };
    let open = scratch.path("open");
    fs::create_dir(&open).expect("a directory");
    detach(&open, "is not attached here");
    let below = open.join("below");
    fs::create_dir(&below).expect("a directory");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("a mode");
    detach(&open, "can be changed by other users");
    detach(&below, "lies below a directory that other users can change");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).expect("a mode");
    let link = scratch.path("link");
    symlink(&open, &link).expect("a link");
    detach(&link, "is a symbolic link");
    // Its files are private to its own user, and links to files are not followed.
    let fresh = scratch.path("fresh");
    detach(&fresh, "is not attached here");
    assert_eq!(fs::metadata(&fresh).expect("there").mode() & 0o7777, 0o700);
    fs::write(scratch.path("note"), "{}").expect("a file");
    symlink(scratch.path("note"), fresh.join("v.json")).expect("a link");
    detach(&fresh, "cannot read");
    fs::remove_file(fresh.join("lock")).expect("it is there");
    symlink(scratch.path("note"), fresh.join("lock")).expect("a link");
    detach(&fresh, "cannot open");
    assert_eq!(fs::read(scratch.path("note")).expect("there"), b"{}");
}

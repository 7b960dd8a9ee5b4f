//! Volumes on the client's side: disk images in and out, devices of this host, the Unix socket.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{self, Scratch, bad, command, content, good, need, skip, text, tool as run};
use crate::nbd::{Nbd, REFUSED};

fn up(dir: &Path) {
    let flags = ["--masters", "1", "--chunkservers", "1", "--block-servers", "1"];
    good(&[&["cluster", "up", "--dir", text(dir)][..], &flags].concat());
}

/// A typical disk: data, zeroes, holes, an end within a block.
fn image(path: &Path) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; (40 << 20) + 777];
    bytes[..3 << 20].copy_from_slice(&content(3 << 20, 1));
    bytes[(5 << 20) + 4096..][..100].copy_from_slice(&content(100, 2));
    bytes[(40 << 20) - 10..][..787].copy_from_slice(&content(787, 3));
    let file = fs::File::create(path).expect("a file");
    file.set_len(bytes.len() as u64).expect("room");
    for at in [0, 1, 2, 4, 5, 39] {
        file.write_all_at(&bytes[at << 20..][..1 << 20], (at << 20) as u64).expect("room");
    }
    file.write_all_at(&bytes[40 << 20..], 40 << 20).expect("room");
    bytes
}

#[test]
fn exported_images_equal_the_imported() {
    need(&["nbdinfo", "qemu-io", "qemu-img"]);
    let mut scratch = Scratch::new("images");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let cluster = text(&dir).to_owned();
    let on = |args: &[&str]| good(&[&["volume"], args, &["--cluster", &cluster]].concat());
    let refused = |args: &[&str], code: i32, want: &str| {
        bad(&[&["volume"], args, &["--cluster", &cluster]].concat(), code, want);
    };
    let (disk, back) = (scratch.path("disk"), scratch.path("back"));
    let bytes = image(&disk);

    // The volume is made, as small as volumes are; zeroes take no room.
    let imported: Value =
        serde_json::from_str(&on(&["import", "v", text(&disk), "--json"])).expect("JSON");
    assert_eq!(
        (&imported["made"], &imported["bytes"]),
        (&true.into(), &bytes.len().into()),
        "{imported}"
    );
    assert!(imported["data_bytes"].as_u64().is_some_and(|data| data < 4 << 20), "{imported}");
    on(&["export", "v", text(&back), "--quiet"]);
    let read = fs::read(&back).expect("the image");
    assert_eq!(read.len(), 1 << 30);
    assert!(read[..bytes.len()] == bytes[..], "the image came back different");
    assert!(read[bytes.len()..].iter().all(|&byte| byte == 0));
    assert!(fs::metadata(&back).expect("it").blocks() * 512 < 16 << 20, "zeroes are holes");
    refused(&["export", "v", text(&back)], 1, "--force");
    // An interrupted export leaves the file that it was to replace.
    fs::write(&back, "older").expect("room");
    let cut_off = "ulimit -f 100; exec \"$0\" volume export v \"$1\" --force --cluster \"$2\"";
    let binary = harness::binary();
    let args = ["-c", cut_off, text(&binary), text(&back), &cluster];
    assert!(!Command::new("sh").args(args).output().expect("it runs").status.success());
    assert_eq!(fs::read(&back).expect("the image"), b"older");
    // A killed client has the volume open until its lease is over.
    let args = ["volume", "export", "v", text(&back), "--force", "--quiet", "--cluster", &cluster];
    harness::wait("it is open to others", Duration::from_secs(60), || {
        harness::craton(&args).status.success()
    });
    assert_eq!(fs::metadata(&back).expect("it").len(), 1 << 30);
    assert!(!scratch.path("back.craton-part").exists());

    // Over old content: it goes where the image has zeroes.
    let fill = scratch.path("fill");
    fs::write(&fill, vec![9u8; 48 << 20]).expect("room");
    on(&["import", "v", text(&fill), "--quiet"]);
    let input = fs::File::open(&disk).expect("it is there");
    let args = ["volume", "import", "v", "-", "--quiet", "--cluster", &cluster];
    assert!(command(&args).stdin(input).status().expect("it runs").success());
    let mut out = command(&["volume", "export", "v", "-", "--cluster", &cluster])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut read = Vec::new();
    out.stdout.take().expect("a pipe").read_to_end(&mut read).expect("bytes");
    assert!(out.wait().expect("it ends").success());
    assert!(read[..bytes.len()] == bytes[..] && read.len() == 1 << 30);
    assert!(read[bytes.len()..48 << 20].iter().all(|&byte| byte == 9), "what is behind stays");

    refused(&["import", "new", "-"], 2, "give --size");
    refused(&["import", "new", "-", "--format", "qcow2"], 2, "standard input");
    refused(&["import", "v", text(&disk), "--size", "2GiB"], 2, "leave --size out");
    refused(&["import", "v", "/nowhere"], 4, "cannot read /nowhere");
    refused(&["import", "v", text(&dir)], 2, "is a directory");
    refused(&["export", "none", text(&scratch.path("none"))], 1, "no such volume");
    assert!(!scratch.path("none").exists());
    let large = scratch.path("large");
    fs::File::create(&large).and_then(|file| file.set_len(3 << 30)).expect("a sparse file");
    refused(&["import", "v", text(&large)], 1, "craton volume resize");

    // The Unix socket is the same export, and a client that has it open keeps others out.
    let nearby = harness::book(&dir)["endpoints"]["nbd_unix"].as_str().expect("one").to_owned();
    let socket = nearby.strip_prefix("nbd+unix:///?socket=").expect("a URI").to_owned();
    assert_eq!(fs::metadata(&socket).expect("a socket").mode() & 0o777, 0o600);
    let uri = format!("nbd+unix:///v?socket={socket}");
    assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), (1 << 30).to_string());
    // It has the volume open until its input ends.
    let mut held = Command::new("qemu-io");
    held.args(["-f", "raw", &uri]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut held = held.spawn().expect("it runs");
    held.stdin.as_mut().expect("a pipe").write_all(b"length\n").expect("it reads");
    let mut answer = [0; 10];
    held.stdout.as_mut().expect("a pipe").read_exact(&mut answer).expect("it is open");
    refused(&["import", "v", text(&disk)], 1, "has it open");
    refused(&["export", "v", text(&scratch.path("none"))], 1, "has it open");
    // A command that begins while the volume is about to be closed waits for that.
    std::thread::scope(|scope| {
        let closed = scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(600));
            drop(held.stdin.take());
            assert!(held.wait().expect("it ends").success());
        });
        on(&["import", "v", text(&disk), "--quiet"]);
        closed.join().expect("it is closed");
    });

    let (qcow, again) = (scratch.path("disk.qcow2"), scratch.path("again.qcow2"));
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", text(&disk), text(&qcow)]);
    on(&["import", "q", text(&qcow), "--quiet"]);
    on(&["export", "q", text(&again), "--quiet"]);
    let about = run("qemu-img", &["info", text(&again)]);
    assert!(about.contains("file format: qcow2"), "{about}");
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", text(&disk), text(&again)]);
    let args = ["volume", "import", "q2", text(&qcow), "--cluster", &cluster];
    let output = command(&args).env("PATH", "").output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("qemu-utils"), "{error}");
    refused(&["info", "q2"], 1, "no such volume");
}

#[test]
fn a_volume_is_a_device_of_this_host() {
    let root = run("id", &["-u"]).trim() == "0";
    if !root || !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        return skip("it needs root, FUSE and loop devices");
    }
    need(&["nbdfuse", "losetup", "fusermount3", "blockdev"]);
    let mut scratch = Scratch::new("attach");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let (cluster, runs) = (text(&dir).to_owned(), scratch.path("run"));
    let with = |args: &[&str]| {
        let end = ["--run-dir", text(&runs), "--cluster", &cluster];
        [&["volume"], args, &end].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let on = |args: &[&str]| {
        good(&with(args).iter().map(String::as_str).collect::<Vec<_>>()).trim().to_owned()
    };
    let refused = |args: &[&str], code: i32, want: &str| {
        bad(&with(args).iter().map(String::as_str).collect::<Vec<_>>(), code, want);
    };
    good(&["volume", "create", "a disk", "--size", "1GiB", "--cluster", &cluster]);
    let printed = on(&["attach", "a disk", "--print"]);
    assert!(printed.contains("a%20disk"), "{printed}");
    assert!(!runs.exists(), "printing changes nothing");
    refused(&["attach", "none"], 1, "no such volume");

    let device = on(&["attach", "a disk"]);
    assert_eq!(run("blockdev", &["--getsize64", &device]).trim(), (1u64 << 30).to_string());
    refused(&["attach", "a disk"], 1, &format!("attached as {device}"));
    let bytes = content(5 << 20, 7);
    let file = scratch.path("bytes");
    fs::write(&file, &bytes).expect("room");
    let (from, to) = (format!("if={}", text(&file)), format!("of={device}"));
    run("dd", &[&from, &to, "bs=1M", "seek=100", "conv=notrunc", "status=none"]);
    // As a mapping, an array, swap space, or a mount of any namespace has it.
    let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
    let used = fs::File::options().read(true).custom_flags(exclusive).open(&device);
    let used = used.expect("nothing else uses it");
    refused(&["detach", "a disk"], 1, "is in use");
    drop(used);
    on(&["detach", "a disk"]);
    refused(&["detach", "a disk"], 1, "is not attached here");
    assert_eq!(fs::read_dir(&runs).expect("it lists").count(), 2, "the lock and nbdfuse's words");

    // The written data is there, by the device's name as well.
    let attached: Value = serde_json::from_str(&on(&["attach", "a disk", "--json"])).expect("JSON");
    let device = attached["device"].as_str().expect("a device").to_owned();
    assert!(attached["volume"] == "a disk" && Path::new(&device).exists(), "{attached}");
    let back = scratch.path("back");
    let (from, to) = (format!("if={device}"), format!("of={}", text(&back)));
    run("dd", &[&from, &to, "bs=1M", "skip=100", "count=5", "status=none"]);
    assert!(fs::read(&back).expect("it was read") == bytes);
    let detached: Value = serde_json::from_str(&on(&["detach", &device, "--json"])).expect("JSON");
    assert_eq!(
        (&detached["volume"], &detached["device"]),
        (&"a disk".into(), &device.as_str().into())
    );

    // A front end that is down, and has closed the volume before.
    harness::wait("the volume is free", std::time::Duration::from_secs(10), || {
        let info = harness::json(&["volume", "info", "a disk", "--json", "--cluster", &cluster]);
        info["attachments"].as_array().is_some_and(Vec::is_empty)
    });
    harness::kill9(&dir, &["f1"]);
    refused(&["attach", "a disk"], 1, "nbdfuse");
    assert_eq!(fs::read_dir(&runs).expect("it lists").count(), 2);
}

#[test]
fn other_machines_show_a_certificate() {
    need(&["openssl", "nbdinfo"]);
    let mut scratch = Scratch::new("tls");
    let dir = scratch.cluster("cluster");
    let keys = scratch.path("keys");
    fs::create_dir_all(&keys).expect("a directory");
    let script = r#"
        new="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        openssl req -x509 $new -days 2 -keyout ca.key -out ca-cert.pem -subj /CN=authority
        for name in server client; do
            openssl req $new -keyout $name-key.pem -out request.pem -subj /CN=$name
            echo "subjectAltName=IP:127.0.0.1" >extensions
            openssl x509 -req -in request.pem -CA ca-cert.pem -CAkey ca.key -CAcreateserial \
                -days 2 -extfile extensions -out $name-cert.pem
        done"#;
    let made = Command::new("sh").args(["-ec", script]).current_dir(&keys).output().expect("sh");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let shape = ["--masters", "1", "--chunkservers", "1", "--block-servers", "1"];
    let up = |flags: &[&str]| {
        [&["cluster", "up", "--dir", text(&dir)][..], &shape, flags]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let refused = |flags: &[&str], code: i32, want: &str| {
        bad(&up(flags).iter().map(String::as_str).collect::<Vec<_>>(), code, want);
    };
    refused(&["--nbd-listen", "192.0.2.1"], 2, "client certificates");
    refused(&["--nbd-tls", text(&keys)], 2, "--nbd-allow");
    let tls = ["--nbd-tls", text(&keys), "--nbd-allow", "data=client,x", "--nbd-allow", "d=y"];
    good(&up(&tls).iter().map(String::as_str).collect::<Vec<_>>());
    refused(&tls, 2, "is said when a cluster is made");
    let cluster = text(&dir).to_owned();
    for name in ["data", "d"] {
        good(&["volume", "create", name, "--size", "1GiB", "--cluster", &cluster]);
    }
    let nbd = harness::book(&dir)["endpoints"]["nbd"].as_str().expect("one").to_owned();
    assert!(nbd.starts_with("nbds://"), "{nbd}");
    let uri = |name: &str| format!("{nbd}/{name}?tls-certificates={}", text(&keys));
    assert_eq!(run("nbdinfo", &["--size", &uri("data")]).trim(), (1u64 << 30).to_string());
    let off = Command::new("nbdinfo").arg(uri("d")).output().expect("it runs");
    assert!(!off.status.success(), "it is not on the list");
    let plain = Command::new("nbdinfo").arg(nbd.replace("nbds", "nbd") + "/data").output();
    assert!(!plain.expect("it runs").status.success(), "it has no certificate");
    // This machine's own user needs none.
    let socket = harness::book(&dir)["endpoints"]["nbd_unix"].as_str().expect("one").to_owned();
    run("nbdinfo", &["--size", &socket.replacen("///", "///d", 1)]);
}

/// Has a volume open until it is dropped.
struct OpenVolume(std::process::Child);

impl OpenVolume {
    fn open(uri: &str) -> OpenVolume {
        let mut child = Command::new("qemu-io");
        child.args(["-f", "raw", uri]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().expect("it runs");
        child.stdin.as_mut().expect("a pipe").write_all(b"length\n").expect("it reads");
        let mut answer = [0; 10];
        child.stdout.as_mut().expect("a pipe").read_exact(&mut answer).expect("it is open");
        OpenVolume(child)
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Offset, length and type of the parts that nbdinfo prints, neighbours of one type as one.
pub fn map(uri: &str) -> Vec<(u64, u64, u64)> {
    let mut found: Vec<(u64, u64, u64)> = Vec::new();
    for line in run("nbdinfo", &["--map", uri]).lines() {
        let mut words = line.split_whitespace().map(|word| word.parse().unwrap_or(u64::MAX));
        let mut number = || words.next().expect("a number");
        let (offset, len, kind) = (number(), number(), number());
        match found.last_mut() {
            Some(last) if last.2 == kind => last.1 += len,
            _ => found.push((offset, len, kind)),
        }
    }
    found
}

#[test]
fn two_front_ends_keep_the_contract() {
    need(&["qemu-io", "nbdinfo"]);
    let mut scratch = Scratch::new("contract");
    let dir = scratch.cluster("cluster");
    let flags = ["--masters", "1", "--chunkservers", "1", "--block-servers", "1"];
    good(&[&["cluster", "up", "--dir", text(&dir), "--frontends", "2"][..], &flags].concat());
    let cluster = text(&dir).to_owned();
    good(&["volume", "create", "own", "--size", "1GiB", "--cluster", &cluster]);
    good(&["volume", "create", "all", "--size", "1GiB", "--shared", "--cluster", &cluster]);
    let uri = |id: &str, name: &str| {
        let process = harness::process(&dir, id);
        format!("nbd://{}/{name}", process["addr"].as_str().expect("an address"))
    };
    let qemu = |uri: &str, commands: &[&str]| {
        let mut args = vec!["-f", "raw", "-d", "unmap"];
        commands.iter().for_each(|command| args.extend(["-c", command]));
        args.push(uri);
        let output = Command::new("qemu-io").args(&args).output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(error) }
    };
    let list = run("nbdinfo", &["--list", &uri("f1", "")]);
    assert!(list.contains("export=\"own\"") && list.contains("export=\"all\""), "{list}");
    let unknown = Command::new("nbdinfo").arg(uri("f1", "none")).output().expect("it runs");
    assert!(!unknown.status.success());

    // Unwritten and trimmed parts are holes; zeroes that were written are not.
    let own = uri("f1", "own");
    let writes = ["write -P 7 0 4M", "discard 1M 1M", "write -z 3M 512k", "flush"];
    qemu(&own, &writes).expect("all goes well");
    let mib = 1 << 20;
    let want = [(0, mib, 0), (mib, mib, 3), (2 * mib, mib, 0), (3 * mib, mib / 2, 2)];
    let seen = map(&own);
    assert_eq!(seen[..4], want, "{seen:?}");
    assert_eq!(seen[4..], [(7 * mib / 2, mib / 2, 0), (4 * mib, 1020 * mib, 3)], "{seen:?}");

    // One front end has it: the other names that one. A shared volume both may have.
    let held = (OpenVolume::open(&own), OpenVolume::open(&uri("f1", "all")));
    // All clients of one front end are one holder.
    qemu(&own, &["read -P 7 0 1M"]).expect("it is open there");
    let refused = qemu(&uri("f2", "own"), &["read 0 4k"]).expect_err("it is open");
    assert!(refused.contains("front end f1 has it open"), "{refused}");
    let (code, words) = Nbd::try_open(&uri("f2", "own")).err().expect("it is open");
    assert_eq!(code, REFUSED | 2, "not allowed, as the protocol says it: {words}");
    assert!(words.contains("front end f1 has it open"), "{words}");
    qemu(&uri("f2", "all"), &["write -P 3 0 64k"]).expect("it is shared");
    drop(held);
    harness::wait("the volume is free", std::time::Duration::from_secs(10), || {
        qemu(&uri("f2", "own"), &["read -P 7 0 1M", "read -P 0 1M 1M"]).is_ok()
    });
    qemu(&uri("f1", "all"), &["read -P 3 0 64k"]).expect("what the other one wrote");

    // A killed front end keeps it for some seconds; after a restart it has its own back at once.
    let again = || good(&["cluster", "restart", "--dir", &cluster, "frontend", "f1"]);
    let held = OpenVolume::open(&own);
    harness::kill9(&dir, &["f1"]);
    again();
    qemu(&own, &["read -P 7 0 1M"]).expect("it had it before");
    drop(held);
    let held = OpenVolume::open(&own);
    harness::kill9(&dir, &["f1"]);
    let refused = qemu(&uri("f2", "own"), &["read 0 4k"]).expect_err("it may be alive");
    assert!(refused.contains("front end f1 has it open"), "{refused}");
    harness::wait("it counts as gone", std::time::Duration::from_secs(10), || {
        qemu(&uri("f2", "own"), &["read -P 7 0 1M"]).is_ok()
    });
    drop(held);
    again();
    // A volume made for one holder is opened to several.
    harness::wait("the volume is free", std::time::Duration::from_secs(10), || {
        let info = harness::json(&["volume", "info", "own", "--json", "--cluster", &cluster]);
        info["attachments"].as_array().is_some_and(Vec::is_empty)
    });
    good(&["volume", "set", "own", "--shared", "true", "--cluster", &cluster]);
    let first = OpenVolume::open(&own);
    qemu(&uri("f2", "own"), &["write -P 9 0 64k"]).expect("it is shared now");
    drop(first);
    qemu(&own, &["read -P 9 0 64k"]).expect("what the other one wrote");
}

//! Standard tools on volumes of real processes: nbdinfo, nbdcopy, qemu-img, qemu-io, and fio, which
//! verifies what it writes while servers die.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{
    Scratch, content, good, json, kill9, metric, need, process, text, tool, wait,
};
use crate::images::map;
use crate::volumes::up;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Makes a volume of 1 GiB; returns the URI of its export.
fn create(dir: &Path, name: &str) -> String {
    let args = ["volume", "create", name, "--size", "1GiB", "--json", "--cluster", text(dir)];
    json(&args)["nbd"].as_str().expect("an export").to_owned()
}

/// Runs commands of qemu-io, each of which has to succeed.
fn qemu_io(format: &str, uri: &str, commands: &[&str]) {
    let mut args = vec!["-f", format, "-d", "unmap"];
    commands.iter().for_each(|command| args.extend(["-c", command]));
    args.push(uri);
    let printed = tool("qemu-io", &args);
    // Wrong bytes are printed, and do not make it fail.
    let failed = ["failed", "rror"].iter().any(|word| printed.contains(word));
    assert!(!failed, "qemu-io {commands:?}: {printed}");
}

#[test]
fn disk_tools_agree_on_volumes_of_processes() {
    need(&["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"]);
    let mut scratch = Scratch::new("standard");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let (one, two) = (create(&dir, "one"), create(&dir, "two"));

    let about = tool("nbdinfo", &[&one]);
    for fact in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export-size: 1073741824",
        "base:allocation",
        "can_multi_conn: true",
        "can_fua: true",
        "can_flush: true",
        "can_trim: true",
        "can_zero: true",
        "can_fast_zero: true",
        "can_cache: true",
        "can_df: true",
        "is_read_only: false",
        "block_size_minimum: 1",
        "volume one",
    ] {
        assert!(about.contains(fact), "{fact}: {about}");
    }
    let list = tool("nbdinfo", &["--list", one.trim_end_matches("one")]);
    assert!(list.contains("export=\"one\"") && list.contains("export=\"two\""), "{list}");
    assert_eq!(map(&one), [(0, GIB, 3)]);

    // Unaligned, across data sectors and blocks; forced unit access; zeroes and trims.
    let io = |commands: &[&str]| qemu_io("raw", &one, commands);
    io(&["write -P 0xab 1000 5000", "read -P 0xab 1000 5000", "read -P 0 0 1000"]);
    io(&["read -P 0 6000 2192", "write -P 0xcd 130k 777", "read -P 0xcd 130k 777"]);
    io(&["write -f -P 0x12 64k 8M", "read -P 0x12 64k 8M", "flush", "read -P 0xab 1000 5000"]);
    io(&["write -z 70000 3333", "read -P 0 70000 3333", "read -P 0x12 73333 1000"]);
    io(&["write -z -u 1M 1M", "write -z -n 2M 64k", "write -z -f 2112k 64k"]);
    io(&["read -P 0 1M 1152k", "read -P 0x12 2176k 64k"]);
    io(&["discard 3M 2M", "read -P 0 3M 2M", "discard 8200000 100", "read -P 0x12 5M 512k"]);
    io(&[
        "aio_write -P 0x31 0 64k",
        "aio_write -P 0x32 64k 64k",
        "aio_write -z 1M 4k",
        "aio_flush",
    ]);
    io(&["aio_read -P 0x31 0 64k", "aio_read -P 0x32 64k 64k", "aio_flush"]);
    io(&["writev -P 0x51 8M 4k 512 60k", "readv -P 0x51 8M 32k 31k"]);
    io(&["write -f -P 0x77 1073741312 512", "read -P 0x77 1073741312 512"]);
    let past = Command::new("qemu-io").args(["-f", "raw", "-c", "read 1G 512", &one]).output();
    assert!(!past.expect("it runs").status.success(), "a read behind the end");
    // Trimmed parts are holes; zeroes that were to keep their room are none.
    let seen = map(&one);
    let kind = |at: u64| seen.iter().rev().find(|part| part.0 <= at).expect("from 0 on").2;
    let at = |place: u64| (place, kind(place));
    assert_eq!([at(64 * KIB), at(MIB + 64 * KIB)], [(64 * KIB, 0), (MIB + 64 * KIB, 3)]);
    assert_eq!([at(2 * MIB), at(4 * MIB)], [(2 * MIB, 2), (4 * MIB, 3)], "{seen:?}");
    assert_eq!([at(6 * MIB), at(GIB / 2), at(GIB - 512)].map(|at| at.1), [0, 3, 0], "{seen:?}");
    let map_of = |uri: &str| tool("qemu-img", &["map", "-f", "raw", "--output=json", uri]);
    let parts = map_of(&one);
    assert!(parts.contains("\"data\": false") && parts.contains("\"data\": true"), "{parts}");

    // Out as qcow2, in again as raw, and from volume to volume with several connections.
    let path = |name: &str| text(&scratch.path(name)).to_owned();
    let (qcow, overlay, image) = (path("qcow2"), path("overlay"), path("image"));
    let img = |args: &[&str]| tool("qemu-img", args);
    img(&["convert", "-f", "raw", "-O", "qcow2", &one, &qcow]);
    img(&["compare", "-f", "raw", "-F", "qcow2", &one, &qcow]);
    img(&["convert", "-n", "-f", "qcow2", "-O", "raw", &qcow, &two]);
    img(&["compare", "-f", "raw", "-F", "raw", &one, &two]);
    qemu_io("raw", &two, &["write -P 0x99 300M 3M", "discard 0 1M"]);
    let compare = ["compare", "-f", "raw", "-F", "raw", &one, &two];
    let other = Command::new("qemu-img").args(compare).output().expect("it runs");
    assert_eq!(other.status.code(), Some(1), "they differ, and the exit code says so");
    tool("nbdcopy", &["--connections=4", "--requests=16", &one, &two]);
    img(&["compare", "-f", "raw", "-F", "raw", &one, &two]);
    // A volume below an overlay, which goes down into it.
    img(&["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &one, &overlay]);
    qemu_io("qcow2", &overlay, &["write -P 0x66 7M 100k", "read -P 0x32 64k 64k"]);
    qemu_io("raw", &one, &["read -P 0x12 7M 100k"]);
    img(&["commit", "-q", "-f", "qcow2", &overlay]);
    qemu_io("raw", &one, &["read -P 0x66 7M 100k", "read -P 0x12 6M 1M"]);
    // A file format inside a volume.
    img(&["create", "-q", "-f", "qcow2", &two, "512M"]);
    qemu_io("qcow2", &two, &["write -P 0x44 100M 1M", "read -P 0x44 100M 1M", "read -P 0 0 1M"]);
    img(&["check", "-q", "-f", "qcow2", &two]);

    // A file with an end that is no block's.
    let bytes = content(3 * MIB as usize + 777, 8);
    fs::write(&image, &bytes).expect("room");
    tool("nbdcopy", &[&image, &one]);
    img(&["convert", "-f", "raw", "-O", "raw", &one, &path("back")]);
    let back = fs::read(path("back")).expect("it is there");
    assert!(back.len() as u64 == GIB && back[..bytes.len()] == bytes[..], "other bytes");
    good(&["volume", "check", "one", "--cluster", text(&dir)]);
}

/// A run of fio, ended with the test.
struct Fio(Child);

impl Fio {
    fn start(uri: &str, args: &[&str]) -> Fio {
        let uri = format!("--uri={uri}");
        let mut command = Command::new("fio");
        command.args(["--name=verify", "--ioengine=nbd", &uri, "--rw=randwrite"]);
        command.args(["--verify=crc32c", "--verify_fatal=1", "--output-format=terse"]);
        // It would leave a file where it runs.
        command.arg("--verify_state_save=0");
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Fio(command.spawn().expect("it runs"))
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().expect("it can be waited for").is_none()
    }

    fn end(mut self) {
        use std::io::Read;
        let mut printed = String::new();
        let out = self.0.stdout.take().expect("a pipe").read_to_string(&mut printed);
        let err = self.0.stderr.take().expect("a pipe").read_to_string(&mut printed);
        out.and(err).expect("text");
        let status = self.0.wait().expect("it ends");
        assert!(status.success(), "fio: {status}: {printed}");
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal to a process of the cluster.
fn signal(dir: &Path, id: &str, signal: &str) {
    let pid = process(dir, id)["pid"].to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
}

#[test]
fn fio_verifies_while_servers_die() {
    need(&["fio"]);
    let engines = tool("fio", &["--enghelp"]);
    assert!(engines.contains("nbd"), "fio has no engine nbd: run scripts/prepare.sh");
    let mut scratch = Scratch::new("fio");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let url = create(&dir, "v");
    // Sizes of all kinds, one over the other.
    let mixed = ["--bs=512-100k", "--bs_unaligned=1", "--iodepth=8", "--size=16M", "--do_verify=1"];
    Fio::start(&url, &mixed).end();

    // 4,096 writes at 500 a second: eight seconds at least, in which it reads back as it goes.
    let rate = "--rate_iops=500,500,500";
    let shape = ["--bs=4k", "--iodepth=16", "--offset=512M", "--size=16M"];
    let work = ["--do_verify=1", "--verify_backlog=256", rate];
    let mut fio = Fio::start(&url, &[&shape[..], &work].concat());
    let written = || metric(&dir, "f1", "craton_nbd_written_bytes_total");
    let before = written();
    wait("fio writes", Duration::from_secs(20), || written() > before + 1e6);
    kill9(&dir, &["bs1"]);
    std::thread::sleep(Duration::from_millis(1500));
    signal(&dir, "cs2", "-STOP");
    std::thread::sleep(Duration::from_secs(1));
    signal(&dir, "cs2", "-CONT");
    assert!(fio.is_running(), "it was over before the faults were");
    fio.end();
    // All of it once more, from the servers that are left; then with the one that comes back.
    let again = [&shape[..], &["--verify_only=1"]].concat();
    Fio::start(&url, &again).end();
    good(&["cluster", "restart", "--dir", text(&dir), "block-server", "bs1"]);
    kill9(&dir, &["bs2"]);
    Fio::start(&url, &again).end();
}

//! NBD tools against the server: nbdinfo, nbdcopy, qemu-io, qemu-img, fio.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use block_nbd::server::{Frontend, Limits};
use runtime::{Cores, Rng, RuntimeConfig};

use super::client::InMemory;

/// A front end in this process, and a directory for what tools read and write.
struct Served {
    _cores: Cores,
    addr: SocketAddr,
    dir: PathBuf,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

const BYTES: u64 = 24 << 20;

fn serve(name: &str) -> Served {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nbd-{name}"));
    fs::create_dir_all(&dir).expect("a directory");
    let socket = dir.join("socket");
    let cores = Cores::start(&RuntimeConfig::named("nbd"), 1).expect("an executor");
    let start = cores.handles()[0].spawn(|env| async move {
        let exports = InMemory::new(&env, Duration::ZERO);
        exports.add("vol", BYTES, true);
        exports.add("own", BYTES, false);
        let frontend = Frontend::new(&env, exports, Limits::default());
        frontend.listen_unix(&socket).await.expect("a free name");
        frontend.listen(([127, 0, 0, 1], 0).into()).await.expect("a free port")
    });
    let addr = start.wait().expect("it starts");
    Served { _cores: cores, addr, dir }
}

/// Fails when one of these tools is missing.
pub(super) fn need(tools: &[&str]) {
    for tool in tools {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
        let found = found.is_ok_and(|output| output.status.success());
        assert!(found, "{tool} is not installed: run scripts/prepare.sh");
    }
}

impl Served {
    fn uri(&self, name: &str) -> String {
        format!("nbd://{}/{name}", self.addr)
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().expect("text").to_owned()
    }

    /// Runs a tool to its end; what it has printed.
    fn run(&self, tool: &str, args: &[&str]) -> String {
        let mut command = Command::new("timeout");
        command.args(["60", tool]).args(args).current_dir(&self.dir);
        let output = command.output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let printed = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{tool} {args:?}: {printed}");
        printed
    }
}

#[test]
fn nbdinfo_shows_what_is_served() {
    need(&["nbdinfo"]);
    let served = serve("info");
    let list = served.run("nbdinfo", &["--list", &served.uri("")]);
    assert!(list.contains("export=\"vol\"") && list.contains("export=\"own\""), "{list}");
    let about = served.run("nbdinfo", &[&served.uri("vol")]);
    for fact in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export-size: 25165824",
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
        "volume vol",
    ] {
        assert!(about.contains(fact), "{fact}: {about}");
    }
    let map = served.run("nbdinfo", &["--map", &served.uri("vol")]);
    assert!(map.contains("25165824") && map.contains("hole,zero"), "{map}");
    let unix = format!("nbd+unix:///vol?socket={}", served.path("socket"));
    assert_eq!(served.run("nbdinfo", &["--size", &unix]).trim(), BYTES.to_string());
    let own = served.run("nbdinfo", &[&served.uri("own")]);
    assert!(own.contains("can_multi_conn: false"), "{own}");
    let none = Command::new("nbdinfo").arg(served.uri("none")).output().expect("it runs");
    assert!(!none.status.success());
}

#[test]
fn nbdcopy_reads_back_what_it_wrote() {
    need(&["nbdcopy"]);
    let served = serve("copy");
    let mut content = vec![0; BYTES as usize];
    Rng::new(5).fill(&mut content[..9 << 20]);
    Rng::new(6).fill(&mut content[20 << 20..]);
    fs::write(served.path("in"), &content).expect("room");
    for name in ["vol", "own"] {
        let uri = served.uri(name);
        served.run("nbdcopy", &[&served.path("in"), &uri]);
        served.run("nbdcopy", &[&uri, &served.path("out")]);
        assert!(fs::read(served.path("out")).expect("it is there") == content);
        fs::remove_file(served.path("out")).expect("it is there");
    }
    served.run("nbdcopy", &[&served.uri("vol"), &served.uri("own")]);
}

#[test]
fn qemu_reads_what_it_wrote() {
    need(&["qemu-io", "qemu-img"]);
    let served = serve("qemu");
    let uri = served.uri("vol");
    let io = |commands: &[&str]| {
        let mut args = vec!["-f", "raw", "-d", "unmap"];
        commands.iter().for_each(|command| args.extend(["-c", command]));
        args.push(&uri);
        let printed = served.run("qemu-io", &args);
        assert!(!printed.contains("failed") && !printed.contains("rror"), "{printed}");
    };
    io(&["write -P 0xab 1000 5000", "read -P 0xab 1000 5000", "read -P 0 0 1000"]);
    io(&["write -f -P 0x12 64k 8M", "read -P 0x12 64k 8M", "flush"]);
    io(&["write -z 70000 3333", "read -P 0 70000 3333", "read -P 0x12 73333 1000"]);
    io(&["write -z -u 1M 1M", "write -z -n 2M 64k", "read -P 0 1M 1088k"]);
    io(&["discard 3M 2M", "read -P 0 3M 2M", "discard 8200000 100", "read -P 0x12 5M 512k"]);
    io(&["aio_write -P 0x31 0 64k", "aio_write -P 0x32 64k 64k", "aio_flush"]);
    io(&["read -P 0x31 0 64k", "read -P 0x32 64k 64k"]);
    let past = Command::new("qemu-io")
        .args(["-f", "raw", "-c", "read 25165824 512", &uri])
        .output()
        .expect("it runs");
    assert!(!past.status.success());
    let map = served.run("qemu-img", &["map", "-f", "raw", "--output=json", &uri]);
    assert!(map.contains("\"data\": false") && map.contains("\"data\": true"), "{map}");
    served.run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, &served.path("q")]);
    served.run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &uri, &served.path("q")]);
    let own = served.uri("own");
    let path = served.path("q");
    served.run("qemu-img", &["convert", "-n", "-f", "qcow2", "-O", "raw", &path, &own]);
    served.run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &uri, &own]);
}

#[test]
fn fio_verifies_what_it_wrote() {
    need(&["fio"]);
    let engines = Command::new("fio").arg("--enghelp").output().expect("it runs");
    let engines = String::from_utf8_lossy(&engines.stdout);
    assert!(engines.contains("nbd"), "fio has no engine nbd: run scripts/prepare.sh");
    let served = serve("fio");
    let uri = format!("--uri={}", served.uri("vol"));
    for shape in [["--bs=4k", "--iodepth=32"], ["--bs=512-100k", "--iodepth=8"]] {
        let mut args = vec!["--name=verify", "--ioengine=nbd", &uri, "--rw=randwrite"];
        args.extend(["--size=16M", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1"]);
        args.extend(["--bs_unaligned=1", "--output-format=terse"]);
        args.extend(shape);
        served.run("fio", &args);
    }
}

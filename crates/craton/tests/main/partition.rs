//! A network that is cut in two: real processes in network namespaces.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Scratch, binary, content, good, need, skip, text, wait};

/// Two sides and the switch between them, each a namespace.
struct Net {
    sides: [String; 2],
    switch: String,
}

fn ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(args).output();
    let output = output.map_err(|error| format!("ip cannot be run ({error})"))?;
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ip {}: {why}", args.join(" "))) }
}

impl Net {
    fn new() -> Result<Net, String> {
        let pid = std::process::id();
        let sides = [format!("cra{pid}"), format!("crb{pid}")];
        let net = Net { sides, switch: format!("crs{pid}") };
        let switch = net.switch.as_str();
        ip(&["netns", "add", switch])?;
        ip(&["-n", switch, "link", "add", "bridge", "type", "bridge"])?;
        ip(&["-n", switch, "link", "set", "bridge", "up"])?;
        for (index, side) in net.sides.iter().enumerate() {
            ip(&["netns", "add", side])?;
            ip(&["-n", side, "link", "set", "lo", "up"])?;
            let pair = ["link", "add", "side", "type", "veth", "peer", "name", side];
            ip(&[&["-n", side][..], &pair, &["netns", switch]].concat())?;
            ip(&["-n", switch, "link", "set", side, "master", "bridge", "up"])?;
            let addr = format!("{}/24", Net::host(index));
            ip(&["-n", side, "addr", "add", &addr, "dev", "side"])?;
            ip(&["-n", side, "link", "set", "side", "up"])?;
        }
        Ok(net)
    }

    fn host(side: usize) -> String {
        format!("10.213.0.{}", side + 1)
    }

    /// Cuts the minority off, or joins it again, without a signal: packets are dropped.
    fn set_joined(&self, joined: bool) {
        let state = if joined { "up" } else { "down" };
        ip(&["-n", &self.switch, "link", "set", &self.sides[0], state]).expect("a link");
    }

    /// A command that runs on a side.
    fn command(&self, side: usize, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.sides[side], text(&binary())]);
        command.args(args).env_remove("CRATON_CLUSTER").env_remove("CRATON_KEY_FILE");
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in self.sides.iter().chain([&self.switch]) {
            let _ = ip(&["netns", "del", name]); // It may not have been made.
        }
    }
}

/// Side of each master: the first side is the minority.
const MASTERS: [usize; 3] = [0, 1, 1];
const SERVERS: [usize; 4] = [0, 1, 1, 1];
const CLUSTER: &str = "clu_5f0c9a1e4b7d2836a1c0e9f84d3b2756";

fn master_addr(index: usize) -> String {
    format!("{}:{}", Net::host(MASTERS[index]), 7001 + index)
}

fn server_addr(index: usize) -> String {
    format!("{}:{}", Net::host(SERVERS[index]), 7101 + index)
}

/// The cluster's processes, which end with the test.
struct Cluster {
    net: Net,
    masters: String,
    key: PathBuf,
    processes: Vec<Child>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill(); // It may have ended.
            let _ = process.wait();
        }
    }
}

impl Cluster {
    fn start(net: Net, root: &Path) -> Cluster {
        let key = root.join("cluster.key");
        std::fs::create_dir(root).expect("a directory");
        std::fs::write(&key, "5a".repeat(32)).expect("a key");
        let masters: Vec<String> = (0..MASTERS.len()).map(master_addr).collect();
        let mut cluster = Cluster { net, masters: masters.join(","), key, processes: Vec::new() };
        let mut peers = String::new();
        for (index, addr) in masters.iter().enumerate() {
            let number = index + 1;
            writeln!(peers, "[[peers]]\nraft_id = {number}\nid = \"m{number}\"\naddr = \"{addr}\"")
                .expect("text");
        }
        for (index, side) in MASTERS.into_iter().enumerate() {
            let (number, addr) = (index + 1, &masters[index]);
            let config = format!(
                "id = \"m{number}\"\nraft_id = {number}\ncluster = \"{CLUSTER}\"\n\
                 listen = \"{addr}\"\ndata_dir = \"m{number}\"\nkey_file = \"cluster.key\"\n\
                 {peers}"
            );
            cluster.role(root, side, "master", &format!("m{number}"), &config);
        }
        for (index, side) in SERVERS.into_iter().enumerate() {
            let (id, addr) = (format!("cs{}", index + 1), server_addr(index));
            let store = root.join(&id);
            std::fs::create_dir(&store).expect("a directory");
            good(&["store", "format", "--unit-kib", "16", "--capacity-gib", "1", text(&store)]);
            let config = format!(
                "id = \"{id}\"\nlisten = \"{addr}\"\nmasters = {masters:?}\n\
                 key_file = \"cluster.key\"\n[[stores]]\npath = \"{id}\"\ncapacity_gib = 1\n\
                 unit_kib = 16\n"
            );
            cluster.role(root, side, "chunkserver", &id, &config);
        }
        cluster
    }

    fn role(&mut self, root: &Path, side: usize, role: &str, id: &str, config: &str) {
        let path = root.join(format!("{id}.toml"));
        std::fs::write(&path, config).expect("a configuration");
        let output = std::fs::File::create(root.join(format!("{id}.log"))).expect("a log");
        let mut command = self.net.command(side, &[role, "--config", text(&path)]);
        let errors = output.try_clone().expect("a log");
        let process = command.stdout(output).stderr(errors).spawn().expect("ip runs");
        self.processes.push(process);
    }

    fn craton(&self, side: usize, args: &[&str]) -> Command {
        let names = ["--cluster", self.masters.as_str(), "--key-file", text(&self.key)];
        self.net.command(side, &[args, &names].concat())
    }

    fn run(&self, side: usize, args: &[&str]) -> Output {
        self.craton(side, args).output().expect("ip runs")
    }

    /// Standard output of a run that must succeed.
    fn good(&self, side: usize, args: &[&str]) -> Vec<u8> {
        let output = self.run(side, args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "on side {side} {args:?}: {error}");
        output.stdout
    }

    fn status(&self) -> Value {
        let output = self.run(1, &["status", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }
}

#[test]
fn partitioned_minority_acknowledges_nothing() {
    const CUT: Duration = Duration::from_secs(8);
    need(&["ip"]);
    let scratch = Scratch::new("net");
    let net = match Net::new() {
        Ok(net) => net,
        Err(why) => return skip(&format!("a cut network: {why}")),
    };
    let cluster = Cluster::start(net, &scratch.path("cluster"));
    let local = scratch.path("file");
    let bytes = content(200_000, 5);
    std::fs::write(&local, &bytes).expect("a file");
    let all_up = || {
        let status = cluster.status();
        let up = |what: &str, count: usize| {
            let all = status[what].as_array().cloned().unwrap_or_default();
            all.len() == count && all.iter().all(|one| one["state"] == "up")
        };
        up("masters", MASTERS.len()) && up("chunkservers", SERVERS.len())
    };
    wait("the cluster is there", Duration::from_secs(60), all_up);
    let put = |name: &str| ["fs", "put", text(&local), name].map(str::to_owned);
    let put_good = |side: usize, name: &str| {
        cluster.good(side, &put(name).each_ref().map(String::as_str));
    };
    put_good(0, "/before-a");
    put_good(1, "/before-b");

    cluster.net.set_joined(false);
    let began = Instant::now();
    // Three clients of the minority try all the time.
    let mut tries: Vec<Child> = (0..3)
        .map(|number| {
            let args = put(&format!("/cut-{number}"));
            let mut command = cluster.craton(0, &args.each_ref().map(String::as_str));
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("ip runs")
        })
        .collect();
    let mut longest = Duration::ZERO;
    let mut written = 0;
    while began.elapsed() < CUT {
        let one = Instant::now();
        put_good(1, &format!("/majority-{written}"));
        written += 1;
        longest = longest.max(one.elapsed());
        for one in &mut tries {
            let ended = one.try_wait().expect("it can be asked");
            assert!(!ended.is_some_and(|status| status.success()), "the minority acknowledged");
        }
    }

    cluster.net.set_joined(true);
    let healed = Instant::now();
    wait("all is up again", Duration::from_secs(30), all_up);
    for (number, one) in tries.iter_mut().enumerate() {
        // Retried requests are done now; a request that has failed may have been too early.
        let status = one.wait().expect("it ends");
        assert!(status.success(), "/cut-{number} was not stored after the cut: {status}");
    }
    let whole = healed.elapsed();
    wait("full redundancy", Duration::from_secs(60), || {
        let status = cluster.status();
        status["chunks"]["under_replicated"] == 0 && status["chunks"]["lost"] == 0
    });
    println!(
        "cut for {CUT:?}: the majority wrote {written} files, the slowest in {longest:.1?}; \
         whole {whole:.1?} after"
    );
    let names = (0..written).map(|number| format!("/majority-{number}"));
    let names = names.chain((0..3).map(|number| format!("/cut-{number}")));
    for name in names.chain(["/before-a".to_owned(), "/before-b".to_owned()]) {
        assert!(cluster.good(0, &["fs", "cat", &name]) == bytes, "{name} has other bytes");
    }
}

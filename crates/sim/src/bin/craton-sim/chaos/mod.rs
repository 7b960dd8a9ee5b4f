//! `craton-sim chaos`: a cluster of real processes under load and faults, in real time.
//!
//! The load is that of a user: blocks over NBD, files through the core. Its model has what was
//! acknowledged. Faults hit one process at a time, as a minority: `kill -9`, a stop of
//! seconds, packets to one process that are dropped while its own connections stay, a full disk.
//! At the end, without faults, everything acknowledged is compared, volumes are checked, redundancy
//! is whole, and no process has logged an error that its fault does not explain.

// Real processes, threads and clocks are the point.
#![allow(clippy::disallowed_methods)]

mod blocks;
mod cluster;
mod faults;
mod files;
mod net;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::failure::{Done, Failure};
use runtime::Rng;

use crate::args::ChaosArgs;
use crate::print_line;
use cluster::Cluster;
use faults::Faults;

/// Set for the run inside of its own network.
const INSIDE: &str = "CRATON_CHAOS_INSIDE";
/// Without faults the cluster is whole within so long.
const WHOLE_WITHIN: Duration = Duration::from_secs(300);

/// Runs the command.
pub fn run(args: &ChaosArgs) -> Done {
    if std::env::var_os(INSIDE).is_none() && net::is_root() {
        return enter_own_network();
    }
    let own_network = std::env::var_os(INSIDE).is_some();
    if own_network {
        net::prepare()?;
    } else {
        print_line("skipped: dropped packets and full disks: they need root")?;
    }
    let mut cluster = Cluster::make(&args.craton, &args.dir)?;
    let done = storm(args, &cluster, own_network);
    let down = cluster.down();
    done.and(down)
}

/// Runs this command again in a network and with mounts of its own, which end with it.
fn enter_own_network() -> Done {
    let own = std::env::current_exe()
        .map_err(|error| Failure::setup(format!("this binary cannot be found: {error}")))?;
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount"]).arg(own).args(std::env::args_os().skip(1));
    let error = command.env(INSIDE, "1").exec();
    Err(Failure::setup(format!("unshare cannot be run ({error}): install util-linux")))
}

fn storm(args: &ChaosArgs, cluster: &Cluster, own_network: bool) -> Done {
    let mut rng = Rng::new(args.seed);
    let stop = Arc::new(AtomicBool::new(false));
    let files = files::Load::start(cluster, rng.fork(), &stop)?;
    let blocks = blocks::Load::start(cluster, rng.fork(), &stop)?;
    let began = Instant::now();
    let mut faults = Faults::new(cluster, rng.fork(), own_network);
    let seconds = Duration::from_secs(args.seconds);
    let mut broken = None;
    while began.elapsed() < seconds && broken.is_none() {
        faults.next(began)?;
        // A violation ends the run at once: the logs are fresh then.
        broken = blocks.violation().or_else(|| files.violation());
    }
    print_line(&format!("{:>6.1} s  no more faults", began.elapsed().as_secs_f64()))?;
    cluster.start_all()?;
    let whole = cluster.wait_until_whole(WHOLE_WITHIN);
    stop.store(true, Ordering::Relaxed);
    let (files, blocks) = (files.end(), blocks.end());
    let (files, blocks) = (files.map_err(Failure::failed)?, blocks.map_err(Failure::failed)?);
    let whole = whole?;
    files.verify(cluster).map_err(Failure::failed)?;
    blocks.verify(cluster).map_err(Failure::failed)?;
    let volumes = blocks.volumes();
    volumes.iter().try_for_each(|name| cluster.craton(&["volume", "check", name]).map(drop))?;
    let after = cluster.wait_until_whole(WHOLE_WITHIN)?;
    let unexpected = cluster.errors(&faults.expected())?;
    if let Some(line) = unexpected.first() {
        let count = unexpected.len();
        return Err(Failure::failed(format!("{count} unexpected ERROR lines, the first: {line}")));
    }
    print_line(&format!(
        "seed {}: {} faults in {} s; whole {:.1} s after the last, {:.1} s after the comparison\n{}\n{}",
        args.seed,
        faults.count(),
        args.seconds,
        whole.as_secs_f64(),
        after.as_secs_f64(),
        files.summary(),
        blocks.summary(),
    ))
}

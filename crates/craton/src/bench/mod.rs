//! `craton bench`: its work and its output.

pub mod args;
mod csv;
mod object;
pub mod ops;
pub mod parts;
mod processes;

use std::net::SocketAddr;
use std::path::PathBuf;

use bench::{
    AppendOptions, Echo, FloorOptions, MetaOptions, ObjectOptions, ReadOptions, Report, Row,
    TransportOptions, VolumeOptions,
};
use block_client::{Limits, VolumeExports};
use block_proto::Managers;
use runtime::Duration;

use self::args::{BenchArgs, BenchCommand};
use crate::cluster::Directory;
use crate::connect::{self, with_client};
use crate::connection::Connection;
use crate::exit::{Done, Failure};
use crate::fs::policy;
use crate::output::{print_line, print_table, table};
use crate::role::NBD_SCHEME;

use csv::Sink;
use processes::Local;

/// Runs a command.
pub fn run(connection: &Connection, command: BenchCommand) -> Done {
    match command {
        BenchCommand::Append { size, depth, redundancy, run } => {
            let (processes, scratch) = local(connection, &run)?;
            let measured = with_client(connection, async |client| {
                let sink = Sink::open(&run.output, client.env())?;
                let options = AppendOptions {
                    sizes: size,
                    depths: depth,
                    policy: policy::choose(&client, redundancy).await?,
                    duration: Duration::from_secs(run.seconds),
                    scratch,
                };
                Ok((bench::append(&client, &processes, options).await?, sink))
            });
            show(measured?)
        }
        BenchCommand::Read { size, depth, file_mib, redundancy, run } => {
            let (processes, scratch) = local(connection, &run)?;
            let measured = with_client(connection, async |client| {
                let sink = Sink::open(&run.output, client.env())?;
                let options = ReadOptions {
                    sizes: size,
                    depths: depth,
                    file_bytes: file_mib << 20,
                    policy: policy::choose(&client, redundancy).await?,
                    duration: Duration::from_secs(run.seconds),
                    scratch,
                };
                Ok((bench::read(&client, &processes, options).await?, sink))
            });
            show(measured?)
        }
        BenchCommand::Meta { files, dirs, depth, run } => {
            let (processes, _) = local(connection, &run)?;
            let measured = with_client(connection, async |client| {
                let sink = Sink::open(&run.output, client.env())?;
                let options = MetaOptions { files, dirs, depth };
                Ok((bench::meta(&client, &processes, options).await?, sink))
            });
            show(measured?)
        }
        BenchCommand::Volume {
            redundancy,
            seconds,
            fill_mib,
            creates,
            takeover_mib,
            only,
            output,
        } => {
            let (known, nbd) = (connect::target(connection)?, front_end(connection)?);
            let processes = Local::of(&known)?;
            let measured = with_client(connection, async |client| {
                let sink = Sink::open(&output, client.env())?;
                let endpoint = connect::endpoint(client.env(), &known);
                let (managers, limits) = (Managers::new(&client), Limits::default());
                let exports = VolumeExports::new(&managers, &endpoint, "bench", limits);
                let options = VolumeOptions {
                    policy: policy::choose(&client, redundancy).await?,
                    nbd,
                    duration: Duration::from_secs(seconds),
                    fill_mib,
                    creates,
                    takeover_mib,
                    parts: parts::parts(&only),
                };
                Ok((bench::volume(&client, &exports, &processes, &options).await?, sink))
            });
            show(measured?)
        }
        BenchCommand::Object {
            size,
            concurrency,
            keys,
            only,
            unsigned,
            seconds,
            redundancy,
            output,
        } => {
            let processes = Local::of(&connect::target(connection)?)?;
            let (access, endpoint) = object::reached(connection)?;
            let measured = with_client(connection, async |client| {
                let sink = Sink::open(&output, client.env())?;
                let options = ObjectOptions {
                    endpoint,
                    region: access.region,
                    access_key: access.access_key,
                    secret_key: access.secret_key,
                    policy: policy::choose(&client, redundancy).await?,
                    ops: only.into_iter().map(ops::Op::measured).collect(),
                    sizes: size,
                    depths: concurrency,
                    keys,
                    signed: !unsigned,
                    duration: Duration::from_secs(seconds),
                };
                Ok((bench::object(&client, &processes, &options).await?, sink))
            });
            object::show(measured?)
        }
        BenchCommand::Transport { size, depth, run } => {
            crate::log::start_foreground();
            let echo = Echo::start()?;
            let runtime = connect::runtime()?;
            let duration = Duration::from_secs(run.seconds);
            let options = TransportOptions { sizes: size, depths: depth, duration };
            let sink = Sink::open(&run.output, runtime.env())?;
            let measured = runtime.block_on(echo.measure(runtime.env(), &options));
            show((measured?, sink))
        }
        BenchCommand::Floor { size, replicas, run } => {
            crate::log::start_foreground();
            let runtime = connect::runtime()?;
            let scratch = scratch(None, &run)?;
            let duration = Duration::from_secs(run.seconds);
            let options = FloorOptions { size, replicas, duration, scratch };
            let sink = Sink::open(&run.output, runtime.env())?;
            let measured = runtime.block_on(bench::floor(runtime.env(), options));
            show((measured?, sink))
        }
    }
}

fn scratch(dir: Option<PathBuf>, run: &BenchArgs) -> Result<PathBuf, Failure> {
    let scratch = run.scratch.clone().or(dir).unwrap_or_else(std::env::temp_dir);
    if !scratch.is_dir() {
        return Err(Failure::setup(format!(
            "{} is no directory: make it, or name another with --scratch",
            scratch.display()
        )));
    }
    Ok(scratch)
}

/// A cluster's processes here, and the directory for the floor's files.
fn local(connection: &Connection, run: &BenchArgs) -> Result<(Local, PathBuf), Failure> {
    let known = connect::target(connection)?;
    Ok((Local::of(&known)?, scratch(known.dir, run)?))
}

/// Address of the NBD front end; only known of a local cluster.
fn front_end(connection: &Connection) -> Result<Option<SocketAddr>, Failure> {
    let Some(dir) = connect::target(connection)?.dir else { return Ok(None) };
    let nbd = Directory::existing(&dir)?.read()?.endpoints.nbd;
    Ok(nbd.and_then(|nbd| nbd.strip_prefix(NBD_SCHEME)?.parse().ok()))
}

fn show((report, sink): (Report, Sink)) -> Done {
    sink.put(&report, print)
}

fn print(report: &Report) -> Done {
    let mut out = table(&[
        "what",
        "size",
        "depth",
        "ops/s",
        "MiB/s",
        "mean us",
        "p50",
        "p99",
        "p99.9",
        "floor us",
        "ratio",
        "disk B/B",
        "cpu us/op",
        "client",
        "by role",
    ]);
    for row in &report.results {
        out.add_row(cells(report.bench, row));
    }
    print_table(out, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13])?;
    let (asked, others): (Vec<_>, _) = report.left_out.iter().partition(|one| one.why.is_some());
    for one in asked {
        let why = one.why.as_deref().unwrap_or_default();
        print_line(&format!("not measured: {}: {why}", one.part.name()))?;
    }
    match others.is_empty() {
        true => Ok(()),
        false => {
            let names: Vec<&str> = others.into_iter().map(|one| one.part.name()).collect();
            print_line(&format!("not measured: {}; '--only all' does", names.join(", ")))
        }
    }
}

fn cells(bench: &str, row: &Row) -> Vec<String> {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let is_shown = |(role, us): &(&String, &f64)| *role != bench::THIS_PROCESS && **us >= 0.05;
    let servers = row.cpu_us_per_op.iter().filter(is_shown);
    let servers: Vec<_> = servers.map(|(role, us)| format!("{role} {us:.1}")).collect();
    vec![
        row.kind.clone().unwrap_or_else(|| bench.to_owned()),
        row.size.map_or_else(|| "-".to_owned(), |size| size.to_string()),
        row.depth.to_string(),
        number(Some(row.ops_per_s), 0),
        number(row.mib_per_s, 1),
        number(Some(row.mean_us), 1),
        number(Some(row.p50_us), 1),
        number(Some(row.p99_us), 1),
        number(Some(row.p999_us), 1),
        number(row.floor_us, 1),
        match row.fraction_of_floor {
            Some(share) => format!("{share:.2} of disk"),
            None => match (row.ratio_core, row.write_amplification, row.longest_ms) {
                (Some(ratio), ..) => format!("{ratio:.2} x core"),
                (None, Some(copied), _) => collected(row, copied),
                (None, None, Some(longest)) => format!("longest {longest:.0} ms"),
                (None, None, None) => number(row.ratio, 2),
            },
        },
        number(row.disk_bytes_per_byte, 2),
        number(row.cpu_us_per_op_servers, 1),
        number(row.cpu_us_per_op_client, 1),
        servers.join(", "),
    ]
}

/// Write amplification and longest latency with garbage collection, in words.
fn collected(row: &Row, amplification: f64) -> String {
    let live = 100.0 * row.live_share.unwrap_or_default();
    let longest = row.tail.zip(row.ratio_tail);
    let longest = longest.map(|(tail, ratio)| format!(", {tail} {ratio:.2} x without"));
    format!("{amplification:.2} x written, {live:.0} % live{}", longest.unwrap_or_default())
}

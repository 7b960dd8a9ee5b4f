//! `craton bench`: what the command line asks for, and how it is shown.

mod round_trip;

use std::path::PathBuf;

use client::Client;
use runtime::Duration;

use crate::args::{BenchArgs, BenchCommand, Connection};
use crate::bench::{
    self, AppendOptions, FloorOptions, MetaOptions, Process, ReadOptions, Report, Row, Target,
};
use crate::cluster::{Directory, is_alive, role_word};
use crate::connect::{self, with_client};
use crate::exit::{Done, Failure};
use crate::fs::policy;
use crate::output::{print_json, print_table, table};

/// Runs a command.
pub fn run(connection: &Connection, command: BenchCommand) -> Done {
    match command {
        BenchCommand::Append { size, depth, redundancy, run } => {
            let target = target(connection, &run)?;
            let measured = with_client(connection, async |client| {
                let options = AppendOptions {
                    sizes: size,
                    depths: depth,
                    replicas: copies(&client, redundancy).await?,
                    duration: Duration::from_secs(run.seconds),
                };
                bench::append(&client, &target, options).await.map_err(Failure::failed)
            });
            show(&measured?, &run)
        }
        BenchCommand::Read { size, depth, file_mib, redundancy, run } => {
            let target = target(connection, &run)?;
            let measured = with_client(connection, async |client| {
                let options = ReadOptions {
                    sizes: size,
                    depths: depth,
                    file_bytes: file_mib << 20,
                    replicas: copies(&client, redundancy).await?,
                    duration: Duration::from_secs(run.seconds),
                };
                bench::read(&client, &target, options).await.map_err(Failure::failed)
            });
            show(&measured?, &run)
        }
        BenchCommand::Meta { files, dirs, depth, run } => {
            let target = target(connection, &run)?;
            let measured = with_client(connection, async |client| {
                let options = MetaOptions { files, dirs, depth };
                bench::meta(&client, &target, options).await.map_err(Failure::failed)
            });
            show(&measured?, &run)
        }
        BenchCommand::Transport { size, depth, run } => {
            crate::log::start_foreground();
            let time = Duration::from_secs(run.seconds);
            show(&round_trip::measure(&size, &depth, time)?, &run)
        }
        BenchCommand::Floor { size, replicas, run } => {
            crate::log::start_foreground();
            let runtime = connect::runtime()?;
            let target = Target { scratch: scratch(None, &run), processes: Vec::new() };
            let duration = Duration::from_secs(run.seconds);
            let options = FloorOptions { size, replicas, duration };
            let measured = runtime.block_on(bench::floor(runtime.env(), &target, options));
            show(&measured.map_err(Failure::failed)?, &run)
        }
    }
}

async fn copies(client: &Client, asked: Option<u8>) -> Result<u8, Failure> {
    Ok(policy::choose(client, asked).await?.copies)
}

fn scratch(dir: Option<PathBuf>, run: &BenchArgs) -> PathBuf {
    run.scratch.clone().or(dir).unwrap_or_else(std::env::temp_dir)
}

/// What is known of a cluster that runs on this machine.
fn target(connection: &Connection, run: &BenchArgs) -> Result<Target, Failure> {
    let dir = connect::target(connection)?.dir;
    let mut processes = Vec::new();
    if let Some(dir) = &dir {
        let book = Directory::existing(dir)?.read()?;
        for process in book.processes.iter().filter(|process| is_alive(process)) {
            let role = role_word(process.role);
            // Of 'craton up' one process has all roles.
            if !processes.iter().any(|known: &Process| known.pid == process.pid) {
                processes.push(Process { role: role.to_owned(), pid: process.pid });
            }
        }
    }
    Ok(Target { scratch: scratch(dir, run), processes })
}

fn show(report: &Report, run: &BenchArgs) -> Done {
    if run.json {
        return print_json(report);
    }
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
        "cpu us/op",
    ]);
    for row in &report.results {
        out.add_row(cells(report.bench, row));
    }
    print_table(out, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
}

fn cells(bench: &str, row: &Row) -> Vec<String> {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let cpu = row.cpu_us_per_op.iter().map(|(role, us)| format!("{role} {us:.1}"));
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
            None => number(row.ratio, 2),
        },
        cpu.collect::<Vec<_>>().join(", "),
    ]
}

//! The `craton` binary: command line, configuration and start-up of every role.
//!
//! Invariant: no protocol and no format lives here; it only puts the other crates together.

mod amplification;
mod args;
mod bench;
mod cluster;
mod connect;
mod connection;
mod exit;
mod file_lock;
mod format;
mod fs;
#[cfg(test)]
mod fuzz_tests;
mod health;
mod log;
mod masters;
mod output;
mod page;
mod role;
mod s3;
mod sizes;
mod status;
mod store;
mod trace;
mod upkeep;
mod volume;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command, RoleName};
use exit::{Done, Failure};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::print_failure(&failure);
            failure.exit_code()
        }
    }
}

/// Files that a cluster leaves on this machine are private to its user: directories 0700, files
/// 0600. Copies out of it have the modes that they have there.
fn keep_private(command: &Command) {
    // Each one is named: what is new is to be decided.
    let makes_data = match command {
        Command::Up(_)
        | Command::Cluster { .. }
        | Command::Store { .. }
        | Command::Master(_)
        | Command::Chunkserver(_)
        | Command::BlockManager(_)
        | Command::BlockServer(_)
        | Command::Frontend(_)
        | Command::ObjectManager(_)
        | Command::ObjectServer(_)
        | Command::Gateway(_) => true,
        Command::Volume { .. }
        | Command::Masters { .. }
        | Command::Fs { .. }
        | Command::User { .. }
        | Command::Bucket { .. }
        | Command::Range { .. }
        | Command::Kms { .. }
        | Command::Status(_)
        | Command::Health(_)
        | Command::Amplification(_)
        | Command::Drain { .. }
        | Command::Decommission { .. }
        | Command::Maintenance { .. }
        | Command::Disk { .. }
        | Command::Convert(_)
        | Command::Scrub { .. }
        | Command::Rebalance { .. }
        | Command::Trace(_)
        | Command::Bench { .. }
        | Command::Sim { .. }
        | Command::Completions { .. } => false,
    };
    if makes_data {
        rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    }
}

fn run(command: Command) -> Done {
    keep_private(&command);
    match command {
        Command::Up(args) => role::embedded::run(args),
        Command::Cluster { command } => cluster::run(command),
        Command::Master(args) => role::process::run(RoleName::Master, &args),
        Command::Chunkserver(args) => role::process::run(RoleName::Chunkserver, &args),
        Command::BlockManager(args) => role::process::run(RoleName::BlockManager, &args),
        Command::BlockServer(args) => role::process::run(RoleName::BlockServer, &args),
        Command::Frontend(args) => role::process::run(RoleName::Frontend, &args),
        Command::ObjectManager(args) => role::process::run(RoleName::ObjectManager, &args),
        Command::ObjectServer(args) => role::process::run(RoleName::ObjectServer, &args),
        Command::Gateway(args) => role::process::run(RoleName::Gateway, &args),
        Command::Volume { connection, command } => volume::run(&connection, command),
        Command::Masters { connection, command } => masters::run(&connection, command),
        Command::Fs { connection, services, command } => fs::run(&connection, services, command),
        Command::User { connection, command } => s3::user::run(&connection, command),
        Command::Bucket { connection, command } => s3::bucket::run(&connection, command),
        Command::Range { connection, command } => s3::range::run(&connection, command),
        Command::Kms { connection, command } => s3::kms::run(&connection, command),
        Command::Status(args) => status::run(&args),
        Command::Health(args) => health::run(&args),
        Command::Amplification(args) => amplification::run(&args),
        Command::Drain { connection, args } => upkeep::drain(&connection, &args),
        Command::Decommission { connection, args } => upkeep::decommission(&connection, &args),
        Command::Maintenance { connection, args } => upkeep::maintenance(&connection, &args),
        Command::Disk { connection, command } => upkeep::disk::run(&connection, &command),
        Command::Convert(args) => fs::convert(&args),
        Command::Scrub { connection, command } => upkeep::scrub::run(&connection, command),
        Command::Rebalance { connection, args } => upkeep::rebalance(&connection, &args),
        Command::Trace(args) => trace::run(&args),
        Command::Store { command } => store::run(command),
        Command::Bench { connection, command } => bench::run(&connection, command),
        Command::Sim { rest } => Err(Failure::usage(format!(
            "the simulator is a binary of its own: run '{}' (docs/simulation.md)",
            [vec!["craton-sim".to_owned()], rest].concat().join(" ")
        ))),
        Command::Completions { shell } => {
            // Not to standard output at once: a reader that has gone is no reason to panic.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "craton", &mut script);
            output::write_out(&[&script])
        }
    }
}

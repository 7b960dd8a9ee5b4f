//! The `craton` binary: command line, configuration and start-up of every role.
//!
//! Invariant: no protocol and no format lives here; it only puts the other crates together.

mod args;
mod bench;
mod cluster;
mod config;
mod connect;
mod exit;
mod fs;
#[cfg(test)]
mod fuzz_tests;
mod log;
mod masters;
mod measure;
mod output;
mod role;
mod simulate;
mod status;
mod store;
mod trace;
mod volume;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command};
use exit::Done;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("craton: {failure}");
            failure.exit_code()
        }
    }
}

fn run(command: Command) -> Done {
    match command {
        Command::Up(args) => role::embedded::run(args),
        Command::Cluster { command } => cluster::run(command),
        Command::Master(args) => role::master::run(&args),
        Command::Chunkserver(args) => role::chunkserver::run(&args),
        Command::BlockManager(args) => role::block::run_manager(&args),
        Command::BlockServer(args) => role::block::run_server(&args),
        Command::Frontend(args) => role::block::run_frontend(&args),
        Command::Volume { connection, command } => volume::run(&connection, command),
        Command::Masters { connection, command } => masters::run(&connection, command),
        Command::Fs { connection, command } => fs::run(&connection, command),
        Command::Status(args) => status::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Store { command } => store::run(command),
        Command::Bench { connection, command } => measure::run(&connection, command),
        Command::Sim { command } => simulate::run(command),
        Command::Completions { shell } => {
            // Not to standard output at once: a reader that has gone is no reason to panic.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "craton", &mut script);
            output::write_out(&[&script])
        }
    }
}

//! The `craton-sim` binary: runs of the whole-cluster simulator, and of real clusters under faults.
//!
//! Invariant: the product does not know it. `craton` links neither the simulator nor the bugs that
//! are planted for its checkers.

mod args;
mod chaos;
mod failure;
mod soak;

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::process::ExitCode;

use clap::Parser;
use sim::{Outcome, Scenario};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use args::{Cli, Command};
use failure::{Done, Failure};

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("craton-sim: {failure}");
            failure.exit_code()
        }
    }
}

fn run(command: Command) -> Done {
    match command {
        Command::List => {
            for scenario in sim::SCENARIOS {
                print_line(&format!("{:<24} {}", scenario.name, scenario.about))?;
            }
            Ok(())
        }
        Command::Run { scenario, seeds } => run_seeds(find(&scenario)?, seeds.start..seeds.end),
        Command::Replay { scenario, seed, log } => {
            log.as_deref().map_or(Ok(()), print_log)?;
            replay(find(&scenario)?, seed)
        }
        Command::Hashes { seeds } => hashes(seeds.start..seeds.end),
        Command::Soak(args) => soak::run(&args),
        Command::Chaos(args) => chaos::run(&args),
    }
}

/// Runs seeds of a scenario until one fails, and prints how many of them reached each of its rare paths.
fn run_seeds(scenario: &'static Scenario, seeds: Range<u64>) -> Done {
    let mut reached: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut busiest = (0, String::new());
    let note = |seed, outcome: &Outcome| {
        let (host, polls) = &outcome.busiest;
        if *polls > busiest.0 {
            busiest = (*polls, host.clone());
        }
        for mark in scenario.marks.iter().filter(|mark| outcome.marks.contains_key(*mark)) {
            reached.entry(mark).or_insert((0, seed)).0 += 1;
        }
    };
    let ran = quietly(|| sim::run_seeds(scenario, seeds, threads(), note));
    let count = ran.map_err(|failure| Failure::failed(failure.to_string()))?;
    print_line(&format!("{}: {count} seeds good", scenario.name))?;
    print_line(&format!("  most polls of a host in a second: {}, {}", busiest.0, busiest.1))?;
    for mark in scenario.marks {
        let seeds = match reached.get(mark) {
            Some((seeds, first)) => format!("reached by {seeds}, first by {first}"),
            None => "not reached".to_owned(),
        };
        print_line(&format!("  {mark}: {seeds}"))?;
    }
    Ok(())
}

/// Virtual time, as log lines have it.
struct VirtualTime;

impl FormatTime for VirtualTime {
    fn format_time(&self, into: &mut Writer<'_>) -> std::fmt::Result {
        write!(into, "{:12.6}", sim::elapsed().unwrap_or_default().as_secs_f64())
    }
}

fn print_log(filter: &str) -> Done {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| Failure::usage(format!("--log '{filter}': {error}")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(VirtualTime)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

fn replay(scenario: &Scenario, seed: u64) -> Done {
    let outcome = sim::run_seed(scenario, seed).map_err(|failure| {
        // The last line has its first line only.
        let rest = failure.violation.lines().skip(1);
        rest.for_each(|line| eprintln!("{line}"));
        Failure::failed(failure.to_string())
    })?;
    for (mark, count) in &outcome.marks {
        print_line(&format!("mark {mark}: {count}"))?;
    }
    print_line(&format!(
        "{} events in {:.3} s of virtual time\ntrace hash {:016x}",
        outcome.events,
        outcome.elapsed.as_secs_f64(),
        outcome.trace_hash
    ))
}

fn hashes(seeds: std::ops::Range<u64>) -> Done {
    for scenario in sim::SCENARIOS {
        let mut lines = Vec::new();
        let note = |seed, outcome: &sim::Outcome| {
            lines.push(format!("{} {seed} {:016x}", scenario.name, outcome.trace_hash));
        };
        let ran = quietly(|| sim::run_seeds(scenario, seeds.clone(), threads(), note));
        ran.map_err(|failure| Failure::failed(failure.to_string()))?;
        lines.iter().try_for_each(|line| print_line(line))?;
    }
    Ok(())
}

/// Threads of a run of many seeds: one for each core.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}

fn find(name: &str) -> Result<&'static Scenario, Failure> {
    sim::find(name).ok_or_else(|| {
        Failure::usage(format!("there is no scenario '{name}': 'craton-sim list' names them"))
    })
}

/// Runs without reports of panics: a seed that fails is reported with its violation.
fn quietly<T>(work: impl FnOnce() -> T) -> T {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = work();
    std::panic::set_hook(hook);
    result
}

/// Prints a line to standard output. A reader that has gone ends the process quietly.
fn print_line(line: &str) -> Done {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

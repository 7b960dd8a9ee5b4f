//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const EXIT_CODES: &str = "\
Exit codes:
  0  done, and clean
  1  a seed or a run failed
  2  the command line is wrong; nothing was done
  4  a directory, file or binary cannot be used";

/// Runs whole clusters of Craton under faults, in virtual time.
#[derive(Parser, Debug)]
#[command(name = "craton-sim", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// List the scenarios, one a line
    List,
    /// Run seeds of a scenario until one fails
    Run {
        /// Its name.
        #[arg(long)]
        scenario: String,
        /// The seeds A..B, without B
        #[arg(long, value_parser = parse_seeds)]
        seeds: Seeds,
    },
    /// Run one seed and print its trace hash
    Replay {
        /// The scenario's name.
        #[arg(long)]
        scenario: String,
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Print log lines of all processes with their virtual time, e.g. `info` or
        /// `block_manager=debug`.
        #[arg(long, value_name = "FILTER")]
        log: Option<String>,
    },
    /// Print the trace hashes of seeds of every scenario: two builds that print the same do the same
    Hashes {
        /// The seeds A..B, without B
        #[arg(long, value_parser = parse_seeds, default_value = "0..3")]
        seeds: Seeds,
    },
    /// Run fresh seeds of all scenarios until stopped, and keep the record of them in a file
    Soak(SoakArgs),
    /// Put a cluster of real processes under load and faults, and compare everything at the end
    ///
    /// Faults hit one process at a time: kill -9, a stop of 1 to 12 s, packets to it that are
    /// dropped while its own connections stay, a full disk. The last two need root: the run then
    /// has a network and mounts of its own, in which the cluster ends with it.
    Chaos(ChaosArgs),
}

/// `craton-sim chaos`.
#[derive(Args, Debug)]
pub struct ChaosArgs {
    /// The cluster's directory: a new or an empty one. It stays, for its logs
    #[arg(long)]
    pub dir: PathBuf,
    /// Seconds of faults
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// What the faults are drawn from. When they meet what, is not repeated
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The binary that is tested
    #[arg(long, value_name = "BINARY")]
    pub craton: PathBuf,
}

/// `craton-sim soak`.
#[derive(Args, Debug)]
pub struct SoakArgs {
    /// The record: a line for each range of seeds; the next run goes on behind the last
    #[arg(long, default_value = "target/soak.tsv", value_name = "FILE")]
    pub record: PathBuf,
    /// The commit that this binary is built from, for the record
    #[arg(long, default_value = "unknown")]
    pub commit: String,
    /// Only these scenarios
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub scenarios: Vec<String>,
    /// Seeds of a scenario before the next one has its turn
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub batch: u64,
    /// End when each scenario has had so many seeds of this commit
    #[arg(long, value_name = "SEEDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub until: Option<u64>,
    /// Threads [default: one for each core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// A half-open range of seeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seeds {
    /// The first.
    pub start: u64,
    /// Behind the last.
    pub end: u64,
}

/// Reads `A..B`.
pub fn parse_seeds(text: &str) -> Result<Seeds, String> {
    let wrong = || format!("'{text}' is no range of seeds: write A..B with A below B");
    let (start, end) = text.split_once("..").ok_or_else(wrong)?;
    match (start.parse(), end.parse()) {
        (Ok(start), Ok(end)) if start < end => Ok(Seeds { start, end }),
        _ => Err(wrong()),
    }
}

//! The command line of `craton bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use wire::control::Policy;

use super::ops::Op;
use super::parts::Part;
use crate::sizes::{parse_length, parse_size};

/// `craton bench`.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Durable appends beside their floor
    Append {
        /// Bytes of one append
        #[arg(long, value_delimiter = ',', default_values_t = [4096], value_parser = parse_length)]
        size: Vec<usize>,
        /// Appends under way at once
        #[arg(long, value_delimiter = ',', default_values_t = [1, 32], value_parser = parse_depth)]
        depth: Vec<usize>,
        /// rep1 to rep5: copies of the file, of which more than half are waited for; rep3-strict and
        /// the like: all [default: up to rep3, as the cluster has servers]
        #[arg(long, value_name = "POLICY")]
        redundancy: Option<Policy>,
        /// How.
        #[command(flatten)]
        run: BenchArgs,
    },
    /// Reads at random offsets of a file made of appends of mixed sizes
    Read {
        /// Bytes of one read
        #[arg(long, value_delimiter = ',', default_values_t = [4096], value_parser = parse_length)]
        size: Vec<usize>,
        /// Reads under way at once
        #[arg(long, value_delimiter = ',', default_values_t = [1, 32], value_parser = parse_depth)]
        depth: Vec<usize>,
        /// MiB of the file that is read
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=65_536))]
        file_mib: u64,
        /// rep1 to rep5: copies of the file, of which more than half are waited for; rep3-strict and
        /// the like: all [default: up to rep3, as the cluster has servers]
        #[arg(long, value_name = "POLICY")]
        redundancy: Option<Policy>,
        /// How.
        #[command(flatten)]
        run: BenchArgs,
    },
    /// Creates, look-ups and removals of files
    Meta {
        /// Files in all
        #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
        files: u64,
        /// Directories that they are spread over
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        dirs: u64,
        /// Operations under way at once
        #[arg(long, default_value_t = 64, value_parser = parse_depth)]
        depth: usize,
        /// How.
        #[command(flatten)]
        run: BenchArgs,
    },
    /// A block volume through the block client and through NBD, beside the core's own appends and
    /// reads; makes volumes and removes them. Without --only it writes less than 2 GB and ends within
    /// a minute; '--only all' has the long parts too, writes some 20 GB and takes many minutes
    Volume {
        /// rep1 to rep5: copies, of which more than half are waited for; rep3-strict and the like: all
        /// [default: up to rep3, as the cluster has servers]
        #[arg(long, value_name = "POLICY")]
        redundancy: Option<Policy>,
        /// Seconds for each of the five combinations of requests
        #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=600))]
        seconds: u64,
        /// MiB that are written in order, and read at random, through each of the three ways
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=256))]
        fill_mib: u64,
        /// Volumes made to measure their rate; 0: none
        #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(0..=1000))]
        creates: u32,
        /// MiB that are written to the segment that is recovered or taken over; the latter has 960 at
        /// most, before its index is stored
        #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=4096))]
        takeover_mib: u64,
        /// What is measured: 'all', or some parts
        #[arg(long, value_delimiter = ',', value_name = "PART,...",
            default_values = ["sequential", "reads", "writes", "creates"])]
        only: Vec<Part>,
        /// What becomes of the figures.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// S3 through a gateway: new objects, whole objects, and pages of keys and of common prefixes,
    /// beside the core's own appends and reads; makes a bucket and removes it
    Object {
        /// Bytes of one object
        #[arg(long, value_delimiter = ',', default_values_t = [4096, 4 << 20],
            value_parser = parse_length)]
        size: Vec<usize>,
        /// Operations under way at once
        #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32], value_parser = parse_depth)]
        concurrency: Vec<usize>,
        /// Keys that are listed, a page of up to 1,000 at a time
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        keys: u64,
        /// What is measured
        #[arg(long, value_delimiter = ',', value_name = "OP,...",
            default_values = ["put", "get", "list"])]
        only: Vec<Op>,
        /// Leave payloads out of signatures; SDKs sign them over HTTP
        #[arg(long)]
        unsigned: bool,
        /// Seconds for each combination, the core's turns included
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=600))]
        seconds: u64,
        /// rep1 to rep5: copies of the core's own files [default: up to rep3, as the cluster has
        /// servers]
        #[arg(long, value_name = "POLICY")]
        redundancy: Option<Policy>,
        /// What becomes of the figures.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Round trips between two executors of this machine over TCP; needs no cluster
    Transport {
        /// Bytes of the payload, a multiple of 4096
        #[arg(long, value_delimiter = ',', default_values_t = [0, 4096], value_parser = parse_size)]
        size: Vec<usize>,
        /// Calls under way at once
        #[arg(long, value_delimiter = ',', default_values_t = [1, 32], value_parser = parse_depth)]
        depth: Vec<usize>,
        /// How.
        #[command(flatten)]
        run: BenchArgs,
    },
    /// What disk and network do at best for an append; needs no cluster
    Floor {
        /// Bytes of one append
        #[arg(long, default_value_t = 4096, value_parser = parse_length)]
        size: usize,
        /// Concurrent writes
        #[arg(long, default_value_t = 3, value_parser = parse_depth)]
        replicas: usize,
        /// How.
        #[command(flatten)]
        run: BenchArgs,
    },
}

/// How a measurement runs.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// Seconds for each combination, floor included
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Directory for the floor's files, on the disk that the cluster stores on [default: the
    /// cluster's directory, else the one for temporary files]
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// What becomes of the figures.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What becomes of a benchmark's figures.
#[derive(Args, Clone, Debug)]
pub struct OutputArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Append the figures to a file too, one a row: name, value, unit, commit, machine, seed, date, command
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// What the rows of that file call this machine
    #[arg(long, value_name = "NAME", default_value = "-", requires = "csv")]
    pub machine: String,
}

/// Operations that a benchmark has under way at once.
pub fn parse_depth(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(depth @ 1..=1024) => Ok(depth),
        _ => Err("a number from 1 to 1024".to_owned()),
    }
}

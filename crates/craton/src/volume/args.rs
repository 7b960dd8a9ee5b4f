//! The command line of `craton volume`.

use clap::{Args, Subcommand};

use crate::args::{parse_policy, parse_size};

/// `craton volume`.
#[derive(Subcommand, Debug)]
pub enum VolumeCommand {
    /// Make a volume; ends when its export can be opened
    Create {
        /// Its name.
        name: String,
        /// What it is like.
        #[command(flatten)]
        volume: CreateArgs,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// List the volumes
    Ls {
        /// Print one JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Show a volume, its segments and the servers that have them
    Info {
        /// Its name.
        name: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Change what a volume may do; takes effect at once
    Set {
        /// Its name.
        name: String,
        /// The limits that change.
        #[command(flatten)]
        limits: LimitArgs,
        /// May be attached several times at once
        #[arg(long, value_name = "BOOL")]
        shared: Option<bool>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Change a volume's length
    Resize {
        /// Its name.
        name: String,
        /// Its new length
        #[arg(long, value_parser = parse_size)]
        size: usize,
        /// Cut data off when it gets shorter
        #[arg(long)]
        force: bool,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Remove volumes with their data
    Rm {
        /// Their names.
        #[arg(required = true)]
        names: Vec<String>,
        /// Also those that are open, and missing ones are no error
        #[arg(short, long)]
        force: bool,
    },
}

/// What a new volume is like.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Its length, such as 100GiB; space is taken as it is written
    #[arg(long, value_parser = parse_size)]
    pub size: usize,
    /// Copies: rep1 to rep5 [default: up to rep3, as the cluster has servers]
    #[arg(long, value_parser = parse_policy, value_name = "repN")]
    pub policy: Option<u8>,
    /// Bytes of a data sector: what one segment has before the next one's turn
    #[arg(long, value_parser = parse_size, default_value = "128KiB")]
    pub sector_size: usize,
    /// Segments of a group, each of which another server may have
    #[arg(long, default_value_t = 4)]
    pub segments: u32,
    /// Bytes of a segment group
    #[arg(long, value_parser = parse_size, default_value = "128GiB")]
    pub group_size: usize,
    /// May be attached several times at once
    #[arg(long)]
    pub shared: bool,
    /// What it may do.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// What a volume may do, a second. Kept with it; nothing enforces it yet (B12).
#[derive(Args, Debug)]
pub struct LimitArgs {
    /// Requests a second that are promised; 0: none. Limits are kept, not enforced yet
    #[arg(long)]
    pub iops_base: Option<u64>,
    /// Requests a second at most; 0: no bound
    #[arg(long)]
    pub iops_burst: Option<u64>,
    /// MB (10^6 bytes) a second that are promised; 0: none
    #[arg(long)]
    pub mbps_base: Option<u64>,
    /// MB (10^6 bytes) a second at most; 0: no bound
    #[arg(long)]
    pub mbps_burst: Option<u64>,
}

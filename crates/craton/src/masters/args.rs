//! The command line of `craton masters`.

use std::net::SocketAddr;

use base::DiskId;
use clap::Subcommand;

/// `craton masters`.
#[derive(Subcommand, Debug)]
pub enum MastersCommand {
    /// List them
    Members {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Add a master that runs already
    Add {
        /// Its number among the masters, never used before.
        raft_id: u64,
        /// Its name, e.g. m4.
        name: String,
        /// Where it is reached.
        addr: SocketAddr,
    },
    /// Remove a master
    Remove {
        /// Its number among the masters.
        raft_id: u64,
    },
    /// Let masters delete what no file refers to on a disk, however much it is
    Condemn {
        /// The disk, as 'craton status' names it where its collection has stopped.
        disk: DiskId,
    },
}

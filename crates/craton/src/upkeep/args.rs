//! The command lines of what an operator orders.

use std::time::Duration;

use clap::{Args, Subcommand};
use wire::control::Losses;
use wire::control::limits::MAINTENANCE_MAX_MS;

use crate::sizes::parse_seconds;

/// `craton drain`.
#[derive(Args, Debug)]
pub struct DrainArgs {
    /// The chunkserver, e.g. cs4
    pub id: String,
    /// Check whether it could be drained, and say what it holds
    #[arg(long, conflicts_with = "cancel")]
    pub dry_run: bool,
    /// Use it as any other again; what was made elsewhere so far stays there
    #[arg(long)]
    pub cancel: bool,
}

/// `craton decommission`.
#[derive(Args, Debug)]
pub struct DecommissionArgs {
    /// The chunkserver, e.g. cs4
    pub id: String,
    /// Check whether it could leave
    #[arg(long)]
    pub dry_run: bool,
    /// List the chunks that are lost without it, and what accepts just these
    #[arg(long, conflicts_with_all = ["dry_run", "accept_loss"])]
    pub losses: bool,
    /// Print that list as JSON
    #[arg(long, requires = "losses")]
    pub json: bool,
    /// Let it leave although these chunks are lost, as --losses has named them
    #[arg(long, value_name = "LOSSES", value_parser = parse_losses)]
    pub accept_loss: Option<Losses>,
}

/// `craton maintenance`.
#[derive(Args, Debug)]
pub struct MaintenanceArgs {
    /// The chunkserver, e.g. cs4
    pub id: String,
    /// Duration, such as 90s, 30m or 2h; 24h at most
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time, required_unless_present = "end")]
    pub lasts: Option<Duration>,
    /// End it now
    #[arg(long, conflicts_with = "lasts")]
    pub end: bool,
}

/// `craton rebalance`.
#[derive(Args, Debug)]
pub struct RebalanceArgs {
    /// Show how even the disks are, and change nothing
    #[arg(long, conflicts_with = "pause")]
    pub dry_run: bool,
    /// Leave chunks where they are until 'craton rebalance' is run without it; repair and drains
    /// go on
    #[arg(long)]
    pub pause: bool,
}

/// `craton disk`.
#[derive(Subcommand, Debug)]
pub enum DiskCommand {
    /// Put a new store where a disk has failed or is away, without a restart of its chunkserver
    ///
    /// Mount the new disk where the old one was, or name the same device; what is there must be empty.
    /// What the old disk held is made elsewhere by repair, and nothing on it is believed again.
    Replace {
        /// The chunkserver, e.g. cs4
        server: String,
        /// The disk, by the path in its chunkserver's configuration or by its ID (dsk_...); see
        /// 'craton status --json'
        disk: String,
    },
}

/// `craton scrub`.
#[derive(Subcommand, Clone, Copy, Debug)]
pub enum ScrubCommand {
    /// Show how far it is on each disk
    Status {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Begin the next pass over each disk now, at the configured rate
    Start,
}

/// A time of up to 24 hours.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    let time = parse_seconds(text, &units, "90s, 30m or 2h")?;
    match time.checked_mul(1000) {
        Some(ms) if ms <= MAINTENANCE_MAX_MS => Ok(Duration::from_secs(time)),
        _ => Err(format!("{text} is too long: 24h at most")),
    }
}

/// `COUNT:SUM`, as `craton decommission --losses` prints it.
pub fn parse_losses(text: &str) -> Result<Losses, String> {
    let parsed = text.split_once(':').and_then(|(chunks, digest)| {
        let digest = u64::from_str_radix(digest, 16).ok().filter(|_| digest.len() == 16)?;
        Some(Losses { chunks: chunks.parse().ok().filter(|&chunks| chunks > 0)?, digest })
    });
    parsed.ok_or_else(|| {
        "it is what 'craton decommission ID --losses' prints, as 3:0123456789abcdef".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_an_end() {
        let time = |text| parse_time(text).map(|time| time.as_secs());
        assert_eq!(time("90s"), Ok(90));
        assert_eq!(time("30m"), Ok(1800));
        assert_eq!(time("24h"), Ok(86_400));
        for wrong in ["", "30", "m", "0m", "25h", "1d", "-1m", "99999999999999999999h", "1 m"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}

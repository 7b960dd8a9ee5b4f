//! `craton drain`, `decommission`, `maintenance` and `rebalance`: what an operator orders about
//! chunkservers and where chunks are. Masters keep the orders: the commands end at once, and what
//! follows goes on whichever process is restarted.

use std::time::Duration;

use clap::Args;
use client::Client;
use wire::control::limits::MAINTENANCE_MAX_MS;
use wire::control::{ClusterRequest, Holdings, ServerOrder};

use crate::args::Connection;
use crate::connect::{with_client, with_client_as};
use crate::exit::{Done, Failure};
use crate::output::{bytes, print_line, print_table, table};
use crate::status::{self, Chunkserver};

/// Time in which an order is given: masters look at all chunks for it, and may have to elect.
const ORDER_BUDGET: Duration = Duration::from_secs(60);

/// `craton drain`.
#[derive(Args, Debug)]
pub struct DrainArgs {
    /// Which cluster.
    #[command(flatten)]
    connection: Connection,
    /// The chunkserver, e.g. cs4
    id: String,
    /// Check whether it could be drained, and say what it holds
    #[arg(long, conflicts_with = "cancel")]
    dry_run: bool,
    /// Use it as any other again; what was made elsewhere so far stays there
    #[arg(long)]
    cancel: bool,
}

/// `craton decommission`.
#[derive(Args, Debug)]
pub struct DecommissionArgs {
    /// Which cluster.
    #[command(flatten)]
    connection: Connection,
    /// The chunkserver, e.g. cs4
    id: String,
    /// Check whether it could leave
    #[arg(long)]
    dry_run: bool,
}

/// `craton maintenance`.
#[derive(Args, Debug)]
pub struct MaintenanceArgs {
    /// Which cluster.
    #[command(flatten)]
    connection: Connection,
    /// The chunkserver, e.g. cs4
    id: String,
    /// Duration, such as 90s, 30m or 2h; 24h at most
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time, required_unless_present = "end")]
    lasts: Option<Duration>,
    /// End it now
    #[arg(long, conflicts_with = "lasts")]
    end: bool,
}

/// `craton rebalance`.
#[derive(Args, Debug)]
pub struct RebalanceArgs {
    /// Which cluster.
    #[command(flatten)]
    connection: Connection,
    /// Show how even the disks are, and change nothing
    #[arg(long, conflicts_with = "pause")]
    dry_run: bool,
    /// Leave chunks where they are until 'craton rebalance' is run without it; repair and drains
    /// go on
    #[arg(long)]
    pause: bool,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no time: such as 90s, 30m or 2h");
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (count, unit) = text.split_at(unit_at);
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    let count: u64 = count.parse().map_err(|_| wrong())?;
    let time = count.checked_mul(seconds).filter(|&it| it > 0).ok_or_else(wrong)?;
    match time.checked_mul(1000) {
        Some(ms) if ms <= MAINTENANCE_MAX_MS => Ok(Duration::from_secs(time)),
        _ => Err(format!("{text} is too long: 24h at most")),
    }
}

/// Gives an order, or has it checked.
fn order(
    connection: &Connection,
    id: &str,
    order: ServerOrder,
    dry_run: bool,
) -> Result<Holdings, Failure> {
    let config = client::Config { control_budget: ORDER_BUDGET, ..client::Config::default() };
    with_client_as(connection, config, async |client| {
        client.order(id, order, dry_run).await.map_err(|error| match error {
            // The message names the chunkserver.
            client::Error::Invalid { message, .. } if message.contains(id) => {
                Failure::failed(message)
            }
            client::Error::Invalid { message, .. } => Failure::failed(format!(
                "{message}: every master has to be of this command's version"
            )),
            error => error.into(),
        })
    })
}

fn described(held: &Holdings) -> String {
    let open = match held.open {
        0 => String::new(),
        open => format!(", {open} of them being written"),
    };
    format!("{} replicas with {}{open}", held.replicas, bytes(held.bytes))
}

/// Runs `craton drain`.
pub fn drain(args: &DrainArgs) -> Done {
    let DrainArgs { connection, id, dry_run, cancel } = args;
    if *cancel {
        order(connection, id, ServerOrder::CancelDrain, false)?;
        return print_line(&format!("{id} takes chunks again"));
    }
    let held = order(connection, id, ServerOrder::Drain, *dry_run)?;
    let what = described(&held);
    match dry_run {
        true => print_line(&format!("{id} can be drained: it holds {what}; nothing was changed")),
        false => print_line(&format!(
            "{id} drains: it holds {what}, which are made elsewhere first. 'craton status' shows how \
             far it is; then 'craton decommission {id}'"
        )),
    }
}

/// Runs `craton decommission`.
pub fn decommission(args: &DecommissionArgs) -> Done {
    let DecommissionArgs { connection, id, dry_run } = args;
    order(connection, id, ServerOrder::Decommission, *dry_run)?;
    match dry_run {
        true => print_line(&format!("{id} is drained, and can leave; nothing was changed")),
        false => print_line(&format!(
            "{id} has left the cluster: stop its process. Its name is not used again"
        )),
    }
}

/// Runs `craton maintenance`.
pub fn maintenance(args: &MaintenanceArgs) -> Done {
    let MaintenanceArgs { connection, id, lasts, .. } = args;
    let Some(lasts) = lasts else {
        order(connection, id, ServerOrder::EndMaintenance, false)?;
        return print_line(&format!(
            "{id} is as any other: its chunks are repaired when it is silent"
        ));
    };
    let for_ms = u64::try_from(lasts.as_millis()).unwrap_or(MAINTENANCE_MAX_MS);
    let held = order(connection, id, ServerOrder::Maintain { for_ms }, false)?;
    print_line(&format!(
        "{id} is under maintenance for {} s: while it is silent its chunks are not made elsewhere, but \
         for those with one good replica left",
        lasts.as_secs()
    ))?;
    match held.only {
        0 => Ok(()),
        only => print_line(&format!(
            "{only} chunks have no good replica but the one there: they cannot be read while it is down"
        )),
    }
}

/// Runs `craton rebalance`.
pub fn rebalance(args: &RebalanceArgs) -> Done {
    with_client(&args.connection, async |client| {
        if args.dry_run {
            return show_shares(&client).await;
        }
        let request = ClusterRequest::PauseBalance { paused: args.pause };
        client.cluster_ask(request).await?;
        match args.pause {
            true => print_line("chunks stay where they are, until 'craton rebalance'"),
            false => {
                print_line("chunks move until the disks are even, when nothing else is to be done")
            }
        }
    })
}

/// What each disk holds, and what would be its share.
async fn show_shares(client: &Client) -> Done {
    let picture = status::gather(client).await?;
    let takes = |server: &&Chunkserver| server.state == "up";
    let servers: Vec<_> = picture.chunkservers.iter().filter(takes).collect();
    let disks =
        || servers.iter().flat_map(|server| server.disks.iter().map(move |disk| (server, disk)));
    let good = || disks().filter(|(_, disk)| disk.state == "up");
    let capacity: u128 = good().map(|(_, disk)| u128::from(disk.capacity_bytes)).sum();
    let used: u128 = good().map(|(_, disk)| u128::from(disk.used_bytes)).sum();
    let mut out = table(&["chunkserver", "disk", "used", "its share", "to move"]);
    let mut moves = 0;
    for (server, disk) in good() {
        let share = used * u128::from(disk.capacity_bytes) / capacity.max(1);
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let (sign, off) = match disk.used_bytes.checked_sub(share) {
            Some(over) => ("-", over),
            None => ("+", share - disk.used_bytes),
        };
        moves += if sign == "-" { off } else { 0 };
        out.add_row([
            server.id.clone(),
            disk.path.clone(),
            bytes(disk.used_bytes),
            bytes(share),
            format!("{sign}{}", bytes(off)),
        ]);
    }
    print_table(out, &[2, 3, 4])?;
    let paused = if picture.balance_paused {
        "; moves are paused: 'craton rebalance' ends that"
    } else {
        ""
    };
    print_line(&format!(
        "{} at most to move: a disk within a tenth of its share stays as it is{paused}",
        bytes(moves)
    ))
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

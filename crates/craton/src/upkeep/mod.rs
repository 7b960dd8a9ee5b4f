//! `craton drain`, `decommission`, `maintenance` and `rebalance`: what an operator orders about
//! chunkservers and where chunks are. Masters keep the orders: the commands end at once, and what
//! follows goes on whichever process is restarted.

pub mod args;
pub mod disk;
mod losses;
pub mod scrub;

use std::time::Duration;

use client::Client;
use wire::control::limits::MAINTENANCE_MAX_MS;
use wire::control::{ClusterRequest, Holdings, Losses, ServerOrder};

use self::args::{DecommissionArgs, DrainArgs, MaintenanceArgs, RebalanceArgs};
use crate::connect::{with_client, with_client_as};
use crate::connection::Connection;
use crate::exit::{Code, Done, Failure};
use crate::output::{bytes, counted, print_line, print_table, table};
use crate::status::{self, Chunkserver};

/// Time in which an order is given: masters look at all chunks for it, and may have to elect.
const ORDER_BUDGET: Duration = Duration::from_secs(60);

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
    format!("{} with {}{open}", counted(held.replicas, "replica"), bytes(held.bytes))
}

/// Runs `craton drain`.
pub fn drain(connection: &Connection, args: &DrainArgs) -> Done {
    let DrainArgs { id, dry_run, cancel } = args;
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
pub fn decommission(connection: &Connection, args: &DecommissionArgs) -> Done {
    let DecommissionArgs { id, dry_run, losses, json, accept_loss } = args;
    if *losses {
        let held = order(connection, id, ServerOrder::ListLosses, true)?;
        return losses::list(connection, id, held, *json);
    }
    let order_of = |losses: Losses| ServerOrder::DecommissionLosing(losses);
    let with_losses = accept_loss.map_or(ServerOrder::Decommission, order_of);
    let held = order(connection, id, with_losses, *dry_run)?;
    match dry_run {
        true if held.lost.chunks > 0 => print_line(&format!(
            "{id} can leave; chunks that are lost with it: {}. Nothing was changed",
            held.lost.chunks
        )),
        true => print_line(&format!("{id} is drained, and can leave; nothing was changed")),
        false => print_line(&format!(
            "{id} has left the cluster: stop its process. Its name is not used again"
        )),
    }
}

/// Runs `craton maintenance`.
pub fn maintenance(connection: &Connection, args: &MaintenanceArgs) -> Done {
    let MaintenanceArgs { id, lasts, .. } = args;
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
pub fn rebalance(connection: &Connection, args: &RebalanceArgs) -> Done {
    with_client(connection, async |client| {
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
    if good().next().is_none() {
        let text = "no chunkserver is up with a disk that serves; 'craton status' shows them";
        return Err(Failure::new(Code::Unavailable, text));
    }
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

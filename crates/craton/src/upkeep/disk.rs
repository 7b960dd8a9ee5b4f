//! `craton disk`: disks of chunkservers.

use std::net::SocketAddr;
use std::time::Duration;

use client::Client;
use wire::control::{
    ChunkserverReply, ChunkserverRequest, ControlReply, ControlRequest, DiskReport,
};

use super::args::DiskCommand;
use crate::connect::with_client;
use crate::connection::Connection;
use crate::exit::{Done, Failure};
use crate::output::print_line;
use crate::status;

/// Time in which a store is made: its log and superblocks are written.
const FORMAT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which masters hear of a disk that is served.
const SHOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two looks for it.
const SHOWN_PAUSE: Duration = Duration::from_millis(200);

/// Runs a command.
pub fn run(connection: &Connection, command: &DiskCommand) -> Done {
    let DiskCommand::Replace { server, disk } = command;
    with_client(connection, async |client| replace(&client, server, disk).await)
}

async fn replace(client: &Client, server: &str, disk: &str) -> Done {
    let (addr, old) = find(client, server, disk).await?;
    let path = old.path;
    let request = ChunkserverRequest::ReplaceDisk { path: path.clone() };
    let request = ControlRequest::Chunkserver(request);
    let answer = client.ask_peer(addr, request, FORMAT_TIMEOUT).await;
    let said = |why: &dyn std::fmt::Display| Failure::failed(format!("{server}: {why}"));
    let new = match answer.map_err(|error| said(&error))? {
        ControlReply::Chunkserver(ChunkserverReply::Replaced { disk }) => disk,
        other => return Err(said(&format!("it answers {other:?}"))),
    };
    let env = client.env();
    let until = env.now() + SHOWN_TIMEOUT;
    loop {
        let shown = reports(client, server).await?.1;
        if shown.iter().any(|report| report.disk == new && !report.failed) {
            return print_line(&format!(
                "{server}: {path} has a new store, {new}, and takes chunks; what the old one held is \
                 made elsewhere"
            ));
        }
        if env.now() >= until {
            let why = shown.iter().find(|report| report.path == path).map(|report| &report.reason);
            let why = why.map_or("masters have not heard of it", String::as_str);
            return Err(said(&format!("{path} has a new store, {new}, and does not serve: {why}")));
        }
        env.sleep(SHOWN_PAUSE).await;
    }
}

/// A chunkserver's address, and its disks as masters know them.
async fn reports(client: &Client, server: &str) -> Result<(SocketAddr, Vec<DiskReport>), Failure> {
    let servers = status::chunkservers(client).await?;
    if let Some(found) = servers.iter().find(|it| it.name == server) {
        return Ok((found.addr, found.disks.clone()));
    }
    let names: Vec<_> = servers.into_iter().map(|it| it.name).collect();
    let text = format!("no chunkserver '{server}': there are {}", names.join(", "));
    Err(Failure::failed(text))
}

/// The address to ask about a disk, and the disk as masters know it.
async fn find(
    client: &Client,
    server: &str,
    disk: &str,
) -> Result<(SocketAddr, DiskReport), Failure> {
    let (addr, disks) = reports(client, server).await?;
    let is = |report: &&DiskReport| report.path == disk || report.disk.to_string() == disk;
    match disks.iter().find(is) {
        Some(found) => Ok((found.addr.unwrap_or(addr), found.clone())),
        None => {
            let known: Vec<_> = disks.iter().map(|it| it.path.as_str()).collect();
            let text = format!("{server} has no disk '{disk}': it has {}", known.join(", "));
            Err(Failure::failed(text))
        }
    }
}

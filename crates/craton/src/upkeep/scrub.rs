//! `craton scrub`: how far the bytes on each disk are verified (C26).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::DiskId;
use client::Client;
use serde::Serialize;
use wire::control::{
    ChunkserverReply, ChunkserverRequest, ControlReply, ControlRequest, DiskScrub,
};

use super::args::ScrubCommand;
use crate::connect::with_client;
use crate::connection::Connection;
use crate::exit::{Code, Done, Failure};
use crate::output::{print_json, print_line, print_table, table, warn};
use crate::status;

/// Wait for the answer of an executor.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What is known of all disks.
#[derive(Serialize)]
struct Scrubs {
    disks: Vec<Scrub>,
    /// Chunkservers that did not answer, each with the cause.
    errors: Vec<String>,
}

/// A disk.
#[derive(Serialize)]
struct Scrub {
    chunkserver: String,
    disk: String,
    path: String,
    /// `running`, `waits` between two passes, or `off` by configuration.
    state: &'static str,
    /// Passes since the process started.
    passes: u64,
    /// Replicas that the pass under way has read, or the last one had.
    done: u64,
    /// Replicas on the disk when it began.
    replicas: u64,
    /// Damaged ones among those read.
    damaged: u64,
    /// Seconds since the last pass ended; absent before.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_s: Option<u64>,
}

/// Runs a command.
pub fn run(connection: &Connection, command: ScrubCommand) -> Done {
    with_client(connection, async |client| {
        let start = matches!(command, ScrubCommand::Start);
        let found = ask(&client, start).await?;
        match command {
            ScrubCommand::Status { json: true } => print_json(&found)?,
            ScrubCommand::Status { json: false } => print(&found)?,
            ScrubCommand::Start => print_started(&found)?,
        }
        check_reached(&found)
    })
}

/// Fails unless all chunkservers have answered; warns of each that has not.
fn check_reached(found: &Scrubs) -> Done {
    found.errors.iter().for_each(|error| warn(error));
    match (found.disks.is_empty(), found.errors.is_empty()) {
        (true, _) => Err(Failure::new(
            Code::Unavailable,
            "no disk has answered: 'craton status' shows chunkservers and their disks",
        )),
        (false, true) => Ok(()),
        (false, false) => {
            Err(Failure::new(Code::Partial, "not all chunkservers have answered, see the warnings"))
        }
    }
}

async fn ask(client: &Client, start: bool) -> Result<Scrubs, Failure> {
    let mut all = Scrubs { disks: Vec::new(), errors: Vec::new() };
    for server in status::chunkservers(client).await? {
        let paths: BTreeMap<DiskId, &str> =
            server.disks.iter().map(|disk| (disk.disk, disk.path.as_str())).collect();
        // Each executor knows its own disks.
        let executors: BTreeSet<_> =
            server.disks.iter().map(|disk| disk.addr.unwrap_or(server.addr)).collect();
        if executors.is_empty() && !server.alive {
            all.errors.push(format!("{}: it is down, and its disks are not known", server.name));
        }
        for addr in executors {
            let request = ControlRequest::Chunkserver(ChunkserverRequest::Scrub { start });
            let (disks, off) = match client.ask_peer(addr, request, TIMEOUT).await {
                Ok(ControlReply::Chunkserver(ChunkserverReply::Scrubs { disks, off })) => {
                    (disks, off)
                }
                Ok(other) => {
                    all.errors.push(format!("{}: it answers {other:?}", server.name));
                    continue;
                }
                Err(error) => {
                    all.errors.push(format!("{}: {error}", server.name));
                    continue;
                }
            };
            all.disks.extend(disks.iter().map(|it| {
                let path = paths.get(&it.disk).copied().unwrap_or_default();
                described(&server.name, path, it, off)
            }));
        }
    }
    Ok(all)
}

fn described(server: &str, path: &str, scrub: &DiskScrub, off: bool) -> Scrub {
    Scrub {
        chunkserver: server.to_owned(),
        disk: scrub.disk.to_string(),
        path: path.to_owned(),
        state: match scrub.running {
            _ if off => "off",
            true => "running",
            false => "waits",
        },
        passes: scrub.passes,
        done: scrub.done,
        replicas: scrub.replicas,
        damaged: scrub.damaged,
        ended_s: scrub.ended_ms.map(|ms| ms / 1000),
    }
}

fn print(found: &Scrubs) -> Done {
    let title = ["chunkserver", "disk", "state", "replicas read", "damaged", "passes", "ended"];
    let mut out = table(&title);
    for disk in &found.disks {
        out.add_row([
            disk.chunkserver.clone(),
            disk.path.clone(),
            disk.state.to_owned(),
            format!("{} of {}", disk.done, disk.replicas),
            disk.damaged.to_string(),
            disk.passes.to_string(),
            disk.ended_s.map_or("-".to_owned(), |ended| format!("{ended} s ago")),
        ]);
    }
    print_table(out, &[3, 4, 5])
}

fn print_started(found: &Scrubs) -> Done {
    if found.disks.is_empty() {
        return Ok(());
    }
    let off = found.disks.iter().filter(|disk| disk.state == "off").count();
    if off > 0 {
        return Err(Failure::failed(format!(
            "scrub is off at {off} disks: set scrub_mib_per_second in the chunkservers' configuration"
        )));
    }
    let running = found.disks.iter().filter(|disk| disk.state == "running").count();
    let begun = found.disks.len() - running;
    print_line(&format!(
        "a pass begins on {begun} disks, and was under way on {running}: 'craton scrub status' shows how \
         far it is"
    ))
}

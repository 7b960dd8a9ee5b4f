//! `craton masters`: the masters' membership.

pub mod args;

use std::path::Path;

use base::DiskId;
use client::Client;
use serde::Serialize;
use wire::control::{ClusterReply, ClusterRequest, MasterInfo, MemberChange};

use self::args::MastersCommand;
use crate::cluster::{self, Directory};
use crate::connect::{self, with_client};
use crate::connection::Connection;
use crate::exit::{Done, Failure};
use crate::output::{print_json, print_line, print_table, table};

/// Runs a command.
pub fn run(connection: &Connection, command: MastersCommand) -> Done {
    let dir = connect::target(connection)?.dir;
    with_client(connection, async |client| match command {
        MastersCommand::Members { json } => members(&client, json).await,
        MastersCommand::Add { raft_id, name, addr } => {
            if raft_id == 0 {
                return Err(Failure::usage("masters are numbered from 1"));
            }
            let master = MasterInfo { id: raft_id, name, addr };
            change(&client, MemberChange::Add(master)).await?;
            print_line(&format!("master {raft_id} is a member"))
        }
        MastersCommand::Remove { raft_id } => remove(&client, dir.as_deref(), raft_id).await,
        MastersCommand::Condemn { disk } => condemn(&client, disk).await,
    })
}

/// Removes a member, and its process when the cluster runs in `dir`.
async fn remove(client: &Client, dir: Option<&Path>, raft_id: u64) -> Done {
    // First of all: a directory that is busy must not be found so after the change.
    let directory = dir.map(Directory::existing_locked).transpose()?;
    let members = masters(client).await?;
    let name = match members.iter().find(|master| master.id == raft_id) {
        Some(member) => {
            change(client, MemberChange::Remove { id: raft_id }).await?;
            member.name.clone()
        }
        None => {
            // A removal that did not come to its end has left the process.
            let name = cluster::master_name(raft_id);
            let is_left = match &directory {
                // A member may have this name, with a number that was given by hand.
                Some(directory) if members.iter().all(|master| master.name != name) => {
                    cluster::has_master(directory, &name)?
                }
                _ => false,
            };
            if !is_left {
                let known: Vec<_> = members.iter().map(|master| master.id.to_string()).collect();
                return Err(Failure::failed(format!(
                    "the cluster has no master {raft_id}: it has {}",
                    known.join(", ")
                )));
            }
            name
        }
    };
    let stopped = match &directory {
        Some(directory) => cluster::drop_master(client.env(), directory, (raft_id, &name)).await?,
        None => false,
    };
    let then = if stopped { "its process is stopped" } else { "stop its process" };
    print_line(&format!("{name} is no member any more: {then}"))
}

async fn condemn(client: &Client, disk: DiskId) -> Done {
    let stopped = client.status().await?.into_iter().flat_map(|(_, answer)| answer.stopped);
    let unknown: u64 = stopped.filter(|one| one.disk == disk).map(|one| one.unknown).sum();
    if unknown == 0 {
        return Err(Failure::failed(format!(
            "no collection has stopped at {disk}: 'craton status' names the disks where one has"
        )));
    }
    client.condemn(disk).await?;
    print_line(&format!("{unknown} replicas on {disk} that no file refers to will be deleted"))
}

async fn change(client: &Client, change: MemberChange) -> Done {
    client.cluster_ask(ClusterRequest::Members { change }).await?;
    Ok(())
}

/// Masters known to the leader of the cluster group: others may be a moment behind.
async fn masters(client: &Client) -> Result<Vec<MasterInfo>, Failure> {
    match client.cluster_ask(ClusterRequest::Info).await? {
        ClusterReply::Info(info) => Ok(info.masters),
        _ => Err(Failure::failed("a master's answer does not fit the question")),
    }
}

async fn members(client: &Client, json: bool) -> Done {
    #[derive(Serialize)]
    struct Member {
        raft_id: u64,
        id: String,
        addr: String,
    }
    let member = |master: MasterInfo| Member {
        raft_id: master.id,
        id: master.name,
        addr: master.addr.to_string(),
    };
    let mut members: Vec<Member> = masters(client).await?.into_iter().map(member).collect();
    members.sort_by_key(|member| member.raft_id);
    if json {
        return print_json(&serde_json::json!({ "masters": members }));
    }
    let mut out = table(&["number", "id", "address"]);
    for member in members {
        out.add_row([member.raft_id.to_string(), member.id, member.addr]);
    }
    print_table(out, &[0])
}

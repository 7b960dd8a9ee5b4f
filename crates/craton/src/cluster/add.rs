//! `craton cluster add`.

use std::path::Path;

use runtime::{Duration, Env};
use wire::control::{ClusterRequest, MasterInfo, MemberChange};

use super::cluster_file::Process;
use super::directory::{Directory, config_path};
use super::{Reserved, S3Access, format_new_stores, plan, process, ready, refuse_embedded};
use crate::args::RoleName;
use crate::connect;
use crate::connection::Connection;
use crate::exit::{Done, Failure};
use crate::output::{print_json, print_line};
use roles::config::{self, Peer};

/// Wait for an owner of the objects.
const S3_WAIT: Duration = Duration::from_secs(30);

/// Runs it.
pub async fn run(env: &Env, dir: &Path, role: RoleName, json: bool) -> Done {
    let directory = Directory::existing_locked(dir)?;
    refuse_embedded(&directory)?;
    let mut book = directory.read()?;
    // Files are made only after the cluster has answered.
    let target = connect::target(&Connection::of_dir(directory.path()))?;
    let client = connect::connect(env, &target, client::Config::default()).await?;
    let prefix = match role {
        RoleName::Master => "m",
        RoleName::Chunkserver => "cs",
        RoleName::BlockManager => "bm",
        RoleName::BlockServer => "bs",
        RoleName::Frontend => "f",
        RoleName::ObjectManager => "om",
        RoleName::ObjectServer => "os",
        RoleName::Gateway => "gw",
    };
    let number = |process: &Process| process.id.strip_prefix(prefix)?.parse::<u64>().ok();
    let removed = if role == RoleName::Master { book.last_master_removed } else { 0 };
    let number = book.processes.iter().filter_map(number).max().unwrap_or(0).max(removed) + 1;
    let id = format!("{prefix}{number}");
    let mut ports = Reserved::new();
    let made = match role {
        RoleName::Chunkserver => {
            let made = plan::chunkserver(env, &directory, &mut ports, &book, id, 1)?;
            let config: config::Chunkserver = config::read(&config_path(&made.dir, role))?;
            format_new_stores(env, &made.dir, &config.stores).await?;
            made
        }
        RoleName::ObjectManager | RoleName::ObjectServer => {
            let what = ((role, id), &S3Access::default());
            plan::object_role(env, &directory, &mut ports, &book, what)?
        }
        RoleName::Gateway => {
            let shared = plan::shared_of(&book)?;
            let how = ((id, None, shared), &S3Access::default());
            plan::gateway(env, &directory, &mut ports, &book, how)?
        }
        RoleName::BlockManager | RoleName::BlockServer | RoleName::Frontend => {
            let nearby = plan::nearby_of(&book)?;
            plan::block_role(env, &directory, &mut ports, &book, &nearby, (role, id))?
        }
        RoleName::Master => {
            let own = Peer { raft_id: number, id, addr: ports.take(env)? };
            let mut config = plan::master(env, &directory, &mut ports, &own, client.cluster())?;
            let first = book.processes.iter().find(|process| process.role == role);
            let first = first.ok_or_else(|| Failure::setup("the cluster has no master"))?;
            let model: config::Master = config::read(&config_path(&first.dir, role))?;
            config.namespace_partitions = model.namespace_partitions;
            config.stream_partitions = model.stream_partitions;
            let dir = directory.path().join(&own.id);
            directory.write_config(&dir, role, &config)?;
            Process { role, id: own.id, pid: 0, addr: own.addr, dir }
        }
    };
    // On the list first: nothing is started that cannot be noted. Only a kill of this command between the start and
    // the next note leaves a process that 'craton cluster down' does not find.
    let id = made.id.clone();
    book.processes.push(made);
    book.refresh_endpoints();
    directory.write(&book)?;
    let started = process::start_noted(env, &directory, &mut book, &id, false).await;
    if started.is_err() {
        book.processes.retain(|one| one.id != id);
        book.refresh_endpoints();
        let _ = directory.write(&book); // The first failure is returned.
    }
    let made = started?;
    ready::wait_listening(env, &made).await?;
    if role == RoleName::Master {
        let master = MasterInfo { id: number, name: made.id.clone(), addr: made.addr };
        let change = MemberChange::Add(master);
        client.cluster_ask(ClusterRequest::Members { change }).await?;
    }
    ready::wait_joined(env, &client, &made).await?;
    let s3 = match role {
        RoleName::ObjectManager | RoleName::ObjectServer | RoleName::Gateway => {
            let deadline = env.now() + S3_WAIT;
            super::up::administrator(env, &directory, &book, deadline).await?
        }
        _ => String::new(),
    };
    if json {
        return print_json(&made);
    }
    let made = format!("{} runs as process {} on {}", made.id, made.pid, made.addr);
    print_line(format!("{made}\n{s3}").trim_end())
}

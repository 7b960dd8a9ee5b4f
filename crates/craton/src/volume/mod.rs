//! `craton volume`: virtual disks.

mod args;
mod attach;
mod change;
mod check;
mod deleted;
mod diff;
mod export;
mod fresh;
mod host;
mod image;
mod import;
mod open;
mod pinned;
mod show;
mod snapshot;
mod space;

pub use args::VolumeCommand;

use block_proto::Managers;
use runtime::Duration;

use crate::cluster::Directory;
use crate::connect::{self, with_client};
use crate::connection::Connection;
use crate::exit::{Done, Failure};

/// Time that a snapshot or clone may take: block servers link thousands of files.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a command.
pub fn run(connection: &Connection, command: VolumeCommand) -> Done {
    if let VolumeCommand::Detach { what, run_dir, json } = &command {
        // No cluster is needed for it.
        let runtime = connect::runtime()?;
        return runtime.block_on(attach::detach(runtime.env(), what, run_dir, *json));
    }
    let target = connect::target(connection)?;
    let endpoints = target.dir.as_deref().and_then(|dir| {
        // The addresses of exports are only known of a local cluster.
        Some(Directory::existing(dir).and_then(|directory| directory.read()).ok()?.endpoints)
    });
    let endpoints = endpoints.unwrap_or_default();
    let nbd = endpoints.nbd.clone();
    with_client(connection, async |client| {
        let managers = Managers::new(&client);
        match command {
            VolumeCommand::Create { name, volume, json } => {
                change::create(&managers, &name, &volume, nbd.as_deref(), json).await
            }
            VolumeCommand::Ls { deleted: false, json } => show::ls(&managers, json).await,
            VolumeCommand::Ls { deleted: true, json } => deleted::ls(&managers, json).await,
            VolumeCommand::Info { name, json } => {
                show::info(&managers, &name, nbd.as_deref(), json).await
            }
            VolumeCommand::Check { name, json } => {
                let site = open::Site::new(&managers, &target, endpoints);
                check::show(&name, site.check(&name).await?, json)
            }
            VolumeCommand::Set { name, limits, shared, policy, json } => {
                change::set(&managers, &name, &limits, (shared, policy), json).await
            }
            VolumeCommand::Resize { name, size, force, json } => {
                let site = open::Site::new(&managers, &target, endpoints);
                change::resize(&site, &name, size as u64, force, json).await
            }
            VolumeCommand::Import { name, file, copy, size, policy } => {
                let site = open::Site::new(&managers, &target, endpoints);
                import::run(&site, &name, &file, &copy, (size, policy)).await
            }
            VolumeCommand::Export { name, file, copy, force } => {
                let site = open::Site::new(&managers, &target, endpoints);
                export::run(&site, &name, &file, &copy, force).await
            }
            VolumeCommand::ExportDiff { snapshot, file, since, force, copy } => {
                let site = open::Site::new(&managers, &target, endpoints);
                diff::export(&site, &snapshot, since.as_deref(), &file, (&copy, force)).await
            }
            VolumeCommand::ImportDiff { name, file, policy, copy } => {
                let managers = Managers::with_budget(&client, TIMEOUT);
                let site = open::Site::new(&managers, &target, endpoints);
                diff::import(&site, &name, &file, policy, &copy).await
            }
            VolumeCommand::Attach { name, how } => {
                let site = open::Site::new(&managers, &target, endpoints);
                attach::attach(&site, &name, &how).await
            }
            VolumeCommand::Detach { .. } => unreachable!("done above"),
            VolumeCommand::Snapshot(command) => {
                snapshot::run(&Managers::with_budget(&client, TIMEOUT), command).await
            }
            VolumeCommand::Clone { snapshot, name, json } => {
                let managers = Managers::with_budget(&client, TIMEOUT);
                snapshot::clone(&managers, &snapshot, &name, nbd.as_deref(), json).await
            }
            VolumeCommand::Flatten { name, json } => {
                snapshot::flatten(&managers, &name, json).await
            }
            VolumeCommand::Undelete { what, name, json } => {
                deleted::undelete(&managers, &what, name.as_deref(), (nbd.as_deref(), json)).await
            }
            VolumeCommand::Rm { names, force, snapshots, now, json } => {
                let managers = Managers::with_budget(&client, TIMEOUT);
                change::rm(&managers, &names, (force, snapshots, now), json).await
            }
        }
    })
}

fn unexpected_reply(reply: &block_proto::BlockReply) -> Failure {
    block_proto::managers::unexpected_reply(reply).into()
}

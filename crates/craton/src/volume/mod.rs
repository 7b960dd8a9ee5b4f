//! `craton volume`: virtual disks.

mod args;
mod change;
mod show;

use block::manager::Managers;
use block::manager::client::Error;

pub use args::VolumeCommand;

use crate::args::Connection;
use crate::cluster::Directory;
use crate::connect::{self, with_client};
use crate::exit::{Code, Done, Failure};

/// Runs a command.
pub fn run(connection: &Connection, command: VolumeCommand) -> Done {
    let target = connect::target(connection)?;
    let nbd = target.dir.as_deref().and_then(|dir| {
        // Where the exports are is only known of a local cluster.
        Directory::existing(dir).and_then(|directory| directory.read()).ok()?.endpoints.nbd
    });
    with_client(connection, async |client| {
        let managers = Managers::new(&client);
        match command {
            VolumeCommand::Create { name, volume, json } => {
                change::create(&managers, &name, &volume, nbd.as_deref(), json).await
            }
            VolumeCommand::Ls { json } => show::ls(&managers, json).await,
            VolumeCommand::Info { name, json } => {
                show::info(&managers, &name, nbd.as_deref(), json).await
            }
            VolumeCommand::Set { name, limits, shared, json } => {
                change::set(&managers, &name, &limits, shared, json).await
            }
            VolumeCommand::Resize { name, size, force, json } => {
                change::resize(&managers, &name, size as u64, force, json).await
            }
            VolumeCommand::Rm { names, force } => change::rm(&managers, &names, force).await,
        }
    })
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match &error {
            Error::Unavailable { .. } => Code::Unavailable,
            Error::Refused { kind: base::Kind::Corrupt, .. } => Code::Damage,
            Error::Refused { .. } => Code::Failed,
        };
        Failure::new(code, error.to_string())
    }
}

fn misfit(reply: &wire::control::BlockReply) -> Failure {
    block::manager::client::misfit(reply).into()
}

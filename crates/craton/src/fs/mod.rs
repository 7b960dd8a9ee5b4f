//! `craton fs`: files and directories.

mod beneath;
mod content;
pub mod convert;
mod get;
mod names;
pub mod policy;
mod progress;
mod put;
mod show;
mod stored;

use client::Client;

use self::convert::ConvertArgs;
use crate::args::FsCommand;
use crate::connect::with_client_as;
use crate::connection::Connection;
use crate::exit::{Done, Failure};

/// Runs a command.
pub fn run(connection: &Connection, services: bool, command: FsCommand) -> Done {
    with_files(connection, services, async |client| dispatch(&client, command).await)
}

/// Runs `craton convert`.
pub fn convert(args: &ConvertArgs) -> Done {
    let run = async |client: Client| convert::run(&client, args).await;
    with_files(&args.connection, args.services, run)
}

/// Runs something with a client that sees the files of services only where it is meant to.
fn with_files(
    connection: &Connection,
    services: bool,
    run: impl AsyncFnOnce(Client) -> Done,
) -> Done {
    let hidden = (!services).then_some(SERVICES);
    let config = client::Config { hidden, ..client::Config::default() };
    let done = with_client_as(connection, config, run);
    done.map_err(|failure| match hidden {
        Some(name) if failure.message.contains(&format!("/{name} is kept from this client")) => {
            let text = format!(
                "{}: it has the files of volumes and other services, which a change destroys; \
                 'craton volume' manages volumes, and --services lets fs commands in",
                failure.message
            );
            Failure::new(failure.code, text)
        }
        _ => failure,
    })
}

/// The directory in the root where services keep their files.
const SERVICES: &str = ".craton";

async fn dispatch(client: &Client, command: FsCommand) -> Done {
    match command {
        FsCommand::Mkdir { paths, parents } => names::mkdir(client, &paths, parents).await,
        FsCommand::Ls { path, long, json } => show::ls(client, &path, long, json).await,
        FsCommand::Put { src, dst, copy, redundancy } => {
            put::run(client, &src, &dst, &copy, redundancy).await
        }
        FsCommand::Get { src, dst, copy } => get::run(client, &src, &dst, &copy).await,
        FsCommand::Cat { path, offset, length } => {
            content::cat(client, &path, offset, length).await
        }
        FsCommand::Append { src, path, redundancy } => {
            content::append(client, &src, &path, redundancy).await
        }
        FsCommand::Seal { path, accept_loss } => content::seal(client, &path, accept_loss).await,
        FsCommand::Stat { path, json } => show::stat(client, &path, json).await,
        FsCommand::Rm { paths, recursive, force } => {
            names::rm(client, &paths, recursive, force).await
        }
        FsCommand::Mv { src, dst, no_replace } => names::mv(client, &src, &dst, !no_replace).await,
        FsCommand::Ln { target, path, symbolic } => {
            names::ln(client, &target, &path, symbolic).await
        }
        FsCommand::Policy(command) => policy::run(client, command).await,
        FsCommand::Df { json } => show::df(client, json).await,
    }
}

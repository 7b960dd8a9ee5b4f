//! `craton fs`: files and directories.

mod content;
mod get;
mod names;
pub mod policy;
mod progress;
mod put;
mod show;

use client::Client;

use crate::args::{Connection, FsCommand};
use crate::connect::with_client;
use crate::exit::Done;

/// Runs a command.
pub fn run(connection: &Connection, command: FsCommand) -> Done {
    with_client(connection, async |client| dispatch(&client, command).await)
}

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
        FsCommand::Stat { path, json } => show::stat(client, &path, json).await,
        FsCommand::Rm { paths, recursive, force } => {
            names::rm(client, &paths, recursive, force).await
        }
        FsCommand::Mv { src, dst, no_replace } => names::mv(client, &src, &dst, !no_replace).await,
        FsCommand::Ln { target, path, symbolic } => {
            names::ln(client, &target, &path, symbolic).await
        }
        FsCommand::Df { json } => show::df(client, json).await,
    }
}

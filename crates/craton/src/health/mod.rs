//! `craton health`: each process and disk as masters, the leading block manager, this command and
//! clients see it.

mod gather;
mod probes;
mod show;
mod view;

use std::time::Duration;

use crate::args::HealthArgs;
use crate::cluster::Directory;
use crate::connect::{self, with_client_as};
use crate::exit::Done;
use crate::output::print_json;
use gather::Found;

/// Timeout of what masters answer: an election.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the command.
pub fn run(args: &HealthArgs) -> Done {
    let dir = connect::target(&args.connection)?.dir;
    let config = client::Config { control_budget: TIMEOUT, ..client::Config::default() };
    let health = with_client_as(&args.connection, config, async |client| {
        let mut found = Found::default();
        if let Some(dir) = dir {
            found.add_book(&Directory::existing(&dir)?)?;
        }
        found.ask(&client, &args.from).await?;
        Ok(found.finish())
    })?;
    if args.json { print_json(&health) } else { show::print(&health) }
}

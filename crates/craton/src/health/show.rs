//! Health as tables.

use super::view::{Health, Server, State, View};
use crate::args::RoleName;
use crate::exit::Done;
use crate::output::{print_line, print_table, table};

fn text(state: State) -> &'static str {
    match state {
        State::Good => "good",
        State::Draining => "draining",
        State::Slow => "slow",
        State::Unreached => "unreached",
        State::Out => "out",
    }
}

fn role(role: RoleName) -> &'static str {
    match role {
        RoleName::Master => "master",
        RoleName::Chunkserver => "chunkserver",
        RoleName::BlockManager => "block manager",
        RoleName::BlockServer => "block server",
        RoleName::Frontend => "front end",
        RoleName::ObjectManager => "object manager",
        RoleName::ObjectServer => "object server",
        RoleName::Gateway => "gateway",
    }
}

/// The longest times of a process's views: p50 and p99, in milliseconds.
fn times(server: &Server) -> (String, String) {
    let longest = |of: fn(&View) -> Option<u64>| {
        let time = server.seen_by.iter().filter_map(of).max();
        time.map_or_else(|| "-".to_owned(), |us| format!("{:.1}", us as f64 / 1000.0))
    };
    (longest(|view| view.p50_us), longest(|view| view.p99_us))
}

/// Prints a table of all, then what is wrong with those that are not good.
pub(super) fn print(health: &Health) -> Done {
    let mut out = table(&["process", "role", "state", "address", "p50 ms", "p99 ms"]);
    for server in &health.servers {
        let (p50, p99) = times(server);
        let addr = match server.addr.port() {
            0 => "unix socket".to_owned(),
            _ => server.addr.to_string(),
        };
        let words = [server.id.as_str(), role(server.role), text(server.state)];
        let words = words.into_iter().map(str::to_owned).chain([addr, p50, p99]);
        out.add_row(words);
    }
    print_table(out, &[4, 5])?;
    for server in &health.servers {
        if server.state > State::Good {
            let since = match server.since_s {
                Some(seconds) => format!(", for {seconds} s"),
                None => String::new(),
            };
            let reason = server.reason.as_deref().unwrap_or("no cause is known");
            let action = server.action.unwrap_or("none");
            print_line(&format!(
                "{} is {}: {reason}{since}; {action}",
                server.id,
                text(server.state)
            ))?;
        }
        for disk in server.disks.iter().filter(|disk| disk.state > State::Good) {
            let reason = disk.reason.as_deref().unwrap_or("no cause is known");
            print_line(&format!("{}: {} is {}: {reason}", server.id, disk.path, text(disk.state)))?;
        }
    }
    for error in &health.errors {
        print_line(&format!("not known: {error}"))?;
    }
    Ok(())
}

//! The network of a run: its own, on the loopback device, where packets to a port can be dropped.
//!
//! A routing rule that matches the port of a process drops all packets to it: requests and
//! acknowledgements to it are lost, its own connections to others stay. New connections to it are
//! refused at once.

use std::net::SocketAddr;
use std::process::Command;

use crate::failure::{Done, Failure};

/// True with all rights.
pub fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.starts_with(b"0\n"))
}

fn ip(args: &[&str]) -> Done {
    let output = Command::new("ip").args(args).output();
    let output = output
        .map_err(|error| Failure::setup(format!("ip cannot be run ({error}): install iproute2")))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Failure::setup(format!("ip {}: {why}", args.join(" "))))
        }
    }
}

/// Brings the loopback device up, and makes room for rules before that of local addresses.
pub fn prepare() -> Done {
    ip(&["link", "set", "lo", "up"])?;
    ip(&["rule", "add", "pref", "100", "lookup", "local"])?;
    ip(&["rule", "del", "pref", "0"])
}

/// Drops what goes to a port, or no longer.
pub fn set_dropped(addr: SocketAddr, dropped: bool) -> Done {
    let (what, port) = (if dropped { "add" } else { "del" }, addr.port().to_string());
    ip(&["rule", what, "pref", "10", "ipproto", "tcp", "dport", &port, "blackhole"])
}

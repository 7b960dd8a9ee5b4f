//! Free ports for processes on this machine.

use std::net::{SocketAddr, TcpListener};

use runtime::Env;

use crate::exit::Failure;

/// Below the range from which the kernel gives ports to outgoing connections: a port that a
/// process had is still free when it starts again.
const FIRST: u16 = 10_000;
const LAST_DEFAULT: u16 = 32_000;
const TRIES_MAX: u32 = 2_000;

/// Ports that are free now, kept until the answer is dropped, so that two commands at the same
/// time get different ones.
pub struct Reserved {
    listeners: Vec<TcpListener>,
}

impl Reserved {
    /// None yet.
    pub fn new() -> Reserved {
        Reserved { listeners: Vec::new() }
    }

    /// Another free address of this machine.
    pub fn take(&mut self, env: &Env) -> Result<SocketAddr, Failure> {
        let last = last_port();
        for _ in 0..TRIES_MAX {
            let port = FIRST + env.random_below(u64::from(last - FIRST)) as u16;
            let addr = SocketAddr::from(([127, 0, 0, 1], port));
            if let Ok(listener) = TcpListener::bind(addr) {
                self.listeners.push(listener);
                return Ok(addr);
            }
        }
        Err(Failure::setup(format!(
            "no port from {FIRST} to {last} of 127.0.0.1 is free: stop other clusters"
        )))
    }
}

fn last_port() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.ok().and_then(|text| text.split_whitespace().next()?.parse::<u16>().ok());
    first.filter(|first| *first > FIRST + 1000).unwrap_or(LAST_DEFAULT)
}

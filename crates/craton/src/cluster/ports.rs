//! Free ports for processes on this machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use runtime::Env;

use crate::exit::Failure;

/// Below the range from which the kernel gives ports to outgoing connections: a port that a
/// process had is still free when it starts again.
const FIRST: u16 = 10_000;
const LAST_DEFAULT: u16 = 32_000;
const TRIES_MAX: u32 = 2_000;

/// Ports that are free now, kept until this value is dropped, so that two commands at the same time
/// get different ones.
pub struct Reserved {
    ip: IpAddr,
    listeners: Vec<TcpListener>,
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

impl Reserved {
    /// None yet; processes will be reached within this machine.
    pub fn new() -> Reserved {
        Reserved::at(LOOPBACK)
    }

    /// None yet; processes will be reached at `ip`.
    pub fn at(ip: IpAddr) -> Reserved {
        Reserved { ip, listeners: Vec::new() }
    }

    /// Another free address for a process.
    pub fn take(&mut self, env: &Env) -> Result<SocketAddr, Failure> {
        self.take_at(env, self.ip)
    }

    /// Another free address that only this machine reaches.
    pub fn take_local(&mut self, env: &Env) -> Result<SocketAddr, Failure> {
        self.take_at(env, LOOPBACK)
    }

    fn take_at(&mut self, env: &Env, ip: IpAddr) -> Result<SocketAddr, Failure> {
        let last = last_port();
        for _ in 0..TRIES_MAX {
            let port = FIRST + env.random_below(u64::from(last - FIRST)) as u16;
            let addr = SocketAddr::from((ip, port));
            if let Ok(listener) = TcpListener::bind(addr) {
                self.listeners.push(listener);
                return Ok(addr);
            }
        }
        Err(Failure::setup(format!(
            "no port from {FIRST} to {last} of {ip} is free: stop other clusters"
        )))
    }
}

fn last_port() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.ok().and_then(|text| text.split_whitespace().next()?.parse::<u16>().ok());
    first.filter(|first| *first > FIRST + 1000).unwrap_or(LAST_DEFAULT)
}

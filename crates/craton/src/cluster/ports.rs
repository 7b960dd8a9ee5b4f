//! Free ports for processes on this machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as Name, UnixListener};

use runtime::Env;

use crate::exit::Failure;

/// Below the range from which the kernel gives ports to outgoing connections: a port that a
/// process had is still free when it starts again.
const FIRST: u16 = 10_000;
const LAST_DEFAULT: u16 = 32_000;
const TRIES_MAX: u32 = 2_000;
/// Another range, `FIRST-LAST`: for a firewall, or for clusters that must not meet.
const RANGE: &str = "CRATON_PORTS";

/// Ports that are free now. As long as this value lives no other command gets one of them: hold it
/// until the processes listen.
pub struct Reserved {
    ip: IpAddr,
    /// By names of abstract sockets, which belong to a network namespace as ports do, and end with
    /// the process.
    claims: Vec<UnixListener>,
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

impl Reserved {
    /// None yet; processes will be reached within this machine.
    pub fn new() -> Reserved {
        Reserved::at(LOOPBACK)
    }

    /// None yet; processes will be reached at `ip`.
    pub fn at(ip: IpAddr) -> Reserved {
        Reserved { ip, claims: Vec::new() }
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
        let range = match std::env::var(RANGE) {
            Ok(text) => parse(&text)?,
            Err(_) => FIRST..=last_port(),
        };
        let (first, last) = (*range.start(), *range.end());
        for _ in 0..TRIES_MAX {
            let port = first + env.random_below(u64::from(last - first) + 1) as u16;
            let addr = SocketAddr::from((ip, port));
            let claim = Name::from_abstract_name(format!("craton-port-{port}"))
                .and_then(|name| UnixListener::bind_addr(&name));
            if let (Ok(claim), Ok(_)) = (claim, TcpListener::bind(addr)) {
                self.claims.push(claim);
                return Ok(addr);
            }
        }
        Err(Failure::setup(format!(
            "no port from {first} to {last} of {ip} is free: stop other clusters, or name more \
             ports with {RANGE}=FIRST-LAST"
        )))
    }
}

fn parse(text: &str) -> Result<RangeInclusive<u16>, Failure> {
    let range = text.split_once('-').and_then(|(first, last)| {
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (0 < first && first <= last).then_some(first..=last)
    });
    range.ok_or_else(|| {
        Failure::usage(format!("{RANGE} is {text:?}: it takes ports, such as 20000-20999"))
    })
}

fn last_port() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.ok().and_then(|text| text.split_whitespace().next()?.parse::<u16>().ok());
    first.filter(|first| *first > FIRST + 1000).unwrap_or(LAST_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_at_the_same_time_get_different_ports() {
        let runtime = crate::connect::runtime().expect("a runtime");
        let mut one = Reserved::new();
        let addr = one.take(runtime.env()).unwrap();
        // The port itself is free: its process is to listen there.
        drop(TcpListener::bind(addr).unwrap());
        let name = Name::from_abstract_name(format!("craton-port-{}", addr.port())).unwrap();
        assert!(UnixListener::bind_addr(&name).is_err());
        drop(one);
        assert!(UnixListener::bind_addr(&name).is_ok());
    }

    #[test]
    fn ranges_are_checked() {
        assert_eq!(parse("20000-20009").unwrap(), 20000..=20009);
        for text in ["", "20000", "9-8", "0-5", "1-70000", "a-b"] {
            assert!(parse(text).unwrap_err().to_string().contains("such as"), "{text}");
        }
    }
}

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
        self.take_run(env, 1)
    }

    /// Another free address, and the ports after it, `count` in all: a chunkserver listens on one
    /// for each of its executors.
    pub fn take_run(&mut self, env: &Env, count: u16) -> Result<SocketAddr, Failure> {
        self.take_at(env, self.ip, count)
    }

    /// Another free address that only this machine reaches.
    pub fn take_local(&mut self, env: &Env) -> Result<SocketAddr, Failure> {
        self.take_at(env, LOOPBACK, 1)
    }

    fn take_at(&mut self, env: &Env, ip: IpAddr, count: u16) -> Result<SocketAddr, Failure> {
        let range = match std::env::var(RANGE) {
            Ok(text) => parse(&text)?,
            Err(_) => FIRST..=last_port(),
        };
        let (first, last) = (*range.start(), *range.end());
        for _ in 0..TRIES_MAX {
            let port = first + env.random_below(u64::from(last - first) + 1) as u16;
            let end = u32::from(port) + u32::from(count) - 1;
            let claims = (end <= u32::from(last)).then(|| {
                (port..=end as u16).map(|port| claim(ip, port)).collect::<Option<Vec<_>>>()
            });
            if let Some(claims) = claims.flatten() {
                self.claims.extend(claims);
                return Ok(SocketAddr::from((ip, port)));
            }
        }
        Err(Failure::setup(format!(
            "no port from {first} to {last} of {ip} is free: stop other clusters, or name more \
             ports with {RANGE}=FIRST-LAST"
        )))
    }
}

/// Nothing unless the port is free and no other command has claimed it.
fn claim(ip: IpAddr, port: u16) -> Option<UnixListener> {
    let name = Name::from_abstract_name(format!("craton-port-{port}")).ok()?;
    let claim = UnixListener::bind_addr(&name).ok()?;
    TcpListener::bind((ip, port)).is_ok().then_some(claim)
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
    fn ports_after_one_that_was_taken_are_taken_too() {
        let runtime = crate::connect::runtime().expect("a runtime");
        let mut ports = Reserved::new();
        let first = ports.take_run(runtime.env(), 3).unwrap().port();
        for port in first..first + 3 {
            assert!(claim(LOOPBACK, port).is_none(), "{port}");
        }
    }

    #[test]
    fn ranges_are_checked() {
        assert_eq!(parse("20000-20009").unwrap(), 20000..=20009);
        for text in ["", "20000", "9-8", "0-5", "1-70000", "a-b"] {
            assert!(parse(text).unwrap_err().to_string().contains("such as"), "{text}");
        }
    }
}

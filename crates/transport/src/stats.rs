//! Counters of links: every stage counts bytes in and out, so that amplification adds up (C29).

use std::cell::Cell;
use std::net::SocketAddr;

use wire::frame::Service;

/// Numbers that are counted apart: each service, and as number 0 the links' own signals.
pub(crate) const COUNTED: usize = Service::MAX as usize + 1;

/// Frames and bytes of one service, headers included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServiceStats {
    /// Frames received.
    pub frames_in: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
}

impl ServiceStats {
    fn add(&mut self, other: &ServiceStats) {
        self.frames_in += other.frames_in;
        self.frames_out += other.frames_out;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

/// One link that is up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkStats {
    /// The peer's name.
    pub peer: String,
    /// The peer's address.
    pub addr: SocketAddr,
    /// True when this side connected.
    pub connected: bool,
    /// By the services' numbers; the link's own signals are number 0.
    pub services: [ServiceStats; COUNTED],
    /// Bytes that wait to be sent.
    pub queued_bytes: usize,
    /// Bytes of the peer's requests that wait until some of that has left.
    pub deferred_bytes: usize,
    /// Calls that wait for answers.
    pub calls: usize,
    /// Requests of the peer that are being handled.
    pub serving: usize,
}

/// All of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Links that are up, by address.
    pub links: Vec<LinkStats>,
    /// Since the start, by the services' numbers, closed links included; number 0 is the links'
    /// own signals.
    pub services: [ServiceStats; COUNTED],
    /// Requests handed over within the process, by the services' numbers.
    pub local_calls: [u64; COUNTED],
    /// Connections made or accepted.
    pub links_opened: u64,
    /// Links that broke.
    pub links_broken: u64,
    /// Connection attempts that failed.
    pub connects_failed: u64,
    /// Peers and connections refused for cluster, key or version.
    pub refused: u64,
    /// Requests answered `Busy` here.
    pub busy: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, services: &[ServiceStats; COUNTED]) {
        for (total, link) in self.services.iter_mut().zip(services) {
            total.add(link);
        }
    }
}

/// Counters of a link.
#[derive(Default)]
pub(crate) struct Counters([Cell<ServiceStats>; COUNTED]);

impl Counters {
    fn of(&self, service: Option<Service>) -> &Cell<ServiceStats> {
        &self.0[service.map_or(0, |service| usize::from(service.number()))]
    }

    pub(crate) fn sent(&self, service: Option<Service>, len: usize) {
        let cell = self.of(service);
        let mut stats = cell.get();
        stats.frames_out += 1;
        stats.bytes_out += len as u64;
        cell.set(stats);
    }

    pub(crate) fn received(&self, service: Option<Service>, frames: u32, len: usize) {
        let cell = self.of(service);
        let mut stats = cell.get();
        stats.frames_in += u64::from(frames);
        stats.bytes_in += len as u64;
        cell.set(stats);
    }

    pub(crate) fn snapshot(&self) -> [ServiceStats; COUNTED] {
        self.0.each_ref().map(Cell::get)
    }
}

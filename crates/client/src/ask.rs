//! Which replica a read asks, and when it asks another one too (C16).

use std::net::SocketAddr;

use runtime::{Duration, Instant};
use wire::control::ReplicaPlace;

use crate::backup::Delays;
use crate::client::Client;
use crate::counters::add;
use crate::health::{CallClass, CallEnd, CallTicket, Target};

/// Share of a disk's reads, in thousandths, whose latency stands for it when replicas are compared.
const LIKELY_PER_MILLE: u32 = 900;

fn target(replica: &ReplicaPlace) -> Target {
    Target { addr: replica.addr, disk: replica.disk }
}

/// Replicas in the order to ask them: at random, those that failed lately last.
pub(crate) fn order(client: &Client, replicas: &[ReplicaPlace]) -> Vec<ReplicaPlace> {
    let mut order = replicas.to_vec();
    if !order.is_empty() {
        let first = client.env().random_below(order.len() as u64) as usize;
        order.rotate_left(first);
        order.sort_by_key(|replica| client.is_penalised(replica.addr));
    }
    order
}

/// Index of the replica that is likely to answer first: none that failed lately, if there is another,
/// and then the one with the least latency. One without evidence comes first: nothing waits there.
pub(crate) fn likeliest(client: &Client, replicas: &[ReplicaPlace], class: CallClass) -> usize {
    let (health, now) = (&mut *client.0.health.borrow_mut(), client.env().now());
    let mut rank = |replica: &ReplicaPlace| {
        let latency = health.latency(target(replica), class, LIKELY_PER_MILLE, now);
        (client.is_penalised(replica.addr), latency.unwrap_or(Duration::ZERO))
    };
    let ranks: Vec<_> = replicas.iter().map(&mut rank).collect();
    let least = ranks.iter().enumerate().min_by_key(|(_, rank)| **rank);
    least.map_or(0, |(index, _)| index)
}

/// A read at a replica, whose latency counts: also when it is dropped, as far as it has come.
pub(crate) struct TimedCall<'a> {
    client: &'a Client,
    ticket: Option<CallTicket>,
}

impl<'a> TimedCall<'a> {
    pub(crate) fn begin(
        client: &'a Client,
        replica: &ReplicaPlace,
        class: CallClass,
    ) -> TimedCall<'a> {
        let now = client.env().now();
        let ticket = client.0.health.borrow_mut().begin(target(replica), class, now);
        TimedCall { client, ticket: Some(ticket) }
    }

    pub(crate) fn end(mut self, end: CallEnd) {
        self.note(end);
    }

    fn note(&mut self, end: CallEnd) {
        if let Some(ticket) = self.ticket.take() {
            self.client.0.health.borrow_mut().end(ticket, end, self.client.env().now());
        }
    }
}

impl Drop for TimedCall<'_> {
    fn drop(&mut self) {
        self.note(CallEnd::Timed);
    }
}

/// Cause for which a replica is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asking {
    /// In its turn: no other is asked, or those that are count as failed.
    Next,
    /// As a backup of one that takes long.
    Backup,
}

/// When one read asks another replica.
pub(crate) struct Pace {
    pub(crate) delays: Delays,
    /// When the last replica was asked.
    started: Option<Instant>,
    /// A token was asked for: there is one backup read at most for each read.
    decided: bool,
}

impl Pace {
    pub(crate) fn of(client: &Client, class: CallClass) -> Pace {
        let (health, now) = (&mut *client.0.health.borrow_mut(), client.env().now());
        let delays = Delays::of(&client.config().backup, health, class, now);
        Pace { delays, started: None, decided: false }
    }

    /// A replica is asked.
    pub(crate) fn start(&mut self, now: Instant) {
        self.started = Some(now);
    }

    /// When it is time to [act](Pace::act).
    pub(crate) fn next(&self) -> Option<Instant> {
        let delay = if self.decided { self.delays.failed } else { self.delays.backup };
        self.started.map(|started| started + delay)
    }

    /// The last replica takes long: cause for which another is to be asked now, if it is to be.
    pub(crate) fn act(&mut self, client: &Client, len: u64) -> Option<Asking> {
        let counters = &client.0.counters;
        if !self.decided {
            self.decided = true;
            if client.0.backups.borrow_mut().take(len) {
                add(&counters.backup_reads, 1);
                client.0.backup_metrics.sent.inc();
                client.env().mark("reader: backup read");
                return Some(Asking::Backup);
            }
            add(&counters.backup_reads_refused, 1);
            client.0.backup_metrics.refused.inc();
            client.env().mark("reader: no token for a backup read");
            if self.delays.failed > self.delays.backup {
                return None;
            }
        }
        add(&counters.read_failovers, 1);
        client.env().mark("reader: a replica that takes long counts as failed");
        Some(Asking::Next)
    }
}

/// Replicas that one read has asked and that have not answered.
#[derive(Default)]
pub(crate) struct UnderWay(Vec<(SocketAddr, base::DiskId, Asking, Instant)>);

impl UnderWay {
    pub(crate) fn begin(&mut self, replica: &ReplicaPlace, asking: Asking, now: Instant) {
        self.0.push((replica.addr, replica.disk, asking, now));
    }

    /// A replica has answered; answers why it was asked.
    pub(crate) fn end(&mut self, replica: &ReplicaPlace) -> Asking {
        let is_it = |(addr, disk, ..): &(SocketAddr, base::DiskId, Asking, Instant)| {
            (*addr, *disk) == (replica.addr, replica.disk)
        };
        let at = self.0.iter().position(is_it).expect("it was asked");
        self.0.remove(at).2
    }

    /// Has those asked last for a while that have not answered for `failed`: they may never do.
    pub(crate) fn penalise_failed(&self, client: &Client, failed: Duration) {
        let now = client.env().now();
        for (addr, _, _, started) in &self.0 {
            if now.since(*started) >= failed {
                client.penalise(*addr);
            }
        }
    }
}

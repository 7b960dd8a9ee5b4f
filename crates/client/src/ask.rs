//! Which replica a read asks, and when it asks another one too (C16, C17).

use base::ChunkId;
use runtime::{Duration, Instant};
use wire::control::{CallClass, ChunkPlace, ReplicaPlace};

use crate::backup::Delays;
use crate::client::Client;
use crate::counters::add;
use crate::health::{CallEnd, CallTicket, Target};

/// Share of a disk's reads, in thousandths, whose latency stands for it when replicas are compared.
const LIKELY_PER_MILLE: u32 = 900;

/// Replicas in the order to ask them: at random, those last that lack the bytes, as it seems, or are
/// listed.
pub(crate) fn order(client: &Client, chunk: &ChunkPlace) -> Vec<ReplicaPlace> {
    let mut order = chunk.replicas.clone();
    if !order.is_empty() {
        client.note_servers(&order);
        let first = client.env().random_below(order.len() as u64) as usize;
        order.rotate_left(first);
        order.sort_by_key(|replica| client.is_asked_last(chunk.chunk, replica));
    }
    order
}

/// Index of the replica that is likely to answer first: none that is to be asked last, if there is
/// another, and then the one with the least latency. One without evidence comes first: nothing waits
/// there.
pub(crate) fn likeliest(
    client: &Client,
    chunk: ChunkId,
    replicas: &[ReplicaPlace],
    class: CallClass,
) -> usize {
    let (health, now) = (&mut *client.0.health.borrow_mut(), client.env().now());
    let mut rank = |replica: &ReplicaPlace| {
        let latency = health.latency(Target::of(replica), class, LIKELY_PER_MILLE, now);
        (client.is_asked_last(chunk, replica), latency.unwrap_or(Duration::ZERO))
    };
    let ranks: Vec<_> = replicas.iter().map(&mut rank).collect();
    let least = ranks.iter().enumerate().min_by_key(|(_, rank)| **rank);
    least.map_or(0, |(index, _)| index)
}

/// A call to a replica, whose latency counts: also when it is dropped, as far as it has come.
pub(crate) struct TimedCall {
    client: Client,
    ticket: Option<CallTicket>,
}

impl TimedCall {
    pub(crate) fn begin(client: &Client, target: Target, class: CallClass) -> TimedCall {
        let now = client.env().now();
        let ticket = client.0.health.borrow_mut().begin(target, class, now);
        client.0.watch();
        TimedCall { client: client.clone(), ticket: Some(ticket) }
    }

    pub(crate) fn end(mut self, end: CallEnd) {
        self.note(end);
    }

    fn note(&mut self, end: CallEnd) {
        if let Some(ticket) = self.ticket.take() {
            let listed = self.client.0.lists.borrow().is_asked_last(ticket.target());
            let now = self.client.env().now();
            self.client.0.health.borrow_mut().end(ticket.at_listed(listed), end, now);
        }
    }
}

impl Drop for TimedCall {
    fn drop(&mut self) {
        self.note(CallEnd::GivenUp);
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
pub(crate) struct UnderWay(Vec<(Target, Asking, Instant)>);

impl UnderWay {
    pub(crate) fn begin(&mut self, replica: &ReplicaPlace, asking: Asking, now: Instant) {
        self.0.push((Target::of(replica), asking, now));
    }

    /// A replica has answered; answers why it was asked.
    pub(crate) fn end(&mut self, replica: &ReplicaPlace) -> Asking {
        let at = self.0.iter().position(|(asked, ..)| *asked == Target::of(replica));
        self.0.remove(at.expect("it was asked")).1
    }

    /// Suspects those that have not answered for `failed`: they may never do.
    pub(crate) fn suspect_failed(&self, client: &Client, failed: Duration) {
        let now = client.env().now();
        for (target, _, started) in &self.0 {
            if now.since(*started) >= failed {
                client.suspect(*target);
            }
        }
    }
}

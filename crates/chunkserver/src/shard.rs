//! Shards: the parts of one server that run on executors of their own, one a core (C10).
//!
//! Each shard has its own disks, endpoint and address, which heartbeats report with each disk.
//! Clients and masters call the executor that has the disk, so a request runs to completion on the
//! core that received it. The first shard sends the server's heartbeats. A request that reaches a
//! shard without its disk (an address learned before a restart, or the server's own) is handed to
//! the shard that has it: never wrong, only slower.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{ChunkId, DiskId};
use runtime::Instant;
use runtime::sync::{Notify, mpsc, oneshot};
use transport::{PeerInfo, Reply, Request, Response};
use wire::control::{DiskReport, IssuerClock};

use crate::issuers::Issuers;
use crate::limits::{DAMAGED_MAX, DAMAGED_REPEAT, FORWARDED_MAX, QUIET_MAX};
use crate::owner::Home;
use crate::server::Stats;

/// A request on its way to the shard that has its disk.
pub(crate) struct Forwarded {
    pub(crate) request: Request,
    pub(crate) peer: PeerInfo,
    /// When its caller stops waiting.
    pub(crate) deadline: Instant,
    pub(crate) reply: oneshot::Sender<Response>,
}

/// The way of a request to a shard.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) peer: &'a PeerInfo,
    /// Another shard has handed it over: it goes no further.
    pub(crate) forwarded: bool,
    /// When its caller stops waiting.
    pub(crate) deadline: Instant,
    /// The way of the answer; none of a request that another shard has handed over, where a
    /// cancellation does not arrive.
    pub(crate) reply: Option<&'a Reply>,
}

impl Origin<'_> {
    /// Whether the caller still waits for the answer.
    pub(crate) fn waits(&self, now: Instant) -> bool {
        now < self.deadline && !self.reply.is_some_and(Reply::is_cancelled)
    }
}

/// A shard's last report to the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardReport {
    pub(crate) disks: Vec<DiskReport>,
    pub(crate) load: u32,
    pub(crate) stats: Stats,
    /// The cluster that the server had joined then.
    pub(crate) home: Option<Home>,
    /// The cluster for which the shard's disks were judged.
    pub(crate) judged: Option<Home>,
}

/// A damaged replica that masters are to know.
struct DamageReport {
    replica: (DiskId, ChunkId),
    /// Masters that have it.
    taken_by: BTreeSet<SocketAddr>,
    /// When the first of them took it.
    taken: Option<Instant>,
}

struct Shard {
    addr: SocketAddr,
    inbox: mpsc::Sender<Forwarded>,
    report: ShardReport,
}

/// State that the shards of one server share. Clones share it, on any thread.
#[derive(Clone, Default)]
pub struct ShardDirectory(Arc<Shared>);

#[derive(Default)]
struct Shared {
    shards: Mutex<Vec<Shard>>,
    damaged: Mutex<VecDeque<DamageReport>>,
    quiet: Mutex<VecDeque<(DiskId, ChunkId)>>,
    /// The cluster that the server has joined, and its masters.
    home: Mutex<Option<(Home, Vec<SocketAddr>)>>,
    heartbeat_soon: Notify,
    /// Clocks of masters; and changes of them, for shards that have a copy.
    issuers: Mutex<Issuers>,
    issuers_version: AtomicU64,
}

/// A poisoned lock means that a shard's thread has died: its last report still holds.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ShardDirectory {
    /// Adds a shard; what it is handed comes out of the queue.
    pub(crate) fn join(&self, addr: SocketAddr, report: ShardReport) -> mpsc::Receiver<Forwarded> {
        let (inbox, forwarded) = mpsc::channel(FORWARDED_MAX);
        lock(&self.0.shards).push(Shard { addr, inbox, report });
        forwarded
    }

    /// Stores the report of the shard at `addr`.
    pub(crate) fn post(&self, addr: SocketAddr, report: ShardReport) {
        if let Some(shard) = lock(&self.0.shards).iter_mut().find(|shard| shard.addr == addr) {
            shard.report = report;
        }
    }

    /// The server has joined a cluster with these masters.
    pub(crate) fn set_home(&self, home: Home, masters: Vec<SocketAddr>) {
        *lock(&self.0.home) = Some((home, masters));
    }

    /// The cluster that the server has joined.
    pub(crate) fn home(&self) -> Option<(Home, Vec<SocketAddr>)> {
        lock(&self.0.home).clone()
    }

    /// True once every shard has judged its disks for `home`.
    pub(crate) fn all_judged(&self, home: Home) -> bool {
        lock(&self.0.shards).iter().all(|shard| shard.report.judged == Some(home))
    }

    /// Last reports of all shards but the one at `addr`.
    pub(crate) fn others(&self, addr: SocketAddr) -> Vec<ShardReport> {
        let shards = lock(&self.0.shards);
        shards.iter().filter(|shard| shard.addr != addr).map(|shard| shard.report.clone()).collect()
    }

    /// The way to the shard that has a disk, other than the one at `addr`. Reports of disks that
    /// are not served carry no ID: no shard has that one.
    pub(crate) fn shard_of(
        &self,
        disk: DiskId,
        addr: SocketAddr,
    ) -> Option<mpsc::Sender<Forwarded>> {
        if disk == DiskId::default() {
            return None;
        }
        let shards = lock(&self.0.shards);
        let has = |shard: &&Shard| shard.report.disks.iter().any(|report| report.disk == disk);
        let shard = shards.iter().filter(|shard| shard.addr != addr).find(has)?;
        Some(shard.inbox.clone())
    }

    /// Adds an open replica whose writer sends nothing, for the next heartbeat. When the list is
    /// full, the next round of the watch finds it again.
    pub(crate) fn add_quiet(&self, disk: DiskId, chunk: ChunkId) {
        let quiet = &mut *lock(&self.0.quiet);
        if quiet.len() < QUIET_MAX && !quiet.contains(&(disk, chunk)) {
            quiet.push_back((disk, chunk));
        }
    }

    /// Takes up to `limit` quiet replicas. The next round of the watch replaces a lost heartbeat.
    pub(crate) fn take_quiet(&self, limit: usize) -> Vec<(DiskId, ChunkId)> {
        let quiet = &mut *lock(&self.0.quiet);
        let count = limit.min(quiet.len());
        quiet.drain(..count).collect()
    }

    /// Adds a damaged replica for the next heartbeat; false when it is known, or there are too
    /// many that no master has: scrub and reads find it again. One that is known is reported to
    /// all masters again.
    pub(crate) fn add_damaged(&self, disk: DiskId, chunk: ChunkId) -> bool {
        let damaged = &mut *lock(&self.0.damaged);
        let replica = (disk, chunk);
        if let Some(report) = damaged.iter_mut().find(|report| report.replica == replica) {
            report.taken_by.clear();
            return false;
        }
        if damaged.len() >= DAMAGED_MAX {
            let Some(known) = damaged.iter().position(|report| report.taken.is_some()) else {
                return false;
            };
            damaged.remove(known);
        }
        damaged.push_back(DamageReport { replica, taken_by: BTreeSet::new(), taken: None });
        true
    }

    /// The first damaged replicas that a master has not taken, `limit` at most.
    pub(crate) fn damaged(&self, master: SocketAddr, limit: usize) -> Vec<(DiskId, ChunkId)> {
        let damaged = lock(&self.0.damaged);
        let open = damaged.iter().filter(|report| !report.taken_by.contains(&master));
        open.take(limit).map(|report| report.replica).collect()
    }

    /// A master has taken a heartbeat with these damaged replicas.
    pub(crate) fn note_taken(
        &self,
        master: SocketAddr,
        replicas: &[(DiskId, ChunkId)],
        now: Instant,
    ) {
        if replicas.is_empty() {
            return;
        }
        for report in lock(&self.0.damaged).iter_mut() {
            if replicas.contains(&report.replica) {
                report.taken_by.insert(master);
                report.taken.get_or_insert(now);
            }
        }
    }

    /// Damaged replicas that a master took [`DAMAGED_REPEAT`] ago, or before.
    pub(crate) fn taken_long_ago(&self, now: Instant) -> Vec<(DiskId, ChunkId)> {
        let damaged = lock(&self.0.damaged);
        let is_due = |taken: Instant| now.since(taken) >= DAMAGED_REPEAT;
        let due = damaged.iter().filter(|report| report.taken.is_some_and(is_due));
        due.map(|report| report.replica).collect()
    }

    /// Reports a damaged replica to all masters again.
    pub(crate) fn repeat_damaged(&self, replica: (DiskId, ChunkId)) {
        let damaged = &mut *lock(&self.0.damaged);
        if let Some(report) = damaged.iter_mut().find(|report| report.replica == replica) {
            report.taken_by.clear();
            report.taken = None;
        }
    }

    /// Forgets a replica that is not damaged any more, or gone.
    pub(crate) fn forget_damaged(&self, replica: (DiskId, ChunkId)) {
        lock(&self.0.damaged).retain(|report| report.replica != replica);
    }

    /// An answer to a heartbeat shows a master's clock.
    pub(crate) fn note_issuer(&self, shown: IssuerClock, asked: Instant, now: Instant) {
        let issuers = &mut *lock(&self.0.issuers);
        issuers.note(shown, asked, now);
        self.0.issuers_version.store(issuers.version, Ordering::Release);
    }

    /// Brings a shard's copy of the masters' clocks up to date.
    pub(crate) fn copy_issuers(&self, copy: &mut Issuers) {
        if self.0.issuers_version.load(Ordering::Acquire) != copy.version {
            copy.clone_from(&lock(&self.0.issuers));
        }
    }

    /// The next heartbeat does not wait for its time.
    pub(crate) fn heartbeat_soon(&self) {
        self.0.heartbeat_soon.notify_one();
    }

    /// Completes after [`ShardDirectory::heartbeat_soon`].
    pub(crate) async fn wait_for_heartbeat_request(&self) {
        self.0.heartbeat_soon.notified().await;
    }
}

impl std::fmt::Debug for ShardDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShardDirectory({} shards)", lock(&self.0.shards).len())
    }
}

//! Lanes: the parts of one server that run on executors of their own, one a core (C10).
//!
//! Each lane has its own disks, its own endpoint and its own address, which heartbeats tell with
//! each disk: clients and masters call the executor that has the disk, so a request runs to
//! completion on the core that received it. The first lane speaks for the server. A request that
//! reaches a lane without its disk (an address learned before a restart, or the server's own)
//! is handed to the lane that has it: never wrong, only slower.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{ChunkId, DiskId};
use runtime::sync::{Notify, mpsc, oneshot};
use transport::{PeerInfo, Request, Response};
use wire::control::DiskReport;

use crate::limits::{DAMAGED_MAX, FORWARDED_MAX, QUIET_MAX};
use crate::owner::Home;
use crate::server::Stats;

/// A request on its way to the lane that has its disk.
pub(crate) struct Forwarded {
    pub(crate) request: Request,
    pub(crate) peer: PeerInfo,
    pub(crate) reply: oneshot::Sender<Response>,
}

/// What a lane has told the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct News {
    pub(crate) disks: Vec<DiskReport>,
    pub(crate) load: u32,
    pub(crate) stats: Stats,
    /// The cluster for which the lane's disks were judged.
    pub(crate) judged: Option<Home>,
}

struct Lane {
    addr: SocketAddr,
    inbox: mpsc::Sender<Forwarded>,
    news: News,
}

/// What the lanes of one server share. Clones share it, on any thread.
#[derive(Clone, Default)]
pub struct Board(Arc<Shared>);

#[derive(Default)]
struct Shared {
    lanes: Mutex<Vec<Lane>>,
    damaged: Mutex<VecDeque<(DiskId, ChunkId)>>,
    quiet: Mutex<VecDeque<(DiskId, ChunkId)>>,
    /// The cluster that the server has joined, and its masters.
    home: Mutex<Option<(Home, Vec<SocketAddr>)>>,
    beat_soon: Notify,
}

/// A poisoned lock means that a lane's thread has died: what it told last still holds.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    /// Adds a lane; what it is handed comes out of the queue.
    pub(crate) fn join(&self, addr: SocketAddr, news: News) -> mpsc::Receiver<Forwarded> {
        let (inbox, forwarded) = mpsc::channel(FORWARDED_MAX);
        lock(&self.0.lanes).push(Lane { addr, inbox, news });
        forwarded
    }

    /// Notes what the lane at `addr` tells.
    pub(crate) fn post(&self, addr: SocketAddr, news: News) {
        if let Some(lane) = lock(&self.0.lanes).iter_mut().find(|lane| lane.addr == addr) {
            lane.news = news;
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

    /// True once every lane has judged its disks for `home`.
    pub(crate) fn all_judged(&self, home: Home) -> bool {
        lock(&self.0.lanes).iter().all(|lane| lane.news.judged == Some(home))
    }

    /// What all lanes but the one at `addr` told last.
    pub(crate) fn others(&self, addr: SocketAddr) -> Vec<News> {
        let lanes = lock(&self.0.lanes);
        lanes.iter().filter(|lane| lane.addr != addr).map(|lane| lane.news.clone()).collect()
    }

    /// The way to the lane that has a disk, other than the one at `addr`.
    pub(crate) fn lane_of(
        &self,
        disk: DiskId,
        addr: SocketAddr,
    ) -> Option<mpsc::Sender<Forwarded>> {
        let lanes = lock(&self.0.lanes);
        let has = |lane: &&Lane| lane.news.disks.iter().any(|report| report.disk == disk);
        let lane = lanes.iter().filter(|lane| lane.addr != addr).find(has)?;
        Some(lane.inbox.clone())
    }

    /// Adds an open replica whose writer is not heard of, for the next heartbeat. What does not fit
    /// is found again.
    pub(crate) fn add_quiet(&self, disk: DiskId, chunk: ChunkId) {
        let quiet = &mut *lock(&self.0.quiet);
        if quiet.len() < QUIET_MAX && !quiet.contains(&(disk, chunk)) {
            quiet.push_back((disk, chunk));
        }
    }

    /// Takes up to `limit` quiet replicas. A heartbeat that is lost is made good by the next round
    /// of the watch.
    pub(crate) fn take_quiet(&self, limit: usize) -> Vec<(DiskId, ChunkId)> {
        let quiet = &mut *lock(&self.0.quiet);
        let count = limit.min(quiet.len());
        quiet.drain(..count).collect()
    }

    /// Adds a damaged replica for the next heartbeat; false when it is known, or there are too
    /// many: scrub and reads find it again.
    pub(crate) fn add_damaged(&self, disk: DiskId, chunk: ChunkId) -> bool {
        let damaged = &mut *lock(&self.0.damaged);
        let add = damaged.len() < DAMAGED_MAX && !damaged.contains(&(disk, chunk));
        if add {
            damaged.push_back((disk, chunk));
        }
        add
    }

    /// The first damaged replicas, `limit` at most.
    pub(crate) fn damaged(&self, limit: usize) -> Vec<(DiskId, ChunkId)> {
        lock(&self.0.damaged).iter().take(limit).copied().collect()
    }

    /// Forgets the first `count` damaged replicas: a master knows.
    pub(crate) fn drop_damaged(&self, count: usize) {
        let damaged = &mut *lock(&self.0.damaged);
        damaged.drain(..count.min(damaged.len()));
    }

    /// The next heartbeat does not wait for its time.
    pub(crate) fn beat_soon(&self) {
        self.0.beat_soon.notify_one();
    }

    /// Completes after [`Board::beat_soon`].
    pub(crate) async fn asked_to_beat(&self) {
        self.0.beat_soon.notified().await;
    }
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Board({} lanes)", lock(&self.0.lanes).len())
    }
}

//! The server: its disks, its counters, its way in.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

use base::{ChunkId, DiskId, Epoch, Map};
use chunkstore::{ChunkStore, StoreError};
use runtime::{Class, Env};
use transport::{Endpoint, Handler, Incoming, Response, Service, TransportError};
use wire::control::{ControlError, DiskReport};
use wire::data::{ChunkRef, DataError};
use wire::token::TokenVerifier;

use crate::config::Config;
use crate::limits::DAMAGED_MAX;

/// Counters since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Appends made durable.
    pub appends: u64,
    /// Data sectors' bytes appended.
    pub append_bytes: u64,
    /// Reads answered.
    pub reads: u64,
    /// Sector bytes read.
    pub read_bytes: u64,
    /// Requests answered busy.
    pub busy: u64,
    /// Requests refused for their token.
    pub denied: u64,
    /// Replicas made by repair.
    pub replications: u64,
    /// Bytes copied by repair.
    pub replicated_bytes: u64,
    /// Damaged replicas found by reads and scrub.
    pub damaged: u64,
    /// Bytes scrubbed.
    pub scrubbed_bytes: u64,
}

/// One disk of the server.
pub(crate) struct Disk<S> {
    pub(crate) id: DiskId,
    pub(crate) path: String,
    pub(crate) store: S,
    /// Taken out by fault injection.
    pub(crate) failed: Cell<bool>,
}

pub(crate) struct Inner<S> {
    pub(crate) env: Env,
    pub(crate) endpoint: Endpoint,
    pub(crate) config: Config,
    pub(crate) disks: BTreeMap<DiskId, Rc<Disk<S>>>,
    /// Committed lengths of open chunks, as their writers tell them (`protocols.md` 1.6).
    pub(crate) committed: RefCell<Map<ChunkId, (Epoch, u32)>>,
    pub(crate) verifier: Option<RefCell<TokenVerifier>>,
    pub(crate) append_bytes: Cell<usize>,
    pub(crate) read_bytes: Cell<usize>,
    pub(crate) replicating: RefCell<BTreeSet<ChunkId>>,
    pub(crate) damaged: RefCell<VecDeque<(DiskId, ChunkId)>>,
    pub(crate) stats: Cell<Stats>,
    pub(crate) addr: Cell<Option<SocketAddr>>,
    pub(crate) beat_now: runtime::sync::Notify,
}

/// A running chunkserver. Clones share it; it stops with its `Env`.
pub struct Chunkserver<S>(pub(crate) Rc<Inner<S>>);

impl<S> Clone for Chunkserver<S> {
    fn clone(&self) -> Self {
        Chunkserver(self.0.clone())
    }
}

impl<S: ChunkStore> Chunkserver<S> {
    /// Starts serving `disks` (path for people, opened store) and joins the cluster.
    pub async fn start(
        env: &Env,
        endpoint: Endpoint,
        config: Config,
        disks: Vec<(String, S)>,
    ) -> Result<Chunkserver<S>, TransportError> {
        let listen = config.listen;
        let disks = disks.into_iter().map(|(path, store)| {
            let id = store.info().disk;
            (id, Rc::new(Disk { id, path, store, failed: Cell::new(false) }))
        });
        let verifier = config.token_key.clone().map(TokenVerifier::new).map(RefCell::new);
        let server = Chunkserver(Rc::new(Inner {
            env: env.clone(),
            endpoint: endpoint.clone(),
            config,
            disks: disks.collect(),
            committed: RefCell::default(),
            verifier,
            append_bytes: Cell::new(0),
            read_bytes: Cell::new(0),
            replicating: RefCell::default(),
            damaged: RefCell::default(),
            stats: Cell::default(),
            addr: Cell::new(None),
            beat_now: runtime::sync::Notify::new(),
        }));
        let addr = endpoint.listen(listen, Rc::new(server.clone())).await?;
        server.0.addr.set(Some(addr));
        env.spawn(Class::Control, "heartbeats", server.clone().run_heartbeats());
        env.spawn(Class::Background, "scrub", server.clone().run_scrub());
        Ok(server)
    }

    /// Where it is reached.
    pub fn addr(&self) -> SocketAddr {
        self.0.addr.get().expect("set before start returns")
    }

    /// Counters since the start.
    pub fn stats(&self) -> Stats {
        self.0.stats.get()
    }

    /// Its disks, as heartbeats tell them.
    pub fn disk_reports(&self) -> Vec<DiskReport> {
        let report = |disk: &Rc<Disk<S>>| {
            let info = disk.store.info();
            DiskReport {
                disk: disk.id,
                path: disk.path.clone(),
                capacity: info.capacity,
                used: info.used,
                chunks: info.chunks,
                failed: info.failed || disk.failed.get(),
            }
        };
        self.0.disks.values().map(report).collect()
    }

    /// Checkpoints and closes every disk.
    pub async fn stop(&self) {
        self.0.endpoint.close();
        for disk in self.0.disks.values() {
            if let Err(error) = disk.store.close().await {
                tracing::warn!(disk = %disk.path, %error, "store did not close cleanly");
            }
        }
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Stats)) {
        let mut stats = self.0.stats.get();
        change(&mut stats);
        self.0.stats.set(stats);
    }

    /// The disk a replica was placed on.
    pub(crate) fn disk(&self, at: ChunkRef) -> Result<Rc<Disk<S>>, DataError> {
        let disk = self.0.disks.get(&at.disk).ok_or(DataError::WrongDisk)?;
        if disk.failed.get() {
            return Err(DataError::DiskFailed);
        }
        Ok(disk.clone())
    }

    /// Remembers a damaged replica and tells the masters soon.
    pub(crate) fn note_damaged(&self, disk: DiskId, chunk: ChunkId) {
        let damaged = &mut *self.0.damaged.borrow_mut();
        if damaged.len() < DAMAGED_MAX && !damaged.contains(&(disk, chunk)) {
            tracing::warn!(%disk, %chunk, "replica is damaged: reported for repair");
            damaged.push_back((disk, chunk));
            self.count(|stats| stats.damaged += 1);
            self.0.beat_now.notify_one();
        }
    }

    /// The data path's word for what a store answered.
    pub(crate) fn data_error(&self, at: ChunkRef, error: StoreError) -> DataError {
        match error {
            StoreError::Gap { len } => DataError::Gap { len },
            StoreError::Fenced { epoch } => DataError::Fenced { epoch },
            StoreError::Sealed { len } => DataError::Sealed { len },
            StoreError::Conflict => DataError::Conflict,
            StoreError::NotFound => DataError::NotFound,
            StoreError::Full => DataError::Full,
            StoreError::Corrupt { offset } => {
                self.note_damaged(at.disk, at.chunk);
                DataError::Corrupt { offset }
            }
            StoreError::BadSectors { index } => DataError::BadSectors { index },
            StoreError::Busy => DataError::Busy,
            StoreError::Failed => {
                self.0.beat_now.notify_one();
                DataError::DiskFailed
            }
            StoreError::Invalid(why) => {
                tracing::warn!(chunk = %at.chunk, why, "request against the store's contract");
                DataError::Invalid
            }
        }
    }
}

impl<S: ChunkStore> Handler for Chunkserver<S> {
    fn handle(&self, incoming: Incoming) {
        match incoming.request.service {
            Service::Data => self.handle_data(incoming),
            Service::Control => self.handle_control(incoming),
            Service::Raft => {
                let error = ControlError::new(
                    base::Kind::Invalid,
                    "this is a chunkserver, it holds no Raft group: ask a master",
                );
                incoming.reply.send(Response {
                    status: crate::control::STATUS_ERROR,
                    body: error.encode(),
                    payload: None,
                });
            }
        }
    }
}

//! The server: its disks, its counters, its entry for requests.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

use base::{ChunkId, DiskId, Epoch, Kind, Map, TraceId};
use chunkstore::{ChunkStore, StoreError};
use metrics::{Fact, Outcome, Span, Step};
use runtime::sync::{Budget, Semaphore, mpsc, oneshot};
use runtime::{Class, Env, Instant};
use transport::{Endpoint, Handler, Incoming, Request, Response, Service, TransportError};
use wire::control::{ControlError, DiskReport};
use wire::data::{ChunkRef, DataError, Purpose, ReplicaState};
use wire::token::{TokenKey, TokenVerifier};

use crate::config::Config;
use crate::disk_check::DiskCheck;
use crate::disk_times::LatencyRecord;
use crate::issuers::Issuers;
use crate::limits::{
    APPEND_BYTES_INFLIGHT_MAX, ISSUER_WAITS_MAX, JUDGE_PAUSE, READ_BYTES_INFLIGHT_MAX,
};
use crate::new_stores::NewStores;
use crate::owner::{DiskOwner, Home};
use crate::probe::Probes;
use crate::scrub_progress::Progress;
use crate::scrub_rate::ScrubRate;
use crate::shard::{Forwarded, Origin, ShardDirectory, ShardReport};
use crate::share::DiskShare;

/// Counters since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Appends made durable.
    pub appends: u64,
    /// Data sectors' bytes that clients appended, by purpose.
    pub append_bytes: [u64; Purpose::ALL.len()],
    /// The same that other chunkservers appended as they converted chunks.
    pub converted_bytes: u64,
    /// Reads answered.
    pub reads: u64,
    /// Sector bytes read.
    pub read_bytes: u64,
    /// Reads given up before the disk was asked: their callers had cancelled, or their deadlines
    /// had passed.
    pub reads_cancelled_before: u64,
    /// The same after the disk had been asked: its work was for nothing.
    pub reads_cancelled_after: u64,
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
    /// Passes of scrub over a disk.
    pub scrub_passes: u64,
    /// Rows that were checked with all their cells.
    pub checked_rows: u64,
    /// Fragments of chunks found with cells that were not their rows'.
    pub wrong_cells: u64,
    /// Rows found that were coded wrong.
    pub miscoded_rows: u64,
    /// Requests handed to the shard that has their disk.
    pub forwarded: u64,
}

impl Stats {
    /// The sum of two shards' counters.
    pub(crate) fn plus(self, other: &Stats) -> Stats {
        Stats {
            appends: self.appends + other.appends,
            append_bytes: std::array::from_fn(|purpose| {
                self.append_bytes[purpose] + other.append_bytes[purpose]
            }),
            converted_bytes: self.converted_bytes + other.converted_bytes,
            reads: self.reads + other.reads,
            read_bytes: self.read_bytes + other.read_bytes,
            reads_cancelled_before: self.reads_cancelled_before + other.reads_cancelled_before,
            reads_cancelled_after: self.reads_cancelled_after + other.reads_cancelled_after,
            busy: self.busy + other.busy,
            denied: self.denied + other.denied,
            replications: self.replications + other.replications,
            replicated_bytes: self.replicated_bytes + other.replicated_bytes,
            damaged: self.damaged + other.damaged,
            scrubbed_bytes: self.scrubbed_bytes + other.scrubbed_bytes,
            scrub_passes: self.scrub_passes + other.scrub_passes,
            checked_rows: self.checked_rows + other.checked_rows,
            wrong_cells: self.wrong_cells + other.wrong_cells,
            miscoded_rows: self.miscoded_rows + other.miscoded_rows,
            forwarded: self.forwarded + other.forwarded,
        }
    }
}

/// One disk of the server.
pub(crate) struct Disk<S> {
    pub(crate) id: DiskId,
    pub(crate) path: String,
    pub(crate) store: S,
    /// Taken out by fault injection.
    pub(crate) failed: Cell<bool>,
    /// What is known of the cluster it belongs to.
    pub(crate) owner: RefCell<DiskOwner>,
    pub(crate) probes: Probes,
    pub(crate) share: DiskShare,
    pub(crate) scrub: Progress,
    pub(crate) check: DiskCheck,
    pub(crate) times: LatencyRecord,
}

impl<S> Disk<S> {
    fn new(id: DiskId, (path, store): (String, S), owner: DiskOwner, config: &Config) -> Disk<S> {
        let (failed, owner, probes) = (Cell::new(false), RefCell::new(owner), Probes::default());
        let share = DiskShare::new(config.background);
        let (scrub, check) = (Progress::default(), DiskCheck::default());
        let times = LatencyRecord::new(config.times_halving);
        Disk { id, path, store, failed, owner, probes, share, scrub, check, times }
    }
}

pub(crate) struct ChunkserverInner<S> {
    pub(crate) env: Env,
    pub(crate) endpoint: Endpoint,
    pub(crate) config: Config,
    pub(crate) disks: RefCell<BTreeMap<DiskId, Rc<Disk<S>>>>,
    /// Disks that are not served: path and reason.
    pub(crate) left_out: RefCell<BTreeMap<String, String>>,
    /// Makes stores, where this process can; and the paths where one is being made.
    pub(crate) new_stores: RefCell<Option<Rc<dyn NewStores>>>,
    pub(crate) replacing: RefCell<BTreeSet<String>>,
    stopped: Cell<bool>,
    /// Committed lengths of open chunks, as their writers reported them (`protocols.md` 1.6).
    pub(crate) committed: RefCell<Map<ChunkId, (Epoch, u32)>>,
    /// Time of the last message of an open replica's writer, for replicas that the watch has seen.
    pub(crate) writer_seen: RefCell<BTreeMap<(DiskId, ChunkId), Instant>>,
    /// Open replicas that were found damaged: their writers are refused, and go on elsewhere.
    pub(crate) unsound: RefCell<BTreeSet<(DiskId, ChunkId)>>,
    pub(crate) verifier: RefCell<TokenVerifier>,
    /// This shard's copy of the masters' clocks.
    pub(crate) issuers: RefCell<Issuers>,
    /// Requests that wait for the clock of a master that is not known yet.
    pub(crate) issuer_waits: Semaphore,
    /// Bytes of appends under way, this shard's share.
    pub(crate) append_bytes: Budget,
    /// Bytes of reads under way, this shard's share.
    pub(crate) read_bytes: Budget,
    pub(crate) scrub_rate: ScrubRate,
    pub(crate) replicating: RefCell<BTreeSet<ChunkId>>,
    /// Chunks that are made from others, each once that is written and once that is only laid out.
    pub(crate) converting: RefCell<BTreeSet<(ChunkId, bool)>>,
    /// Chunks whose rows are being checked.
    pub(crate) checking: RefCell<BTreeSet<ChunkId>>,
    /// Replicas that were verified for a master that had given up by then: length, and when.
    pub(crate) unheard: RefCell<BTreeMap<(DiskId, ChunkId), (u32, Instant)>>,
    pub(crate) stats: Cell<Stats>,
    pub(crate) addr: Cell<Option<SocketAddr>>,
    pub(crate) directory: ShardDirectory,
    /// The cluster for which this shard's disks were judged.
    pub(crate) judged: Cell<Option<Home>>,
    /// Disks that a task judges.
    pub(crate) judging: RefCell<BTreeSet<DiskId>>,
    /// It was logged that another process has the server's name.
    pub(crate) refused: Cell<bool>,
}

/// A running chunkserver. Clones share it; it stops with its `Env`.
pub struct Chunkserver<S>(pub(crate) Rc<ChunkserverInner<S>>);

impl<S> Clone for Chunkserver<S> {
    fn clone(&self) -> Self {
        Chunkserver(self.0.clone())
    }
}

impl<S: ChunkStore> Chunkserver<S> {
    /// Starts serving `disks` (path for operators, opened store) with one shard, and joins the
    /// cluster.
    pub async fn start(
        env: &Env,
        endpoint: Endpoint,
        config: Config,
        disks: Vec<(String, S)>,
    ) -> Result<Chunkserver<S>, TransportError> {
        let server = Self::shard(env, endpoint, config, disks, &ShardDirectory::default()).await?;
        server.speak();
        Ok(server)
    }

    /// Starts a shard: it serves `disks` on this executor, at the address in `config`. Once all
    /// have started, one shard [sends](Chunkserver::speak) the heartbeats of the server.
    pub async fn shard(
        env: &Env,
        endpoint: Endpoint,
        config: Config,
        disks: Vec<(String, S)>,
        directory: &ShardDirectory,
    ) -> Result<Chunkserver<S>, TransportError> {
        let listen = config.listen;
        let disks = disks.into_iter().map(|named| {
            let id = named.1.info().disk;
            (id, Rc::new(Disk::new(id, named, DiskOwner::Unjudged, &config)))
        });
        let disks = disks.collect();
        let key = config.token_key.clone().unwrap_or_else(|| TokenKey::of_cluster(None));
        let shards = config.shards.max(1) as usize;
        let scrub_rate = ScrubRate::new(env, config.scrub_rate, config.shards);
        let server = Chunkserver(Rc::new(ChunkserverInner {
            env: env.clone(),
            endpoint: endpoint.clone(),
            left_out: RefCell::new(config.left_out.iter().cloned().collect()),
            new_stores: RefCell::default(),
            replacing: RefCell::default(),
            stopped: Cell::new(false),
            config,
            disks: RefCell::new(disks),
            committed: RefCell::default(),
            writer_seen: RefCell::default(),
            unsound: RefCell::default(),
            verifier: RefCell::new(TokenVerifier::new(key)),
            issuers: RefCell::default(),
            issuer_waits: Semaphore::new(ISSUER_WAITS_MAX),
            append_bytes: Budget::new(APPEND_BYTES_INFLIGHT_MAX / shards),
            read_bytes: Budget::new(READ_BYTES_INFLIGHT_MAX / shards),
            scrub_rate,
            replicating: RefCell::default(),
            converting: RefCell::default(),
            checking: RefCell::default(),
            unheard: RefCell::default(),
            stats: Cell::default(),
            addr: Cell::new(None),
            directory: directory.clone(),
            judged: Cell::new(None),
            judging: RefCell::default(),
            refused: Cell::new(false),
        }));
        let addr = endpoint.listen(listen, Rc::new(server.clone())).await?;
        server.0.addr.set(Some(addr));
        let forwarded = directory.join(addr, server.report());
        env.spawn(Class::Foreground, "forwarded requests", server.clone().run_inbox(forwarded));
        env.spawn(Class::Control, "shard news", server.clone().run_news());
        server.disks().into_iter().for_each(|disk| server.scrub(disk));
        env.spawn(Class::Background, "quiet watch", server.clone().run_quiet_watch());
        env.spawn(Class::Background, "disk watch", server.clone().run_disk_watch());
        Ok(server)
    }

    /// Registers the server, as reached at this shard, and sends heartbeats for all shards.
    pub fn speak(&self) {
        self.0.env.spawn(Class::Control, "heartbeats", self.clone().run_heartbeats());
    }

    /// This shard's report to the others.
    pub(crate) fn report(&self) -> ShardReport {
        ShardReport {
            disks: self.disk_reports(),
            load: u32::try_from(self.0.append_bytes.held() >> 12).unwrap_or(u32::MAX),
            stats: self.0.stats.get(),
            home: self.0.directory.home().map(|(home, _)| home),
            judged: self.0.judged.get(),
        }
    }

    /// Has the next heartbeat sent at once.
    pub(crate) fn heartbeat_soon(&self) {
        self.0.directory.post(self.addr(), self.report());
        self.0.directory.heartbeat_soon();
    }

    async fn run_news(self) {
        loop {
            let home = self.0.directory.home();
            if let Some((home, masters)) = &home {
                self.judge_disks(*home, masters);
            }
            self.repeat_damage_reports();
            let judged = self.0.config.shards <= 1 || self.0.judged.get() == home.map(|it| it.0);
            let pause = self.0.config.heartbeat / 2;
            let pause = if judged { pause } else { pause.min(JUDGE_PAUSE) };
            self.0.env.sleep(pause).await;
            self.0.directory.post(self.addr(), self.report());
        }
    }

    async fn run_inbox(self, mut inbox: mpsc::Receiver<Forwarded>) {
        while let Some(Forwarded { request, peer, deadline, reply }) = inbox.recv().await {
            let server = self.clone();
            let class = match request.service {
                Service::DATA => Class::Foreground,
                _ => Class::Background,
            };
            self.0.env.spawn(class, "forwarded request", async move {
                let origin = Origin { peer: &peer, forwarded: true, deadline, reply: None };
                let (response, _) = server.answer(request, origin).await;
                let _ = reply.send(response); // The shard may be gone.
            });
        }
    }

    /// Has the shard with this disk answer, if it is not this one. `None`: no other has it, or
    /// another one has handed the request over.
    pub(crate) async fn forward(
        &self,
        disk: DiskId,
        request: &Request,
        origin: Origin<'_>,
    ) -> Option<Result<(Response, Outcome), Kind>> {
        if origin.forwarded || self.0.disks.borrow().contains_key(&disk) {
            return None;
        }
        let inbox = self.0.directory.shard_of(disk, self.addr())?;
        self.count(|stats| stats.forwarded += 1);
        let (reply, answer) = oneshot::channel();
        let (request, peer, deadline) = (request.clone(), origin.peer.clone(), origin.deadline);
        let forwarded = Forwarded { request, peer, deadline, reply };
        if inbox.try_send(forwarded).is_err() {
            return Some(Err(Kind::Retry));
        }
        let response = answer.await.map_err(|_| Kind::Retry);
        Some(response.map(|response| match response.status {
            0 => (response, Outcome::Done),
            // The other shard's operation has the reason.
            _ => (response, Outcome::Failed(Kind::Unknown)),
        }))
    }

    pub(crate) async fn answer(&self, request: Request, origin: Origin<'_>) -> (Response, Span) {
        match request.service {
            Service::DATA => self.answer_data(request, origin).await,
            Service::CONTROL => self.answer_control(request, origin).await,
            _ => {
                let error = ControlError::new(
                    Kind::Invalid,
                    "this is a chunkserver, it holds no Raft group and no volume: ask another",
                );
                let work = async { (Response::error(&error), Outcome::Failed(Kind::Invalid)) };
                self.traced((request.trace, "raft", origin.peer.addr), work).await
            }
        }
    }

    /// Answers a request as an operation of its trace. In the span its answer is to be sent.
    pub(crate) fn traced(
        &self,
        (trace, name, peer): (TraceId, &'static str, SocketAddr),
        work: impl Future<Output = (Response, Outcome)>,
    ) -> impl Future<Output = (Response, Span)> {
        // In a box, since each `async` layer around it would hold it twice and move it.
        let work = Box::pin(work);
        async move {
            let env = &self.0.env;
            let span = env.begin(trace, name, Some(peer));
            let (response, outcome) = span.clone().follow(work).await;
            span.note(Step::Answered, env.now().as_nanos(), Fact::None);
            env.end(&span, outcome);
            (response, span)
        }
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.0.addr.get().expect("set before start returns")
    }

    /// Counters since the start, of all shards; those of the others are half a heartbeat old at
    /// most.
    pub fn stats(&self) -> Stats {
        let others = self.0.directory.others(self.addr());
        others.iter().fold(self.0.stats.get(), |sum, shard| sum.plus(&shard.stats))
    }

    /// For each disk of this shard, the share of its time that copies and scrub have beside foreground work
    /// now, in thousandths (C20).
    pub fn background_shares(&self) -> Vec<(DiskId, u32)> {
        self.disks().iter().map(|disk| (disk.id, disk.share.per_mille())).collect()
    }

    /// This shard's disks, as heartbeats report them.
    pub fn disk_reports(&self) -> Vec<DiskReport> {
        let report = |disk: &Rc<Disk<S>>| {
            if let Some(report) = self.left_alone(disk).or_else(|| self.hanging(disk)) {
                return report;
            }
            let info = disk.store.info();
            DiskReport {
                disk: disk.id,
                path: disk.path.clone(),
                capacity: info.capacity,
                used: info.used,
                chunks: info.chunks,
                failed: info.failed || disk.failed.get(),
                reason: match disk.failed.get() && !info.failed {
                    true => "taken out by fault injection".to_owned(),
                    false => info.reason,
                },
                addr: self.0.addr.get(),
                background: Some(disk.share.work()),
                times: disk.times.report(self.0.env.now()),
            }
        };
        let left_out = |(path, reason): (&String, &String)| self.not_served(path, reason);
        let absent = self.0.left_out.borrow();
        let disks = self.0.disks.borrow();
        disks.values().map(report).chain(absent.iter().map(left_out)).collect()
    }

    /// Report of a disk that is not served: as one that could not be opened.
    pub(crate) fn not_served(&self, path: &str, reason: &str) -> DiskReport {
        DiskReport {
            disk: DiskId::default(),
            path: path.to_owned(),
            capacity: 0,
            used: 0,
            chunks: 0,
            failed: true,
            reason: reason.to_owned(),
            addr: self.0.addr.get(),
            background: None,
            times: Vec::new(),
        }
    }

    /// Serves another disk, which may have been left out before; of a server that has joined a
    /// cluster once it is known that the disk is of that one. Returns it when the server has
    /// stopped.
    pub fn add_disk(&self, path: String, store: S) -> Result<(), S> {
        if self.has_stopped() {
            return Err(store);
        }
        self.0.left_out.borrow_mut().remove(&path);
        let id = store.info().disk;
        let owner = match self.0.directory.home() {
            Some(_) => DiskOwner::Added,
            None => DiskOwner::Unjudged,
        };
        let disk = Rc::new(Disk::new(id, (path, store), owner, &self.0.config));
        self.0.disks.borrow_mut().insert(id, disk.clone());
        self.scrub(disk);
        self.0.env.mark("chunkserver: absent disk is back");
        if let Some((home, masters)) = self.0.directory.home() {
            self.judge_disks(home, &masters);
        }
        self.heartbeat_soon();
        Ok(())
    }

    /// The stores that it serves, by disk.
    pub fn stores(&self) -> Vec<(DiskId, S)>
    where
        S: Clone,
    {
        self.disks().into_iter().map(|disk| (disk.id, disk.store.clone())).collect()
    }

    /// Reports a disk as failed that cannot be opened.
    pub fn leave_out(&self, path: &str, reason: String) {
        self.0.left_out.borrow_mut().insert(path.to_owned(), reason);
    }

    /// True once it was [stopped](Chunkserver::stop).
    pub fn has_stopped(&self) -> bool {
        self.0.stopped.get()
    }

    /// Its disks now.
    pub(crate) fn disks(&self) -> Vec<Rc<Disk<S>>> {
        self.0.disks.borrow().values().cloned().collect()
    }

    /// Checkpoints and closes every disk.
    pub async fn stop(&self) {
        self.0.stopped.set(true);
        self.0.endpoint.close();
        for disk in self.disks() {
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
        let disk = self.0.disks.borrow().get(&at.disk).cloned().ok_or(DataError::WrongDisk)?;
        if disk.failed.get() {
            return Err(DataError::DiskFailed);
        }
        if disk.owner.borrow().reason().is_some() {
            return Err(DataError::WrongDisk);
        }
        Ok(disk)
    }

    /// Notes a damaged replica, and reports it in a heartbeat that is sent at once.
    pub(crate) fn note_damaged(&self, disk: DiskId, chunk: ChunkId) {
        let found = self.0.disks.borrow().get(&disk).cloned();
        let stat = found.and_then(|disk| disk.store.stat(chunk).ok());
        if stat.is_some_and(|stat| stat.state == ReplicaState::Open) {
            self.0.unsound.borrow_mut().insert((disk, chunk));
        }
        if self.0.directory.add_damaged(disk, chunk) {
            tracing::warn!(%disk, %chunk, "replica is damaged: reported for repair");
            self.count(|stats| stats.damaged += 1);
            self.heartbeat_soon();
        }
    }

    /// The data path's error for a store's error.
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
            StoreError::Busy | StoreError::Unwanted { .. } => DataError::Busy,
            StoreError::Failed => {
                self.heartbeat_soon();
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
        let (class, name) = match incoming.request.service {
            Service::DATA => (Class::Foreground, "data request"),
            _ => (Class::Background, "control request"),
        };
        let server = self.clone();
        // One task a request: it runs to completion on this executor (C10).
        self.0.env.spawn(class, name, async move {
            let (deadline, reply) = (incoming.deadline, Some(&incoming.reply));
            let origin = Origin { peer: &incoming.peer, forwarded: false, deadline, reply };
            let (answer, span) = server.answer(incoming.request, origin).await;
            let _entered = span.enter();
            incoming.reply.send(answer);
        });
    }
}

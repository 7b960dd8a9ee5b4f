//! [`Manager`]: a block manager's process. It competes for the lock, and while it leads it runs
//! the [`Machine`] over a table that only it can write.
//!
//! The lock's lease allows to grant leases; the table fences off late writes of a previous leader.
//! A manager that loses its lock or table drops its state and competes again.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use base::Kind;
use block_proto::lease::{
    ANNOUNCE_INTERVAL, ANNOUNCE_INTERVAL_FIRST, HEARTBEAT_ATTEMPT, IDLE, RENEW,
};
use block_proto::limits::ATTEMPT;
use block_proto::managers::ask_peer;
use block_proto::paths::{LOCK, ROOT, segment_path};
use block_proto::{
    BlockReply, BlockRequest, BlockRole, BlockServerId, BlockServerRequest, Reply, Request,
};
use block_volume::ids::VolumeId;
use client::Client;
use futures_util::future::{Either, select};
use runtime::sync::Notify;
use runtime::{Class, Duration, Env};
use table::{Cache, ClientStore, Options, Table};
use tenancy::{Contest, Term};
use transport::{Endpoint, Handler, Incoming, Response, Service, TransportError};
use wire::control::{
    ClusterReply, ClusterRequest, ControlError, ControlReply, ControlRequest, Policy, TraceReply,
    missing,
};

use super::entity::PendingDelete;
use super::limits::{LEAD_PAUSE, LEADER_POLL_INTERVAL, PURGE_AFTER, SWEEP};
use super::machine::{Config, FirstEpochs, Machine};
use super::refusals::Once;
use super::rows::{Row, next_batch};
use super::state::ManagerState;
use super::uses::FileUses;

/// Bytes of the table's blocks in memory: it is read once, at takeover.
const CACHE_BYTES: usize = 1 << 20;
/// Pause before a write is tried again that the table had no room for.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// Between two checks of such a manager for the cause.
const OPENING_LOOK: Duration = Duration::from_secs(1);
/// Between two warnings of a manager whose table cannot be opened yet.
const OPENING_SAID: Duration = Duration::from_secs(5);

/// Configuration of a manager's process.
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// Its name, e.g. `bm1`.
    pub name: String,
    /// Its address.
    pub listen: SocketAddr,
    /// Lease of its lock: when it dies, no other manager leads for this long.
    pub lock_ttl: Duration,
    /// Copies of its table.
    pub policy: Policy,
    /// Bytes of the smallest volume.
    pub bytes_least: u64,
    /// A block server without a heartbeat for this long is dead.
    pub server_dead: Duration,
    /// A block server whose heartbeats come, and that answers no ping for this long, is not reached.
    pub unreached: Duration,
    /// Time for which the data of deleted volumes is kept; zero: not at all.
    pub undelete: Duration,
    /// First epochs of new volumes.
    pub first: FirstEpochs,
}

struct ManagerInner {
    env: Env,
    client: Client,
    /// A client with short timeouts, for the lock.
    locks: Client,
    uses: Rc<dyn FileUses>,
    config: ManagerConfig,
    addr: Cell<SocketAddr>,
    lead: RefCell<Option<Rc<LeaderTerm>>>,
    /// For the lock, from the moment at which its own address is known.
    contest: OnceCell<Contest>,
    /// The reason why this manager, which had the lock last, does not lead.
    cause: RefCell<Option<String>>,
    stopping: Cell<bool>,
    stop: Notify,
    stopped: Cell<bool>,
}

/// A block manager. Clones share it.
#[derive(Clone)]
pub struct Manager(Rc<ManagerInner>);

/// A manager's time as leader.
pub(super) struct LeaderTerm {
    pub(super) machine: RefCell<Machine>,
    table: Table,
    /// Rows of changes that are not stored yet.
    queue: RefCell<VecDeque<Vec<Row>>>,
    /// Changes queued, and changes durable.
    queued: Cell<u64>,
    durable: Cell<u64>,
    changed: Notify,
    work: Notify,
    over: Cell<bool>,
    /// Servers that are being asked for a heartbeat.
    notifying: RefCell<BTreeSet<SocketAddr>>,
    /// Servers that are being asked whether they serve, because of a doubt.
    pub(super) doubts: RefCell<BTreeSet<BlockServerId>>,
    pub(super) doubts_changed: Notify,
    pub(super) ping_soon: Notify,
}

impl Manager {
    /// Listens, and competes for the lock. `locks` is a client whose attempts are shorter than
    /// the lock's lease; `uses` reads the directories of segments.
    pub async fn start(
        (client, locks): (Client, Client),
        uses: Rc<dyn FileUses>,
        endpoint: Endpoint,
        config: ManagerConfig,
    ) -> Result<Manager, TransportError> {
        let env = client.env().clone();
        let manager = Manager(Rc::new(ManagerInner {
            env: env.clone(),
            client,
            locks,
            uses,
            addr: Cell::new(config.listen),
            config,
            lead: RefCell::default(),
            contest: OnceCell::new(),
            cause: RefCell::default(),
            stopping: Cell::new(false),
            stop: Notify::new(),
            stopped: Cell::new(false),
        }));
        let listen = manager.0.config.listen;
        let addr = endpoint.listen(listen, Rc::new(manager.clone())).await?;
        manager.0.addr.set(addr);
        let (name, ttl) = (&manager.0.config.name, manager.0.config.lock_ttl);
        let contest = Contest::new(manager.0.locks.clone(), LOCK, (name, addr), ttl);
        manager.0.contest.set(contest).expect("it is set here only");
        env.spawn(Class::Control, "block manager", manager.clone().compete());
        env.spawn(Class::Control, "block manager: here", manager.clone().announce());
        Ok(manager)
    }

    pub(super) fn file_uses(&self) -> &dyn FileUses {
        &*self.0.uses
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.0.addr.get()
    }

    fn contest(&self) -> &Contest {
        self.0.contest.get().expect("it is set at the start")
    }

    /// The leading manager that was seen last, another or this one.
    fn leader(&self) -> Option<SocketAddr> {
        self.0.contest.get().and_then(Contest::leader)
    }

    /// True while it leads.
    pub fn leads(&self) -> bool {
        self.lead().is_some()
    }

    /// Gives the lock up, so that another leads at once, and ends.
    pub async fn stop(&self) {
        self.0.stopping.set(true);
        self.0.stop.notify_waiters();
        while !self.0.stopped.get() {
            self.0.env.sleep(Duration::from_millis(5)).await;
        }
    }

    fn lead(&self) -> Option<Rc<LeaderTerm>> {
        self.0.lead.borrow().clone().filter(|lead| !lead.over.get())
    }

    /// Reports to the leader that this manager is there, also when it is the leader itself.
    async fn announce(self) {
        let env = &self.0.env;
        let mut pause = ANNOUNCE_INTERVAL_FIRST;
        while !self.0.stopping.get() {
            let (role, name) = (BlockRole::Manager, self.0.config.name.clone());
            let here = BlockRequest::Here { role, name, addr: self.addr() };
            match (self.lead(), self.leader()) {
                (Some(lead), _) => {
                    let answer = lead.machine.borrow_mut().handle(env.now(), here);
                    answer.expect("a sign of life is not refused");
                    pause = ANNOUNCE_INTERVAL;
                }
                (None, Some(leader)) if leader != self.addr() => {
                    // When several reports are lost, it is shown as down.
                    let request = Request::Block(here);
                    if ask_peer(&self.0.client, leader, request, ATTEMPT).await.is_ok() {
                        pause = ANNOUNCE_INTERVAL;
                    }
                }
                _ => {}
            }
            self.pause(env.jitter(pause)).await;
        }
    }

    async fn compete(self) {
        let (env, mut pause) = (self.0.env.clone(), LEAD_PAUSE.0);
        while !self.0.stopping.get() {
            if let Some(term) = self.contest().acquire().await {
                let ruled = self.rule(&term).await;
                self.0.lead.replace(None);
                match ruled {
                    Ok(()) => {
                        tracing::info!(term = term.fencing(), "block manager leads no more");
                        self.contest().release(&term).await;
                        pause = LEAD_PAUSE.0;
                    }
                    Err(cause) => {
                        tracing::error!(term = term.fencing(), cause, "block manager cannot lead");
                        self.0.cause.replace(Some(cause));
                        // Another manager may be able to lead.
                        self.contest().release(&term).await;
                        self.pause(env.jitter(pause)).await;
                        pause = (2 * pause).min(LEAD_PAUSE.1);
                    }
                }
            } else if self.leader().is_some() {
                self.0.cause.replace(None); // The holder has its own.
            }
            self.pause(env.jitter(LEADER_POLL_INTERVAL)).await;
        }
        self.0.stopped.set(true);
    }

    /// Ends its lead, and lets others try the lock before it does.
    pub(super) fn yield_lead(&self, lead: &LeaderTerm) {
        self.contest().yield_lock();
        lead.end();
    }

    async fn pause(&self, pause: Duration) {
        let stop = self.0.stop.notified();
        if !self.0.stopping.get() {
            let _ = self.0.env.timeout(pause, stop).await; // Either has happened.
        }
    }

    /// Leads until the lock or the table is lost, or it is asked to stop.
    async fn rule(&self, term: &Term) -> Result<(), String> {
        let (inner, contest) = (&*self.0, self.contest());
        let (fencing, sent) = (term.fencing(), inner.env.now());
        // It may take long; a manager that does not renew in that time has no lock left.
        let mut opening = Box::pin(self.open_table(fencing));
        let (mut said, mut looked) = (sent, sent);
        let (table, state) = loop {
            let now = inner.env.now();
            if now - looked > OPENING_LOOK {
                looked = now;
                let look = self.clone().learn_cause();
                inner.env.spawn(Class::Background, "block manager: cause", look);
            }
            if now - said > OPENING_SAID {
                said = now;
                let (waited_s, cause) = ((said - sent).as_secs(), inner.cause.borrow());
                let cause = cause.as_deref().unwrap_or("the core does not answer");
                tracing::warn!(
                    waited_s,
                    cause,
                    "block manager waits for its table, and volumes with it: see 'craton status'"
                );
            }
            match select(opening, Box::pin(self.pause(self.renewal(1)))).await {
                Either::Left((opened, _)) => break opened?,
                Either::Right(((), goes_on)) => opening = goes_on,
            }
            if !contest.renew(term, 1).await || inner.stopping.get() {
                return Ok(());
            }
        };
        let config = Config {
            bytes_least: inner.config.bytes_least,
            server_dead: inner.config.server_dead,
            unreached: inner.config.unreached,
            undelete: inner.config.undelete,
            first: inner.config.first,
            ..Config::new(&inner.config.name, fencing)
        };
        // The lock was free: leases of a previous leader were granted before now.
        let mut machine = Machine::new(config, state, inner.env.now());
        machine.lead_until(term.end());
        let lead = Rc::new(LeaderTerm {
            machine: RefCell::new(machine),
            table,
            queue: RefCell::default(),
            queued: Cell::new(0),
            durable: Cell::new(0),
            changed: Notify::new(),
            work: Notify::new(),
            over: Cell::new(false),
            notifying: RefCell::default(),
            doubts: RefCell::default(),
            doubts_changed: Notify::new(),
            ping_soon: Notify::new(),
        });
        tracing::info!(name = inner.config.name, term = fencing, "block manager leads");
        inner.env.mark("block manager: leads");
        inner.cause.replace(None);
        inner.lead.replace(Some(lead.clone()));
        let spawn = |class, name, task| inner.env.spawn(class, name, task);
        let tasks = [
            spawn(Class::Foreground, "block manager: store", boxed(lead.clone().store(&inner.env))),
            spawn(Class::Control, "block manager: tick", boxed(self.clone().watch(lead.clone()))),
            spawn(Class::Control, "block manager: pings", boxed(self.clone().ping(lead.clone()))),
            spawn(
                Class::Background,
                "block manager: purge",
                boxed(self.clone().purge(lead.clone())),
            ),
            spawn(
                Class::Background,
                "block manager: sweep",
                boxed(self.clone().sweep(lead.clone())),
            ),
            spawn(
                Class::Background,
                "block manager: expiry",
                boxed(self.clone().expire(lead.clone())),
            ),
        ];
        while !lead.over.get() && !inner.stopping.get() && term.is_valid() {
            let slower = if lead.machine.borrow().is_idle() { IDLE } else { 1 };
            self.pause(self.renewal(slower)).await;
            if !contest.renew(term, slower).await {
                break;
            }
            lead.machine.borrow_mut().lead_until(term.end());
        }
        lead.end();
        tasks.iter().for_each(runtime::JoinHandle::abort);
        if inner.stopping.get() {
            let _ = lead.table.clone().close().await; // The next opening finds all of it.
        }
        Ok(())
    }

    /// Asks the masters about chunkservers while the table does not open.
    async fn learn_cause(self) {
        let asked = self.0.locks.cluster_ask(ClusterRequest::Status);
        let Ok(Ok(ClusterReply::Status(status))) = self.0.env.timeout(ATTEMPT, asked).await else {
            return;
        };
        let cause = missing(&status.servers)
            .map(|missing| format!("its table waits for chunkservers: {missing}"))
            .unwrap_or_else(|| "its table is being opened".to_owned());
        if self.lead().is_none() {
            self.0.cause.replace(Some(cause));
        }
    }

    /// Pause between two renewals of the lock.
    fn renewal(&self, slower: u32) -> Duration {
        let inner = &*self.0;
        inner.env.jitter(RENEW.min(inner.config.lock_ttl / 4) * slower)
    }

    /// Opens the table and reads it. The lock's token is the owner's number: a manager that got the
    /// lock since shuts this one out, however long its opening takes.
    async fn open_table(&self, fencing: u64) -> Result<(Table, ManagerState), String> {
        let inner = &*self.0;
        let path = format!("{ROOT}/manager");
        let store = ClientStore::new(&inner.client, &path, inner.config.policy).await;
        let store = Rc::new(store.map_err(|error| error.to_string())?);
        let options = Options { owner: fencing, ..Options::default() };
        let table = Table::open(&inner.env, store, &Cache::new(CACHE_BYTES), options).await;
        let table = table.map_err(|error| error.to_string())?;
        let mut state = ManagerState::starting_at(inner.config.first.counters());
        let entries = table.scan(table::Range::all()).take(usize::MAX).await;
        for (key, value) in entries.map_err(|error| error.to_string())? {
            state.apply(Row::decode(&key, &value).map_err(|error| error.to_string())?);
        }
        Ok((table, state))
    }

    async fn watch(self, lead: Rc<LeaderTerm>) {
        let env = &self.0.env;
        while !lead.over.get() {
            let due = lead.machine.borrow_mut().tick(env.now());
            self.after(&lead);
            env.sleep(due - env.now()).await;
        }
    }

    /// Queues rows for storage and notifies servers of news; returns the ticket that an answer has
    /// to wait for.
    pub(super) fn after(&self, lead: &Rc<LeaderTerm>) -> u64 {
        let (changes, news) = {
            let machine = &mut *lead.machine.borrow_mut();
            if machine.take_ping_soon() {
                lead.ping_soon.notify_one();
            }
            (machine.take_changes(), machine.take_news())
        };
        if !changes.is_empty() {
            lead.queued.set(lead.queued.get() + changes.len() as u64);
            lead.queue.borrow_mut().extend(changes);
            lead.work.notify_one();
        }
        for addr in news {
            if lead.notifying.borrow_mut().insert(addr) {
                let (client, lead, ticket) =
                    (self.0.client.clone(), lead.clone(), lead.queued.get());
                self.0.env.spawn(Class::Control, "block manager: news", async move {
                    if lead.stored(ticket).await.is_ok() {
                        let request = Request::BlockServer(BlockServerRequest::HeartbeatNow);
                        // It sends a heartbeat soon in any case.
                        let _ = ask_peer(&client, addr, request, HEARTBEAT_ATTEMPT).await;
                    }
                    lead.notifying.borrow_mut().remove(&addr);
                });
            }
        }
        lead.queued.get()
    }

    /// Removes the files of pending deletes.
    async fn purge(self, lead: Rc<LeaderTerm>) {
        let env = &self.0.env;
        while !lead.over.get() {
            env.sleep(env.jitter(PURGE_AFTER / 6)).await;
            let due = lead.machine.borrow().due_deletes(env.now());
            // While the removal is not durable, the next leader may have the volume still.
            if due.is_empty() || lead.stored(self.after(&lead)).await.is_err() {
                continue;
            }
            // Under a successor a segment of a volume that grows may be made again there.
            let leads = || lead.machine.borrow().leads(env.now());
            for pending_delete in due {
                let (client, path) = (&self.0.client, pending_delete_path(pending_delete));
                let removed = match pending_delete.segment {
                    // The volume may grow again: an owner that no manager reaches must have
                    // nothing more confirmed by the core then (`protocols.md` 6.5).
                    Some(_) => client.end_tree_while(&path, leads).await,
                    // Numbers of volumes are used once.
                    None => client.remove_tree_while(&path, leads).await,
                };
                match removed {
                    Err(error) if error.kind() != Kind::NotFound => {
                        tracing::warn!(?pending_delete, %error, "files of a volume were not removed yet");
                    }
                    _ if !leads() => {}
                    _ => {
                        lead.machine.borrow_mut().purged(pending_delete);
                        self.after(&lead);
                    }
                }
                if lead.over.get() {
                    return;
                }
            }
        }
    }

    /// Looks for directories of removed volumes, repeatedly.
    async fn sweep(self, lead: Rc<LeaderTerm>) {
        let env = &self.0.env;
        env.sleep(env.jitter(PURGE_AFTER)).await;
        while !lead.over.get() {
            // Volumes that are being removed now may be gone from the rows, and not from the list.
            let going: BTreeSet<VolumeId> = lead
                .machine
                .borrow()
                .state()
                .pending_deletes()
                .map(|pending_delete| pending_delete.volume)
                .collect();
            let pause = match self.0.client.list_all(ROOT).await {
                Ok(entries) => {
                    let found = entries.into_iter().filter_map(|entry| entry.name.parse().ok());
                    let found = found.filter(|volume| !going.contains(volume));
                    lead.machine.borrow_mut().discard_strays(env.now(), found);
                    self.after(&lead);
                    SWEEP
                }
                Err(error) => {
                    tracing::debug!(%error, "directories of volumes were not listed");
                    PURGE_AFTER
                }
            };
            env.sleep(env.jitter(pause)).await;
        }
    }

    /// Answers a request.
    pub async fn serve(&self, request: BlockRequest) -> Result<BlockReply, ControlError> {
        self.serve_once(0, request).await
    }

    /// The same, with the number by which a repeat is known; 0: without.
    async fn serve_once(
        &self,
        once: u64,
        request: BlockRequest,
    ) -> Result<BlockReply, ControlError> {
        let Some(lead) = self.lead() else { return Err(self.not_leading()) };
        let request = match request {
            BlockRequest::Resize { volume, bytes, force } => {
                let check = self.before_cut(&lead, volume, bytes, force);
                self.unless_refused(&lead, (once, volume), check).await?;
                BlockRequest::Resize { volume, bytes, force: true }
            }
            BlockRequest::Snapshot { nonce, volume, name } => {
                return self.snapshot(&lead, (nonce, volume, name)).await;
            }
            BlockRequest::Clone { nonce, snapshot, name } => {
                return self.clone_of(&lead, (nonce, snapshot, name)).await;
            }
            BlockRequest::Rollback { nonce, snapshot } => {
                return self.rollback(&lead, (nonce, snapshot)).await;
            }
            BlockRequest::Delete { volume, force, snapshots } => {
                return self.delete(&lead, (once, volume), (force, snapshots)).await;
            }
            BlockRequest::ListDeleted { after, limit } => {
                return Ok(lead.machine.borrow().list_deleted(self.0.env.now(), after, limit));
            }
            BlockRequest::Remove { volume, force } => {
                let once = (once, volume);
                let removed = self.remove_now(&lead, once, volume, force);
                return self.unless_refused(&lead, once, removed).await;
            }
            BlockRequest::RemoveDeleted { volume } => {
                return self.remove_deleted(&lead, (once, volume)).await;
            }
            BlockRequest::Flatten { volume } => return self.flatten(&lead, volume).await,
            BlockRequest::Doubt { segment, epoch } => {
                self.look_into(&lead, segment, epoch).await;
                BlockRequest::Doubt { segment, epoch }
            }
            request => request,
        };
        let answer = lead.machine.borrow_mut().handle_once(self.0.env.now(), once, request);
        let ticket = self.after(&lead);
        if lead.stored(ticket).await.is_err() {
            return Err(self.not_leading());
        }
        let answer = answer?;
        // A later leader may know of other owners and attachments.
        if matches!(answer, BlockReply::Standing(_))
            && !lead.machine.borrow().leads(self.0.env.now())
        {
            return Err(self.not_leading());
        }
        Ok(answer)
    }

    /// Returns `answer` once it is remembered under its number, if it is a refusal of a change.
    pub(super) async fn remember_refusal<T>(
        &self,
        lead: &Rc<LeaderTerm>,
        once: Once,
        answer: Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        match answer {
            Err(error) => {
                lead.machine.borrow_mut().note_refused(once, error.kind, &error.message);
                Err(self.durable(lead, error).await?)
            }
            Ok(answer) => Ok(answer),
        }
    }

    /// Makes a change in several steps, unless it was refused under its number.
    pub(super) async fn unless_refused<T>(
        &self,
        lead: &Rc<LeaderTerm>,
        once: Once,
        change: impl Future<Output = Result<T, ControlError>>,
    ) -> Result<T, ControlError> {
        lead.machine.borrow().refuse_refused(once)?;
        let changed = change.await;
        self.remember_refusal(lead, once, changed).await
    }

    /// Returns `answer` once all changes of the machine are durable.
    pub(super) async fn durable<T>(
        &self,
        lead: &Rc<LeaderTerm>,
        answer: T,
    ) -> Result<T, ControlError> {
        let ticket = self.after(lead);
        lead.stored(ticket).await.map(|()| answer).map_err(|()| self.not_leading())
    }

    pub(super) fn env(&self) -> &Env {
        &self.0.env
    }

    pub(super) fn undelete(&self) -> Duration {
        self.0.config.undelete
    }

    pub(super) fn client(&self) -> &Client {
        &self.0.client
    }

    fn not_leading(&self) -> ControlError {
        let leader = self.leader().filter(|&leader| leader != self.addr());
        let message = match &*self.0.cause.borrow() {
            Some(cause) => format!("no block manager leads: {}: {cause}", self.0.config.name),
            None => "this block manager does not lead".to_owned(),
        };
        ControlError { kind: Kind::Reroute, message, leader }
    }

    async fn answer(&self, body: &[u8]) -> Result<Reply, ControlError> {
        match Request::decode(body) {
            Ok(Request::Block(request)) => Ok(Reply::Block(self.serve(request).await?)),
            Ok(Request::Once(once, request)) => {
                Ok(Reply::Block(self.serve_once(once, request).await?))
            }
            Ok(Request::Core(ControlRequest::Trace(asked))) => {
                let (env, process) = (&self.0.env, format!("block manager {}", self.0.config.name));
                let (ring, now) = (env.tracer().ring(), env.now().as_nanos());
                Ok(Reply::Core(ControlReply::Trace(TraceReply::answer(
                    &asked, &process, ring, now,
                ))))
            }
            Ok(_) => Err(ControlError::new(
                Kind::Invalid,
                "this is a block manager: it answers for volumes only",
            )),
            Err(error) => Err(ControlError::new(Kind::Invalid, error.to_string())),
        }
    }
}

impl Handler for Manager {
    fn handle(&self, incoming: Incoming) {
        let manager = self.clone();
        self.0.env.spawn(Class::Foreground, "block manager request", async move {
            let answer = match incoming.request.service {
                Service::CONTROL => manager.answer(&incoming.request.body).await,
                _ => Err(ControlError::new(Kind::Invalid, "this is a block manager")),
            };
            incoming.reply.send(match answer {
                Ok(reply) => Response::ok(reply.encode()),
                Err(error) => Response::error(&error),
            });
        });
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Manager({}, leads: {})", self.0.config.name, self.leads())
    }
}

impl LeaderTerm {
    pub(super) fn is_over(&self) -> bool {
        self.over.get()
    }

    fn end(&self) {
        self.over.set(true);
        self.changed.notify_waiters();
        self.work.notify_one();
    }

    /// Returns `Ok` when all changes up to `ticket` are durable.
    async fn stored(&self, ticket: u64) -> Result<(), ()> {
        loop {
            let changed = self.changed.notified();
            if self.durable.get() >= ticket {
                return Ok(());
            }
            if self.over.get() {
                return Err(());
            }
            changed.await;
        }
    }

    /// Writes queued rows, in their order. What waits together goes in one batch.
    fn store(self: Rc<Self>, env: &Env) -> impl Future<Output = ()> + use<> {
        let env = env.clone();
        async move {
            while !self.over.get() {
                let (changes, batch) = next_batch(&mut self.queue.borrow_mut());
                if changes == 0 {
                    self.work.notified().await;
                    continue;
                }
                while let Err(error) = self.table.write(&batch).await {
                    if error.kind() != Kind::Retry {
                        // Another has the table, or its end is not known: the next leader, who
                        // may be this process, reads what is there.
                        tracing::warn!(%error, "block manager steps down");
                        return self.end();
                    }
                    env.sleep(BUSY_PAUSE).await;
                }
                self.durable.set(self.durable.get() + changes as u64);
                self.changed.notify_waiters();
            }
        }
    }
}

fn boxed(
    task: impl Future<Output = ()> + 'static,
) -> futures_util::future::LocalBoxFuture<'static, ()> {
    Box::pin(task)
}

/// Directory of a segment's files; of all segments of its volume without one.
fn pending_delete_path(pending_delete: PendingDelete) -> String {
    match pending_delete.segment {
        Some(index) => {
            segment_path(block_volume::ids::SegmentId { volume: pending_delete.volume, index })
        }
        None => format!("{ROOT}/{}", pending_delete.volume),
    }
}

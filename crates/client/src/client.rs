//! [`Client`]: one program's session with a cluster.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use base::{ChunkId, ClientId, ClusterId, DiskId, FileId, ServerId};
use runtime::sync::Notify;
use runtime::{Class, Duration, Env, Instant};
use transport::Endpoint;
use wire::control::{
    ClusterInfo, ClusterReply, ClusterRequest, ClusterStatus, ControlError, ControlReply,
    ControlRequest, Group, Holdings, OpId, ReplicaFault, ReplicaPlace, ServerOrder, StreamChange,
    StreamReply, StreamRequest, TraceReply, TraceRequest, stream_partition,
};
use wire::data::DataError;

use crate::backup::{BackupBudget, BackupMetrics};
use crate::config::Config;
use crate::counters::{AppendMetrics, Counters, Totals};
use crate::error::Error;
use crate::health::{Health, Target};
use crate::limits::{BAD_REPLICAS_MAX, ORDER_ATTEMPT, REPORTS_MAX, UNREACHED_REPORTS_MAX};
use crate::lists::{ListMetrics, ListedDisk, Lists};
use crate::locate::Locator;
use crate::network::Network;
use crate::peers::{PeerError, Peers};
use crate::rows::Rows;
use crate::session::{Question, Refusal, Session, unexpected_reply};
use crate::writer::{BlockedAfter, ChaseBudget};

/// A session with a cluster. Cheap to clone; clones share the session, its caches and counters.
/// Stays on its thread: see [`crate::BlockingClient`] for one that does not.
#[derive(Clone)]
pub struct Client(pub(crate) Rc<ClientInner>);

pub(crate) struct ClientInner {
    pub(crate) env: Env,
    pub(crate) peers: Rc<dyn Peers>,
    pub(crate) config: Config,
    pub(crate) counters: Rc<Counters>,
    pub(crate) session: Rc<Session>,
    /// What the writers of this client may owe to late replicas together (C14).
    pub(crate) chase: Rc<ChaseBudget>,
    pub(crate) locator: Locator,
    /// Codecs of rows.
    pub(crate) rows: RefCell<Rows>,
    /// Latencies of replicas.
    pub(crate) health: RefCell<Health>,
    /// Backup reads that may be sent.
    pub(crate) backups: RefCell<BackupBudget>,
    pub(crate) backup_metrics: BackupMetrics,
    pub(crate) append_metrics: AppendMetrics,
    /// Disks that are slow or out of service, as this client sees them.
    pub(crate) lists: RefCell<Lists>,
    pub(crate) list_metrics: ListMetrics,
    /// Listed disks, as the page of metrics has them.
    pub(crate) listed_now: Cell<i64>,
    /// How long writers wait for copies, as appends to healthy disks are now.
    pub(crate) blocked_after: Cell<BlockedAfter>,
    /// The longest of these waits by which a writer may have set its timer.
    pub(crate) blocked_armed: Cell<BlockedAfter>,
    /// A watch over disks runs.
    pub(crate) watching: Cell<bool>,
    /// Signals to writers that masters have pushed another list, or that appends wait less for copies.
    pub(crate) writer_news: Notify,
    /// Replicas that were damaged or missing, and until when they are asked last.
    bad_replicas: RefCell<Vec<(ChunkId, DiskId, Instant)>>,
    /// Failures of replicas that were reported lately.
    reports: RefCell<Vec<Reported>>,
    /// Locks whose holders this client is about to doubt.
    pub(crate) doubting: RefCell<BTreeSet<&'static str>>,
}

/// A failure of a replica that was reported.
struct Reported {
    chunk: ChunkId,
    server: ServerId,
    /// It was not reached.
    unreached: bool,
    at: Instant,
}

impl Client {
    /// Connects through `endpoint`: asks `masters` in turn until one answers.
    pub async fn connect(
        env: &Env,
        endpoint: Endpoint,
        masters: Vec<SocketAddr>,
        config: Config,
    ) -> Result<Client, Error> {
        let peers = Rc::new(Network::new(env, endpoint));
        Client::connect_over(env, peers, masters, config).await
    }

    /// Connects over `peers`: asks `masters` in turn until one answers.
    pub async fn connect_over(
        env: &Env,
        peers: Rc<dyn Peers>,
        masters: Vec<SocketAddr>,
        config: Config,
    ) -> Result<Client, Error> {
        if masters.is_empty() {
            return Err(Error::invalid("cluster", "name at least one master's address"));
        }
        let config = config.clamped();
        let counters = Rc::new(Counters::default());
        let names: Vec<String> = masters.iter().map(SocketAddr::to_string).collect();
        let times = (config.control_attempt, config.control_budget);
        let session = Session::new(env, peers.clone(), counters.clone(), masters, times);
        session.connect().await.map_err(|error| error.about("reach masters", &names.join(",")))?;
        let locator = Locator::new(env, session.clone(), counters.clone(), &config);
        let chase = Rc::new(ChaseBudget::new(config.chase_bytes_max));
        let blocked_after = Cell::new([config.writer.replica_timeout; _]);
        let inner = Rc::new(ClientInner {
            env: env.clone(),
            peers,
            rows: RefCell::default(),
            health: RefCell::new(Health::with_room(config.health_records, env.now())),
            backups: RefCell::new(BackupBudget::new(&config.backup)),
            backup_metrics: BackupMetrics::new(env.tracer().registry()),
            append_metrics: AppendMetrics::new(env.tracer().registry()),
            lists: RefCell::new(Lists::new(config.slow_min)),
            config,
            counters,
            session,
            chase,
            locator,
            list_metrics: ListMetrics::new(env.tracer().registry()),
            listed_now: Cell::default(),
            blocked_armed: blocked_after.clone(),
            blocked_after,
            watching: Cell::default(),
            writer_news: Notify::new(),
            bad_replicas: RefCell::default(),
            reports: RefCell::default(),
            doubting: RefCell::default(),
        });
        inner.poll_masters();
        Ok(Client(inner))
    }

    /// Runs work as one operation of this client: one trace, also in the frames to other
    /// processes.
    pub(crate) async fn operation<T>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.0.env.operation(name, Error::kind, work).await
    }

    /// Its environment.
    pub fn env(&self) -> &Env {
        &self.0.env
    }

    /// Its configuration.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The session's identity.
    pub fn id(&self) -> ClientId {
        self.0.session.client()
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.0.session.info().map(|info| info.cluster).unwrap_or_default()
    }

    /// Counts of the client's work so far.
    pub fn totals(&self) -> Totals {
        self.0.counters.totals()
    }

    /// Identity, masters, partitions and leaders, fresh from a master.
    pub async fn cluster_info(&self) -> Result<ClusterInfo, Error> {
        self.0.session.connect().await.map_err(|error| error.about("ask about", "the cluster"))
    }

    /// Status of all masters that answer, each with its address; an error when none does.
    pub async fn status(&self) -> Result<Vec<(SocketAddr, ClusterStatus)>, Error> {
        let answers = self.ask_all(ClusterRequest::Status, "ask all masters for their status");
        let mut found = Vec::new();
        for (addr, reply) in answers.await? {
            if let ClusterReply::Status(status) = reply {
                found.push((addr, status));
            }
        }
        Ok(found)
    }

    /// Lets masters delete all that no file refers to, on a disk whose collection has stopped.
    pub async fn condemn(&self, disk: DiskId) -> Result<(), Error> {
        let request = ClusterRequest::Condemn { disk };
        self.ask_all(request, "have all masters collect a disk").await.map(drop)
    }

    /// Gives an order about a chunkserver, or has it checked. Answers what the server holds. It may be
    /// repeated after an unknown outcome.
    pub async fn order(
        &self,
        server: &str,
        order: ServerOrder,
        dry_run: bool,
    ) -> Result<Holdings, Error> {
        let request = ClusterRequest::Order { server: server.to_owned(), order, dry_run };
        let question = Question {
            group: Group::Cluster,
            request: ControlRequest::Cluster(request),
            attempt: self.0.config.control_attempt.max(ORDER_ATTEMPT),
        };
        let reply = cluster_reply(self.0.session.ask(question, false).await);
        match reply.map_err(|error| error.about("order", server))? {
            ClusterReply::Held(held) => Ok(held),
            other => {
                let reply = ControlReply::Cluster(other);
                Err(unexpected_reply(&reply).about("order", server))
            }
        }
    }

    /// Asks all masters; an error when none answers.
    async fn ask_all(
        &self,
        request: ClusterRequest,
        what: &str,
    ) -> Result<Vec<(SocketAddr, ClusterReply)>, Error> {
        let info = self.cluster_info().await?;
        let request = ControlRequest::Cluster(request);
        let asked = info.masters.iter().map(|master| {
            let attempt = self.0.config.control_attempt;
            let call = self.0.peers.control(master.addr.into(), request.clone(), attempt);
            async move { (master.addr, call.await) }
        });
        let mut found = Vec::new();
        let mut cause = String::new();
        for (addr, answer) in futures_util::future::join_all(asked).await {
            match answer {
                Ok(ControlReply::Cluster(reply)) => found.push((addr, reply)),
                Ok(other) => cause = unexpected_reply(&other).message,
                Err(error) => cause = error.to_string(),
            }
        }
        if found.is_empty() {
            let what = what.to_owned();
            let waited = self.0.config.control_attempt;
            return Err(Error::Unavailable { what, cause, waited });
        }
        Ok(found)
    }

    /// Asks every master and chunkserver that the masters know, and this process, for traced
    /// operations.
    pub async fn traces(
        &self,
        request: &TraceRequest,
    ) -> Result<Vec<(SocketAddr, Result<TraceReply, String>)>, Error> {
        let mut asked: BTreeMap<SocketAddr, String> = BTreeMap::new();
        for (addr, status) in self.status().await? {
            asked.insert(addr, format!("master {}", status.master));
            for server in status.servers {
                let name = format!("chunkserver {}", server.name);
                // Each executor of a chunkserver has its own address.
                for addr in server.disks.iter().filter_map(|disk| disk.addr) {
                    asked.insert(addr, name.clone());
                }
                asked.insert(server.addr, name);
            }
        }
        let attempt = self.0.config.control_attempt;
        let calls = asked.into_iter().map(|(addr, name)| {
            let call =
                self.0.peers.control(addr.into(), ControlRequest::Trace(request.clone()), attempt);
            async move {
                let answer = match call.await {
                    Ok(ControlReply::Trace(reply)) => Ok(reply),
                    Ok(other) => Err(format!("{name}: {}", unexpected_reply(&other).message)),
                    Err(error) => Err(format!("{name}: {error}")),
                };
                (addr, answer)
            }
        });
        Ok(futures_util::future::join_all(calls).await)
    }

    /// Asks another process than a master, once: services find their own through the core.
    pub async fn ask_peer(
        &self,
        to: SocketAddr,
        request: ControlRequest,
        timeout: Duration,
    ) -> Result<ControlReply, PeerError<ControlError>> {
        self.0.peers.control(to.into(), request, timeout).await
    }

    /// Runs a request of the cluster service that changes nothing.
    pub async fn cluster_ask(&self, request: ClusterRequest) -> Result<ClusterReply, Error> {
        let question = Question {
            group: Group::Cluster,
            request: ControlRequest::Cluster(request),
            attempt: self.0.config.control_attempt,
        };
        let reply = self.0.session.ask(question, false).await;
        cluster_reply(reply).map_err(|error| error.about("ask about", "the cluster"))
    }

    /// Runs a mutation of the cluster service; `build` gets the identity under which it is done
    /// once.
    pub async fn cluster_change(
        &self,
        what: &str,
        build: impl FnOnce(OpId) -> ClusterRequest,
    ) -> Result<ClusterReply, Error> {
        let attempt = self.0.config.control_attempt;
        let build = |op| ControlRequest::Cluster(build(op));
        let reply = self.0.session.change(Group::Cluster, attempt, build).await;
        cluster_reply(reply).map_err(|error| error.about("change", what))
    }

    /// Runs a mutation of a stream.
    pub(crate) async fn stream_change(
        &self,
        file: FileId,
        change: StreamChange,
    ) -> Result<StreamReply, Refusal> {
        let config = &self.0.config;
        let attempt = match &change {
            StreamChange::Open { .. } | StreamChange::Seal { .. } => config.fence_attempt,
            _ => config.control_attempt,
        };
        let group = self.stream_group(file);
        let build = |op| ControlRequest::Stream(StreamRequest::Change { op, change });
        match self.0.session.change(group, attempt, build).await? {
            ControlReply::Stream(reply) => Ok(reply),
            other => Err(unexpected_reply(&other)),
        }
    }

    fn stream_group(&self, file: FileId) -> Group {
        let (_, partitions) = self.0.session.partitions();
        Group::Stream(stream_partition(file, partitions))
    }

    /// Reports to the stream service that a replica did not serve, once a second at most for each. That
    /// a server is not reached is reported once a second, of few servers, and not while this process
    /// may be to blame (C28).
    pub(crate) fn report(
        &self,
        file: FileId,
        chunk: ChunkId,
        server: ServerId,
        fault: ReplicaFault,
    ) {
        let now = self.0.env.now();
        {
            let reports = &mut *self.0.reports.borrow_mut();
            reports.retain(|report| now - report.at < Duration::from_secs(1));
            let unreached = fault == ReplicaFault::Unreachable;
            let same = |report: &&Reported| {
                let chunk = report.chunk == chunk || unreached;
                report.server == server && report.unreached == unreached && chunk
            };
            if reports.len() == REPORTS_MAX || reports.iter().any(|report| same(&report)) {
                return;
            }
            let others = reports.iter().filter(|report| report.unreached).count();
            let doubts = self.0.lists.borrow().doubts_itself(now);
            if unreached && (doubts || others == UNREACHED_REPORTS_MAX) {
                return;
            }
            reports.push(Reported { chunk, server, unreached, at: now });
        }
        let question = Question {
            group: self.stream_group(file),
            request: ControlRequest::Stream(StreamRequest::ReportBad {
                file,
                chunk,
                server,
                fault,
            }),
            attempt: self.0.config.control_attempt,
        };
        let session = self.0.session.clone();
        self.0.env.spawn(Class::Background, "report", async move {
            if let Err(error) = session.ask(question, false).await {
                tracing::debug!(%chunk, %server, cause = error.message, "not reported");
            }
        });
    }

    /// Disks that this client lists as slow or out of service (C17), those of servers that masters do
    /// not reach among them (C28).
    pub fn listed_disks(&self) -> Vec<ListedDisk> {
        let targets = self.0.health.borrow().targets();
        self.0.lists.borrow().listed_with_pushed(&targets)
    }

    /// Takes in which servers the replicas are of.
    pub(crate) fn note_servers(&self, replicas: &[ReplicaPlace]) {
        let lists = &mut *self.0.lists.borrow_mut();
        replicas.iter().for_each(|replica| lists.note_server(replica.addr, replica.server));
    }

    /// A call did not get through to a disk: it is probed, and listed if that fails too.
    pub(crate) fn suspect(&self, target: Target) {
        self.0.lists.borrow_mut().suspect(target, self.0.env.now());
        self.0.watch();
    }

    /// An append was not answered.
    pub(crate) fn note_append_error(&self, target: Target, error: &PeerError<DataError>) {
        match error {
            PeerError::Unreachable(_) | PeerError::Silent(_) => self.suspect(target),
            PeerError::Refused(DataError::DiskFailed) => {
                let health = self.0.health.borrow();
                self.0.lists.borrow_mut().disk_failed(target, &health, self.0.env.now());
                self.0.watch();
            }
            _ => {}
        }
    }

    /// A replica did not serve a read.
    pub(crate) fn note_fault(&self, chunk: ChunkId, replica: &ReplicaPlace, fault: ReplicaFault) {
        let now = self.0.env.now();
        match fault {
            ReplicaFault::Unreachable => self.suspect(Target::of(replica)),
            ReplicaFault::DiskFailed => {
                let health = self.0.health.borrow();
                self.0.lists.borrow_mut().disk_failed(Target::of(replica), &health, now);
                self.0.watch();
            }
            _ => {}
        }
        let bad = &mut *self.0.bad_replicas.borrow_mut();
        bad.retain(|&(of, disk, until)| (of, disk) != (chunk, replica.disk) && until > now);
        if bad.len() < BAD_REPLICAS_MAX {
            bad.push((chunk, replica.disk, now + self.0.config.read_penalty));
        }
    }

    /// True when others are to be asked for a chunk before this replica.
    pub(crate) fn is_asked_last(&self, chunk: ChunkId, replica: &ReplicaPlace) -> bool {
        let now = self.0.env.now();
        let is_it = |&(of, disk, until): &(ChunkId, DiskId, Instant)| {
            (of, disk) == (chunk, replica.disk) && until > now
        };
        self.0.lists.borrow().is_asked_last(Target::of(replica))
            || self.0.bad_replicas.borrow().iter().any(is_it)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.id())
    }
}

fn cluster_reply(reply: Result<ControlReply, Refusal>) -> Result<ClusterReply, Refusal> {
    match reply? {
        ControlReply::Cluster(reply) => Ok(reply),
        other => Err(unexpected_reply(&other)),
    }
}

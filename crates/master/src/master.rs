//! [`Master`]: a master process. It holds a member of every group, serves what it leads, and says
//! who leads the rest.

mod figures;
mod grants;
mod hand_over;
mod join;
mod orders;
mod relay;
mod server_pings;

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use base::{DiskId, FileId, FormationId, Kind, TraceId};
use chunkstore::ChunkStore;
use chunkstore::flash::FlashStore;
use metrics::{Fact, Outcome, Span, Step};
use runtime::sync::Semaphore;
use runtime::{Class, Env};
use transport::{Endpoint, Handler, Incoming, Priority, Request, Response, Service, Token};
use wire::control::{
    ClusterReply, ClusterRequest, ControlError, ControlReply, ControlRequest, Group as GroupName,
    MasterInfo, NamespaceRequest, OP_RELAY, OpId, StreamChange, StreamReply, StreamRequest,
    TraceReply, namespace_partition, stream_partition,
};
use wire::frame::BODY_MAX;
use wire::token::TokenKey;

use crate::admission::Admission;
use crate::calls::TransportCalls;
use crate::cluster::{
    ClusterMachine, ClusterService, Formed, LedFigures, Liveness, LivenessConfig,
};
use crate::config::MasterConfig;
use crate::identity::{Identity, IdentityError};
use crate::limits::{DAMAGED_MAX, RELAYS_INFLIGHT_MAX, REQUESTS_INFLIGHT_MAX};
use crate::planted::{Planted, planted};
use crate::reach::Reach;
use grants::grant_check;
use master_consensus::peers::{
    OP_ASK, OP_HEARTBEATS, OP_MEMBERS, OP_PING, OP_PROPOSE, OP_RAFT, Peers, STATUS_NO_GROUP,
    decode_message,
};
use master_consensus::service::{Host, Hostable, LeaderCall, Router};
use master_consensus::{
    Checkpoints, EngineDevice, Group, GroupConfig, GroupStore, Groups, LocalFuture,
    MembershipError, OpenError,
};
use master_namespace::grant::GrantKey;
use master_namespace::{Namespace, NamespaceService, StreamEnd};
use master_stream::placement::ReplicaLocation;
use master_stream::{StreamConfig, StreamMachine, StreamParts, StreamService, TokenIssuer};

/// Cause of a failed start. Nothing was changed, except that its directory may exist.
#[derive(Debug)]
pub enum StartError {
    /// The configuration contradicts itself.
    Config(String),
    /// The directory is another master's, or damaged.
    Identity(IdentityError),
    /// A group does not open.
    Group(GroupName, OpenError),
    /// The address cannot be used.
    Listen(transport::TransportError),
    /// Another process runs as this master.
    Twice(String),
    /// The groups cannot be formed.
    Form(GroupName, MembershipError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Config(what) | StartError::Twice(what) => f.write_str(what),
            StartError::Identity(error) => error.fmt(f),
            StartError::Group(group, error) => write!(f, "{group}: {error}"),
            StartError::Listen(error) => error.fmt(f),
            StartError::Form(group, error) => write!(f, "cannot form {group}: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<IdentityError> for StartError {
    fn from(error: IdentityError) -> StartError {
        StartError::Identity(error)
    }
}

/// A running master. Clones are handles of the same one.
#[derive(Clone)]
pub struct Master(Rc<MasterInner>);

struct MasterInner {
    env: Env,
    name: String,
    addr: SocketAddr,
    groups: Groups,
    peers: Rc<Peers>,
    router: Rc<Router>,
    cluster: ClusterService,
    namespaces: Vec<NamespaceService>,
    streams: Rc<Streams>,
    requests: Semaphore,
    relays: Semaphore,
    /// Requests relayed since the start.
    relayed: Cell<u64>,
    reach: RefCell<Reach>,
    store: FlashStore,
    admission: Admission,
    /// Drawn at the start: distinguishes this process from another one with the same number.
    boot: u64,
}

impl Master {
    /// Recovers the groups in `config.dir`, or makes them, and serves at `config.addr`.
    pub async fn start(
        env: &Env,
        mut config: MasterConfig,
        endpoint: Endpoint,
    ) -> Result<Master, StartError> {
        config.check().map_err(StartError::Config)?;
        let (identity, store) = Identity::open(env, &config).await?;
        config.cluster = identity.cluster;
        let admission = Admission::new(env, config.dir.clone(), identity);
        endpoint.set_cluster(config.cluster);
        let entrance = Rc::new(Entrance::new(env));
        let listening = endpoint.listen(config.addr, entrance.clone());
        let addr = listening.await.map_err(StartError::Listen)?;
        let own = MasterInfo { id: config.id, name: config.name.clone(), addr };
        config.masters.retain(|master| master.id != own.id);
        config.masters.push(own);
        config.masters.sort_by_key(|master| master.id);
        let master = GroupOpening::new(env, &config, store, endpoint).open(addr, admission).await?;
        if let Err(why) = master.check_alone().await {
            master.shutdown().await;
            return Err(StartError::Twice(why));
        }
        let _ = entrance.master.set(master.clone()); // It was empty.
        master.start_admission(config.clone());
        master.start_beating(config.timing.heartbeat);
        master.start_housekeeping(config.form);
        master.start_vote_watch();
        master.start_pings();
        if !planted(Planted::ServersUnpinged) {
            master.start_server_pings();
        }
        Ok(master)
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// True when every group has a leader and the cluster is formed: requests will succeed.
    pub fn is_ready(&self) -> bool {
        let mut hosts = self.0.router.hosts().into_iter();
        self.0.cluster.is_formed() && hosts.all(|host| host.leadership().leader.is_some())
    }

    /// Returns when [`Master::is_ready`].
    pub async fn ready(&self) {
        while !self.is_ready() {
            self.0.env.sleep(READY_PAUSE).await;
        }
    }

    /// Failure of a group's member here, or of the store, if one has failed: the process should end and
    /// start again.
    pub fn failure(&self) -> Option<String> {
        let hosts = self.0.router.hosts().into_iter();
        let mut failed =
            hosts.filter_map(|host| Some(format!("{}: {}", host.name(), host.failure()?)));
        let store = || {
            // No group may have anything to write for long.
            let info = self.0.store.info();
            let why = "start the master again; if it repeats, replace its disk";
            info.failed.then(|| format!("its store takes no more writes: {}: {why}", info.reason))
        };
        self.0.admission.refusal().or_else(|| failed.next()).or_else(store)
    }

    /// Groups that this master leads.
    pub fn leads(&self) -> Vec<GroupName> {
        let hosts = self.0.router.hosts().into_iter();
        hosts.filter(|host| host.leadership().leading).map(|host| host.name()).collect()
    }

    /// The term of each group, as this master has it: it grows with every election.
    pub fn terms(&self) -> Vec<(GroupName, u64)> {
        let hosts = self.0.router.hosts().into_iter();
        hosts.map(|host| (host.name(), host.leadership().term)).collect()
    }

    /// The last entry of each group that this master has applied.
    pub fn applied(&self) -> Vec<(GroupName, Option<u64>)> {
        let hosts = self.0.router.hosts().into_iter();
        hosts.map(|host| (host.name(), host.applied_index())).collect()
    }

    /// The cluster group on this master.
    pub fn cluster(&self) -> &ClusterService {
        &self.0.cluster
    }

    /// The stream partition with this number, on this master.
    pub fn stream(&self, partition: usize) -> &Host<StreamMachine> {
        &self.0.streams.partitions[partition].host
    }

    /// The namespace partitions on this master.
    pub fn namespaces(&self) -> &[NamespaceService] {
        &self.0.namespaces
    }

    /// Stops the members of all groups. The caller closes the endpoint.
    pub async fn shutdown(&self) {
        for host in self.0.router.hosts() {
            self.0.groups.remove(host.name().number());
            host.shutdown().await;
        }
        if let Err(error) = self.0.store.close().await {
            // Everything acknowledged is durable; the next start reads more.
            tracing::debug!(%error, "the store is left as it is");
        }
    }

    /// Serves one request of the control path.
    pub async fn handle(&self, request: ControlRequest) -> Result<ControlReply, ControlError> {
        self.handle_from(request, None).await
    }

    /// The host of a client; none: a master has sent a request on, whose client may be anywhere.
    fn client_host(&self, peer: SocketAddr) -> Option<IpAddr> {
        let host = peer.ip().to_canonical();
        let masters = self.0.cluster.masters();
        let relays = masters.iter().any(|master| master.addr.ip().to_canonical() == host);
        (!relays).then_some(host)
    }

    async fn handle_from(
        &self,
        request: ControlRequest,
        peer: Option<SocketAddr>,
    ) -> Result<ControlReply, ControlError> {
        self.check_member(&request)?;
        match request {
            ControlRequest::Cluster(ClusterRequest::Identify { disks }) => {
                let known = disks.into_iter().filter(|&disk| self.knows(disk)).collect();
                Ok(ControlReply::Cluster(ClusterReply::Identified { known }))
            }
            ControlRequest::Cluster(ClusterRequest::Condemn { disk }) => {
                let partitions = self.0.streams.partitions.iter();
                for partition in partitions.filter(|partition| partition.host.leads()) {
                    partition.service.condemn_all(disk);
                }
                Ok(ControlReply::Cluster(ClusterReply::Done))
            }
            ControlRequest::Cluster(ClusterRequest::Order { server, order, dry_run }) => {
                let given = Box::pin(self.give_order(&server, order, dry_run)).await?;
                Ok(ControlReply::Cluster(given))
            }
            ControlRequest::Cluster(ClusterRequest::Held { server, orders }) => {
                let held = Box::pin(self.held_here(server, orders)).await?;
                Ok(ControlReply::Cluster(ClusterReply::Held(held)))
            }
            ControlRequest::Cluster(ClusterRequest::LockDoubt { name, fencing }) => {
                let from = peer.and_then(|peer| self.client_host(peer));
                self.note_doubt(name, fencing, from)?;
                Ok(ControlReply::Cluster(ClusterReply::Done))
            }
            ControlRequest::Cluster(request) => {
                let heartbeat = matches!(request, ClusterRequest::Heartbeat(_));
                let reply = self.0.cluster.serve(request, || self.figures()).await?;
                if heartbeat {
                    self.pass_damage();
                }
                Ok(ControlReply::Cluster(reply))
            }
            ControlRequest::Namespace(request) => {
                let partition = self.namespace_of(&request);
                let service = self.0.namespaces.get(usize::from(partition)).ok_or_else(|| {
                    ControlError::new(Kind::NotFound, "no such file: its partition is not there")
                })?;
                Ok(ControlReply::Namespace(service.serve(request).await?))
            }
            ControlRequest::Stream(request @ StreamRequest::ReportBad { .. }) => {
                let reply = self.0.streams.serve(request.clone()).await?;
                self.note_unreached(&request, peer.and_then(|peer| self.client_host(peer)));
                Ok(ControlReply::Stream(reply))
            }
            ControlRequest::Stream(request) => {
                Ok(ControlReply::Stream(self.0.streams.serve(request).await?))
            }
            ControlRequest::Trace(request) => {
                let (env, process) = (&self.0.env, format!("master {}", self.0.name));
                let (ring, now) = (env.tracer().ring(), env.now().as_nanos());
                Ok(ControlReply::Trace(TraceReply::answer(&request, &process, ring, now)))
            }
            ControlRequest::Chunkserver(_) => Err(ControlError::new(
                Kind::Invalid,
                "this is a master: ask a chunkserver for replicas",
            )),
            ControlRequest::Service(_) => Err(ControlError::new(
                Kind::Invalid,
                "this is a master: ask a process of the service that the message is of",
            )),
        }
    }

    /// True when a stream has ever used the disk.
    fn knows(&self, disk: DiskId) -> bool {
        let partitions = self.0.streams.partitions.iter();
        partitions.into_iter().any(|it| it.host.read(|state| state.has_used(disk)))
    }

    fn namespace_of(&self, request: &NamespaceRequest) -> u16 {
        use wire::control::NamespaceChange as Change;
        let partitions = u16::try_from(self.0.namespaces.len()).expect("checked at the start");
        let dir = match request {
            NamespaceRequest::StatFile { file } => return file.partition(),
            NamespaceRequest::Lookup { place } => place.parent,
            NamespaceRequest::List { dir, .. } | NamespaceRequest::DirPolicy { dir } => *dir,
            NamespaceRequest::Change { change, .. } => match change {
                Change::Link { links } => match links.first() {
                    Some((_, place)) => place.parent,
                    None => return 0, // Refused there.
                },
                Change::Rename { from, .. } => from.parent,
                Change::Mkdir { place, .. }
                | Change::Create { place, .. }
                | Change::Symlink { place, .. }
                | Change::Unlink { place }
                | Change::Rmdir { place }
                | Change::SetAttributes { place, .. }
                | Change::SetFilePolicy { place, .. } => place.parent,
                Change::SetDirPolicy { dir, .. } => *dir,
            },
        };
        namespace_partition(dir, partitions)
    }

    /// Gives what heartbeats say of damaged replicas to the partitions led here.
    fn pass_damage(&self) {
        let partitions = self.0.streams.partitions.iter().zip(0u16..);
        for (partition, number) in partitions.filter(|(partition, _)| partition.host.leads()) {
            let liveness = self.0.cluster.liveness();
            for (chunk, server, disk) in liveness.take_damaged(number, DAMAGED_MAX) {
                partition.service.report_damaged(ReplicaLocation { server, disk }, chunk);
            }
            for (chunk, server, disk, at) in liveness.take_quiet(number) {
                partition.service.report_quiet(ReplicaLocation { server, disk }, chunk, at);
            }
        }
    }

    /// Forms the cluster once there is a leader, and follows the masters' addresses.
    fn start_housekeeping(&self, form: bool) {
        let this = self.clone();
        self.0.env.spawn(Class::Background, "master housekeeping", async move {
            loop {
                if form && !this.0.cluster.is_formed() {
                    // The next round, or the next leader, tries again.
                    let _ = this.0.cluster.form().await;
                }
                for master in this.0.cluster.masters() {
                    this.0.peers.learn(&master);
                }
                this.report_lost_disks().await;
                if let Err(why) = this.check_alone().await {
                    tracing::error!("{why}");
                    return this.0.admission.refuse(why);
                }
                let formed = this.0.cluster.is_formed();
                let pause = if formed { HOUSEKEEPING_PAUSE } else { READY_PAUSE };
                this.0.env.sleep(pause).await;
            }
        });
    }

    async fn serve_peer(
        &self,
        op: u16,
        incoming: &Request,
        peer: SocketAddr,
    ) -> (Response, Option<Span>) {
        if self.is_for_admission(op)
            && let Some(response) = Box::pin(self.serve_admission(op, incoming)).await
        {
            return (response, None);
        }
        let Ok((group, body)) = decode_message(incoming) else {
            return (Response { status: STATUS_NO_GROUP, ..Response::default() }, None);
        };
        let (call, name) = match op {
            OP_RAFT => {
                let response = match self.0.groups.deliver(group, body).await {
                    Ok(answer) => Response::ok(answer),
                    Err(_) => Response { status: STATUS_NO_GROUP, ..Response::default() },
                };
                return (response, None);
            }
            OP_PROPOSE => (LeaderCall::Propose, "propose"),
            OP_ASK => (LeaderCall::Ask, "ask"),
            OP_MEMBERS => (LeaderCall::Members, "members"),
            _ => return (Response { status: STATUS_NO_GROUP, ..Response::default() }, None),
        };
        let work = self.0.router.run_here(group, call, body);
        self.traced((incoming.trace, name, peer), work).await
    }

    async fn serve_control(
        &self,
        incoming: &Request,
        peer: SocketAddr,
    ) -> (Response, Option<Span>) {
        let request = match decode(incoming) {
            Ok(request) => request,
            Err(error) => return (answer(Err(error)), None),
        };
        let asked = (incoming.trace, request.name(), peer);
        let work =
            async { self.handle_from(request, Some(peer)).await.map(|reply| reply.encode()) };
        self.traced(asked, work).await
    }

    /// Serves what a peer asks as an operation of its trace. In the span its answer is to be
    /// sent.
    fn traced(
        &self,
        (trace, name, peer): (TraceId, &'static str, SocketAddr),
        work: impl Future<Output = Result<Vec<u8>, ControlError>>,
    ) -> impl Future<Output = (Response, Option<Span>)> {
        // In a box, since each `async` layer around it would hold it twice and move it.
        let work = Box::pin(work);
        async move {
            let env = &self.0.env;
            let span = env.begin(trace, name, Some(peer));
            let result = span.clone().follow(work).await;
            let outcome = match &result {
                Ok(_) => Outcome::Done,
                Err(error) => Outcome::Failed(error.kind),
            };
            span.note(Step::Answered, env.now().as_nanos(), Fact::None);
            env.end(&span, outcome);
            (answer(result), Some(span))
        }
    }
}

fn decode(incoming: &Request) -> Result<ControlRequest, ControlError> {
    ControlRequest::decode(&incoming.body)
        .map_err(|error| ControlError::new(Kind::Invalid, error.to_string()))
}

fn answer(result: Result<Vec<u8>, ControlError>) -> Response {
    let result = result.and_then(|body| {
        let message = "the answer is too long: ask for less at once";
        let fits = body.len() <= BODY_MAX;
        if fits { Ok(body) } else { Err(ControlError::new(Kind::Invalid, message)) }
    });
    match result {
        Ok(body) => Response::ok(body),
        Err(error) => Response::error(&error),
    }
}

/// Pause between two checks whether the cluster is there.
const READY_PAUSE: Duration = Duration::from_millis(10);
/// Pause between two checks of the masters' addresses.
const HOUSEKEEPING_PAUSE: Duration = Duration::from_millis(500);

/// The listening handler. Before the groups are open it refuses callers for the time being.
struct Entrance {
    env: Env,
    master: OnceCell<Master>,
}

impl Entrance {
    fn new(env: &Env) -> Entrance {
        Entrance { env: env.clone(), master: OnceCell::new() }
    }
}

impl Handler for Entrance {
    fn handle(&self, incoming: Incoming) {
        let Some(master) = self.master.get().cloned() else { return incoming.reply.busy() };
        let Incoming { request, reply, peer, deadline } = incoming;
        let (class, name) = match (request.service, request.op) {
            // Pings too: a master that is busy is reached.
            (Service::RAFT, OP_RAFT | OP_HEARTBEATS | OP_PING) => (Class::Control, "raft request"),
            (Service::RAFT, _) => (Class::Foreground, "peer request"),
            (Service::CONTROL, _) => (Class::Foreground, "control request"),
            _ => {
                let why = "this is a master: it holds no chunk and no volume";
                let error = ControlError::new(Kind::Invalid, why);
                return reply.send(answer(Err(error)));
            }
        };
        // Raft is bounded by its callers, which wait for one answer each.
        let raft = class == Class::Control;
        if !raft && master.0.requests.available_permits() == 0 {
            return reply.busy();
        }
        self.env.spawn(class, name, async move {
            let _permit = if raft { None } else { master.0.requests.try_acquire().ok() };
            let (response, span) = match request.service {
                Service::RAFT => master.serve_peer(request.op, &request, peer.addr).await,
                _ if request.op == OP_RELAY => {
                    Box::pin(master.serve_relay(&request, peer.addr, deadline)).await
                }
                _ => master.serve_control(&request, peer.addr).await,
            };
            let _entered = span.map(|span| span.enter());
            reply.send(response);
        });
    }
}

/// Opens the groups and starts their services.
struct GroupOpening<'a> {
    env: &'a Env,
    config: &'a MasterConfig,
    store: FlashStore,
    endpoint: Endpoint,
    peers: Rc<Peers>,
    router: Rc<Router>,
    groups: Groups,
}

impl<'a> GroupOpening<'a> {
    fn new(
        env: &'a Env,
        config: &'a MasterConfig,
        store: FlashStore,
        endpoint: Endpoint,
    ) -> GroupOpening<'a> {
        let peers = Peers::new(env, endpoint.clone(), &config.masters);
        let router = Router::new(env, peers.clone(), config.timing.call_timeout);
        GroupOpening { env, config, store, endpoint, peers, router, groups: Groups::new() }
    }

    async fn host<M: Hostable>(&self, name: GroupName, state: M) -> Result<Host<M>, StartError> {
        let (env, timing) = (self.env, &self.config.timing);
        let failed = |error| StartError::Group(name, OpenError::Log(error));
        let group_store = GroupStore::new(env, self.store.clone(), name.number());
        let checkpoints = Checkpoints::open(group_store.clone()).await.map_err(failed)?;
        let device = EngineDevice::new(group_store, timing.log_segment_len);
        let config = GroupConfig {
            election_timeout: timing.election_timeout,
            heartbeat: timing.heartbeat,
            heartbeats_together: true,
            request_timeout: timing.request_timeout,
            snapshot_after: timing.snapshot_after,
            entries_kept: timing.entries_kept,
            ..GroupConfig::new(name.number(), self.config.id)
        };
        let group = Group::open(env, config, device, checkpoints, self.peers.clone(), state).await;
        let group = group.map_err(|error| StartError::Group(name, error))?;
        self.groups.insert(name.number(), Rc::new(group.clone()));
        let host = Host::new(env, name, group, self.peers.clone());
        self.router.add(Rc::new(host.clone()));
        Ok(host)
    }

    async fn open(self, addr: SocketAddr, admission: Admission) -> Result<Master, StartError> {
        let (env, config) = (self.env, self.config);
        let facts = Formed {
            cluster: config.cluster,
            namespace_partitions: config.namespace_partitions,
            stream_partitions: config.stream_partitions,
            // Drawn by the leader that forms the cluster.
            formation: FormationId::default(),
        };
        let cluster =
            self.host(GroupName::Cluster, ClusterMachine::new().starting_at(config.first)).await?;
        let boot = env.random_u64();
        let liveness = Liveness::new(LivenessConfig {
            dead_after: config.timing.dead_after,
            report_hosts: config.timing.report_hosts,
            abnormal_share: config.timing.abnormal_share,
            slow_disk_min: config.timing.slow_disk_min,
            boot,
        });
        let (router, peers) = (self.router.clone(), self.peers.clone());
        let masters = config.masters.clone();
        let tokens = TokenIssuer::new(env, TokenKey::of_cluster(config.key.as_ref()));
        let cluster = ClusterService::new(
            (env, config.id),
            cluster,
            router.clone(),
            peers.clone(),
            (liveness, config.timing.doubt_hosts, tokens.clone()),
            (facts, masters),
        );
        let grants = GrantKey::derive(config.key.as_ref(), config.cluster);
        let streams = Rc::new(self.open_streams(&cluster, (&grants, &tokens)).await?);
        let mut namespaces = Vec::new();
        for partition in 0..config.namespace_partitions {
            let state = Namespace::new(partition, config.namespace_partitions);
            let state = state.starting_at(config.first.file);
            let host = self.host(GroupName::Namespace(partition), state).await?;
            let (router, streams) = (router.clone(), streams.clone());
            let (grants, timing) = (grants.clone(), config.timing.namespace);
            let service = NamespaceService::start(env, host, router, streams, grants, timing);
            namespaces.push(service);
        }
        Ok(Master(Rc::new(MasterInner {
            env: env.clone(),
            name: config.name.clone(),
            addr,
            groups: self.groups,
            peers,
            router,
            cluster,
            namespaces,
            streams,
            requests: Semaphore::new(REQUESTS_INFLIGHT_MAX),
            relays: Semaphore::new(RELAYS_INFLIGHT_MAX),
            relayed: Cell::default(),
            reach: RefCell::new(Reach::new(config.timing.unreached)),
            store: self.store,
            admission,
            boot,
        })))
    }

    async fn open_streams(
        &self,
        cluster: &ClusterService,
        (grants, tokens): (&GrantKey, &TokenIssuer),
    ) -> Result<Streams, StartError> {
        let (env, config) = (self.env, self.config);
        let calls = Rc::new(TransportCalls::new(env, self.endpoint.clone()));
        let mut partitions = Vec::new();
        for partition in 0..config.stream_partitions {
            let state = StreamMachine::new(partition);
            let state = state.starting_at(config.first.chunk, config.first.epoch);
            let host = self.host(GroupName::Stream(partition), state).await?;
            let check = grant_check(env, self.router.clone(), config.timing.call_timeout, grants);
            let parts = StreamParts {
                log: host.group().clone(),
                cluster: Rc::new(cluster.clone()),
                calls: calls.clone(),
                tokens: tokens.clone(),
                grants: check,
                config: StreamConfig {
                    partitions: config.stream_partitions,
                    ..config.timing.stream.clone()
                },
            };
            let service = StreamService::new(env, parts);
            service.start_background();
            partitions.push(StreamPartition { host, service });
        }
        Ok(Streams {
            env: env.clone(),
            endpoint: self.endpoint.clone(),
            peers: self.peers.clone(),
            call_timeout: config.timing.call_timeout,
            partitions,
        })
    }
}

struct StreamPartition {
    host: Host<StreamMachine>,
    service: StreamService<Group<StreamMachine>>,
}

/// All stream partitions on this master.
struct Streams {
    env: Env,
    endpoint: Endpoint,
    peers: Rc<Peers>,
    call_timeout: Duration,
    partitions: Vec<StreamPartition>,
}

impl Streams {
    fn partition_of(&self, file: FileId) -> &StreamPartition {
        let count = u16::try_from(self.partitions.len()).expect("checked at the start");
        &self.partitions[usize::from(stream_partition(file, count))]
    }

    async fn serve(&self, request: StreamRequest) -> Result<StreamReply, ControlError> {
        let Some(file) = file_of(&request) else { return Ok(StreamReply::Views(Vec::new())) };
        let partition = self.partition_of(file);
        let reroute = || partition.host.elsewhere(partition.host.group().leader());
        if !partition.host.leads() {
            return Err(reroute());
        }
        partition.service.handle(request).await.map_err(|error| {
            if error.kind == Kind::Reroute && error.leader.is_none() { reroute() } else { error }
        })
    }

    fn group_of(&self, request: &StreamRequest) -> Option<GroupName> {
        Some(self.partition_of(file_of(request)?).host.name())
    }

    async fn serve_anywhere(
        &self,
        request: StreamRequest,
        file: FileId,
    ) -> Result<(), ControlError> {
        let partition = self.partition_of(file);
        let leadership = partition.host.group().leadership();
        if leadership.leading {
            return self.serve(request).await.map(|_| ());
        }
        let Some(to) = leadership.leader.and_then(|leader| self.peers.addr(leader)) else {
            return Err(partition.host.elsewhere(None));
        };
        let request = Request {
            service: Service::CONTROL,
            op: 0,
            priority: Priority::Background,
            flow: 0,
            trace: self.env.trace(),
            token: Token::NONE,
            body: ControlRequest::Stream(request).encode(),
            payload: None,
        };
        let response = self.endpoint.call(to, request, self.call_timeout).await;
        let response =
            response.map_err(|error| ControlError::new(error.kind(), error.to_string()))?;
        match response.status {
            0 => Ok(()),
            _ => Err(ControlError::decode(&response.body)
                .unwrap_or_else(|error| ControlError::new(Kind::Invalid, error.to_string()))),
        }
    }
}

/// The file that a request is about; none: it asks for no file.
fn file_of(request: &StreamRequest) -> Option<FileId> {
    Some(match request {
        StreamRequest::Locate { file, .. } | StreamRequest::ReportBad { file, .. } => *file,
        StreamRequest::LocateMany { wants, .. } => wants.first()?.0,
        StreamRequest::Change { change, .. } => match change {
            StreamChange::Open { file, .. }
            | StreamChange::Advance { file, .. }
            | StreamChange::Extend { file, .. }
            | StreamChange::Close { file, .. }
            | StreamChange::Seal { file, .. }
            | StreamChange::Delete { file }
            | StreamChange::Convert { file, .. }
            | StreamChange::SetPolicy { file, .. } => *file,
        },
    })
}

impl StreamEnd for Streams {
    fn delete(&self, op: OpId, file: FileId) -> LocalFuture<'_, Result<(), ControlError>> {
        let request = StreamRequest::Change { op, change: StreamChange::Delete { file } };
        Box::pin(self.serve_anywhere(request, file))
    }
}

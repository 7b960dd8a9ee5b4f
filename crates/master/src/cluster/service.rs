//! Serves the requests to the cluster as a whole, on any master.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use base::{FormationId, Kind};
use runtime::sync::{Mutex, MutexGuard};
use runtime::{Env, Instant};
use wire::control::{
    ClusterInfo, ClusterReply, ClusterRequest, ClusterStatus, ControlError, Group as GroupName,
    Heartbeat, Holdings, LockChange, MasterInfo, MemberChange, Registration, StoppedCollection,
    holder_addr, missing,
};

use super::doubts::LockDoubts;
use super::{
    Answer, ClusterMachine, Command, Formed, Liveness, Order, Refusal, decode_outcome,
    encode_command,
};
use crate::limits::MASTERS_MAX;
use master_consensus::peers::Peers;
use master_consensus::service::{Host, Hostable, LeaderCall, Router};
use master_stream::placement::ClusterView;
use master_stream::{ClusterSource, StreamStatus, TokenIssuer};

/// A view of the chunkservers is made again after this time.
const VIEW_AGE_MAX: Duration = Duration::from_millis(50);
/// Time in which a change of the masters tries to reach each group's leader, and to get its turn.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(20);
/// Part of it after which the leader of the change confirms that it still leads.
const MEMBERS_ATTEMPT: Duration = Duration::from_secs(1);

impl Hostable for ClusterMachine {
    fn clock_ms(&self) -> u64 {
        ClusterMachine::clock_ms(self)
    }
}

/// Figures of the partitions that one master leads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LedFigures {
    /// Files of namespace partitions.
    pub files: u64,
    /// Directories of namespace partitions.
    pub dirs: u64,
    /// Sums over stream partitions.
    pub streams: StreamStatus,
    /// Sessions in the reply tables of stream partitions.
    pub sessions: u64,
    /// Their collections that wait for an operator.
    pub stopped: Vec<StoppedCollection>,
    /// What they have on the chunkservers that drain.
    pub draining: Vec<Holdings>,
}

/// The cluster group on this master. Clones share it.
#[derive(Clone)]
pub struct ClusterService(Rc<ClusterServiceInner>);

struct ClusterServiceInner {
    env: Env,
    master: u64,
    host: Host<ClusterMachine>,
    router: Rc<Router>,
    peers: Rc<Peers>,
    liveness: Liveness,
    /// What clients say of holders of locks.
    doubts: RefCell<LockDoubts>,
    /// The master as an issuer of tokens, whose clock chunkservers have to know.
    tokens: TokenIssuer,
    /// Heartbeats arrive since then.
    started: Instant,
    /// Facts of the configuration, until the cluster group has them.
    expected: Formed,
    configured: Vec<MasterInfo>,
    /// With the number of orders that it knows.
    view: RefCell<Option<(Instant, u64, Rc<ClusterView>)>>,
    /// Held by the change of the masters that is under way.
    changing: Mutex<()>,
    /// Held by the order that is checked and given.
    ordering: Mutex<()>,
}

impl ClusterService {
    /// Serves `host` on master number `master`. `doubt_hosts`: hosts whose clients' doubts about the holder of
    /// a lock are enough without a failed ping.
    pub fn new(
        (env, master): (&Env, u64),
        host: Host<ClusterMachine>,
        router: Rc<Router>,
        peers: Rc<Peers>,
        (liveness, doubt_hosts, tokens): (Liveness, usize, TokenIssuer),
        (expected, configured): (Formed, Vec<MasterInfo>),
    ) -> ClusterService {
        ClusterService(Rc::new(ClusterServiceInner {
            env: env.clone(),
            master,
            host,
            router,
            peers,
            doubts: RefCell::new(LockDoubts::new(doubt_hosts)),
            liveness,
            tokens,
            started: env.now(),
            expected,
            configured,
            view: RefCell::default(),
            changing: Mutex::new(()),
            ordering: Mutex::new(()),
        }))
    }

    /// The number of the master that it serves on.
    pub fn master(&self) -> u64 {
        self.0.master
    }

    /// The cluster's group.
    pub fn host(&self) -> &Host<ClusterMachine> {
        &self.0.host
    }

    /// Liveness of the chunkservers.
    pub fn liveness(&self) -> &Liveness {
        &self.0.liveness
    }

    /// True once the cluster group has said what the cluster is.
    pub fn is_formed(&self) -> bool {
        self.0.host.read(|state| state.formed().is_some())
    }

    /// Commits what the cluster is, if this master leads and it is not yet known.
    pub async fn form(&self) -> Result<(), ControlError> {
        if self.is_formed() || !self.0.host.leads() {
            return Ok(());
        }
        let formation = FormationId::new(u128::from(self.0.env.random_u64()).max(1));
        let formed = Formed { formation, ..self.0.expected };
        let masters = self.0.configured.clone();
        self.commit(Command::Form { formed, masters }).await.map(|_| ())
    }

    /// Serves one request; `led` counts what the other groups of this master hold.
    pub async fn serve(
        &self,
        request: ClusterRequest,
        led: impl FnOnce() -> LedFigures,
    ) -> Result<ClusterReply, ControlError> {
        match request {
            ClusterRequest::Info => Ok(ClusterReply::Info(self.info())),
            ClusterRequest::Register(registration) => {
                if !self.is_formed() {
                    let message = "the cluster is not formed yet: retry";
                    return Err(ControlError::new(Kind::Retry, message));
                }
                self.check_alone(&registration)?;
                match self.commit(Command::Register(registration)).await? {
                    Answer::Registered(server) => {
                        self.0.view.take();
                        let Formed { cluster, formation, .. } = self.facts();
                        let formation = Some(formation);
                        Ok(ClusterReply::Registered { server, cluster, formation })
                    }
                    _ => Err(Refusal::BadCommand.into()),
                }
            }
            ClusterRequest::Heartbeat(heartbeat) => Ok(self.hear(heartbeat)),
            ClusterRequest::Status => Ok(ClusterReply::Status(self.status(led()))),
            ClusterRequest::Lock { op, change } => {
                if let LockChange::Renew { name, fencing, .. } = &change
                    && self.0.doubts.borrow_mut().refuses(name, *fencing, self.0.env.now())
                {
                    self.0.env.mark("cluster: a doubted holder does not renew its lock");
                    let why = "clients do not reach the holder of the lock: another is to hold it";
                    return Err(ControlError::new(Kind::Fenced, why));
                }
                match self.commit(Command::Lock { op, change }).await? {
                    Answer::Lock(fencing) => Ok(ClusterReply::Lock { fencing }),
                    _ => Ok(ClusterReply::Done),
                }
            }
            ClusterRequest::LockHolder { name } => {
                self.0.host.read_barrier().await?;
                Ok(ClusterReply::Holder(self.holder(&name)))
            }
            ClusterRequest::Members { change } => self.change_members(change).await,
            // The view of the leading master alone: that of one beside it may be of a broken link.
            ClusterRequest::Abnormal { .. } if !self.0.host.leads() => {
                Err(self.0.host.elsewhere(self.0.host.group().leader()))
            }
            ClusterRequest::Abnormal { known } => {
                Ok(ClusterReply::Abnormal(self.0.liveness.abnormal(known)))
            }
            ClusterRequest::PauseBalance { paused } => {
                self.order(Order::PauseBalance(paused)).await?;
                Ok(ClusterReply::Done)
            }
            // The master answers: they concern stream partitions, or what it reaches.
            ClusterRequest::LockDoubt { .. }
            | ClusterRequest::Identify { .. }
            | ClusterRequest::Condemn { .. }
            | ClusterRequest::Order { .. }
            | ClusterRequest::Held { .. } => Err(Refusal::BadCommand.into()),
        }
    }

    /// Text and number of a lock's holder, as the cluster group is here.
    fn holder(&self, name: &str) -> Option<(String, u64)> {
        let clock = self.0.host.clock_ms();
        self.0.host.read(|state| {
            let lock = state.holder(name, clock);
            lock.map(|lock| (lock.owner.clone(), lock.fencing))
        })
    }

    /// A client on the host `from`, if that is known, doubts the holder `fencing` of a lock. Returns the
    /// holder's address when it is to be pinged, by [`ClusterService::doubt_pinged`]'s caller.
    pub(crate) fn note_doubt(
        &self,
        (name, fencing): (&str, u64),
        from: Option<IpAddr>,
    ) -> Result<Option<SocketAddr>, ControlError> {
        if !self.0.host.leads() {
            return Err(self.0.host.elsewhere(self.0.host.group().leader()));
        }
        let Some((text, _)) = self.holder(name).filter(|(_, holder)| *holder == fencing) else {
            return Ok(None); // The lock has changed hands since.
        };
        let doubted = self.0.doubts.borrow_mut().note((name, fencing), from, self.0.env.now());
        if doubted.refused {
            self.0.env.mark("cluster: clients of two hosts doubt the holder of a lock");
            tracing::warn!(
                name,
                holder = text,
                "clients of several hosts do not reach the holder of a lock: another is to hold it"
            );
        }
        let addr = holder_addr(&text);
        if doubted.ping && addr.is_none() {
            // There is nothing to ping, and no ping that ends.
            self.0.doubts.borrow_mut().pinged((name, fencing), false, self.0.env.now());
        }
        Ok(addr.filter(|_| doubted.ping))
    }

    /// The ping that a doubt has started has ended.
    pub(crate) fn doubt_pinged(&self, (name, fencing): (&str, u64), answered: bool) {
        let failed = !answered && self.0.liveness.reaches_servers();
        if self.0.doubts.borrow_mut().pinged((name, fencing), failed, self.0.env.now()) {
            self.0.env.mark("cluster: the doubted holder of a lock answers no ping");
            tracing::warn!(
                name,
                "a client does not reach the holder of a lock, nor does this master: another is to hold it"
            );
        }
    }

    /// Commits an order, which the caller has checked.
    pub(crate) async fn order(&self, order: Order) -> Result<(), ControlError> {
        self.commit(Command::Order(order)).await.map(drop)
    }

    /// The turn of an order, unless another one has it.
    pub(crate) fn try_order_turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.0.ordering.try_lock().ok()
    }

    /// Seconds since 1970.
    fn unix_s(&self) -> u64 {
        self.0.env.unix_time().as_nanos() / 1_000_000_000
    }

    /// A name is one live process: another one under it, at another address, has to wait until the
    /// first is dead. A process without a heartbeat at this master yet may live.
    fn check_alone(&self, registration: &Registration) -> Result<(), ControlError> {
        let Registration { name, addr, .. } = registration;
        let known = self.0.host.read(|state| {
            let (id, server) = state.server_named(name)?;
            (server.addr != *addr).then_some((id, server.addr))
        });
        let Some((id, first)) = known else { return Ok(()) };
        let now = self.0.env.now();
        let young = now.since(self.0.started) < self.0.liveness.dead_after();
        if !young && !self.0.liveness.is_alive(id, now) {
            return Ok(());
        }
        self.0.env.mark("cluster: a second process under a name");
        let message = format!(
            "a chunkserver '{name}' runs at {first}: this one, at {addr}, is refused. Give it a \
             name of its own, or stop the other: then it is taken {:?} later",
            self.0.liveness.dead_after()
        );
        Err(ControlError::new(Kind::Exists, message))
    }

    async fn commit(&self, command: Command) -> Result<Answer, ControlError> {
        let bytes = self.0.host.propose(|clock| encode_command(clock, &command)).await?;
        let outcome = decode_outcome(&bytes)
            .map_err(|_| ControlError::new(Kind::Unknown, "the outcome was lost: retry"))?;
        outcome.map_err(ControlError::from)
    }

    fn facts(&self) -> Formed {
        self.0.host.read(|state| state.formed()).unwrap_or(self.0.expected)
    }

    /// The masters as the cluster group has them here.
    pub fn masters(&self) -> Vec<MasterInfo> {
        let known: Vec<_> = self.0.host.read(|state| state.masters().cloned().collect());
        if known.is_empty() { self.0.configured.clone() } else { known }
    }

    /// True when a master is on record, as the cluster group is here.
    pub fn lists(&self, id: u64) -> bool {
        self.0.host.read(|state| state.masters().any(|master| master.id == id))
    }

    /// True when a master has left, as the cluster group is here. It stays so.
    pub fn has_left(&self, id: u64) -> bool {
        self.0.host.read(|state| state.has_left(id))
    }

    fn info(&self) -> ClusterInfo {
        let Formed { cluster, namespace_partitions, stream_partitions, .. } = self.facts();
        let leader = |host: Rc<dyn master_consensus::service::Hosted>| {
            host.leadership().leader.map(|leader| (host.name(), leader))
        };
        let leaders = self.0.router.hosts().into_iter().filter_map(leader).collect();
        let masters = self.masters();
        ClusterInfo { cluster, masters, namespace_partitions, stream_partitions, leaders }
    }

    fn hear(&self, heartbeat: Heartbeat) -> ClusterReply {
        let known = self.0.host.read(|state| {
            let server = state.server(heartbeat.server);
            let left = state.standing(heartbeat.server).decommissioned;
            !left && server.is_some_and(|server| server.addr == heartbeat.addr)
        });
        if known {
            let now = self.0.env.now();
            self.0.host.read(|state| self.0.liveness.hear(heartbeat, now, state));
        }
        let clock = Some(self.0.tokens.clock());
        ClusterReply::Beat { masters: self.masters(), known, clock }
    }

    fn status(&self, led: LedFigures) -> ClusterStatus {
        let now = self.0.env.now();
        let hosts = self.0.router.hosts().into_iter();
        let leads = hosts.filter(|host| host.leadership().leading).map(|host| host.name());
        let StreamStatus { chunks, under_replicated, lost, survive, logical_bytes, .. } =
            led.streams;
        ClusterStatus {
            master: self.0.master,
            leads: leads.collect(),
            servers: self.0.host.read(|state| self.0.liveness.status(state, now, self.unix_s())),
            chunks,
            under_replicated,
            lost,
            survive,
            files: led.files,
            dirs: led.dirs,
            logical_bytes,
            repair: led.streams.repair,
            unreferenced_bytes: led.streams.unreferenced_bytes,
            stopped: led.stopped,
            draining: led.draining,
            balance_paused: self.0.host.read(|state| state.orders().balance_paused),
        }
    }

    /// Nothing is changed for a master that is not there: it would have a vote, or a new address,
    /// and never answer.
    async fn check_answers(&self, master: &MasterInfo, listed: bool) -> Result<(), ControlError> {
        let MasterInfo { id, addr, .. } = master;
        match self.0.peers.member_status(*addr, self.0.master).await {
            Some(found) if found.id == *id && found.member.get() == 0 && listed => {
                Err(ControlError::new(
                    Kind::Invalid,
                    format!(
                        "master {id} is a member already, and its directory is empty: its disk was \
                         lost or replaced. Remove it, then add another with a number of its own"
                    ),
                ))
            }
            Some(found) if found.id == *id => Ok(()),
            Some(found) => Err(ControlError::new(
                Kind::Invalid,
                format!(
                    "the master at {addr} has number {} in its configuration, not {id}: add it \
                     by its number",
                    found.id
                ),
            )),
            None => Err(ControlError::new(
                Kind::Retry,
                format!("no master of this cluster answers at {addr}: start it there first"),
            )),
        }
    }

    /// Fails when this master no longer leads, or the master to be added has been removed: another
    /// leader may have carried out a removal since.
    async fn check_wanted(&self, change: &MemberChange) -> Result<(), ControlError> {
        self.0.host.read_barrier().await?;
        match change {
            MemberChange::Add(master) if !self.lists(master.id) => Err(Refusal::MasterLeft.into()),
            MemberChange::Add(_) | MemberChange::Remove { .. } => Ok(()),
        }
    }

    /// Changes the members of one group. The change is confirmed before each attempt: another leader
    /// may have carried out a later one since.
    async fn change_group(
        &self,
        group: GroupName,
        change: &MemberChange,
        body: &[u8],
    ) -> Result<(), ControlError> {
        let deadline = self.0.env.now() + MEMBERS_TIMEOUT;
        // This master does not lead the cluster group any more once it has been removed from it.
        let last = group == GroupName::Cluster && matches!(change, MemberChange::Remove { .. });
        let attempt = if last { MEMBERS_TIMEOUT } else { MEMBERS_ATTEMPT };
        loop {
            self.check_wanted(change).await?;
            let run = self.0.router.run(group, LeaderCall::Members, body.to_vec(), attempt);
            let Err(error) = run.await else { return Ok(()) };
            let passing = matches!(error.kind, Kind::Reroute | Kind::Retry | Kind::Unknown);
            if !passing || self.0.env.now() >= deadline {
                return Err(error);
            }
        }
    }

    /// Every group takes the master in, or lets it go, one after the other. A change that was
    /// interrupted is completed by asking for it again. There is one change at a time: a removal that
    /// overtook an addition would leave votes to a master that has left.
    async fn change_members(&self, change: MemberChange) -> Result<ClusterReply, ControlError> {
        if !self.0.host.leads() {
            return Err(self.0.host.elsewhere(self.0.host.group().leader()));
        }
        let Ok(_turn) = self.0.changing.try_lock() else {
            let message = "another change of the masters is under way: retry when it has ended";
            return Err(ControlError::new(Kind::Retry, message));
        };
        match &change {
            MemberChange::Add(master) => {
                self.0.host.read_barrier().await?;
                // Before it is invited: what is invited answers former leaders too.
                if self.has_left(master.id) {
                    return Err(Refusal::MasterLeft.into());
                }
                let listed = self.lists(master.id);
                self.check_answers(master, listed).await?;
                // Before it is on record: an empty directory of one that is has lost its disk.
                if !listed {
                    self.0.peers.invite(master).await?;
                }
                self.commit(Command::AddMaster(master.clone())).await?;
                self.0.peers.learn(master);
            }
            MemberChange::Remove { id } => {
                self.0.host.read_barrier().await?;
                // One that has left may be removed again: some group may still count its vote.
                let left = self.has_left(*id);
                if !left && (self.masters().len() < 2 || !self.lists(*id)) {
                    return Err(Refusal::NoMaster.into());
                }
            }
        }
        assert!(self.masters().len() <= MASTERS_MAX);
        let body = change.encode();
        let mut groups: Vec<GroupName> =
            self.0.router.hosts().iter().map(|host| host.name()).collect();
        // The cluster group last: who leads it leads this change.
        groups.sort_unstable_by(|a, b| b.cmp(a));
        for group in groups {
            self.change_group(group, &change, &body).await?;
        }
        if let MemberChange::Remove { id } = change {
            let (name, timeout) = (GroupName::Cluster, MEMBERS_TIMEOUT);
            let command = encode_command(0, &Command::RemoveMaster(id));
            self.0.router.run(name, LeaderCall::Propose, command, timeout).await?;
        }
        Ok(ClusterReply::Done)
    }
}

impl ClusterSource for ClusterService {
    fn view(&self) -> Rc<ClusterView> {
        let now = self.0.env.now();
        let mut kept = self.0.view.borrow_mut();
        // What is ordered counts at once.
        let orders = self.0.host.read(|state| state.orders().count);
        if let Some((at, known, view)) = &*kept
            && now.since(*at) < VIEW_AGE_MAX
            && *known == orders
        {
            return view.clone();
        }
        let unix_s = self.unix_s();
        let view = self.0.host.read(|state| self.0.liveness.view(state, now, unix_s));
        let view = Rc::new(view);
        *kept = Some((now, orders, view.clone()));
        view
    }

    fn missing(&self) -> Option<String> {
        let now = self.0.env.now();
        missing(&self.0.host.read(|state| self.0.liveness.status(state, now, self.unix_s())))
    }
}

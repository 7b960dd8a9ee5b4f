//! Whole masters in the simulator, and clients that ask them over the transport.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use base::{ClientId, ClusterId, Kind, TraceId};
use master::{FirstNumbers, Master, MasterConfig, MasterTiming};
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Duration, Env};
use transport::{ClusterKey, Endpoint, Identity, Limits, Priority, Request, Service, Token};
use wire::control::{
    ControlError, ControlReply, ControlRequest, MasterInfo, NameKey, NamespaceChange,
    NamespaceReply, NamespaceRequest, Node, OpId,
};

pub const CLUSTER: ClusterId = ClusterId::new(0xc1);
pub const PORT: u16 = 7000;

pub fn identity(name: &str) -> Identity {
    let (cluster, key) = (CLUSTER, Some(ClusterKey::new([9; 32])));
    Identity { cluster, key, name: name.to_owned() }
}

/// Masters that form one cluster.
pub struct Cluster {
    pub sim: Sim,
    hosts: BTreeMap<u64, HostId>,
    running: RefCell<BTreeMap<u64, Master>>,
    founders: Vec<u64>,
    /// Masters at the address which founders have of another.
    strays: RefCell<BTreeMap<u64, u64>>,
    timing: MasterTiming,
    pub partitions: u16,
}

impl Cluster {
    /// `founders` of `masters` form the cluster.
    pub fn new(sim: &Sim, masters: u64, founders: u64, partitions: u16) -> Rc<Cluster> {
        let hosts = (1..=masters).map(|id| (id, sim.add_host(&format!("m{id}")))).collect();
        let snapshot_after = sim.with_rng(|rng| *rng.pick(&[30, 200, 2000]));
        let timing = MasterTiming {
            request_timeout: Duration::from_millis(800),
            snapshot_after,
            entries_kept: snapshot_after / 4,
            log_segment_len: 256 << 10,
            ..MasterTiming::default()
        };
        Rc::new(Cluster {
            sim: sim.clone(),
            hosts,
            running: RefCell::default(),
            founders: (1..=founders).collect(),
            strays: RefCell::default(),
            timing,
            partitions,
        })
    }

    pub fn ids(&self) -> Vec<u64> {
        self.hosts.keys().copied().collect()
    }

    pub fn info(&self, id: u64) -> MasterInfo {
        MasterInfo { id, name: format!("m{id}"), addr: self.sim.addr(self.hosts[&id], PORT) }
    }

    /// In all configurations but its own, master `id` has the address of master `there`.
    pub fn stray(&self, id: u64, there: u64) {
        self.strays.borrow_mut().insert(id, there);
    }

    /// Master `id` as the configuration of master `owner` has it.
    fn info_of(&self, owner: u64, id: u64) -> MasterInfo {
        let there = self.strays.borrow().get(&id).copied().filter(|_| owner != id);
        MasterInfo { addr: self.info(there.unwrap_or(id)).addr, ..self.info(id) }
    }

    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.hosts.values().map(|&host| self.sim.addr(host, PORT)).collect()
    }

    pub fn host(&self, id: u64) -> HostId {
        self.hosts[&id]
    }

    pub fn master(&self, id: u64) -> Option<Master> {
        self.running.borrow().get(&id).cloned()
    }

    pub fn is_up(&self, id: u64) -> bool {
        self.sim.env(self.host(id)).is_some()
    }

    fn config(&self, id: u64) -> MasterConfig {
        MasterConfig {
            id,
            name: format!("m{id}"),
            addr: self.sim.addr(self.host(id), PORT),
            dir: Path::new("/data/master").to_owned(),
            cluster: CLUSTER,
            key: identity("").key,
            // One that is added later knows no other.
            masters: match self.founders.contains(&id) {
                true => self.founders.iter().map(|&other| self.info_of(id, other)).collect(),
                false => Vec::new(),
            },
            form: self.founders.contains(&id),
            namespace_partitions: self.partitions,
            stream_partitions: self.partitions,
            first: FirstNumbers::default(),
            timing: self.timing.clone(),
        }
    }

    pub fn start(self: &Rc<Self>, id: u64) {
        let env = self.sim.boot(self.host(id));
        let this = self.clone();
        env.clone().spawn(Class::Control, "master", async move {
            let endpoint =
                Endpoint::new(&env, identity(&format!("master m{id}")), Limits::default());
            match Master::start(&env, this.config(id), endpoint).await {
                Ok(master) => {
                    this.running.borrow_mut().insert(id, master);
                }
                Err(error) => panic!("master {id} does not start: {error}"),
            }
        });
    }

    /// Boots a master that must refuse to start; why it does.
    pub async fn start_refused(self: &Rc<Self>, id: u64) -> String {
        let env = self.sim.boot(self.host(id));
        let this = self.clone();
        let start = env.clone().spawn(Class::Control, "master", async move {
            let endpoint = Endpoint::new(&env, identity("refused"), Limits::default());
            Master::start(&env, this.config(id), endpoint).await.err().map(|it| it.to_string())
        });
        let refused = start.await.expect("no crash").expect("it starts");
        self.crash(id, CrashMode::Power);
        refused
    }

    pub fn crash(&self, id: u64, mode: CrashMode) {
        self.running.borrow_mut().remove(&id);
        self.sim.crash(self.host(id), mode);
    }

    /// Starts the founders and waits until requests succeed.
    pub async fn form(self: &Rc<Self>) {
        self.founders.iter().for_each(|&id| self.start(id));
        self.ready(Duration::from_secs(10)).await;
    }

    pub async fn ready(&self, timeout: Duration) {
        let deadline = self.sim.elapsed() + timeout;
        let is_ready = |id: &u64| self.master(*id).is_some_and(|master| master.is_ready());
        while !self.founders.iter().all(is_ready) {
            assert!(self.sim.elapsed() < deadline, "the masters are not ready in {timeout:?}");
            self.sim.sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends all faults.
    pub fn heal(self: &Rc<Self>) {
        self.sim.heal_network();
        for id in self.ids() {
            self.sim.with_disk_faults(self.host(id), |faults| faults.stall_one_in = 0);
            if !self.is_up(id) && self.founders.contains(&id) {
                self.start(id);
            }
        }
    }
}

/// A client of a cluster: tries until there is an answer, or its time is over.
#[derive(Clone)]
pub struct Client(Rc<ClientInner>);

struct ClientInner {
    env: Env,
    endpoint: Endpoint,
    masters: Vec<SocketAddr>,
    session: ClientId,
    seq: Cell<u64>,
    /// Mutations without an answer.
    open: RefCell<std::collections::BTreeSet<u64>>,
    timeout: Duration,
}

impl Client {
    pub fn new(env: &Env, cluster: &Cluster, timeout: Duration) -> Client {
        Client(Rc::new(ClientInner {
            env: env.clone(),
            endpoint: Endpoint::new(env, identity("client"), Limits::default()),
            masters: cluster.addrs(),
            session: ClientId::new(env.random_u64()),
            seq: Cell::new(0),
            open: RefCell::default(),
            timeout,
        }))
    }

    pub fn env(&self) -> &Env {
        &self.0.env
    }

    pub fn endpoint(&self) -> Endpoint {
        self.0.endpoint.clone()
    }

    /// Asks one master, once.
    pub async fn call(
        &self,
        to: SocketAddr,
        request: &ControlRequest,
    ) -> Result<ControlReply, ControlError> {
        let request = Request {
            service: Service::CONTROL,
            op: 0,
            priority: Priority::Foreground,
            flow: 0,
            trace: TraceId::new(1),
            token: Token::NONE,
            body: request.encode(),
            payload: None,
        };
        let attempt = self.0.timeout.min(Duration::from_millis(1500));
        let answer = self.0.endpoint.call(to, request, attempt).await;
        let answer = answer.map_err(|error| ControlError::new(error.kind(), error.to_string()))?;
        match answer.status {
            0 => Ok(ControlReply::decode(&answer.body).expect("a reply")),
            _ => Err(ControlError::decode(&answer.body).expect("an error")),
        }
    }

    /// Asks until there is an answer. [`Kind::Unknown`] when the time is over: it may happen.
    pub async fn ask(&self, request: ControlRequest) -> Result<ControlReply, ControlError> {
        let env = &self.0.env;
        let deadline = env.now() + self.0.timeout;
        let mut hint = None;
        loop {
            let any = self.0.masters[env.random_below(self.0.masters.len() as u64) as usize];
            let error = match self.call(hint.take().unwrap_or(any), &request).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            match error.kind {
                Kind::Reroute | Kind::Retry | Kind::Unknown | Kind::Refresh => {
                    hint = error.leader;
                }
                _ => return Err(error),
            }
            if env.now() >= deadline {
                return Err(ControlError::new(Kind::Unknown, error.message));
            }
            env.sleep(env.jitter(Duration::from_millis(10))).await;
        }
    }

    pub async fn namespace(
        &self,
        request: NamespaceRequest,
    ) -> Result<NamespaceReply, ControlError> {
        match self.ask(ControlRequest::Namespace(request)).await? {
            ControlReply::Namespace(reply) => Ok(reply),
            other => panic!("another service answers: {other:?}"),
        }
    }

    pub async fn change(&self, change: NamespaceChange) -> Result<NamespaceReply, ControlError> {
        let op = self.next_op();
        let reply = self.namespace(NamespaceRequest::Change { op, change }).await;
        self.0.open.borrow_mut().remove(&op.seq);
        reply
    }

    pub fn next_op(&self) -> OpId {
        let seq = self.0.seq.get() + 1;
        self.0.seq.set(seq);
        let mut open = self.0.open.borrow_mut();
        open.insert(seq);
        let acked_below = open.first().copied().unwrap_or(seq);
        OpId { client: self.0.session, seq, acked_below }
    }

    pub async fn lookup(&self, place: &NameKey) -> Result<Option<(Node, [u8; 16])>, ControlError> {
        match self.namespace(NamespaceRequest::Lookup { place: place.clone() }).await {
            Ok(NamespaceReply::Node { node, grant, .. }) => Ok(Some((node, grant))),
            Err(error) if error.kind == Kind::NotFound => Ok(None),
            Ok(other) => panic!("not an answer to a look-up: {other:?}"),
            Err(error) => Err(error),
        }
    }
}

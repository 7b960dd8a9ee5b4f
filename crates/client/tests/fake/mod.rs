//! A cluster in memory: masters with a leader, a namespace, streams, chunkservers. Faults are
//! the test's to set.

mod masters;
mod names;
mod servers;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

use base::{ChunkId, ClientId, DirId, DiskId, Epoch, FileId, ServerId};
use client::{DataAnswer, PeerError, Peers, Recipient};
use futures_util::future::{FutureExt, LocalBoxFuture};
use runtime::{Buf, Duration, Env};
use wire::control::{
    ChunkserverReply, Compression, ControlError, ControlReply, ControlRequest, NameKey, Node,
    Policy, ReplicaFault, ReplicaPlace,
};
use wire::data::{DataError, DataRequest};
use wire::token::Token;

/// Behaviour of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    Good,
    /// The process is gone: connections are refused.
    Dead,
    /// Nothing comes back.
    Silent,
}

/// One replica.
#[derive(Clone, Debug)]
pub struct Replica {
    pub epoch: Epoch,
    pub base: u64,
    /// Start of each sector's data, and the sector.
    pub sectors: Vec<(u32, Vec<u8>)>,
    pub len: u32,
    pub fence: Epoch,
    pub sealed: Option<u32>,
    pub committed: u32,
}

impl Replica {
    pub fn new(epoch: Epoch, base: u64) -> Replica {
        let (sectors, fence) = (vec![], Epoch::NONE);
        Replica { epoch, base, sectors, len: 0, fence, sealed: None, committed: 0 }
    }
}

#[derive(Clone, Debug)]
pub struct Chunk {
    pub id: ChunkId,
    pub epoch: Epoch,
    pub base: u64,
    pub sealed: Option<u32>,
    pub servers: Vec<usize>,
    pub acks: u8,
    pub copies: u8,
    pub data: u8,
    pub compression: Option<Compression>,
}

#[derive(Clone, Debug)]
pub struct Stream {
    pub policy: Policy,
    pub epoch: Epoch,
    pub writing: bool,
    pub finished: bool,
    pub chunks: Vec<Chunk>,
    pub spares: Vec<Chunk>,
}

impl Stream {
    pub fn new(policy: Policy) -> Stream {
        let (epoch, chunks, spares) = (Epoch::NONE, Vec::new(), Vec::new());
        Stream { policy, epoch, writing: false, finished: false, chunks, spares }
    }
}

pub struct FakeState {
    pub masters: Vec<SocketAddr>,
    pub masters_alive: Vec<bool>,
    /// Index of the leader of all groups.
    pub leader: Option<usize>,
    pub names: BTreeMap<NameKey, Node>,
    pub versions: BTreeMap<NameKey, u32>,
    pub dir_policies: BTreeMap<DirId, Policy>,
    pub streams: BTreeMap<FileId, Stream>,
    pub health: Vec<Health>,
    /// Time by which a chunkserver is late to take up a read, microseconds.
    pub slow_us: Vec<u64>,
    /// Whether each answers reads with "busy".
    pub busy: Vec<bool>,
    /// Lengths of the reads that were answered so.
    pub busy_lens: Vec<u32>,
    /// Reads that each has taken up.
    pub reads: Vec<u64>,
    /// Addresses of the chunkservers.
    pub addrs: Vec<SocketAddr>,
    pub full: bool,
    /// Servers that get no new chunks.
    pub no_place: BTreeSet<usize>,
    /// The right that is given out, and taken: older ones have run out.
    pub token: [u8; 16],
    /// Seconds for which a right is valid; 0 is for ever.
    pub rights_s: u64,
    /// The time of the last control request, seconds since 1970.
    pub now_s: u64,
    /// Data requests refused for their tokens.
    pub denied: u64,
    pub replicas: BTreeMap<(ChunkId, usize), Replica>,
    pub replies: BTreeMap<(ClientId, u64), Result<ControlReply, ControlError>>,
    pub next_file: u64,
    pub next_chunk: u64,
    pub reports: Vec<(ChunkId, ServerId, ReplicaFault)>,
    /// Requests lost, one in n; answers lost, one in n; 0 is never.
    pub lose_one_in: u64,
    /// Longest latency of one way, microseconds.
    pub latency_us: u64,
    /// Control requests by kind, for counting.
    pub locates: u64,
    pub changes: u64,
    /// Servers that masters do not reach, and the version of the list; nothing: they know no such request.
    pub abnormal: Option<(u64, Vec<ServerId>)>,
    /// Questions for that list.
    pub polls: u64,
}

/// The cluster; clones share it.
#[derive(Clone)]
pub struct Fake(pub Rc<RefCell<FakeState>>);

/// The cluster as one client's node reaches it.
struct Link {
    env: Env,
    fake: Fake,
}

impl Fake {
    pub fn new(masters: usize, servers: usize) -> Fake {
        let addr = |index: usize| SocketAddr::from(([10, 1, 0, index as u8 + 1], 7000));
        Fake(Rc::new(RefCell::new(FakeState {
            masters: (0..masters).map(addr).collect(),
            masters_alive: vec![true; masters],
            leader: Some(0),
            names: BTreeMap::new(),
            versions: BTreeMap::new(),
            dir_policies: BTreeMap::new(),
            streams: BTreeMap::new(),
            health: vec![Health::Good; servers],
            slow_us: vec![0; servers],
            busy: vec![false; servers],
            busy_lens: vec![],
            reads: vec![0; servers],
            addrs: (0..servers).map(server_addr).collect(),
            full: false,
            no_place: BTreeSet::new(),
            token: [9; 16],
            rights_s: 0,
            now_s: 0,
            denied: 0,
            replicas: BTreeMap::new(),
            replies: BTreeMap::new(),
            next_file: 1,
            next_chunk: 1,
            reports: vec![],
            lose_one_in: 0,
            latency_us: 50,
            locates: 0,
            changes: 0,
            abnormal: Some((1, Vec::new())),
            polls: 0,
        })))
    }

    pub fn peers(&self, env: &Env) -> Rc<dyn Peers> {
        Rc::new(Link { env: env.clone(), fake: self.clone() })
    }

    pub fn masters(&self) -> Vec<SocketAddr> {
        self.0.borrow().masters.clone()
    }

    pub fn with<T>(&self, change: impl FnOnce(&mut FakeState) -> T) -> T {
        change(&mut self.0.borrow_mut())
    }
}

impl FakeState {
    /// A right as it is given out now.
    pub fn right(&self) -> [u8; 16] {
        let mut token = self.token;
        if self.rights_s > 0 {
            let expiry = u32::try_from(self.now_s + self.rights_s).unwrap();
            token[1..5].copy_from_slice(&expiry.to_le_bytes());
        }
        token
    }

    fn refuses(&self, mut token: [u8; 16], now_s: u64) -> bool {
        if self.rights_s > 0 {
            if Token(token).expiry_s() <= now_s {
                return true;
            }
            token[1..5].copy_from_slice(&self.token[1..5]);
        }
        token != self.token
    }

    pub fn replica_place(&self, server: usize) -> ReplicaPlace {
        ReplicaPlace {
            server: ServerId::new(server as u32),
            disk: DiskId::new(server as u128 + 100),
            addr: self.addrs[server],
            fragment: 0,
        }
    }
}

fn unix_s(env: &Env) -> u64 {
    env.unix_time().as_nanos() / 1_000_000_000
}

fn server_addr(server: usize) -> SocketAddr {
    SocketAddr::from(([10, 2, 0, server as u8 + 1], 7100))
}

enum Arrival {
    Refused,
    Lost,
    Here,
}

impl Link {
    async fn travel(&self) {
        let most = self.fake.0.borrow().latency_us;
        let wait = self.env.random_below(most) + 5;
        self.env.sleep(Duration::from_micros(wait)).await;
    }

    fn loses(&self) -> bool {
        let odds = self.fake.0.borrow().lose_one_in;
        odds > 0 && self.env.random_below(odds) == 0
    }

    async fn arrive(&self, health: impl Fn(&FakeState) -> Health) -> Arrival {
        self.travel().await;
        let health = health(&self.fake.0.borrow());
        match health {
            Health::Dead => Arrival::Refused,
            Health::Silent => Arrival::Lost,
            Health::Good if self.loses() => Arrival::Lost,
            Health::Good => Arrival::Here,
        }
    }

    /// Runs one call: `serve` at the other end, unless it is lost on the way.
    async fn call<T, E>(
        self,
        health: impl Fn(&FakeState) -> Health,
        serve: impl FnOnce(&Env, &mut FakeState) -> Result<T, E>,
        timeout: Duration,
    ) -> Result<T, PeerError<E>> {
        let work = async {
            match self.arrive(&health).await {
                Arrival::Refused => return Err(PeerError::Unreachable("refused".to_owned())),
                Arrival::Lost => std::future::pending().await,
                Arrival::Here => {}
            }
            let answer = serve(&self.env, &mut self.fake.0.borrow_mut());
            match self.arrive(&health).await {
                Arrival::Refused => Err(PeerError::Silent("the link broke".to_owned())),
                Arrival::Lost => std::future::pending().await,
                Arrival::Here => answer.map_err(PeerError::Refused),
            }
        };
        match self.env.timeout(timeout, work).await {
            Ok(answer) => answer,
            Err(_) => Err(PeerError::Silent("timed out".to_owned())),
        }
    }
}

impl Link {
    /// A probe of a chunkserver's disk, which takes as long as its reads.
    async fn probe(
        self,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<ControlReply, PeerError<ControlError>> {
        let server = (0..100).find(|&server| server_addr(server) == to).expect("a chunkserver");
        let took_us = self.fake.0.borrow().slow_us[server];
        self.env.sleep(Duration::from_micros(took_us).min(timeout)).await;
        let answer = ControlReply::Chunkserver(ChunkserverReply::Probed { took_us });
        self.call(move |state| state.health[server], |_, _| Ok(answer), timeout).await
    }
}

impl Peers for Link {
    fn control(
        &self,
        to: Recipient,
        request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<ControlReply, PeerError<ControlError>>> {
        // Every request must survive the wire.
        let request = ControlRequest::decode(&request.encode()).expect("a valid request");
        let link = Link { env: self.env.clone(), fake: self.fake.clone() };
        let index = self.fake.0.borrow().masters.iter().position(|&addr| addr == to.addr);
        let Some(index) = index else { return link.probe(to.addr, timeout).boxed_local() };
        let health = move |state: &FakeState| {
            if state.masters_alive[index] { Health::Good } else { Health::Dead }
        };
        let serve = move |env: &Env, state: &mut FakeState| {
            state.now_s = unix_s(env);
            state.serve_control(index, request)
        };
        link.call(health, serve, timeout).boxed_local()
    }

    fn data(
        &self,
        to: SocketAddr,
        request: DataRequest,
        token: [u8; 16],
        payload: Option<Buf>,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<DataAnswer, PeerError<DataError>>> {
        let link = Link { env: self.env.clone(), fake: self.fake.clone() };
        let server = (0..100).find(|&server| server_addr(server) == to).expect("a server");
        let health = move |state: &FakeState| state.health[server];
        let is_read = matches!(request, DataRequest::Read(_));
        let late = if is_read { self.fake.0.borrow().slow_us[server] } else { 0 };
        let serve = move |env: &Env, state: &mut FakeState| {
            state.reads[server] += u64::from(is_read);
            if state.refuses(token, unix_s(env)) {
                state.denied += 1;
                return Err(DataError::Denied);
            }
            if let DataRequest::Read(read) = &request
                && state.busy[server]
            {
                state.busy_lens.push(read.len);
                return Err(DataError::Busy);
            }
            state.serve_data(env, server, &request, payload.as_ref())
        };
        async move {
            if late > 0 {
                link.env.sleep(Duration::from_micros(late)).await;
            }
            link.call(health, serve, timeout).await
        }
        .boxed_local()
    }
}

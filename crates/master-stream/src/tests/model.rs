//! Chunkservers in memory: replicas with their bytes, what of them is durable, crashes, damage.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

use base::{ChunkId, DiskId, Epoch, GIB, Kind, ServerId};
use runtime::sim::Sim;
use runtime::{Duration, Env, Instant};
use wire::control::{ControlError, Conversion, CopyOrder, ReplicaPlace, RowCheck, RowFindings};
use wire::data::{DataError, ReplicaStat, ReplicaState};
use wire::handshake::ClusterKey;
use wire::row::Fragment;
use wire::token::{Issuer, IssuerTime, Token, TokenKey};

use super::log::World;
use crate::placement::{ClusterView, DiskView, ReplicaLocation, ServerView};
use crate::*;
use master_consensus::LocalFuture;

#[derive(Clone, Debug)]
pub struct Replica {
    pub state: ReplicaState,
    pub epoch: Epoch,
    pub base: u64,
    pub bytes: Vec<u8>,
    pub durable: u32,
    pub committed: u32,
    /// Bytes that can not be read.
    pub holes: BTreeSet<u32>,
    /// The holes have been met.
    pub noticed: bool,
    /// The fragment of a coded chunk that it is of. Its bytes are the chunk's all the same: those of
    /// which it has its shares.
    pub fragment: Option<Fragment>,
}

impl Replica {
    fn stat(&self) -> ReplicaStat {
        let len = self.bytes.len() as u32;
        // Volatile bytes do not count; fewer than were durable are damage.
        let len = if self.state == ReplicaState::Open { len.min(self.durable) } else { len };
        let hole = self.holes.first().copied().filter(|_| self.noticed);
        let len = len.min(hole.unwrap_or(len));
        ReplicaStat {
            state: self.state,
            epoch: self.epoch,
            len,
            durable_bound: self.durable,
            committed: self.committed,
        }
    }
}

pub struct Server {
    pub id: ServerId,
    pub domain: String,
    pub up: bool,
    /// Counts restarts.
    pub boot: u64,
    pub disks: Vec<DiskId>,
    pub replicas: BTreeMap<(DiskId, ChunkId), Replica>,
}

/// All chunkservers of a world.
pub struct Model {
    pub sim: Sim,
    pub env: RefCell<Env>,
    pub world: Rc<World>,
    pub servers: RefCell<BTreeMap<ServerId, Server>>,
    /// One call in so many is lost before, or after, it took effect; 0 is none.
    pub loss_one_in: Cell<u64>,
    /// Servers that send heartbeats and answer no call of the masters.
    pub grey: RefCell<BTreeSet<ServerId>>,
    /// Servers that answer no ping of masters.
    unreached: RefCell<BTreeSet<ServerId>>,
    draining: RefCell<BTreeSet<ServerId>>,
    maintained: RefCell<BTreeSet<ServerId>>,
    /// Servers that no writer reaches.
    pub cut: RefCell<BTreeSet<ServerId>>,
    /// Servers whose disks take no new replicas, of which the masters know nothing yet.
    pub full: RefCell<BTreeSet<ServerId>>,
    /// Replicas whose holes were met by a read, for a test to report.
    pub met: RefCell<BTreeSet<(ReplicaLocation, ChunkId)>>,
    /// Deletions that were ordered, with the moment up to which each may be carried out.
    pub deletions: RefCell<Vec<(ReplicaPlace, Vec<ChunkId>, IssuerTime)>>,
    /// When the clocks of issuers began.
    issuers: RefCell<BTreeMap<Issuer, Instant>>,
    /// One conversion in so many writes other bytes than it answers for to one replica; 0 is none.
    pub errs_one_in: Cell<u64>,
    /// Chunks with a row that was coded wrong.
    pub miscoded: RefCell<BTreeSet<ChunkId>>,
    /// Replicas with a cell that is not its row's.
    pub wrong: RefCell<BTreeSet<(ReplicaLocation, ChunkId)>>,
    /// Servers take fragments of coded chunks.
    takes_fragments: Cell<bool>,
    /// Servers that make no fragments: they would copy the one of their first source.
    old: RefCell<BTreeSet<ServerId>>,
    /// Short fenced replicas can be extended where they are.
    pub in_place: Cell<bool>,
    next_disk: Cell<u128>,
    view: RefCell<Option<Rc<ClusterView>>>,
}

/// One append of a writer.
#[derive(Clone, Debug)]
pub struct Append {
    pub chunk: ChunkId,
    pub epoch: Epoch,
    pub base: u64,
    pub offset: u32,
    pub bytes: Vec<u8>,
    pub committed: u32,
}

impl Model {
    pub fn new(sim: &Sim, env: &Env, world: &Rc<World>, servers: u32, disks: u32) -> Rc<Model> {
        let model = Rc::new(Model {
            sim: sim.clone(),
            env: RefCell::new(env.clone()),
            world: world.clone(),
            servers: RefCell::default(),
            loss_one_in: Cell::new(0),
            grey: RefCell::default(),
            unreached: RefCell::default(),
            draining: RefCell::default(),
            maintained: RefCell::default(),
            cut: RefCell::default(),
            full: RefCell::default(),
            met: RefCell::default(),
            deletions: RefCell::default(),
            issuers: RefCell::default(),
            errs_one_in: Cell::new(0),
            miscoded: RefCell::default(),
            wrong: RefCell::default(),
            takes_fragments: Cell::new(true),
            old: RefCell::default(),
            in_place: Cell::new(sim.with_rng(|rng| rng.one_in(2))),
            next_disk: Cell::new(1),
            view: RefCell::default(),
        });
        (1..=servers).for_each(|id| model.add_server(id, disks));
        model
    }

    pub fn add_server(&self, id: u32, disks: u32) {
        let server = Server {
            id: ServerId::new(id),
            domain: format!("rack{id}"),
            up: true,
            boot: 1,
            disks: (0..disks).map(|_| self.new_disk()).collect(),
            replicas: BTreeMap::new(),
        };
        self.servers.borrow_mut().insert(server.id, server);
        self.changed();
    }

    fn new_disk(&self) -> DiskId {
        self.next_disk.set(self.next_disk.get() + 1);
        DiskId::new(self.next_disk.get())
    }

    fn changed(&self) {
        *self.view.borrow_mut() = None;
    }

    fn draw(&self, bound: u64) -> u64 {
        self.sim.with_rng(|rng| rng.below(bound))
    }

    async fn pause(&self, most_us: u64) {
        let pause = Duration::from_micros(self.draw(most_us) + 1);
        self.sim.sleep(pause).await;
    }

    /// Stops a server. Volatile bytes are lost, wholly or in part.
    pub fn crash(&self, id: ServerId) {
        let mut servers = self.servers.borrow_mut();
        let server = servers.get_mut(&id).expect("a server");
        server.up = false;
        server.boot += 1;
        for replica in server.replicas.values_mut() {
            let durable = replica.durable as usize;
            let loose = replica.bytes.len().saturating_sub(durable) as u64;
            let kept = durable + self.draw(loose + 1) as usize;
            replica.bytes.truncate(kept);
            // After a restart what is readable was made durable by recovery.
            replica.durable = replica.durable.max(replica.bytes.len() as u32);
        }
        drop(servers);
        self.changed();
    }

    /// A server answers no ping of masters from now on.
    pub fn lose_reach(&self, id: ServerId) {
        self.unreached.borrow_mut().insert(id);
        self.changed();
    }

    /// All servers take fragments from now on, or one does not.
    pub fn take_fragments(&self, take: bool) {
        self.takes_fragments.set(take);
        self.changed();
    }

    /// A server is of a version that makes no fragments from now on, or not any more.
    pub fn be_old(&self, id: ServerId, old: bool) {
        let mut all = self.old.borrow_mut();
        if old {
            all.insert(id)
        } else {
            all.remove(&id)
        };
        drop(all);
        self.changed();
    }

    /// An operator has a server emptied from now on, or not any more.
    pub fn drain(&self, id: ServerId, drains: bool) {
        let mut draining = self.draining.borrow_mut();
        if drains {
            draining.insert(id)
        } else {
            draining.remove(&id)
        };
        drop(draining);
        self.changed();
    }

    /// A server is under maintenance from now on, or not any more.
    pub fn maintain(&self, id: ServerId, maintained: bool) {
        let mut all = self.maintained.borrow_mut();
        if maintained {
            all.insert(id)
        } else {
            all.remove(&id)
        };
        drop(all);
        self.changed();
    }

    pub fn restart(&self, id: ServerId) {
        self.servers.borrow_mut().get_mut(&id).expect("a server").up = true;
        self.changed();
    }

    /// Replaces a disk by an empty one.
    pub fn wipe(&self, id: ServerId) {
        let fresh = self.new_disk();
        let mut servers = self.servers.borrow_mut();
        let server = servers.get_mut(&id).expect("a server");
        let old = std::mem::replace(&mut server.disks[0], fresh);
        server.replicas.retain(|&(disk, _), _| disk != old);
        server.boot += 1;
        drop(servers);
        self.changed();
    }

    /// Makes one byte of every replica of a server unreadable. It shows when it is read.
    pub fn rot(&self, id: ServerId, at: u32) {
        let mut servers = self.servers.borrow_mut();
        for replica in servers.get_mut(&id).expect("a server").replicas.values_mut() {
            if (at as usize) < replica.bytes.len() {
                replica.holes.insert(at);
            }
        }
    }

    /// Takes the first disk out of a server that goes on without it.
    pub fn take_out(&self, id: ServerId) -> DiskId {
        let disk = self.servers.borrow_mut().get_mut(&id).expect("a server").disks.remove(0);
        self.changed();
        disk
    }

    /// Puts a disk back with all it had.
    pub fn put_back(&self, id: ServerId, disk: DiskId) {
        self.servers.borrow_mut().get_mut(&id).expect("a server").disks.insert(0, disk);
        self.changed();
    }

    /// Bytes of a chunk up to one that cannot be had: each from the first source that has it, of a
    /// coded chunk decoded of as many fragments as it takes.
    fn gather(&self, order: &CopyOrder) -> Vec<u8> {
        let needed = order.fragment.map_or(1, |fragment| usize::from(fragment.k));
        (0..order.len)
            .map_while(|at| {
                let mut found = BTreeMap::new();
                for source in &order.sources {
                    if let Some((fragment, byte)) = self.byte_at(order.chunk, source, at) {
                        assert_eq!(fragment.is_some(), order.fragment.is_some(), "{order:?}");
                        if fragment.is_some_and(|it| it.number != source.fragment) {
                            self.world.violate(format!("{source:?} holds {fragment:?}"));
                        }
                        found.insert(fragment.map(|it| it.number), byte);
                    }
                    if found.len() >= needed {
                        return found.into_values().next();
                    }
                }
                None
            })
            .collect()
    }

    /// A byte of a chunk at one source, with the fragment that is there.
    fn byte_at(
        &self,
        chunk: ChunkId,
        source: &ReplicaPlace,
        at: u32,
    ) -> Option<(Option<Fragment>, u8)> {
        let place = ReplicaLocation { server: source.server, disk: source.disk };
        let found = self.on(place, |server| {
            let Some(replica) = server.replicas.get_mut(&(place.disk, chunk)) else {
                return Ok(None);
            };
            if replica.holes.contains(&at) {
                replica.noticed = true;
                self.met.borrow_mut().insert((place, chunk));
                return Ok(None);
            }
            let served = replica.state != ReplicaState::Repairing && !replica.state.is_tombstone();
            let byte = replica.bytes.get(at as usize).copied().filter(|_| served);
            Ok(byte.map(|byte| (replica.fragment, byte)))
        });
        found.unwrap_or(None)
    }

    /// Cuts durable bytes off every replica of a server's first disk.
    pub fn damage(&self, id: ServerId) -> Vec<(ReplicaLocation, ChunkId)> {
        let mut servers = self.servers.borrow_mut();
        let server = servers.get_mut(&id).expect("a server");
        let disk = server.disks[0];
        let mut damaged = Vec::new();
        for (&(at, chunk), replica) in &mut server.replicas {
            if at == disk && replica.durable > 0 && self.sim.with_rng(|rng| rng.one_in(2)) {
                let len = self.draw(u64::from(replica.durable)) as usize;
                replica.bytes.truncate(len);
                damaged.push((ReplicaLocation { server: id, disk }, chunk));
            }
        }
        damaged
    }

    /// A master as an issuer of tokens.
    pub fn issuer(&self, env: &Env) -> TokenIssuer {
        let issuer = TokenIssuer::new(env, TokenKey::derive(&ClusterKey::new([7; 32])));
        self.issuers.borrow_mut().insert(issuer.clock().issuer, env.now());
        issuer
    }

    /// An order that was under way for too long is refused.
    fn check_order(&self, not_after: IssuerTime) -> Result<(), CallError> {
        let env = self.env.borrow();
        let now = match not_after.issuer {
            Issuer::WALL => env.unix_time().as_nanos() / 1_000_000_000,
            issuer => {
                let started = self.issuers.borrow()[&issuer];
                env.now().since(started).as_secs()
            }
        };
        if now <= not_after.seconds {
            return Ok(());
        }
        Err(CallError::Control(ControlError::new(Kind::Retry, "the order has run out")))
    }

    fn on<T>(
        &self,
        to: ReplicaLocation,
        act: impl FnOnce(&mut Server) -> Result<T, DataError>,
    ) -> Result<T, CallError> {
        let mut servers = self.servers.borrow_mut();
        let server = servers.get_mut(&to.server).filter(|server| server.up);
        let server = server.ok_or(CallError::Unreachable)?;
        if !server.disks.contains(&to.disk) {
            return Err(CallError::Data(DataError::WrongDisk));
        }
        act(server).map_err(CallError::Data)
    }

    /// A call over a network that may lose request or answer.
    async fn call<T>(
        &self,
        to: ReplicaPlace,
        act: impl AsyncFnOnce(ReplicaLocation) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let place = ReplicaLocation { server: to.server, disk: to.disk };
        self.pause(500).await;
        let lost = |model: &Model| {
            let odds = model.loss_one_in.get();
            model.sim.with_rng(|rng| rng.one_in(odds))
        };
        if lost(self) {
            self.pause(5_000).await;
            return Err(CallError::Unreachable);
        }
        let up = self.servers.borrow()[&place.server].up;
        if !up || self.grey.borrow().contains(&place.server) {
            self.pause(5_000).await;
            return Err(CallError::Unreachable);
        }
        let result = act(place).await;
        self.pause(500).await;
        if lost(self) { Err(CallError::Unreachable) } else { result }
    }

    /// Appends at one replica; retries what came out of order.
    pub async fn append(&self, to: ReplicaLocation, append: &Append) -> Result<u32, CallError> {
        for _ in 0..8 {
            self.pause(300).await;
            if self.cut.borrow().contains(&to.server) {
                return Err(CallError::Unreachable);
            }
            match self.append_once(to, append).await {
                Err(CallError::Data(DataError::Gap { .. })) => self.pause(500).await,
                other => return other,
            }
        }
        Err(CallError::Unreachable)
    }

    async fn append_once(&self, to: ReplicaLocation, append: &Append) -> Result<u32, CallError> {
        let end = append.offset + append.bytes.len() as u32;
        let check = |replica: &Replica| match replica.state {
            ReplicaState::Open if replica.epoch == append.epoch => Ok(()),
            ReplicaState::Fenced(epoch) if epoch <= append.epoch => Ok(()),
            ReplicaState::Fenced(epoch) => Err(DataError::Fenced { epoch }),
            ReplicaState::Tombstone | ReplicaState::Deleted => {
                Err(DataError::Fenced { epoch: append.epoch.next() })
            }
            ReplicaState::Sealed => Err(DataError::Sealed { len: replica.bytes.len() as u32 }),
            ReplicaState::Open | ReplicaState::Repairing => Err(DataError::Conflict),
        };
        let boot = self.on(to, |server| {
            let key = (to.disk, append.chunk);
            if append.offset == 0 {
                server.replicas.entry(key).or_insert_with(|| Replica {
                    state: ReplicaState::Open,
                    epoch: append.epoch,
                    base: append.base,
                    bytes: Vec::new(),
                    durable: 0,
                    committed: 0,
                    holes: BTreeSet::new(),
                    noticed: false,
                    fragment: self.world.fragment(append.chunk, to),
                });
            }
            let replica = server.replicas.get_mut(&key).ok_or(DataError::Gap { len: 0 })?;
            check(replica)?;
            let have = replica.bytes.len() as u32;
            if have < append.offset {
                return Err(DataError::Gap { len: have });
            }
            let overlap = &replica.bytes[append.offset as usize..have.min(end) as usize];
            if overlap != &append.bytes[..overlap.len()] {
                return Err(DataError::Conflict);
            }
            let fresh = append.bytes[overlap.len()..].to_vec();
            replica.bytes.extend(fresh);
            replica.committed = replica.committed.max(append.committed);
            Ok(server.boot)
        })?;
        self.pause(400).await;
        self.on(to, |server| {
            if server.boot != boot {
                return Err(DataError::Unknown);
            }
            let key = (to.disk, append.chunk);
            let replica = server.replicas.get_mut(&key).ok_or(DataError::Unknown)?;
            check(replica)?;
            if replica.durable < append.offset {
                return Err(DataError::Gap { len: replica.durable });
            }
            replica.durable = replica.durable.max(end);
            Ok(())
        })?;
        self.pause(300).await;
        Ok(end)
    }
}

impl ClusterSource for Model {
    fn view(&self) -> Rc<ClusterView> {
        if let Some(view) = &*self.view.borrow() {
            return view.clone();
        }
        let servers = self.servers.borrow();
        let servers = servers.values().map(|server| ServerView {
            server: server.id,
            addr: SocketAddr::from(([10, 0, 0, server.id.get() as u8], 7000)),
            domain: server.domain.clone(),
            alive: server.up,
            reached: !self.unreached.borrow().contains(&server.id),
            load: 0,
            rows: true,
            fragments: self.takes_fragments.get() && !self.old.borrow().contains(&server.id),
            by_issuer: !self.old.borrow().contains(&server.id),
            disks: server
                .disks
                .iter()
                .map(|&disk| DiskView {
                    disk,
                    capacity: 100 * GIB,
                    used: 0,
                    failed: false,
                    addr: None,
                })
                .collect(),
            draining: self.draining.borrow().contains(&server.id),
            maintained: self.maintained.borrow().contains(&server.id),
        });
        let view = Rc::new(ClusterView::new(servers.collect()));
        *self.view.borrow_mut() = Some(view.clone());
        view
    }
}

/// What a conversion answers of a fragment, or of all copies.
fn digest(bytes: &[u8], fragment: u8) -> u32 {
    let start = 0x811c_9dc5 ^ u32::from(fragment);
    bytes.iter().fold(start, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn no_source() -> CallError {
    CallError::Control(ControlError::new(Kind::Reroute, "no source serves some byte"))
}

impl ChunkserverCalls for Model {
    fn fence(
        &self,
        to: ReplicaPlace,
        chunk: ChunkId,
        epoch: Epoch,
        _token: Token,
    ) -> LocalFuture<'_, Result<ReplicaStat, CallError>> {
        Box::pin(self.call(to, async move |place| {
            self.on(place, |server| {
                let replica = server.replicas.entry((place.disk, chunk)).or_insert(Replica {
                    state: ReplicaState::Tombstone,
                    epoch: Epoch::NONE,
                    base: 0,
                    bytes: Vec::new(),
                    durable: 0,
                    committed: 0,
                    holes: BTreeSet::new(),
                    noticed: false,
                    fragment: None,
                });
                replica.state = match replica.state {
                    ReplicaState::Open => {
                        // Appends in flight fail; their written bytes are made durable.
                        // durable.
                        replica.durable = replica.durable.max(replica.bytes.len() as u32);
                        ReplicaState::Fenced(epoch)
                    }
                    ReplicaState::Fenced(old) => ReplicaState::Fenced(old.max(epoch)),
                    other => other,
                };
                Ok(replica.stat())
            })
        }))
    }

    fn seal(
        &self,
        to: ReplicaPlace,
        chunk: ChunkId,
        len: u32,
        _token: Token,
    ) -> LocalFuture<'_, Result<ReplicaStat, CallError>> {
        Box::pin(self.call(to, async move |place| {
            self.world.check_seal(chunk, len);
            self.on(place, |server| {
                let key = (place.disk, chunk);
                let replica = server.replicas.get_mut(&key).ok_or(DataError::NotFound)?;
                let have = replica.bytes.len() as u32;
                match replica.state {
                    state if state.is_tombstone() => return Err(DataError::NotFound),
                    ReplicaState::Sealed if replica.durable != len => {
                        return Err(DataError::Sealed { len: replica.durable });
                    }
                    _ if have < replica.durable => {
                        return Err(DataError::Corrupt { offset: have });
                    }
                    _ if have < len => return Err(DataError::Gap { len: have }),
                    _ => {}
                }
                replica.bytes.truncate(len as usize);
                replica.durable = len;
                replica.state = ReplicaState::Sealed;
                Ok(replica.stat())
            })
        }))
    }

    fn stat(
        &self,
        to: ReplicaPlace,
        chunk: ChunkId,
        _token: Token,
    ) -> LocalFuture<'_, Result<ReplicaStat, CallError>> {
        Box::pin(self.call(to, async move |place| {
            self.on(place, |server| {
                let replica = server.replicas.get(&(place.disk, chunk));
                replica.map(Replica::stat).ok_or(DataError::NotFound)
            })
        }))
    }

    fn replicate(
        &self,
        to: ReplicaPlace,
        order: CopyOrder,
    ) -> LocalFuture<'_, Result<(ReplicaStat, u64), CallError>> {
        Box::pin(self.call(to, async move |place| {
            self.world.check_copy(order.chunk, place, order.fragment);
            if order.fragment.is_some() && self.old.borrow().contains(&place.server) {
                self.world.violate(format!("{place:?} makes no fragments: {order:?}"));
            }
            self.pause(3_000).await;
            if self.full.borrow().contains(&place.server) {
                return Err(CallError::Data(DataError::Full));
            }
            // A replica that is there is read through for itself.
            let itself =
                order.sources.iter().all(|it| (it.server, it.disk) == (to.server, to.disk));
            let bytes = if itself { Vec::new() } else { self.gather(&order) };
            // The same fragment is copied as it is; others give what the row has there.
            let is_copied_wrong = |it: &ReplicaPlace| {
                let at = ReplicaLocation { server: it.server, disk: it.disk };
                order.fragment.is_some_and(|made| made.number == it.fragment)
                    && self.wrong.borrow().contains(&(at, order.chunk))
            };
            if !itself && order.sources.iter().any(is_copied_wrong) {
                self.wrong.borrow_mut().insert((place, order.chunk));
            }
            let torn = bytes.len() < order.len as usize;
            let sealed = |server: &mut Server| {
                let replica = server.replicas.get(&(place.disk, order.chunk));
                Ok(replica.is_some_and(|replica| replica.state == ReplicaState::Sealed))
            };
            if bytes.is_empty() && !self.on(place, sealed)? {
                return Err(no_source());
            }
            self.on(place, |server| {
                let key = (place.disk, order.chunk);
                let replica = server.replicas.entry(key).or_insert(Replica {
                    state: ReplicaState::Repairing,
                    epoch: order.epoch,
                    base: order.base,
                    bytes: Vec::new(),
                    durable: 0,
                    committed: 0,
                    holes: BTreeSet::new(),
                    noticed: false,
                    fragment: order.fragment,
                });
                let have = replica.bytes.len();
                if have == 0 {
                    replica.fragment = order.fragment;
                }
                assert_eq!(replica.fragment, order.fragment, "{order:?} at {place:?}");
                match replica.state {
                    ReplicaState::Deleted => return Err(DataError::Conflict),
                    // Fenced before its creation: it is filled, and keeps fence and vote.
                    ReplicaState::Tombstone if self.in_place.get() => {
                        replica.state = ReplicaState::Fenced(order.epoch.next());
                        (replica.epoch, replica.base) = (order.epoch, order.base);
                    }
                    ReplicaState::Tombstone => return Err(DataError::Conflict),
                    ReplicaState::Sealed if have != order.len as usize => {
                        return Err(DataError::Sealed { len: have as u32 });
                    }
                    // A replica that is there already is read to its end.
                    ReplicaState::Sealed => {
                        replica.noticed |= !replica.holes.is_empty();
                        if let Some(&offset) = replica.holes.first() {
                            self.met.borrow_mut().insert((place, order.chunk));
                            return Err(DataError::Corrupt { offset });
                        }
                        return Ok((replica.stat(), 0));
                    }
                    ReplicaState::Open => return Err(DataError::Conflict),
                    ReplicaState::Fenced(_) if !self.in_place.get() => {
                        return Err(DataError::Conflict);
                    }
                    _ if have < replica.durable as usize => {
                        return Err(DataError::Corrupt { offset: have as u32 });
                    }
                    _ => {}
                }
                let copied = bytes.len().saturating_sub(have) as u64;
                if have < bytes.len() {
                    replica.durable = bytes.len() as u32;
                    replica.bytes = bytes;
                }
                if torn {
                    return Ok((replica.stat(), copied));
                }
                if order.seal {
                    replica.bytes.truncate(order.len as usize);
                    replica.durable = order.len;
                    replica.state = ReplicaState::Sealed;
                } else if replica.state == ReplicaState::Repairing && self.in_place.get() {
                    replica.state = ReplicaState::Fenced(order.epoch.next());
                }
                Ok((replica.stat(), copied))
            })
            .and_then(|done| {
                if torn && done.0.state != ReplicaState::Sealed {
                    Err(no_source())
                } else {
                    Ok(done)
                }
            })
        }))
    }

    fn convert(
        &self,
        to: ReplicaPlace,
        order: Conversion,
    ) -> LocalFuture<'_, Result<Vec<u32>, CallError>> {
        Box::pin(self.call(to, async move |place| {
            self.pause(3_000).await;
            let Conversion { chunk, epoch, base, len, made, policy, .. } = order;
            let read = CopyOrder {
                chunk,
                epoch,
                base,
                len,
                sources: order.sources.clone(),
                token: order.read_token,
                seal: false,
                fragment: order.code,
                urgent: false,
            };
            let bytes = self.gather(&read);
            if bytes.len() < len as usize {
                return Err(no_source());
            }
            let errs = self.errs_one_in.get();
            let wrong = (errs > 0 && self.draw(errs) == 0).then(|| self.draw(policy.copies.into()));
            for (number, to) in (0u8..).zip(&order.places) {
                self.pause(1_000).await;
                // The server that converts may be gone by now.
                self.on(place, |_| Ok(()))?;
                let to = ReplicaLocation { server: to.server, disk: to.disk };
                let (k, p) = (policy.data, policy.copies - policy.data.min(policy.copies));
                let fragment = policy.is_coded().then_some(Fragment { k, p, number });
                let mut bytes = bytes.clone();
                if wrong == Some(number.into()) {
                    bytes[0] ^= 1;
                }
                self.world.check_copy(made, to, fragment);
                self.on(to, |server| {
                    let replica = Replica {
                        state: ReplicaState::Open,
                        epoch,
                        base,
                        durable: len,
                        bytes,
                        committed: 0,
                        holes: BTreeSet::new(),
                        noticed: false,
                        fragment,
                    };
                    match server.replicas.insert((to.disk, made), replica) {
                        None => Ok(()),
                        Some(other) => {
                            server.replicas.insert((to.disk, made), other);
                            Err(DataError::Conflict)
                        }
                    }
                })?;
            }
            let all = if policy.is_coded() { policy.copies } else { 1 };
            Ok((0..all).map(|number| digest(&bytes, number)).collect())
        }))
    }

    fn digest(
        &self,
        to: ReplicaPlace,
        chunk: ChunkId,
        len: u32,
    ) -> LocalFuture<'_, Result<u32, CallError>> {
        Box::pin(self.call(to, async move |place| {
            self.on(place, |server| {
                let replica = server.replicas.get(&(place.disk, chunk));
                let replica = replica.ok_or(DataError::NotFound)?;
                let stat = replica.stat();
                if (stat.state, stat.len) != (ReplicaState::Sealed, len) {
                    return Err(DataError::Corrupt { offset: stat.len });
                }
                if let Some(&offset) = replica.holes.first() {
                    return Err(DataError::Corrupt { offset });
                }
                Ok(digest(&replica.bytes, replica.fragment.map_or(0, |it| it.number)))
            })
        }))
    }

    fn check_rows(
        &self,
        to: ReplicaPlace,
        order: RowCheck,
    ) -> LocalFuture<'_, Result<RowFindings, CallError>> {
        Box::pin(self.call(to, async move |place| {
            self.pause(3_000).await;
            self.on(place, |_| Ok(()))?;
            let wrong = |it: &&ReplicaPlace| {
                let at = ReplicaLocation { server: it.server, disk: it.disk };
                self.wrong.borrow().contains(&(at, order.chunk))
            };
            let wrong = order.sources.iter().filter(wrong);
            Ok(RowFindings {
                checked: 1,
                wrong: wrong.fold(0, |mask, it| mask | 1 << it.fragment),
                miscoded: self.miscoded.borrow().contains(&order.chunk).into(),
            })
        }))
    }

    fn delete(
        &self,
        to: ReplicaPlace,
        chunks: Vec<ChunkId>,
        not_after: IssuerTime,
    ) -> LocalFuture<'_, Result<(), CallError>> {
        self.deletions.borrow_mut().push((to, chunks.clone(), not_after));
        Box::pin(self.call(to, async move |place| {
            self.check_order(not_after)?;
            self.on(place, |server| {
                for chunk in chunks {
                    self.world.check_delete(chunk, place);
                    let tombstone = Replica {
                        state: ReplicaState::Deleted,
                        epoch: Epoch::NONE,
                        base: 0,
                        bytes: Vec::new(),
                        durable: 0,
                        committed: 0,
                        holes: BTreeSet::new(),
                        noticed: false,
                        fragment: None,
                    };
                    server.replicas.insert((place.disk, chunk), tombstone);
                }
                Ok(())
            })
        }))
    }

    fn forget(
        &self,
        to: ReplicaPlace,
        chunks: Vec<ChunkId>,
        not_after: IssuerTime,
    ) -> LocalFuture<'_, Result<(), CallError>> {
        Box::pin(self.call(to, async move |place| {
            self.check_order(not_after)?;
            self.on(place, |server| {
                for chunk in chunks {
                    let key = (place.disk, chunk);
                    let gone = server.replicas.remove(&key);
                    let was = gone.map(|replica| replica.state);
                    assert!(
                        was.is_none_or(ReplicaState::is_tombstone),
                        "forgetting {chunk} at {place:?}, which is {was:?}"
                    );
                }
                Ok(())
            })
        }))
    }

    fn list(
        &self,
        to: ReplicaPlace,
        after: Option<ChunkId>,
        limit: u32,
    ) -> LocalFuture<'_, Result<Listing, CallError>> {
        Box::pin(self.call(to, async move |place| {
            self.on(place, |server| {
                let from = after.map_or(0, |chunk| chunk.get() + 1);
                let from = (place.disk, ChunkId::new(from));
                let to = (place.disk, ChunkId::new(u64::MAX));
                let mut all: Vec<_> = server
                    .replicas
                    .range(from..=to)
                    .map(|(&(_, chunk), replica)| (chunk, replica.stat()))
                    .take(limit as usize + 1)
                    .collect();
                let more = all.len() > limit as usize;
                all.truncate(limit as usize);
                Ok((all, more))
            })
        }))
    }
}

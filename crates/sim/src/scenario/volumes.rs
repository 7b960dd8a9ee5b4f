//! Clients of volumes whose segments are in memory and move between block servers that crash:
//! each block is linearizable, no late message undoes what was acknowledged after it, and an
//! attachment that is over does nothing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use base::ClusterId;
use block_client::{Shape, Volume};
use block_server::BlockServer;
use block_testing::model::Manager;
use block_volume::contract::{Clear, Device};
use block_volume::geometry::{Extent, Geometry};
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::limits::IO_MAX;
use futures_util::future::join_all;
use runtime::sim::{CrashMode, HostId, NetFaults, Sim};
use runtime::{Class, Env, JoinHandle, Rng};
use transport::{ClusterKey, Endpoint, Identity, Limits};

use super::record::{By, Pending, Record, content, extent};
use crate::planted;
use crate::register::Did;
use crate::tuning::transport_limits;

const SERVERS: usize = 3;
const SEGMENTS: u32 = 4;
/// Requests of one client that are under way at a time.
const WORKERS: usize = 3;
/// Blocks in use: few, so that requests meet. At the border of two segments each.
const BLOCKS: [u64; 6] = [3, 4, 7, 8, 127, 128];
const LOAD: Duration = Duration::from_secs(40);
const LEASE: Duration = Duration::from_millis(150);
const PORT: u16 = 7000;
/// Milliseconds between the requests of a worker, at most.
const THINK_MS: u64 = 40;
/// One request of so many is a burst of large reads, this many at a time: windows of links are full.
const BURST_ONE_IN: u64 = 400;
const BURST: usize = 4;
/// The same of some clients that others share their volume with: longer than leases live, and
/// segments move in that time.
const IDLE_MS: u64 = 1500;
/// Clients who share a volume all leave it after each such term: of those who come then, the first may
/// be alone.
const TERM: Duration = Duration::from_secs(4);
/// Tasks that lose answers.
const LOSERS: usize = 2;

/// Volumes: one of a client of its own, one that clients take from each other, one that they
/// share, one whose client is visited.
const VOLUMES: [Kind; 4] = [Kind::Own, Kind::Taken, Kind::Shared, Kind::Visited];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Own,
    Taken,
    Shared,
    Visited,
}

impl Kind {
    fn clients(self) -> usize {
        match self {
            Kind::Own => 1,
            Kind::Visited => 2,
            Kind::Taken | Kind::Shared => 3,
        }
    }

    fn habit(self, client: usize) -> Habit {
        let (visits, stay, changes_one_in) = match (self, client) {
            (Kind::Visited, 0) => (false, (1000, 5000), 6),
            (Kind::Visited, _) => (true, (50, 500), 3),
            (Kind::Shared, _) => (false, (500, 4000), 2),
            _ => (false, (200, 2000), 2),
        };
        Habit { kind: self, visits, stay, changes_one_in }
    }

    fn is_shared(self) -> bool {
        matches!(self, Kind::Shared | Kind::Visited)
    }
}

/// Kinds of clients of a volume.
#[derive(Clone, Copy)]
struct Habit {
    kind: Kind,
    /// It comes for a short while, and is away for another, that the one who stays may be alone.
    visits: bool,
    /// Milliseconds that it stays, at least and at most.
    stay: (u64, u64),
    /// One of so many requests changes something.
    changes_one_in: u64,
}

struct World {
    sim: Sim,
    manager: Manager,
    hosts: Vec<HostId>,
    servers: RefCell<BTreeMap<usize, BlockServer>>,
    stop: Cell<bool>,
    /// The manager is silent.
    down: Cell<bool>,
    /// Hosts that have a shared volume open.
    sharing: RefCell<Vec<(VolumeId, HostId)>>,
    transport: Limits,
    record: Rc<Record>,
    violation: RefCell<Option<String>>,
}

fn identity(name: &str) -> Identity {
    let key = Some(ClusterKey::new([7; 32]));
    Identity { cluster: ClusterId::new(9), key, name: name.to_owned() }
}

fn volume_id(index: usize) -> VolumeId {
    VolumeId::new(index as u64 + 1)
}

/// Two segments in turn, 16 KiB each, in groups of 512 KiB.
fn shape(volume: VolumeId) -> Shape {
    let geometry = Geometry::new(512 << 10, 2, 16 << 10).expect("it goes up");
    Shape { volume, geometry, bytes: 1 << 20 }
}

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let clock = sim.clone();
    let pause = Duration::from_micros(sim.with_rng(|rng| rng.between(20, 2000)));
    let manager = Manager::new(move || clock.elapsed(), LEASE, 256 << 10, pause);
    let world = Rc::new(World {
        sim: sim.clone(),
        manager,
        hosts: (0..SERVERS).map(|index| sim.add_host(&format!("bs{index}"))).collect(),
        servers: RefCell::default(),
        stop: Cell::new(false),
        down: Cell::new(false),
        sharing: RefCell::default(),
        transport: transport_limits(&sim),
        record: Record::new(&sim),
        violation: RefCell::default(),
    });
    for index in 0..SERVERS {
        world.boot(index).await;
    }
    for volume in 0..VOLUMES.len() {
        for index in 0..SEGMENTS {
            let segment = SegmentId { volume: volume_id(volume), index };
            world.manager.assign(segment, world.addr(world.draw(SERVERS)));
        }
    }
    sim.with_net_faults(|faults| {
        *faults = NetFaults {
            drop_one_in: 150,
            duplicate_one_in: 6,
            delay_one_in: 12,
            delay_max: Duration::from_millis(250),
            reset_one_in: 400,
            ..NetFaults::default()
        };
    });
    let mut clients = Vec::new();
    for (index, kind) in VOLUMES.into_iter().enumerate() {
        for client in 0..kind.clients() {
            let habit = kind.habit(client);
            clients.push(sim.spawn("client", attend(world.clone(), volume_id(index), habit)));
        }
    }
    let injector = sim.spawn("faults", world.clone().inject_faults());
    let lose = |_| sim.spawn("lost answers", world.clone().lose_answers());
    let losers: Vec<_> = (0..LOSERS).map(lose).collect();
    let end = sim.elapsed() + LOAD;
    while sim.elapsed() < end && world.violation.borrow().is_none() {
        sim.sleep(Duration::from_millis(50)).await;
    }
    world.stop.set(true);
    let _ = injector.await;
    for loser in losers {
        let _ = loser.await;
    }
    world.manager.set_down(false);
    sim.heal_network();
    let deadline = sim.elapsed() + Duration::from_secs(30);
    while !clients.iter().all(|client| client.is_finished()) {
        if sim.elapsed() > deadline {
            return Err("a client does not end in half a minute without faults".to_owned());
        }
        sim.sleep(Duration::from_millis(50)).await;
    }
    for volume in 0..VOLUMES.len() {
        world.last_look(volume_id(volume)).await?;
    }
    world.judge()
}

impl World {
    fn draw(&self, bound: usize) -> usize {
        self.sim.with_rng(|rng| rng.below(bound as u64) as usize)
    }

    async fn pause(&self, low_ms: u64, high_ms: u64) {
        let length = self.sim.with_rng(|rng| rng.between(low_ms, high_ms));
        self.sim.sleep(Duration::from_millis(length)).await;
    }

    fn addr(&self, server: usize) -> SocketAddr {
        self.sim.addr(self.hosts[server], PORT)
    }

    async fn boot(&self, index: usize) {
        let env = self.sim.boot(self.hosts[index]);
        let addr = self.addr(index);
        let opener = planted::opener_of(self.manager.opener(&env, addr));
        let server = BlockServer::new(&env, opener);
        let endpoint = Endpoint::new(&env, identity("block server"), self.transport.clone());
        let handler = planted::handler_of(server.clone());
        let listen = async move { endpoint.listen(addr, handler).await.map(|_| endpoint) };
        let listening = env.spawn(Class::Control, "listen", listen).await;
        listening.expect("no kill comes yet").expect("the port is free");
        self.servers.borrow_mut().insert(index, server);
    }

    /// Kills servers and moves segments, until it is stopped.
    async fn inject_faults(self: Rc<Self>) {
        while !self.stop.get() {
            self.pause(20, 200).await;
            let index = self.draw(SERVERS);
            match self.draw(5) {
                0 if self.draw(2) == 0 => self.crash(index).await,
                4 if self.draw(2) == 0 => {
                    // No lease is renewed for a while; segments that move do so unnoticed.
                    let down = !self.down.get();
                    self.down.set(down);
                    self.manager.set_down(down);
                }
                1 => {
                    let length = self.sim.with_rng(|rng| rng.between(10, 600));
                    self.sim.pause(self.hosts[index], Duration::from_millis(length));
                }
                _ => self.move_one(index).await,
            }
        }
    }

    async fn crash(&self, index: usize) {
        self.servers.borrow_mut().remove(&index);
        let power = self.sim.with_rng(|rng| rng.one_in(2));
        let mode = if power { CrashMode::Power } else { CrashMode::Process };
        self.sim.crash(self.hosts[index], mode);
        self.pause(10, 300).await;
        // Sometimes it is back before its silence is noticed.
        if self.draw(4) > 0 {
            for segment in self.manager.owned(self.addr(index)) {
                let other = (index + 1 + self.draw(SERVERS - 1)) % SERVERS;
                self.manager.assign(segment, self.addr(other));
            }
        }
        self.boot(index).await;
    }

    /// Moves a segment of a server.
    async fn move_one(&self, index: usize) {
        let owned = self.manager.owned(self.addr(index));
        let Some(&segment) = owned.get(self.draw(owned.len().max(1))) else { return };
        self.move_from(index, segment).await;
    }

    fn owns(&self, index: usize, segment: SegmentId) -> bool {
        self.manager.owned(self.addr(index)).contains(&segment)
    }

    /// Moves a segment, if its owner has it still; the owner is notified before, or late.
    async fn move_from(&self, index: usize, segment: SegmentId) {
        let to = self.addr((index + 1 + self.draw(SERVERS - 1)) % SERVERS);
        let late = self.draw(2) == 0;
        if late && self.owns(index, segment) {
            self.manager.assign(segment, to);
            self.pause(5, 1500).await;
        }
        self.release(index, segment).await;
        if !late && self.owns(index, segment) {
            self.manager.assign(segment, to);
            // A client may have had it opened again in between.
            self.release(index, segment).await;
        }
    }

    /// Moves a segment twice within a lease. The first owner hears nothing of it before its lease has run
    /// out, the second one at once.
    async fn move_twice(self: Rc<Self>, segment: SegmentId) {
        let Some(first) = (0..SERVERS).find(|&index| self.owns(index, segment)) else { return };
        let turn = 1 + self.draw(SERVERS - 1);
        let (next, last) = ((first + turn) % SERVERS, (first + 2 * turn) % SERVERS);
        self.manager.assign(segment, self.addr(next));
        self.pause(2, 60).await;
        if self.owns(next, segment) {
            self.manager.assign(segment, self.addr(last));
            self.release(next, segment).await;
            self.sim.mark("volumes: a segment moves twice within a lease");
        }
        self.pause(150, 400).await;
        // A client may have had it opened there again.
        self.release(next, segment).await;
        self.release(first, segment).await;
    }

    async fn release(&self, index: usize, segment: SegmentId) {
        let server = self.servers.borrow().get(&index).cloned();
        if let (Some(server), Some(env)) = (server, self.sim.env(self.hosts[index])) {
            let release = async move { server.release(segment).await };
            let _ = env.spawn(Class::Control, "release", release).await;
        }
    }

    /// Loses a server's answers to one client of a shared volume, while a segment moves from there.
    /// Others see what that client has changed, and change it; then it sends its changes again, to
    /// the next owner.
    async fn lose_answers(self: Rc<Self>) {
        while !self.stop.get() {
            self.pause(20, 100).await;
            let sharing = self.sharing.borrow().clone();
            let Some(&(volume, mut client)) = sharing.get(self.draw(sharing.len().max(1))) else {
                continue;
            };
            let came_first = sharing.iter().find(|(shared, _)| *shared == volume);
            if let (Some(&(_, first)), 0) = (came_first, self.draw(2)) {
                // One that may act alone, though others read.
                client = first;
            }
            let segment = SegmentId { volume, index: self.draw(SEGMENTS as usize) as u32 };
            let owner = (0..SERVERS).find(|&index| self.owns(index, segment));
            let Some(index) = owner else { continue };
            let server = self.hosts[index];
            self.sim.set_blocked(server, client, true);
            if self.draw(2) == 0 {
                // It leaves an owner that others are still answered by.
                let to = self.addr((index + 1 + self.draw(SERVERS - 1)) % SERVERS);
                self.manager.assign(segment, to);
                // The client asks there after its call's timeout.
                self.pause(150, 800).await;
                self.release(index, segment).await;
            } else {
                self.pause(50, 400).await;
                self.move_from(index, segment).await;
            }
            self.pause(50, 400).await;
            if self.sim.held(server, client) > 0 {
                self.sim.mark("volumes: answers are lost while a segment moves");
            }
            self.sim.set_blocked(server, client, false);
        }
    }

    fn violate(&self, what: String) {
        self.violation.borrow_mut().get_or_insert(what);
    }

    /// A client ends what it is at and says farewell, if it can soon.
    async fn depart(&self, session: Rc<Session>, workers: Vec<JoinHandle<()>>) {
        const SOON: Duration = Duration::from_secs(1);
        session.leaves.set(true);
        let env = session.env.clone();
        let farewell = async move {
            for worker in workers {
                let _ = worker.await;
            }
            session.device.close().await;
            session.env.mark("volumes: a client has gone as it should");
        };
        let farewell = env.spawn(Class::Foreground, "farewell", farewell);
        let end = self.sim.elapsed() + SOON;
        while !farewell.is_finished() && self.sim.elapsed() < end {
            self.sim.sleep(Duration::from_millis(10)).await;
        }
    }

    fn client(&self) -> (HostId, Env, Endpoint) {
        let host = self.sim.add_host("client");
        let env = self.sim.boot(host);
        let endpoint = Endpoint::new(&env, identity("block client"), self.transport.clone());
        (host, env, endpoint)
    }

    /// All blocks are read once more, when no client writes.
    async fn last_look(self: &Rc<Self>, volume: VolumeId) -> Result<(), String> {
        let (_, env, endpoint) = self.client();
        let attachment = self.manager.attach(volume, true);
        let route = self.manager.route();
        let device = Volume::new(
            &env,
            endpoint,
            route,
            shape(volume),
            attachment,
            block_client::Limits::default(),
        );
        let session = Rc::new(Session {
            world: self.clone(),
            env: env.clone(),
            volume,
            device,
            epoch: attachment.epoch,
            changes_one_in: 1,
            think_ms: THINK_MS,
            leaves: Cell::default(),
        });
        for block in BLOCKS {
            let this = session.clone();
            let look = async move { this.read(block..block + 1).await };
            let looked = env.spawn(Class::Foreground, "last look", look).await;
            if looked != Ok(true) {
                return Err(format!("{volume}: block {block} cannot be read without faults"));
            }
        }
        Ok(())
    }

    fn judge(&self) -> Result<(), String> {
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        let ids = (0..VOLUMES.len()).map(volume_id);
        let answered: usize = ids.map(|volume| self.record.answered(volume, 0)).sum();
        self.record.judge(|volume| VOLUMES[volume.get() as usize - 1].is_shared())?;
        match answered < 500 {
            true => Err(format!("only {answered} requests in {LOAD:?}: the load stands still")),
            false => Ok(()),
        }
    }
}

/// Has a volume open again and again, until the end.
async fn attend(world: Rc<World>, volume: VolumeId, habit: Habit) {
    let Habit { kind, visits, stay, changes_one_in } = habit;
    while !world.stop.get() {
        let (host, env, endpoint) = world.client();
        if kind.is_shared() {
            world.sharing.borrow_mut().push((volume, host));
        }
        if world.draw(3) == 0 {
            // What the client finds has just moved, and moves on.
            let segment = SegmentId { volume, index: world.draw(SEGMENTS as usize) as u32 };
            world.sim.spawn("moves", world.clone().move_twice(segment));
            world.pause(0, 3).await;
        }
        let attachment = world.manager.attach(volume, !kind.is_shared());
        let limits = block_client::Limits {
            call_timeout: Duration::from_millis(300),
            open_timeout: Duration::from_millis(600),
            // Now and then one that gives up.
            deadline: Duration::from_millis(if world.draw(4) == 0 { 200 } else { 20_000 }),
            ..block_client::Limits::default()
        };
        let route = world.manager.route();
        let device = Volume::new(&env, endpoint, route, shape(volume), attachment, limits);
        if world.draw(2) == 0 {
            device.read_directly(world.manager.files(&env));
        }
        let epoch = attachment.epoch;
        let idles = kind.is_shared() && !visits && world.draw(3) == 0;
        let session = Rc::new(Session {
            world: world.clone(),
            env: env.clone(),
            volume,
            device,
            epoch,
            changes_one_in,
            think_ms: if idles { IDLE_MS } else { THINK_MS },
            leaves: Cell::default(),
        });
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let rng = Rng::new(world.sim.with_rng(|rng| rng.next_u64()));
                env.spawn(Class::Foreground, "lane", session.clone().work(rng))
            })
            .collect();
        let stay = world.sim.with_rng(|rng| rng.between(stay.0, stay.1));
        let mut end = world.sim.elapsed() + Duration::from_millis(stay);
        let term = Duration::from_secs(end.as_secs() / TERM.as_secs() * TERM.as_secs());
        let ends_term = kind == Kind::Shared && term > world.sim.elapsed();
        if ends_term {
            end = term;
        }
        let working = || workers.iter().any(|worker| !worker.is_finished());
        while working() && (world.stop.get() || world.sim.elapsed() < end) {
            world.sim.sleep(Duration::from_millis(10)).await;
        }
        if visits || world.draw(2) == 0 {
            world.depart(session, workers).await;
        }
        // A client that is killed leaves what it has sent behind. One whose volume is taken is
        // left alone for a while: it does not know.
        if kind != Kind::Taken || world.draw(2) == 0 {
            world.sim.crash(host, CrashMode::Process);
            world.manager.detach(volume, epoch);
        } else {
            let (sim, grace) = (world.sim.clone(), Duration::from_secs(2));
            world.sim.spawn("zombie", async move {
                sim.sleep(grace).await;
                sim.crash(host, CrashMode::Process);
            });
        }
        world.sharing.borrow_mut().retain(|(_, sharing)| *sharing != host);
        while ends_term && world.sharing.borrow().iter().any(|(shared, _)| *shared == volume) {
            world.pause(5, 10).await;
        }
        if visits && !world.stop.get() {
            world.pause(200, 1000).await;
        }
    }
}

/// A client that has a volume open.
struct Session {
    world: Rc<World>,
    env: Env,
    volume: VolumeId,
    device: Volume,
    epoch: u64,
    changes_one_in: u64,
    think_ms: u64,
    /// It begins nothing more.
    leaves: Cell<bool>,
}

impl Session {
    async fn work(self: Rc<Self>, mut rng: Rng) {
        let over = || self.leaves.get() || self.world.stop.get();
        while !over() && self.world.violation.borrow().is_none() {
            let block = *rng.pick(&BLOCKS);
            let count = if BLOCKS.contains(&(block + 1)) && rng.one_in(3) { 2 } else { 1 };
            let blocks = block..block + count;
            let alive = match rng.one_in(self.changes_one_in) {
                _ if rng.one_in(BURST_ONE_IN) => self.read_much().await,
                true if rng.one_in(7) => self.clear(blocks).await,
                true => self.write(blocks).await,
                false => self.read(blocks).await,
            };
            if !alive {
                return;
            }
            self.env.sleep(Duration::from_millis(rng.below(self.think_ms))).await;
        }
    }

    fn begin(&self, blocks: &Range<u64>, did: Did) -> Pending {
        let geometry = shape(self.volume).geometry;
        // No volume is cut here.
        let opened = Duration::ZERO;
        let by = By { volume: self.volume, geometry, epoch: self.epoch, opened };
        self.world.record.begin(by, blocks, did)
    }

    /// False when the attachment is over.
    async fn write(&self, blocks: Range<u64>) -> bool {
        let value = self.world.record.value();
        let Ok(data) = self.env.pool().copy_of(&content(value, &blocks)) else { return true };
        let pending = self.begin(&blocks, Did::Write(value));
        if self.device.write(extent(&blocks).offset, data).await.is_ok() {
            pending.done();
        }
        !self.device.is_over()
    }

    async fn clear(&self, blocks: Range<u64>) -> bool {
        let odd = self.world.record.value() % 2 == 1;
        let how = if odd { Clear::Trim } else { Clear::Zero };
        let pending = self.begin(&blocks, Did::Write(0));
        if self.device.clear(extent(&blocks), how).await.is_ok() {
            pending.done();
        }
        !self.device.is_over()
    }

    /// Several reads at once, as large as they may be.
    async fn read_much(&self) -> bool {
        self.env.mark("volumes: a burst of large reads");
        let reads = (0..BURST).map(|_| self.read_large());
        join_all(reads).await.into_iter().all(|alive| alive)
    }

    /// The first bytes of the volume, of which only the blocks in use are judged.
    async fn read_large(&self) -> bool {
        let all = Extent { offset: 0, len: IO_MAX as u64 };
        let judged = BLOCKS.into_iter().map(|block| block..block + 1);
        let judged = judged.filter(|blocks| extent(blocks).offset < all.len);
        let judged: Vec<_> =
            judged.map(|blocks| (extent(&blocks), self.begin(&blocks, Did::Read(0)))).collect();
        let Ok(data) = self.device.read(all).await else { return !self.device.is_over() };
        for (Extent { offset, len }, pending) in judged {
            if let Err(what) = pending.saw(&data[offset as usize..(offset + len) as usize]) {
                self.world.violate(what);
            }
        }
        true
    }

    async fn read(&self, blocks: Range<u64>) -> bool {
        let pending = self.begin(&blocks, Did::Read(0));
        let Ok(data) = self.device.read(extent(&blocks)).await else {
            return !self.device.is_over();
        };
        if let Err(what) = pending.saw(&data) {
            self.world.violate(what);
        }
        true
    }
}

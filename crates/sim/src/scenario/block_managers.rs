//! Block managers, block servers and the leases between them, under crashes, partitions and
//! drifting clocks: of all servers that believe in their lease on a segment, only the one with the
//! lowest epoch acknowledges writes, and no read is older than what was acknowledged before
//! (invariant 6, `protocols.md` 6.5). Segments are in memory: they enforce the fences as the core
//! would.

mod measured;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use base::{Fault, Kind, MIB};
use block_manager::ManagerConfig;
use block_proto::{BlockReply, BlockRequest, Managers, VolumeGeometry, VolumeSpec};
use block_server::ownership::OwnedSegment;
use block_server::{BlockServerAgent, Devices, LeaseState, Predecessors, ServedSegment};
use block_volume::contract::{AllocationExtent, Answer, BlockLocations, Clear, Device, Owned};
use block_volume::dedup::RequestId;
use block_volume::figures::{SegmentCheck, SegmentScrub};
use block_volume::geometry::Extent;
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::qos::VolumeLimits;
use client::Client;
use futures_util::future::LocalBoxFuture;
use roles::block::{ManagerRole, start_manager_with};
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Buf, Class, Env, Rng};
use wire::control::Policy;

use super::{ownership_views, policy};
use crate::cluster::{Cluster, Shape, parse};
use crate::nemesis::{Faults, Nemesis};
use crate::planted::peers_of;
use crate::tuning::Tuning;

const MANAGERS: usize = 2;
const SERVERS: usize = 3;
const VOLUMES: u64 = 3;
const PORT: u16 = 7301;
const LOAD: Duration = Duration::from_secs(12);
/// Interval of comparing beliefs.
const LOOK: Duration = Duration::from_millis(2);
/// The content of all segments, as the core would have it.
#[derive(Default)]
struct StandInStore {
    segments: RefCell<BTreeMap<SegmentId, Content>>,
}

#[derive(Default)]
struct Content {
    /// The largest epoch under which it was opened.
    epoch: u64,
    /// The value written last.
    value: u64,
    /// The largest value that was acknowledged.
    acked: u64,
}

/// A segment at one server, which knows its own reads and writes.
struct StandIn {
    env: Env,
    store: Rc<StandInStore>,
    id: SegmentId,
    epoch: u64,
    known: Cell<u64>,
}

impl StandIn {
    async fn write_value(&self, value: u64) -> Result<(), Fault> {
        let delay = Duration::from_micros(self.env.random_below(3000));
        self.env.sleep(delay).await;
        {
            let segments = &mut *self.store.segments.borrow_mut();
            let content = segments.entry(self.id).or_default();
            if content.epoch != self.epoch {
                return Err(Fault::new(Kind::Fenced, "another has opened it"));
            }
            content.value = content.value.max(value);
            self.known.set(content.value);
        }
        self.env.sleep(delay).await;
        Ok(())
    }
}

impl Device for StandIn {
    fn bytes(&self) -> u64 {
        MIB
    }

    fn read(&self, _: Extent) -> Answer<'_, Buf> {
        Box::pin(async { Err(Fault::new(Kind::Invalid, "a stand-in has a value only")) })
    }

    fn write(&self, _: u64, _: Buf) -> Answer<'_, ()> {
        Box::pin(async { Err(Fault::new(Kind::Invalid, "a stand-in has a value only")) })
    }

    fn clear(&self, _: Extent, _: Clear) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn pieces(&self, extent: Extent, _: usize) -> Answer<'_, Vec<AllocationExtent>> {
        let hole = AllocationExtent { len: extent.len, hole: true, zero: true };
        Box::pin(async move { Ok(vec![hole]) })
    }
}

impl Owned for StandIn {
    fn write_dedup(&self, _: RequestId, offset: u64, data: Buf) -> Answer<'_, ()> {
        self.write(offset, data)
    }

    fn clear_dedup(&self, _: RequestId, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.clear(extent, how)
    }

    fn last(&self, _: u32) -> u64 {
        0
    }

    fn attachments(&self) -> Vec<u32> {
        Vec::new()
    }

    fn forget(&self, _: Range<u32>) {}

    fn locate(&self, _: Extent, _: bool) -> Answer<'_, Option<BlockLocations>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// The answer of an append to the core.
    fn confirm(&self) -> Answer<'_, ()> {
        Box::pin(async {
            let delay = Duration::from_micros(self.env.random_below(2000));
            self.env.sleep(delay).await;
            let epoch =
                self.store.segments.borrow().get(&self.id).map_or(0, |content| content.epoch);
            self.env.sleep(delay).await;
            match epoch == self.epoch {
                true => Ok(()),
                false => Err(Fault::new(Kind::Fenced, "another has opened it")),
            }
        })
    }
}

impl ServedSegment for StandIn {
    fn stopped(&self) -> LocalBoxFuture<'static, Fault> {
        Box::pin(std::future::pending())
    }

    fn close(&self) -> LocalBoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn set_policy(&self, _: Policy) {} // It has no files.

    fn check(&self, _: u64) -> Answer<'_, SegmentCheck> {
        Box::pin(async { Err(Fault::new(Kind::Invalid, "a stand-in has a value only")) })
    }

    fn scrub(&self) -> SegmentScrub {
        SegmentScrub::default()
    }
}

/// Opens stand-ins of one server.
struct StandIns {
    env: Env,
    store: Rc<StandInStore>,
    open: RefCell<BTreeMap<SegmentId, Rc<StandIn>>>,
}

impl Devices for StandIns {
    fn open(&self, segment: SegmentId, held: OwnedSegment) -> Answer<'_, Rc<dyn ServedSegment>> {
        Box::pin(async move {
            let delay = Duration::from_millis(1 + self.env.random_below(30));
            self.env.sleep(delay).await;
            let value = {
                let segments = &mut *self.store.segments.borrow_mut();
                let content = segments.entry(segment).or_default();
                if content.epoch > held.epoch {
                    return Err(Fault::new(Kind::Fenced, "another has opened it"));
                }
                content.epoch = held.epoch;
                content.value
            };
            let stand_in = Rc::new(StandIn {
                env: self.env.clone(),
                store: self.store.clone(),
                id: segment,
                epoch: held.epoch,
                known: Cell::new(value),
            });
            self.open.borrow_mut().insert(segment, stand_in.clone());
            Ok(stand_in as Rc<dyn ServedSegment>)
        })
    }
}

/// A block server that runs.
#[derive(Clone)]
struct Running {
    agent: BlockServerAgent,
    stand_ins: Rc<StandIns>,
}

struct World {
    cluster: Cluster,
    store: Rc<StandInStore>,
    managers: Vec<HostId>,
    servers: Vec<HostId>,
    leading: RefCell<Vec<Option<ManagerRole>>>,
    running: RefCell<Vec<Option<Running>>>,
    /// Processes that crashed: they believe nothing.
    stop: Cell<bool>,
    verdict: RefCell<Option<String>>,
    acked: Cell<u64>,
    reads: Cell<u64>,
}

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    // Five: a replica that was lost is made again elsewhere.
    let shape = Shape::default();
    let cluster = Cluster::start(&sim, shape, Tuning::default());
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let hosts = |kind: &str, count: usize| -> Vec<HostId> {
        (1..=count).map(|number| sim.add_host(&format!("{kind}{number}"))).collect()
    };
    let world = Rc::new(World {
        cluster: cluster.clone(),
        store: Rc::default(),
        managers: hosts("bm", MANAGERS),
        servers: hosts("bs", SERVERS),
        leading: RefCell::new(vec![None; MANAGERS]),
        running: RefCell::new(vec![None; SERVERS]),
        stop: Cell::new(false),
        verdict: RefCell::default(),
        acked: Cell::new(0),
        reads: Cell::new(0),
    });
    world.boot_all();
    let (user_host, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let users = Managers::with_budget(&client, Duration::from_secs(60));
    let judge = sim.spawn("judge", judge(world.clone()));
    let user =
        client.env().spawn(Class::Foreground, "user", use_volumes(world.clone(), users.clone()));
    let faults =
        Faults { master_crashes: true, bad_network: true, bad_clocks: true, ..Faults::default() };
    let nemesis = Nemesis::start(&cluster, faults);
    let own = sim.spawn("block nemesis", harass(world.clone()));
    let end = sim.elapsed() + LOAD;
    while sim.elapsed() < end && world.verdict.borrow().is_none() {
        sim.sleep(Duration::from_millis(50)).await;
    }
    world.stop.set(true);
    let _ = own.await; // It ends with the load.
    nemesis.stop().await;
    world.quiet();
    let deadline = sim.elapsed() + Duration::from_secs(90);
    while !user.is_finished() {
        if sim.elapsed() > deadline {
            return Err("a user of volumes waits for ever without faults".to_owned());
        }
        sim.sleep(Duration::from_millis(50)).await;
    }
    cluster.settle(Duration::from_secs(60)).await?;
    let mut segments = world.segments(&users).await?;
    if segments.is_empty() {
        // The last volume was removed: without one no request can be measured.
        sim.mark("block-managers: no volume was left");
        let made = users.ask(creation("last", 1, 4 * MIB)).await;
        made.map_err(|error| format!("no volume can be made: {error}"))?;
        segments = world.segments(&users).await?;
    }
    world.until_served(&segments, Duration::from_secs(30)).await?;
    world.kill_and_measure((user_host, &users), &segments).await?;
    world.go_on_without_managers().await?;
    judge.abort();
    if let Some(violation) = world.verdict.borrow_mut().take() {
        return Err(violation);
    }
    if world.acked.get() < 100 || world.reads.get() < 100 {
        let (acked, reads) = (world.acked.get(), world.reads.get());
        return Err(format!("only {acked} writes and {reads} reads: the load stands still"));
    }
    sim.note(world.acked.get());
    Ok(())
}

impl World {
    fn violation(&self, text: String) {
        self.verdict.borrow_mut().get_or_insert(text);
    }

    fn boot_all(self: &Rc<Self>) {
        (0..MANAGERS).for_each(|index| self.boot_manager(index));
        (0..SERVERS).for_each(|index| self.boot_server(index));
    }

    /// Ends the faults of our own hosts.
    fn quiet(self: &Rc<Self>) {
        let sim = self.cluster.sim();
        sim.heal_network();
        sim.with_net_faults(|net| *net = Default::default());
        for &host in self.managers.iter().chain(&self.servers) {
            sim.set_clock_drift(host, 0);
        }
        self.boot_all();
    }

    fn boot_manager(self: &Rc<Self>, index: usize) {
        let (sim, host) = (self.cluster.sim(), self.managers[index]);
        if sim.env(host).is_some() {
            return;
        }
        let (env, this) = (sim.boot(host), self.clone());
        env.clone().spawn(Class::Control, "boot manager", async move {
            let cluster = &this.cluster;
            let id = format!("bm{}", index + 1);
            let listen = cluster.sim().addr(host, PORT);
            let text = cluster.config_text(&id, &cluster.masters_text());
            let short = "lock_ms = 600\nvolume_mib_min = 1\nvolume_undelete_s = 0\n";
            let config = parse(&format!("{text}listen = '{listen}'\n{short}"));
            let tune = |it: &mut ManagerConfig| it.first = cluster.first_epochs();
            match start_manager_with(&env, &config, &cluster.seams(), tune).await {
                Ok(manager) => this.leading.borrow_mut()[index] = Some(manager),
                Err(error) => this.violation(format!("a manager did not start: {error}")),
            }
        });
    }

    fn boot_server(self: &Rc<Self>, index: usize) {
        let (sim, host) = (self.cluster.sim(), self.servers[index]);
        if sim.env(host).is_some() {
            return;
        }
        let (env, this) = (sim.boot(host), self.clone());
        env.clone().spawn(Class::Control, "boot block server", async move {
            let client = this.connect(&env, client::Config::default()).await;
            let stand_ins = Rc::new(StandIns {
                env: env.clone(),
                store: this.store.clone(),
                open: RefCell::default(),
            });
            let addr = this.cluster.sim().addr(host, PORT);
            let name = format!("bs{}", index + 1);
            let agent =
                BlockServerAgent::start(Managers::new(&client), stand_ins.clone(), &name, addr);
            let endpoint = this.cluster.endpoint(&env);
            if let Err(error) = endpoint.listen(addr, Rc::new(agent.clone())).await {
                return this.violation(format!("a block server does not listen: {error}"));
            }
            let running = Running { agent, stand_ins };
            this.running.borrow_mut()[index] = Some(running.clone());
            let work = serve(this, env.clone(), running);
            env.spawn(Class::Foreground, "requests", work);
        });
    }

    async fn connect(&self, env: &Env, config: client::Config) -> Client {
        loop {
            let peers = peers_of(env, self.cluster.endpoint(env));
            let masters = self.cluster.master_addrs();
            if let Ok(client) = Client::connect_over(env, peers, masters, config.clone()).await {
                return client;
            }
            env.sleep(Duration::from_millis(100)).await;
        }
    }

    fn crash(&self, manager: bool, index: usize) {
        let mode = match self.cluster.sim().with_rng(|rng| rng.one_in(2)) {
            true => CrashMode::Power,
            false => CrashMode::Process,
        };
        if manager {
            self.leading.borrow_mut()[index] = None;
            self.cluster.sim().crash(self.managers[index], mode);
        } else {
            self.running.borrow_mut()[index] = None;
            self.cluster.sim().crash(self.servers[index], mode);
        }
    }

    /// Stops a process as SIGTERM does, and ends it.
    async fn stop_role(&self, manager: bool, index: usize) {
        let sim = self.cluster.sim();
        if manager {
            let role = self.leading.borrow_mut()[index].take();
            let Some(role) = role else { return self.crash(manager, index) };
            let stop = async move { role.stop().await };
            self.cluster.stop_role(self.managers[index], stop).await;
            sim.mark("block-managers: a manager is stopped");
        } else {
            // It owns its segments until it has left.
            let running = self.running.borrow()[index].clone();
            let Some(Running { agent, .. }) = running else { return self.crash(manager, index) };
            let stop = async move {
                agent.leave().await;
                agent.stop();
                agent.close_all().await;
            };
            self.cluster.stop_role(self.servers[index], stop).await;
            sim.mark("block-managers: a block server is stopped");
        }
        self.crash(manager, index);
    }

    /// Compares the beliefs of all servers.
    fn look(&self) {
        let ownership_views = {
            let running = self.running.borrow();
            let of = |(index, running): (usize, &Option<Running>)| {
                let lease_states = running.as_ref().map(|running| running.agent.lease_states());
                lease_states.into_iter().flatten().map(move |standing| (index, standing))
            };
            running.iter().enumerate().flat_map(of).collect::<Vec<_>>()
        };
        match ownership_views::compare(ownership_views) {
            Ok(false) => {}
            Ok(true) => {
                let mut envs = self.servers.iter().filter_map(|&at| self.cluster.sim().env(at));
                envs.next().iter().for_each(|env| {
                    env.mark("block: a new owner waits for a lease");
                });
            }
            Err(what) => self.violation(what),
        }
    }

    /// All segments there are.
    async fn segments(&self, users: &Managers) -> Result<BTreeSet<SegmentId>, String> {
        let mut found = BTreeSet::new();
        for volume in volumes(users).await? {
            let map = users.map(volume).await.map_err(|error| error.to_string())?;
            found.extend(map.iter().map(|place| SegmentId { volume, index: place.index }));
        }
        Ok(found)
    }

    /// Waits until each segment is served by a server that may acknowledge.
    async fn until_served(
        &self,
        wanted: &BTreeSet<SegmentId>,
        deadline: Duration,
    ) -> Result<Duration, String> {
        let sim = self.cluster.sim();
        let began = sim.elapsed();
        loop {
            let served: BTreeSet<SegmentId> = {
                let running = self.running.borrow();
                let served = running.iter().flatten().flat_map(|running| {
                    let serves = |&(id, epoch, standing): &(SegmentId, u64, LeaseState)| {
                        let open = running.stand_ins.open.borrow();
                        matches!(standing, LeaseState::Active(_))
                            && open.get(&id).is_some_and(|open| open.epoch == epoch)
                    };
                    running.agent.lease_states().into_iter().filter(serves).collect::<Vec<_>>()
                });
                served.map(|(id, ..)| id).collect()
            };
            if wanted.is_subset(&served) {
                return Ok(sim.elapsed() - began);
            }
            if sim.elapsed() - began > deadline {
                let missing: Vec<_> = wanted.difference(&served).collect();
                return Err(format!("{missing:?} are not served after {deadline:?}"));
            }
            sim.sleep(Duration::from_millis(1)).await;
        }
    }

    fn acked_of(&self, id: SegmentId) -> u64 {
        self.store.segments.borrow().get(&id).map_or(0, |content| content.acked)
    }

    /// A read has all that was acknowledged before it began.
    fn check_read(&self, device: &StandIn, acked: u64, known: u64) {
        self.reads.set(self.reads.get() + 1);
        if known < acked {
            self.violation(format!(
                "{}: {acked} was acknowledged, and the owner of epoch {} reads {known}, though \
                 servers believe their leases",
                device.id, device.epoch,
            ));
        }
    }
}

async fn volumes(users: &Managers) -> Result<Vec<VolumeId>, String> {
    match users.ask(BlockRequest::List { after: None, limit: 256 }).await {
        Ok(BlockReply::Volumes { volumes, .. }) => {
            Ok(volumes.into_iter().map(|info| info.volume).collect())
        }
        Ok(other) => Err(format!("not a list: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

async fn judge(world: Rc<World>) {
    let sim = world.cluster.sim().clone();
    while world.verdict.borrow().is_none() {
        world.look();
        sim.sleep(LOOK).await;
    }
}

/// Crashes, stops, pauses and cuts off managers and block servers, one at a time.
async fn harass(world: Rc<World>) {
    let sim = world.cluster.sim().clone();
    let draw = |bound: usize| sim.with_rng(|rng| rng.below(bound as u64)) as usize;
    let pause =
        |low, high| sim.sleep(Duration::from_millis(sim.with_rng(|rng| rng.between(low, high))));
    while !world.stop.get() && world.verdict.borrow().is_none() {
        pause(100, 1200).await;
        let manager = draw(3) == 0;
        let index = draw(if manager { MANAGERS } else { SERVERS });
        let host = if manager { world.managers[index] } else { world.servers[index] };
        match draw(5) {
            0 | 1 => {
                if draw(3) == 0 {
                    world.stop_role(manager, index).await;
                } else {
                    world.crash(manager, index);
                }
                pause(1, 1500).await;
                if manager { world.boot_manager(index) } else { world.boot_server(index) }
            }
            2 => sim.pause(host, Duration::from_millis(sim.with_rng(|rng| rng.between(50, 1500)))),
            3 => {
                let ppm = sim.with_rng(|rng| rng.between(0, 20_000)) as i64 - 10_000;
                sim.set_clock_drift(host, ppm);
            }
            _ => {
                let others: Vec<HostId> = world
                    .cluster
                    .masters()
                    .iter()
                    .chain(&world.managers)
                    .chain(&world.servers)
                    .copied()
                    .filter(|&other| other != host)
                    .collect();
                let (inward, outward) = (draw(3) != 0, draw(3) != 0);
                for &other in &others {
                    sim.set_blocked(other, host, inward);
                    sim.set_blocked(host, other, outward);
                }
                pause(100, 2000).await;
                for &other in &others {
                    sim.set_blocked(other, host, false);
                    sim.set_blocked(host, other, false);
                }
            }
        }
    }
}

/// A block server's handling of requests: reads and writes of the segments that it has.
async fn serve(world: Rc<World>, env: Env, running: Running) {
    let mut rng = Rng::new(env.random_u64());
    loop {
        env.sleep(Duration::from_micros(200 + rng.below(3000))).await;
        let open: Vec<Rc<StandIn>> = running.stand_ins.open.borrow().values().cloned().collect();
        if open.is_empty() {
            continue;
        }
        let device = open[rng.below(open.len() as u64) as usize].clone();
        let (id, epoch) = (device.id, device.epoch);
        let agent = running.agent.clone();
        if rng.one_in(2) {
            match agent.lease_state(id, epoch, Predecessors::All) {
                LeaseState::Active(_) | LeaseState::HoldingAcks(_) => read(&world, &device),
                LeaseState::Expired(_) => {
                    let (world, device) = (world.clone(), device.clone());
                    env.spawn(Class::Foreground, "read", confirmed_read(world, device));
                }
                LeaseState::Revoked => {}
            }
            continue;
        }
        let value = device.known.get() + 1;
        let (world, env) = (world.clone(), env.clone());
        env.clone().spawn(Class::Foreground, "write", async move {
            if device.write_value(value).await.is_err() {
                return;
            }
            // As a server does: fencing protects what is durable, with a lease or without.
            loop {
                match agent.lease_state(id, epoch, Predecessors::All) {
                    LeaseState::Active(_) => break,
                    LeaseState::HoldingAcks(until) => env.sleep_until(until).await,
                    LeaseState::Expired(until) if env.now() < until => env.sleep_until(until).await,
                    LeaseState::Expired(_) => {
                        env.mark("block: change acknowledged without a lease");
                        break;
                    }
                    LeaseState::Revoked => return,
                }
            }
            world.acked.set(world.acked.get() + 1);
            let segments = &mut *world.store.segments.borrow_mut();
            let content = segments.entry(id).or_default();
            content.acked = content.acked.max(value);
        });
    }
}

/// A read that is answered at once: it has all that was acknowledged before.
fn read(world: &World, device: &StandIn) {
    world.check_read(device, world.acked_of(device.id), device.known.get());
}

/// A read of a server whose lease has run out: it asks the core before it answers.
async fn confirmed_read(world: Rc<World>, device: Rc<StandIn>) {
    let (acked, known) = (world.acked_of(device.id), device.known.get());
    if device.confirm().await.is_ok() {
        device.env.mark("block: read confirmed by the core");
        world.check_read(&device, acked, known);
    }
}

/// A request for a volume in segments of 1 MiB.
fn creation(name: &str, nonce: u64, bytes: u64) -> BlockRequest {
    let geometry =
        VolumeGeometry { group_bytes: 2 * MIB, segments_per_group: 2, data_sector: 64 << 10 };
    let spec = VolumeSpec {
        name: name.to_owned(),
        bytes,
        geometry,
        policy: policy::drawn_volume(),
        limits: VolumeLimits::default(),
        shared: false,
    };
    BlockRequest::Create { nonce, spec }
}

/// Makes, resizes and removes volumes as a user would.
async fn use_volumes(world: Rc<World>, users: Managers) {
    let env = users.client().env().clone();
    let mut rng = Rng::new(env.random_u64());
    let mut names = BTreeSet::new();
    while !world.stop.get() && world.verdict.borrow().is_none() {
        let name = format!("v{}", rng.below(VOLUMES));
        let outcome = match users.volume(&name).await {
            Ok(info) if rng.one_in(4) => {
                let request = BlockRequest::Remove { volume: info.volume, force: false };
                names.remove(&name);
                users.ask(request).await
            }
            Ok(info) => {
                let bytes = rng.between(1, 6) * MIB;
                users.ask(BlockRequest::Resize { volume: info.volume, bytes, force: true }).await
            }
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            Err(_) if names.contains(&name) => {
                return world.violation(format!("{name} was made, and is gone"));
            }
            Err(_) => {
                let bytes = rng.between(1, 6) * MIB;
                let made = users.ask(creation(&name, rng.next_u64(), bytes)).await;
                if made.is_ok() {
                    names.insert(name);
                }
                made
            }
        };
        match outcome {
            Err(error) if matches!(error.kind(), Kind::Retry) => {}
            Err(error) => return world.violation(format!("a user is refused: {error}")),
            Ok(_) => {}
        }
        env.sleep(Duration::from_millis(rng.below(600))).await;
    }
}
